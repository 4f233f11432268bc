//! Walks the records of segments in order, and searches the bytes behind the last one.
//!
//! A [`Cursor`] is always right after a valid record: it stops at the first byte that does not
//! continue the chain. [`super::recover`] decides what that means: the end, a torn tail or damage.

use std::sync::Arc;

use super::limits;
use super::record::{
    ALIGNMENT, Decoded, Kind, Position, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, Seed,
    SegmentHeader, VERSION, payload_checksum, record_len, segment_name,
};
use crate::{Corruption, Epoch, Error, File, Sequence, Volume};

/// Reads one segment through a window.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    pub(crate) id: u32,
    pub(crate) file: Arc<dyn File>,
    pub(crate) len: u64,
    identity: u64,
    seed: Seed,
    description: String,
    window: Vec<u8>,
    window_start: u64,
}

impl SegmentReader {
    pub(crate) fn open(volume: &dyn Volume, identity: u64, id: u32) -> Result<Self, Error> {
        let name = segment_name(id);
        let description = volume.describe(&name);
        let file = volume.open(&name).map_err(|error| Error::io("open", &description, error))?;
        Self::new(file, description, identity, id)
    }

    pub(crate) fn new(
        file: Arc<dyn File>,
        description: String,
        identity: u64,
        id: u32,
    ) -> Result<Self, Error> {
        let len = file.len().map_err(|error| Error::io("measure", &description, error))?;
        Ok(Self {
            id,
            file,
            len,
            identity,
            seed: Seed::new(identity, id),
            description,
            window: Vec::new(),
            window_start: 0,
        })
    }

    pub(crate) fn damaged(&self, offset: u32, what: &str) -> Error {
        Corruption {
            file: self.description.clone(),
            offset: u64::from(offset),
            what: what.to_owned(),
        }
        .into()
    }

    /// The segment's header. A leftover of an earlier use of the file is invalid; the header of
    /// another store is refused.
    pub(crate) fn header(&mut self) -> Result<Decoded<SegmentHeader>, Error> {
        let Some(bytes) =
            self.bytes(0, u64::from(SEGMENT_HEADER_LEN))?.and_then(<[u8]>::first_chunk)
        else {
            return Ok(Decoded::Invalid);
        };
        match SegmentHeader::decode(bytes) {
            Decoded::Valid(header) if header.id != self.id => Ok(Decoded::Invalid),
            Decoded::Valid(header) if header.identity != self.identity => {
                Err(self.damaged(0, "this segment belongs to another store"))
            }
            Decoded::Newer(found) => Err(self.newer(found)),
            decoded => Ok(decoded),
        }
    }

    pub(crate) fn record(&mut self, offset: u32) -> Result<Decoded<RecordHeader>, Error> {
        let seed = self.seed;
        let bytes = self.bytes(u64::from(offset), u64::from(RECORD_HEADER_LEN))?;
        let Some(bytes) = bytes.and_then(<[u8]>::first_chunk) else {
            return Ok(Decoded::Invalid);
        };
        match RecordHeader::decode(bytes, seed) {
            Decoded::Newer(found) => Err(self.newer(found)),
            decoded => Ok(decoded),
        }
    }

    /// The position of the first header from `offset` on that was written after the byte at `tail`
    /// was synced: proof that what is missing at `tail` was durable.
    pub(crate) fn proof_that_synced(
        &mut self,
        tail: Position,
        offset: u32,
    ) -> Result<Option<Position>, Error> {
        let seed = self.seed;
        debug_assert!(tail.segment <= self.id, "proofs stand behind the tail");
        let mut start = u64::from(offset.next_multiple_of(ALIGNMENT));
        while start + u64::from(RECORD_HEADER_LEN) <= self.len {
            let len = limits::WINDOW_BYTES.min(self.len - start);
            let Some(bytes) = self.bytes(start, len)? else { return Ok(None) };
            let places = (bytes.len() - RECORD_HEADER_LEN as usize) / ALIGNMENT as usize + 1;
            let candidates = (0..places).map(|place| place * ALIGNMENT as usize);
            for at in candidates {
                let Some(header) = bytes.get(at..).and_then(<[u8]>::first_chunk) else { break };
                match RecordHeader::decode(header, seed) {
                    Decoded::Valid(header) if header.synced > tail => {
                        let offset = (start + at as u64) as u32;
                        return Ok(Some(Position { segment: self.id, offset }));
                    }
                    Decoded::Newer(found) => return Err(self.newer(found)),
                    _ => {}
                }
            }
            start += (places * ALIGNMENT as usize) as u64;
        }
        Ok(None)
    }

    /// The bytes at `offset`; `None` if the file ends before.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>, Error> {
        if offset + len > self.len {
            return Ok(None);
        }
        let window_end = self.window_start + self.window.len() as u64;
        if offset < self.window_start || offset + len > window_end {
            let size = limits::WINDOW_BYTES.max(len).min(self.len - offset);
            self.window.resize(size as usize, 0);
            self.window_start = offset;
            if let Err(error) = self.file.read_exact_at(&mut self.window, offset) {
                self.window.clear();
                return Err(Error::io("read", &self.description, error));
            }
        }
        debug_assert!(self.window_start <= offset, "the window begins no later");
        let start = (offset - self.window_start) as usize;
        Ok(self.window.get(start..start + len as usize))
    }

    fn newer(&self, found: u32) -> Error {
        Error::NewerFormat { file: self.description.clone(), found, known: VERSION }
    }
}

/// A place in the journal, and what must come next for the chain to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) at: Position,
    /// The sequence of the next batch.
    pub(crate) next: Sequence,
    /// The checksum of the record before.
    pub(crate) previous: u32,
    /// The epoch of the record before; epochs never fall.
    pub(crate) epoch: Epoch,
    /// The synced position according to the records so far.
    pub(crate) synced: Position,
    /// Whether an owner closed the journal here: its seal is not the first of its records. If a
    /// segment begins with the seal this is unknown, and counts as not closed.
    pub(crate) closed: bool,
    /// No record of the segment was read yet.
    is_first: bool,
}

/// The result of a cursor's step.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Batch(Sequence, &'a [u8]),
    Seal,
    /// No valid record continues the chain here, for this reason.
    Stop(&'static str),
}

impl Cursor {
    /// Before the first record of a segment.
    pub(crate) fn at_start(header: &SegmentHeader) -> Self {
        Self {
            at: Position { segment: header.id, offset: SEGMENT_HEADER_LEN },
            next: header.first,
            previous: header.previous,
            epoch: header.epoch,
            synced: header.synced,
            closed: false,
            is_first: true,
        }
    }

    pub(crate) fn last(&self) -> Sequence {
        self.next.saturating_sub(1)
    }

    /// Whether the segment with this header continues at the cursor.
    pub(crate) fn continues_in(&self, header: &SegmentHeader) -> bool {
        header.first == self.next
            && header.previous == self.previous
            && header.epoch >= self.epoch
            && header.synced <= self.at
    }

    /// Whether this record continues at the cursor.
    pub(crate) fn continues_with(&self, header: &RecordHeader) -> bool {
        let sequence = match header.kind {
            Kind::Batch => self.next,
            Kind::Seal => self.last(),
        };
        header.sequence == sequence
            && header.previous == self.previous
            && header.epoch >= self.epoch
            && header.synced <= self.at
            && (header.kind == Kind::Batch || header.length == 0)
    }

    /// Reads the next record of the cursor's segment.
    pub(crate) fn step<'a>(&mut self, reader: &'a mut SegmentReader) -> Result<Step<'a>, Error> {
        debug_assert_eq!(reader.id, self.at.segment);
        let header = match reader.record(self.at.offset)? {
            Decoded::Valid(header) => header,
            _ => return Ok(Step::Stop("no valid record begins here")),
        };
        if !self.continues_with(&header) {
            return Ok(Step::Stop("the record here does not continue the one before"));
        }
        let start = u64::from(self.at.offset) + u64::from(RECORD_HEADER_LEN);
        let Some(payload) = reader.bytes(start, u64::from(header.length))? else {
            return Ok(Step::Stop("the record that begins here is cut off by the file's end"));
        };
        if payload_checksum(payload) != header.payload_checksum {
            return Ok(Step::Stop("the batch in the record that begins here fails its checksum"));
        }
        let end = u64::from(self.at.offset) + record_len(header.length);
        let Ok(end) = u32::try_from(end) else {
            return Ok(Step::Stop("the record that begins here ends beyond any segment"));
        };
        self.at.offset = end;
        self.previous = header.checksum;
        self.closed = header.kind == Kind::Seal && header.epoch == self.epoch && !self.is_first;
        self.is_first = false;
        self.epoch = header.epoch;
        self.synced = header.synced.max(self.synced);
        debug_assert!(self.synced < self.at, "nothing vouches for itself");
        debug_assert!(self.at.offset.is_multiple_of(ALIGNMENT), "records are aligned");
        match header.kind {
            Kind::Seal => Ok(Step::Seal),
            Kind::Batch => {
                self.next = header.sequence + 1;
                Ok(Step::Batch(header.sequence, payload))
            }
        }
    }
}
