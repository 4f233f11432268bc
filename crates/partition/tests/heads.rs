//! After a start the age of the oldest ready message of every queue is found out without a receive.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

use std::collections::BTreeMap;

use hapax_core::{
    Bounds, Command, Config, Configure, Content, Delivery, KeyName, Order, Outcome, Purge,
    QueueName, Receive, Recipe, SendMessage, Settle, Stamp, Time, Verb,
};
use hapax_partition::{Options, Partition};
use hapax_store::Store;
use hapax_store::memory::{Faults, MemoryStore};

const START: u64 = 1_700_000_000_000;

/// When the oldest message that can be received came, by queue.
type Oldest = BTreeMap<String, Option<Time>>;

struct World {
    store: MemoryStore,
    options: Options,
    partition: Partition<MemoryStore>,
    ms: u64,
}

fn queue(name: &str) -> QueueName {
    QueueName::new("default", name).unwrap()
}

fn by_group() -> Config {
    Config { order: Order::Group, ..Config::default() }
}

fn done() -> Verb {
    Verb::Done { result: None, emits: Vec::new() }
}

impl World {
    fn new(options: Options) -> Self {
        let store = MemoryStore::default();
        store.set_faults(Faults { keeps_deleted: true, ..Faults::default() });
        let partition = Partition::open(store.another(), options).unwrap();
        Self { store, options, partition, ms: 0 }
    }

    /// Every batch is a millisecond later than the one before.
    fn call(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.ms += 1;
        let stamp = Stamp { at: Time(START + self.ms), random: 7 };
        self.partition.submit(stamp, commands).unwrap();
        let answers = std::iter::from_fn(|| self.partition.poll().unwrap());
        answers.flat_map(|answered| answered.outcomes).collect()
    }

    fn configure(&mut self, name: &str, config: Config) {
        let configure = Configure { queue: queue(name), config, if_version: None };
        self.call(vec![Command::Configure(Box::new(configure))]);
    }

    fn send(&mut self, name: &str, key: &str, group: Option<&str>) {
        let content = Content::builder(key).group(group).build(b"body").unwrap();
        let outcome =
            self.call(vec![Command::Send(SendMessage::new(&Recipe::First, queue(name), content))]);
        assert!(matches!(outcome.as_slice(), [Outcome::Sent(_)]), "{outcome:?}");
    }

    /// Sends messages `0..count`, each in the group that its number gives.
    fn fill(&mut self, name: &str, config: Config, count: usize, groups: usize) {
        self.configure(name, config);
        for key in 0..count {
            let group = (groups > 0).then(|| format!("g{}", key % groups));
            self.send(name, &key.to_string(), group.as_deref());
        }
    }

    fn receive(&mut self, name: &str, max: u32) -> Vec<Delivery> {
        let (lease_ms, receive_id, several_per_group) = (None, None, true);
        let (queue, worker) = (queue(name), "w".into());
        let receive = Receive { queue, max, lease_ms, worker, receive_id, several_per_group };
        let outcome = self.call(vec![Command::Receive(receive)]).remove(0);
        let Outcome::Received(deliveries) = outcome else { panic!("{outcome:?}") };
        assert_eq!(deliveries.len(), max as usize);
        deliveries
    }

    /// The oldest messages, as many, are done.
    fn finish(&mut self, name: &str, count: u32) {
        for _ in 0..count {
            let lease = self.receive(name, 1).remove(0).lease;
            self.call(vec![Command::Settle(Settle { lease, verb: done() })]);
        }
    }

    fn checkpoint(&mut self) {
        for _ in 0..3 {
            self.partition.checkpoint().unwrap();
            while self.partition.poll().unwrap().is_some() {}
        }
        assert!(!self.partition.is_checkpointing());
    }

    fn restart(&mut self) {
        self.partition = Partition::open(self.store.another(), self.options).unwrap();
    }

    fn oldest(&self) -> Oldest {
        let queues = self.partition.machine().queues();
        queues.map(|(name, view)| (name.queue.to_string(), view.oldest_ready_at)).collect()
    }

    /// Batches of nothing while something is due, as the writer submits them. Returns how many.
    fn tick_on(&mut self) -> usize {
        for count in 0..10_000 {
            let now = self.partition.now();
            if self.partition.next_deadline().is_none_or(|due| due > now) {
                return count;
            }
            self.call(Vec::new());
        }
        panic!("something is due after every tick");
    }

    /// After a restart ticks alone find what looking at every queue found before it.
    fn check(&mut self) {
        let names: Vec<_> = self.oldest().into_keys().collect();
        for name in names {
            self.call(vec![Command::Show(queue(&name))]);
        }
        let before = self.oldest();
        self.restart();
        assert!(self.oldest().values().all(Option::is_none), "a start reads no message");
        self.tick_on();
        assert_eq!(self.oldest(), before);
    }
}

/// Queues of every kind, the oldest of whose messages are known.
fn queues(world: &mut World) {
    world.configure("empty", Config::default());
    for number in 0..20 {
        world.fill(&format!("plain{number}"), Config::default(), 5, 0);
    }
    for number in 0..5 {
        world.fill(&format!("groups{number}"), by_group(), 12, 3);
    }
    // A leased message holds all others of its group.
    world.fill("held", by_group(), 4, 1);
    world.receive("held", 1);
    world.fill("open", by_group(), 12, 3);
    world.receive("open", 2);
    world.fill("mixed", by_group(), 6, 2);
    world.send("mixed", "last", None);
    world.fill("paused", Config::default(), 3, 0);
    world.call(vec![Command::Pause(queue("paused"))]);
    // Their first rows are deleted ones.
    world.fill("ended", Config::default(), 40, 0);
    world.fill("ended-in-groups", by_group(), 40, 4);
    world.checkpoint();
    world.finish("ended", 30);
    world.finish("ended-in-groups", 30);
}

#[test]
fn the_age_of_the_oldest_message_is_known_after_a_start_without_a_receive() {
    let bounds = Bounds::default();
    let few = Bounds { groups_at_once: 1, refill: 2, tick_step: 1, ..bounds };
    for (bounds, range_bytes) in [(bounds, 1 << 20), (few, 1 << 20), (bounds, 1), (few, 1)] {
        let mut world = World::new(Options { bounds, range_bytes, ..Options::default() });
        queues(&mut world);
        world.checkpoint();
        world.check();
        assert_eq!(world.tick_on(), 0, "once per start");
        // Messages that ended since the checkpoint are passed over.
        world.finish("ended", 5);
        world.finish("ended-in-groups", 5);
        world.finish("plain3", 5);
        world.check();
    }
}

#[test]
fn a_tick_reads_the_heads_of_some_queues_and_a_row_of_each() {
    let mut world = World::new(Options::default());
    (0..100).for_each(|number| world.fill(&format!("q{number}"), Config::default(), 5, 0));
    world.checkpoint();
    world.check();
    let journaled = world.store.another().claim().unwrap().last;
    world.restart();
    let ticks = world.tick_on();
    assert!(ticks >= 100 / Bounds::default().groups_at_once, "{ticks} ticks");
    assert_eq!(world.partition.machine().usage().messages, 100);
    let last = world.store.another().claim().unwrap().last;
    assert_eq!(last, journaled + 1, "only the time of the first batch is journaled");
}

#[test]
fn queues_that_are_purged_or_deleted_right_after_a_start_come_to_an_end() {
    let mut world = World::new(Options::default());
    for name in ["purged", "deleted", "kept", "purged-before"] {
        world.fill(name, Config::default(), 1_000, 0);
    }
    world.checkpoint();
    let purge = |name| Command::Purge(Purge { queue: queue(name), keys: false });
    world.call(vec![purge("purged-before")]);
    let kept = world.oldest().remove("kept");
    world.restart();
    world.call(vec![purge("purged"), Command::Delete(queue("deleted"))]);
    world.tick_on();
    let oldest = world.oldest();
    assert_eq!(oldest.get("kept"), kept.as_ref());
    assert_eq!(oldest.get("purged"), Some(&None));
    assert_eq!(oldest.get("purged-before"), Some(&None));
    assert_eq!(oldest.get("deleted"), None);
}

#[test]
fn messages_that_died_of_age_meanwhile_are_passed_over() {
    let mut world = World::new(Options::default());
    world.fill("q", Config { ttl_ms: Some(10_000), ..Config::default() }, 50, 0);
    world.configure("q", Config::default());
    world.send("q", "alive", None);
    let alive = Time(START + world.ms);
    world.checkpoint();
    world.restart();
    world.ms += 20_000;
    world.tick_on();
    assert_eq!(world.oldest(), Oldest::from([("q".into(), Some(alive))]));
}

#[test]
fn any_number_of_messages_that_ended_since_the_checkpoint_are_passed_over() {
    const ENDED: usize = 12_000;
    let mut world = World::new(Options::default());
    for (name, config, group) in
        [("single", Config::default(), None), ("one", by_group(), Some("g"))]
    {
        world.configure(name, config);
        let content = |key: usize| Content::builder(&key.to_string()).group(group).build(b"b");
        let send = |key| SendMessage::new(&Recipe::First, queue(name), content(key).unwrap());
        world.call((0..=ENDED).map(|key| Command::Send(send(key))).collect());
    }
    world.checkpoint();
    for name in ["single", "one"] {
        for _ in 0..ENDED / 1_000 {
            let taken = world.receive(name, 1_000);
            let settle = |lease| Settle { lease, verb: done() };
            world.call(taken.iter().map(|it| Command::Settle(settle(it.lease))).collect());
        }
    }
    world.check();
    assert!(world.oldest().values().all(Option::is_some));
}

#[test]
fn the_oldest_is_known_again_when_the_one_before_it_has_died_or_was_discarded() {
    let mut world = World::new(Options::default());
    for (name, config, group) in
        [("single", Config::default(), None), ("grouped", by_group(), Some("g"))]
    {
        world.configure(name, Config { ttl_ms: Some(10_000), ..config.clone() });
        world.send(name, "dies", group);
        world.configure(name, config);
        world.send(name, "discarded", group);
        world.send(name, "stays", group);
    }
    world.checkpoint();
    world.restart();
    world.tick_on();
    let after = |ms| Some(Time(START + ms));
    let is = |world: &World, single, grouped| {
        let oldest = [("grouped".to_owned(), grouped), ("single".to_owned(), single)];
        assert_eq!(world.oldest(), Oldest::from(oldest));
    };
    is(&world, after(2), after(7));
    world.ms += 20_000;
    world.call(Vec::new());
    world.tick_on();
    is(&world, after(4), after(9));
    for name in ["single", "grouped"] {
        let key = KeyName { queue: queue(name), key: "discarded".into(), group: None };
        let outcome = world.call(vec![Command::Discard(key)]);
        assert!(matches!(outcome.as_slice(), [Outcome::Ok]), "{outcome:?}");
    }
    world.tick_on();
    is(&world, after(5), after(10));
}

#[test]
fn the_oldest_is_known_when_as_many_were_received_as_were_read() {
    let bounds = Bounds { refill: 10, ..Bounds::default() };
    let mut world = World::new(Options { bounds, ..Options::default() });
    world.fill("single", Config::default(), 30, 0);
    world.fill("grouped", by_group(), 30, 1);
    world.checkpoint();
    world.restart();
    world.tick_on();
    for name in ["single", "grouped"] {
        for _ in 0..15 {
            world.finish(name, 1);
            world.tick_on();
            assert!(world.oldest()[name].is_some(), "{name}");
        }
    }
}
