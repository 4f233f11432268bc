//! Reads the rows that the machine needs from the store before it decides.

use hapax_core::{Machine, Need, Range, RangeOf, RowKey};
use hapax_store::{PointKey, Store};

use crate::partition::Error;

/// The buffers of one round of fetching, kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct Fetch {
    needs: Vec<Need>,
    more: Vec<Need>,
    keys: Vec<PointKey>,
    /// The need that each key belongs to.
    origin: Vec<usize>,
    rows: Vec<RowKey>,
    /// Ranges already read for the current batch: reading them again would find nothing new.
    read: Vec<Range>,
    /// A range read stops after this many bytes, and no job starts another one in the same tick.
    range_bytes: usize,
    /// A scan for single rows skips this many others before it seeks.
    rows_passed: usize,
    /// What the jobs of this tick have read.
    job_bytes: usize,
    /// What deleted rows at the heads of queues counted for since `start`.
    deleted_bytes: usize,
    /// Bytes read since `start`; below, the limit.
    bytes: usize,
    bytes_max: usize,
}

/// An empty range counts as this much, so that with many jobs no tick reads all of theirs.
const RANGE_BYTES_MIN: usize = 4_096;

/// A deleted row that a range read passes over counts as this much: there may be millions in a row,
/// and nobody should wait for all of them at once.
const DELETED_BYTES: usize = 128;

/// This many bytes of a skipped row count as another row.
const PASSED_BYTES: usize = 4_096;
/// Rows are near if at most this many names are between them for each row that a scan may skip:
/// most names may belong to deleted rows.
const NAMES_PER_ROW: u64 = 4;
/// The most rows that one scan reads.
const SCAN_ROWS_MAX: usize = 1_024;

/// A need leads to at most a few more; a chain longer than this is a bug.
const ROUNDS_MAX: usize = 10_000;

impl Fetch {
    pub(crate) fn new(range_bytes: usize, rows_passed: usize) -> Self {
        Self { range_bytes, rows_passed, bytes_max: usize::MAX, ..Self::default() }
    }

    /// Starts counting what is read.
    pub(crate) fn start(&mut self) {
        self.bytes = 0;
        self.deleted_bytes = 0;
    }

    /// Bytes read since `start`.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Like `fetch`, but stops after `most` bytes. Returns whether everything was read.
    pub(crate) fn fetch_up_to(
        &mut self,
        most: usize,
        machine: &mut Machine,
        store: &mut impl Store,
        ask: impl Fn(&Machine, &mut Vec<Need>),
    ) -> Result<bool, Error> {
        self.bytes_max = most;
        let fetched = self.fetch(machine, store, ask);
        self.bytes_max = usize::MAX;
        fetched.map(|()| self.bytes <= most)
    }

    /// Fetches until nothing more is needed.
    pub(crate) fn fetch(
        &mut self,
        machine: &mut Machine,
        store: &mut impl Store,
        ask: impl Fn(&Machine, &mut Vec<Need>),
    ) -> Result<(), Error> {
        self.needs.clear();
        self.read.clear();
        self.job_bytes = 0;
        ask(machine, &mut self.needs);
        for _ in 0..ROUNDS_MAX {
            if self.needs.is_empty() || self.bytes > self.bytes_max {
                return Ok(());
            }
            self.more.clear();
            let found = self.fetch_points(machine, store)?;
            let rows = self.fetch_rows(machine, store)?;
            let ranges = self.fetch_ranges(machine, store)?;
            if self.more.is_empty() && (found || rows || ranges) {
                // What was loaded may lead to the next range, or to the group of a body that a
                // record kept; all keys were fetched before.
                ask(machine, &mut self.more);
                let (read, jobs, heads) = (&self.read, self.is_over(true), self.is_over(false));
                self.more.retain(|need| match need {
                    Need::Range(range) if jobs && is_job(&range.of) => false,
                    Need::Range(range) if heads && is_head(&range.of) => false,
                    // A job goes on with the next batch: all at once, it would bring a whole
                    // queue into memory.
                    Need::Range(range) if is_in_steps(&range.of) => {
                        !read.iter().any(|read| read.of == range.of)
                    }
                    Need::Range(range) => !read.contains(&**range),
                    Need::Group(..) => true,
                    Need::Point(_) | Need::Row(_) => false,
                });
            }
            std::mem::swap(&mut self.needs, &mut self.more);
        }
        Err(Error::Endless)
    }

    /// Whether jobs, or else the heads of queues, have read enough for one batch.
    fn is_over(&self, jobs: bool) -> bool {
        (if jobs { self.job_bytes } else { self.deleted_bytes }) >= self.range_bytes
    }

    fn fetch_points(
        &mut self,
        machine: &mut Machine,
        store: &mut impl Store,
    ) -> Result<bool, Error> {
        self.keys.clear();
        self.origin.clear();
        for (place, need) in self.needs.iter().enumerate() {
            if let Need::Point(digest) | Need::Group(_, digest) = need {
                self.keys.push(digest.0);
                self.origin.push(place);
            }
        }
        if self.keys.is_empty() {
            return Ok(false);
        }
        let (needs, more, origin) = (&self.needs, &mut self.more, &self.origin);
        let (bytes, bytes_max) = (&mut self.bytes, self.bytes_max);
        let mut failed = None;
        let mut found_any = false;
        store.get_many(&self.keys, &mut |place, value| {
            let need = origin.get(place).and_then(|place| needs.get(*place));
            if let Some(Need::Point(digest) | Need::Group(_, digest)) = need {
                found_any = true;
                *bytes += value.len();
                if *bytes > bytes_max {
                    return;
                }
                if let Err(error) = machine.load_point(digest, value, more) {
                    failed.get_or_insert(error);
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(Error::Bytes(error));
        }
        if self.bytes > self.bytes_max {
            return Ok(true);
        }
        for need in &self.needs {
            machine.absent(need); // If the store had it, it is loaded by now.
        }
        Ok(found_any)
    }

    /// Reads rows by name. Neighbours share a scan, because a seek costs as much as skipping some
    /// rows. Rows far apart do not: it is unknown how many deleted rows are between them, which a
    /// scan reads too.
    fn fetch_rows(&mut self, machine: &mut Machine, store: &mut impl Store) -> Result<bool, Error> {
        self.rows.clear();
        self.rows.extend(self.needs.iter().filter_map(|need| match need {
            Need::Row(row) => Some(*row),
            _ => None,
        }));
        self.rows.sort_unstable();
        self.rows.dedup();
        let mut wanted = self.rows.iter().peekable();
        while let Some(from) = wanted.peek().map(|row| **row)
            && self.bytes <= self.bytes_max
        {
            let (mut failed, mut passed, mut left_off) = (None, 0, false);
            let more = &mut self.more;
            let to = neighbours_end(from, wanted.clone(), self.rows_passed);
            store.scan(from.as_slice(), to.as_slice(), &mut |key, value| {
                let Some(value) = value else { return true }; // As few as there are names between.
                while wanted.next_if(|row| row.as_slice() < key).is_some() {} // Not there.
                if wanted.next_if(|row| row.as_slice() == key).is_some() {
                    passed = 0;
                    self.bytes += value.len();
                    failed = machine.load_row(key, value, more).err();
                } else {
                    passed += 1 + value.len() / PASSED_BYTES;
                }
                left_off =
                    failed.is_some() || passed > self.rows_passed || self.bytes > self.bytes_max;
                !left_off
            })?;
            if let Some(error) = failed {
                return Err(Error::Bytes(error));
            }
            if !left_off {
                while wanted.next_if(|row| **row < to).is_some() {} // Not there.
            }
        }
        Ok(!self.rows.is_empty())
    }

    fn fetch_ranges(
        &mut self,
        machine: &mut Machine,
        store: &mut impl Store,
    ) -> Result<bool, Error> {
        let mut any = false;
        for need in &self.needs {
            let Need::Range(range) = need else { continue };
            let Range { from, to, limit, of } = &**range;
            let is_over = is_job(of) && self.is_over(true) || is_head(of) && self.is_over(false);
            if is_over || self.bytes > self.bytes_max {
                continue;
            }
            any = true;
            let more = &mut self.more;
            let mut failed = None;
            let (mut rows, mut bytes, mut deleted) = (0, 0, 0);
            let mut left_off = false;
            let mut last = Vec::new();
            if from < to {
                store.scan(from.as_slice(), to.as_slice(), &mut |key, value| {
                    if let Some(value) = value {
                        failed = machine.load_row(key, value, more).err();
                        (rows, bytes) = (rows + 1, bytes + value.len());
                    } else {
                        (deleted, bytes) = (deleted + DELETED_BYTES, bytes + DELETED_BYTES);
                    }
                    last.clear();
                    last.extend_from_slice(key);
                    left_off = rows >= *limit || bytes >= self.range_bytes;
                    !left_off && failed.is_none()
                })?;
            }
            if let Some(error) = failed {
                return Err(Error::Bytes(error));
            }
            self.bytes += bytes;
            if is_job(of) {
                self.job_bytes += bytes.max(RANGE_BYTES_MIN);
            } else if is_head(of) {
                self.deleted_bytes += deleted;
            }
            machine.loaded(need, (!last.is_empty()).then_some(&*last), left_off);
            self.read.push(Range::clone(range));
        }
        Ok(any)
    }
}

/// The end of a scan that begins with the row `from` and reads those of `wanted` that are near.
fn neighbours_end<'a>(
    from: RowKey,
    wanted: impl Iterator<Item = &'a RowKey>,
    rows_passed: usize,
) -> RowKey {
    let near = NAMES_PER_ROW * (rows_passed as u64 + 1);
    let mut last = from;
    for row in wanted.take(SCAN_ROWS_MAX) {
        if last.names_to(row).is_none_or(|names| names > near) {
            break;
        }
        last = *row;
    }
    last.next()
}

/// Whether what the range is read for goes on with the next batch.
fn is_in_steps(of: &RangeOf) -> bool {
    matches!(of, RangeOf::Purge(_) | RangeOf::Delayed(_))
}

/// Whether the range is read for a receive that goes on with the next batch: as long as there may
/// be more in the rows it leaves, it wakes receivers again.
fn is_head(of: &RangeOf) -> bool {
    matches!(of, RangeOf::Ready(_) | RangeOf::Leads(_) | RangeOf::Members(..))
}

/// Whether the range is read for something that goes on with every tick.
fn is_job(of: &RangeOf) -> bool {
    matches!(of, RangeOf::Purge(_) | RangeOf::Delayed(_) | RangeOf::Redrive(..))
}
