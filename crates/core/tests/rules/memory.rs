//! How much memory, journal and time one command may take, and what leaves memory.

use bytes::Bytes;
use hapax_core::*;

use crate::support::World;

fn name() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn queue(number: usize) -> QueueName {
    QueueName::new("default", &format!("q{number}")).unwrap()
}

fn world(bounds: Bounds, queues: usize, config: &Config) -> World {
    let mut world = World::new();
    world.machine = Machine::with_bounds(0, 1, 7, bounds);
    for number in 0..queues {
        configure(&mut world, queue(number), config);
    }
    world
}

fn configure(world: &mut World, queue: QueueName, config: &Config) {
    let configure = Configure { queue, config: config.clone(), if_version: None };
    let outcome = world.run(Command::Configure(configure));
    assert!(matches!(outcome, Outcome::Configured { .. }), "{outcome:?}");
}

fn send(world: &mut World, queue: &QueueName, key: &str, body: &[u8]) -> Answer {
    let content = Content::builder(key).build(body).unwrap();
    match world.run(Command::Send(Send::new(queue.clone(), content))) {
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
            "frozen" => world.freeze(),
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
        world.thaw();
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
        Emit { queue: name(), name: "n".repeat(bytes), content, delay_ms: None }
    };
    let settled = settle(&mut world, lease, done(None, vec![emit(256)]));
    assert_eq!(settled, Settled::Invalid(Invalid::Emits));
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
        Command::Send(Send::new(name(), content))
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
    for job in 0..40 {
        let id = format!("job-{job}").into();
        let select = Select::Filter {
            error_contains: Some("other".to_owned()),
            group: None,
            dead_before: None,
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
        let before = (0..40).filter(|job| is_done(&mut world, *job)).count();
        world.run(Command::Expire);
        let after = (0..40).filter(|job| is_done(&mut world, *job)).count();
        assert!(after - before <= 5, "tick {tick}: {before} to {after}");
    }
    assert!((0..40).all(|job| is_done(&mut world, job)), "all redrives came to their end");
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
