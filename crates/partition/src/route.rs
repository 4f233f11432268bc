//! Which partition a message, a key or a receive belongs to.
//!
//! A queue's messages are spread by key, by group, or live in one partition. [`Routes`] knows how,
//! for every queue. The order of changes matters: a queue is entered before any partition takes a
//! message for it, and is removed after the last one dropped it ([`crate::change`] does both). A
//! caller that routes commands and hands them over MUST do both before the next change of the
//! routes, or a message could reach a partition by rules that no longer hold.

use std::collections::HashMap;

use hapax_core::{
    Command, Config, Content, DedupScope, Digest, KeyName, MessageId, Order, QueueName, Receive,
};

/// The partition that decides about queues; the others follow it.
pub const LEADER: usize = 0;

/// By what a queue's messages are spread over the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    Key,
    Group,
    /// All in one: order over all keys, and one place that knows them.
    Queue,
}

impl Spread {
    pub fn of(config: &Config) -> Self {
        match (config.order, config.dedup_scope) {
            (_, DedupScope::Group) => Self::Group,
            (Order::Group, DedupScope::Queue) => Self::Queue,
            (Order::None, DedupScope::Queue) => Self::Key,
        }
    }
}

/// How every queue spreads its messages.
#[derive(Clone, Debug)]
pub struct Routes {
    partitions: usize,
    queues: HashMap<QueueName, Way>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open(Spread),
    /// The leader has dropped the queue and answers for all, until the others have as well.
    Closing,
}

impl Routes {
    pub fn new(partitions: usize) -> Self {
        assert!(partitions > 0, "there is at least one partition");
        Self { partitions, queues: HashMap::new() }
    }

    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Enters a queue that is not known yet; tells whether it was new. What is known stays: how a
    /// queue is spread cannot change.
    pub fn enter(&mut self, queue: &QueueName, config: &Config) -> bool {
        if self.queues.contains_key(queue) {
            return false;
        }
        self.queues.insert(queue.clone(), Way::Open(Spread::of(config)));
        true
    }

    /// From here on the leader answers everything about the queue.
    pub(crate) fn close(&mut self, queue: &QueueName) {
        self.queues.insert(queue.clone(), Way::Closing);
    }

    pub(crate) fn remove(&mut self, queue: &QueueName) {
        self.queues.remove(queue);
    }

    /// The partition of a new message. `turn` chooses for those that may go anywhere.
    pub fn of_new(
        &self,
        queue: &QueueName,
        content: &Content,
        turn: impl FnOnce() -> usize,
    ) -> usize {
        if self.partitions == 1 {
            return LEADER;
        }
        match self.place(queue, content.key(), content.group()) {
            Place::In(partition) => partition,
            Place::Anywhere => turn() % self.partitions,
            // No group is a group of its own here.
            Place::Unknown => LEADER,
        }
    }

    /// The partitions that a key may live in: one, except where its group is needed and not given.
    /// What looks like an id may be that of a keyless message, and names its partition itself.
    pub fn of_key(&self, key: &KeyName) -> impl Iterator<Item = usize> + use<> {
        let all = self.partitions;
        if all == 1 {
            return (0..1).chain(None);
        }
        let id = MessageId::parse(&key.key).map(|id| usize::from(id.partition()));
        match self.place(&key.queue, &key.key, key.group.as_deref()) {
            Place::In(place) => {
                (place..place + 1).chain(id.filter(|other| *other < all && *other != place))
            }
            Place::Unknown | Place::Anywhere => (0..all).chain(None),
        }
    }

    /// The one partition that a receive is asked of, where there is one: the queue is in one, or
    /// the receive may be repeated and must meet the same partition again.
    pub fn of_receive(&self, receive: &Receive) -> Option<usize> {
        if self.partitions == 1 {
            return Some(LEADER);
        }
        let queue = &receive.queue;
        match self.queues.get(queue) {
            Some(Way::Closing) => return Some(LEADER),
            Some(Way::Open(Spread::Queue)) => return Some(self.of_queue(queue)),
            Some(Way::Open(Spread::Key | Spread::Group)) | None => {}
        }
        let id = receive.receive_id.as_deref()?;
        Some(self.of_digest(Digest::of_key(&queue.tenant, &queue.queue, Some("receive"), id)))
    }

    fn place(&self, queue: &QueueName, key: &str, group: Option<&str>) -> Place {
        // What nobody knows has no queue, wherever it is asked for.
        let way = self.queues.get(queue).copied().unwrap_or(Way::Open(Spread::Key));
        let digest = match (way, group) {
            (Way::Closing, _) => return Place::In(LEADER),
            (Way::Open(Spread::Queue), _) => return Place::In(self.of_queue(queue)),
            (Way::Open(Spread::Group), Some(group)) => {
                Digest::of_key(&queue.tenant, &queue.queue, Some(group), "")
            }
            (Way::Open(Spread::Group), None) => return Place::Unknown,
            (Way::Open(Spread::Key), _) if key.is_empty() => return Place::Anywhere,
            (Way::Open(Spread::Key), _) => Digest::of_key(&queue.tenant, &queue.queue, None, key),
        };
        Place::In(self.of_digest(digest))
    }

    fn of_queue(&self, queue: &QueueName) -> usize {
        self.of_digest(Digest::of_key(&queue.tenant, &queue.queue, None, ""))
    }

    fn of_digest(&self, digest: Digest) -> usize {
        let [first, second, ..] = digest.0;
        usize::from(u16::from_le_bytes([first, second])) % self.partitions
    }
}

enum Place {
    In(usize),
    /// It needs a group, and none is given.
    Unknown,
    /// It has no key.
    Anywhere,
}

/// The commands of a list that go to one partition, each with what its caller knows it by.
#[derive(Debug)]
pub struct Part<T> {
    pub partition: usize,
    pub tags: Vec<T>,
    pub commands: Vec<Command>,
}

/// Splits a list by partition, keeping the order within each. Parts without commands are left out.
pub fn split<T>(
    partitions: usize,
    items: impl ExactSizeIterator<Item = (usize, T, Command)>,
) -> Vec<Part<T>> {
    let each = items.len().div_ceil(partitions);
    let mut parts: Vec<Part<T>> = (0..partitions)
        .map(|partition| Part {
            partition,
            tags: Vec::with_capacity(each),
            commands: Vec::with_capacity(each),
        })
        .collect();
    for (partition, tag, command) in items {
        #[expect(clippy::expect_used, reason = "a command left out would be waited for for ever")]
        let part = parts.get_mut(partition).expect("a route leads to a partition that exists");
        part.tags.push(tag);
        part.commands.push(command);
    }
    parts.retain(|part| !part.commands.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> QueueName {
        QueueName::new("default", "orders").unwrap()
    }

    fn partition(routes: &Routes, key: &str, group: &str, turn: usize) -> usize {
        let content = Content::builder(key).group(Some(group)).build(b"").unwrap();
        routes.of_new(&queue(), &content, || turn)
    }

    fn grouped() -> Config {
        Config { dedup_scope: DedupScope::Group, ..Config::default() }
    }

    #[test]
    fn k1_the_keys_of_a_group_meet_in_one_partition() {
        let mut routes = Routes::new(4);
        assert!(routes.enter(&queue(), &grouped()));
        let first = partition(&routes, "a", "g", 0);
        for key in ["b", "c", "d", "e", "f"] {
            assert_eq!(partition(&routes, key, "g", 0), first);
        }
    }

    #[test]
    fn how_a_queue_is_spread_stays_whatever_is_asked_later() {
        let mut routes = Routes::new(4);
        assert!(routes.enter(&queue(), &grouped()));
        assert!(!routes.enter(&queue(), &Config::default()));
        let first = partition(&routes, "a", "g", 0);
        assert!((0..20).all(|n| partition(&routes, &n.to_string(), "g", 0) == first));
    }

    #[test]
    fn a_queue_on_its_way_out_is_answered_for_by_the_leader() {
        let mut routes = Routes::new(4);
        routes.enter(&queue(), &grouped());
        routes.close(&queue());
        for n in 0..20 {
            let group = n.to_string();
            assert_eq!(partition(&routes, "k", &group, 3), LEADER);
        }
    }

    #[test]
    #[should_panic(expected = "a route leads to a partition that exists")]
    fn no_command_is_left_out_of_a_split() {
        split(2, [(2, (), Command::Expire)].into_iter());
    }
}
