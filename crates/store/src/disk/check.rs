//! Verifies a directory from end to end, without changing it.

use std::io::ErrorKind;

use super::{LOCK_NAME, marker};
use crate::archive::{self, Finding, Severity};
use crate::journal::mark;
use crate::journal::record::{segment_id, segment_name};
use crate::journal::recover::recover;
use crate::journal::walk::Step;
use crate::journal::{Bounds, Position};
use crate::{Corruption, Epoch, Error, Sequence, Volume};

/// What a directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub epoch: Epoch,
    pub through: Sequence,
    /// The last batch of the journal.
    pub last: Sequence,
    pub segments: u64,
    pub batches: u64,
    pub batch_bytes: u64,
    /// Whether the last owner closed the store.
    pub sealed: bool,
    pub archive: archive::Summary,
    /// Number of findings that are damage.
    pub damages: u64,
}

/// Reads every record of the journal and, with [`archive::verify`], everything in the archive, and
/// reports damage. The store must not be open. An error means that the check was not possible: a
/// newer format, or a disk that cannot be read.
pub fn check(volume: &dyn Volume, report: &mut dyn FnMut(Finding)) -> Result<Summary, Error> {
    let mut summary = Summary::default();
    let mut damages = 0;
    let mut report = |finding: Finding| {
        damages += u64::from(finding.severity == Severity::Damage);
        report(finding);
    };
    let identity = reported(marker::read(volume), &mut report)?;
    if let Some(None) = identity {
        report(damage(marker_missing(volume)));
    }
    summary.archive = archive::verify(volume, &mut report)?;
    // A damaged manifest was reported already.
    let head = reported(archive::head(volume), &mut |_: Finding| {})?.flatten();
    if let (Some(Some(identity)), Some(head)) = (identity, head) {
        summary.epoch = head.epoch;
        summary.through = head.through;
        let synced = Position::from_bits(head.synced);
        let bounds = Bounds { epoch: head.epoch, through: head.through, synced };
        check_journal(volume, identity, bounds, &mut summary, &mut report)?;
    }
    summary.damages = damages;
    Ok(summary)
}

fn check_journal(
    volume: &dyn Volume,
    identity: u64,
    bounds: Bounds,
    summary: &mut Summary,
    report: &mut dyn FnMut(Finding),
) -> Result<(), Error> {
    let recovered = recover(volume, identity, bounds, &mut |_: Position, step| match step {
        Step::Batch(_, batch) => {
            summary.batches += 1;
            summary.batch_bytes += batch.len() as u64;
            summary.sealed = false;
        }
        Step::Seal => summary.sealed = true,
        Step::Stop(_) => {}
    });
    let Some(recovered) = reported(recovered, report)? else { return Ok(()) };
    summary.last = recovered.tail.last();
    summary.segments = recovered.live.len() as u64;
    let mut note = |id: u32, what: &str| {
        report(Finding {
            severity: Severity::Note,
            file: volume.describe(&segment_name(id)),
            offset: 0,
            what: what.to_owned(),
        });
    };
    for id in recovered.retired {
        note(id, "all its batches are in the rows; it is removed or used again");
    }
    for id in recovered.strays {
        note(id, "a spare segment out of order; it is removed");
    }
    note_unknown_files(volume, report)
}

/// Notes files that neither the journal nor the archive nor the store itself created.
fn note_unknown_files(volume: &dyn Volume, report: &mut dyn FnMut(Finding)) -> Result<(), Error> {
    let names = volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
    let ours = |name: &str| {
        [LOCK_NAME, mark::NAME, marker::NAME, marker::MANIFEST_NAME].contains(&name)
            || segment_id(name).is_some()
            || name.starts_with("run-")
            || name.ends_with(".tmp")
    };
    for name in names.iter().filter(|name| !ours(name)) {
        report(Finding {
            severity: Severity::Note,
            file: volume.describe(name),
            offset: 0,
            what: "no file of a store".to_owned(),
        });
    }
    Ok(())
}

/// Turns damage into a finding; `None` stands for it.
fn reported<T>(
    result: Result<T, Error>,
    report: &mut dyn FnMut(Finding),
) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt(corruption)) => {
            report(damage(corruption));
            Ok(None)
        }
        // A file that ends early.
        Err(Error::Io { file, source, .. }) if source.kind() == ErrorKind::UnexpectedEof => {
            report(damage(Corruption { file, offset: 0, what: "it ends too early".to_owned() }));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn marker_missing(volume: &dyn Volume) -> Corruption {
    Corruption {
        file: volume.describe(marker::NAME),
        offset: 0,
        what: "the marker is missing: no store, or one that was not completed".to_owned(),
    }
}

fn damage(corruption: Corruption) -> Finding {
    let Corruption { file, offset, what } = corruption;
    Finding { severity: Severity::Damage, file, offset, what }
}
