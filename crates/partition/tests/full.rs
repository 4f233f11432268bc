//! A checkpoint that finds no space on a full disk keeps nobody from working: it is given up, and
//! begun anew when it is smaller.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use hapax_core::{
    Answer, Command, Config, Configure, Content, Delivery, Outcome, QueueName, Receive, Recipe,
    SendMessage, Settle, Stamp, Time, Verb,
};
use hapax_partition::{Answered, Options, Partition};
use hapax_store::Store;
use hapax_store::memory::{Faults, MemoryStore};

const START: u64 = 1_700_000_000_000;

fn queue() -> QueueName {
    QueueName::new("default", "q").unwrap()
}

fn configure() -> Command {
    let (queue, config) = (queue(), Config::default());
    Command::Configure(Box::new(Configure { queue, config, if_version: None }))
}

fn send(key: &str) -> Command {
    let content = Content::builder(key).build(&[b'x'; 200]).unwrap();
    Command::Send(SendMessage::new(&Recipe::First, queue(), content))
}

fn receive(max: u32) -> Command {
    Command::Receive(Receive {
        queue: queue(),
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    })
}

fn done(delivery: &Delivery) -> Command {
    let verb = Verb::Done { result: None, emits: Vec::new() };
    Command::Settle(Settle { lease: delivery.lease, verb })
}

fn submit(partition: &mut Partition<MemoryStore>, commands: Vec<Command>) {
    partition.submit(Stamp { at: Time(START), random: 7 }, commands).unwrap();
}

fn answers(partition: &mut Partition<MemoryStore>) -> Vec<Answered> {
    std::iter::from_fn(|| partition.poll().unwrap()).collect()
}

fn deliveries(outcomes: impl Iterator<Item = Outcome>) -> Vec<Delivery> {
    let received = outcomes.filter_map(|outcome| match outcome {
        Outcome::Received(deliveries) => Some(deliveries),
        _ => None,
    });
    received.flatten().collect()
}

/// A partition whose commands are durable at once, and whose disk is full or not.
struct World {
    store: MemoryStore,
    partition: Partition<MemoryStore>,
}

impl World {
    fn open(memory_bytes: usize) -> Self {
        let store = MemoryStore::default();
        let options = Options { memory_bytes, batches_in_flight: 1_000, ..Options::default() };
        let partition = Partition::open(store.another(), options).unwrap();
        let mut world = Self { store, partition };
        world.fill(false);
        world.call(vec![configure()]);
        world
    }

    /// What is appended becomes durable with [`MemoryStore::settle`], and a checkpoint is written
    /// then, unless the disk is full.
    fn fill(&mut self, full: bool) {
        self.store.set_faults(Faults { held: true, full, ..Faults::default() });
    }

    fn call(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        submit(&mut self.partition, commands);
        self.store.settle().unwrap();
        let answers = answers(&mut self.partition).into_iter();
        answers.flat_map(|answered| answered.outcomes).collect()
    }

    /// Takes messages and finishes them. Returns how many.
    fn finish(&mut self, max: u32) -> usize {
        let taken = deliveries(self.call(vec![receive(max)]).into_iter());
        assert!(!taken.is_empty(), "there are more");
        let settled = self.call(taken.iter().map(done).collect());
        assert_eq!(settled.len(), taken.len(), "settles are answered");
        taken.len()
    }
}

#[test]
fn a_checkpoint_that_waits_for_space_is_given_up_when_most_of_it_has_ended() {
    const COUNT: usize = 1_000;
    let mut world = World::open(Options::default().memory_bytes);
    world.call((0..COUNT).map(|key| send(&key.to_string())).collect());
    world.fill(true);
    world.partition.checkpoint().unwrap();
    assert_eq!(world.call(vec![send("refused")]), [Outcome::Sent(Answer::StoreFull)]);
    assert!(world.partition.is_checkpointing(), "there may be space soon");
    let mut ended = 0;
    while world.partition.is_checkpointing() {
        ended += world.finish(100);
    }
    assert!((COUNT / 3..COUNT).contains(&ended), "{ended}: the next one is much smaller");
    // The next one has what the first one had, as it is by now.
    world.fill(false);
    while world.partition.is_checkpointing() || world.store.another().checkpointed().unwrap() == 0 {
        world.partition.checkpoint().unwrap();
        world.store.settle().unwrap();
        answers(&mut world.partition);
    }
    let options = Options::default();
    world.partition = Partition::open(world.store.crash(), options).unwrap();
    world.store = world.partition.store().another();
    world.fill(false);
    let again = world.call((0..COUNT).map(|key| send(&key.to_string())).collect());
    let known = again.iter().filter(|it| matches!(it, Outcome::Sent(Answer::Done { .. })));
    assert_eq!(known.count(), ended);
    let left = deliveries(world.call(vec![receive(COUNT as u32)]).into_iter());
    assert_eq!(left.len(), COUNT - ended);
}

#[test]
fn k5_a_checkpoint_that_waits_for_space_in_a_full_memory_keeps_nobody_from_settling() {
    const MEMORY_BYTES: usize = 256 * 1_024;
    let mut world = World::open(MEMORY_BYTES);
    let mut keys = 0..;
    while world.partition.machine().usage().head_bytes() < MEMORY_BYTES / 4 * 31 / 10 {
        submit(&mut world.partition, vec![send(&keys.next().unwrap().to_string())]);
    }
    assert!(world.partition.is_busy() && world.partition.is_checkpointing());
    world.fill(true);
    world.store.settle().unwrap();
    answers(&mut world.partition);
    let count = world.partition.machine().usage().messages;
    let mut ended = 0;
    while ended < count * 9 / 10 {
        assert!(!world.partition.is_busy(), "{ended} of {count} have ended");
        ended += world.finish(20);
    }
}

#[test]
fn k7_an_idle_partition_drops_expired_keys_from_the_disk() {
    let mut world = World::open(Options::default().memory_bytes);
    let config = Config { retention_ms: Some(1_000), retry_horizon_ms: 500, ..Config::default() };
    let configure = Configure { queue: queue(), config, if_version: None };
    world.call(vec![Command::Configure(Box::new(configure)), send("key")]);
    world.finish(1);
    let checkpoint = |world: &mut World| {
        world.store.settle().unwrap();
        answers(&mut world.partition);
        world.store.another().checkpointed().unwrap()
    };
    world.partition.checkpoint().unwrap();
    let through = checkpoint(&mut world);
    assert!(through > 0);
    // As the writer does: whatever is due is submitted, and nothing else.
    let mut batches = 0;
    while let Some(due) = world.partition.next_deadline().filter(|due| due.0 < START + 120_000) {
        world.partition.submit(Stamp { at: due, random: 7 }, Vec::new()).unwrap();
        checkpoint(&mut world);
        batches += 1;
        assert!(batches < 100, "something is due again and again");
    }
    assert!(checkpoint(&mut world) > through, "a minute later");
}
