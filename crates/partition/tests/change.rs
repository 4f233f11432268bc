//! Changes of queues over several partitions, broken off after every step: all partitions agree
//! afterwards, and nothing that was answered is lost.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

use std::collections::BTreeSet;

use hapax_core::{
    Answer, Command, Config, Configure, Content, DedupScope, Follow, Order, Outcome, Purge,
    QueueName, QueueView, Recipe, Refusal, SendMessage, Stamp, Time,
};
use hapax_partition::change::{
    Change, Changed, Known, LeaderBehind, Running, copied, reconcile, routes,
};
use hapax_partition::route::Routes;
use hapax_partition::{Options, Partition};
use hapax_store::memory::MemoryStore;

const PARTITIONS: usize = 4;

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn configure(config: Config) -> Change {
    Change::Configure(Configure { queue: queue(), config, if_version: None })
}

/// Several partitions in memory, and what the engine keeps about them.
struct World {
    stores: Vec<MemoryStore>,
    partitions: Vec<Partition<MemoryStore>>,
    routes: Routes,
    ms: u64,
}

impl World {
    fn new() -> Self {
        let stores: Vec<MemoryStore> = (0..PARTITIONS).map(|_| MemoryStore::default()).collect();
        let mut world = Self {
            stores,
            partitions: Vec::new(),
            routes: Routes::new(PARTITIONS, Recipe::First),
            ms: 1_700_000_000_000,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let open = |(number, store): (usize, &MemoryStore)| {
            let options = Options {
                partition: number as u16,
                partitions: PARTITIONS as u16,
                seed: 3,
                ..Options::default()
            };
            Partition::open(store.another(), options).unwrap()
        };
        self.partitions = self.stores.iter().enumerate().map(open).collect();
    }

    /// A start after a crash, up to where callers are served.
    fn restart(&mut self) -> Result<(), LeaderBehind> {
        self.restart_in_rounds().map(drop)
    }

    /// The same; returns how many rounds of reconciliation had something to do.
    fn restart_in_rounds(&mut self) -> Result<usize, LeaderBehind> {
        self.open();
        for round in 0..3 {
            let known: Vec<Known> = (0..PARTITIONS).map(|number| self.known(number)).collect();
            let steps = reconcile(&known)?;
            if steps.is_empty() {
                self.routes = routes(&known, Recipe::First);
                return Ok(round);
            }
            for step in steps {
                for outcome in self.call(step.partition, step.commands) {
                    assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
                }
            }
        }
        panic!("reconciliation has no end");
    }

    fn known(&self, partition: usize) -> Known {
        Known::of(self.partitions[partition].machine())
    }

    fn call(&mut self, partition: usize, commands: Vec<Command>) -> Vec<Outcome> {
        self.ms += 1;
        let partition = &mut self.partitions[partition];
        let ticket = partition.submit(Stamp { at: Time(self.ms), random: 7 }, commands).unwrap();
        loop {
            let answered = partition.poll().unwrap().expect("memory is durable at once");
            if answered.ticket == ticket {
                return answered.outcomes;
            }
        }
    }

    /// Carries out so many steps of a change; `None` where it was broken off.
    fn change(&mut self, change: Change, most: usize) -> Option<Result<Changed, Refusal>> {
        let mut left = most;
        let mut running = Running::begin(change, &mut self.routes);
        while let Some(steps) = running.next() {
            let mut outcomes = Vec::new();
            for step in steps {
                left = left.checked_sub(1)?;
                outcomes.push(self.call(step.partition, step.commands));
            }
            running.done(outcomes, &mut self.routes);
        }
        Some(running.end())
    }

    fn all(&mut self, change: Change) -> Result<Changed, Refusal> {
        self.change(change, usize::MAX).expect("it was carried to its end")
    }

    fn send(&mut self, key: &str, group: Option<&str>) -> Answer {
        let content = Content::builder(key).group(group).build(b"b").unwrap();
        let send = SendMessage::new(&Recipe::First, queue(), content);
        let partition = self.routes.of_new(&send.queue, send.digest, &send.content, || 0);
        match self.call(partition, vec![Command::Send(send)]).remove(0) {
            Outcome::Sent(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn view(&self, partition: usize) -> Option<QueueView> {
        let known = self.known(partition).queues;
        known.into_iter().find(|(name, _)| *name == queue()).map(|(_, view)| view)
    }

    /// The queue, which all partitions know in the same way or not at all.
    fn agreed(&self) -> Option<QueueView> {
        let first = self.view(0);
        for partition in 1..PARTITIONS {
            let (first, other) = (first.as_ref(), self.view(partition));
            let of = |view: &QueueView| (view.config.clone(), view.paused);
            assert_eq!(first.map(of), other.as_ref().map(of), "partition {partition}");
        }
        first
    }

    fn ready(&self) -> u64 {
        (0..PARTITIONS).filter_map(|number| self.view(number)).map(|view| view.stats.ready).sum()
    }
}

fn changed_config() -> Config {
    Config { lease_ms: 5_000, ..Config::default() }
}

#[test]
fn a_crash_after_any_step_of_a_creation_leaves_no_half_queue() {
    for most in 0..=PARTITIONS {
        let mut world = World::new();
        world.change(configure(Config::default()), most);
        // Whoever sends while it is made may be answered, and then the message is there.
        let accepted = (0..40)
            .filter(|n| matches!(world.send(&format!("k{n}"), None), Answer::Accepted { .. }))
            .count();
        world.restart().unwrap();
        assert_eq!(world.agreed().is_some(), most > 0, "decided by the leader: {most} steps");
        assert_eq!(world.ready(), accepted as u64, "after {most} steps");
    }
}

#[test]
fn a_crash_after_any_step_of_a_change_leaves_all_partitions_with_the_leaders_rules() {
    let changes = [configure(changed_config()), Change::Pause(queue()), Change::Resume(queue())];
    for change in changes {
        for most in 0..=PARTITIONS {
            let mut world = World::new();
            world.all(configure(Config::default())).unwrap();
            if matches!(change, Change::Resume(_)) {
                world.all(Change::Pause(queue())).unwrap();
            }
            (0..20).for_each(|n| drop(world.send(&format!("k{n}"), None)));
            world.change(change.clone(), most);
            let decided = world.view(0);
            world.restart().unwrap();
            let agreed = world.agreed().unwrap();
            assert_eq!(agreed.config, decided.unwrap().config);
            assert_eq!(world.ready(), 20, "{change:?} after {most} steps");
            // A restart that found something to do leaves nothing for the next one.
            world.restart().unwrap();
            assert_eq!(world.agreed(), Some(agreed));
        }
    }
}

#[test]
fn a_crash_after_any_step_of_a_delete_keeps_all_of_the_queue_or_nothing() {
    for most in 0..=PARTITIONS {
        let mut world = World::new();
        world.all(configure(Config::default())).unwrap();
        (0..40).for_each(|n| drop(world.send(&format!("k{n}"), None)));
        world.change(Change::Delete(queue()), most);
        world.restart().unwrap();
        match most {
            0 => assert_eq!(world.ready(), 40),
            _ => assert_eq!(world.agreed(), None, "after {most} steps"),
        }
        // Created again it starts with no keys, wherever the delete was broken off.
        if most > 0 {
            assert_eq!(
                world.all(configure(Config::default())),
                Ok(Changed::Configured { version: 1, created: true })
            );
            for n in 0..40 {
                let answer = world.send(&format!("k{n}"), None);
                assert!(matches!(answer, Answer::Accepted { .. }), "{answer:?}");
            }
            world.restart().unwrap();
            assert_eq!(world.ready(), 40, "the new queue is not the deleted one");
        }
    }
}

#[test]
fn k1_a_key_sent_while_its_queue_is_made_is_accepted_once() {
    for config in [
        Config { dedup_scope: DedupScope::Group, ..Config::default() },
        Config { order: Order::Group, ..Config::default() },
    ] {
        for most in 0..=PARTITIONS {
            let mut world = World::new();
            let (mut accepted, keys) = (0, 0..40);
            let mut try_all = |world: &mut World| {
                for n in keys.clone() {
                    let answer = world.send(&format!("k{n}"), Some("g"));
                    accepted += usize::from(matches!(answer, Answer::Accepted { .. }));
                }
            };
            try_all(&mut world);
            world.change(configure(config.clone()), most);
            try_all(&mut world);
            world.restart().unwrap();
            world.all(configure(config.clone())).unwrap();
            try_all(&mut world);
            assert_eq!(accepted, 40, "{:?} after {most} steps", config.order);
            let holders =
                (0..PARTITIONS).filter(|number| world.view(*number).unwrap().stats.ready > 0);
            assert_eq!(holders.count(), 1, "a group is in one partition");
        }
    }
}

/// A follower that was copied between the two, say, knows the earlier queue.
#[test]
fn a_queue_made_anew_at_the_same_moment_is_another_queue() {
    let mut world = World::new();
    let began = world.ms;
    world.all(configure(Config::default())).unwrap();
    let content = Content::builder("k").build(b"b").unwrap();
    world.call(1, vec![Command::Send(SendMessage::new(&Recipe::First, queue(), content))]);
    world.ms = began; // Partition 0 has seen no later time than that of the creation.
    let anew = Config { order: Order::Group, ..Config::default() };
    let configure = Configure { queue: queue(), config: anew.clone(), if_version: None };
    world.call(0, vec![Command::Delete(queue()), Command::Configure(Box::new(configure))]);
    world.restart().unwrap();
    assert_eq!(world.agreed().unwrap().config, anew);
    assert_eq!(world.ready(), 0, "what the earlier one had is gone with it");
}

/// A follower that knows an earlier queue of the name, which was paused or not, starts with the
/// new one as the leader has it.
#[test]
fn a_queue_that_was_created_again_is_paused_everywhere_or_nowhere() {
    for (was_paused, is_paused) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new();
        world.all(configure(Config::default())).unwrap();
        if was_paused {
            world.all(Change::Pause(queue())).unwrap();
        }
        (0..20).for_each(|n| drop(world.send(&format!("k{n}"), None)));
        world.call(0, vec![Command::Delete(queue())]);
        let anew = Configure { queue: queue(), config: changed_config(), if_version: None };
        world.call(0, vec![Command::Configure(Box::new(anew))]);
        if is_paused {
            world.call(0, vec![Command::Pause(queue())]);
        }
        assert_eq!(world.restart_in_rounds(), Ok(1), "the leader knows all of it");
        let agreed = world.agreed().unwrap();
        assert_eq!(agreed.paused, is_paused, "the earlier one was paused: {was_paused}");
        assert_eq!((agreed.config, world.ready()), (changed_config(), 0));
    }
}

#[test]
fn a_queue_on_its_way_out_takes_no_more_messages() {
    let mut world = World::new();
    world.all(configure(Config::default())).unwrap();
    let mut running = Running::begin(Change::Delete(queue()), &mut world.routes);
    let step = running.next().unwrap().remove(0);
    let outcomes = world.call(step.partition, step.commands);
    running.done(vec![outcomes], &mut world.routes);
    for n in 0..40 {
        assert_eq!(world.send(&format!("k{n}"), None), Answer::NoSuchQueue);
    }
}

#[test]
fn a_refused_creation_leaves_no_route() {
    let mut world = World::new();
    let grouped = Config { dedup_scope: DedupScope::Group, lease_ms: 0, ..Config::default() };
    assert!(world.all(configure(grouped)).is_err());
    world.all(configure(Config::default())).unwrap();
    (0..40).for_each(|n| drop(world.send(&format!("k{n}"), Some("g"))));
    assert!((0..PARTITIONS).all(|number| world.view(number).unwrap().stats.ready > 0));
}

#[test]
fn a_leader_that_lost_its_data_deletes_nothing() {
    let mut world = World::new();
    world.all(configure(Config::default())).unwrap();
    (0..40).for_each(|n| drop(world.send(&format!("k{n}"), None)));
    let before: Vec<u64> =
        (1..PARTITIONS).map(|number| world.view(number).unwrap().stats.ready).collect();
    let kept = std::mem::take(&mut world.stores[0]);
    assert_eq!(
        world.restart(),
        Err(LeaderBehind { partition: 1, queue: "orders".to_owned() }),
        "refused, and nothing was changed"
    );
    world.stores[0] = kept;
    world.restart().unwrap();
    let after: Vec<u64> =
        (1..PARTITIONS).map(|number| world.view(number).unwrap().stats.ready).collect();
    assert_eq!(before, after);
    assert_eq!(world.ready(), 40);
}

/// Release 0.1 told every partition by itself, and two changes at once could leave a queue that
/// the leader does not know, with messages that were confirmed.
#[test]
fn a_queue_that_only_others_know_is_taken_over_with_its_messages() {
    let mut world = World::new();
    let alone = Configure { queue: queue(), config: changed_config(), if_version: None };
    for partition in [1, 3] {
        world.call(partition, vec![Command::Configure(Box::new(alone.clone()))]);
    }
    let content = Content::builder("k").build(b"b").unwrap();
    let send = SendMessage::new(&Recipe::First, queue(), content);
    world.call(3, vec![Command::Send(send)]);
    world.restart().unwrap();
    assert_eq!(world.agreed().unwrap().config, changed_config());
    assert_eq!(world.ready(), 1);
}

#[test]
fn an_older_edition_is_refused() {
    let mut world = World::new();
    world.all(configure(Config::default())).unwrap();
    let mut late = Running::begin(configure(Config::default()), &mut world.routes);
    let lead = late.next().unwrap().remove(0);
    let outcomes = world.call(lead.partition, lead.commands);
    late.done(vec![outcomes], &mut world.routes);
    let steps = late.next().unwrap();
    world.all(configure(changed_config())).unwrap();
    for step in steps {
        let outcome = world.call(step.partition, step.commands).remove(0);
        assert!(matches!(outcome, Outcome::Refused(Refusal::VersionChanged(_))), "{outcome:?}");
    }
    assert_eq!(world.agreed().unwrap().config, changed_config());
}

#[test]
fn a_purge_of_keys_reaches_every_partition() {
    let mut world = World::new();
    world.all(configure(Config::default())).unwrap();
    (0..40).for_each(|n| drop(world.send(&format!("k{n}"), None)));
    assert_eq!(world.all(Change::Purge(Purge { queue: queue(), keys: true })), Ok(Changed::Done));
    for n in 0..40 {
        let answer = world.send(&format!("k{n}"), None);
        assert!(matches!(answer, Answer::Accepted { .. }), "{answer:?}");
    }
}

#[test]
fn the_leader_is_copied_last() {
    assert_eq!(copied(1).collect::<Vec<_>>(), [0]);
    let all: Vec<usize> = copied(4).collect();
    assert_eq!(all.last(), Some(&0), "a copy of it from before the others' may not be opened");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), (0..4).collect());
}

#[test]
fn a_start_takes_its_routes_from_the_leader_alone() {
    let one_place = Config { order: Order::Group, ..Config::default() };
    let mut world = World::new();
    world.call(1, vec![follow(one_place.clone(), 1)]);
    let of_all = |world: &World| (0..PARTITIONS).map(|number| world.known(number)).collect();
    let known: Vec<Known> = of_all(&world);
    let is_new = routes(&known, Recipe::First).enter(&queue(), &Config::default());
    assert!(is_new, "a queue that others alone know");

    let mut world = World::new();
    world.call(0, vec![follow(Config::default(), 1)]);
    world.call(1, vec![follow(one_place.clone(), 1)]);
    let known: Vec<Known> = of_all(&world);
    let mut leads = routes(&known, Recipe::First);
    assert!(!leads.enter(&queue(), &one_place), "what the leader knows is there");
    let homes: std::collections::BTreeSet<usize> = (0..40)
        .map(|n| Content::builder(&format!("k{n}")).build(b"b").unwrap())
        .map(|content| SendMessage::new(&Recipe::First, queue(), content))
        .map(|send| leads.of_new(&send.queue, send.digest, &send.content, || 0))
        .collect();
    assert!(homes.len() > 1, "spread by its keys, as the leader has it: {homes:?}");
}

fn follow(config: Config, version: u64) -> Command {
    Command::Follow(Box::new(Follow { queue: queue(), config, version }))
}
