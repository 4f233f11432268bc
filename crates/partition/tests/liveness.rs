//! Everything comes to its end with next to no memory and the smallest of steps.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

use hapax_core::{
    Bounds, Command, Config, Configure, Content, Delivery, Order, Outcome, Purge, QueueName,
    Receive, Recipe, Redrive, RedriveView, Select, SendMessage, Settle, Stamp, Stats, Time, Verb,
};
use hapax_partition::{Options, Partition};
use hapax_store::memory::MemoryStore;

const START: u64 = 1_700_000_000_000;

struct World {
    partition: Partition<MemoryStore>,
    ms: u64,
}

fn queue(name: &str) -> QueueName {
    QueueName::new("default", name).unwrap()
}

fn redrive(name: &str, id: &str, per_s: Option<u32>) -> Command {
    let (id, select, dry_run) = (id.into(), Select::All, false);
    Command::Redrive(Redrive { queue: queue(name), id, select, dry_run, per_s })
}

fn progress(name: &str, id: &str) -> Command {
    Command::RedriveProgress { queue: queue(name), id: id.into() }
}

impl World {
    /// Everything that can leave memory does, one range is read in a tick, and a tick does as much
    /// as `tick_step` says.
    fn new(tick_step: usize, refill: usize) -> Self {
        Self::reading(1, tick_step, refill)
    }

    /// The same with ranges of so many bytes.
    fn reading(range_bytes: usize, tick_step: usize, refill: usize) -> Self {
        let bounds = Bounds { expire_step: 2, job_step: 2, ..Bounds::default() };
        let bounds = Bounds { tick_step, refill, groups_at_once: 1, ..bounds };
        let options = Options { memory_bytes: 1, journal_bytes: 1, ..Options::default() };
        let options = Options { bounds, range_bytes, evict_step: 1_000, ..options };
        Self { partition: Partition::open(MemoryStore::default(), options).unwrap(), ms: 0 }
    }

    fn call(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let stamp = Stamp { at: Time(START + self.ms), random: 7 };
        self.partition.submit(stamp, commands).unwrap();
        let answers = std::iter::from_fn(|| self.partition.poll().unwrap());
        answers.flat_map(|answered| answered.outcomes).collect()
    }

    /// A batch of nothing, a millisecond later.
    fn tick(&mut self) {
        self.ms += 1;
        self.call(Vec::new());
    }

    fn configure(&mut self, name: &str, config: Config) {
        let configure = Configure { queue: queue(name), config, if_version: None };
        self.call(vec![Command::Configure(Box::new(configure))]);
    }

    fn send(&mut self, name: &str, key: &str, group: Option<&str>) {
        let content = Content::builder(key).group(group).build(&[b'x'; 50]).unwrap();
        self.call(vec![Command::Send(SendMessage::new(&Recipe::First, queue(name), content))]);
    }

    fn receive(&mut self, name: &str) -> Vec<Delivery> {
        let (lease_ms, receive_id, several_per_group) = (None, None, false);
        let (queue, worker) = (queue(name), "w".into());
        let receive = Receive { queue, max: 100, lease_ms, worker, receive_id, several_per_group };
        let outcome = self.call(vec![Command::Receive(receive)]).remove(0);
        let Outcome::Received(deliveries) = outcome else { panic!("{outcome:?}") };
        deliveries
    }

    fn settle(&mut self, delivery: &Delivery, verb: Verb) {
        self.call(vec![Command::Settle(Settle { lease: delivery.lease, verb })]);
    }

    /// So many dead messages.
    fn kill(&mut self, name: &str, count: u32) {
        (0..count).for_each(|key| self.send(name, &key.to_string(), None));
        for delivery in self.receive(name) {
            let verb = Verb::Fail { error: "boom".into(), delay_ms: None, dead: true };
            self.settle(&delivery, verb);
        }
        assert_eq!(self.stats(name).dead, u64::from(count));
    }

    fn redrive(&mut self, name: &str, id: &str, per_s: Option<u32>) {
        self.call(vec![redrive(name, id, per_s)]);
    }

    fn progress(&mut self, name: &str, id: &str) -> RedriveView {
        let outcome = self.call(vec![progress(name, id)]).remove(0);
        let Outcome::Redrive(view) = outcome else { panic!("{outcome:?}") };
        *view
    }

    fn stats(&self, name: &str) -> Stats {
        let mut queues = self.partition.machine().queues();
        queues.find(|(known, _)| **known == queue(name)).unwrap().1.stats
    }
}

#[test]
fn what_is_due_becomes_ready_and_is_received() {
    for tick_step in [1, 3, 1_000] {
        for refill in [1, 3, 1_000] {
            let mut world = World::new(tick_step, refill);
            for name in ["a", "b", "c"] {
                world.configure(name, Config { delay_ms: 200, ..Config::default() });
                for key in 0..9 {
                    world.send(name, &key.to_string(), None);
                    world.tick();
                }
            }
            world.ms += 300;
            (0..100).for_each(|_| world.tick());
            for name in ["a", "b", "c"] {
                let told = format!("{name}, ticks of {tick_step}, refills of {refill}");
                assert_eq!((world.stats(name).delayed, world.stats(name).ready), (0, 9), "{told}");
                assert_eq!(world.receive(name).len(), 9, "{told}");
            }
        }
    }
}

#[test]
fn what_is_due_is_not_all_read_before_it_becomes_ready() {
    let mut world = World::reading(10_000, 1, 4);
    world.configure("a", Config { delay_ms: 1_000, ..Config::default() });
    for key in 0..60 {
        world.send("a", &key.to_string(), None);
    }
    (0..10).for_each(|_| world.tick());
    world.ms += 2_000;
    for _ in 0..60 {
        world.tick();
        let usage = world.partition.machine().usage();
        assert!(usage.messages <= 12, "{} messages are in memory", usage.messages);
    }
}

#[test]
fn l6_members_of_a_group_that_waited_come_in_their_order() {
    for tick_step in [1, 1_000] {
        let mut world = World::new(tick_step, 1);
        let config = Config { order: Order::Group, delay_ms: 200, ..Config::default() };
        world.configure("a", config);
        for key in 0..9 {
            world.send("a", &key.to_string(), Some("g"));
            world.tick();
        }
        world.ms += 300;
        let mut order = Vec::new();
        for _ in 0..200 {
            world.tick();
            for delivery in world.receive("a") {
                order.push(delivery.content.key().to_owned());
                world.settle(&delivery, Verb::Done { result: None, emits: Vec::new() });
            }
        }
        assert_eq!(order.concat(), "012345678", "ticks of {tick_step}");
    }
}

#[test]
fn l5_a_redrive_does_not_wait_for_others_that_are_read_again_and_again() {
    for tick_step in [1, 3, 1_000] {
        let mut world = World::new(tick_step, 2);
        world.configure("a", Config { max_attempts: 1, ..Config::default() });
        world.configure("b", Config { delay_ms: 100, ..Config::default() });
        world.kill("a", 9);
        // Whatever their order is: most of them wait for their rate.
        (0..6).for_each(|job| world.redrive("a", &format!("slow-{job}"), Some(1)));
        world.redrive("a", "fast", None);
        for tick in 0..150 {
            world.send("b", &tick.to_string(), None); // There are always delays that end.
            world.tick();
        }
        let view = world.progress("a", "fast");
        assert!(view.done, "ticks of {tick_step}: {view:?}");
        assert_eq!(world.stats("a").dead, 0, "ticks of {tick_step}");
    }
}

#[test]
fn l5_redrives_of_one_queue_share_what_they_read() {
    let mut world = World::new(1_000, 1);
    world.configure("a", Config { max_attempts: 1, ..Config::default() });
    world.kill("a", 9);
    (0..40).for_each(|_| world.tick());
    let jobs = || (0..16).map(|job| job.to_string());
    world.call(jobs().map(|job| redrive("a", &job, None)).collect());
    (0..40).for_each(|_| world.tick());
    for outcome in world.call(jobs().map(|job| progress("a", &job)).collect()) {
        assert!(matches!(&outcome, Outcome::Redrive(view) if view.done), "{outcome:?}");
    }
}

#[test]
fn purges_redrives_and_delays_of_many_queues_all_end() {
    let mut world = World::new(1, 1);
    let names: Vec<String> = (0..8).map(|number| format!("q{number}")).collect();
    for name in &names {
        world.configure(name, Config { max_attempts: 1, ..Config::default() });
        world.kill(name, 4);
    }
    for (number, name) in names.iter().enumerate() {
        match number % 2 {
            0 => world.redrive(name, "all", None),
            _ => {
                let purge = Purge { queue: queue(name), keys: false };
                world.call(vec![Command::Purge(purge)]);
            }
        }
    }
    (0..400).for_each(|_| world.tick());
    for (number, name) in names.iter().enumerate() {
        let stats = world.stats(name);
        let expected = if number % 2 == 0 { (4, 0) } else { (0, 0) };
        assert_eq!((stats.ready, stats.dead), expected, "{name}");
    }
}
