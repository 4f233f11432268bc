//! What one batch does is bounded, however many messages and rows there are: counted, not timed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

use hapax_core::{
    Answer, Browse, Command, Config, Configure, Content, Delivery, Effect, KeyName, LeaseName,
    Order, Outcome, Place, Purge, QueueName, Receive, Recipe, Redrive, Replay, Select, SendMessage,
    Settle, Stamp, Time, Verb,
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
    let content = Content::builder(key).build(b"body").unwrap();
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

fn settle(lease: LeaseName, verb: Verb) -> Command {
    Command::Settle(Settle { lease, verb })
}

fn done(delivery: &Delivery) -> Command {
    settle(delivery.lease, Verb::Done { result: None, emits: Vec::new() })
}

fn dead(delivery: &Delivery) -> Command {
    let verb = Verb::Fail { error: "e".into(), delay_ms: None, dead: true };
    settle(delivery.lease, verb)
}

/// Decides one batch and nothing else.
fn submit(partition: &mut Partition<MemoryStore>, commands: Vec<Command>) {
    partition.submit(Stamp { at: Time(START), random: 7 }, commands).unwrap();
}

fn answers(partition: &mut Partition<MemoryStore>) -> Vec<Answered> {
    std::iter::from_fn(|| partition.poll().unwrap()).collect()
}

fn call(partition: &mut Partition<MemoryStore>, commands: Vec<Command>) -> Vec<Outcome> {
    submit(partition, commands);
    answers(partition).into_iter().flat_map(|answered| answered.outcomes).collect()
}

fn deliveries(outcomes: Vec<Outcome>) -> Vec<Delivery> {
    let received = outcomes.into_iter().filter_map(|outcome| match outcome {
        Outcome::Received(deliveries) => Some(deliveries),
        _ => None,
    });
    received.flatten().collect()
}

/// A checkpoint of everything that was decided.
fn checkpoint(partition: &mut Partition<MemoryStore>) {
    for _ in 0..3 {
        partition.checkpoint().unwrap();
        answers(partition);
    }
    assert!(!partition.is_checkpointing());
}

fn is_due(partition: &Partition<MemoryStore>) -> bool {
    partition.next_deadline().is_some_and(|due| due <= partition.now())
}

/// Whether the only queue that there was is deleted, and nothing is left of it.
fn is_gone(partition: &Partition<MemoryStore>) -> bool {
    let machine = partition.machine();
    machine.queue_name(machine.next_queue() - 1).is_none()
}

const COPIED: usize = 10;
const CHANGED: usize = 100;

/// A checkpoint was begun and is being copied, of so many ready messages.
fn copying(store: &MemoryStore) -> Partition<MemoryStore> {
    let journal_bytes = 100 * 30;
    let options = Options {
        copy_step: COPIED,
        journal_bytes,
        batches_in_flight: 1_000,
        ..Options::default()
    };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, vec![configure()]);
    assert!(!partition.is_checkpointing());
    submit(&mut partition, (0..CHANGED).map(|key| send(&key.to_string())).collect());
    assert!(partition.machine().is_copying());
    partition
}

#[test]
fn a_checkpoint_is_copied_in_steps_which_go_on_without_requests() {
    let store = MemoryStore::default();
    let mut partition = copying(&store);
    for _ in 1..CHANGED / COPIED {
        assert!(partition.machine().is_copying() && is_due(&partition));
        submit(&mut partition, Vec::new());
    }
    submit(&mut partition, Vec::new());
    assert!(!partition.machine().is_copying() && partition.is_checkpointing());
    answers(&mut partition);
    assert!(!partition.is_checkpointing() && !is_due(&partition));
    assert!(store.another().checkpointed().unwrap() > 0);
}

#[test]
fn a_checkpoint_is_copied_whole_where_somebody_waits_for_it() {
    let mut partition = copying(&MemoryStore::default());
    partition.checkpoint().unwrap();
    assert!(!partition.machine().is_copying(), "it was asked for");
}

#[test]
fn a_checkpoint_is_copied_whole_when_memory_is_full() {
    let store = MemoryStore::default();
    store.set_faults(Faults { held: true, ..Faults::default() });
    let options = Options {
        memory_bytes: 256 * 1_024,
        journal_bytes: 100 * 30,
        copy_step: 1,
        batches_in_flight: 1_000,
        ..Options::default()
    };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, vec![configure()]);
    let sends = |from: usize, count: usize| {
        (from..from + count).map(|key| send(&key.to_string())).collect()
    };
    submit(&mut partition, sends(0, CHANGED));
    for batch in 1..CHANGED / 2 {
        assert!(partition.machine().is_copying(), "{batch}");
        submit(&mut partition, sends(batch * CHANGED, CHANGED / 5));
        if partition.is_busy() {
            return assert!(!partition.machine().is_copying(), "everybody waits for it");
        }
    }
    panic!("memory is never full");
}

#[test]
fn k4_a_record_that_is_needed_behind_the_cut_is_not_dropped_with_its_checkpoint() {
    let store = MemoryStore::default();
    let options = Options {
        copy_step: 1,
        journal_bytes: 100 * 30,
        batches_in_flight: 1_000,
        ..Options::default()
    };
    let mut partition = Partition::open(store.another(), options).unwrap();
    let config = Config {
        retention_ms: Some(2_000),
        retry_horizon_ms: 1_000,
        keep_bodies: true,
        ..Config::default()
    };
    let configure = Configure { queue: queue(), config, if_version: None };
    call(&mut partition, vec![Command::Configure(Box::new(configure)), send("again")]);
    let taken = deliveries(call(&mut partition, vec![receive(1)]));
    call(&mut partition, taken.iter().map(done).collect());
    checkpoint(&mut partition);
    submit(&mut partition, (0..CHANGED).map(|key| send(&key.to_string())).collect());
    assert!(partition.machine().is_copying());
    let key = KeyName { queue: queue(), key: "again".into(), group: None };
    let replayed = call(&mut partition, vec![Command::Replay(Replay { key, content: None })]);
    assert!(!matches!(replayed.as_slice(), [Outcome::Refused(_)]), "{replayed:?}");
    // Its retention is over before all of the checkpoint is copied.
    let stamp = Stamp { at: Time(START + 60_000), random: 7 };
    while partition.machine().is_copying() {
        partition.submit(stamp, Vec::new()).unwrap();
    }
    answers(&mut partition);
    assert!(!partition.is_checkpointing());
    drop(partition);
    let mut partition = Partition::open(store.crash(), Options::default()).unwrap();
    let stats = partition.machine().queues().next().unwrap().1.stats;
    assert_eq!(stats.ready as usize, CHANGED + 1, "it is ready again");
    partition.submit(stamp, vec![receive(1_000)]).unwrap();
    let outcomes = answers(&mut partition).into_iter().flat_map(|it| it.outcomes).collect();
    let mut keys = deliveries(outcomes).into_iter().map(|it| it.content.key().to_owned());
    assert!(keys.any(|key| key == "again"));
}

#[test]
fn d1_messages_that_change_while_a_checkpoint_is_copied_are_in_it_as_they_were() {
    for turns in 0..15 {
        let store = MemoryStore::default();
        let mut partition = copying(&store);
        // The tail of the journal is as of the cut what follows.
        let taken = deliveries(call(&mut partition, vec![receive(30)]));
        let (first, rest) = taken.split_at(10);
        let (second, _) = rest.split_at(10);
        let mut commands: Vec<Command> = first.iter().map(done).collect();
        commands.extend(second.iter().map(dead));
        call(&mut partition, commands);
        for turn in 0..turns {
            let again = send(&format!("later{turn}"));
            submit(&mut partition, vec![again]);
        }
        answers(&mut partition);
        // It dies, whatever of the checkpoint is copied.
        drop(partition);
        let mut partition = Partition::open(store.crash(), Options::default()).unwrap();
        let stats = partition.machine().queues().next().unwrap().1.stats;
        assert_eq!((stats.leased, stats.dead, stats.done_total), (10, 10, 10), "{turns} turns");
        assert_eq!(stats.ready, 70 + turns, "{turns} turns");
        let outcomes = call(&mut partition, vec![receive(1_000)]);
        assert_eq!(deliveries(outcomes).len() as u64, 70 + turns);
        let outcomes =
            call(&mut partition, (0..CHANGED).map(|key| send(&key.to_string())).collect());
        let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|it| is(it)).count();
        assert_eq!(count(|it| matches!(it, Outcome::Sent(Answer::Done(_)))), 10);
        assert_eq!(count(|it| matches!(it, Outcome::Sent(Answer::Dead { .. }))), 10);
        assert_eq!(count(|it| matches!(it, Outcome::Sent(Answer::InFlight(_)))), 80);
    }
}

#[test]
fn a_queue_that_is_deleted_and_made_again_while_a_checkpoint_is_copied_is_the_new_one() {
    let store = MemoryStore::default();
    let mut partition = copying(&store);
    submit(&mut partition, vec![Command::Delete(queue()), configure(), send("1"), send("new")]);
    while is_due(&partition) {
        submit(&mut partition, Vec::new());
    }
    answers(&mut partition);
    checkpoint(&mut partition);
    drop(partition);
    let mut partition = Partition::open(store.crash(), Options::default()).unwrap();
    let keys = deliveries(call(&mut partition, vec![receive(1_000)]));
    let keys: Vec<&str> = keys.iter().map(|delivery| delivery.content.key()).collect();
    assert_eq!(keys, ["1", "new"]);
}

const DELETED: usize = 2_000;
/// Deleted rows that one batch passes over.
const PASSED: u64 = 100;

/// A partition just opened, whose rows have `DELETED` deleted ones of messages that ended, and
/// behind them those of one that is ready and one that is dead.
fn emptied(leaves: bool) -> (MemoryStore, Partition<MemoryStore>) {
    let store = MemoryStore::default();
    store.set_faults(Faults { keeps_deleted: true, ..Faults::default() });
    let options = Options { range_bytes: PASSED as usize * 128, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    call(&mut partition, vec![configure()]);
    call(&mut partition, (0..DELETED).map(|key| send(&key.to_string())).collect());
    checkpoint(&mut partition);
    let taken = deliveries(call(&mut partition, vec![receive(1_000), receive(1_000)]));
    assert_eq!(taken.len(), DELETED);
    // Each is dead for a while, so that there are deleted rows among those as well.
    call(&mut partition, taken.iter().map(dead).collect());
    checkpoint(&mut partition);
    call(&mut partition, vec![Command::Purge(Purge { queue: queue(), keys: false })]);
    while is_due(&partition) {
        call(&mut partition, Vec::new());
    }
    if leaves {
        call(&mut partition, vec![send("dead"), send("ready")]);
        let taken = deliveries(call(&mut partition, vec![receive(1)]));
        call(&mut partition, taken.iter().map(dead).collect());
    }
    checkpoint(&mut partition);
    drop(partition);
    let store = store.another();
    let partition = Partition::open(store.another(), options).unwrap();
    (store, partition)
}

/// Calls it until it returns something; no batch may read more rows than it should. Returns what it
/// returned, and how many batches it took.
fn until<T>(
    (store, partition): &mut (MemoryStore, Partition<MemoryStore>),
    mut batch: impl FnMut(&mut Partition<MemoryStore>) -> Option<T>,
) -> (T, usize) {
    for count in 1..1_000 {
        let before = store.rows_shown();
        let found = batch(partition);
        let shown = store.rows_shown() - before;
        assert!(shown <= 2 * PASSED, "batch {count} reads {shown} rows");
        if let Some(found) = found {
            return (found, count);
        }
    }
    panic!("it comes to no end");
}

#[test]
fn a_queue_is_deleted_in_steps_however_many_deleted_rows_it_has() {
    let mut rig = emptied(true);
    submit(&mut rig.1, vec![Command::Delete(queue())]);
    let ((), count) = until(&mut rig, |partition| {
        submit(partition, Vec::new());
        (!is_due(partition)).then_some(())
    });
    assert!(count >= DELETED / PASSED as usize, "{count} batches");
    let (store, mut partition) = rig;
    assert!(is_gone(&partition));
    checkpoint(&mut partition);
    let mut rows = Vec::new();
    let mut store = store.another();
    let read = &mut |key: &[u8], value: Option<&[u8]>| {
        rows.extend(value.map(|_| key.to_vec()));
        true
    };
    store.scan(&[2], &[0xff], read).unwrap();
    assert!(rows.is_empty(), "{rows:?}");
}

#[test]
fn a_queue_without_messages_is_deleted_without_reading_rows() {
    let (store, mut partition) = emptied(false);
    let before = store.rows_shown();
    submit(&mut partition, vec![Command::Delete(queue())]);
    submit(&mut partition, Vec::new());
    assert!(is_gone(&partition));
    assert_eq!(store.rows_shown(), before);
}

#[test]
fn a_purge_and_a_redrive_pass_over_deleted_rows_in_steps() {
    let mut rig = emptied(true);
    let purge = Command::Purge(Purge { queue: queue(), keys: true });
    submit(&mut rig.1, vec![purge]);
    let ((), count) = until(&mut rig, |partition| {
        submit(partition, Vec::new());
        (!is_due(partition)).then_some(())
    });
    // It ends as soon as there is no message left.
    assert!(count >= DELETED / PASSED as usize, "{count} batches");
    let stats = rig.1.machine().queues().next().unwrap().1.stats;
    assert_eq!(stats.messages(), 0);

    let mut rig = emptied(true);
    let redrive = Redrive {
        queue: queue(),
        id: "r".into(),
        select: Select::All,
        per_s: None,
        dry_run: false,
    };
    submit(&mut rig.1, vec![Command::Redrive(redrive)]);
    let ((), count) = until(&mut rig, |partition| {
        submit(partition, Vec::new());
        (!is_due(partition)).then_some(())
    });
    assert!(count >= DELETED / PASSED as usize, "{count} batches");
    let stats = rig.1.machine().queues().next().unwrap().1.stats;
    assert_eq!((stats.ready, stats.dead), (2, 0));
}

/// What a receive takes. If that is nothing, it is woken to try again.
fn taken_or_woken(partition: &mut Partition<MemoryStore>) -> Option<Vec<Delivery>> {
    submit(partition, vec![receive(10)]);
    let answers = answers(partition);
    let is_woken = |effect: &Effect| matches!(effect, Effect::Wake(_));
    let woken = answers.iter().flat_map(|answered| &answered.effects).any(is_woken);
    let outcomes = answers.into_iter().flat_map(|answered| answered.outcomes).collect();
    let taken = deliveries(outcomes);
    assert!(woken || !taken.is_empty(), "it would wait for ever");
    (!taken.is_empty()).then_some(taken)
}

#[test]
fn a_receive_passes_over_deleted_rows_in_steps_and_is_woken_until_it_is_through() {
    let mut rig = emptied(true);
    let (taken, count) = until(&mut rig, taken_or_woken);
    assert!(count >= DELETED / PASSED as usize, "{count} batches");
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].content.key(), "ready");
}

#[test]
fn a_receiver_does_not_wait_for_a_purge_that_passes_over_deleted_rows() {
    let (store, mut partition) = emptied(true);
    let purge = Command::Purge(Purge { queue: queue(), keys: false });
    submit(&mut partition, vec![purge, send("new")]);
    answers(&mut partition);
    for batch in 0.. {
        let shown = store.rows_shown();
        if let Some(taken) = taken_or_woken(&mut partition) {
            assert_eq!(taken[0].content.key(), "new");
            return;
        }
        assert!(batch < 100 && store.rows_shown() > shown, "it reads on");
    }
}

#[test]
fn a_page_of_a_place_passes_over_deleted_rows_in_steps() {
    let mut rig = emptied(true);
    let mut cursor = None;
    let (keys, count) = until(&mut rig, |partition| {
        let browse = Browse { queue: queue(), place: Place::Dead, cursor, limit: 10 };
        let outcome = call(partition, vec![Command::Browse(browse)]).remove(0);
        let Outcome::Messages { messages, next } = outcome else { panic!("{outcome:?}") };
        assert!(next.is_none() || next > cursor, "every page goes on");
        cursor = next;
        let keys: Vec<String> =
            messages.iter().map(|view| view.key.as_deref().unwrap().to_owned()).collect();
        (!keys.is_empty()).then_some(keys)
    });
    assert!(count >= DELETED / PASSED as usize, "{count} pages");
    assert_eq!(keys, ["dead"]);
}

#[test]
fn rows_beside_deleted_ones_are_found_together() {
    let store = MemoryStore::default();
    store.set_faults(Faults { keeps_deleted: true, ..Faults::default() });
    let mut partition = Partition::open(store.another(), Options::default()).unwrap();
    call(&mut partition, vec![configure(), send("0"), send("1"), send("2")]);
    let taken = deliveries(call(&mut partition, vec![receive(3)]));
    call(&mut partition, taken.iter().map(dead).collect());
    checkpoint(&mut partition);
    let key = |key: &str| KeyName { queue: queue(), key: key.into(), group: None };
    call(&mut partition, vec![Command::Discard(key("1"))]);
    checkpoint(&mut partition);
    let mut partition = Partition::open(store.another(), Options::default()).unwrap();
    let looks = vec![Command::Look(key("0")), Command::Look(key("2"))];
    for outcome in call(&mut partition, looks) {
        assert!(matches!(&outcome, Outcome::Key(view) if view.place == Place::Dead), "{outcome:?}");
    }
}

#[test]
fn l6_the_deleted_rows_of_a_group_are_passed_over_in_steps() {
    let store = MemoryStore::default();
    store.set_faults(Faults { keeps_deleted: true, ..Faults::default() });
    let options = Options { range_bytes: PASSED as usize * 128, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    let config = Config { order: Order::Group, ..Config::default() };
    let configure = Configure { queue: queue(), config, if_version: None };
    call(&mut partition, vec![Command::Configure(Box::new(configure))]);
    let member = |key: &str| {
        let content = Content::builder(key).group(Some("g")).build(b"body").unwrap();
        Command::Send(SendMessage::new(&Recipe::First, queue(), content))
    };
    call(&mut partition, (0..DELETED).map(|key| member(&key.to_string())).collect());
    checkpoint(&mut partition);
    let several = || {
        let Command::Receive(receive) = receive(1_000) else { panic!("a receive") };
        Command::Receive(Receive { several_per_group: true, ..receive })
    };
    for _ in 0..DELETED / 1_000 {
        let taken = deliveries(call(&mut partition, vec![several()]));
        call(&mut partition, taken.iter().map(done).collect());
    }
    // While one is leased, no row says which one is next.
    call(&mut partition, vec![member("leased"), member("ready")]);
    let leased = deliveries(call(&mut partition, vec![receive(1)])).remove(0);
    assert_eq!(leased.content.key(), "leased");
    checkpoint(&mut partition);
    drop(partition);
    let mut rig = (store.another(), Partition::open(store.another(), options).unwrap());
    call(&mut rig.1, vec![done(&leased)]);
    let (taken, count) = until(&mut rig, taken_or_woken);
    assert!(count >= DELETED / PASSED as usize, "{count} batches");
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].content.key(), "ready");
}

#[test]
fn k5_memory_that_can_be_evicted_does_not_wait_for_a_checkpoint_on_a_full_disk() {
    let store = MemoryStore::default();
    let held = Faults { held: true, ..Faults::default() };
    store.set_faults(held);
    let memory_bytes = 256 * 1_024;
    let options =
        Options { memory_bytes, evict_step: 1, batches_in_flight: 1_000, ..Options::default() };
    let mut partition = Partition::open(store.another(), options).unwrap();
    let heads = |partition: &Partition<MemoryStore>| {
        let max = memory_bytes / 4;
        partition.machine().usage().head_bytes() as f64 / max as f64
    };
    let mut keys = 0..;
    let mut fill = |partition: &mut Partition<MemoryStore>, most: f64| {
        while heads(partition) < most {
            submit(partition, vec![send(&keys.next().unwrap().to_string())]);
        }
    };
    submit(&mut partition, vec![configure()]);
    // Half of what fills memory is in the rows, and the other half came meanwhile.
    fill(&mut partition, 1.7);
    partition.checkpoint().unwrap();
    fill(&mut partition, 3.1);
    assert!(partition.is_busy() && partition.is_checkpointing());
    store.settle().unwrap();
    store.set_faults(Faults { full: true, ..held });
    answers(&mut partition);
    for _ in 0..20 {
        let heads = heads(&partition);
        assert!(!partition.is_busy() && !partition.is_checkpointing(), "{heads} of memory");
        submit(&mut partition, vec![receive(1)]);
        store.settle().unwrap();
        let outcomes = answers(&mut partition).into_iter().flat_map(|it| it.outcomes).collect();
        let taken = deliveries(outcomes);
        assert_eq!(taken.len(), 1);
        submit(&mut partition, taken.iter().map(done).collect());
        store.settle().unwrap();
        assert_eq!(answers(&mut partition).len(), 1);
    }
}
