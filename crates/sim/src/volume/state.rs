//! One disk and the machine it is in: the medium, its faults, the locks, and how many times the
//! machine or its processes were started. Every operation of a volume is one call of
//! [`State::perform`], which decides whether the caller's process is still alive and whether it
//! survives the operation.

use std::collections::BTreeSet;
use std::io;

use super::fault::{Counters, Faults, matches};
use super::medium::{FileId, Losses, Medium, SECTOR, Survival};
use super::trace::{Call, Trace, word};
use crate::Random;

/// How the processes on a disk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The power was cut: what was not synced is lost, or not.
    Crash,
    /// The processes were killed: what they wrote stays in the cache.
    Kill,
}

/// The default capacity of a disk.
const CAPACITY_DEFAULT: u64 = 1 << 40;

// The error numbers of Linux: a store distinguishes errors by the kind these map to.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) medium: Medium,
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) counters: Counters,
    pub(super) trace: Option<Trace>,
    pub(super) capacity: u64,
    pub(super) delay_ms: u64,
    /// Handles of another generation belong to processes that are gone.
    pub(super) generation: u64,
    /// Set from the end of the processes to the next mount.
    pub(super) stopped: Option<Stop>,
    locks: BTreeSet<String>,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            medium: Medium::default(),
            random: Random::new(seed),
            faults: Faults::default(),
            counters: Counters::default(),
            trace: None,
            capacity: CAPACITY_DEFAULT,
            delay_ms: 0,
            generation: 0,
            stopped: None,
            locks: BTreeSet::new(),
        }
    }

    /// Does one operation for a process of `generation`, unless it is gone or ends with this
    /// operation.
    pub(super) fn perform<T>(
        &mut self,
        generation: u64,
        call: Call<'_>,
        work: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        if generation != self.generation {
            return Err(gone());
        }
        let Some(stop) = self.interruption(&call) else {
            let result = work(self);
            self.record(&call, &word(&result));
            return result;
        };
        // Without an answer the caller cannot know whether the operation was done.
        if self.random.one_in(2) {
            drop(work(self));
        }
        self.record(&call, &"interrupted");
        match stop {
            Stop::Crash => self.crash(None),
            Stop::Kill => self.kill(),
        }
        Err(gone())
    }

    pub(super) fn crash(&mut self, survival: Option<Survival>) {
        let survival = survival.unwrap_or_else(|| Survival::draw(&mut self.random));
        let losses = self.medium.crash(survival, &mut self.random);
        self.count_losses(losses);
        self.counters.crashes += 1;
        self.end(Stop::Crash);
    }

    pub(super) fn kill(&mut self) {
        self.medium.close_all();
        self.counters.kills += 1;
        self.end(Stop::Kill);
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity.saturating_sub(self.medium.used_bytes())
    }

    /// Records a call after it was performed, because reads are recorded with their result.
    pub(super) fn record(&mut self, call: &Call<'_>, result: &dyn std::fmt::Display) {
        if let Some(trace) = &mut self.trace {
            trace.add(call, result);
        }
    }

    pub(super) fn read(
        &mut self,
        file: (FileId, &str),
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        self.counters.reads += 1;
        if self.faults.read_error.strikes(Some(file.1), &mut self.random) {
            self.counters.read_errors += 1;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.medium.read(file.0, buffer, offset)
    }

    pub(super) fn write(
        &mut self,
        file: (FileId, &str),
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        let (id, name) = file;
        self.counters.writes += 1;
        self.counters.bytes_written += bytes.len() as u64;
        if self.faults.write_error.strikes(Some(name), &mut self.random) {
            self.counters.write_errors += 1;
            let written = self.random.index(bytes.len() + 1) / SECTOR * SECTOR;
            self.medium.write(id, bytes.get(..written).unwrap_or_default(), offset)?;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let fitting = self.medium.fitting(id, bytes.len(), offset, self.free_bytes());
        if fitting < bytes.len() {
            self.counters.writes_without_room += 1;
            self.medium.write(id, bytes.get(..fitting).unwrap_or_default(), offset)?;
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        if self.faults.misdirected_write.strikes(Some(name), &mut self.random)
            && let Some((other, place)) = self.misdirection(id, offset)
        {
            self.counters.writes_misdirected += 1;
            return self.misdirect(id, bytes, offset, (other, place));
        }
        self.medium.write(id, bytes, offset)
    }

    pub(super) fn sync(&mut self, file: (FileId, &str)) -> io::Result<()> {
        let (id, name) = file;
        self.counters.syncs += 1;
        if self.faults.slow_sync.strikes(Some(name), &mut self.random) {
            self.counters.slow_syncs += 1;
            self.delay_ms += self.random.between(1, self.faults.slow_sync_ms_max.max(1));
        }
        if self.faults.sync_error.strikes(Some(name), &mut self.random) {
            self.counters.sync_errors += 1;
            let losses = self.medium.fail_sync(id, &mut self.random)?;
            self.count_losses(losses);
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if self.faults.lying_sync.strikes(Some(name), &mut self.random) {
            self.counters.syncs_ignored += 1;
            return Ok(());
        }
        self.medium.sync(id)
    }

    pub(super) fn sync_names(&mut self) -> io::Result<()> {
        self.counters.name_syncs += 1;
        if self.faults.names_error.strikes(None, &mut self.random) {
            self.counters.names_errors += 1;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        if self.faults.lying_sync.strikes(None, &mut self.random) {
            self.counters.syncs_ignored += 1;
            return Ok(());
        }
        self.medium.sync_names();
        Ok(())
    }

    /// Takes a lock, creating its file if missing, as `flock` on an opened file does.
    pub(super) fn lock(&mut self, name: &str) -> io::Result<()> {
        if self.medium.find(name).is_err() {
            self.medium.create(name)?;
        }
        if self.locks.insert(name.to_owned()) {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    pub(super) fn unlock(&mut self, name: &str) {
        self.locks.remove(name);
    }

    /// Inverts one bit at rest.
    pub(super) fn flip(&mut self, id: FileId, offset: u64, bit: u32) -> io::Result<()> {
        let mut byte = [0];
        self.medium.read(id, &mut byte, offset)?;
        self.medium.overwrite(id, &byte.map(|byte| byte ^ (1 << (bit % 8))), offset)?;
        self.counters.bits_flipped += 1;
        Ok(())
    }

    /// The files with a name that matches, and a byte to damage.
    pub(super) fn matching(&self, pattern: &str) -> Vec<(String, FileId, u64)> {
        let named = self.medium.names().filter(|(name, _)| matches(pattern, name));
        let sized =
            named.filter_map(|(name, id)| Some((name.to_owned(), id, self.medium.len(id).ok()?)));
        sized.filter(|(_, _, len)| *len > 0).collect()
    }

    fn interruption(&mut self, call: &Call<'_>) -> Option<Stop> {
        let file = Some(call.file).filter(|file| !file.is_empty());
        if !call.changes {
            None
        } else if self.faults.power_cut.strikes(file, &mut self.random) {
            Some(Stop::Crash)
        } else if self.faults.kill.strikes(file, &mut self.random) {
            Some(Stop::Kill)
        } else {
            None
        }
    }

    fn end(&mut self, stop: Stop) {
        self.locks.clear();
        self.generation += 1;
        self.stopped = Some(stop);
        let call = Call { operation: "end", file: "", offset: 0, bytes: &[], changes: false };
        self.record(&call, &format_args!("{stop:?}"));
    }

    /// Another place for a write to land: the same place within a sector of some file.
    fn misdirection(&mut self, id: FileId, offset: u64) -> Option<(FileId, u64)> {
        let files = self.matching("*");
        let (_, other, len) = self.random.pick(&files)?;
        let sector = self.random.below(len.div_ceil(SECTOR as u64));
        let place = sector * SECTOR as u64 + offset % SECTOR as u64;
        ((*other, place) != (id, offset)).then_some((*other, place))
    }

    /// The file grows as it should, because lengths are not written with the data; the bytes
    /// overwrite the other place, within that file's length.
    fn misdirect(
        &mut self,
        id: FileId,
        bytes: &[u8],
        offset: u64,
        (other, place): (FileId, u64),
    ) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.medium.len(id)? {
            self.medium.set_len(id, end)?;
        }
        let room = self.medium.len(other)?.saturating_sub(place).min(bytes.len() as u64) as usize;
        self.medium.overwrite(other, bytes.get(..room).unwrap_or_default(), place)
    }

    fn count_losses(&mut self, losses: Losses) {
        self.counters.sectors_kept += losses.sectors_kept;
        self.counters.sectors_lost += losses.sectors_lost;
        self.counters.writes_torn += losses.writes_torn;
        self.counters.writes_reordered += losses.writes_reordered;
        self.counters.lengths_lost += losses.lengths_lost;
        self.counters.names_lost += losses.names_lost;
    }
}

pub(super) fn gone() -> io::Error {
    io::Error::other("the process or its machine is gone")
}
