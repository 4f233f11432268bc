//! One partition on the simulated disk, asked one thing at a time.

use std::sync::Arc;

use hapax_core::{
    Answer, Command, Config, Configure, Content, Delivery, KeyName, LeaseName, Outcome, QueueName,
    Receive, Recipe, SendMessage, Settle, Settled, Stamp, Time, Verb,
};
use hapax_partition::{Error, Options, Partition};
use hapax_sim::SimDisk;
use hapax_store::disk::{self, DiskStore, Workers};

pub(crate) struct Rig {
    pub(crate) disk: SimDisk,
    pub(crate) partition: Partition<DiskStore>,
    pub(crate) workers: Workers,
    pub(crate) now: u64,
}

pub(crate) const START: u64 = 1_700_000_000_000;

impl Rig {
    /// A new disk with one queue.
    pub(crate) fn new(config: Config) -> Self {
        let mut rig = Self::open(&SimDisk::new(1)).unwrap();
        let configure = Configure { queue: queue(), config, if_version: None };
        rig.call(Command::Configure(Box::new(configure)));
        rig
    }

    pub(crate) fn open(disk: &SimDisk) -> Result<Self, Error> {
        let mut options = disk::Options { identity: 7, ..disk::Options::default() };
        options.journal.segment_bytes = 16 << 10;
        options.journal.free_bytes_min = 64 << 10;
        let (store, workers) = DiskStore::open(disk.mount(), options, Arc::new(|| {}))?;
        let partition = Partition::open(store, Options::default())?;
        let now = partition.now().0.max(START);
        Ok(Self { disk: disk.clone(), partition, workers, now })
    }

    /// The process is killed and started again.
    pub(crate) fn killed(self) -> Self {
        self.disk.kill();
        let reopened = Self::open(&self.disk).unwrap();
        Self { now: self.now, ..reopened }
    }

    pub(crate) fn submit(&mut self, commands: Vec<Command>) -> Result<(), Error> {
        let stamp = Stamp { at: Time(self.now), random: self.now };
        self.partition.submit(stamp, commands).map(drop)
    }

    /// Submits a batch and waits for its answers.
    pub(crate) fn try_call(&mut self, commands: Vec<Command>) -> Result<Vec<Outcome>, Error> {
        self.submit(commands)?;
        let mut last = Vec::new();
        while self.partition.is_waiting() {
            self.workers.flusher.step()?;
            while let Some(answered) = self.partition.poll()? {
                last = answered.outcomes;
            }
            self.workers.keeper.step()?;
        }
        Ok(last)
    }

    pub(crate) fn call(&mut self, command: Command) -> Outcome {
        self.try_call(vec![command]).unwrap().pop().unwrap()
    }

    /// Writes a checkpoint and lets the workers finish.
    pub(crate) fn checkpoint(&mut self) {
        self.partition.checkpoint().unwrap();
        while self.workers.step().unwrap() {}
        self.partition.poll().unwrap();
    }

    pub(crate) fn send(&mut self, key: &str, body: &str) -> Answer {
        match self.call(send(key, body)) {
            Outcome::Sent(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn receive(&mut self, max: u32) -> Vec<Delivery> {
        match self.call(receive(max)) {
            Outcome::Received(deliveries) => deliveries,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn settle(&mut self, lease: LeaseName, verb: Verb) -> Settled {
        match self.call(Command::Settle(Settle { lease, verb })) {
            Outcome::Settled(settled) => settled,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("sim", "rows").unwrap()
}

pub(crate) fn content(key: &str, body: &str) -> Arc<Content> {
    Content::builder(key).build(body.as_bytes()).unwrap()
}

pub(crate) fn send(key: &str, body: &str) -> Command {
    Command::Send(SendMessage::new(&Recipe::First, queue(), content(key, body)))
}

pub(crate) fn receive(max: u32) -> Command {
    Command::Receive(Receive {
        queue: queue(),
        max,
        lease_ms: None,
        worker: "worker".into(),
        receive_id: None,
        several_per_group: false,
    })
}

pub(crate) fn key(key: &str) -> KeyName {
    KeyName { queue: queue(), key: key.into(), group: None }
}

pub(crate) fn done(result: &str) -> Verb {
    let body = result.to_owned().into_bytes().into();
    Verb::Done { result: Some(hapax_core::Blob { content_type: None, body }), emits: Vec::new() }
}

pub(crate) fn fail() -> Verb {
    Verb::Fail { error: "poison".to_owned(), delay_ms: Some(0), dead: false }
}
