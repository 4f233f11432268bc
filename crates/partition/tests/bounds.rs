//! What one batch may take of the journal, of memory and of answers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

use hapax_core::{
    Answer, Blob, Command, Config, Configure, Content, Delivery, Invalid, LeaseName, Outcome,
    QueueName, Receive, Recipe, SendMessage, Settle, Settled, Stamp, Time, Verb,
};
use hapax_partition::{Answered, Options, Partition};
use hapax_store::Store;
use hapax_store::memory::{Faults, MemoryStore};

const START: u64 = 1_700_000_000_000;

fn queue(number: usize) -> QueueName {
    QueueName::new("default", &format!("q{number}")).unwrap()
}

fn configure(queue: QueueName, config: Config) -> Command {
    Command::Configure(Box::new(Configure { queue, config, if_version: None }))
}

fn send(queue: QueueName, key: &str, bytes: usize) -> Command {
    Command::Send(SendMessage::new(
        &Recipe::First,
        queue,
        Content::builder(key).build(&vec![b'x'; bytes]).unwrap(),
    ))
}

fn receive(queue: QueueName, max: u32) -> Command {
    Command::Receive(Receive {
        queue,
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    })
}

fn done(lease: LeaseName, bytes: usize) -> Command {
    let result = Some(Blob { content_type: None, body: vec![b'r'; bytes].into() });
    Command::Settle(Settle { lease, verb: Verb::Done { result, emits: Vec::new() } })
}

fn submit(partition: &mut Partition<MemoryStore>, ms: u64, commands: Vec<Command>) {
    let stamp = Stamp { at: Time(START + ms), random: 7 };
    partition.submit(stamp, commands).unwrap();
}

/// Everything that may leave.
fn answers(partition: &mut Partition<MemoryStore>) -> Vec<Answered> {
    std::iter::from_fn(|| partition.poll().unwrap()).collect()
}

fn call(partition: &mut Partition<MemoryStore>, ms: u64, commands: Vec<Command>) -> Vec<Outcome> {
    submit(partition, ms, commands);
    answers(partition).into_iter().flat_map(|answered| answered.outcomes).collect()
}

fn deliveries(outcomes: Vec<Outcome>) -> Vec<Delivery> {
    let received = outcomes.into_iter().filter_map(|outcome| match outcome {
        Outcome::Received(deliveries) => Some(deliveries),
        _ => None,
    });
    received.flatten().collect()
}

/// A partition whose journal takes batches of so many bytes.
fn small_journal(batch_bytes_max: usize) -> (MemoryStore, Partition<MemoryStore>) {
    let store = MemoryStore::default();
    store.set_faults(Faults { batch_bytes_max: Some(batch_bytes_max), ..Faults::default() });
    let partition = Partition::open(store.another(), Options::default()).unwrap();
    (store, partition)
}

#[test]
fn what_the_journal_would_refuse_is_refused_alone_and_the_partition_goes_on() {
    let (store, mut partition) = small_journal(4_096);
    let commands = vec![
        configure(queue(0), Config::default()),
        send(queue(0), "a", 3_000),
        send(queue(0), "too large", 5_000),
        send(queue(0), "b", 3_000),
    ];
    let outcomes = call(&mut partition, 0, commands);
    let is_too_large = |invalid: &Invalid| matches!(invalid, Invalid::TooLarge { max: 4_096, .. });
    assert!(matches!(outcomes[1], Outcome::Sent(Answer::Accepted { .. })));
    assert!(
        matches!(&outcomes[2], Outcome::Sent(Answer::Invalid(invalid)) if is_too_large(invalid))
    );
    assert!(matches!(outcomes[3], Outcome::Sent(Answer::Accepted { .. })));
    let delivered = deliveries(call(&mut partition, 1, vec![receive(queue(0), 10)]));
    let settles = vec![done(delivered[0].lease, 5_000), done(delivered[1].lease, 3_000)];
    let outcomes = call(&mut partition, 2, settles);
    let Outcome::Settled(Settled::Invalid(invalid)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(is_too_large(invalid), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Settled(Settled::Ok { .. })), "{outcomes:?}");

    let mut partition = Partition::open(store.crash(), Options::default()).unwrap();
    let again = vec![send(queue(0), "a", 3_000), send(queue(0), "b", 3_000)];
    let outcomes = call(&mut partition, 3, again);
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::InFlight(_))), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Sent(Answer::Done(_))), "{outcomes:?}");
}

#[test]
fn leases_of_many_queues_that_end_at_once_fit_into_the_journal() {
    let (store, mut partition) = small_journal(4_096);
    let config = Config { lease_ms: 1_000, ..Config::default() };
    for number in 0..30 {
        let mut commands = vec![configure(queue(number), config.clone())];
        commands.extend((0..20).map(|key| send(queue(number), &key.to_string(), 10)));
        commands.push(receive(queue(number), 20));
        assert_eq!(deliveries(call(&mut partition, 0, commands)).len(), 20);
    }
    let store = store.crash();
    store.set_faults(Faults { batch_bytes_max: Some(4_096), ..Faults::default() });
    let mut partition = Partition::open(store, Options::default()).unwrap();
    let leased = |partition: &Partition<MemoryStore>| {
        partition.machine().queues().map(|(_, view)| view.stats.leased).sum::<u64>()
    };
    assert_eq!(leased(&partition), 600);
    let mut ticks = 0;
    while leased(&partition) > 0 {
        ticks += 1;
        assert!(ticks < 600, "{} are left", leased(&partition));
        call(&mut partition, 10_000, Vec::new());
    }
    assert!(ticks > 1, "one tick does not do all of it");
}

/// A partition with `keys` finished keys in its rows, each with a result of `bytes`.
fn finished(options: Options, keys: usize, bytes: usize) -> Partition<MemoryStore> {
    let mut partition = Partition::open(MemoryStore::default(), options).unwrap();
    call(&mut partition, 0, vec![configure(queue(0), Config::default())]);
    for key in 0..keys {
        let commands = vec![send(queue(0), &key.to_string(), 10), receive(queue(0), 1)];
        let lease = deliveries(call(&mut partition, 0, commands)).remove(0).lease;
        call(&mut partition, 0, vec![done(lease, bytes)]);
    }
    partition.checkpoint().unwrap();
    answers(&mut partition);
    partition
}

#[test]
fn answers_that_take_much_memory_leave_in_parts() {
    let options = Options { answer_bytes: 40_000, ..Options::default() };
    // One key many times, and many keys once.
    for keys in [1, 50] {
        let mut partition = finished(options, keys, 10_000);
        let commands = (0..50).map(|n| send(queue(0), &(n % keys).to_string(), 10)).collect();
        submit(&mut partition, 1, commands);
        assert!(partition.is_busy(), "the rest waits for its turn");
        let later = send(queue(0), "0", 10);
        submit(&mut partition, 2, vec![later]);
        let parts = answers(&mut partition);
        let (last, first) = parts.split_last().unwrap();
        assert!(first.len() >= 10, "{} parts", parts.len());
        for part in &parts {
            let bytes: usize = part.outcomes.iter().map(Outcome::size).sum();
            assert!(bytes <= 50_000, "{bytes} bytes in one part");
        }
        let tickets: Vec<_> = parts.iter().map(|part| (part.ticket, part.more)).collect();
        assert!(tickets.is_sorted_by_key(|(ticket, _)| *ticket), "in the order of submission");
        let ends = parts.iter().filter(|part| !part.more).count();
        assert_eq!((ends, last.outcomes.len()), (2, 1), "{tickets:?}");
        let outcomes: Vec<_> = parts.iter().flat_map(|part| &part.outcomes).collect();
        assert_eq!(outcomes.len(), 51);
        let is_done = |outcome: &&Outcome| matches!(outcome, Outcome::Sent(Answer::Done(_)));
        assert!(outcomes.iter().all(is_done), "every key gets its first answer");
        assert!(!partition.is_busy() && !partition.is_waiting());
    }
}

#[test]
fn leases_that_are_settled_together_come_back_into_memory_in_parts() {
    let options = Options { answer_bytes: 50_000, ..Options::default() };
    let store = MemoryStore::default();
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, 0, vec![configure(queue(0), Config::default())]);
    let sends = (0..100).map(|number| send(queue(0), &number.to_string(), 10_000));
    call(&mut partition, 0, sends.collect());
    let leased = deliveries(call(&mut partition, 0, vec![receive(queue(0), 100)]));
    assert_eq!(leased.len(), 100);
    partition.checkpoint().unwrap();
    drop(partition);
    let mut partition = Partition::open(store.another(), options).unwrap();
    assert_eq!(partition.machine().usage().leases, 100);
    submit(&mut partition, 1, leased.iter().map(|delivery| done(delivery.lease, 0)).collect());
    let parts = answers(&mut partition);
    assert!(parts.len() >= 10, "{} parts for a megabyte", parts.len());
    let outcomes = parts.iter().flat_map(|part| &part.outcomes);
    let settled = outcomes.filter(|said| matches!(said, Outcome::Settled(Settled::Ok { .. })));
    assert_eq!(settled.count(), 100);
    let usage = partition.machine().usage();
    assert_eq!((usage.leases, usage.messages), (0, 0));
}

#[test]
fn a_list_larger_than_a_batch_is_decided_whole_and_in_order() {
    let options = Options { batch_bytes: 1_000, in_flight_bytes: 1_000, ..Options::default() };
    let store = MemoryStore::default();
    let mut partition = Partition::open(store.another(), options).unwrap();
    let mut commands = vec![configure(queue(0), Config::default())];
    commands.extend((0..100).map(|key| send(queue(0), &key.to_string(), 200)));
    commands.push(receive(queue(0), 1_000));
    let outcomes = call(&mut partition, 0, commands);
    assert_eq!(outcomes.len(), 102);
    assert_eq!(deliveries(outcomes).len(), 100, "the receive comes after all sends");
    let mut partition = Partition::open(store.crash(), options).unwrap();
    let again = (0..100).map(|key| send(queue(0), &key.to_string(), 200)).collect();
    let outcomes = call(&mut partition, 1, again);
    let is_known = |outcome: &Outcome| matches!(outcome, Outcome::Sent(Answer::InFlight(_)));
    assert!(outcomes.iter().all(is_known), "every part of the batch was journaled");
}

/// A partition with little memory.
fn small_memory() -> (MemoryStore, Partition<MemoryStore>) {
    let store = MemoryStore::default();
    let options = Options { memory_bytes: 1 << 20, ..Options::default() };
    let partition = Partition::open(store.another(), options).unwrap();
    (store, partition)
}

#[test]
fn memory_stays_within_its_budget_whatever_waits() {
    let (_store, mut partition) = small_memory();
    let mut ms = 0;
    let mut run = |partition: &mut Partition<MemoryStore>, commands| {
        ms += 10;
        let outcomes = call(partition, ms, commands);
        partition.check_memory();
        outcomes
    };
    let delayed = Config { delay_ms: 5_000, max_attempts: 3, ..Config::default() };
    run(&mut partition, vec![configure(queue(0), delayed)]);
    run(&mut partition, vec![configure(queue(1), Config::default())]);
    for part in 0..100 {
        let key = |n: usize| format!("{part}-{n}");
        let commands = (0..50).map(|n| send(queue(n % 2), &key(n), 1_000)).collect();
        run(&mut partition, commands);
        let received = deliveries(run(&mut partition, vec![receive(queue(1), 10)]));
        let fail = |delivery: Delivery| {
            let verb = Verb::Fail { error: "e".repeat(4_000), delay_ms: Some(1_000), dead: false };
            Command::Settle(Settle { lease: delivery.lease, verb })
        };
        run(&mut partition, received.into_iter().map(fail).collect());
    }
    // All that was delayed is due at once.
    for _ in 0..50 {
        ms_pass(&mut partition);
        partition.check_memory();
    }
    let usage = partition.machine().usage();
    assert!(usage.head_bytes() <= (1 << 20) / 2, "{usage:?}");
    partition.checkpoint().unwrap();
    answers(&mut partition);
    partition.check_memory();
    let usage = partition.machine().usage();
    assert!(usage.head_bytes() <= (1 << 20) / 4, "{usage:?}");
    let views = partition.machine().queues().map(|(_, view)| view.stats);
    assert_eq!(views.map(|stats| stats.messages()).sum::<u64>(), 5_000, "nothing is lost by it");
}

/// A minute passes.
fn ms_pass(partition: &mut Partition<MemoryStore>) {
    let at = partition.now().plus(60_000);
    partition.submit(Stamp { at, random: 7 }, Vec::new()).unwrap();
    answers(partition);
}

#[test]
fn a_large_budget_is_no_larger_than_what_a_checkpoint_can_address() {
    let store = MemoryStore::default();
    let options = Options { memory_bytes: 1 << 40, ..Options::default() };
    let mut partition = Partition::open(store, options).unwrap();
    let outcomes = call(&mut partition, 0, vec![configure(queue(0), Config::default())]);
    assert!(matches!(outcomes[0], Outcome::Configured { .. }));
}

#[test]
fn a_checkpoint_waits_for_what_earlier_ones_left_to_be_done_in_steps() {
    let mut options = Options { journal_bytes: 1, ..Options::default() };
    options.bounds.index_places = 4;
    let store = MemoryStore::default();
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, 0, vec![configure(queue(0), Config::default())]);
    let keys = (0..3_000).map(|key| send(queue(0), &format!("k{key}"), 1)).collect();
    call(&mut partition, 1, keys);
    let keys = deliveries(call(&mut partition, 2, vec![receive(queue(0), 1_000); 3]));
    let ended = keys.into_iter().map(|delivery| done(delivery.lease, 1)).collect();
    call(&mut partition, 3, ended);
    let (mut begun, mut waited) = (0, 0);
    for ms in 4..200 {
        let may_begin = partition.machine().may_begin_checkpoint();
        let before = store.another().checkpointed().unwrap();
        call(&mut partition, ms, vec![send(queue(0), &format!("more{ms}"), 1)]);
        match store.another().checkpointed().unwrap() > before {
            true => begun += 1,
            // Every batch is a reason for a checkpoint.
            false => waited += usize::from(!may_begin),
        }
    }
    assert!(waited > 20, "{waited}");
    assert!(begun > 5, "{begun}");
}

#[test]
fn callers_wait_while_too_many_bytes_wait_for_the_disk_or_to_be_taken() {
    let in_flight = Options { in_flight_bytes: 10_000, ..Options::default() };
    let answered = Options { answer_bytes: 10_000, ..Options::default() };
    for (options, is_answered) in [(in_flight, false), (answered, true)] {
        let store = MemoryStore::default();
        let mut partition = Partition::open(store.another(), options).unwrap();
        let sends = ["a", "b", "c"].map(|key| send(queue(0), key, 6_000));
        let mut commands = vec![configure(queue(0), Config::default())];
        if is_answered {
            commands.extend(sends.clone());
        }
        call(&mut partition, 0, commands);
        store.set_faults(Faults { held: true, ..Faults::default() });
        for (count, send) in (1..).zip(sends) {
            assert!(!partition.is_busy(), "{count}: {is_answered}");
            let next = if is_answered { receive(queue(0), 1) } else { send };
            submit(&mut partition, count, vec![next]);
            if partition.is_busy() {
                assert_eq!(count, 2, "one more than fits: {is_answered}");
                break;
            }
        }
        assert!(partition.is_busy(), "{is_answered}");
        store.settle().unwrap();
        answers(&mut partition);
        assert!(!partition.is_busy(), "{is_answered}");
    }
}
