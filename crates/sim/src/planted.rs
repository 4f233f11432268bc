//! The store under a simulated partition, and the bugs that can be planted in it and around it.
//!
//! A suite that cannot fail proves nothing. Each [`Bug`] is one that real brokers had; the tests
//! plant it and expect the checker to notice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{Batch, Decision, Digest, MessageId, Time, read_batch};
use hapax_postgres::PostgresLog;
use hapax_store::disk::{self, DiskStore};
use hapax_store::joined::Joined;
use hapax_store::memory::MemoryStore;
use hapax_store::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Error, PointKey, Question, Room, Sequence, Store,
};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Batches count as durable as soon as they are appended.
    AckBeforeSync,
    /// A key counts as known from the moment its message is appended: a second send is answered
    /// "in flight" at once, whether or not the first becomes durable.
    KeyBeforeAppend,
    /// The epoch is not checked: an owner that was replaced continues to append.
    NoEpochCheck,
    /// What is answered without an append leaves although nobody confirmed the owner.
    ReadsUnconfirmed,
    /// A range of rows silently ends after a few of them.
    ScanCut,
    /// A key that is in the rows is now and then not found there.
    KeyMissed,
    /// A receive has no byte limit.
    ReceiveUnbounded,
    /// If a batch is split, only its last part is journaled.
    FirstPartLost,
    /// At a start only the first step of leases is loaded.
    LeasesCut,
    /// The route of a new queue is known only after every partition has the queue.
    SpreadLate,
    /// A change ends when the leader has decided; the others do not get it.
    FollowerNotTold,
    /// An emit counts as arrived when it is sent, durable or not.
    RelayConfirmedEarly,
    /// An emit that its queue refuses for good is dropped.
    RefusedDropped,
    /// A list of emits is told of each refusal twice.
    RefusedTwice,
    /// While partitions are copied, lists of emits drop what arrives.
    ConfirmedWhileCopied,
    /// Emits are sent before the partitions agree about their queues.
    EmitsLeaveEarly,
    /// The leader is copied before the others, which may then be ahead of it.
    LeaderCopiedFirst,
    /// Partitions issue the same fences.
    FencesShared,
    /// Batches grow beyond what the journal accepts.
    JournalTakesLess,
    /// A partition whose directory is missing is created again.
    StoreMadeAnew,
    /// Data is opened with another recipe than it was created with.
    RecipeChanged,
    /// Waiting receivers are not woken when there are messages again.
    WakeLost,
    /// A receiver that was skipped while another partition served it is not woken again.
    PassedOver,
    /// A caller that waits for the end of a key is not notified.
    EndLost,
    /// A copy pins the rows before it pins the journal.
    RowsPinnedFirst,
    /// Segments are reused while they are copied.
    SegmentsNotPinned,
    /// An idle partition takes no checkpoint to free disk space.
    NoRelief,
    /// An append to the database checks neither epoch nor claim.
    NoClaimCheck,
    /// An append to the database does not check that the batch before is there.
    NoChainCheck,
    /// A batch that is found in the database counts as durable, replicated or not.
    FoundIsDurable,
    /// Nodes judge heartbeats by the database's clock.
    DatabaseClock,
    /// Runs that no manifest lists are removed when a node starts, before it claims.
    LeftoversBeforeClaim,
}

/// The store of one partition: on the simulated disk, or in memory if owners race.
#[derive(Debug)]
pub struct SimStore {
    inner: Inner,
    partition: u16,
    bug: Option<Bug>,
    appended: Sequence,
    /// The real positions of this owner's batches: for `NoEpochCheck` only.
    places: BTreeMap<Sequence, Sequence>,
    shared: Arc<Mutex<Shared>>,
    /// A batch that may be the first part of one: for `FirstPartLost` only.
    part: Option<(Epoch, Sequence, Vec<u8>)>,
}

#[derive(Debug)]
enum Inner {
    Disk(DiskStore),
    Memory(MemoryStore),
    Postgres(Box<Joined<PostgresLog>>),
}

/// State of the planted bugs that owners share.
#[derive(Debug, Default)]
pub struct Shared {
    epoch: Epoch,
    last: Sequence,
    /// Messages that are not durable yet, with their batch.
    staged: BTreeMap<Digest, (Sequence, MessageId, Time)>,
}

impl SimStore {
    pub fn disk(store: DiskStore, partition: u16, bug: Option<Bug>) -> Self {
        Self::new(Inner::Disk(store), partition, bug, Arc::default())
    }

    pub fn memory(
        store: MemoryStore,
        partition: u16,
        bug: Option<Bug>,
        shared: Arc<Mutex<Shared>>,
    ) -> Self {
        Self::new(Inner::Memory(store), partition, bug, shared)
    }

    pub fn postgres(store: Joined<PostgresLog>, partition: u16, bug: Option<Bug>) -> Self {
        Self::new(Inner::Postgres(Box::new(store)), partition, bug, Arc::default())
    }

    fn new(inner: Inner, partition: u16, bug: Option<Bug>, shared: Arc<Mutex<Shared>>) -> Self {
        let (places, part) = (BTreeMap::new(), None);
        Self { inner, partition, bug, appended: 0, places, shared, part }
    }

    /// The last appended batch is complete.
    pub fn end_batch(&mut self) -> Result<(), Error> {
        match self.part.take() {
            Some((epoch, sequence, batch)) => self.store().append(epoch, sequence, &batch),
            None => Ok(()),
        }
    }

    /// Writes the previous part without its decisions.
    fn append_part(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        if let Some((epoch, sequence, first)) = self.part.replace((epoch, sequence, batch.into()))
            && let Ok((at, _)) = read_batch(&first)
        {
            let mut empty = Batch::default();
            empty.begin(at);
            self.store().append(epoch, sequence, empty.bytes())?;
        }
        Ok(())
    }

    /// The message that the planted bug takes for known.
    pub fn staged(&self, digest: &Digest) -> Option<(MessageId, Time)> {
        lock(&self.shared).staged.get(digest).map(|(_, id, at)| (*id, *at))
    }

    /// The source for a copy, if the store is on a disk.
    pub fn source(&self) -> Option<disk::Source> {
        match &self.inner {
            Inner::Disk(store) => Some(store.source()),
            Inner::Memory(_) | Inner::Postgres(_) => None,
        }
    }

    fn store(&mut self) -> &mut dyn Store {
        match &mut self.inner {
            Inner::Disk(store) => store,
            Inner::Memory(store) => store,
            Inner::Postgres(store) => &mut **store,
        }
    }

    fn stage(&self, sequence: Sequence, batch: &[u8]) {
        let Ok((at, decisions)) = read_batch(batch) else { return };
        let mut shared = lock(&self.shared);
        for decision in decisions {
            if let Decision::Accepted(accepted) = decision {
                let id = MessageId::new(at, self.partition, accepted.seq);
                shared.staged.insert(accepted.digest, (sequence, id, at));
            }
        }
    }

    fn is_unfenced(&self) -> bool {
        self.bug == Some(Bug::NoEpochCheck)
    }
}

impl Store for SimStore {
    fn claim(&mut self) -> Result<Claim, Error> {
        let claim = self.store().claim()?;
        self.appended = claim.last;
        let mut shared = lock(&self.shared);
        (shared.epoch, shared.last) = (claim.epoch, claim.last);
        shared.staged.clear();
        drop(shared);
        self.places.insert(claim.last, claim.last);
        Ok(claim)
    }

    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        self.store().read(from, each)
    }

    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        if self.bug == Some(Bug::KeyBeforeAppend) {
            self.stage(sequence, batch);
        }
        if self.is_unfenced() {
            let shared = Arc::clone(&self.shared);
            let mut shared = lock(&shared);
            self.store().append(shared.epoch, shared.last + 1, batch)?;
            shared.last += 1;
            self.places.insert(sequence, shared.last);
        } else if self.bug == Some(Bug::FirstPartLost) {
            self.append_part(epoch, sequence, batch)?;
        } else {
            self.store().append(epoch, sequence, batch)?;
        }
        self.appended = sequence;
        Ok(())
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        let unfenced = self.is_unfenced();
        let durable = match &mut self.inner {
            Inner::Memory(store) if unfenced => store.another().durable()?,
            Inner::Memory(store) => store.durable()?,
            Inner::Disk(store) => store.durable()?,
            Inner::Postgres(store) => store.durable()?,
        };
        lock(&self.shared).staged.retain(|_, (sequence, ..)| *sequence > durable);
        if unfenced {
            let reached = self.places.iter().filter(|(_, real)| **real <= durable);
            return Ok(reached.map(|(own, _)| *own).max().unwrap_or(0));
        }
        Ok(if self.bug == Some(Bug::AckBeforeSync) { self.appended } else { durable })
    }

    fn confirm(&mut self) -> Result<Question, Error> {
        match self.bug {
            Some(Bug::ReadsUnconfirmed | Bug::NoEpochCheck) => Ok(0),
            _ => self.store().confirm(),
        }
    }

    fn confirmed(&mut self) -> Result<Question, Error> {
        self.store().confirmed()
    }

    fn checkpoint(&mut self, mut checkpoint: Checkpoint) -> Result<(), Error> {
        self.end_batch()?;
        if self.is_unfenced() {
            checkpoint.epoch = lock(&self.shared).epoch;
            let real = self.places.get(&checkpoint.through);
            checkpoint.through = real.copied().unwrap_or(checkpoint.through);
        }
        self.store().checkpoint(checkpoint)
    }

    fn abandon(&mut self) -> Result<bool, Error> {
        self.store().abandon()
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        let unfenced = self.is_unfenced();
        match &mut self.inner {
            Inner::Memory(store) if unfenced => {
                let real = store.another().checkpointed()?;
                let reached = self.places.iter().filter(|(_, at)| **at <= real);
                Ok(reached.map(|(own, _)| *own).max().unwrap_or(0))
            }
            _ => self.store().checkpointed(),
        }
    }

    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        let unfenced = self.is_unfenced();
        if self.bug == Some(Bug::KeyMissed) && self.appended.is_multiple_of(4) {
            return Ok(());
        }
        match &mut self.inner {
            Inner::Memory(store) if unfenced => store.another().get_many(keys, found),
            _ => self.store().get_many(keys, found),
        }
    }

    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        let unfenced = self.is_unfenced();
        if self.bug == Some(Bug::LeasesCut) && is_later_lease(from) {
            return Ok(());
        }
        let mut left = if self.bug == Some(Bug::ScanCut) { SCAN_CUT } else { usize::MAX };
        let mut cut = |key: &[u8], value: Option<&[u8]>| {
            left -= usize::from(value.is_some());
            each(key, value) && left > 0
        };
        let each = &mut cut;
        match &mut self.inner {
            Inner::Memory(store) if unfenced => store.another().scan(from, to, each),
            _ => self.store().scan(from, to, each),
        }
    }

    fn room(&mut self) -> Room {
        self.store().room()
    }

    fn close(&mut self) -> Result<(), Error> {
        self.end_batch()?;
        self.store().close()
    }
}

/// Rows that a planted scan returns.
const SCAN_CUT: usize = 3;

/// Whether a scan continues with leased messages after one: `10 queue 02 seq`, and one more byte.
fn is_later_lease(from: &[u8]) -> bool {
    from.first() == Some(&0x10) && from.get(5) == Some(&2) && from.len() > 14
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
