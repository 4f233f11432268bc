//! Copies a store while it is in use.
//!
//! The copy is the state of one moment: the rows of one manifest and the journal's durable batches
//! after it. The manifest's runs and the journal's segments of that moment are pinned, so that no
//! merge, checkpoint or keeper removes them while they are copied; nothing else waits.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::check::{Summary, check};
use super::marker;
use crate::archive::{Finding, Pinned, Severity};
use crate::joined::{Shared, lock};
use crate::journal::limits::WINDOW_BYTES;
use crate::journal::mark;
use crate::journal::record::{Decoded, segment_name};
use crate::journal::recover::Segment;
use crate::journal::walk::{Cursor, SegmentReader, Step};
use crate::journal::writer::seal_bytes;
use crate::journal::{Journal, Pin, Position};
use crate::{Corruption, Error, File, Sequence, Volume};

/// A store to be copied, from any thread. Does not keep the store open.
#[derive(Clone)]
pub struct Source {
    shared: Weak<Shared<Journal>>,
}

impl Source {
    pub(super) fn new(shared: &Arc<Shared<Journal>>) -> Self {
        Self { shared: Arc::downgrade(shared) }
    }

    /// Pins the current state, to be copied. Its files are kept until it is dropped. To copy
    /// several stores, capture all of them first.
    pub fn capture(&self) -> Result<Moment, Error> {
        self.capture_planted(None, &mut || {})
    }

    fn capture_planted(
        &self,
        planted: Option<Planted>,
        between: &mut dyn FnMut(),
    ) -> Result<Moment, Error> {
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        shared.log.stop().check()?;
        Ok(Moment::capture(self.clone(), &shared, planted, between))
    }

    /// Whether all batches are durable and no checkpoint is in progress.
    pub fn is_idle(&self) -> bool {
        self.shared.upgrade().is_none_or(|shared| {
            shared.log.is_drained() && shared.under_way.load(Ordering::Acquire) == 0
        })
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

/// Copies the store as it is now: [`Source::capture`], [`Moment::copy`].
pub fn backup(
    source: &Source,
    target: &dyn Volume,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Summary, Error> {
    source.capture()?.copy(target, progress)
}

/// The stage of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// One of journal and rows is pinned, the other is not yet.
    BetweenPins,
    Copied {
        done: u64,
        total: u64,
    },
}

/// A bug in copying, for tests that must notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// The rows are pinned before the journal.
    RowsFirst,
    /// The journal's segments are copied without being pinned.
    Unpinned,
}

/// Like `backup`, for tests: a bug may be planted, and the store can continue at any stage.
#[doc(hidden)]
pub fn backup_planted(
    source: &Source,
    target: &dyn Volume,
    planted: Option<Planted>,
    reached: &mut dyn FnMut(Stage),
) -> Result<Summary, Error> {
    let moment = source.capture_planted(planted, &mut || reached(Stage::BetweenPins))?;
    moment.copy(target, &mut |done, total| reached(Stage::Copied { done, total }))
}

fn closed() -> Error {
    Error::Stopped("it was closed".to_owned())
}

/// The state of a store at one moment.
pub struct Moment {
    source: Source,
    identity: u64,
    pinned: Pinned,
    _pin: Option<Pin>,
    /// The segments with batches that the rows do not have, and perhaps some before.
    segments: Vec<Segment>,
    last: Sequence,
    end: Position,
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moment").field("last", &self.last).finish_non_exhaustive()
    }
}

/// One file, or its first bytes.
struct Part {
    name: String,
    len: u64,
}

impl Moment {
    /// Copies it into the empty volume `target` and verifies the copy. Calls `progress(bytes done,
    /// bytes in total)`. An interrupted copy has no format marker, and opening it is refused.
    pub fn copy(
        &self,
        target: &dyn Volume,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Summary, Error> {
        let shared = self.source.shared.upgrade().ok_or_else(closed)?;
        refuse_taken(target)?;
        let total = self.bytes();
        let mut done = 0;
        for part in self.parts() {
            copy(&*shared.volume, target, &part, &mut |len| {
                done += len;
                progress(done, total);
            })?;
        }
        self.seal(target)?;
        let (name, bytes) = self.pinned.manifest();
        write_file(target, name, bytes)?;
        marker::write(target, self.identity)?;
        verify(target, self.last)
    }

    /// Bytes to copy.
    pub fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.len).sum()
    }

    fn capture(
        source: Source,
        shared: &Shared<Journal>,
        planted: Option<Planted>,
        between: &mut dyn FnMut(),
    ) -> Self {
        let _ownership = lock(&shared.ownership);
        // In this order: the rows may advance after the journal is pinned, and then need less of
        // it; the other way round they could need segments that are gone.
        let early = (planted == Some(Planted::RowsFirst)).then(|| {
            let pinned = shared.archive.pin();
            between();
            pinned
        });
        let pin = shared.log.pin();
        let pinned = early.unwrap_or_else(|| {
            between();
            shared.archive.pin()
        });
        let view = shared.log.view(&pin);
        let next = pinned.head().through + 1;
        let mut segments = view.segments;
        if let Some(start) = segments.iter().rposition(|segment| segment.first <= next) {
            segments.drain(..start);
        }
        let identity = shared.log.identity();
        let pin = (planted != Some(Planted::Unpinned)).then_some(pin);
        let (last, end) = (view.last, view.end);
        Self { source, identity, pinned, _pin: pin, segments, last, end }
    }

    fn parts(&self) -> Vec<Part> {
        let runs = self.pinned.files().into_iter().map(|(name, len)| Part { name, len });
        let segments = self.segments.iter().map(|segment| Part {
            name: segment_name(segment.id),
            len: match segment.id == self.end.segment {
                true => u64::from(self.end.offset),
                false => segment.len,
            },
        });
        runs.chain(segments).collect()
    }

    /// Ends the copied journal with a seal, so that damage to the copy is never taken for a torn
    /// tail.
    fn seal(&self, target: &dyn Volume) -> Result<(), Error> {
        let mut reader = SegmentReader::open(target, self.identity, self.end.segment)?;
        let Decoded::Valid(header) = reader.header()? else {
            return Err(reader.damaged(0, "the segment's header is not intact"));
        };
        let mut cursor = Cursor::at_start(&header);
        while cursor.at < self.end {
            let at = cursor.at;
            if let Step::Stop(why) = cursor.step(&mut reader)? {
                return Err(reader.damaged(at.offset, why));
            }
        }
        assert_eq!((cursor.at, cursor.last()), (self.end, self.last), "all of it was copied");
        let seal = seal_bytes(self.identity, &cursor);
        let sealed = reader
            .file
            .write_all_at(&seal, u64::from(cursor.at.offset))
            .and_then(|()| reader.file.sync());
        sealed.map_err(|error| {
            Error::io("seal", &target.describe(&segment_name(self.end.segment)), error)
        })?;
        let offset = cursor.at.offset + seal.len() as u32;
        write_file(
            target,
            mark::NAME,
            &mark::encode(self.identity, Position { offset, ..cursor.at }),
        )
    }
}

fn refuse_taken(target: &dyn Volume) -> Result<(), Error> {
    let names = target.list().map_err(|error| Error::io("list", &target.describe(""), error))?;
    match names.first() {
        None => Ok(()),
        Some(name) => {
            let taken = std::io::Error::from(ErrorKind::AlreadyExists);
            Err(Error::io("copy into a directory that holds", &target.describe(name), taken))
        }
    }
}

fn write_file(target: &dyn Volume, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let failed = |error| Error::io("write", &target.describe(name), error);
    let file = target.create(name).map_err(failed)?;
    file.write_all_at(bytes, 0).map_err(failed)?;
    file.sync().map_err(failed)
}

fn copy(
    source: &dyn Volume,
    target: &dyn Volume,
    part: &Part,
    copied: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let failed = |operation, volume: &dyn Volume| {
        let file = volume.describe(&part.name);
        move |error| Error::io(operation, &file, error)
    };
    let from = source.open(&part.name).map_err(failed("open", source))?;
    let to: Arc<dyn File> = target.create(&part.name).map_err(failed("create", target))?;
    let mut buffer = vec![0; WINDOW_BYTES.min(part.len) as usize];
    let mut at = 0;
    while at < part.len {
        buffer.truncate((part.len - at).min(WINDOW_BYTES) as usize);
        from.read_exact_at(&mut buffer, at).map_err(failed("read", source))?;
        to.write_all_at(&buffer, at).map_err(failed("write", target))?;
        to.sync().map_err(failed("sync", target))?;
        at += buffer.len() as u64;
        copied(buffer.len() as u64);
    }
    to.sync().map_err(failed("sync", target))
}

fn verify(target: &dyn Volume, last: Sequence) -> Result<Summary, Error> {
    let mut first: Option<Finding> = None;
    let summary = check(target, &mut |finding| {
        if finding.severity == Severity::Damage && first.is_none() {
            first = Some(finding);
        }
    })?;
    match first {
        Some(Finding { file, offset, what, .. }) => Err(Corruption { file, offset, what }.into()),
        None => {
            assert_eq!(summary.last, last, "a copy holds what was durable");
            Ok(summary)
        }
    }
}
