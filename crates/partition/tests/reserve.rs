//! While a checkpoint is behind: memory says how far it has filled up, and a reserve is left for
//! those who take little.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::sync::Arc;

use hapax_core::{
    Answer, Command, Config, Configure, Content, KeyName, Outcome, QueueName, Receive, Recipe,
    SendMessage, Settle, Settled, Stamp, Time, Verb,
};
use hapax_partition::{Options, Partition};
use hapax_store::OsVolume;
use hapax_store::disk::{self, DiskStore, Workers};

const MEMORY_BYTES: usize = 4 * 1_024 * 1_024;
const EVICT_STEP: usize = 64;

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn send(queue: &QueueName, number: u64) -> Command {
    let content = Content::builder(&number.to_string()).build(&[b'x'; 100]).unwrap();
    Command::Send(SendMessage::new(&Recipe::First, queue.clone(), content))
}

fn receive(queue: &QueueName, max: u32) -> Receive {
    Receive {
        queue: queue.clone(),
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    }
}

/// A partition whose journal is written and whose checkpoints are not.
struct Slow {
    partition: Partition<DiskStore>,
    workers: Workers,
    sent: u64,
}

impl Slow {
    fn open(path: &std::path::Path) -> Self {
        let mut options = disk::Options { identity: 5, ..disk::Options::default() };
        options.journal.segment_bytes = 1_024 * 1_024;
        options.journal.free_bytes_min = 0;
        let volume = Arc::new(OsVolume::create(path).unwrap());
        let (store, workers) = DiskStore::open(volume, options, Arc::new(|| {})).unwrap();
        let options = Options { memory_bytes: MEMORY_BYTES, seed: 3, ..Options::default() };
        let options = Options { evict_step: EVICT_STEP, ..options };
        let partition = Partition::open(store, options).unwrap();
        Self { partition, workers, sent: 0 }
    }

    fn call(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let stamp = Stamp { at: Time(1_700_000_000_000 + self.sent), random: 7 };
        let ticket = self.partition.submit(stamp, commands).unwrap();
        loop {
            while self.workers.flusher.step().unwrap() || self.workers.keeper.step().unwrap() {}
            match self.partition.poll().unwrap() {
                Some(answered) if answered.ticket == ticket => return answered.outcomes,
                _ => {}
            }
        }
    }

    fn send_some(&mut self, queue: &QueueName) {
        self.sent += 20;
        let outcomes =
            self.call((self.sent - 20..self.sent).map(|number| send(queue, number)).collect());
        let is_accepted =
            |outcome: &Outcome| matches!(outcome, Outcome::Sent(Answer::Accepted { .. }));
        assert!(outcomes.iter().all(is_accepted), "{outcomes:?}");
    }

    /// Sends messages, and finishes as many.
    fn live_some(&mut self, queue: &QueueName) {
        self.send_some(queue);
        let received = self.call(vec![Command::Receive(receive(queue, 20))]).remove(0);
        let Outcome::Received(messages) = received else { panic!("{received:?}") };
        assert_eq!(messages.len(), 20);
        let done = |lease| {
            let verb = Verb::Done { result: None, emits: Vec::new() };
            Command::Settle(Settle { lease, verb })
        };
        self.call(messages.into_iter().map(|message| done(message.lease)).collect());
    }

    fn filling(&self) -> f64 {
        self.partition.filling().unwrap_or(0.0)
    }
}

#[test]
fn memory_that_fills_up_during_a_checkpoint_leaves_a_reserve() {
    let directory = tempfile::tempdir().unwrap();
    let mut slow = Slow::open(&directory.path().join("partition"));
    let (config, if_version) = (Config::default(), None);
    slow.call(vec![Command::Configure(Box::new(Configure { queue: queue(), config, if_version }))]);
    assert_eq!(slow.partition.filling(), None, "no checkpoint, no hurry");
    let mut last = 0.0;
    while slow.filling() < 1.0 {
        slow.send_some(&queue());
        assert!(!slow.partition.is_busy(), "callers are told before they have to wait");
        assert!(slow.filling() >= last, "it grows until the checkpoint is written");
        last = slow.filling();
        assert!(slow.sent < 1_000_000, "memory has an end");
    }
    // What needs little goes on.
    let key = KeyName { queue: queue(), key: "0".into(), group: None };
    assert!(matches!(slow.call(vec![Command::Look(key)])[..], [Outcome::Key(_)]));
    let received = slow.call(vec![Command::Receive(receive(&queue(), 1))]).remove(0);
    let Outcome::Received(messages) = received else { panic!("{received:?}") };
    let lease = messages.into_iter().next().unwrap().lease;
    let verb = Verb::Done { result: None, emits: Vec::new() };
    let settled = slow.call(vec![Command::Settle(Settle { lease, verb })]).remove(0);
    assert!(!matches!(settled, Outcome::Settled(Settled::LeaseLost { .. })), "{settled:?}");
    assert!(!slow.partition.is_busy());
    // The reserve has an end too.
    let before = slow.sent;
    while !slow.partition.is_busy() {
        slow.send_some(&queue());
        assert!(slow.sent < 1_000_000, "memory has an end");
    }
    let bytes = (slow.sent - before) as usize * 100;
    assert!(bytes >= slow.partition.reserve_bytes() / 4, "{bytes} bytes of the reserve");
    assert!(slow.filling() > 1.0);
    while slow.workers.step().unwrap() {}
    while slow.partition.poll().unwrap().is_some() {}
    assert!(!slow.partition.is_busy());
}

#[test]
fn the_next_checkpoint_waits_until_what_the_last_one_wrote_is_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let mut slow = Slow::open(&directory.path().join("partition"));
    let (config, if_version) = (Config::default(), None);
    slow.call(vec![Command::Configure(Box::new(Configure { queue: queue(), config, if_version }))]);
    let heads_max = MEMORY_BYTES / 4;
    let head_bytes = |slow: &Slow| slow.partition.machine().usage().head_bytes();
    while !slow.partition.is_checkpointing() {
        slow.send_some(&queue());
        assert!(slow.sent < 1_000_000, "memory has an end");
    }
    // Enough for another one, if memory were still crowded when this one ends.
    while head_bytes(&slow) < heads_max * 5 / 2 {
        slow.send_some(&queue());
    }
    while slow.workers.step().unwrap() {}
    let mut last = head_bytes(&slow);
    for turn in 0.. {
        while slow.partition.poll().unwrap().is_some() {}
        assert!(!slow.partition.is_checkpointing(), "{last} bytes in memory in turn {turn}");
        let bytes = head_bytes(&slow);
        assert!(turn > 0 || bytes > heads_max * 2, "one step leaves memory crowded");
        if bytes == last {
            break; // Nothing is left to evict, and not enough for a checkpoint is new.
        }
        last = bytes;
    }
    assert!(last < heads_max * 3 / 2, "{last} bytes");
}

#[test]
fn what_was_there_when_a_checkpoint_began_fills_nothing_and_finished_keys_do() {
    let directory = tempfile::tempdir().unwrap();
    let mut slow = Slow::open(&directory.path().join("partition"));
    let (config, if_version) = (Config::default(), None);
    slow.call(vec![Command::Configure(Box::new(Configure { queue: queue(), config, if_version }))]);
    while !slow.partition.is_checkpointing() {
        slow.send_some(&queue());
        assert!(slow.sent < 1_000_000, "memory has an end");
    }
    assert!(slow.partition.machine().usage().head_bytes() > MEMORY_BYTES / 4);
    assert!(slow.filling() < 0.1, "{}", slow.filling());
    while slow.filling() < 1.0 {
        slow.live_some(&queue());
        assert!(!slow.partition.is_busy(), "callers are told before they have to wait");
        assert!(slow.sent < 1_000_000, "memory has an end");
    }
}

/// A partition whose checkpoint ends with much to evict, and with so many finished keys that the
/// next one is due.
fn due_and_crowded(path: &std::path::Path, records_bytes: usize) -> Slow {
    let mut slow = Slow::open(path);
    let other = QueueName::new("default", "others").unwrap();
    for queue in [queue(), other.clone()] {
        let (config, if_version) = (Config::default(), None);
        slow.call(vec![Command::Configure(Box::new(Configure { queue, config, if_version }))]);
    }
    while !slow.partition.is_checkpointing() {
        slow.send_some(&queue());
        assert!(slow.sent < 1_000_000, "memory has an end");
    }
    while slow.partition.machine().usage().unwritten_bytes <= records_bytes {
        slow.live_some(&other);
        assert!(!slow.partition.is_busy() && slow.sent < 1_000_000, "memory has an end");
    }
    while slow.workers.step().unwrap() {}
    slow
}

#[test]
fn what_can_be_evicted_leaves_before_a_checkpoint_that_is_due() {
    let directory = tempfile::tempdir().unwrap();
    let share = MEMORY_BYTES / 4;
    let mut slow = due_and_crowded(&directory.path().join("partition"), share);
    let mut turns = 0;
    while turns == 0 || !slow.partition.is_checkpointing() {
        while slow.partition.poll().unwrap().is_some() {}
        turns += 1;
        assert!(turns < 1_000, "it is due");
    }
    assert!(turns > 10, "messages leave in steps, not in {turns}");
    let bytes = slow.partition.machine().usage().head_bytes();
    assert!(bytes <= share, "the checkpoint keeps {bytes} bytes in memory");
}

#[test]
fn a_checkpoint_does_not_wait_for_evictions_while_finished_keys_become_too_many() {
    let directory = tempfile::tempdir().unwrap();
    let share = MEMORY_BYTES / 4;
    let mut slow = due_and_crowded(&directory.path().join("partition"), share * 5 / 4);
    assert!(slow.partition.poll().unwrap().is_none());
    assert!(slow.partition.is_checkpointing(), "the next one");
    let bytes = slow.partition.machine().usage().head_bytes();
    assert!(bytes > share * 3 / 2, "{bytes} bytes can still leave");
}
