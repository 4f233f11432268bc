//! The segments, by use.
//!
//! Invariants:
//! - `closed`, `active` and `spares` have ascending ids without a gap, and `next_id` follows;
//! - the first sequences of `closed` and `active` ascend;
//! - what is in `closed` and `active` up to `durable` is synced.

use std::collections::VecDeque;

use super::record::{Position, segment_name};
use super::recover::{Recovered, Segment};
use crate::{Error, Sequence, Volume};

#[derive(Debug)]
pub(super) struct Segments {
    /// Segments that are no longer written, oldest first.
    pub(super) closed: VecDeque<Segment>,
    /// The segment that is written.
    pub(super) active: Segment,
    /// Segments to be written next.
    pub(super) spares: VecDeque<Segment>,
    /// The id of the next spare.
    pub(super) next_id: u32,
    /// Segments that are no longer needed but not yet removed.
    pub(super) retired: VecDeque<Retired>,
    /// Number of readers that rely on `closed` not changing.
    pub(super) pins: usize,
    /// The last durable batch, and the end of its record or the seal after it.
    pub(super) durable: (Sequence, Position),
}

#[derive(Debug)]
pub(super) struct Retired {
    pub(super) id: u32,
    /// Whether it may become a spare.
    pub(super) reusable: bool,
}

impl Segments {
    /// Spares of another size than wanted, and all after them, are retired.
    pub(super) fn new(
        volume: &dyn Volume,
        recovered: Recovered,
        segment_bytes: u32,
    ) -> Result<Self, Error> {
        let Recovered { tail, mut live, retired, spares, strays, .. } = recovered;
        let Some(active) = live.pop() else {
            return Err(Error::Stopped("a journal was recovered without a segment".to_owned()));
        };
        let retire = |id, reusable| Retired { id, reusable };
        // Strays first: their ids are about to be used again.
        let mut retired: VecDeque<Retired> = strays
            .into_iter()
            .map(|id| retire(id, false))
            .chain(retired.into_iter().map(|id| retire(id, false)))
            .collect();
        let mut kept = VecDeque::new();
        let mut next_id = active.id + 1;
        for id in spares {
            let file = segment_name(id);
            let file = volume
                .open(&file)
                .and_then(|opened| Ok((opened.len()?, opened)))
                .map_err(|error| Error::io("open", &volume.describe(&file), error))?;
            let (len, file) = file;
            if id == next_id && len == u64::from(segment_bytes) {
                kept.push_back(Segment { id, file, first: Sequence::MAX, len });
                next_id += 1;
            } else {
                retired.push_front(retire(id, false));
            }
        }
        let durable = (tail.last(), tail.at);
        let closed = live.into();
        let segments = Self { closed, active, spares: kept, next_id, retired, pins: 0, durable };
        segments.check();
        Ok(segments)
    }

    /// Moves the segments that only hold batches up to `through` to `retired`, unless pinned.
    pub(super) fn retire(&mut self, through: Sequence, segment_bytes: u32) {
        while self.pins == 0 && self.closed.front().is_some() {
            let successor = self.closed.get(1).unwrap_or(&self.active);
            if successor.first > through.saturating_add(1) {
                return;
            }
            if let Some(Segment { id, len, .. }) = self.closed.pop_front() {
                assert!(id < self.active.id, "what is written stays");
                let reusable = len == u64::from(segment_bytes);
                self.retired.push_back(Retired { id, reusable });
            }
        }
    }

    /// Bytes that a checkpoint through the last batch would retire.
    pub(super) fn releasable_bytes(&self) -> u64 {
        if self.pins > 0 { 0 } else { self.closed.iter().map(|segment| segment.len).sum() }
    }

    /// The segments with durable batches, in order.
    pub(super) fn durable_segments(&self) -> Vec<Segment> {
        self.closed.iter().chain([&self.active]).cloned().collect()
    }

    pub(super) fn check(&self) {
        debug_assert!(
            self.closed
                .iter()
                .zip(self.closed.iter().skip(1))
                .all(|(a, b)| { a.id + 1 == b.id && a.first <= b.first })
        );
        let (last, spare) = (self.closed.back(), self.spares.back());
        assert!(last.is_none_or(|last| last.id + 1 == self.active.id), "no gap before the active");
        assert!(last.is_none_or(|last| last.first <= self.active.first), "sequences ascend");
        assert!(spare.is_none_or(|last| last.id + 1 == self.next_id), "no gap behind the spares");
        assert!(self.durable.1.segment <= self.active.id, "only what is written is durable");
    }
}
