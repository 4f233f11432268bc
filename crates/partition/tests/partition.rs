//! What a partition promises beyond the rules: when answers leave, what memory holds, what a
//! restart, a takeover and a backup find.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails should say where")]

use std::collections::BTreeSet;
use std::sync::Arc;

use hapax_core::{
    Answer, Arrival, Bounds, Command, Config, Configure, Content, Delivery, Effect, Emit,
    LeaseName, Order, Outcome, Place, QueueName, Receive, Recipe, Refusal, Relay, SendMessage,
    Settle, Settled, Stamp, Time, Verb,
};
use hapax_partition::{Error, Options, Partition};
use hapax_store::disk::{self, DiskStore, Workers};
use hapax_store::memory::{Faults, MemoryStore};
use hapax_store::{OsVolume, Store};

const START: u64 = 1_700_000_000_000;

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn configure(config: Config) -> Command {
    Command::Configure(Box::new(Configure { queue: queue(), config, if_version: None }))
}

fn send(key: &str, group: Option<&str>) -> Command {
    let content = Content::builder(key).group(group).build(&[b'x'; 100]).unwrap();
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

fn done(lease: LeaseName) -> Command {
    let verb = Verb::Done { result: None, emits: Vec::new() };
    Command::Settle(Settle { lease, verb })
}

fn stamp(ms: u64) -> Stamp {
    Stamp { at: Time(START + ms), random: 7 }
}

/// Submits one batch and takes its answers, which must be there at once.
fn call<S: Store>(partition: &mut Partition<S>, ms: u64, commands: Vec<Command>) -> Vec<Outcome> {
    let ticket = partition.submit(stamp(ms), commands).unwrap();
    loop {
        let answered = partition.poll().unwrap().expect("memory is durable at once");
        if answered.ticket == ticket {
            return answered.outcomes;
        }
    }
}

fn deliveries(outcomes: &[Outcome]) -> Vec<Delivery> {
    let received = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Received(deliveries) => Some(deliveries.clone()),
        _ => None,
    });
    received.flatten().collect()
}

fn open(store: &MemoryStore) -> Partition<MemoryStore> {
    Partition::open(store.another(), Options { seed: 3, ..Options::default() }).unwrap()
}

#[test]
fn d1_nothing_leaves_before_its_batch_is_durable() {
    let store = MemoryStore::default();
    let mut partition = open(&store);
    call(&mut partition, 0, vec![configure(Config::default())]);
    store.set_faults(Faults { held: true, ..Faults::default() });
    partition.submit(stamp(1), vec![send("k", None)]).unwrap();
    partition.submit(stamp(2), vec![send("k", None)]).unwrap();
    partition.submit(stamp(3), vec![receive(1)]).unwrap();
    assert!(partition.poll().unwrap().is_none(), "not an accepted, a duplicate or a delivery");
    store.settle().unwrap();
    let mut outcomes = Vec::new();
    while let Some(answered) = partition.poll().unwrap() {
        outcomes.extend(answered.outcomes);
    }
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::Accepted { .. })));
    assert!(matches!(outcomes[1], Outcome::Sent(Answer::InFlight(_))));
    assert_eq!(deliveries(&outcomes).len(), 1);
}

#[test]
fn d1_a_duplicates_answer_waits_for_the_message_it_speaks_of() {
    let store = MemoryStore::default();
    let mut partition = open(&store);
    call(&mut partition, 0, vec![configure(Config::default())]);
    store.set_faults(Faults { held: true, ..Faults::default() });
    partition.submit(stamp(1), vec![send("k", None)]).unwrap();
    // This batch decides nothing and has no record of its own.
    partition.submit(stamp(2), vec![send("k", None)]).unwrap();
    assert!(partition.poll().unwrap().is_none());
    let store = store.crash();
    let mut partition = open(&store);
    let outcomes = call(&mut partition, 3, vec![send("k", None)]);
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::Accepted { .. })), "the first was lost");
}

/// Leases and settles, some of each kept for later, and returns the fences in their order.
fn churn<S: Store>(partition: &mut Partition<S>, from: u64, kept: &mut Vec<LeaseName>) -> Vec<u64> {
    let mut fences = Vec::new();
    for round in from..from + 40 {
        let keys = [format!("k{round}"), format!("l{round}")];
        let sends = keys.iter().map(|key| send(key, None)).collect();
        let mut outcomes = drive(partition, round * 10, sends);
        outcomes.extend(drive(partition, round * 10 + 1, vec![receive(2), receive(2)]));
        let leased = deliveries(&outcomes);
        fences.extend(leased.iter().map(|delivery| delivery.lease.fence.0));
        let [settled, waits] = leased.as_slice() else { unreachable!("two were sent") };
        kept.push(waits.lease);
        let outcomes = drive(partition, round * 10 + 2, vec![done(settled.lease)]);
        let is_ok = |outcome| matches!(outcome, &Outcome::Settled(Settled::Ok { .. }));
        assert!(outcomes.iter().all(is_ok), "{outcomes:?}");
        if round % 8 == 0 {
            partition.checkpoint().unwrap();
        }
    }
    fences
}

/// Submits a batch and polls until all is answered, as long as that takes.
fn drive<S: Store>(partition: &mut Partition<S>, ms: u64, commands: Vec<Command>) -> Vec<Outcome> {
    partition.submit(stamp(ms), commands).unwrap();
    let mut outcomes = Vec::new();
    while partition.is_waiting() {
        match partition.poll().unwrap() {
            Some(answered) => outcomes.extend(answered.outcomes),
            None => std::thread::yield_now(),
        }
    }
    outcomes
}

fn raises_epochs<S: Store>(open: &mut dyn FnMut(Options) -> S) {
    let bounds = Bounds { fences: 6, ..Bounds::default() };
    let options = Options { seed: 3, bounds, ..Options::default() };
    let mut partition = Partition::open(open(options), options).unwrap();
    let first = partition.epoch();
    drive(&mut partition, 0, vec![configure(Config::default())]);
    let mut kept = Vec::new();
    let (mut fences, mut round) = (Vec::new(), 1);
    // A checkpoint that takes long puts it off.
    while partition.epoch() <= first + 3 {
        assert!(round < 2_000, "leases in epochs of 6: {}", partition.epoch());
        fences.extend(churn(&mut partition, round, &mut kept));
        round += 40;
    }
    assert!(kept.iter().all(|lease| partition.gave(lease.fence)));
    // A new owner is above them all, and leases of every epoch settle.
    let last = partition.epoch();
    drop(partition.close().unwrap());
    let mut partition = Partition::open(open(options), options).unwrap();
    assert!(partition.epoch() > last);
    assert!(!kept.iter().any(|lease| partition.gave(lease.fence)));
    fences.extend(churn(&mut partition, round + 10, &mut kept));
    assert!(fences.is_sorted_by(|a, b| a < b), "fences grow: {fences:?}");
    let settles = kept.iter().map(|lease| done(*lease)).collect();
    let outcomes = drive(&mut partition, (round + 60) * 10, settles);
    assert_eq!(outcomes.len(), kept.len());
    let is_ok = |outcome: &Outcome| matches!(outcome, Outcome::Settled(Settled::Ok { .. }));
    assert!(outcomes.iter().all(is_ok), "{outcomes:?}");
}

#[test]
fn an_epoch_is_raised_before_its_fences_end() {
    let store = MemoryStore::default();
    raises_epochs(&mut |_| store.another());
    let directory = tempfile::tempdir().unwrap();
    raises_epochs(&mut |_| {
        let wake = Arc::new(|| {});
        DiskStore::open_threaded(directory.path(), disk::Options::default(), wake).unwrap()
    });
}

#[test]
fn an_epoch_is_raised_under_load_that_never_pauses() {
    let store = MemoryStore::default();
    let bounds = Bounds { fences: 6, ..Bounds::default() };
    let options = Options { seed: 3, bounds, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, 0, vec![configure(Config::default())]);
    store.set_faults(Faults { held: true, ..Faults::default() });
    let (first, mut fences) = (partition.epoch(), Vec::new());
    for round in 1..200 {
        // As a writer does: more is submitted as long as there is room for it.
        while !partition.is_busy() {
            let key = format!("k{}", partition.next_deadline().map_or(0, |at| at.0) + round);
            let command = vec![send(&format!("{key}-{}", fences.len()), None), receive(5)];
            partition.submit(stamp(round), command).unwrap();
        }
        store.settle().unwrap();
        while let Some(answered) = partition.poll().unwrap() {
            let leases = deliveries(&answered.outcomes);
            fences.extend(leases.iter().map(|delivery| delivery.lease.fence.0));
        }
    }
    assert!(partition.epoch() > first + 10, "{} after {first}", partition.epoch());
    assert!(fences.len() > 100 && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn d2_after_a_failure_nothing_leaves_and_a_restart_recovers() {
    for fault in [
        Faults { failing_append: Some(1), ..Faults::default() },
        Faults { failing_sync: Some(1), held: true, ..Faults::default() },
    ] {
        let store = MemoryStore::default();
        let mut partition = open(&store);
        call(&mut partition, 0, vec![configure(Config::default()), send("old", None)]);
        store.set_faults(fault);
        let submitted = partition.submit(stamp(1), vec![send("new", None)]);
        let settled = store.settle();
        assert!(submitted.is_err() || settled.is_err(), "the fault struck");
        assert!(partition.poll().is_err());
        assert!(matches!(partition.poll(), Err(Error::Stopped(_))), "and it stays stopped");
        assert!(partition.submit(stamp(2), vec![send("later", None)]).is_err());
        let store = store.crash();
        let mut partition = open(&store);
        let outcomes = call(&mut partition, 3, vec![send("old", None), send("new", None)]);
        assert!(matches!(outcomes[0], Outcome::Sent(Answer::InFlight(_))), "{outcomes:?}");
        assert!(matches!(outcomes[1], Outcome::Sent(Answer::Accepted { .. })), "{outcomes:?}");
    }
}

#[test]
fn d3_a_new_owner_tells_no_time_before_one_that_was_told() {
    let store = MemoryStore::default();
    let mut partition = open(&store);
    call(&mut partition, 0, vec![configure(Config::default())]);
    let mut told = partition.now();
    for ms in [400, 999, 1_500, 5_000, 5_900, 5_950] {
        call(&mut partition, ms, vec![Command::Show(queue())]); // Decides nothing.
        told = told.max(partition.now());
        partition = open(&store);
        assert!(partition.now() >= told, "told {told:?}, but begins {:?}", partition.now());
    }
}

#[test]
fn k2_a_settle_too_large_for_a_batch_is_refused_before_anything_changes() {
    let store = MemoryStore::default();
    let mut partition = open(&store);
    let outcomes =
        call(&mut partition, 0, vec![configure(Config::default()), send("k", None), receive(1)]);
    let lease = deliveries(&outcomes)[0].lease;
    let emits = (0..40).map(|number| {
        let content = Content::builder("").build(&vec![0; 1_000_000]).unwrap();
        Emit::new(queue(), &format!("e{number}"), content)
    });
    let verb = Verb::Done { result: None, emits: emits.collect() };
    let settle = Command::Settle(Settle { lease, verb });
    let outcomes = call(&mut partition, 1, vec![settle, done(lease)]);
    assert!(matches!(outcomes[0], Outcome::Settled(Settled::Invalid(_))), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Settled(Settled::Ok { place: Place::Done, .. })));
}

/// The emits that are to be handed over by now.
fn relays<S: Store>(partition: &mut Partition<S>, ms: u64, commands: Vec<Command>) -> Vec<Relay> {
    partition.submit(stamp(ms), commands).unwrap();
    let answers = std::iter::from_fn(|| partition.poll().unwrap());
    let effects = answers.flat_map(|answered| answered.effects);
    let relays = effects.filter_map(|effect| match effect {
        Effect::Relay(relay) => Some(*relay),
        _ => None,
    });
    relays.collect()
}

#[test]
fn l3_an_emit_that_waits_to_be_tried_again_is_handed_over_once_by_a_start() {
    let store = MemoryStore::default();
    let mut partition = open(&store);
    let first = vec![configure(Config::default()), send("k", None), receive(1)];
    let delivery = deliveries(&call(&mut partition, 0, first)).remove(0);
    let content = Content::builder("").build(b"next").unwrap();
    let emits = vec![Emit::new(queue(), "next", content)];
    let verb = Verb::Done { result: None, emits };
    let done = Command::Settle(Settle { lease: delivery.lease, verb });
    let handed = relays(&mut partition, 1, vec![done]);
    let id = handed.first().map(|relay| relay.id).unwrap();
    let later = Command::Relayed { id, arrival: Arrival::Later };
    assert_eq!(relays(&mut partition, 2, vec![later.clone()]).len(), 0);

    let store = store.crash();
    let mut partition = open(&store);
    assert_eq!(relays(&mut partition, 3, Vec::new()).len(), 1, "by the start");
    let hour = 3_600_000;
    assert_eq!(relays(&mut partition, hour, Vec::new()).len(), 0, "until its answer is there");
    assert_eq!(relays(&mut partition, hour, vec![later]).len(), 0);
    assert_eq!(relays(&mut partition, 2 * hour, Vec::new()).len(), 1, "it is tried again");
}

#[test]
fn a7_a_stopped_owner_that_wakes_up_can_answer_nothing() {
    let store = MemoryStore::default();
    let mut zombie = open(&store);
    call(&mut zombie, 0, vec![configure(Config::default()), send("k", None)]);
    let mut owner = open(&store);
    assert!(owner.epoch() > zombie.epoch());
    let late = zombie.submit(stamp(1), vec![send("late", None)]);
    assert!(matches!(late, Err(Error::Store(hapax_store::Error::Fenced { .. }))), "{late:?}");
    assert!(zombie.poll().is_err());
    let outcomes = call(&mut owner, 2, vec![send("k", None), send("late", None)]);
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::InFlight(_))));
    assert!(matches!(outcomes[1], Outcome::Sent(Answer::Accepted { .. })));
}

#[test]
fn callers_are_held_back_while_too_many_batches_are_under_way() {
    let store = MemoryStore::default();
    let mut partition = open(&store);
    call(&mut partition, 0, vec![configure(Config::default())]);
    store.set_faults(Faults { held: true, ..Faults::default() });
    let mut submitted = 0;
    while !partition.is_busy() {
        submitted += 1;
        partition.submit(stamp(submitted), vec![send(&submitted.to_string(), None)]).unwrap();
        assert!(submitted < 100);
    }
    store.settle().unwrap();
    while partition.poll().unwrap().is_some() {}
    assert!(!partition.is_busy() && !partition.is_waiting());
}

/// Sends many messages under a small budget, then drains them: in order, each once.
fn backlog(config: Config, count: u64, group_of: impl Fn(u64) -> Option<String>, delay: bool) {
    const BUDGET: usize = 4 * 1_024 * 1_024;
    let store = MemoryStore::default();
    let options = Options { memory_bytes: BUDGET, seed: 3, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, 0, vec![configure(config)]);
    let mut most = 0;
    for first in (0..count).step_by(100) {
        let sends = (first..first + 100).map(|n| send(&n.to_string(), group_of(n).as_deref()));
        call(&mut partition, first / 100, sends.collect());
        let usage = partition.machine().usage();
        most = most.max(usage.message_bytes + usage.unwritten_bytes);
    }
    assert!(most < BUDGET, "{most} bytes for {count} messages");
    drop(partition);
    let mut partition = Partition::open(store.another(), options).unwrap();
    let usage = partition.machine().usage();
    assert!(usage.message_bytes < BUDGET / 2, "a new owner loads the head alone: {usage:?}");
    let mut seen = BTreeSet::new();
    let mut at = if delay { 3_700_000 } else { 100_000 };
    let mut idle = 0;
    while (seen.len() as u64) < count {
        at += 1;
        let received = deliveries(&call(&mut partition, at, vec![receive(100)]));
        idle = if received.is_empty() { idle + 1 } else { 0 };
        assert!(idle < 1_000, "{} of {count} came", seen.len());
        for delivery in &received {
            let number: u64 = delivery.content.key().parse().unwrap();
            assert!(seen.insert(number), "{number} came twice");
            let group = group_of(number);
            let older = (0..number).rev().take(2_000).find(|n| group_of(*n) == group);
            let in_order = group.is_none() || older.is_none_or(|older| seen.contains(&older));
            assert!(in_order, "{number} came before an older one of its group");
        }
        let settles = received.iter().map(|delivery| done(delivery.lease)).collect();
        call(&mut partition, at, settles);
    }
}

#[test]
fn memory_is_bounded_whatever_the_backlog() {
    backlog(Config::default(), 30_000, |_| None, false);
}

#[test]
fn memory_is_bounded_whatever_the_backlog_of_groups() {
    let config = Config { order: Order::Group, ..Config::default() };
    backlog(config.clone(), 20_000, |number| Some((number % 7).to_string()), false);
    backlog(config, 20_000, |number| Some((number / 2).to_string()), false);
}

#[test]
fn memory_is_bounded_whatever_waits_for_its_time() {
    let config = Config { delay_ms: 3_600_000, ..Config::default() };
    backlog(config, 20_000, |_| None, true);
}

#[test]
fn what_could_not_leave_memory_leaves_it_with_the_next_checkpoint() {
    let store = MemoryStore::default();
    let options = Options { memory_bytes: 1 << 20, seed: 3, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, 0, vec![configure(Config::default())]);
    let heads_max = options.memory_bytes / 4;
    let mut sent = 0;
    while partition.machine().usage().head_bytes() < heads_max * 3 / 2 {
        call(&mut partition, sent, vec![send(&sent.to_string(), None)]);
        sent += 1;
    }
    assert!(!partition.is_checkpointing(), "too little for a checkpoint, and no row to leave to");
    partition.checkpoint().unwrap();
    while partition.poll().unwrap().is_some() || partition.is_checkpointing() {}
    let usage = partition.machine().usage();
    assert!(usage.head_bytes() <= heads_max, "{usage:?}");
    let received = deliveries(&call(&mut partition, sent, vec![receive(1_000)]));
    assert!(!received.is_empty(), "they come back when they are needed");
}

/// Large messages that are in the rows alone, and the partition that knows them.
fn large_backlog(count: u64, bytes: usize) -> (Partition<MemoryStore>, Options) {
    let store = MemoryStore::default();
    let options = Options { memory_bytes: 16 << 20, seed: 3, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, 0, vec![configure(Config::default())]);
    let body = vec![b'x'; bytes];
    for number in 0..count {
        let content = Content::builder(&number.to_string()).build(&body).unwrap();
        call(
            &mut partition,
            number,
            vec![Command::Send(SendMessage::new(&Recipe::First, queue(), content))],
        );
    }
    drop(partition);
    let partition = Partition::open(store.another(), options).unwrap();
    assert!(partition.machine().usage().message_bytes < options.memory_bytes / 2);
    (partition, options)
}

#[test]
fn memory_is_bounded_whatever_a_purge_takes_away() {
    let (mut partition, options) = large_backlog(1_000, 100 * 1_024);
    let purge = Command::Purge(hapax_core::Purge { queue: queue(), keys: false });
    let mut most = 0;
    let mut at = 100_000;
    call(&mut partition, at, vec![purge]);
    while partition.next_deadline().is_some_and(|due| due <= Time(START + at)) {
        call(&mut partition, at, Vec::new());
        most = most.max(partition.machine().usage().message_bytes);
        at += 1;
        assert!(at < 110_000, "the purge comes to an end");
    }
    assert!(most < options.memory_bytes, "{most} bytes were in memory at once");
    let left = deliveries(&call(&mut partition, at, vec![receive(1)]));
    assert!(left.is_empty(), "everything is gone");
}

#[test]
fn memory_is_bounded_whatever_the_size_of_what_is_received_and_browsed() {
    let (mut partition, options) = large_backlog(400, 256 * 1_024);
    let browse =
        hapax_core::Browse { queue: queue(), place: Place::Ready, cursor: None, limit: 1_000 };
    let outcomes = call(&mut partition, 100_000, vec![Command::Browse(browse)]);
    let Outcome::Messages { messages, next } = &outcomes[0] else { panic!("{outcomes:?}") };
    assert!(!messages.is_empty() && next.is_some(), "a part of them, and where to go on");
    assert!(partition.machine().usage().message_bytes < options.memory_bytes);
    let received = deliveries(&call(&mut partition, 100_001, vec![receive(1)]));
    assert_eq!(received.len(), 1);
    assert!(partition.machine().usage().message_bytes < options.memory_bytes);
}

/// A partition on disk whose workers this test steps.
struct OnDisk {
    partition: Partition<DiskStore>,
    workers: Workers,
}

impl OnDisk {
    fn open(path: &std::path::Path) -> Self {
        let mut options = disk::Options { identity: 5, ..disk::Options::default() };
        options.journal.segment_bytes = 1_024 * 1_024;
        options.journal.free_bytes_min = 0;
        let volume = Arc::new(OsVolume::create(path).unwrap());
        let (store, workers) = DiskStore::open(volume, options, Arc::new(|| {})).unwrap();
        let partition = Partition::open(store, Options { seed: 3, ..Options::default() }).unwrap();
        Self { partition, workers }
    }

    fn call(&mut self, ms: u64, commands: Vec<Command>) -> Vec<Outcome> {
        let ticket = self.partition.submit(stamp(ms), commands).unwrap();
        loop {
            while self.workers.step().unwrap() {}
            match self.partition.poll().unwrap() {
                Some(answered) if answered.ticket == ticket => return answered.outcomes,
                _ => {}
            }
        }
    }

    /// Cuts a checkpoint and waits until it is written.
    fn checkpoint(&mut self, ms: u64) {
        self.partition.checkpoint().unwrap();
        while self.partition.is_checkpointing() {
            self.call(ms, vec![]);
        }
    }

    /// A whole life.
    fn live(&mut self, ms: u64, key: &str) {
        self.call(ms, vec![send(key, None)]);
        let received = deliveries(&self.call(ms, vec![receive(1)]));
        self.call(ms, received.iter().map(|delivery| done(delivery.lease)).collect());
    }
}

#[test]
fn k7_expired_keys_leave_the_disk_although_nothing_else_happens() {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = OnDisk::open(directory.path());
    let config =
        Config { retention_ms: Some(10_000), retry_horizon_ms: 1_000, ..Config::default() };
    disk.call(0, vec![configure(config)]);
    disk.live(1, "k");
    disk.partition.checkpoint().unwrap();
    disk.call(2, vec![]);
    let rows = |disk: &OnDisk| disk.partition.store().archive().stats();
    assert_eq!(rows(&disk).buckets_dropped, 0);
    let mut at = 2;
    while rows(&disk).buckets_dropped == 0 {
        at += 10_000;
        assert!(at < 600_000, "an idle partition cleans up: {:?}", rows(&disk));
        disk.call(at, vec![]);
    }
}

#[test]
fn leases_end_after_a_restart_whatever_their_bytes() {
    let store = MemoryStore::default();
    let options = Options { seed: 3, range_bytes: 500, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    let sends = (0..20).map(|number| send(&number.to_string(), None));
    let commands = [configure(Config { lease_ms: 30_000, ..Config::default() })];
    call(&mut partition, 0, commands.into_iter().chain(sends).collect());
    assert_eq!(deliveries(&call(&mut partition, 1, vec![receive(100)])).len(), 20);
    partition.checkpoint().unwrap();
    drop(partition);
    let mut partition = Partition::open(store.another(), options).unwrap();
    assert_eq!(partition.machine().missing_leases(), None);
    let mut came = BTreeSet::new();
    for minute in 1..60 {
        for delivery in deliveries(&call(&mut partition, minute * 60_000, vec![receive(100)])) {
            came.insert(delivery.content.key().to_owned());
        }
    }
    assert_eq!(came.len(), 20, "every lease ends: {came:?}");
}

#[test]
fn rows_are_read_by_name_however_far_apart_they_are() {
    for rows_passed in [0, 3, 64] {
        let store = MemoryStore::default();
        let options = Options { seed: 3, rows_passed, ..Options::default() };
        let mut partition = Partition::open(store.another(), options).unwrap();
        let sends = (0..300).map(|number| send(&number.to_string(), None));
        let commands = [configure(Config::default())].into_iter().chain(sends);
        call(&mut partition, 0, commands.collect());
        let leased = deliveries(&call(&mut partition, 1, vec![receive(300)]));
        partition.checkpoint().unwrap();
        drop(partition);
        let mut partition = Partition::open(store.another(), options).unwrap();
        // Neighbours, the next but three, one far away, the last; in one batch, and not in order.
        let wanted = [299, 0, 1, 5, 100, 101, 200];
        let settle = |number: &usize| done(leased[*number].lease);
        let answers = call(&mut partition, 2, wanted.iter().map(settle).collect());
        let is_done = |outcome: &Outcome| matches!(outcome, Outcome::Settled(Settled::Ok { .. }));
        assert!(answers.iter().all(is_done), "{answers:?}");
        assert_eq!(partition.machine().usage().messages, 0, "nothing else is read");
        assert_eq!(partition.machine().usage().leases, 300 - wanted.len());
    }
}

#[test]
fn rows_that_are_far_apart_are_read_without_what_was_deleted_between_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = OnDisk::open(directory.path());
    disk.call(0, vec![configure(Config::default())]);
    let mut leased = Vec::new();
    for round in 0..6 {
        let sends = (0..1_000).map(|number| send(&format!("{round}-{number}"), None));
        disk.call(1, sends.collect());
        leased.extend(deliveries(&disk.call(1, vec![receive(1_000)])));
    }
    // So many wait behind them that what is deleted is not worth a merge.
    for round in 6..30 {
        let sends = (0..1_000).map(|number| send(&format!("{round}-{number}"), None));
        disk.call(1, sends.collect());
    }
    disk.checkpoint(2);
    let (first, last) = (leased.remove(0), leased.pop().unwrap());
    disk.call(3, leased.iter().map(|delivery| done(delivery.lease)).collect());
    disk.checkpoint(4);
    drop(disk);
    let mut disk = OnDisk::open(directory.path());
    assert_eq!(disk.partition.machine().usage().leases, 2);
    let blocks = |disk: &OnDisk| disk.partition.store().archive().stats().blocks_read;
    disk.call(5, Vec::new()); // Reads the oldest ready message.
    let before = blocks(&disk);
    let answers = disk.call(5, vec![done(first.lease), done(last.lease)]);
    let is_done = |outcome: &Outcome| matches!(outcome, Outcome::Settled(Settled::Ok { .. }));
    assert!(answers.iter().all(is_done), "{answers:?}");
    let read = blocks(&disk) - before;
    assert!(read <= 8, "two leases, and {read} blocks were read");
}

#[test]
fn every_part_of_a_large_batch_is_journaled() {
    let store = MemoryStore::default();
    let options = Options { seed: 3, batch_bytes: 500, gather_bytes: 300, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    let sends = || (0..50).map(|number| send(&number.to_string(), None));
    call(&mut partition, 0, [configure(Config::default())].into_iter().chain(sends()).collect());
    let mut partition = Partition::open(store.crash(), options).unwrap();
    for outcome in call(&mut partition, 1, sends().collect()) {
        assert!(matches!(outcome, Outcome::Sent(Answer::InFlight(_))), "{outcome:?}");
    }
    assert_eq!(deliveries(&call(&mut partition, 2, vec![receive(100)])).len(), 50);
}

#[test]
fn a_replayed_journal_counts_until_it_is_checkpointed() {
    let by_bytes = Options { seed: 3, journal_bytes: 20_000, ..Options::default() };
    let by_decisions = Options { seed: 3, journal_decisions: 80, ..Options::default() };
    for options in [by_bytes, by_decisions] {
        let store = MemoryStore::default();
        let mut partition = Partition::open(store.another(), options).unwrap();
        call(&mut partition, 0, vec![configure(Config::default())]);
        let mut lives = 0;
        while partition.store_mut().checkpointed().unwrap() == 0 {
            lives += 1;
            assert!(lives < 20, "recovery gets longer with every crash");
            partition = Partition::open(store.another(), options).unwrap();
            let sends = (0..30).map(|number| send(&format!("{lives}-{number}"), None));
            call(&mut partition, lives, sends.collect());
        }
        assert!(lives > 1, "no single life wrote enough for it");
    }
}

#[test]
fn small_decisions_are_checkpointed_by_their_number() {
    let options = Options { seed: 3, journal_decisions: 100, ..Options::default() };
    let mut partition = Partition::open(MemoryStore::default(), options).unwrap();
    call(&mut partition, 0, vec![configure(Config::default())]);
    let mut checkpoints = 0;
    let mut last = 0;
    for round in 1..=20 {
        let sends = (0..30).map(|number| send(&format!("{round}-{number}"), None));
        call(&mut partition, round, sends.collect());
        let through = partition.store_mut().checkpointed().unwrap();
        checkpoints += usize::from(through > last);
        last = through;
    }
    assert!((4..=6).contains(&checkpoints), "600 decisions, and {checkpoints} checkpoints");
}

#[test]
fn a_deleted_queue_stays_deleted_after_a_crash_and_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = OnDisk::open(directory.path());
    disk.call(0, vec![configure(Config::default())]);
    disk.live(1, "k");
    disk.partition.checkpoint().unwrap();
    disk.call(2, vec![]);
    disk.call(3, vec![Command::Delete(queue())]);
    disk.call(4, vec![]);
    drop(disk);
    let mut disk = OnDisk::open(directory.path());
    disk.partition.checkpoint().unwrap();
    disk.call(5, vec![]);
    drop(disk);
    let mut disk = OnDisk::open(directory.path());
    let outcomes = disk.call(6, vec![Command::Show(queue())]);
    assert_eq!(outcomes, [Outcome::Refused(Refusal::NoSuchQueue)]);
    disk.call(7, vec![configure(Config::default())]);
    let outcomes = disk.call(8, vec![send("k", None)]);
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::Accepted { .. })), "{outcomes:?}");
}

#[test]
fn k2_a_message_sent_in_the_batch_that_makes_its_queue_is_found_on_the_disk() {
    let hours = |hours: u64| Config { retention_ms: Some(hours * 3_600_000), ..Config::default() };
    let forever = Config { retention_ms: None, ..Config::default() };
    for config in [hours(48), hours(100), forever] {
        let directory = tempfile::tempdir().unwrap();
        let mut disk = OnDisk::open(directory.path());
        disk.call(0, vec![configure(hours(48))]);
        disk.live(1, "k");
        disk.partition.checkpoint().unwrap();
        disk.call(2, vec![Command::Delete(queue())]);
        disk.call(3, vec![]);
        let outcomes = disk.call(4, vec![configure(config), send("k", None)]);
        assert!(matches!(outcomes[1], Outcome::Sent(Answer::Accepted { .. })), "{outcomes:?}");
        for at in [10, 20] {
            disk.partition.checkpoint().unwrap();
            disk.call(at, vec![]);
            drop(disk);
            disk = OnDisk::open(directory.path());
            let again = disk.call(at + 1, vec![send("k", None)]);
            let is_right = match at {
                10 => matches!(again[0], Outcome::Sent(Answer::InFlight(_))),
                _ => matches!(again[0], Outcome::Sent(Answer::Done(_))),
            };
            assert!(is_right, "at {at}: {again:?}");
            let received = deliveries(&disk.call(at + 2, vec![receive(10)]));
            assert_eq!(received.len(), if at == 10 { 1 } else { 0 });
            disk.call(at + 3, received.iter().map(|delivery| done(delivery.lease)).collect());
        }
    }
}

#[test]
fn a20_a_backup_taken_while_work_goes_on_restores_to_a_prefix_with_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let mut disk = OnDisk::open(directory.path());
    disk.call(0, vec![configure(Config::default())]);
    for number in 0..20 {
        disk.live(number, &format!("before-{number}"));
        if number == 10 {
            disk.partition.checkpoint().unwrap();
        }
    }
    let source = disk.partition.store().source();
    let target = OsVolume::open(copy.path()).unwrap();
    let summary = disk::backup(&source, &target, &mut |_, _| {}).unwrap();
    assert!(summary.damages == 0 && summary.last > 0);
    disk.live(30, "after");
    let mut restored = OnDisk::open(copy.path());
    let sends = (0..20).map(|number| send(&format!("before-{number}"), None)).collect();
    for outcome in restored.call(40, sends) {
        assert!(matches!(outcome, Outcome::Sent(Answer::Done(_))), "{outcome:?}");
    }
    let outcomes = restored.call(41, vec![send("after", None)]);
    assert!(matches!(outcomes[0], Outcome::Sent(Answer::Accepted { .. })), "{outcomes:?}");
}

#[test]
fn opening_a_damaged_directory_says_what_is_damaged_where() {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = OnDisk::open(directory.path());
    disk.call(0, vec![configure(Config::default())]);
    disk.live(1, "k");
    let OnDisk { partition, workers } = disk;
    let mut workers = workers;
    // Closing waits for its workers, so a thread steps them meanwhile.
    let stepping = std::thread::spawn(move || while workers.step().unwrap_or(false) {});
    let _ = partition.close();
    stepping.join().unwrap();
    let segment = directory.path().join("journal-00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let place = bytes.windows(4).position(|window| window == b"xxxx").unwrap();
    bytes[place] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let volume = Arc::new(OsVolume::open(directory.path()).unwrap());
    let opened = DiskStore::open(volume, disk::Options::default(), Arc::new(|| {}));
    let Err(error) = opened else { panic!("damage is refused") };
    let error = error.to_string();
    assert!(error.contains("journal-00000001.seg is damaged at byte"), "{error}");
}
