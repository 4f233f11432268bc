//! Limits of a queue that lives in several partitions: each counts what the others reported.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

use hapax_core::{
    Answer, Command, Config, Configure, Content, Outcome, QueueName, Quota, Recipe, Report,
    SendMessage, Stamp, Time,
};
use hapax_partition::{Options, Partition};
use hapax_store::memory::MemoryStore;

struct World {
    partitions: Vec<Partition<MemoryStore>>,
    ms: u64,
}

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

impl World {
    fn new(config: Config) -> Self {
        let open = |number| {
            let options = Options { partition: number, partitions: 2, ..Options::default() };
            Partition::open(MemoryStore::default(), options).unwrap()
        };
        let mut world = Self { partitions: (0..2).map(open).collect(), ms: 1_700_000_000_000 };
        world.configure(config);
        world
    }

    fn configure(&mut self, config: Config) {
        for partition in 0..2 {
            let (queue, config) = (queue(), config.clone());
            self.run(
                partition,
                Command::Configure(Box::new(Configure { queue, config, if_version: None })),
            );
        }
    }

    fn run(&mut self, partition: usize, command: Command) -> Outcome {
        let partition = &mut self.partitions[partition];
        let at = Time(self.ms).max(partition.now());
        partition.submit(Stamp { at, random: 1 }, vec![command]).unwrap();
        let mut answered = partition.poll().unwrap().unwrap();
        answered.outcomes.remove(0)
    }

    /// Hands reports over, from each to the other.
    fn report(&mut self) -> Vec<Report> {
        let reports: Vec<Report> =
            self.partitions.iter_mut().flat_map(Partition::take_reports).collect();
        for report in &reports {
            assert!(self.partitions[usize::from(1 - report.partition)].hear(report));
        }
        reports
    }

    fn send(&mut self, partition: usize, key: &str) -> Result<(), Quota> {
        let content = Content::builder(key).build(b"body").unwrap();
        match self.run(partition, Command::Send(SendMessage::new(&Recipe::First, queue(), content)))
        {
            Outcome::Sent(Answer::Accepted { .. }) => Ok(()),
            Outcome::Sent(Answer::OverQuota { quota, .. }) => Err(quota),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_partition_counts_what_another_holds() {
    let mut world = World::new(Config { max_messages: Some(2), ..Config::default() });
    world.send(0, "a").unwrap();
    world.send(0, "b").unwrap();
    world.report();
    assert_eq!(world.send(1, "c"), Err(Quota::Messages));
    let forget = hapax_core::KeyName { queue: queue(), group: None, key: "a".into() };
    assert_eq!(world.run(0, Command::Discard(forget)), Outcome::Ok);
    world.report();
    world.send(1, "c").unwrap();
    world.report();
    assert_eq!(world.send(0, "d"), Err(Quota::Messages));
}

#[test]
fn a_limit_that_is_set_later_counts_what_is_there() {
    let mut world = World::new(Config::default());
    world.send(0, "a").unwrap();
    assert_eq!(world.report(), [], "queues without limits are not reported");
    world.configure(Config { max_messages: Some(1), ..Config::default() });
    assert_eq!(world.report().len(), 2);
    assert_eq!(world.send(1, "b"), Err(Quota::Messages));
}

#[test]
fn a_rate_is_that_of_the_whole_queue() {
    let mut world = World::new(Config { sends_per_s: Some(4), ..Config::default() });
    for n in 0..4 {
        world.send(n % 2, &format!("k{n}")).unwrap();
        world.report();
    }
    assert_eq!(world.send(0, "x"), Err(Quota::Rate));
    assert_eq!(world.send(1, "x"), Err(Quota::Rate));
    // A quarter of a second earns one more, for one of the two.
    world.ms += 250;
    world.send(1, "y").unwrap();
    world.report();
    assert_eq!(world.send(0, "z"), Err(Quota::Rate));
}

#[test]
fn a_queue_that_is_created_again_begins_with_nothing_elsewhere() {
    let mut world = World::new(Config { max_messages: Some(1), ..Config::default() });
    world.send(0, "a").unwrap();
    world.report();
    assert_eq!(world.send(1, "b"), Err(Quota::Messages));
    for partition in 0..2 {
        assert_eq!(world.run(partition, Command::Delete(queue())), Outcome::Ok);
    }
    world.configure(Config { max_messages: Some(1), ..Config::default() });
    world.report();
    world.send(1, "b").unwrap();
}

#[test]
fn a_report_about_a_queue_that_is_not_known_yet_is_to_be_told_again() {
    let mut world = World::new(Config { max_messages: Some(1), ..Config::default() });
    world.send(0, "a").unwrap();
    let report = world.partitions[0].take_reports().remove(0);
    assert_eq!(world.run(1, Command::Delete(queue())), Outcome::Ok);
    assert!(!world.partitions[1].hear(&report));
    let config = Config { max_messages: Some(1), ..Config::default() };
    let configure = Configure { queue: queue(), config, if_version: None };
    world.run(1, Command::Configure(Box::new(configure)));
    assert!(world.partitions[1].hear(&report));
    assert_eq!(world.send(1, "b"), Err(Quota::Messages));
}
