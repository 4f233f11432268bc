//! The store in memory, for tests and the simulator: simple enough to be obviously correct.
//!
//! A [`MemoryStore`] is a handle; clones share the state, so that two owners can race, one of them
//! fenced. What is durable survives [`MemoryStore::crash`]; everything else does not. Faults are
//! configured with [`Faults`] and happen at a given operation, never at random.
//!
//! Invariants:
//! - `through <= durable <= last`;
//! - the journal holds exactly the batches after `through`, up to `last`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::journal::Wake;
use crate::journal::limits;
use crate::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Error, PointKey, Question, Room, RowSet,
    Sequence, Shortage, Store,
};

/// The faults to inject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Batches and checkpoints become durable only in [`MemoryStore::settle`].
    pub held: bool,
    /// So are questions answered, as over a network. Otherwise they are answered at once, as on a
    /// disk.
    pub asked: bool,
    /// An owner that was replaced learns it from what it appends, checkpoints and asks alone, as
    /// over a network. Otherwise everything it calls is refused.
    pub unaware: bool,
    /// The append with this number, counting from 1 from now on, fails and stops the store.
    pub failing_append: Option<u64>,
    /// The sync with this number, counting from 1 from now on, fails and stops the store.
    pub failing_sync: Option<u64>,
    /// The store reports [`Room::Low`], and checkpoints wait.
    pub full: bool,
    /// The largest batch, if it differs from the journal's limit.
    pub batch_bytes_max: Option<usize>,
    /// Rows that are deleted stay, and are shown without a value, as in an archive.
    pub keeps_deleted: bool,
}

impl Faults {
    /// One failure among the first `within` operations; the seed decides its kind and place.
    pub fn seeded(seed: u64, within: u64) -> Self {
        let number = mix(seed);
        let place = Some(1 + number / 2 % within.max(1));
        match number % 2 {
            0 => Self { failing_append: place, ..Self::default() },
            _ => Self { failing_sync: place, held: true, ..Self::default() },
        }
    }
}

/// How far the epochs of a copy are above those of its original.
const LINEAGE_EPOCHS: Epoch = 4_096;

/// A handle to a partition in memory.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    wake: Wake,
    /// The number of crashes before this handle was made.
    life: u64,
    /// The epoch this handle claimed.
    held: Option<Epoch>,
    closed: bool,
}

#[derive(Debug, Default)]
struct State {
    epoch: Epoch,
    through: Sequence,
    durable: Sequence,
    last: Sequence,
    journal: BTreeMap<Sequence, Vec<u8>>,
    points: BTreeMap<(PointKey, u64), Vec<u8>>,
    ordered: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Rows that scans have shown.
    shown: u64,
    checkpoint: Option<UnderWay>,
    /// The owner whose checkpoint the rows are of.
    rows_of: Epoch,
    /// The last batch of each earlier owner.
    ends: BTreeMap<Epoch, End>,
    asked: Question,
    answered: Question,
    faults: Faults,
    stopped: Option<String>,
    /// Number of crashes.
    life: u64,
    /// The last owner closed it.
    closed: bool,
}

#[derive(Debug)]
struct UnderWay {
    through: Sequence,
    at: u64,
    rows: RowSet,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(|| {}))
    }
}

impl MemoryStore {
    pub fn new(wake: Wake) -> Self {
        Self { state: Arc::default(), wake, life: 0, held: None, closed: false }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Makes everything appended durable: one sync.
    pub fn settle(&self) -> Result<(), Error> {
        let mut state = self.state();
        state.check()?;
        let synced = state.sync();
        if synced.is_ok() {
            state.answered = state.asked;
        }
        state.ends.values_mut().for_each(|end| end.is_told = end.has_lost);
        state.finish_checkpoint();
        drop(state);
        (self.wake)();
        synced
    }

    /// Finishes a checkpoint whose batches are durable, without a sync.
    pub fn finish_checkpoint(&self) {
        self.state().finish_checkpoint();
    }

    /// How many rows scans have shown, deleted ones among them.
    pub fn rows_shown(&self) -> u64 {
        self.state().shown
    }

    /// Loses everything that is not durable and returns a new handle; the old ones fail.
    pub fn crash(&self) -> Self {
        let mut state = self.state();
        state.lose();
        state.stopped = None;
        state.faults = Faults::default();
        state.life += 1;
        Self {
            state: Arc::clone(&self.state),
            wake: Arc::clone(&self.wake),
            life: state.life,
            held: None,
            closed: false,
        }
    }

    /// A copy of what is durable, like a backup. Its epochs begin above those that the original
    /// will reach.
    pub fn copy(&self) -> Self {
        let state = self.state();
        let durable = ..=state.durable;
        let journal = state.journal.range(durable).map(|(at, batch)| (*at, batch.clone()));
        let copy = State {
            epoch: state.epoch + LINEAGE_EPOCHS,
            through: state.through,
            durable: state.durable,
            last: state.durable,
            journal: journal.collect(),
            points: state.points.clone(),
            ordered: state.ordered.clone(),
            ..State::default()
        };
        drop(state);
        let (state, wake) = (Arc::new(Mutex::new(copy)), Arc::clone(&self.wake));
        Self { state, wake, life: 0, held: None, closed: false }
    }

    /// Another handle, which has claimed nothing yet.
    pub fn another(&self) -> Self {
        Self { held: None, closed: false, ..self.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a handle that may use it.
    fn live(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state();
        state.check()?;
        if self.closed || self.life != state.life {
            let cause = if self.closed { "it was closed" } else { "a crash" };
            return Err(Error::Stopped(cause.to_owned()));
        }
        Ok(state)
    }

    /// The state, for the newest owner's handle. What a successor made durable proves nothing about
    /// the batches of this one.
    fn owned(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.live()?;
        match self.held {
            Some(held) if held != state.epoch => Err(Error::Fenced { held, newest: state.epoch }),
            _ => Ok(state),
        }
    }

    /// The same for an owner that may have been replaced without noticing, where `is_over` does
    /// not give it away.
    fn owned_once(&self, is_over: impl FnOnce(&State, Epoch) -> bool) -> Owned<'_> {
        let state = self.live()?;
        match self.held {
            Some(held) if state.faults.unaware && !is_over(&state, held) => Ok((state, held)),
            held => {
                drop(state);
                Ok((self.owned()?, held.unwrap_or_default()))
            }
        }
    }
}

/// What is known of an owner that was replaced.
#[derive(Debug)]
struct End {
    last: Sequence,
    /// It had batches on their way, which the next owner did not see.
    has_lost: bool,
    /// It was told so.
    is_told: bool,
}

/// The state, and the epoch of the handle that looks at it.
type Owned<'a> = Result<(MutexGuard<'a, State>, Epoch), Error>;

impl State {
    fn batch_bytes_max(&self) -> usize {
        self.faults.batch_bytes_max.unwrap_or(limits::BATCH_BYTES_MAX_DEFAULT as usize)
    }

    fn check(&self) -> Result<(), Error> {
        assert!(self.through <= self.durable && self.durable <= self.last);
        assert_eq!(self.journal.len() as u64, self.last - self.through);
        match &self.stopped {
            Some(cause) => Err(Error::Stopped(cause.clone())),
            None => Ok(()),
        }
    }

    fn refuse_other_epochs(&self, held: Epoch) -> Result<(), Error> {
        // Epoch 0 has no owner.
        match held == self.epoch && held > 0 {
            true => Ok(()),
            false => Err(Error::Fenced { held, newest: self.epoch }),
        }
    }

    fn sync(&mut self) -> Result<(), Error> {
        if self.durable == self.last {
            return Ok(());
        }
        if strikes(&mut self.faults.failing_sync) {
            self.stopped = Some("a sync that failed, as asked for".to_owned());
            self.lose();
            return self.check();
        }
        self.durable = self.last;
        Ok(())
    }

    fn lose(&mut self) {
        self.journal.split_off(&(self.durable + 1));
        self.last = self.durable;
        self.checkpoint = None;
    }

    fn finish_checkpoint(&mut self) {
        if self.stopped.is_some() || self.faults.full {
            return;
        }
        let durable = self.durable;
        let Some(mut done) = self.checkpoint.take_if(|under_way| under_way.through <= durable)
        else {
            return;
        };
        // The order does not matter; sorting checks that no key appears twice.
        done.rows.sort();
        let rows = &done.rows;
        for point in &rows.points {
            let place = (point.key, point.drop_at);
            match rows.get(point.value) {
                Some(value) => self.points.insert(place, value.to_vec()),
                None => self.points.remove(&place),
            };
        }
        for row in &rows.ordered {
            let key = rows.get(row.key).unwrap_or_default();
            match rows.get(row.value) {
                Some(value) => self.ordered.insert(key.to_vec(), Some(value.to_vec())),
                None if self.faults.keeps_deleted => self.ordered.insert(key.to_vec(), None),
                None => self.ordered.remove(key),
            };
        }
        self.points.retain(|(_, drop_at), _| *drop_at > done.at);
        assert!(self.through < done.through, "checkpoints go forward");
        self.rows_of = self.epoch;
        self.journal = self.journal.split_off(&(done.through + 1));
        self.through = done.through;
        let first = self.journal.first_key_value().map(|(first, _)| *first);
        assert!(first.is_none_or(|first| first == self.through + 1), "the journal goes on");
    }
}

impl Store for MemoryStore {
    fn claim(&mut self) -> Result<Claim, Error> {
        let mut state = self.owned()?;
        let appended = state.last;
        state.lose();
        let (before, last) = (state.epoch, state.last);
        if before > 0 {
            let has_lost = appended > last;
            let is_told = has_lost && !state.faults.held;
            state.ends.insert(before, End { last, has_lost, is_told });
        }
        // An owner that claims again was not replaced in between; another one cannot ask.
        state.answered = state.asked;
        state.epoch += 1;
        let (epoch, through, last) = (state.epoch, state.through, state.last);
        let closed = std::mem::take(&mut state.closed);
        let batch_bytes_max = state.batch_bytes_max();
        let claim = Claim { epoch, through, last, closed, batch_bytes_max };
        drop(state);
        self.held = Some(claim.epoch);
        Ok(claim)
    }

    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        let state = self.live()?;
        if from <= state.through {
            return Err(Error::OutOfOrder { got: from, last: state.through });
        }
        if from > state.durable {
            return Ok(());
        }
        for (sequence, batch) in state.journal.range(from..=state.durable) {
            if !each(*sequence, batch)? {
                break;
            }
        }
        Ok(())
    }

    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        let mut state = self.live()?;
        state.refuse_other_epochs(epoch)?;
        if sequence != state.last + 1 {
            return Err(Error::OutOfOrder { got: sequence, last: state.last });
        }
        let max = state.batch_bytes_max();
        if batch.len() > max {
            return Err(Error::TooLarge { bytes: batch.len() as u64, max: max as u64 });
        }
        if strikes(&mut state.faults.failing_append) {
            state.stopped = Some("an append that failed, as asked for".to_owned());
            return state.check();
        }
        let before = state.journal.insert(sequence, batch.to_vec());
        assert!(before.is_none(), "a sequence is given once");
        state.last = sequence;
        if !state.faults.held {
            state.sync()?;
            state.finish_checkpoint();
        }
        drop(state);
        (self.wake)();
        Ok(())
    }

    fn durable(&mut self) -> Result<Sequence, Error> {
        let is_told = |state: &State, held| state.ends.get(&held).is_some_and(|end| end.is_told);
        let (state, held) = self.owned_once(is_told)?;
        Ok(match state.ends.get(&held) {
            Some(end) => state.durable.min(end.last),
            None => state.durable,
        })
    }

    fn confirm(&mut self) -> Result<Question, Error> {
        let (mut state, held) = self.owned_once(|_, _| false)?;
        state.asked += 1;
        let question = state.asked;
        if !state.faults.asked && held == state.epoch {
            state.answered = question;
        }
        Ok(question)
    }

    fn confirmed(&mut self) -> Result<Question, Error> {
        Ok(self.owned()?.answered)
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        let Checkpoint { epoch, through, at, rows: fill } = checkpoint;
        let mut state = self.live()?;
        state.refuse_other_epochs(epoch)?;
        if state.checkpoint.is_some() || through <= state.through || through > state.last {
            return Err(Error::OutOfOrder { got: through, last: state.through });
        }
        let mut rows = RowSet::default();
        fill(&mut rows);
        state.checkpoint = Some(UnderWay { through, at, rows });
        if !state.faults.held {
            state.finish_checkpoint();
        }
        drop(state);
        (self.wake)();
        Ok(())
    }

    fn abandon(&mut self) -> Result<bool, Error> {
        let mut state = self.owned()?;
        let is_full = state.faults.full;
        Ok(state.checkpoint.take_if(|_| is_full).is_some())
    }

    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        Ok(self.owned_once(|state, held| state.rows_of > held)?.0.through)
    }

    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        let (state, _) = self.owned_once(|state, held| state.rows_of > held)?;
        for (index, key) in keys.iter().enumerate() {
            let mut buckets = state.points.range((*key, 0)..=(*key, u64::MAX));
            if let Some((_, value)) = buckets.next_back() {
                found(index, value);
            }
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        let (mut state, _) = self.owned_once(|state, held| state.rows_of > held)?;
        if from < to {
            let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to));
            let mut shown = 0;
            for (key, value) in state.ordered.range::<[u8], _>(bounds) {
                shown += 1;
                if !each(key, value.as_deref()) {
                    break;
                }
            }
            state.shown += shown;
        }
        Ok(())
    }

    fn room(&mut self) -> Room {
        if self.state().faults.full { Room::Low(Shortage::default()) } else { Room::Free }
    }

    fn close(&mut self) -> Result<(), Error> {
        let mut state = self.owned()?;
        state.sync()?;
        state.finish_checkpoint();
        state.checkpoint = None;
        state.closed = true;
        drop(state);
        self.closed = true;
        Ok(())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("held", &self.held).finish_non_exhaustive()
    }
}

/// Counts down; true when it reaches zero.
fn strikes(count: &mut Option<u64>) -> bool {
    match count {
        Some(1) => count.take().is_some(),
        Some(left) => {
            *left = left.saturating_sub(1);
            false
        }
        None => false,
    }
}

/// One step of SplitMix64: spreads neighbouring seeds.
fn mix(seed: u64) -> u64 {
    let mut number = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
