//! Reads the whole archive to find damage. Changes nothing.

use std::sync::Arc;

use super::bounds::{READ_AHEAD_BYTES, UNIT_BYTES};
use super::manifest::{self, Manifest};
use super::run::{self, RunFile};
use super::section::{Kind, Meta, Section, prefix};
use super::{ordered, points};
use crate::{Error, Volume};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Rows are lost or cannot be trusted: restore the file from a backup or a copy.
    Damage,
    /// A derived part is damaged: it is rebuilt from the rows whenever the store is opened.
    Derived,
    /// Nothing is wrong, for instance a leftover of a crash.
    Note,
}

/// Something that `verify` or opening found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// As [`Volume::describe`] names it.
    pub file: String,
    pub offset: u64,
    pub what: String,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub files: u64,
    /// Including deleted ones.
    pub rows: u64,
    pub bytes: u64,
    /// Findings that are [`Severity::Damage`].
    pub damages: u64,
}

/// Checks the manifest, every run it names, every block and everything derived from them. Damage is
/// reported and the rest is still checked; an error is returned only if the volume itself fails or
/// the format is newer than this release.
pub fn verify(volume: &dyn Volume, report: &mut dyn FnMut(Finding)) -> Result<Summary, Error> {
    let mut check = Check { summary: Summary::default(), report };
    let names = volume.list().map_err(|error| Error::io("list", &volume.describe(""), error))?;
    let manifest = match Manifest::read(volume) {
        Ok(manifest) => manifest,
        Err(error) => {
            check.absorb(error)?;
            return Ok(check.summary);
        }
    };
    let Some(manifest) = manifest else {
        if names.iter().any(|name| run::id_of(name).is_some()) {
            check.damage(&volume.describe(manifest::NAME), 0, super::MANIFEST_MISSING);
        }
        return Ok(check.summary);
    };
    check.summary.files += 1;
    for entry in &manifest.runs {
        match RunFile::open(volume, entry.id, entry.bytes) {
            Ok(file) => check.run(&file, entry)?,
            Err(error) => check.absorb(error)?,
        }
    }
    for name in &names {
        let named = |id| manifest.runs.iter().any(|entry| entry.id == id);
        if name == manifest::TEMPORARY || run::id_of(name).is_some_and(|id| !named(id)) {
            let file = volume.describe(name);
            let what = "a leftover of a crash; the next owner removes it".to_owned();
            (check.report)(Finding { severity: Severity::Note, file, offset: 0, what });
        }
    }
    Ok(check.summary)
}

struct Check<'a> {
    summary: Summary,
    report: &'a mut dyn FnMut(Finding),
}

impl Check<'_> {
    fn damage(&mut self, file: &str, offset: u64, what: &str) {
        self.summary.damages += 1;
        self.find(Severity::Damage, file, offset, what);
    }

    fn find(&mut self, severity: Severity, file: &str, offset: u64, what: &str) {
        (self.report)(Finding { severity, file: file.to_owned(), offset, what: what.to_owned() });
    }

    /// Turns damage into a finding; other errors end the check.
    fn absorb(&mut self, error: Error) -> Result<(), Error> {
        let Error::Corrupt(corruption) = error else { return Err(error) };
        self.damage(&corruption.file, corruption.offset, &corruption.what);
        Ok(())
    }

    fn run(&mut self, file: &Arc<RunFile>, entry: &manifest::Run) -> Result<(), Error> {
        self.summary.files += 1;
        self.summary.bytes += file.bytes;
        let footer = run::read_footer(file)?;
        let agrees = footer
            .is_some_and(|footer| entry.sections.iter().all(|meta| footer.sections.contains(meta)));
        if !agrees {
            let offset = file.bytes.saturating_sub(run::TRAILER_BYTES);
            self.find(Severity::Derived, file.label(), offset, "the footer is damaged");
        }
        for meta in &entry.sections {
            if let Err(error) = self.section(file, meta) {
                self.absorb(error)?;
            }
        }
        Ok(())
    }

    /// Every block, the order and number of the rows, and whether index and filter agree.
    fn section(&mut self, file: &Arc<RunFile>, meta: &Meta) -> Result<(), Error> {
        let mut derived = Vec::new();
        let mut note = |offset, what: &str| derived.push((offset, what.to_owned()));
        let section = Section::load(meta.clone(), file.clone(), u64::MAX, &mut note)?;
        for (offset, what) in derived {
            self.find(Severity::Derived, file.label(), offset, &what);
        }
        let counts = match meta.kind {
            Kind::Points { .. } => check_points(&section)?,
            Kind::Ordered => check_ordered(&section)?,
        };
        self.summary.rows += counts.rows;
        if counts != (Counts { rows: meta.rows, deleted: meta.deleted, blocks: meta.blocks }) {
            let offset = meta.first_unit * UNIT_BYTES as u64;
            let what = "the section has not the rows the manifest counts";
            return Err(file.corrupt(offset, what));
        }
        Ok(())
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    rows: u64,
    deleted: u64,
    blocks: u64,
}

fn check_points(section: &Section) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    let mut cursor = points::Cursor::new(section.walk(0, READ_AHEAD_BYTES))?;
    let mut last = None;
    while !cursor.ended() {
        let key = cursor.key();
        let (unit, _) = cursor.place();
        let offset = unit * UNIT_BYTES as u64;
        if last.is_some_and(|last| last >= key) {
            return Err(section.run.corrupt(offset, "keys are out of order"));
        }
        if section.filters.as_ref().is_some_and(|f| !f.contains(prefix(&key.to_be_bytes()))) {
            return Err(section.run.corrupt(offset, "the filter denies a key that is there"));
        }
        last = Some(key);
        counts.rows += 1;
        counts.deleted += u64::from(cursor.value().is_none());
        cursor.advance()?;
    }
    counts.blocks = cursor.blocks();
    Ok(counts)
}

fn check_ordered(section: &Section) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    let mut cursor = ordered::Cursor::new(section.walk(0, READ_AHEAD_BYTES))?;
    let mut last: Option<Vec<u8>> = None;
    while !cursor.ended() {
        if last.as_deref().is_some_and(|last| last >= cursor.key()) {
            let offset = cursor.place().0 * UNIT_BYTES as u64;
            return Err(section.run.corrupt(offset, "keys are out of order"));
        }
        let key = last.get_or_insert_default();
        key.clear();
        key.extend_from_slice(cursor.key());
        counts.rows += 1;
        counts.deleted += u64::from(cursor.value().is_none());
        cursor.advance()?;
    }
    counts.blocks = cursor.blocks();
    Ok(counts)
}
