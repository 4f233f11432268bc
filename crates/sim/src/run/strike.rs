//! Injects faults.

use std::collections::BTreeMap;

use hapax_partition::Error;
use hapax_store::Error as StoreError;

use super::{Ended, Going, Run, wrong};
use crate::faults::Kind;
use crate::op::Op;
use crate::volume::Trigger;

const HOUR_MS: i64 = 3_600_000;
/// The capacity of a disk that is not full.
const CAPACITY: u64 = 1 << 40;

impl Run {
    pub(super) fn strike(&mut self) -> Going<()> {
        let Some(kind) = self.faults.pick(&self.kinds).copied() else { return Ok(()) };
        self.struck = true;
        self.note(|| format!("strike {}", kind.as_str()));
        match kind {
            Kind::Power => self.strike_power(),
            Kind::Io => {
                self.strike_io();
                Ok(())
            }
            Kind::Full => {
                self.fill();
                Ok(())
            }
            Kind::Rot => self.strike_rot(),
            Kind::Clock => {
                let jump = self.faults.between(0, 4 * HOUR_MS as u64) as i64 - 2 * HOUR_MS;
                self.world.jump(jump);
                self.tally.count("clock jumps");
                Ok(())
            }
            Kind::Takeover => self.take_over(),
        }
    }

    fn strike_power(&mut self) -> Going<()> {
        let random = &mut self.faults;
        let pattern = *random.pick(&["*", "journal-*", "run-*", "MANIFEST*"]).unwrap_or(&"*");
        match random.below(6) {
            0 | 1 => {
                let nth = Trigger::nth(random.between(1, 60));
                self.world.disk.faults(|faults| faults.power_cut = nth);
            }
            2 => {
                let nth = Trigger::nth(random.between(1, 6)).on(pattern);
                self.world.disk.faults(|faults| faults.power_cut = nth);
            }
            3 => {
                let nth = Trigger::nth(random.between(1, 60));
                self.world.disk.faults(|faults| faults.kill = nth);
            }
            4 => {
                let power = random.one_in(2);
                self.forget_unanswered(power);
                return self.reopen();
            }
            _ => return self.restart_in_good_order(),
        }
        Ok(())
    }

    pub(super) fn restart_in_good_order(&mut self) -> Going<()> {
        let closed = self.world.close();
        self.note(|| format!("close {closed:?}"));
        if let Err(error) = closed {
            self.judge(&error)?;
        }
        self.forget_unanswered(false);
        self.reopen()
    }

    fn strike_io(&mut self) {
        let random = &mut self.faults;
        let nth = |random: &mut crate::Random, most| Trigger::nth(random.between(1, most));
        match random.below(6) {
            0 | 1 => {
                let sync_error = nth(random, 8);
                self.world.disk.faults(|faults| faults.sync_error = sync_error);
            }
            2 => {
                let write_error = nth(random, 12);
                self.world.disk.faults(|faults| faults.write_error = write_error);
            }
            3 => {
                let names_error = nth(random, 3);
                self.world.disk.faults(|faults| faults.names_error = names_error);
            }
            4 => {
                let read_error = nth(random, 12);
                self.world.disk.faults(|faults| faults.read_error = read_error);
            }
            _ => {
                let slow = Trigger::one_in(random.between(1, 6));
                self.world.disk.faults(|faults| {
                    faults.slow_sync = slow;
                    faults.slow_sync_ms_max = 3_000;
                });
            }
        }
    }

    fn fill(&mut self) {
        let room = self.faults.below(96 << 10);
        let used = self.world.disk.used_bytes();
        self.world.disk.set_capacity(used + room);
        self.checker.may_be_full = true;
        self.freed_at = Some(self.step + self.faults.between(20, 150));
        self.tally.count("disks filled");
    }

    pub(super) fn free(&mut self) {
        self.freed_at = None;
        self.world.disk.set_capacity(CAPACITY);
        self.note(|| "freed".to_owned());
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.world.disk.heal();
    }

    /// A misdirected write may have overwritten acknowledged bytes, undetectably if it was the last
    /// one. So from here on only payloads are checked.
    pub(super) fn notice_damage(&mut self) {
        if self.world.disk.counters().writes_misdirected > 0 {
            self.checker.damaged = true;
        }
    }

    fn strike_rot(&mut self) -> Going<()> {
        if self.faults.one_in(4) {
            let nth = Trigger::nth(self.faults.between(1, 30));
            self.world.disk.faults(|faults| faults.misdirected_write = nth);
            return Ok(());
        }
        if self.rotten.is_some() || self.checker.damaged {
            return Ok(());
        }
        // After a clean end every byte counts; after a crash the last window may be torn, and a
        // flipped bit in it looks the same.
        self.heal();
        self.free();
        if let Err(error) = self.world.close() {
            self.judge(&error)?;
            self.forget_unanswered(false);
            return self.reopen();
        }
        self.forget_unanswered(false);
        self.flip_and_open()
    }

    fn flip_and_open(&mut self) -> Going<()> {
        let patterns = ["*", "journal-*", "run-*", "MANIFEST", "format", "journal.mark"];
        let pattern = *self.faults.pick(&patterns).unwrap_or(&"*");
        let Some(flip) = self.world.disk.flip_any_bit(pattern) else { return self.reopen() };
        self.note(|| format!("flip {flip:?}"));
        let before = self.contents();
        self.at_open = self.world.disk.counters();
        let opened = self.world.open(self.last_at);
        let Err(error) = opened else {
            self.tally.count("flips survived");
            self.rotten = Some(flip);
            self.last_stamp = None;
            return self.ask_witnesses();
        };
        self.note(|| format!("refused: {error}"));
        let after = self.contents();
        // A block of a run is read when needed. By then there is a new owner that removed
        // leftovers; that nothing else is lost is checked once the bit is restored.
        let counts = |name: &str| !self.world.has_claimed() || name == flip.file;
        let changed = before.iter().filter(|(name, bytes)| after.get(*name) != Some(bytes));
        let changed: Vec<&str> =
            changed.map(|(name, _)| name.as_str()).filter(|name| counts(name)).collect();
        if !changed.is_empty() {
            return wrong(format!("a refused store was changed in {changed:?}: {error}"));
        }
        match self.refused(&error) {
            Err(Ended::Refused) => {}
            other => return other,
        }
        // The bit is restored: everything else must be unchanged.
        self.forget_unanswered(false);
        if self.world.disk.flip_bit(&flip.file, flip.offset, flip.bit).is_err() {
            return wrong(format!("{} is gone", flip.file));
        }
        self.reopen()
    }

    /// Damage must be reported with file and offset.
    pub(super) fn refused(&mut self, error: &Error) -> Going<()> {
        match error {
            Error::Store(StoreError::Corrupt(corruption)) => {
                let names = self.world.disk.names();
                let named = names.iter().any(|name| corruption.file.ends_with(name.as_str()));
                let missing = corruption.what.contains("missing");
                if !named && !missing {
                    return wrong(format!("damage in a file that is not there: {error}"));
                }
                self.tally.count("damage refused");
                Err(Ended::Refused)
            }
            // The version's own bits may be the flipped ones.
            Error::Store(StoreError::NewerFormat { .. }) => {
                self.tally.count("damage refused");
                Err(Ended::Refused)
            }
            // A worker found the damage and reported it when it was stepped.
            Error::Store(StoreError::Stopped(cause)) | Error::Stopped(cause)
                if cause.contains("is damaged at byte") =>
            {
                Err(Ended::Refused)
            }
            _ => wrong(format!("damage was not told by file and offset: {error}")),
        }
    }

    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = &self.world.disk;
        let names = disk.names().into_iter().filter(|name| name != "LOCK");
        names
            .filter_map(|name| Some((disk.contents(&name).ok()?, name)))
            .map(|(bytes, name)| (name, bytes))
            .collect()
    }

    fn take_over(&mut self) -> Going<()> {
        if self.faults.one_in(3) {
            self.forget_unanswered(true);
            return self.reopen();
        }
        self.tally.count("takeovers");
        match self.world.take_over(self.last_at) {
            Ok(lost) => {
                self.lose(&lost);
                self.workload.crashed();
                self.forget_waiters();
                self.last_stamp = None;
                self.ask_witnesses()
            }
            Err(error) => wrong(format!("a takeover failed: {error}")),
        }
    }

    /// Some clients still use the replaced owner.
    pub(super) fn use_zombie(&mut self) -> Going<()> {
        if !self.world.has_zombie() {
            return Ok(());
        }
        let now = self.world.now();
        let mut ops: Vec<Op> = (0..self.random.between(1, 3))
            .flat_map(|_| {
                self.workload.next(&mut self.clients, &self.scene, &mut self.checker, now)
            })
            .collect();
        // Its successor sends the existing emits itself.
        for emit in ops.extract_if(.., |op| matches!(op, Op::Emit(_))) {
            self.workload.lost(&emit, &self.checker);
        }
        self.note(|| format!("submit to the zombie {ops:?}"));
        let items = self.checker.items();
        let submitted = self.world.submit(&mut self.random, ops, items, true);
        let polled = submitted.and_then(|()| self.world.poll(true));
        match polled {
            Ok(Some(told)) => self.told(told),
            Ok(None) => Ok(()),
            Err(error) => {
                self.note(|| format!("the zombie fell: {error}"));
                self.tally.count("zombies refused");
                let lost = self.world.bury();
                self.lose(&lost);
                Ok(())
            }
        }
    }
}
