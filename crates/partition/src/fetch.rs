//! Fetching what the machine needs from the store before it decides.

use hapax_core::{Machine, Need, RangeOf};
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
    /// Ranges that were read for the question at hand: reading them again would tell nothing new.
    read: Vec<Need>,
    /// A range is left off after so many bytes.
    range_bytes: usize,
}

/// A need leads to at most a few more; a chain longer than this is a bug.
const ROUNDS_MAX: usize = 10_000;

impl Fetch {
    pub(crate) fn new(range_bytes: usize) -> Self {
        Self { range_bytes, ..Self::default() }
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
        ask(machine, &mut self.needs);
        for _ in 0..ROUNDS_MAX {
            if self.needs.is_empty() {
                return Ok(());
            }
            self.more.clear();
            let found = self.fetch_points(machine, store)?;
            let ranges = self.fetch_ranges(machine, store)?;
            if self.more.is_empty() && (found || ranges) {
                // New knowledge may call for the next range; keys were all asked for before.
                ask(machine, &mut self.more);
                let read = &self.read;
                self.more.retain(|need| match need {
                    // A job goes on with the next batch: all at once, it would bring a whole
                    // queue into memory.
                    Need::Range { of: job @ (RangeOf::Purge(_) | RangeOf::Delayed(_)), .. } => {
                        let is_same =
                            |read: &Need| matches!(read, Need::Range { of, .. } if of == job);
                        !read.iter().any(is_same)
                    }
                    Need::Range { .. } => !read.contains(need),
                    _ => false,
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
        let mut failed = None;
        let mut found_any = false;
        store.get_many(&self.keys, &mut |place, value| {
            let need = origin.get(place).and_then(|place| needs.get(*place));
            if let Some(Need::Point(digest) | Need::Group(_, digest)) = need {
                found_any = true;
                if let Err(error) = machine.warm_point(digest, value, more) {
                    failed.get_or_insert(error);
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(Error::Bytes(error));
        }
        for need in self.needs.iter().filter(|need| matches!(need, Need::Group(..))) {
            machine.absent(need); // Where the store had it, it is there by now.
        }
        Ok(found_any)
    }

    fn fetch_ranges(
        &mut self,
        machine: &mut Machine,
        store: &mut impl Store,
    ) -> Result<bool, Error> {
        let mut any = false;
        for need in &self.needs {
            let Need::Range { from, to, limit, .. } = need else { continue };
            any = true;
            let more = &mut self.more;
            let mut failed = None;
            let mut rows = 0;
            let mut bytes = 0;
            let mut last = Vec::new();
            if from < to {
                store.scan(from.as_slice(), to.as_slice(), &mut |key, value| {
                    if let Err(error) = machine.warm_row(key, value, more) {
                        failed = Some(error);
                        return false;
                    }
                    rows += 1;
                    bytes += value.len();
                    last.clear();
                    last.extend_from_slice(key);
                    rows < *limit && bytes < self.range_bytes
                })?;
            }
            if bytes >= self.range_bytes {
                rows = *limit; // Left off: there may be more, as where the limit was reached.
            }
            if let Some(error) = failed {
                return Err(Error::Bytes(error));
            }
            machine.warmed(need, rows, (rows > 0).then_some(&*last));
            self.read.push(*need);
        }
        Ok(any)
    }
}
