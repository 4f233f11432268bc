//! While the disk is short of space: a checkpoint is cut for it although nobody asks for anything,
//! and not again before something changed.

#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::path::Path;
use std::sync::Arc;

use hapax_core::{
    Answer, Command, Config, Configure, Content, Outcome, QueueName, Receive, Recipe, SendMessage,
    Settle, Stamp, Time, Verb,
};
use hapax_partition::{Options, Partition};
use hapax_store::disk::{self, DiskStore, Workers};
use hapax_store::{OsVolume, Store};

const START: Time = Time(1_700_000_000_000);
const SEGMENT_BYTES: u32 = 64 * 1_024;

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

struct Stepped {
    partition: Partition<DiskStore>,
    workers: Workers,
    at: Time,
}

impl Stepped {
    /// On a disk that has less free space than `free_bytes_min`, or more.
    fn open(path: &Path, free_bytes_min: u64) -> Self {
        let mut options = disk::Options { identity: 5, ..disk::Options::default() };
        options.journal.segment_bytes = SEGMENT_BYTES;
        options.journal.free_bytes_min = free_bytes_min;
        let volume = Arc::new(OsVolume::create(path).unwrap());
        let (store, mut workers) = DiskStore::open(volume, options, Arc::new(|| {})).unwrap();
        let partition = Partition::open(store, Options::default()).unwrap();
        while workers.step().unwrap() {} // The keeper looks at the disk.
        let at = START.max(partition.now());
        Self { partition, workers, at }
    }

    fn call(&mut self, ms: u64, commands: Vec<Command>) -> Vec<Outcome> {
        self.at = self.at.plus(ms);
        let stamp = Stamp { at: self.at, random: 7 };
        let ticket = self.partition.submit(stamp, commands).unwrap();
        let mut outcomes = None;
        while outcomes.is_none() || self.partition.is_checkpointing() {
            while self.workers.step().unwrap() {}
            match self.partition.poll().unwrap() {
                Some(answered) if answered.ticket == ticket => outcomes = Some(answered.outcomes),
                _ => {}
            }
        }
        while self.workers.step().unwrap() {}
        outcomes.unwrap()
    }

    fn configure(&mut self) {
        let (config, if_version) = (Config::default(), None);
        let configure = Box::new(Configure { queue: queue(), config, if_version });
        self.call(0, vec![Command::Configure(configure)]);
    }

    fn has_a_deadline(&self) -> bool {
        self.partition.next_deadline().is_some_and(|due| due.since(self.at) < 60_000)
    }

    fn checkpointed(&mut self) -> u64 {
        self.partition.store_mut().checkpointed().unwrap()
    }
}

fn send(key: &str) -> Command {
    let content = Content::builder(key).build(&[b'x'; 1_000]).unwrap();
    Command::Send(SendMessage::new(&Recipe::First, queue(), content))
}

fn segments(path: &Path) -> usize {
    let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".seg")).count()
}

#[test]
fn an_idle_partition_cuts_one_checkpoint_for_a_disk_that_is_short_of_space() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("partition");
    let mut roomy = Stepped::open(&path, 0);
    roomy.configure();
    let sent = roomy.call(1, (0..300).map(|number| send(&number.to_string())).collect());
    assert!(matches!(sent.last(), Some(Outcome::Sent(Answer::Accepted { .. }))), "{sent:?}");
    assert_eq!(roomy.checkpointed(), 0, "so little is no reason for a checkpoint");
    assert!(segments(&path) > 4);
    drop(roomy);

    let mut short = Stepped::open(&path, u64::MAX);
    let refused = short.call(1_000, vec![send("more")]);
    assert_eq!(refused, [Outcome::Sent(Answer::StoreFull)]);
    let through = short.checkpointed();
    assert!(through > 0, "what the owner before wrote is due at once");
    assert_eq!(segments(&path), 2, "the one that is written, and the reserve");
    assert!(!short.has_a_deadline(), "nothing changed since");
    short.call(60_000, vec![send("more")]);
    assert_eq!(short.checkpointed(), through);

    // Something ends: that is due some time after the checkpoint before it, and once.
    let receive = Receive {
        queue: queue(),
        max: 1,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    };
    let received = short.call(1, vec![Command::Receive(receive)]);
    let Some(Outcome::Received(deliveries)) = received.first() else { panic!("{received:?}") };
    let lease = deliveries.first().unwrap().lease;
    let verb = Verb::Done { result: None, emits: Vec::new() };
    short.call(1, vec![Command::Settle(Settle { lease, verb })]);
    let through = short.checkpointed();
    let due = short.partition.next_deadline().unwrap();
    assert!(due > short.at && due.since(short.at) < 60_000, "{due:?}");
    short.call(due.since(short.at), Vec::new());
    assert!(short.checkpointed() > through);
}
