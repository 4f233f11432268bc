//! Fetching what the machine needs from the store before it decides.

use hapax_core::{Machine, Need, RangeOf, RowKey};
use hapax_store::{PointKey, Store};

use crate::partition::Error;

/// What one round of fetching works on; kept to be used again.
#[derive(Debug, Default)]
pub(crate) struct Fetch {
    needs: Vec<Need>,
    more: Vec<Need>,
    keys: Vec<PointKey>,
    /// Which need each key belongs to.
    origin: Vec<usize>,
    rows: Vec<RowKey>,
    /// Ranges that were read for the question at hand: reading them again would tell nothing new.
    read: Vec<Need>,
    /// A range is left off after so many bytes, and no job reads another one in the same tick.
    range_bytes: usize,
    /// A scan for single rows passes over so many others before it seeks.
    rows_passed: usize,
    /// What the jobs of this tick have read.
    job_bytes: usize,
    /// What was read since `start`, and how much may be.
    bytes: usize,
    bytes_max: usize,
}

/// A range that has no rows is not free: with many jobs, no tick reads all of theirs.
const RANGE_BYTES_MIN: usize = 4_096;

/// So many bytes of a row that nobody wants count as another one.
const PASSED_BYTES: usize = 4_096;
/// Rows are near if so many names are between them for each row that a scan may pass over: most
/// names may be of rows that were deleted.
const NAMES_PER_ROW: u64 = 4;
/// Rows that one scan reads, so that it is not long to find where it ends.
const SCAN_ROWS_MAX: usize = 1_024;

/// A need leads to at most a few more; a chain longer than this is a bug.
const ROUNDS_MAX: usize = 10_000;

impl Fetch {
    pub(crate) fn new(range_bytes: usize, rows_passed: usize) -> Self {
        Self { range_bytes, rows_passed, bytes_max: usize::MAX, ..Self::default() }
    }

    /// Begins to count what is read.
    pub(crate) fn start(&mut self) {
        self.bytes = 0;
    }

    /// How much was read since `start`.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same as `fetch`, but for what is beyond `most` bytes. Returns whether that was all.
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

    /// Asks until nothing more is needed.
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
                // New knowledge may call for the next range, or for the group of a body that a
                // record kept; keys were all asked for before.
                ask(machine, &mut self.more);
                let read = &self.read;
                let is_over = self.job_bytes >= self.range_bytes;
                self.more.retain(|need| match need {
                    Need::Range { of, .. } if is_over && is_job(of) => false,
                    // A job goes on with the next batch: all at once, it would bring a whole
                    // queue into memory.
                    Need::Range { of: job @ (RangeOf::Purge(_) | RangeOf::Delayed(_)), .. } => {
                        let is_same =
                            |read: &Need| matches!(read, Need::Range { of, .. } if of == job);
                        !read.iter().any(is_same)
                    }
                    Need::Range { .. } => !read.contains(need),
                    Need::Group(..) => true,
                    Need::Point(_) | Need::Row(_) => false,
                });
            }
            std::mem::swap(&mut self.needs, &mut self.more);
        }
        Err(Error::Endless)
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
            machine.absent(need); // Where the store had it, it is there by now.
        }
        Ok(found_any)
    }

    /// Reads rows by their names. Neighbours share a scan: to seek costs as much as to pass over
    /// some rows that nobody wants. Those far apart do not: nobody knows how many rows were deleted
    /// between them, and a scan reads over those as well.
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
            let Need::Range { from, to, limit, of } = need else { continue };
            let is_over = is_job(of) && self.job_bytes >= self.range_bytes;
            if is_over || self.bytes > self.bytes_max {
                continue;
            }
            any = true;
            let more = &mut self.more;
            let mut failed = None;
            let (mut rows, mut bytes) = (0, 0);
            let mut left_off = false;
            let mut last = Vec::new();
            if from < to {
                store.scan(from.as_slice(), to.as_slice(), &mut |key, value| {
                    if let Err(error) = machine.load_row(key, value, more) {
                        failed = Some(error);
                        return false;
                    }
                    rows += 1;
                    bytes += value.len();
                    last.clear();
                    last.extend_from_slice(key);
                    left_off = rows >= *limit || bytes >= self.range_bytes;
                    !left_off
                })?;
            }
            if let Some(error) = failed {
                return Err(Error::Bytes(error));
            }
            self.bytes += bytes;
            if is_job(of) {
                self.job_bytes += bytes.max(RANGE_BYTES_MIN);
            }
            machine.loaded(need, (rows > 0).then_some(&*last), left_off);
            self.read.push(*need);
        }
        Ok(any)
    }
}

/// Where a scan ends that begins with the row `from` and reads those of the `wanted` that are near.
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

/// Whether the range is read for something that goes on with every tick.
fn is_job(of: &RangeOf) -> bool {
    matches!(of, RangeOf::Purge(_) | RangeOf::Delayed(_) | RangeOf::Redrive(..))
}
