//! The flusher: writes what is pending to the active segment and syncs it.
//!
//! Everything that is pending becomes one write and one sync, or one pair for each segment it
//! reaches into. Headers are built here, off the owner's thread, because the position of a record
//! and the synced position are known only now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::mark::{self, Mark};
use super::pending::{Batches, Frame};
use super::record::{
    Kind, Position, RECORD_HEADER_LEN, RecordHeader, RecordHeaderBytes, SEGMENT_HEADER_LEN, Seed,
    SegmentHeader, payload_checksum, record_len, segment_name,
};
use super::recover::Segment;
use super::walk::Cursor;
use super::{Core, Options, keeper, lock};
use crate::{Epoch, Error};

/// Makes pending batches durable, when stepped.
#[derive(Debug)]
pub struct Flusher {
    pub(super) core: Arc<Core>,
}

impl Flusher {
    /// Writes and syncs everything pending. False if there was nothing to do, or no room.
    pub fn step(&mut self) -> Result<bool, Error> {
        self.core.flush()
    }

    /// Whether batches wait for a spare segment.
    pub fn is_starved(&self) -> bool {
        lock(&self.core.writer).has_batches()
    }
}

/// Writes at the end of the journal.
#[derive(Debug)]
pub(super) struct Writer {
    active: Segment,
    /// The end of what was written.
    end: Cursor,
    /// The end of what was synced.
    synced: Position,
    /// The end of what was synced before the last window: the position in the mark.
    proven: Position,
    /// The previous segment, until the active one's header is synced.
    rolled: Option<Segment>,
    /// The batches being written; below, how many of them are written.
    batches: Batches,
    written: usize,
    mark: Mark,
}

impl Writer {
    pub(super) fn new(tail: Cursor, active: Segment, mark: Mark) -> Self {
        assert_eq!(tail.at.segment, active.id, "the journal goes on where it ends");
        assert!(tail.synced <= tail.at, "what is not written is not synced");
        Self {
            active,
            end: tail,
            synced: tail.synced,
            proven: tail.synced,
            rolled: None,
            batches: Batches::default(),
            written: 0,
            mark,
        }
    }

    /// Whether batches are being written, or wait for room.
    pub(super) fn has_batches(&self) -> bool {
        !self.batches.frames.is_empty()
    }

    /// Number of unwritten frames that fit into the active segment.
    fn fitting(&self) -> usize {
        let mut end = u64::from(self.end.at.offset) + u64::from(Options::SEALS_LEN);
        let frames = self.batches.frames.iter().skip(self.written);
        frames
            .take_while(|frame| {
                end += record_len(frame.length);
                end <= self.active.len
            })
            .count()
    }

    /// Fills in the headers of the next `count` frames and writes them.
    fn write(&mut self, core: &Core, count: usize) -> Result<(), Error> {
        let seed = Seed::new(core.identity, self.active.id);
        let at = self.end.at.offset;
        assert_eq!(self.end.at.segment, self.active.id, "the end is in the active segment");
        assert!(
            self.rolled.is_none() || at == SEGMENT_HEADER_LEN,
            "a new one begins at its header"
        );
        let (mut first, mut last) = (usize::MAX, 0);
        let Batches { bytes, frames } = &mut self.batches;
        for frame in frames.iter().skip(self.written).take(count) {
            let Frame { start, length, sequence, epoch } = *frame;
            assert_eq!(sequence, self.end.next, "batches are written in order");
            assert!(epoch >= self.end.epoch, "epochs never fall");
            let len = record_len(length) as usize;
            let Some(record) = bytes.get_mut(start..start + len) else { break };
            let (place, payload) = record.split_at_mut(RECORD_HEADER_LEN as usize);
            let payload = payload.get(..length as usize).unwrap_or_default();
            let mut header = RecordHeader {
                kind: Kind::Batch,
                length,
                sequence,
                synced: self.synced,
                epoch,
                previous: self.end.previous,
                payload_checksum: payload_checksum(payload),
                checksum: 0,
            };
            place.copy_from_slice(&header.encode(seed));
            self.end.at.offset += len as u32;
            self.end.next += 1;
            self.end.previous = header.checksum;
            self.end.epoch = epoch;
            (first, last) = (first.min(start), start + len);
        }
        self.written += count;
        let bytes = bytes.get(first..last).unwrap_or_default();
        assert_eq!(bytes.len() as u32, self.end.at.offset - at, "every frame was laid out whole");
        assert!(u64::from(self.end.at.offset) <= self.active.len, "a record fits its segment");
        self.active
            .file
            .write_all_at(bytes, u64::from(at))
            .map_err(|error| core.segment_error("write", self.active.id, error))
    }

    fn write_mark(&mut self, core: &Core) -> Result<(), Error> {
        let written = self.mark.write(self.proven);
        written.map_err(|error| Error::io("write", &core.volume.describe(mark::NAME), error))
    }

    /// Syncs the active segment, never twice after a failure, and publishes the result.
    fn sync(&mut self, core: &Core) -> Result<(), Error> {
        let synced = self.active.file.sync();
        synced.map_err(|error| core.segment_error("sync", self.active.id, error))?;
        assert!(self.synced <= self.end.at, "positions only grow");
        self.proven = self.synced;
        self.synced = self.end.at;
        let mut segments = lock(&core.segments);
        if let Some(rolled) = self.rolled.take() {
            segments.closed.push_back(rolled);
            segments.active = self.active.clone();
        }
        assert!(self.end.last() >= segments.durable.0, "what is durable stays so");
        assert_eq!(segments.active.id, self.active.id, "the segments knows what is written");
        segments.durable = (self.end.last(), self.end.at);
        segments.check();
        drop(segments);
        core.durable.store(self.end.last(), Ordering::Release);
        Ok(())
    }

    /// Continues in the next segment; false if there is none and none can be created.
    fn roll(&mut self, core: &Core, epoch: Epoch) -> Result<bool, Error> {
        assert!(self.rolled.is_none() && self.synced == self.end.at, "synced to its end first");
        let Some(mut spare) = core.take_spare()? else { return Ok(false) };
        assert_eq!(spare.id, self.active.id + 1, "segments are used in order");
        spare.first = self.end.next;
        let header = SegmentHeader {
            identity: core.identity,
            id: spare.id,
            first: spare.first,
            epoch,
            previous: self.end.previous,
            synced: self.synced,
        };
        let written = spare.file.write_all_at(&header.encode(), 0);
        written.map_err(|error| core.segment_error("write", spare.id, error))?;
        self.end.at = Position { segment: spare.id, offset: SEGMENT_HEADER_LEN };
        self.end.epoch = epoch;
        self.rolled = Some(std::mem::replace(&mut self.active, spare));
        Ok(true)
    }

    /// Writes a seal at the end, over any leftovers, and syncs.
    fn seal(&mut self, core: &Core, epoch: Epoch) -> Result<(), Error> {
        assert!(epoch >= self.end.epoch, "epochs never fall");
        assert!(self.synced == self.end.at, "a seal vouches for all before it");
        assert!(!self.has_batches(), "what is pending comes before the seal");
        let len = u64::from(RECORD_HEADER_LEN);
        if u64::from(self.end.at.offset) + len > self.active.len && !self.roll(core, epoch)? {
            return Err(core.no_room());
        }
        let mut header = seal_header(&self.end, self.synced, epoch);
        let at = u64::from(self.end.at.offset);
        let mut bytes = header.encode(Seed::new(core.identity, self.active.id)).to_vec();
        // Zeros behind the seal, so that no part of a cut record is taken for a record.
        let zeros = (self.active.len - at - len).min(len);
        bytes.resize(bytes.len() + zeros as usize, 0);
        let written = self.active.file.write_all_at(&bytes, at);
        written.map_err(|error| core.segment_error("write", self.active.id, error))?;
        self.end.at.offset += RECORD_HEADER_LEN;
        self.end.previous = header.checksum;
        self.end.epoch = epoch;
        self.sync(core)?;
        self.proven = self.synced;
        self.write_mark(core)?;
        let synced = self.mark.sync();
        synced.map_err(|error| Error::io("sync", &core.volume.describe(mark::NAME), error))
    }

    /// For the first seal after opening: fills the active segment to its length and makes durable
    /// what recovery found.
    fn settle(&mut self, core: &Core) -> Result<(), Error> {
        let wanted = u64::from(core.options.segment_bytes);
        if self.active.len < wanted {
            let filled = keeper::write_zeros(&*self.active.file, self.active.len, wanted);
            filled.map_err(|error| core.segment_error("fill", self.active.id, error))?;
            self.active.len = wanted;
            lock(&core.segments).active.len = wanted;
        }
        self.rewrite_unproven(core)
    }

    /// A seal asserts that everything before it was synced. For the last window that is not proven:
    /// its bytes may be only in the page cache, and after a failed sync the kernel considers them
    /// clean and would not write them with the next one. So they are written again.
    fn rewrite_unproven(&mut self, core: &Core) -> Result<(), Error> {
        if self.synced == self.end.at {
            return Ok(());
        }
        // A segment is synced before the next one is begun: only the active one matters.
        let same = self.synced.segment == self.active.id;
        let start = if same { self.synced.offset } else { 0 };
        assert!(start <= self.end.at.offset, "what is synced is not behind the end");
        let mut bytes = vec![0; (self.end.at.offset - start) as usize];
        let file = &self.active.file;
        let rewritten = file
            .read_exact_at(&mut bytes, u64::from(start))
            .and_then(|()| file.write_all_at(&bytes, u64::from(start)))
            .and_then(|()| file.sync());
        rewritten.map_err(|error| core.segment_error("rewrite", self.active.id, error))?;
        self.synced = self.end.at;
        Ok(())
    }
}

impl Core {
    /// One step of the flusher, on any thread.
    pub(super) fn flush(&self) -> Result<bool, Error> {
        let did = self.flush_unmarked()?;
        if did {
            // After the result was published: nobody waits for the mark.
            self.mark()?;
        }
        Ok(did)
    }

    /// The same without the mark, which MUST follow.
    pub(super) fn flush_unmarked(&self) -> Result<bool, Error> {
        let mut writer = lock(&self.writer);
        self.stop.check()?;
        if writer.batches.frames.is_empty() {
            self.inbox.take(&mut writer.batches);
        }
        if writer.batches.frames.is_empty() {
            return Ok(false);
        }
        let before = writer.written;
        let result = self.flush_batches(&mut writer);
        let did = writer.written > before || writer.batches.frames.is_empty();
        drop(writer);
        result.map_err(|error| self.fail(error))?;
        if did {
            (self.wake)();
        }
        Ok(did)
    }

    /// Writes the mark of what was synced.
    pub(super) fn mark(&self) -> Result<(), Error> {
        let mut writer = lock(&self.writer);
        self.stop.check()?;
        let marked = writer.write_mark(self);
        drop(writer);
        marked.map_err(|error| self.fail(error))
    }

    fn flush_batches(&self, writer: &mut Writer) -> Result<(), Error> {
        while let Some(frame) = writer.batches.frames.get(writer.written) {
            let epoch = frame.epoch;
            let count = writer.fitting();
            if count > 0 {
                writer.write(self, count)?;
                writer.sync(self)?;
            } else if !writer.roll(self, epoch)? {
                return Ok(());
            }
        }
        assert_eq!(writer.written, writer.batches.frames.len(), "nothing is left out");
        assert_eq!(writer.synced, writer.end.at, "what is told was synced");
        writer.batches.clear();
        writer.written = 0;
        Ok(())
    }

    /// Flushes until nothing is pending.
    pub(super) fn drain(&self) -> Result<(), Error> {
        while self.flush()? {}
        if lock(&self.writer).batches.frames.is_empty() { Ok(()) } else { Err(self.no_room()) }
    }

    pub(super) fn seal(&self, epoch: Epoch) -> Result<(), Error> {
        let mut writer = lock(&self.writer);
        self.stop.check()?;
        let sealed = writer.settle(self).and_then(|()| writer.seal(self, epoch));
        drop(writer);
        sealed.map_err(|error| self.fail(error))
    }

    pub(super) fn segment_error(
        &self,
        operation: &'static str,
        id: u32,
        error: std::io::Error,
    ) -> Error {
        Error::io(operation, &self.volume.describe(&segment_name(id)), error)
    }
}

/// The bytes of a seal for the end of a copied journal.
pub(crate) fn seal_bytes(identity: u64, end: &Cursor) -> RecordHeaderBytes {
    seal_header(end, end.at, end.epoch).encode(Seed::new(identity, end.at.segment))
}

fn seal_header(end: &Cursor, synced: Position, epoch: Epoch) -> RecordHeader {
    RecordHeader {
        kind: Kind::Seal,
        length: 0,
        sequence: end.last(),
        synced,
        epoch,
        previous: end.previous,
        payload_checksum: payload_checksum(&[]),
        checksum: 0,
    }
}
