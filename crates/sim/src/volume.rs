//! A disk that fails on demand, from a seed.
//!
//! [`SimDisk`] is the interface for the tests: it cuts the power, kills processes, fills and
//! damages the disk, counts and copies. [`SimVolume`] is the interface for the store, from
//! [`SimDisk::mount`]: a [`Volume`] like any other. After a crash or a kill all earlier volumes,
//! files and locks are dead: their calls fail and change nothing, so a store that is still being
//! dropped cannot change what the next one recovers.
//!
//! [`Survival`] defines what a crash may do to unsynced data. Synced data always survives a crash;
//! only [`Faults`] and damage by the tests affect it.

mod fault;
mod medium;
mod sparse;
mod state;
#[cfg(test)]
mod tests;
mod trace;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_store::archive::Head;
use hapax_store::{File, Lock, NotReplaced, Volume, replace_by_rename};

use crate::Random;

pub use fault::{Counters, Faults, Trigger, matches};
use medium::FileId;
pub use medium::Survival;
use state::State;
pub use state::Stop;
pub use trace::Trace;
use trace::{Call, word};

/// The disk as the tests see it, which may do what no program can. Clones share the disk;
/// [`SimDisk::fork`] copies it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// A bit that was inverted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    pub file: String,
    pub offset: u64,
    pub bit: u32,
}

impl SimDisk {
    /// An empty disk without faults.
    pub fn new(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed))) }
    }

    /// A copy of the disk with its pending changes, to try what would happen if everything ended
    /// here. The copy has no handles and no faults, and counts from zero.
    pub fn fork(&self, seed: u64) -> Self {
        let mut state = self.state().clone();
        state.random = Random::new(seed);
        state.faults = Faults::default();
        state.kill();
        state.counters = Counters::default();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The volume for a new process.
    pub fn mount(&self) -> Arc<SimVolume> {
        let mut state = self.state();
        state.stopped = None;
        Arc::new(SimVolume { state: Arc::clone(&self.state), generation: state.generation })
    }

    /// Cuts the power. What survives is drawn, see [`Survival::draw`].
    pub fn crash(&self) {
        self.state().crash(None);
    }

    pub fn crash_with(&self, survival: Survival) {
        self.state().crash(Some(survival));
    }

    /// Kills all processes: what they wrote stays, and may still be lost in a later crash.
    pub fn kill(&self) {
        self.state().kill();
    }

    /// How the processes ended, if they did since the last mount; a fault may be the cause.
    pub fn stopped(&self) -> Option<Stop> {
        self.state().stopped
    }

    /// Changes the faults.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state().faults);
    }

    /// Ends all faults. Damage done stays.
    pub fn heal(&self) {
        self.state().faults = Faults::default();
    }

    /// Sets the capacity in bytes, counted in units of 4 KiB.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    pub fn used_bytes(&self) -> u64 {
        self.state().medium.used_bytes()
    }

    /// Inverts one bit at rest.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u32) -> io::Result<()> {
        let mut state = self.state();
        let id = state.medium.find(name)?;
        state.flip(id, offset, bit)
    }

    /// Inverts a bit of a file whose name matches; `None` if none matches or all are empty.
    pub fn flip_any_bit(&self, pattern: &str) -> Option<Flip> {
        let mut state = self.state();
        let files = state.matching(pattern);
        let (file, id, len) = state.random.pick(&files)?.clone();
        let (offset, bit) = (state.random.below(len), state.random.below(8) as u32);
        state.flip(id, offset, bit).ok()?;
        Some(Flip { file, offset, bit })
    }

    /// Replaces bytes at rest, within the file's length.
    pub fn overwrite(&self, name: &str, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        let id = state.medium.find(name)?;
        state.medium.overwrite(id, bytes, offset)
    }

    /// Cuts or grows a file at rest.
    pub fn cut(&self, name: &str, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let id = state.medium.find(name)?;
        state.medium.cut(id, len)
    }

    /// A file's bytes as programs would read them.
    pub fn contents(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        let id = state.medium.find(name)?;
        let mut bytes = vec![0; state.medium.len(id)? as usize];
        state.medium.read(id, &mut bytes, 0)?;
        Ok(bytes)
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        self.state().medium.names().map(|(name, _)| name.to_owned()).collect()
    }

    /// The milliseconds that slow syncs took since the last call, for the harness's clock.
    pub fn take_delay(&self) -> u64 {
        std::mem::take(&mut self.state().delay_ms)
    }

    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Starts a trace that keeps the first `lines_max` lines.
    pub fn record(&self, lines_max: usize) {
        self.state().trace = Some(Trace::new(lines_max));
    }

    /// The trace so far; empty if none was started.
    pub fn trace(&self) -> Trace {
        self.state().trace.clone().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        state_of(&self.state)
    }
}

/// A disk as one process sees it.
#[derive(Debug)]
pub struct SimVolume {
    state: Arc<Mutex<State>>,
    generation: u64,
}

impl SimVolume {
    fn perform<T>(
        &self,
        operation: &'static str,
        file: &str,
        work: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let changes = !matches!(operation, "open" | "list" | "free");
        let call = Call { operation, file, offset: 0, bytes: &[], changes };
        state_of(&self.state).perform(self.generation, call, work)
    }

    fn file(&self, state: &mut State, id: FileId, name: &str) -> Arc<dyn File> {
        state.medium.opened(id);
        Arc::new(SimFile {
            state: Arc::clone(&self.state),
            generation: self.generation,
            id,
            name: name.to_owned(),
        })
    }
}

impl Volume for SimVolume {
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.perform("open", name, |state| {
            let id = state.medium.find(name)?;
            Ok(self.file(state, id, name))
        })
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let created = self.perform("create", name, |state| state.medium.create(name));
        // The handle is created outside of the operation: dropping it inside, after an
        // interruption, would lock the disk a second time.
        let id = created?;
        Ok(self.file(&mut state_of(&self.state), id, name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.perform("rename", to, |state| state.medium.rename(from, to))
    }

    fn replace(&self, name: &str, bytes: &[u8], _head: Head) -> Result<(), NotReplaced> {
        replace_by_rename(self, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.perform("remove", name, |state| state.medium.remove(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.perform("list", "", |state| {
            Ok(state.medium.names().map(|(name, _)| name.to_owned()).collect())
        })
    }

    fn sync_names(&self) -> io::Result<()> {
        self.perform("sync_names", "", State::sync_names)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Lock>> {
        self.perform("lock", name, |state| state.lock(name))?;
        Ok(Box::new(SimLock {
            state: Arc::clone(&self.state),
            generation: self.generation,
            name: name.to_owned(),
        }))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.perform("free", "", |state| Ok(state.free_bytes()))
    }

    fn describe(&self, name: &str) -> String {
        format!("sim:{name}")
    }
}

struct SimFile {
    state: Arc<Mutex<State>>,
    generation: u64,
    id: FileId,
    name: String,
}

impl SimFile {
    fn perform<T>(
        &self,
        operation: &'static str,
        (bytes, offset): (&[u8], u64),
        work: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let changes = !matches!(operation, "len");
        let call = Call { operation, file: &self.name, offset, bytes, changes };
        state_of(&self.state).perform(self.generation, call, work)
    }
}

impl File for SimFile {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = state_of(&self.state);
        if self.generation != state.generation {
            return Err(state::gone());
        }
        let result = state.read((self.id, &self.name), buffer, offset);
        let call = Call {
            operation: "read",
            file: &self.name,
            offset,
            bytes: if result.is_ok() { buffer } else { &[] },
            changes: false,
        };
        state.record(&call, &word(&result));
        result
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.perform("write", (bytes, offset), |state| {
            state.write((self.id, &self.name), bytes, offset)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.perform("sync", (&[], 0), |state| state.sync((self.id, &self.name)))
    }

    fn len(&self) -> io::Result<u64> {
        self.perform("len", (&[], 0), |state| state.medium.len(self.id))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.perform("set_len", (&[], len), |state| state.medium.set_len(self.id, len))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = state_of(&self.state);
        if self.generation == state.generation {
            state.medium.closed(self.id);
        }
    }
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFile({})", self.name)
    }
}

struct SimLock {
    state: Arc<Mutex<State>>,
    generation: u64,
    name: String,
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = state_of(&self.state);
        if self.generation == state.generation {
            state.unlock(&self.name);
        }
    }
}

impl std::fmt::Debug for SimLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimLock({})", self.name)
    }
}

/// Ignores poisoning: a test that panicked while it held the disk has failed already, and dropping
/// handles afterwards should not panic again.
fn state_of(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
