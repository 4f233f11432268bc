//! Finds the valid contents of a journal, without changing anything.
//!
//! The walk starts in the segment that holds the batch after `through` and follows the chain from
//! record to record and segment to segment. The place where it stops is the *tail*. Either this is
//! the end, possibly with a torn write, or synced bytes were lost. Every header has the position up
//! to which the journal was synced when the header was written. So a header behind the tail with a
//! position beyond the tail proves damage, and the journal is refused. Without such a proof nothing
//! behind the tail was ever confirmed: several batches are written with one sync, and any part of
//! such a window may have survived.
//!
//! The [`mark`] has the same information in a separate file, in case the end of a segment is lost
//! with all its headers. So does the manifest, which has the position of the last owner's seal and
//! of the journal at the last checkpoint, in case segments and mark were set back together.
//!
//! Invariants:
//! - once the store's format marker exists, some segment's header is valid and begins no later than
//!   `through + 1`: a segment is released only after its successor's header was synced;
//! - no header behind the tail of an opened journal has a position beyond the tail: the bytes of a
//!   window that is cut were written when nothing at or behind the cut had been synced.

use std::sync::Arc;

use super::mark;
use super::record::{
    Decoded, Position, SEGMENT_HEADER_LEN, SegmentHeader, segment_id, segment_name,
};
use super::walk::{Cursor, SegmentReader, Step};
use crate::{Corruption, Epoch, Error, File, Sequence, Volume};

/// What the manifest of the rows proves about the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// No record can have a larger epoch.
    pub epoch: Epoch,
    /// The rows are complete up to this batch.
    pub through: Sequence,
    /// The journal was synced up to here when the manifest was written.
    pub synced: Position,
}

/// A segment whose records are all valid.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(crate) file: Arc<dyn File>,
    pub(crate) first: Sequence,
    pub(crate) len: u64,
}

/// The contents of a journal.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The end of the last valid record.
    pub(crate) tail: Cursor,
    /// The segments that are needed, in order; the tail is in the last one.
    pub(crate) live: Vec<Segment>,
    /// Segments that only have batches at or below `through`.
    pub(crate) retired: Vec<u32>,
    /// Unused segments after the tail, without a gap.
    pub(crate) spares: Vec<u32>,
    /// Segments after a gap, which cannot be used in order.
    pub(crate) strays: Vec<u32>,
}

/// Walks the journal and calls `each` for every valid record, with its position. Changes nothing.
pub(crate) fn recover(
    volume: &dyn Volume,
    identity: u64,
    bounds: Bounds,
    each: &mut dyn FnMut(Position, &Step<'_>),
) -> Result<Recovered, Error> {
    let names = volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
    let mut ids: Vec<u32> = names.iter().filter_map(|name| segment_id(name)).collect();
    ids.sort_unstable();
    assert!(ids.is_sorted_by(|a, b| a < b), "a name is an id's alone");
    let journal = Journal { volume, identity, ids };
    let start = journal.start(bounds)?;
    let (tail, live) = journal.walk(&start, each)?;
    journal.refuse_damage(&tail, bounds.synced)?;
    let broken = |what: String| Corruption {
        file: volume.describe(&segment_name(tail.at.segment)),
        offset: u64::from(tail.at.offset),
        what,
    };
    if tail.last() < bounds.through {
        let (last, through) = (tail.last(), bounds.through);
        return Err(broken(format!(
            "the journal ends after batch {last}, but the rows hold batch {through}"
        ))
        .into());
    }
    if tail.epoch > bounds.epoch {
        let (epoch, newest) = (tail.epoch, bounds.epoch);
        return Err(broken(format!(
            "a record of epoch {epoch}, but the manifest knows only epoch {newest}"
        ))
        .into());
    }
    journal.sort_out(start.id, tail, live)
}

struct Journal<'a> {
    volume: &'a dyn Volume,
    identity: u64,
    /// The ids of all existing segments, ascending.
    ids: Vec<u32>,
}

impl Journal<'_> {
    /// The header of the last segment that begins at or before the batch after `through`.
    fn start(&self, bounds: Bounds) -> Result<SegmentHeader, Error> {
        let wanted = bounds.through + 1;
        for id in self.ids.iter().rev() {
            if let Decoded::Valid(header) = self.reader(*id)?.header()?
                && header.first <= wanted
            {
                return Ok(header);
            }
        }
        let first = self.ids.first().copied().unwrap_or(1);
        Err(Corruption {
            file: self.volume.describe(&segment_name(first)),
            offset: 0,
            what: match self.ids.is_empty() {
                true => format!("the segment with batch {wanted} is missing"),
                false => format!("no intact segment header leads to batch {wanted}"),
            },
        }
        .into())
    }

    fn walk(
        &self,
        start: &SegmentHeader,
        each: &mut dyn FnMut(Position, &Step<'_>),
    ) -> Result<(Cursor, Vec<Segment>), Error> {
        let mut cursor = Cursor::at_start(start);
        let mut live = Vec::new();
        loop {
            let mut reader = self.reader(cursor.at.segment)?;
            let (id, first, len) = (reader.id, cursor.next, reader.len);
            live.push(Segment { id, file: Arc::clone(&reader.file), first, len });
            loop {
                let at = cursor.at;
                match cursor.step(&mut reader)? {
                    Step::Stop(_) => break,
                    step => each(at, &step),
                }
                debug_assert!(cursor.at > at, "a step goes forward");
            }
            match self.header_after(id)? {
                Some(Decoded::Valid(header)) if cursor.continues_in(&header) => {
                    cursor = Cursor::at_start(&header);
                }
                _ => return Ok((cursor, live)),
            }
        }
    }

    /// Fails if something behind the tail proves that the tail is not the end.
    fn refuse_damage(&self, tail: &Cursor, noted: Position) -> Result<(), Error> {
        let next = tail.at.segment.saturating_add(1);
        // If the next segment's first record continues the chain, its header is what is damaged.
        let mut place = tail.at;
        if self.ids.contains(&next)
            && let Decoded::Valid(record) = self.reader(next)?.record(SEGMENT_HEADER_LEN)?
            && tail.continues_with(&record)
        {
            place = Position { segment: next, offset: 0 };
        }
        let Some(proof) = self.proof(place)? else { return self.refuse_marked(tail, noted) };
        let mut what = format!(
            "what stood here was safe when {} was written at byte {}",
            segment_name(proof.segment),
            proof.offset
        );
        if proof.segment > next && !self.ids.contains(&next) {
            place = Position { segment: next, offset: 0 };
            what = format!("the segment is missing, but {} is there", segment_name(proof.segment));
        } else if place.offset == 0 {
            what = format!("the segment's header is not intact; {what}");
        } else {
            let mut again = *tail;
            if let Step::Stop(why) = again.step(&mut self.reader(place.segment)?)? {
                what = format!("{why}; {what}");
            }
        }
        let file = self.volume.describe(&segment_name(place.segment));
        Err(Corruption { file, offset: u64::from(place.offset), what }.into())
    }

    /// Fails if the mark or the manifest proves that the journal went further. Both are separate
    /// files, so a journal that was rolled back as a whole is detected.
    fn refuse_marked(&self, tail: &Cursor, noted: Position) -> Result<(), Error> {
        let marked = mark::read(self.volume, self.identity)?;
        let synced = marked.unwrap_or_default().max(noted);
        if synced <= tail.at {
            return Ok(());
        }
        let Position { segment, offset } = synced;
        let name = segment_name(segment);
        let what = format!("the journal ends here, but was safe up to byte {offset} of {name}");
        let file = self.volume.describe(&segment_name(tail.at.segment));
        Err(Corruption { file, offset: u64::from(tail.at.offset), what }.into())
    }

    /// The first header behind `tail` that was written after the byte there had been synced.
    fn proof(&self, tail: Position) -> Result<Option<Position>, Error> {
        for id in self.ids.iter().copied().filter(|id| *id >= tail.segment) {
            let mut reader = self.reader(id)?;
            let mut offset = SEGMENT_HEADER_LEN;
            if id == tail.segment {
                offset = tail.offset.max(offset);
            } else if let Decoded::Valid(header) = reader.header()?
                && header.synced > tail
            {
                return Ok(Some(Position { segment: id, offset: 0 }));
            }
            if let Some(proof) = reader.proof_that_synced(tail, offset)? {
                return Ok(Some(proof));
            }
        }
        Ok(None)
    }

    fn sort_out(&self, start: u32, tail: Cursor, live: Vec<Segment>) -> Result<Recovered, Error> {
        let retired = self.ids.iter().copied().filter(|id| *id < start).collect();
        let (mut spares, mut strays) = (Vec::new(), Vec::new());
        let mut next = tail.at.segment;
        for id in self.ids.iter().copied().filter(|id| *id > tail.at.segment) {
            // A segment is begun after the previous one was synced to its end: a header that does
            // not continue the journal is not a leftover of a torn write.
            let mut reader = self.reader(id)?;
            if let Decoded::Valid(_) = reader.header()? {
                return Err(reader.damaged(0, "the segment does not continue the journal"));
            }
            if next.checked_add(1) == Some(id) {
                spares.push(id);
                next = id;
            } else {
                strays.push(id);
            }
        }
        assert_eq!(live.last().map(|segment| segment.id), Some(tail.at.segment));
        assert!(live.is_sorted_by(|a, b| a.id + 1 == b.id && a.first <= b.first), "without a gap");
        Ok(Recovered { tail, live, retired, spares, strays })
    }

    fn header_after(&self, id: u32) -> Result<Option<Decoded<SegmentHeader>>, Error> {
        match id.checked_add(1).filter(|next| self.ids.contains(next)) {
            Some(next) => Ok(Some(self.reader(next)?.header()?)),
            None => Ok(None),
        }
    }

    fn reader(&self, id: u32) -> Result<SegmentReader, Error> {
        SegmentReader::open(self.volume, self.identity, id)
    }
}
