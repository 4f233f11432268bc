//! How much memory, journal and time one command may take, and what leaves memory.

use bytes::Bytes;
use hapax_core::*;

use crate::support::{World, recipe};

fn name() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn queue(number: usize) -> QueueName {
    QueueName::new("default", &format!("q{number}")).unwrap()
}

fn world(bounds: Bounds, queues: usize, config: &Config) -> World {
    let mut world = World::with_bounds(bounds);
    for number in 0..queues {
        configure(&mut world, queue(number), config);
    }
    world
}

fn configure(world: &mut World, queue: QueueName, config: &Config) {
    let configure = Configure { queue, config: config.clone(), if_version: None };
    let outcome = world.run(Command::Configure(Box::new(configure)));
    assert!(matches!(outcome, Outcome::Configured { .. }), "{outcome:?}");
}

fn send(world: &mut World, queue: &QueueName, key: &str, body: &[u8]) -> Answer {
    let content = Content::builder(key).build(body).unwrap();
    match world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content))) {
        Outcome::Sent(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn receive(world: &mut World, queue: &QueueName, max: u32) -> Vec<Delivery> {
    let receive = Receive {
        queue: queue.clone(),
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    };
    match world.run(Command::Receive(receive)) {
        Outcome::Received(deliveries) => deliveries,
        other => panic!("{other:?}"),
    }
}

fn settle(world: &mut World, lease: LeaseName, verb: Verb) -> Settled {
    match world.run(Command::Settle(Settle { lease, verb })) {
        Outcome::Settled(settled) => settled,
        other => panic!("{other:?}"),
    }
}

fn done(result: Option<Blob>, emits: Vec<Emit>) -> Verb {
    Verb::Done { result, emits }
}

fn blob(bytes: usize) -> Blob {
    Blob { content_type: None, body: vec![b'r'; bytes].into() }
}

/// A key that is done with a result of `bytes`.
fn finished(world: &mut World, bytes: usize) {
    configure(world, name(), &Config::default());
    send(world, &name(), "k", b"body");
    let lease = receive(world, &name(), 1)[0].lease;
    let settled = settle(world, lease, done(Some(blob(bytes)), Vec::new()));
    assert!(matches!(settled, Settled::Ok { .. }), "{settled:?}");
}

fn result(world: &mut World) -> Bytes {
    match send(world, &name(), "k", b"body") {
        Answer::Done(finished) => finished.result.unwrap().body,
        other => panic!("{other:?}"),
    }
}

#[test]
fn k13_duplicates_are_counted_without_writing_the_result_again() {
    // In memory, being written by a checkpoint, and in the rows alone.
    for where_it_is in ["memory", "frozen", "rows"] {
        let mut world = World::new();
        finished(&mut world, 1 << 20);
        match where_it_is {
            "frozen" => world.begin_checkpoint(),
            "rows" => world.checkpoint(),
            _ => {}
        }
        result(&mut world);
        let before = world.machine.usage().unwritten_bytes;
        let first = result(&mut world);
        for _ in 0..1_000 {
            let again = result(&mut world);
            assert_eq!(again.len(), 1 << 20);
            assert!(
                where_it_is == "rows" || again.as_ptr() == first.as_ptr(),
                "{where_it_is}: an answer has a copy of the result"
            );
        }
        assert_eq!(world.machine.usage().unwritten_bytes, before, "{where_it_is}");
        assert!(before < 2 << 20, "{where_it_is}: {before} bytes");
        world.finish_checkpoint();
        world.checkpoint();
        world.crash();
        let look = KeyName { queue: name(), key: "k".into(), group: None };
        let Outcome::Key(view) = world.run(Command::Look(look)) else { panic!() };
        assert_eq!(view.record.duplicates, 1_002, "{where_it_is}");
        assert_eq!(view.record.result.unwrap().body.len(), 1 << 20, "{where_it_is}");
        let told = view.history.iter().find(|event| event.what == What::Duplicate).unwrap();
        assert_eq!(&*told.detail, "1002", "{where_it_is}");
    }
}

#[test]
fn l3_the_name_of_an_emit_is_bounded() {
    let mut world = World::new();
    configure(&mut world, name(), &Config::default());
    send(&mut world, &name(), "k", b"a");
    let lease = receive(&mut world, &name(), 1)[0].lease;
    let emit = |bytes: usize| {
        let content = Content::builder("").build(b"a").unwrap();
        Emit {
            queue: name(),
            name: "n".repeat(bytes),
            content,
            delay_ms: None,
            ttl_ms: None,
            fingerprint: None,
        }
    };
    let settled = settle(&mut world, lease, done(None, vec![emit(256)]));
    assert_eq!(settled, Settled::Invalid(Invalid::EmitName(256)));
    let settled = settle(&mut world, lease, done(None, vec![emit(255)]));
    assert!(matches!(settled, Settled::Ok { place: Place::Done, .. }), "{settled:?}");
}

#[test]
fn the_content_type_of_a_result_is_bounded() {
    let mut world = World::new();
    configure(&mut world, name(), &Config { on_lost: OnLost::Park, ..Config::default() });
    send(&mut world, &name(), "k", b"a");
    let lease = receive(&mut world, &name(), 1)[0].lease;
    let blob = |bytes: usize| Blob { content_type: Some("t".repeat(bytes).into()), ..blob(1) };
    let settled = settle(&mut world, lease, done(Some(blob(256)), Vec::new()));
    assert_eq!(settled, Settled::Invalid(Invalid::ContentTypeLength(256)));
    settle(&mut world, lease, Verb::Begin);
    world.wait(60 * 60 * 1_000);
    let key = KeyName { queue: name(), key: "k".into(), group: None };
    let resolve = |bytes| {
        let resolution = Resolution::Done(Some(blob(bytes)));
        Command::Resolve(Resolve { key: key.clone(), resolution })
    };
    let refused = Refusal::Invalid(Invalid::ContentTypeLength(256));
    assert_eq!(world.run(resolve(256)), Outcome::Refused(refused));
    assert_eq!(world.run(resolve(255)), Outcome::Ok);
}

#[test]
fn a_command_that_decides_more_than_the_journal_takes_is_refused_and_changes_nothing() {
    let mut world = World::new();
    configure(&mut world, name(), &Config::default());
    send(&mut world, &name(), "k", b"a");
    let lease = receive(&mut world, &name(), 1)[0].lease;
    let mut batch = Batch::with_max(1_000);
    let at = world.at;
    let mut run = |command: Command, batch: &mut Batch| {
        let mut needs = Vec::new();
        world.machine.needs(&command, &mut needs);
        needs.iter().for_each(|need| world.machine.absent(need));
        world.machine.execute(Stamp { at, random: 1 }, command, batch)
    };
    let sent = |key: &str, bytes: usize| {
        let content = Content::builder(key).build(&vec![b'b'; bytes]).unwrap();
        Command::Send(SendMessage::new(&recipe(), name(), content))
    };
    let done = |bytes| {
        let verb = done(Some(blob(bytes)), Vec::new());
        Command::Settle(Settle { lease, verb })
    };
    batch.begin(at);
    let outcome = run(sent("large", 1_000), &mut batch);
    let too_large = |invalid: &Invalid| matches!(invalid, Invalid::TooLarge { max: 1_000, .. });
    assert!(
        matches!(&outcome, Outcome::Sent(Answer::Invalid(invalid)) if too_large(invalid)),
        "{outcome:?}"
    );
    let outcome = run(done(1_000), &mut batch);
    assert!(
        matches!(&outcome, Outcome::Settled(Settled::Invalid(invalid)) if too_large(invalid)),
        "{outcome:?}"
    );
    assert!(batch.is_empty() && batch.effects.is_empty(), "nothing was decided: {batch:?}");

    // What fits by itself begins the next batch where the one at hand has no room.
    let outcomes = [run(sent("a", 600), &mut batch), run(done(600), &mut batch)];
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::Accepted { .. })), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Settled(Settled::Ok { .. })), "{outcomes:?}");
    let outcome = run(sent("large", 10), &mut batch);
    assert!(matches!(outcome, Outcome::Sent(Answer::Accepted { .. })), "{outcome:?}");
    let full = batch.take_full();
    assert_eq!(full.len(), 1);
    let decided = |bytes: &[u8]| read_batch(bytes).unwrap().1.len();
    assert_eq!((decided(&full[0]), decided(batch.bytes())), (1, 2));
    assert!(full[0].len() <= 1_000 && batch.bytes().len() <= 1_000);
}

/// How many messages are in a place, over all queues.
fn count(world: &World, of: impl Fn(&Stats) -> u64) -> u64 {
    world.machine.queues().map(|(_, view)| of(&view.stats)).sum()
}

#[test]
fn one_tick_is_bounded_over_all_queues_and_each_has_its_turn() {
    let bounds = Bounds { tick_step: 10, expire_step: 4, ..Bounds::default() };
    let config = Config { lease_ms: 1_000, ..Config::default() };
    let mut world = world(bounds, 7, &config);
    for number in 0..7 {
        for key in 0..6 {
            send(&mut world, &queue(number), &key.to_string(), b"a");
        }
        assert_eq!(receive(&mut world, &queue(number), 10).len(), 6);
    }
    world.at = world.at.plus(2_000);
    let mut lost = Vec::new();
    let mut touched = Vec::new();
    while count(&world, |stats| stats.leased) > 0 {
        let before = count(&world, |stats| stats.lease_lost_total);
        world.run(Command::Expire);
        let queues = world.machine.queues().filter(|(_, view)| view.stats.lease_lost_total > 0);
        touched.push(queues.count());
        lost.push(count(&world, |stats| stats.lease_lost_total) - before);
        assert!(lost.len() < 100, "every tick goes on: {lost:?}");
    }
    assert!(lost.iter().all(|lost| *lost <= 10), "{lost:?}");
    assert_eq!(lost.iter().sum::<u64>(), 42);
    assert!(touched[2] == 7, "all queues had a turn before any had all of its: {touched:?}");
}

#[test]
fn one_tick_is_bounded_over_all_redrives_and_each_has_its_turn() {
    let bounds = Bounds { tick_step: 5, job_step: 2, ..Bounds::default() };
    let mut world = world(bounds, 1, &Config { max_attempts: 1, ..Config::default() });
    for key in 0..4 {
        send(&mut world, &queue(0), &key.to_string(), b"a");
    }
    for delivery in receive(&mut world, &queue(0), 10) {
        let fail = Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: true };
        settle(&mut world, delivery.lease, fail);
    }
    for job in 0..16 {
        let id = format!("job-{job}").into();
        let select = Select::Filter {
            error_contains: Some("other".to_owned()),
            group: None,
            dead_before: None,
            dead_after: None,
        };
        let redrive = Redrive { queue: queue(0), id, select, dry_run: false, per_s: None };
        let outcome = world.run(Command::Redrive(redrive));
        assert!(matches!(outcome, Outcome::Redrive(_)), "{outcome:?}");
    }
    let is_done = |world: &mut World, job: usize| {
        let id = format!("job-{job}").into();
        let progress = Command::RedriveProgress { queue: queue(0), id };
        let Outcome::Redrive(view) = world.run(progress) else { panic!() };
        view.done
    };
    for tick in 1..=20 {
        let before = (0..16).filter(|job| is_done(&mut world, *job)).count();
        world.run(Command::Expire);
        let after = (0..16).filter(|job| is_done(&mut world, *job)).count();
        assert!(after - before <= 5, "tick {tick}: {before} to {after}");
    }
    assert!((0..16).all(|job| is_done(&mut world, job)), "all redrives came to their end");
}

#[test]
fn delays_that_end_at_once_are_bounded_over_all_queues() {
    let bounds = Bounds { tick_step: 10, expire_step: 4, ..Bounds::default() };
    let mut world = world(bounds, 7, &Config { delay_ms: 1_000, ..Config::default() });
    for number in 0..7 {
        for key in 0..6 {
            send(&mut world, &queue(number), &key.to_string(), b"a");
        }
    }
    world.at = world.at.plus(2_000);
    for tick in 1..=5 {
        world.run(Command::Expire);
        let ready = count(&world, |stats| stats.ready);
        assert!(ready <= tick * 10, "{ready} after {tick} ticks");
    }
    world.run(Command::Expire);
    assert_eq!(count(&world, |stats| stats.ready), 42, "all of them are ready in the end");
}

fn send_to(world: &mut World, key: &str, group: Option<&str>) {
    let content = Content::builder(key).group(group).build(&[b'x'; 100]).unwrap();
    let sent = world.run(Command::Send(SendMessage::new(&recipe(), name(), content)));
    assert!(matches!(sent, Outcome::Sent(Answer::Accepted { .. })), "{sent:?}");
}

/// Everything that can leave leaves, and everything is still there.
fn assert_all_leaves(world: &mut World, ready: usize) {
    world.machine.evict(0, usize::MAX);
    let usage = world.machine.usage();
    assert_eq!((usage.messages, usage.groups, usage.head_bytes()), (0, 0, 0), "{usage:?}");
    let mut got = 0;
    while let deliveries @ [_, ..] = &*receive(world, &name(), 1_000) {
        got += deliveries.len();
    }
    assert_eq!(got, ready, "what left memory is found again");
}

#[test]
fn what_returned_to_ready_leaves_memory() {
    let mut world = World::new();
    configure(&mut world, name(), &Config { delay_ms: 1_000, ..Config::default() });
    for key in 0..3_000 {
        send_to(&mut world, &key.to_string(), None);
    }
    let content = Content::builder("first").build(b"a").unwrap();
    let send = SendMessage { delay_ms: Some(0), ..SendMessage::new(&recipe(), name(), content) };
    world.run(Command::Send(send)); // Younger than all of them, and ready before.
    world.wait(2_000);
    assert_eq!(count(&world, |stats| stats.ready), 3_001);
    world.checkpoint();
    assert_all_leaves(&mut world, 3_001);
}

#[test]
fn l5_redriven_messages_leave_memory() {
    let mut world = World::new();
    configure(&mut world, name(), &Config::default());
    for key in 0..1_000 {
        send_to(&mut world, &key.to_string(), None);
    }
    for delivery in receive(&mut world, &name(), 1_000) {
        let fail = Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: true };
        settle(&mut world, delivery.lease, fail);
    }
    send_to(&mut world, "younger", None);
    let redrive = Redrive {
        queue: name(),
        id: "again".into(),
        select: Select::All,
        dry_run: false,
        per_s: None,
    };
    world.run(Command::Redrive(redrive));
    world.wait(1_000);
    assert_eq!(count(&world, |stats| stats.ready), 1_001);
    world.checkpoint();
    assert_all_leaves(&mut world, 1_001);
}

#[test]
fn what_changed_stays_in_memory_and_the_rest_leaves_around_it() {
    let mut world = World::new();
    configure(&mut world, name(), &Config::default());
    for key in 0..100 {
        send_to(&mut world, &key.to_string(), None);
    }
    world.checkpoint();
    // The last one was sent again, and others came since.
    for key in [99, 50, 0] {
        let content = Content::builder(&key.to_string()).build(&[b'x'; 100]).unwrap();
        world.run(Command::Send(SendMessage::new(&recipe(), name(), content)));
    }
    for key in 100..110 {
        send_to(&mut world, &key.to_string(), None);
    }
    world.machine.evict(0, usize::MAX);
    let usage = world.machine.usage();
    assert_eq!((usage.messages, world.machine.evictable_bytes()), (13, 0), "{usage:?}");
    world.machine.check_invariants();
    let delivered = receive(&mut world, &name(), 1_000);
    let keys: Vec<String> = delivered.iter().map(Delivery::key).collect();
    let expected: Vec<String> = (0..110).map(|key| key.to_string()).collect();
    assert_eq!(keys, expected, "in their order");
}

#[test]
fn l6_groups_of_messages_that_left_memory_leave_it_too() {
    let config = Config {
        order: Order::Group,
        on_group_dead: OnGroupDead::Park,
        max_attempts: 1,
        ..Config::default()
    };
    for held in [false, true] {
        let mut world = World::new();
        configure(&mut world, name(), &config);
        for group in 0..300 {
            let group = format!("g{group}");
            send_to(&mut world, &format!("{group}-head"), Some(&group));
            send_to(&mut world, &format!("{group}-follower"), Some(&group));
        }
        if held {
            for delivery in receive(&mut world, &name(), 1_000) {
                let fail = Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: true };
                settle(&mut world, delivery.lease, fail);
            }
        }
        world.checkpoint();
        assert!(world.machine.usage().group_bytes >= 300 * 100);
        assert_all_leaves(&mut world, if held { 0 } else { 300 });
        if held {
            let keys = vec!["g7-head".into()];
            let select = Select::Keys { keys, group: None };
            let id = "free".into();
            let redrive = Redrive { queue: name(), id, select, dry_run: false, per_s: None };
            world.run(Command::Redrive(redrive));
            let delivered = receive(&mut world, &name(), 1_000);
            assert_eq!(delivered.iter().map(Delivery::key).collect::<Vec<_>>(), ["g7-head"]);
            settle(&mut world, delivered[0].lease, done(None, Vec::new()));
            let delivered = receive(&mut world, &name(), 1_000);
            assert_eq!(delivered.iter().map(Delivery::key).collect::<Vec<_>>(), ["g7-follower"]);
        }
    }
}

#[test]
fn histories_errors_and_recovery_points_are_counted() {
    let mut world = World::new();
    let config = Config { max_attempts: 1_000, backoff_min_ms: 0, ..Config::default() };
    configure(&mut world, name(), &config);
    send_to(&mut world, "k", None);
    let before = world.machine.usage().message_bytes;
    for number in 0..60 {
        world.wait(60_000 * 60);
        let lease = receive(&mut world, &name(), 1)[0].lease;
        if number == 0 {
            let save = Verb::Save { name: "point".to_owned(), data: vec![0; 10_000].into() };
            settle(&mut world, lease, save);
            let after = world.machine.usage().message_bytes;
            assert!(after >= before + 10_000, "{before} bytes, {after} with a recovery point");
        }
        let fail = Verb::Fail { error: "e".repeat(4_096), delay_ms: Some(0), dead: false };
        settle(&mut world, lease, fail);
    }
    let after = world.machine.usage().message_bytes;
    assert!(after >= before + 10_000 + 4_096 + 60 * 256, "{before} bytes, {after} in the end");
    assert!(after <= before + 10_000 + 4_096 + 64 * 1_024, "an event keeps a part of an error");
    let key = KeyName { queue: name(), key: "k".into(), group: None };
    let Outcome::Key(view) = world.run(Command::Look(key)) else { panic!() };
    assert_eq!(view.record.error.unwrap().len(), 4_096, "the last error is kept whole");
    world.machine.check_invariants();
}

#[test]
fn l10_receives_whose_leases_ended_are_forgotten() {
    let bounds = Bounds { refill: 8, ..Bounds::default() };
    let mut world = world(bounds, 0, &Config::default());
    configure(&mut world, name(), &Config::default());
    let receive = |world: &mut World, id: &str| {
        let receive = Receive {
            queue: name(),
            max: 1,
            lease_ms: None,
            worker: "w".into(),
            receive_id: Some(id.into()),
            several_per_group: false,
        };
        let Outcome::Received(deliveries) = world.run(Command::Receive(receive)) else { panic!() };
        deliveries
    };
    send_to(&mut world, "held", None);
    let held = receive(&mut world, "held");
    for number in 0..1_000 {
        send_to(&mut world, &number.to_string(), None);
        let lease = receive(&mut world, &number.to_string())[0].lease;
        settle(&mut world, lease, done(None, Vec::new()));
        if number % 100 == 50 {
            world.checkpoint();
        }
    }
    let usage = world.machine.usage();
    assert!(usage.receives <= 16, "{usage:?}");
    assert!(usage.receive_bytes > 0 && usage.receive_bytes < 10_000, "{usage:?}");
    let again = receive(&mut world, "held");
    assert_eq!(again[0].lease, held[0].lease, "a lease that holds is handed out again");
    world.checkpoint();
    world.crash();
    assert!(world.machine.usage().receives <= 16, "their rows are gone as well");
    let again = receive(&mut world, "held");
    assert_eq!(again[0].lease, held[0].lease);
}

#[test]
fn l10_a_receive_none_of_whose_leases_holds_is_a_new_one() {
    super::script::check(
        "
        queue  orders
        send   k1 a
        receive w 10 id=r1           => k1#1
        receive w 10 id=r1           => k1#1=
        settle k1 release            => ok ready
        receive w 10 id=r1           => k1#1
        receive w 10 id=r1           => k1#1=
        ",
    );
}

#[test]
fn l3_a_tenant_that_fills_its_share_of_waiting_emits_leaves_room_for_others() {
    let bounds = Bounds { relay_bytes: 1 << 20, ..Bounds::default() };
    let mut world = world(bounds, 0, &Config::default());
    let queue = |tenant: &str| QueueName::new(tenant, "orders").unwrap();
    let mut number = 0;
    let mut emit = |world: &mut World, tenant: &str, bytes: usize| {
        number += 1;
        let key = number.to_string();
        send(world, &queue(tenant), &key, b"a");
        let lease = receive(world, &queue(tenant), 1)[0].lease;
        let content = Content::builder("").build(&vec![b'e'; bytes]).unwrap();
        let emit = Emit {
            queue: queue(tenant),
            name: "n".into(),
            content,
            delay_ms: None,
            ttl_ms: None,
            fingerprint: None,
        };
        let settled = settle(world, lease, done(None, vec![emit]));
        if settled == Settled::RelayFull {
            settle(world, lease, done(None, Vec::new()));
            return false;
        }
        assert!(matches!(settled, Settled::Ok { .. }), "{settled:?}");
        true
    };
    for tenant in ["a", "b", "c"] {
        configure(&mut world, queue(tenant), &Config::default());
    }
    let mut accepted = |world: &mut World, tenant: &str| {
        (0..1_000).take_while(|_| emit(world, tenant, 10_000)).count()
    };
    let (a, b) = (accepted(&mut world, "a"), accepted(&mut world, "b"));
    assert!((40..=52).contains(&a), "one tenant has half of the room: {a}");
    assert!((20..=26).contains(&b), "the next has half of what is left: {b}");
    let usage = world.machine.usage();
    assert!(usage.relay_bytes <= 1 << 20 && usage.relays == a + b, "{usage:?}");
    world.checkpoint();
    world.crash();
    assert_eq!(world.machine.usage().relays, a + b);
    assert!(accepted(&mut world, "c") > 5, "and a third still has some");
    let ids: Vec<u64> = world.machine.relays().map(|relay| relay.id).collect();
    for id in ids {
        world.run(Command::Relayed { id, arrival: hapax_core::Arrival::Arrived });
    }
    assert_eq!(accepted(&mut world, "b"), a, "what arrived makes room");
}
