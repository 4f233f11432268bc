//! Which partition a message, a key or a receive belongs to.
//!
//! A queue's messages are spread by key or by group, or are all in one partition. [`Routes`] holds
//! this for every queue. The order of changes matters: a queue is added before any partition
//! accepts a message for it, and removed after the last one has dropped it ([`crate::change`] does
//! both). A caller MUST route and submit commands before the next change of the routes, or a
//! message could reach the wrong partition.

use std::collections::HashMap;

use hapax_core::{
    Command, Config, Content, DedupScope, Digest, KeyName, MessageId, Order, QueueName, Receive,
    Recipe,
};

/// The partition that decides about queues; the others follow it.
pub const LEADER: usize = 0;

/// How a queue's messages are spread over the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    Key,
    Group,
    /// All in one partition: order over all keys.
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
    recipe: Recipe,
    queues: HashMap<QueueName, Way>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open(Spread),
    /// The leader has dropped the queue and answers for all until the others have dropped it too.
    Closing,
}

impl Routes {
    /// `recipe` is the recipe of the data, so that keys are found where they were sent to.
    pub fn new(partitions: usize, recipe: Recipe) -> Self {
        assert!(partitions > 0, "there is at least one partition");
        Self { partitions, recipe, queues: HashMap::new() }
    }

    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Adds a queue; returns whether it was new. A known one is not changed: how a queue is spread
    /// cannot change.
    pub fn enter(&mut self, queue: &QueueName, config: &Config) -> bool {
        if self.queues.contains_key(queue) {
            return false;
        }
        self.queues.insert(queue.clone(), Way::Open(Spread::of(config)));
        true
    }

    /// Makes the leader answer everything about the queue.
    pub(crate) fn close(&mut self, queue: &QueueName) {
        self.queues.insert(queue.clone(), Way::Closing);
    }

    pub(crate) fn remove(&mut self, queue: &QueueName) {
        self.queues.remove(queue);
    }

    /// The partition of a new message whose key has this digest. `turn` chooses for messages that
    /// may go anywhere.
    pub fn of_new(
        &self,
        queue: &QueueName,
        digest: Digest,
        content: &Content,
        turn: impl FnOnce() -> usize,
    ) -> usize {
        if self.partitions == 1 {
            return LEADER;
        }
        match self.place(queue, content.has_key().then_some(|| digest), content.group()) {
            Place::In(partition) => partition,
            Place::Anywhere => turn() % self.partitions,
            // Messages without a group share one.
            Place::Unknown => LEADER,
        }
    }

    /// The partitions that may have a key: one, unless its group is needed and not given. What
    /// looks like an id may be that of a message without a key, which contains its partition.
    pub fn of_key(&self, key: &KeyName) -> impl Iterator<Item = usize> + use<> {
        let all = self.partitions;
        if all == 1 {
            return (0..1).chain(None);
        }
        let id = MessageId::parse(&key.key).map(|id| usize::from(id.partition()));
        let digest = || self.recipe.key(&key.queue, None, &*key.key);
        let digest = (!key.key.is_empty()).then_some(digest);
        match self.place(&key.queue, digest, key.group.as_deref()) {
            Place::In(place) => {
                (place..place + 1).chain(id.filter(|other| *other < all && *other != place))
            }
            Place::Unknown | Place::Anywhere => (0..all).chain(None),
        }
    }

    /// The partition of a receive, if it is fixed: the queue is in one partition, or the receive
    /// has an id and must reach the same partition when repeated.
    pub fn of_receive(&self, receive: &Receive) -> Option<usize> {
        if self.partitions == 1 {
            return Some(LEADER);
        }
        let queue = &receive.queue;
        match self.queues.get(queue) {
            Some(Way::Closing) => return Some(LEADER),
            Some(Way::Open(Spread::Queue)) => {
                return Some(self.of_digest(self.recipe.queue(queue)));
            }
            Some(Way::Open(Spread::Key | Spread::Group)) | None => {}
        }
        let id = receive.receive_id.as_deref()?;
        Some(self.of_digest(Digest::of_id(queue, "receive", id)))
    }

    fn place(
        &self,
        queue: &QueueName,
        key: Option<impl FnOnce() -> Digest>,
        group: Option<&str>,
    ) -> Place {
        // An unknown queue is refused by any partition.
        let way = self.queues.get(queue).copied().unwrap_or(Way::Open(Spread::Key));
        let digest = match (way, group, key) {
            (Way::Closing, ..) => return Place::In(LEADER),
            (Way::Open(Spread::Queue), ..) => self.recipe.queue(queue),
            (Way::Open(Spread::Group), Some(group), _) => self.recipe.group(queue, group),
            (Way::Open(Spread::Group), None, _) => return Place::Unknown,
            (Way::Open(Spread::Key), _, None) => return Place::Anywhere,
            (Way::Open(Spread::Key), _, Some(digest)) => digest(),
        };
        Place::In(self.of_digest(digest))
    }

    fn of_digest(&self, digest: Digest) -> usize {
        let [first, second, ..] = digest.0;
        usize::from(u16::from_le_bytes([first, second])) % self.partitions
    }
}

enum Place {
    In(usize),
    /// A group is needed, and none is given.
    Unknown,
    /// The message has no key.
    Anywhere,
}

/// The commands of a list for one partition, each with its caller's tag.
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
        let digest = routes.recipe().key(&queue(), None, key);
        routes.of_new(&queue(), digest, &content, || turn)
    }

    fn four() -> Routes {
        Routes::new(4, Recipe::second(&[1; 32]))
    }

    fn grouped() -> Config {
        Config { dedup_scope: DedupScope::Group, ..Config::default() }
    }

    #[test]
    fn k1_the_keys_of_a_group_meet_in_one_partition() {
        let mut routes = four();
        assert!(routes.enter(&queue(), &grouped()));
        let first = partition(&routes, "a", "g", 0);
        for key in ["b", "c", "d", "e", "f"] {
            assert_eq!(partition(&routes, key, "g", 0), first);
        }
    }

    #[test]
    fn k1_a_key_is_looked_for_where_it_was_sent() {
        for recipe in [Recipe::First, Recipe::second(&[1; 32])] {
            let ordered = Config { order: Order::Group, ..Config::default() };
            for config in [Config::default(), grouped(), ordered] {
                let mut routes = Routes::new(4, recipe);
                routes.enter(&queue(), &config);
                for n in 0..20 {
                    let key = n.to_string();
                    let sent = partition(&routes, &key, "g", 0);
                    let (key, group) = (key.as_str().into(), Some("g".into()));
                    let found = routes.of_key(&KeyName { queue: queue(), key, group });
                    assert_eq!(found.collect::<Vec<_>>(), [sent], "{recipe:?} {config:?}");
                }
            }
        }
    }

    #[test]
    fn how_a_queue_is_spread_stays_whatever_is_asked_later() {
        let mut routes = four();
        assert!(routes.enter(&queue(), &grouped()));
        assert!(!routes.enter(&queue(), &Config::default()));
        let first = partition(&routes, "a", "g", 0);
        assert!((0..20).all(|n| partition(&routes, &n.to_string(), "g", 0) == first));
    }

    #[test]
    fn a_queue_on_its_way_out_is_answered_for_by_the_leader() {
        let mut routes = four();
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
