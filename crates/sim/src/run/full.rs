//! A disk that the broker itself fills: when everything has ended, sends are accepted again without
//! anyone making room.

use super::{Going, Run, wrong};
use crate::faults::Kind;
use crate::op::{How, Op, Patience};
use crate::workload::{create, make_plain};

/// This many sends fill most disks; otherwise the run proves nothing.
const SENDS_MAX: usize = 800;
const BATCH: usize = 20;
/// Free space above the watermark, in segments, when the sends begin.
const SEGMENTS: u64 = 4;
/// The most rounds until everything is finished.
const ROUNDS_MAX: u32 = 800;
/// Messages of a queue in work at once.
const LEASES: u32 = 6;
/// Rounds without requests; below, the length of each, longer than the time between checkpoints
/// that free disk space.
const IDLE_ROUNDS: u32 = 30;
const IDLE_MS: u64 = 2_500;
/// With less memory every few messages cause a checkpoint of whole blocks, which soon use up a
/// watermark of a few blocks.
const MEMORY_BYTES_MIN: usize = 64 << 10;
/// The most bytes that a finished key leaves in the rows.
const RECORD_BYTES: u64 = 256;
/// Bytes that merges do not reclaim: small rows, and blocks of small sections.
const TOLERATED_BYTES: u64 = 1 << 20;

/// A checkpoint may free less than this, in segments: one may have been filled since the last one.
const MISSED_SEGMENTS: u64 = 2;

impl Run {
    pub(super) fn fill_by_sends(&mut self) -> Going<()> {
        let is_told = self.kinds.contains(&Kind::Full) && self.rotten.is_none();
        let has_memory = self.scene.partition.memory_bytes >= MEMORY_BYTES_MIN;
        if !is_told || !has_memory || !self.world.is_on_disk() {
            return Ok(());
        }
        self.note(|| "fill by sends".to_owned());
        self.make_queues_plain()?;
        let journal = &self.scene.store.journal;
        let room = journal.free_bytes_min + SEGMENTS * u64::from(journal.segment_bytes);
        self.world.disk.set_capacity(self.world.disk.used_bytes() + room);
        self.checker.may_be_full = true;
        let rows = self.row_bytes();
        let sent = self.send_until_refused()?;
        if sent < SENDS_MAX {
            self.tally.count("disks filled by sends");
            self.finish_all()?;
            for _ in 0..IDLE_ROUNDS {
                self.tick_on()?;
                self.settle()?;
                self.world.pass(IDLE_MS);
            }
            let refused = self.refused_sends();
            self.send_some(1)?;
            // The checkpoint that time has made due is copied in steps.
            self.tick_on()?;
            self.settle()?;
            if self.refused_sends() > refused {
                self.nothing_can_be_given_back(rows, sent as u64)?;
                self.no_checkpoint_is_missing()?;
            } else {
                self.tally.count("disks that recovered");
            }
        }
        self.free();
        self.drain_rounds()
    }

    /// Configures the queues so that messages end only when they are worked on.
    fn make_queues_plain(&mut self) -> Going<()> {
        let queues = 0..self.scene.queues.len();
        let missing = queues.clone().filter(|queue| !self.checker.exists(0, *queue));
        let missing =
            missing.map(|queue| create(&mut self.clients, &self.checker, queue)).collect();
        self.submit_all(missing)?;
        let plain = queues.map(|queue| make_plain(&self.checker, queue)).collect();
        self.submit_all(plain)
    }

    fn send_until_refused(&mut self) -> Going<usize> {
        let refused = self.refused_sends();
        let mut sent = 0;
        while sent < SENDS_MAX && self.refused_sends() == refused {
            self.send_some(BATCH)?;
            sent += BATCH;
        }
        Ok(sent)
    }

    fn refused_sends(&self) -> u64 {
        self.tally.get("refused for room")
    }

    fn send_some(&mut self, count: usize) -> Going<()> {
        let (random, scene) = (&mut self.clients, &self.scene);
        let new = |_| self.workload.plain_send(random, scene, &mut self.checker);
        let sends = (0..count).map(new).collect();
        self.submit_all(sends)
    }

    /// Settles everything: settles need no room that sends have taken.
    fn finish_all(&mut self) -> Going<()> {
        for _ in 0..ROUNDS_MAX {
            let mut ops = Vec::new();
            for held in self.workload.held().to_vec() {
                ops.push(Op::Settle { held, how: How::Done(Vec::new()) });
            }
            for queue in 0..self.scene.queues.len() {
                let (lease_ms, id, several) = (None, None, false);
                let patience = Patience::None;
                ops.push(Op::Receive { queue, max: LEASES, lease_ms, id, several, patience });
                ops.push(Op::Show { queue });
            }
            self.submit_all(ops)?;
            self.tick_on()?;
            self.world.pass(20);
            let left = self.shown.values().map(hapax_core::Stats::messages).sum::<u64>();
            if left == 0 && self.workload.held().is_empty() {
                return Ok(());
            }
        }
        let (shown, disk) = (&self.shown, self.describe_disk());
        wrong(format!("a full disk keeps messages from being finished: {shown:?}; {disk}"))
    }

    /// Checks that a disk that stays full only holds what is needed.
    fn nothing_can_be_given_back(&self, rows_before: u64, sent: u64) -> Going<()> {
        let names = self.world.disk.names();
        let segments = names.iter().filter(|name| name.ends_with(".seg")).count();
        let segments_max = 8 + self.scene.store.journal.spares_min;
        let rows_max = rows_before + sent * RECORD_BYTES + TOLERATED_BYTES;
        if segments > segments_max || self.row_bytes() > rows_max {
            let disk = self.describe_disk();
            return wrong(format!(
                "sends are refused for more than {segments_max} segments and {rows_max} bytes of \
                 rows: {disk}"
            ));
        }
        Ok(())
    }

    /// Checks that a checkpoint frees nothing that an idle partition should have freed by itself.
    fn no_checkpoint_is_missing(&mut self) -> Going<()> {
        for _ in 0..IDLE_ROUNDS {
            if !self.world.is_checkpointing() {
                break; // One that is under way is not missing.
            }
            self.settle()?;
            self.world.pass(IDLE_MS);
        }
        let before = self.world.disk.used_bytes();
        let cut = self.world.checkpoint();
        self.excuse(cut)?;
        for _ in 0..IDLE_ROUNDS {
            self.settle()?;
            self.world.pass(IDLE_MS);
        }
        let freed = before.saturating_sub(self.world.disk.used_bytes());
        if freed >= MISSED_SEGMENTS * u64::from(self.scene.store.journal.segment_bytes) {
            let disk = self.describe_disk();
            return wrong(format!(
                "an idle partition left {freed} bytes on a full disk, which a checkpoint freed: \
                 {disk}"
            ));
        }
        Ok(())
    }

    /// Describes what fills the disk.
    pub(super) fn describe_disk(&self) -> String {
        let disk = &self.world.disk;
        let names = disk.names();
        let sizes = names.iter().filter_map(|name| Some((name, disk.contents(name).ok()?.len())));
        format!("{} bytes of the disk in {:?}", disk.used_bytes(), sizes.collect::<Vec<_>>())
    }

    fn row_bytes(&self) -> u64 {
        let disk = &self.world.disk;
        let runs = disk.names().into_iter().filter(|name| name.starts_with("run-"));
        runs.filter_map(|name| disk.contents(&name).ok()).map(|bytes| bytes.len() as u64).sum()
    }
}
