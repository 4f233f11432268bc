//! Reads the journal while it is being written: only durable batches, whose segments are pinned
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::record::{Decoded, Position, segment_name};
use super::recover::Segment;
use super::walk::{Cursor, SegmentReader, Step};
use super::{Core, Journal, lock};
use crate::{EachBatch, Error, Sequence};

/// While it exists, no segment is renamed or removed.
#[derive(Debug)]
pub struct Pin {
    core: Arc<Core>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut segments = lock(&self.core.segments);
        debug_assert!(segments.pins > 0, "a pin is let go once");
        segments.pins = segments.pins.saturating_sub(1);
    }
}

/// What was durable at one moment.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) segments: Vec<Segment>,
    pub(crate) last: Sequence,
    /// The end of the last record.
    pub(crate) end: Position,
}

impl Journal {
    pub fn pin(&self) -> Pin {
        lock(&self.core.segments).pins += 1;
        Pin { core: Arc::clone(&self.core) }
    }

    /// What is durable now. Stays readable while the pin exists.
    pub(crate) fn view(&self, _pin: &Pin) -> View {
        let segments = lock(&self.core.segments);
        let (last, end) = segments.durable;
        debug_assert!(segments.pins > 0, "what is looked at is pinned");
        View { segments: segments.durable_segments(), last, end }
    }

    /// Calls `each` for every durable batch from `from` on.
    pub fn read(&self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        self.core.stop.check()?;
        let pin = self.pin();
        let view = self.view(&pin);
        if from > view.last {
            return Ok(());
        }
        let Some(start) = view.segments.iter().rposition(|segment| segment.first <= from) else {
            // Released already: the rows have it.
            let through = self.core.through.load(Ordering::Acquire);
            return Err(Error::OutOfOrder { got: from, last: through });
        };
        let mut cursor: Option<Cursor> = None;
        for segment in view.segments.iter().skip(start) {
            if cursor.is_some_and(|cursor| cursor.last() == view.last) {
                // Only seals are left.
                break;
            }
            let mut reader = self.reader(segment)?;
            let Decoded::Valid(header) = reader.header()? else {
                return Err(reader.damaged(0, "the segment's header is not intact"));
            };
            if cursor.is_some_and(|cursor| !cursor.continues_in(&header)) {
                return Err(reader.damaged(0, "the segment does not continue the one before"));
            }
            let cursor = cursor.insert(Cursor::at_start(&header));
            while cursor.next <= view.last {
                let at = cursor.at;
                match cursor.step(&mut reader)? {
                    Step::Batch(sequence, batch) if sequence >= from => {
                        if !each(sequence, batch)? {
                            return Ok(());
                        }
                    }
                    Step::Batch(..) | Step::Seal => {}
                    // The header of the next segment shows whether this one ends here.
                    Step::Stop(_) if segment.id < view.end.segment => break,
                    Step::Stop(why) => return Err(reader.damaged(at.offset, why)),
                }
            }
        }
        debug_assert_eq!(cursor.map(|cursor| cursor.last()), Some(view.last));
        Ok(())
    }

    pub(crate) fn reader(&self, segment: &Segment) -> Result<SegmentReader, Error> {
        let description = self.core.volume.describe(&segment_name(segment.id));
        let file = Arc::clone(&segment.file);
        SegmentReader::new(file, description, self.core.identity, segment.id)
    }
}
