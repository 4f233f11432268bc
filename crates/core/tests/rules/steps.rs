//! A checkpoint is copied in steps, and writes the state of its cut.

use hapax_core::*;

use crate::support::{World, recipe};

fn name(queue: u64) -> QueueName {
    QueueName::new("default", &format!("q{queue}")).unwrap()
}

fn configure(queue: u64) -> Command {
    let config = match queue {
        0 => Config { max_attempts: 2, ..Config::default() },
        _ => Config {
            order: Order::Group,
            on_group_dead: OnGroupDead::Park,
            max_attempts: 1,
            ..Config::default()
        },
    };
    Command::Configure(Box::new(Configure { queue: name(queue), config, if_version: None }))
}

fn send(queue: u64, key: u64, group: u64) -> Command {
    let group = (queue > 0).then(|| format!("g{group}"));
    let key = format!("k{key}");
    let content = Content::builder(&key).group(group.as_deref()).build(b"body").unwrap();
    Command::Send(SendMessage::new(&recipe(), name(queue), content))
}

fn receive(queue: u64, max: u32) -> Command {
    Command::Receive(Receive {
        queue: name(queue),
        max,
        lease_ms: Some(5_000),
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    })
}

/// Random numbers and the leases that are held, of a history that is the same however its
/// checkpoints are copied.
struct History {
    random: u64,
    held: Vec<LeaseName>,
}

impl History {
    fn below(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % most
    }

    fn step(&mut self, world: &mut World) {
        let (queue, key, group) = (self.below(2), self.below(60), self.below(8));
        let kind = self.below(40);
        if kind >= 36 {
            return world.wait(1_000 * kind);
        }
        let commands = match kind {
            0 => vec![Command::Purge(Purge { queue: name(queue), keys: key % 2 == 0 })],
            1 => vec![Command::Delete(name(queue)), configure(queue), send(queue, key, group)],
            2 => vec![Command::Redrive(Redrive {
                queue: name(queue),
                id: format!("r{}", self.random).into(),
                select: Select::All,
                dry_run: false,
                per_s: None,
            })],
            3..8 => vec![receive(queue, 1 + key as u32 % 4)],
            8..20 if !self.held.is_empty() => {
                let which = self.below(self.held.len() as u64) as usize;
                let lease = self.held.swap_remove(which);
                let error = "e".to_owned();
                let verb = match kind {
                    8..14 => Verb::Done { result: None, emits: Vec::new() },
                    14..16 => Verb::Fail { error, delay_ms: Some(100), dead: false },
                    16..18 => Verb::Fail { error, delay_ms: None, dead: true },
                    _ => Verb::Release,
                };
                vec![Command::Settle(Settle { lease, verb })]
            }
            _ => vec![send(queue, key, group)],
        };
        for outcome in world.run_all(commands) {
            if let Outcome::Received(deliveries) = outcome {
                self.held.extend(deliveries.iter().map(|delivery| delivery.lease));
            }
        }
    }
}

/// How the checkpoints of a history are taken.
#[derive(Clone, Copy, PartialEq)]
enum Taken {
    AtOnce,
    InSteps,
    /// A first one is given up, some time after it was begun.
    Again,
}

/// The rows after every checkpoint of a history that goes on while it is copied.
fn rows(seed: u64, taken: Taken) -> Vec<String> {
    let mut world = World::new();
    world.run_all(vec![configure(0), configure(1)]);
    let mut history = History { random: seed, held: Vec::new() };
    let mut rows = Vec::new();
    for round in 0..12 {
        for _ in 0..history.below(20) {
            history.step(&mut world);
        }
        if taken == Taken::Again {
            world.begin_checkpoint();
        }
        for _ in 0..history.below(30) {
            history.step(&mut world);
        }
        world.cancel_checkpoint();
        world.begin_checkpoint();
        if taken == Taken::AtOnce {
            world.copy_changed(usize::MAX);
        }
        for _ in 0..history.below(30) {
            history.step(&mut world);
        }
        world.finish_checkpoint();
        rows.push(world.rows().to_text());
        match round % 3 {
            0 => drop(world.evict()),
            1 => world.crash(),
            _ => {}
        }
    }
    rows
}

#[test]
fn d1_a_checkpoint_that_is_copied_in_steps_writes_the_state_of_its_cut() {
    for seed in 0..80 {
        assert_same_rows(seed, Taken::InSteps);
    }
}

#[test]
fn d1_what_a_checkpoint_that_was_given_up_would_have_written_is_in_the_next_one() {
    for seed in 0..80 {
        assert_same_rows(seed, Taken::Again);
    }
}

fn assert_same_rows(seed: u64, taken: Taken) {
    let (whole, other) = (rows(seed, Taken::AtOnce), rows(seed, taken));
    for (round, (whole, other)) in whole.iter().zip(&other).enumerate() {
        assert!(whole == other, "seed {seed}, checkpoint {round}:\n{whole}\n\n{other}");
    }
}

#[test]
fn a_step_of_a_checkpoint_copies_no_more_than_it_may() {
    const COUNT: u64 = 500;
    let mut world = World::new();
    world.run_all(vec![configure(0), configure(1)]);
    let sends = (0..COUNT).flat_map(|key| [send(0, key, 0), send(1, key, key)]);
    world.run_all(sends.collect());
    assert_eq!(world.machine.usage().changed as u64, 3 * COUNT, "messages and groups");
    world.machine.begin_checkpoint();
    assert_eq!(world.machine.usage().changed, 0, "what changes now is the next one's");
    let mut steps = 0;
    let snapshot = loop {
        steps += 1;
        assert!(world.machine.is_copying() && world.machine.is_in_checkpoint());
        if let Some(snapshot) = world.machine.copy_changed(10) {
            break snapshot;
        }
    };
    assert_eq!(steps, 3 * COUNT / 10 + 1, "ten at a time, and one look that there are no more");
    assert_eq!(snapshot.size().0 as u64, 2 * COUNT, "every message is in it");
    assert!(!world.machine.is_copying() && world.machine.is_in_checkpoint());
}

#[test]
fn l6_a_group_that_ended_is_not_found_in_its_old_row_while_a_checkpoint_is_written() {
    let mut world = World::new();
    let config = Config { order: Order::Group, max_attempts: 1, ..Config::default() };
    let configure = Configure { queue: name(1), config, if_version: None };
    world.run(Command::Configure(Box::new(configure)));
    world.run(send(1, 1, 0));
    world.checkpoint();
    let Outcome::Received(taken) = world.run(receive(1, 10)) else { panic!("it is delivered") };
    let verb = Verb::Fail { error: "e".to_owned(), delay_ms: None, dead: true };
    world.run(Command::Settle(Settle { lease: taken[0].lease, verb }));
    // The group is over, and in memory for the sake of the dead message.
    world.begin_checkpoint();
    world.copy_changed(usize::MAX);
    let key = KeyName { queue: name(1), key: "k1".into(), group: None };
    assert!(matches!(world.run(Command::Discard(key)), Outcome::Ok));
    world.run(send(1, 2, 0));
    let stats = world.machine.queues().next().unwrap().1.stats;
    assert_eq!((stats.ready, stats.held), (1, 0));
    world.finish_checkpoint();
    world.crash();
    let Outcome::Received(taken) = world.run(receive(1, 10)) else { panic!("it is delivered") };
    assert_eq!(taken.len(), 1);
}

/// A world that reads two rows at once and moves one message in a step.
fn in_small_steps() -> World {
    let mut world = World::with_bounds(Bounds { refill: 2, job_step: 1, ..Bounds::default() });
    world.run(configure(0));
    world
}

#[test]
fn l5_what_a_redrive_that_is_ahead_reads_is_not_passed_over_by_one_behind() {
    const EACH: u64 = 20;
    let mut world = in_small_steps();
    let group = |place: u64| if place.is_multiple_of(2) { "even" } else { "odd" };
    for place in 0..2 * EACH {
        let key = format!("k{place}");
        let content = Content::builder(&key).group(Some(group(place))).build(b"body").unwrap();
        world.run(Command::Send(SendMessage::new(&recipe(), name(0), content)));
        let Outcome::Received(taken) = world.run(receive(0, 1)) else { panic!("it is delivered") };
        let verb = Verb::Fail { error: "e".to_owned(), delay_ms: None, dead: true };
        world.run(Command::Settle(Settle { lease: taken[0].lease, verb }));
    }
    let redrive = |group: &str, per_s| {
        let (group, error_contains) = (Some(group.to_owned()), None);
        let select = Select::Filter { error_contains, group, dead_before: None, dead_after: None };
        let (queue, id, dry_run) = (name(0), format!("{per_s} a second").into(), false);
        Command::Redrive(Redrive { queue, id, select, dry_run, per_s: Some(per_s) })
    };
    world.run_all(vec![redrive("even", 1), redrive("odd", 2)]);
    for _ in 0..2 * EACH {
        // What the faster one has read is not in memory when the slower one comes to it.
        world.checkpoint();
        world.evict();
        world.wait(800);
    }
    let stats = world.machine.queues().next().unwrap().1.stats;
    assert_eq!((stats.dead, stats.ready), (0, 2 * EACH));
}

#[test]
fn the_head_of_a_queue_that_is_purged_is_not_read() {
    let mut world = in_small_steps();
    world.run_all((0..10).map(|key| send(0, key, 0)).collect());
    world.checkpoint();
    world.crash();
    let read = |world: &World| {
        let mut needs = Vec::new();
        world.machine.needs(&Command::Expire, &mut needs);
        let ranges = needs.into_iter().filter_map(|need| match need {
            Need::Range(range) => Some(range.of),
            _ => None,
        });
        ranges.collect::<Vec<_>>()
    };
    assert!(matches!(read(&world)[..], [RangeOf::Ready(_), ..]), "for the age of the oldest");
    world.run(Command::Purge(Purge { queue: name(0), keys: false }));
    assert!(matches!(read(&world)[..], [RangeOf::Purge(_)]), "it ends with the purge");
    world.wait(1);
    assert!(read(&world).is_empty());
}

#[test]
fn l3_the_results_and_emits_of_a_checkpoint_that_was_given_up_are_in_the_next_one() {
    let mut world = World::new();
    world.run(configure(0));
    world.run(send(0, 1, 0));
    let Outcome::Received(taken) = world.run(receive(0, 1)) else { panic!("it is delivered") };
    let result = Blob { content_type: None, body: vec![b'r'; 10_000].into() };
    let content = Content::builder("next").build(b"body").unwrap();
    let emits = vec![Emit::new(name(0), "next", content)];
    let verb = Verb::Done { result: Some(result.clone()), emits };
    let settled = world.run(Command::Settle(Settle { lease: taken[0].lease, verb }));
    assert!(matches!(settled, Outcome::Settled(Settled::Ok { .. })), "{settled:?}");
    world.begin_checkpoint();
    world.cancel_checkpoint();
    let has_all = |world: &mut World| {
        let answer = world.run(send(0, 1, 0));
        let Outcome::Sent(Answer::Done(told)) = &answer else { panic!("{answer:?}") };
        assert_eq!(told.result.as_ref(), Some(&result));
        assert_eq!(world.machine.relays().count(), 1);
    };
    has_all(&mut world);
    world.checkpoint();
    world.crash();
    has_all(&mut world);
}
