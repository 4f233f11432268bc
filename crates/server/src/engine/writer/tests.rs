//! Writers without threads, and partitions that another owner takes over.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use hapax_core::{
    Answer, Command, Config, Configure, Content, Emit, QueueName, Receive, SendMessage,
};
use hapax_core::{Settle, Verb};
use hapax_partition::wait::Turn;
use hapax_store::memory::{Faults, MemoryStore};
use tokio::sync::oneshot;

use super::super::inbox::{Outcomes, Replies};
use super::super::open::{Opened, inboxes};
use super::super::{Data, Engine, Options};
use super::*;

/// Partitions in memory, and the stores under them.
fn opened(path: &std::path::Path, partitions: u16, faults: Faults) -> (Opened, Vec<MemoryStore>) {
    opened_with(path, partitions, faults, 64 * 1_024 * 1_024)
}

/// The same with so much memory.
fn opened_with(
    path: &std::path::Path,
    partitions: u16,
    faults: Faults,
    memory_bytes: usize,
) -> (Opened, Vec<MemoryStore>) {
    let data = Data::open(path, partitions).unwrap();
    let inboxes = inboxes(&data);
    let stores: Vec<MemoryStore> = inboxes
        .iter()
        .map(|inbox| {
            let inbox = Arc::clone(inbox);
            MemoryStore::new(Arc::new(move || inbox.wake()))
        })
        .collect();
    stores.iter().for_each(|store| store.set_faults(faults));
    let owned = stores.iter().map(|store| AnyStore::Memory(store.another())).collect();
    let options = Options { partitions, memory_bytes };
    let opened =
        Opened::own(data, inboxes, owned, options, Wall::Machine, Box::new(|_, _| {})).unwrap();
    (opened, stores)
}

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn configure() -> Command {
    let (queue, config) = (queue(), Config::default());
    Command::Configure(Box::new(Configure { queue, config, if_version: None }))
}

/// Asks, and gets the answer when it comes.
fn ask(shared: &Shared, command: Command) -> Receiver<Outcomes> {
    let (sender, receiver) = channel();
    let reply = move |outcomes: Outcomes| drop(sender.send(outcomes));
    shared.push(0, Ask::Commands(vec![command], Box::new(reply)));
    receiver
}

#[test]
fn a_writer_is_stepped_without_a_thread_and_without_a_clock() {
    let directory = tempfile::tempdir().unwrap();
    let held = Faults { held: true, asked: true, ..Faults::default() };
    let (opened, stores) = opened(directory.path(), 1, held);
    let shared = Arc::clone(&opened.shared);
    let partition = opened.partitions.into_iter().next().unwrap();
    let start = Now::read(&Wall::Machine);
    let at = |ms: u64| Now {
        monotonic: start.monotonic + Duration::from_millis(ms),
        wall: start.wall.plus(ms),
    };
    let inbox = Arc::clone(&shared.inboxes[0]);
    let mut writer = Writer::new(partition, 0, inbox, Arc::clone(&shared), start);
    let is_idle = |rest| matches!(rest, Rest::Sleep { takes: true, .. });
    assert!(is_idle(writer.turn(at(1)).unwrap()), "nobody asked for anything");

    let configured = ask(&shared, configure());
    assert_eq!(writer.turn(at(2)).unwrap(), Rest::None, "it is decided");
    assert!(is_idle(writer.turn(at(3)).unwrap()));
    assert!(configured.try_recv().is_err(), "nothing leaves before it is durable");
    stores[0].settle().unwrap();
    assert_eq!(writer.turn(at(4)).unwrap(), Rest::None);
    let outcomes = configured.try_recv().unwrap().unwrap();
    assert!(matches!(outcomes.as_slice(), [Outcome::Configured { created: true, .. }]));

    // What appends nothing waits for the owner to be confirmed.
    let shown = ask(&shared, Command::Show(queue()));
    assert_eq!(writer.turn(at(5)).unwrap(), Rest::None);
    assert!(is_idle(writer.turn(at(6)).unwrap()));
    assert!(shown.try_recv().is_err(), "nothing leaves before the owner is confirmed");
    stores[0].settle().unwrap();
    writer.turn(at(7)).unwrap();
    assert!(matches!(shown.try_recv().unwrap().unwrap().as_slice(), [Outcome::Queue(_)]));

    shared.push(0, Ask::Stop);
    for ms in 8..100 {
        stores[0].settle().unwrap();
        if writer.turn(at(ms)).unwrap() == Rest::End {
            assert_eq!(stores[0].another().checkpointed().unwrap(), 1, "all of it is in the rows");
            return;
        }
    }
    panic!("the writer does not end");
}

/// Waits for a message, and gets the answer when it comes.
fn wait(shared: &Shared) -> Receiver<Outcomes> {
    let (sender, receiver) = channel();
    let reply = move |outcomes: Outcomes| drop(sender.send(outcomes));
    let (queue, worker) = (queue(), "worker".into());
    let receive = Receive {
        queue,
        max: 1,
        lease_ms: None,
        worker,
        receive_id: None,
        several_per_group: false,
    };
    let waiter = Waiter::receive(receive, Turn::default(), Box::new(reply) as Reply);
    shared.push(0, Ask::Wait(Box::new(waiter)));
    receiver
}

#[test]
fn everybody_who_waits_for_a_partition_with_another_owner_is_refused_and_may_retry() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults { held: true, asked: true, unaware: true, ..Faults::default() };
    let (opened, stores) = opened(directory.path(), 1, faults);
    let shared = Arc::clone(&opened.shared);
    let partition = opened.partitions.into_iter().next().unwrap();
    let inbox = Arc::clone(&shared.inboxes[0]);
    let mut writer =
        Writer::new(partition, 0, inbox, Arc::clone(&shared), Now::read(&Wall::Machine));
    let configured = ask(&shared, configure());
    let waiting = wait(&shared);
    while configured.try_recv().is_err() || writer.partition.is_waiting() {
        writer.turn(Now::read(&Wall::Machine)).unwrap();
        stores[0].settle().unwrap();
    }
    assert!(waiting.try_recv().is_err(), "there is no message");

    // Decided and not confirmed, decided and not durable, not even taken.
    let looked = ask(&shared, Command::Show(queue()));
    let changed = ask(&shared, Command::Delete(queue()));
    writer.turn(Now::read(&Wall::Machine)).unwrap();
    stores[0].another().claim().unwrap();
    stores[0].settle().unwrap();
    let late = ask(&shared, Command::Show(queue()));
    writer.run();
    let after = ask(&shared, Command::Show(queue()));
    for caller in [waiting, looked, changed, late, after] {
        let refused = caller.try_recv().expect("an answer").expect_err("a refusal");
        let problem = crate::problem::Problem::from(refused);
        assert!(problem.code.is_retryable(), "{problem:?}");
    }
    assert!(shared.failed.borrow().is_none(), "the process goes on");
    assert_eq!(shared.fenced.borrow().len(), 1);
}

#[test]
fn those_whose_batch_is_refused_by_the_store_are_refused_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let unaware = Faults { unaware: true, ..Faults::default() };
    let (opened, stores) = opened(directory.path(), 1, unaware);
    let shared = Arc::clone(&opened.shared);
    let partition = opened.partitions.into_iter().next().unwrap();
    let inbox = Arc::clone(&shared.inboxes[0]);
    let mut writer =
        Writer::new(partition, 0, inbox, Arc::clone(&shared), Now::read(&Wall::Machine));
    let configured = ask(&shared, configure());
    while configured.try_recv().is_err() || writer.partition.is_waiting() {
        writer.turn(Now::read(&Wall::Machine)).unwrap();
    }
    // Nothing waits for an answer: it is the append of the next batch that fails.
    stores[0].another().claim().unwrap();
    let callers = [ask(&shared, Command::Delete(queue())), wait(&shared)];
    writer.run();
    for caller in callers {
        let refused = caller.try_recv().expect("an answer").expect_err("a refusal");
        assert!(crate::problem::Problem::from(refused).code.is_retryable());
    }
    assert_eq!(shared.fenced.borrow().len(), 1);
}

#[test]
fn a_panic_for_the_sake_of_one_caller_leaves_no_other_without_an_answer() {
    for is_answering in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (opened, _) = opened(directory.path(), 1, Faults::default());
        let shared = Arc::clone(&opened.shared);
        let partition = opened.partitions.into_iter().next().unwrap();
        let inbox = Arc::clone(&shared.inboxes[0]);
        let writer =
            Writer::new(partition, 0, inbox, Arc::clone(&shared), Now::read(&Wall::Machine));
        let before = ask(&shared, configure());
        if is_answering {
            let reply = |_: Outcomes| panic!("planted in a reply");
            shared.push(0, Ask::Commands(vec![Command::Show(queue())], Box::new(reply)));
        } else {
            let look = |_: &Partition<AnyStore>| -> Seen { panic!("planted in a look") };
            shared.push(0, Ask::Inspect(Box::new(look)));
        }
        let behind = [ask(&shared, Command::Show(queue())), wait(&shared)];
        writer.run();
        assert_eq!(before.try_recv().expect("an answer").is_ok(), is_answering);
        for caller in behind {
            caller.try_recv().expect("an answer").expect_err("a refusal");
        }
        assert!(shared.failed.borrow().is_some(), "the broker is told");
    }
}

#[test]
fn a_partition_that_another_owner_took_over_ends_and_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let unaware = Faults { unaware: true, ..Faults::default() };
    let (opened, stores) = opened(directory.path(), 2, unaware);
    let engine: Engine = opened.start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        engine.call_all(configure()).await.unwrap();
        assert!(engine.is_ready());
        let epoch = stores[0].another().claim().unwrap().epoch;
        // A look appends nothing, and is refused all the same.
        let refused = engine.call(0, Command::Show(queue())).await.unwrap_err();
        let why = format!("partition 0: epoch {} no longer owns", epoch - 1);
        assert!(refused.to_string().starts_with(&why), "{refused}");
        assert!(matches!(engine.call(1, Command::Show(queue())).await, Ok(Outcome::Queue(_))));
        engine.unready().await;
        assert!(!engine.is_ready(), "it says so");
        assert!(!engine.has_failed(), "and goes on");
        let fenced = engine.fenced();
        assert_eq!(fenced.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0]);
        // Also when its writer is long gone.
        let refused = engine.call(0, Command::Show(queue())).await.unwrap_err();
        assert!(refused.to_string().starts_with(&why), "{refused}");
    });
    engine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_sync_is_reported_for_a_lone_request_too() {
    let directory = tempfile::tempdir().unwrap();
    let data = Data::open(directory.path(), 1).unwrap();
    let options = Options { partitions: 1, memory_bytes: 64 * 1_024 * 1_024 };
    let (sender, beats) = channel();
    let on_beat = Box::new(move |_, beat| {
        if let Beat::Durable { waited } = beat {
            let _ = sender.send(waited);
        }
    });
    let engine = Engine::open(data, options, on_beat).unwrap();
    engine.call(0, configure()).await.unwrap();
    engine.call(0, Command::Delete(queue())).await.unwrap();
    engine.stop();
    let waited: Vec<_> = beats.try_iter().collect();
    assert!(waited.len() >= 2 && !waited.contains(&Duration::ZERO), "{waited:?}");
}

/// How often each emit that waits in a partition was tried.
async fn attempts(engine: &Engine, partition: usize) -> Vec<u32> {
    let (sender, receiver) = oneshot::channel();
    let look = |partition: &Partition<AnyStore>| -> Seen {
        let attempts = partition.machine().relays().map(|relay| relay.attempts).collect();
        Box::new(move || drop(sender.send(attempts)))
    };
    engine.shared.push(partition, Ask::Inspect(Box::new(look)));
    receiver.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn l3_an_emit_for_a_partition_with_another_owner_is_sent_again_by_one_that_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let unaware = Faults { unaware: true, ..Faults::default() };
    let (opened, stores) = opened(directory.path(), 2, unaware);
    let engine: Engine = opened.start().unwrap();
    engine.call_all(configure()).await.unwrap();
    let recipe = *engine.data().recipe();
    let content = |key: &str| Content::builder(key).build(b"hi").unwrap();
    let is_of_second = |key: &String| {
        let digest = recipe.key(&queue(), None, key);
        engine.shared.routes().of_new(&queue(), digest, &content(key), || 0) == 1
    };
    let key = (0..).map(|number| number.to_string()).find(is_of_second).unwrap();
    let send = SendMessage::new(&recipe, queue(), content("parent"));
    engine.call(0, Command::Send(send)).await.unwrap();
    let receive = Receive {
        queue: queue(),
        max: 1,
        lease_ms: None,
        worker: "worker".into(),
        receive_id: None,
        several_per_group: false,
    };
    let received = engine.call(0, Command::Receive(receive)).await.unwrap();
    let Outcome::Received(deliveries) = received else { panic!("{received:?}") };

    stores[1].another().claim().unwrap();
    engine.call(1, Command::Show(queue())).await.unwrap_err();
    engine.unready().await;
    let emits = vec![Emit::new(queue(), "n", content(&key))];
    let (lease, verb) = (deliveries[0].lease, Verb::Done { result: None, emits });
    engine.call(0, Command::Settle(Settle { lease, verb })).await.unwrap();
    // Its owner elsewhere may have it or not; this list has it until somebody says so.
    for _ in 0..3_000 {
        let attempts = attempts(&engine, 0).await;
        assert_eq!(attempts.len(), 1);
        if attempts[0] > 1 {
            return engine.stop();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the emit is not sent again");
}

/// Sends messages of 10 KiB in one list.
fn send(shared: &Shared, keys: std::ops::Range<usize>) -> Receiver<Outcomes> {
    let (sender, receiver) = channel();
    let reply = move |outcomes: Outcomes| drop(sender.send(outcomes));
    let command = |key: usize| {
        let content = Content::builder(&key.to_string()).build(&[b'x'; 10 * 1_024]).unwrap();
        Command::Send(SendMessage::new(shared.data.recipe(), queue(), content))
    };
    let list = keys.map(command).collect();
    shared.push(0, Ask::Commands(list, Box::new(reply)));
    receiver
}

#[test]
fn floods_may_fill_more_memory_the_more_of_a_checkpoint_is_written() {
    let allowed: Vec<f64> = (0..=8).map(|part| allowed_at(f64::from(part) / 8.0)).collect();
    assert!(allowed.is_sorted_by(|less, more| less + 0.05 < *more), "{allowed:?}");
    assert_eq!((allowed[0], allowed[8]), (PACED_START, 1.0));
}

/// A writer with a queue and little memory whose checkpoint is held, and the time from which its
/// turns are counted.
fn in_checkpoint(directory: &std::path::Path) -> (Writer, Arc<Shared>, MemoryStore, Now) {
    let held = Faults { held: true, ..Faults::default() };
    let (opened, mut stores) = opened_with(directory, 1, held, 4 * 1_024 * 1_024);
    let (shared, store) = (Arc::clone(&opened.shared), stores.remove(0));
    let partition = opened.partitions.into_iter().next().unwrap();
    let inbox = Arc::clone(&shared.inboxes[0]);
    let start = Now::read(&Wall::Machine);
    let mut writer = Writer::new(partition, 0, inbox, Arc::clone(&shared), start);
    let configured = ask(&shared, configure());
    writer.turn(start).unwrap();
    store.settle().unwrap();
    writer.turn(start).unwrap();
    configured.try_recv().unwrap().unwrap();
    writer.partition.checkpoint().unwrap();
    (writer, shared, store, start)
}

/// As many turns as the writer may want, all at the same time.
fn turn_on(writer: &mut Writer, now: Now) {
    for _ in 0..10 {
        writer.turn(now).unwrap();
    }
}

#[test]
fn k5_a_flood_that_waits_for_a_checkpoint_is_refused_when_the_disk_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, shared, store, now) = in_checkpoint(directory.path());
    let sent = send(&shared, 0..100);
    writer.turn(now).unwrap();
    let more = send(&shared, 100..200);
    turn_on(&mut writer, now);
    assert!(writer.is_paced, "it waits for the checkpoint");

    // Of which nothing more can be written.
    store.set_faults(Faults { full: true, ..Faults::default() });
    store.settle().unwrap();
    turn_on(&mut writer, now);
    assert!(writer.partition.is_checkpointing());
    let is_accepted = |outcome: &Outcome| matches!(outcome, Outcome::Sent(Answer::Accepted { .. }));
    assert!(sent.try_recv().unwrap().unwrap().iter().all(is_accepted));
    let refused = more.try_recv().expect("an answer").unwrap();
    let is_full = |outcome: &Outcome| matches!(outcome, Outcome::Sent(Answer::StoreFull));
    assert!(refused.iter().all(is_full), "{refused:?}");
}

#[test]
fn a_flood_that_waits_for_a_checkpoint_goes_on_in_batches_while_there_is_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, shared, store, start) = in_checkpoint(directory.path());
    let floods: Vec<_> = (0..5).map(|list| send(&shared, list * 100..(list + 1) * 100)).collect();
    let mut sent_at = |held: u32| {
        let monotonic = start.monotonic + HELD_MAX * held;
        turn_on(&mut writer, Now { monotonic, ..start });
        writer.partition.machine().usage().messages
    };
    assert_eq!(sent_at(0), 100, "then memory is fuller than the checkpoint is done");
    assert_eq!(sent_at(1), 200, "they have waited long enough");
    assert_eq!(sent_at(2), 300);
    for held in 3..10 {
        assert_eq!(sent_at(held), 300, "memory is full");
    }
    store.set_faults(Faults::default());
    for held in 10..13 {
        store.settle().unwrap();
        sent_at(held);
    }
    for flood in floods {
        assert_eq!(flood.try_recv().expect("an answer").unwrap().len(), 100);
    }
}

/// A writer of each partition in memory, to be stepped; nothing is durable or confirmed before its
/// store settles. Every partition has the queue.
struct Stepped {
    writers: Vec<Writer>,
    stores: Vec<MemoryStore>,
    shared: Arc<Shared>,
    start: Now,
    _directory: tempfile::TempDir,
}

fn held() -> Faults {
    Faults { held: true, asked: true, ..Faults::default() }
}

impl Stepped {
    fn new(partitions: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (opened, stores) = opened(directory.path(), partitions, held());
        let (shared, start) = (Arc::clone(&opened.shared), Now::read(&Wall::Machine));
        let writers = opened.partitions.into_iter().enumerate().map(|(number, partition)| {
            let inbox = Arc::clone(&shared.inboxes[number]);
            Writer::new(partition, number, inbox, Arc::clone(&shared), start)
        });
        let writers = writers.collect();
        let mut stepped = Self { writers, stores, shared, start, _directory: directory };
        for partition in 0..usize::from(partitions) {
            let configured = stepped.ask(partition, vec![configure()]);
            stepped.turn(partition, 1);
            stepped.settle(partition, 1);
            assert!(configured.try_recv().unwrap().is_ok());
        }
        stepped
    }

    fn ask(&self, partition: usize, list: Vec<Command>) -> Receiver<Outcomes> {
        let (sender, receiver) = channel();
        let reply = move |outcomes: Outcomes| drop(sender.send(outcomes));
        self.shared.push(partition, Ask::Commands(list, Box::new(reply)));
        receiver
    }

    /// Messages of 10 KiB.
    fn sends(&self, keys: std::ops::Range<usize>) -> Vec<Command> {
        let send = |key: usize| {
            let content = Content::builder(&key.to_string()).build(&[b'x'; 10 * 1_024]).unwrap();
            Command::Send(SendMessage::new(self.shared.data.recipe(), queue(), content))
        };
        keys.map(send).collect()
    }

    fn turn(&mut self, partition: usize, ms: u64) -> Rest {
        let Now { monotonic, wall } = self.start;
        let at = Now { monotonic: monotonic + Duration::from_millis(ms), wall: wall.plus(ms) };
        self.writers[partition].turn(at).unwrap()
    }

    /// What was appended is durable, and what was asked confirmed.
    fn settle(&mut self, partition: usize, ms: u64) {
        self.stores[partition].settle().unwrap();
        self.turn(partition, ms);
    }
}

#[test]
fn d1_a_writer_that_is_told_to_stop_waits_for_the_batches_in_flight() {
    let mut stepped = Stepped::new(1);
    let sent = stepped.ask(0, stepped.sends(0..1));
    stepped.turn(0, 2);
    stepped.shared.push(0, Ask::Stop);
    let late = super::super::STOP_MAX.as_millis() as u64;
    for ms in [3, 4, 5, late + 6, 2 * late + 7, 2 * late + 8] {
        assert_ne!(stepped.turn(0, ms), Rest::End, "after {ms} ms");
        assert!(sent.try_recv().is_err(), "it is not durable");
    }
    let ends = (2 * late + 9..).take(20).any(|ms| {
        stepped.stores[0].settle().unwrap();
        stepped.turn(0, ms) == Rest::End
    });
    assert!(ends);
    let outcomes = sent.try_recv().expect("an answer").unwrap();
    assert!(matches!(outcomes.as_slice(), [Outcome::Sent(Answer::Accepted { .. })]));
}

#[test]
fn what_the_checkpoint_under_way_does_not_have_is_in_the_rows_when_a_writer_ends() {
    let mut stepped = Stepped::new(1);
    stepped.writers[0].partition.checkpoint().unwrap();
    let sent = stepped.ask(0, stepped.sends(0..1));
    stepped.turn(0, 2);
    // Durable, while nothing more of the checkpoint can be written.
    stepped.stores[0].set_faults(Faults { full: true, ..held() });
    stepped.settle(0, 3);
    sent.try_recv().expect("an answer").unwrap();
    assert!(stepped.writers[0].partition.is_checkpointing());
    stepped.shared.push(0, Ask::Stop);
    (4..10).for_each(|ms| assert_ne!(stepped.turn(0, ms), Rest::End));
    stepped.stores[0].set_faults(held());
    let ends = (10..30).any(|ms| {
        stepped.stores[0].settle().unwrap();
        stepped.turn(0, ms) == Rest::End
    });
    assert!(ends);
    let claim = stepped.stores[0].another().claim().unwrap();
    assert_eq!(claim.through, claim.last, "nothing is left to replay");
}

#[test]
fn a_checkpoint_that_finds_no_room_does_not_keep_a_writer_from_ending() {
    let mut stepped = Stepped::new(1);
    stepped.writers[0].partition.checkpoint().unwrap();
    stepped.stores[0].set_faults(Faults { full: true, ..held() });
    stepped.shared.push(0, Ask::Stop);
    let late = super::super::STOP_MAX.as_millis() as u64;
    for ms in [2, 3, 4, late / 2] {
        stepped.stores[0].settle().unwrap();
        assert_ne!(stepped.turn(0, ms), Rest::End, "it is given time");
    }
    assert_eq!(stepped.turn(0, late + 10), Rest::End);
}

/// Notes how many outcomes it sees, and when it is called.
struct Watch {
    seen: Arc<Mutex<Vec<usize>>>,
    called: std::sync::mpsc::Sender<Outcomes>,
}

impl Replies for Watch {
    fn see(&mut self, outcomes: &mut [Outcome]) {
        self.seen.lock().unwrap().push(outcomes.len());
    }

    fn call(self: Box<Self>, outcomes: Outcomes) {
        drop(self.called.send(outcomes));
    }
}

#[test]
fn requests_of_a_batch_in_several_parts_are_answered_when_they_are_complete() {
    const COUNT: usize = 1_500;
    let mut stepped = Stepped::new(1);
    let first = stepped.ask(0, vec![Command::Show(queue())]);
    let (called, receiver) = channel();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watch = Watch { seen: Arc::clone(&seen), called };
    // More than goes to the disk at once.
    stepped.shared.push(0, Ask::Commands(stepped.sends(0..COUNT), Box::new(watch)));
    stepped.turn(0, 2);
    stepped.settle(0, 3);
    assert!(matches!(first.try_recv().unwrap().unwrap().as_slice(), [Outcome::Queue(_)]));
    for ms in 4..100 {
        let so_far = seen.lock().unwrap().clone();
        // Its reply may take large parts out of them: what waits has a bound.
        assert!(so_far.is_sorted_by(|less, more| less < more) && so_far[0] > 0, "{so_far:?}");
        if let Ok(outcomes) = receiver.try_recv() {
            assert!(so_far.len() > 1 && so_far.iter().all(|count| *count < COUNT), "{so_far:?}");
            return assert_eq!(outcomes.unwrap().len(), COUNT);
        }
        stepped.settle(0, ms);
    }
    panic!("the last part is not answered");
}

#[test]
fn a_receiver_that_was_passed_over_elsewhere_is_called_there_again() {
    let mut stepped = Stepped::new(2);
    let turn = Turn::default();
    let (sender, receiver) = channel();
    let wait = || {
        let sender = sender.clone();
        let reply = move |outcomes: Outcomes| drop(sender.send(outcomes));
        let receive = Receive {
            queue: queue(),
            max: 1,
            lease_ms: None,
            worker: "worker".into(),
            receive_id: None,
            several_per_group: false,
        };
        Ask::Wait(Box::new(Waiter::receive(receive, turn.clone(), Box::new(reply) as Reply)))
    };
    // The first partition has nothing for it, and holds its turn until that is confirmed.
    stepped.shared.push(0, wait());
    stepped.turn(0, 2);
    stepped.shared.push(1, wait());
    let sent = stepped.ask(1, stepped.sends(0..1));
    stepped.turn(1, 2);
    stepped.settle(1, 3);
    assert!(sent.try_recv().unwrap().is_ok());
    (4..8).for_each(|ms| stepped.settle(1, ms));
    assert!(receiver.try_recv().is_err(), "another partition holds its turn");
    stepped.settle(0, 8);
    (9..20).for_each(|ms| stepped.settle(1, ms));
    let outcomes = receiver.try_recv().expect("its message").unwrap();
    let [Outcome::Received(deliveries)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    assert_eq!(deliveries.len(), 1);
}
