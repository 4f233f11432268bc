//! Leases whose messages are in the rows alone: whatever is said to them or becomes of them, it is
//! what becomes of a lease in memory.

use hapax_core::*;

use crate::support::{World, recipe};

const COUNT: usize = 8;
const BODY: usize = 1_000;

fn name() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn receive(id: usize) -> Command {
    Command::Receive(Receive {
        queue: name(),
        max: COUNT as u32,
        lease_ms: None,
        worker: "w".into(),
        receive_id: Some(format!("r{id}").into()),
        several_per_group: false,
    })
}

/// Where the messages of leases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Memory,
    Rows,
    /// The same after a restart.
    Restarted,
}

fn held(place: Where, config: &Config, bounds: Bounds) -> (World, Vec<Delivery>) {
    let mut world = World::with_bounds(bounds);
    let config = Config { lease_ms: 30_000, ..config.clone() };
    let configure = Configure { queue: name(), config, if_version: None };
    world.run(Command::Configure(Box::new(configure)));
    for key in 0..COUNT {
        let group = format!("g{key}");
        for part in ["", "-behind"].iter().take(if key % 2 == 0 { 2 } else { 1 }) {
            let key = format!("k{key}{part}");
            let content = Content::builder(&key).group(Some(&group));
            let content = content.build(&[b'x'; BODY]).unwrap();
            world.run(Command::Send(SendMessage::new(&recipe(), name(), content)));
        }
    }
    let mut deliveries = Vec::new();
    while deliveries.len() < COUNT {
        let outcome = world.run(receive(deliveries.len()));
        let Outcome::Received(more) = outcome else { panic!("{outcome:?}") };
        deliveries.extend(more);
    }
    world.checkpoint();
    match place {
        Where::Memory => {}
        Where::Rows => {
            world.machine.evict(0, usize::MAX);
        }
        Where::Restarted => world.crash(),
    }
    let usage = world.machine.usage();
    if place != Where::Memory {
        assert_eq!((usage.messages, usage.leases), (0, COUNT), "{usage:?}");
        assert!(usage.lease_bytes < COUNT * BODY / 10, "{usage:?}");
    }
    (world, deliveries)
}

fn grouped() -> Config {
    Config { order: Order::Group, on_lost: OnLost::Park, ..Config::default() }
}

/// Everything there is to see of the queue and its keys.
fn seen(world: &mut World) -> String {
    let mut seen = String::new();
    for key in 0..COUNT {
        for part in ["", "-behind"] {
            let key = KeyName { queue: name(), key: format!("k{key}{part}").into(), group: None };
            seen += &format!("{:?}\n", world.run(Command::Look(key)));
        }
    }
    for place in [Place::Leased, Place::Parked, Place::Dead] {
        let browse = Browse { queue: name(), place, cursor: None, limit: 100 };
        seen += &format!("{:?}\n", world.run(Command::Browse(browse)));
    }
    seen + &format!("{:?}", world.run(Command::Show(name())))
}

/// Does the same to the first lease wherever its message is, and sees the same become of it.
fn the_same_everywhere(what: &str, act: impl Fn(&mut World, LeaseName) -> String) {
    let told: Vec<String> = [Where::Memory, Where::Rows, Where::Restarted]
        .map(|place| {
            let (mut world, deliveries) = held(place, &grouped(), Bounds::default());
            let answer = act(&mut world, deliveries[0].lease);
            world.machine.check_invariants();
            let seen_then = seen(&mut world);
            world.wait(3_600_000);
            world.checkpoint();
            world.machine.evict(0, usize::MAX);
            format!("{answer}\n{seen_then}\n{}", seen(&mut world))
        })
        .into();
    assert!(told[0] == told[1], "{what}: {}\n---\n{}", told[0], told[1]);
    assert!(told[0] == told[2], "{what} after a restart: {}\n---\n{}", told[0], told[2]);
}

#[test]
fn a_lease_settles_the_same_wherever_its_message_is() {
    let verbs = || {
        [
            Verb::Done { result: None, emits: Vec::new() },
            Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: false },
            Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: true },
            Verb::Release,
            Verb::Park { error: "who knows".to_owned(), delay_ms: None, dead: false },
            Verb::Extend { lease_ms: Some(60_000) },
            Verb::Begin,
            Verb::Save { name: "point".to_owned(), data: b"saved"[..].into() },
        ]
    };
    for number in 0..verbs().len() {
        let what = format!("{:?}", verbs()[number]);
        the_same_everywhere(&what, |world, lease| {
            let verb = verbs()[number].clone();
            format!("{:?}", world.run(Command::Settle(Settle { lease, verb })))
        });
    }
}

#[test]
fn a_lease_is_seen_repeated_and_ends_the_same_wherever_its_message_is() {
    let key = || KeyName { queue: name(), key: "k0".into(), group: None };
    the_same_everywhere("nothing", |_, _| String::new());
    the_same_everywhere("a repeated receive", |world, _| format!("{:?}", world.run(receive(0))));
    the_same_everywhere("a duplicate", |world, _| {
        let content = Content::builder("k0").group(Some("g0")).build(&[b'x'; BODY]).unwrap();
        format!("{:?}", world.run(Command::Send(SendMessage::new(&recipe(), name(), content))))
    });
    the_same_everywhere("a conflict", |world, _| {
        let content = Content::builder("k0").group(Some("g0")).build(b"other").unwrap();
        format!("{:?}", world.run(Command::Send(SendMessage::new(&recipe(), name(), content))))
    });
    the_same_everywhere("a discard", |world, _| {
        format!("{:?}", world.run(Command::Discard(key())))
    });
    the_same_everywhere("begun, and lost", |world, lease| {
        world.run(Command::Settle(Settle { lease, verb: Verb::Begin }));
        world.checkpoint();
        world.machine.evict(0, usize::MAX);
        world.wait(30_000);
        String::new()
    });
}

#[test]
fn a_purge_leaves_what_is_leased_and_comes_to_an_end() {
    for place in [Where::Memory, Where::Rows, Where::Restarted] {
        let bounds = Bounds { job_step: 2, refill: 2, ..Bounds::default() };
        let (mut world, deliveries) = held(place, &grouped(), bounds);
        world.run(Command::Purge(Purge { queue: name(), keys: false }));
        for _ in 0..100 {
            // Whatever it reads leaves memory again at once.
            world.run(Command::Expire);
            world.machine.evict(0, usize::MAX);
            world.machine.check_invariants();
        }
        let Outcome::Queue(view) = world.run(Command::Show(name())) else { panic!("a queue") };
        assert_eq!((view.stats.ready, view.stats.leased), (0, COUNT as u64), "{place:?}");
        let due = world.machine.next_deadline().unwrap();
        assert!(due >= world.at.plus(30_000), "{place:?}: the purge goes on for ever");
        let verb = Verb::Done { result: None, emits: Vec::new() };
        let settle = Settle { lease: deliveries[0].lease, verb };
        let settled = world.run(Command::Settle(settle));
        assert!(matches!(settled, Outcome::Settled(Settled::Ok { .. })), "{settled:?}");
    }
}

#[test]
fn a_queue_goes_with_what_is_leased_wherever_it_is() {
    for place in [Where::Memory, Where::Rows, Where::Restarted] {
        let (mut world, deliveries) = held(place, &grouped(), Bounds::default());
        world.run(Command::Delete(name()));
        world.wait(1_000);
        world.checkpoint();
        assert!(world.rows().queues().is_empty(), "{place:?}: rows are left");
        assert_eq!(world.machine.usage().leases, 0);
        let settle = Settle { lease: deliveries[0].lease, verb: Verb::Release };
        let settled = world.run(Command::Settle(settle));
        assert!(matches!(settled, Outcome::Settled(Settled::LeaseLost { .. })), "{settled:?}");
    }
}

#[test]
fn leases_that_end_together_come_back_into_memory_a_part_at_a_time() {
    let bounds = Bounds { receive_bytes: 2 * BODY, ..Bounds::default() };
    for place in [Where::Rows, Where::Restarted] {
        let (mut world, _) = held(place, &grouped(), bounds);
        world.at = world.at.plus(30_000);
        let mut ticks = 0;
        while world.machine.usage().leases > 0 {
            world.run(Command::Expire);
            let usage = world.machine.usage();
            assert!(usage.message_bytes < 4 * (BODY + 500), "{place:?}: {usage:?}");
            world.checkpoint();
            world.machine.evict(0, usize::MAX);
            ticks += 1;
            assert!(ticks <= COUNT, "{place:?}: every tick brings some back");
        }
        let Outcome::Queue(view) = world.run(Command::Show(name())) else { panic!("a queue") };
        assert_eq!((view.stats.leased, view.stats.lease_lost_total), (0, COUNT as u64));
    }
}

#[test]
fn l10_a_repeated_receive_gets_its_leases_however_many_came_since() {
    for place in [Where::Memory, Where::Rows, Where::Restarted] {
        let bounds = Bounds { refill: 1, ..Bounds::default() };
        let config = Config { order: Order::None, ..Config::default() };
        let mut world = World::with_bounds(bounds);
        let configure = Configure { queue: name(), config, if_version: None };
        world.run(Command::Configure(Box::new(configure)));
        let mut first = None;
        for number in 0..20 {
            let content = Content::builder(&format!("k{number}")).build(b"x").unwrap();
            world.run(Command::Send(SendMessage::new(&recipe(), name(), content)));
            let outcome = world.run(receive(number));
            first.get_or_insert(outcome);
            match place {
                Where::Memory => {}
                Where::Rows => {
                    world.checkpoint();
                    world.evict();
                }
                Where::Restarted => {
                    world.checkpoint();
                    world.crash();
                }
            }
        }
        assert_eq!(Some(world.run(receive(0))), first, "{place:?}");
        assert_eq!(world.machine.usage().receives, 20, "{place:?}: each has a lease that holds");
    }
}

#[test]
fn receives_are_forgotten_whose_leases_were_lost_wherever_the_messages_are() {
    let bounds = Bounds { refill: 1, ..Bounds::default() };
    let config = Config {
        order: Order::None,
        lease_ms: 1_000,
        max_attempts: 1_000,
        backoff_min_ms: 0,
        backoff_max_ms: 0,
        ..Config::default()
    };
    let mut world = World::with_bounds(bounds);
    world.run(Command::Configure(Box::new(Configure { queue: name(), config, if_version: None })));
    let content = Content::builder("k").build(b"x").unwrap();
    world.run(Command::Send(SendMessage::new(&recipe(), name(), content)));
    for number in 0..50 {
        let outcome = world.run(receive(number));
        assert!(matches!(&outcome, Outcome::Received(got) if got.len() == 1), "{outcome:?}");
        world.checkpoint();
        world.evict();
        world.wait(1_000);
        world.checkpoint();
        world.evict();
    }
    let receives = world.machine.usage().receives;
    assert!(receives <= 4, "{receives} are remembered, and one message was leased");
}

#[test]
fn leases_of_many_queues_that_end_together_come_back_no_faster_than_they_are_lost() {
    let bounds = Bounds { expire_step: 3, tick_step: 6, ..Bounds::default() };
    for place in [Where::Rows, Where::Restarted] {
        let mut world = World::with_bounds(bounds);
        let queue = |number| QueueName::new("default", &format!("q{number}")).unwrap();
        let (queues, each) = (10, 9);
        for queue in (0..queues).map(queue) {
            let config = Config { lease_ms: 30_000, ..Config::default() };
            let configure = Configure { queue: queue.clone(), config, if_version: None };
            world.run(Command::Configure(Box::new(configure)));
            for key in 0..each {
                let content = Content::builder(&format!("k{key}")).build(b"x").unwrap();
                world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content)));
            }
            let outcome = world.run(Command::Receive(Receive {
                queue,
                max: each,
                lease_ms: None,
                worker: "w".into(),
                receive_id: None,
                several_per_group: false,
            }));
            assert!(matches!(&outcome, Outcome::Received(got) if got.len() == each as usize));
        }
        world.checkpoint();
        match place {
            Where::Restarted => world.crash(),
            _ => assert_eq!(world.evict(), queues * each as usize),
        }
        world.at = world.at.plus(30_000);
        let mut ticks = 0;
        while world.machine.usage().leases > 0 {
            world.run(Command::Expire);
            world.checkpoint();
            world.evict();
            let usage = world.machine.usage();
            assert!(usage.messages <= bounds.tick_step, "{place:?}: {usage:?}");
            ticks += 1;
            assert!(ticks <= 2 * queues * each as usize / bounds.tick_step, "{place:?}");
        }
    }
}
