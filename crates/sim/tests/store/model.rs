//! What a store must contain, kept the simplest way: every batch, and the rows as maps.
//!
//! The model knows what was promised (`acknowledged`, `through`) apart from what was merely asked
//! for, and after a crash accepts everything between the two, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use hapax_sim::Random;
use hapax_store::{Claim, NEVER, PointKey, RowSet, Sequence, Store};

pub(crate) type Verdict<T = ()> = Result<T, String>;

/// Fails the run with a message, the seed being added further up.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

const POINTS: u64 = 120;
const ORDERED: u64 = 60;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    points: BTreeMap<PointKey, (u64, Vec<u8>)>,
    ordered: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The time of the last checkpoint; points whose time is over by it may be gone.
    at: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    PutPoint(PointKey, u64, Vec<u8>),
    DeletePoint(PointKey, u64),
    PutOrdered(Vec<u8>, Vec<u8>),
    DeleteOrdered(Vec<u8>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// All batches ever appended that are not known to be lost; the first has sequence 1.
    batches: Vec<Vec<u8>>,
    /// The last batch the store said is durable.
    pub(crate) acknowledged: Sequence,
    /// The rows the store said are visible, and the batch they are as of.
    pub(crate) through: Sequence,
    rows: Rows,
    /// A checkpoint under way: it may be visible after a crash, whole.
    pub(crate) started: Option<(Sequence, Rows)>,
    pub(crate) epoch: u32,
}

impl Model {
    pub(crate) fn last(&self) -> Sequence {
        self.batches.len() as Sequence
    }

    pub(crate) fn append(&mut self, batch: Vec<u8>) {
        self.batches.push(batch);
    }

    /// The store says how far it is durable.
    pub(crate) fn durable(&mut self, sequence: Sequence) -> Verdict {
        ensure!(
            (self.acknowledged..=self.last()).contains(&sequence),
            "durable went from {} to {sequence} with {} appended",
            self.acknowledged,
            self.last()
        );
        self.acknowledged = sequence;
        Ok(())
    }

    /// Makes up a checkpoint and the changes it consists of.
    pub(crate) fn start_checkpoint(&mut self, random: &mut Random) -> (Sequence, u64, Vec<Change>) {
        assert!(self.started.is_none() && self.through < self.last());
        let through = random.between(self.through + 1, self.last());
        let at = self.rows.at + random.below(50);
        let mut rows = Rows { at, ..self.rows.clone() };
        let changes = rows.change(random);
        self.started = Some((through, rows));
        (through, at, changes)
    }

    /// The store says which checkpoint is visible.
    pub(crate) fn checkpointed(&mut self, through: Sequence) -> Verdict {
        if let Some((_, rows)) = self.started.take_if(|(started, _)| *started == through) {
            self.through = through;
            self.rows = rows;
            ensure!(
                through <= self.acknowledged,
                "rows are visible through {through}, but only {} is durable",
                self.acknowledged
            );
        }
        ensure!(
            through == self.through,
            "checkpointed says {through} instead of {}, under way {:?}",
            self.through,
            self.started.as_ref().map(|started| started.0)
        );
        Ok(())
    }

    /// A new owner has recovered. What it was told is as good as acknowledged: it will answer
    /// from it.
    pub(crate) fn claimed(&mut self, claim: Claim) -> Verdict {
        ensure!(claim.epoch > self.epoch, "epoch {} after {}", claim.epoch, self.epoch);
        self.epoch = claim.epoch;
        ensure!(
            (self.acknowledged..=self.last()).contains(&claim.last),
            "recovered to batch {}, but {} was acknowledged and {} appended",
            claim.last,
            self.acknowledged,
            self.last()
        );
        self.batches.truncate(claim.last as usize);
        self.acknowledged = claim.last;
        self.checkpointed(claim.through)?;
        self.started = None;
        ensure!(claim.through <= claim.last, "rows through {} of {}", claim.through, claim.last);
        Ok(())
    }

    /// Compares the batches from one after `through` on.
    pub(crate) fn check_batches(&self, store: &mut impl Store, from: Sequence) -> Verdict {
        let mut next = from;
        let mut wrong = None;
        let result = store.read(from, &mut |sequence, batch| {
            let expected = self.batches.get(sequence as usize - 1);
            if wrong.is_none() && (sequence != next || expected.is_none_or(|bytes| bytes != batch))
            {
                wrong = Some(format!(
                    "batch {next}: got {sequence} of {} bytes, expected {:?} bytes",
                    batch.len(),
                    expected.map(Vec::len)
                ));
            }
            next = sequence + 1;
            Ok(true)
        });
        result.map_err(|error| format!("reading from {from}: {error}"))?;
        ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
        ensure!(
            next > self.acknowledged,
            "read ended before {next}, acknowledged is {}",
            self.acknowledged
        );
        Ok(())
    }

    pub(crate) fn check_rows(&self, store: &mut impl Store, random: &mut Random) -> Verdict {
        self.rows.check_points(store)?;
        self.rows.check_ordered(store, random)
    }
}

impl Rows {
    fn change(&mut self, random: &mut Random) -> Vec<Change> {
        let mut changes = Vec::new();
        let count = if random.one_in(10) { 0 } else { random.between(1, 40) };
        let keys: BTreeSet<u64> = (0..count).map(|_| random.below(POINTS)).collect();
        for key in keys {
            self.change_point(point_key(key), random, &mut changes);
        }
        let count = if random.one_in(5) { 0 } else { random.between(1, 30) };
        let keys: BTreeSet<u64> = (0..count).map(|_| random.below(ORDERED)).collect();
        for key in keys.into_iter().map(ordered_key) {
            if random.one_in(3) {
                self.ordered.remove(&key);
                changes.push(Change::DeleteOrdered(key));
            } else {
                let value = value(random);
                self.ordered.insert(key.clone(), value.clone());
                changes.push(Change::PutOrdered(key, value));
            }
        }
        changes
    }

    fn change_point(&mut self, key: PointKey, random: &mut Random, changes: &mut Vec<Change>) {
        let old = self.points.remove(&key).map(|(drop_at, _)| drop_at);
        let new = match random.below(4) {
            0 => None,
            1 => Some(NEVER),
            2 => old.filter(|drop_at| *drop_at > self.at),
            _ => Some((self.at + 1 + random.below(150)).next_multiple_of(50)),
        };
        // The caller of a store keeps a point in one bucket at a time.
        if let Some(old) = old
            && new != Some(old)
        {
            changes.push(Change::DeletePoint(key, old));
        }
        if let Some(drop_at) = new {
            let value = value(random);
            self.points.insert(key, (drop_at, value.clone()));
            changes.push(Change::PutPoint(key, drop_at, value));
        }
    }

    fn check_points(&self, store: &mut impl Store) -> Verdict {
        // Twice the keys that exist: a look-up is mostly in vain.
        let keys: Vec<PointKey> = (0..2 * POINTS).map(point_key).collect();
        let mut found: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        let mut doubled = None;
        let result = store.get_many(&keys, &mut |index, value| {
            if found.get_mut(index).is_none_or(|found| found.replace(value.to_vec()).is_some()) {
                doubled = Some(index);
            }
        });
        result.map_err(|error| format!("get_many: {error}"))?;
        ensure!(doubled.is_none(), "point {doubled:?} was found twice");
        for (key, found) in keys.iter().zip(found) {
            let expected = self.points.get(key);
            let over = expected.is_some_and(|(drop_at, _)| *drop_at <= self.at);
            let same = found.as_ref() == expected.map(|(_, value)| value);
            ensure!(
                same || over && found.is_none(),
                "point {key:02x?}: found {:?} bytes, expected {:?} (drop at, bytes), now is {}",
                found.map(|value| value.len()),
                expected.map(|(drop_at, value)| (drop_at, value.len())),
                self.at
            );
        }
        Ok(())
    }

    fn check_ordered(&self, store: &mut impl Store, random: &mut Random) -> Verdict {
        let (mut from, mut to) = (Vec::new(), vec![0xff; 40]);
        let mut count_max = usize::MAX;
        if random.one_in(2) {
            from = ordered_key(random.below(ORDERED));
            to = ordered_key(random.below(ORDERED));
            count_max = random.between(1, 20) as usize;
        }
        let mut found = Vec::new();
        let result = store.scan(&from, &to, &mut |key, value| {
            found.extend(value.map(|value| (key.to_vec(), value.to_vec())));
            found.len() < count_max
        });
        result.map_err(|error| format!("scan: {error}"))?;
        let rows = self.ordered.iter().filter(|(key, _)| (&from..&to).contains(key));
        let expected: Vec<_> = rows.take(count_max).collect();
        let sizes = |key: &Vec<u8>, value: &Vec<u8>| (key.clone(), value.len());
        ensure!(
            found.iter().map(|(key, value)| (key, value)).eq(expected.iter().copied()),
            "scan from {from:?} to {to:?}, at most {count_max}: found {:?}, expected {:?}",
            found.iter().map(|(key, value)| sizes(key, value)).collect::<Vec<_>>(),
            expected.iter().map(|(key, value)| sizes(key, value)).collect::<Vec<_>>()
        );
        Ok(())
    }
}

pub(crate) fn fill(rows: &mut RowSet, changes: &[Change]) {
    for change in changes {
        match change {
            Change::PutPoint(key, drop_at, value) => rows.put_point(*key, *drop_at, value),
            Change::DeletePoint(key, drop_at) => rows.delete_point(*key, *drop_at),
            Change::PutOrdered(key, value) => rows.put_ordered(key, value),
            Change::DeleteOrdered(key) => rows.delete_ordered(key),
        }
    }
}

fn point_key(number: u64) -> PointKey {
    let mut key = [0; 16];
    Random::new(number).fill(&mut key);
    key
}

/// Keys that share prefixes and differ in length, one being the other's prefix now and then.
fn ordered_key(number: u64) -> Vec<u8> {
    let mut key = vec![b'a' + (number % 3) as u8; 1 + (number % 7) as usize];
    key.extend_from_slice(&(number as u16).to_be_bytes());
    key
}

fn value(random: &mut Random) -> Vec<u8> {
    let len = match random.below(40) {
        0 => random.between(4000, 20_000),
        1..4 => random.between(500, 4200),
        4 => 0,
        _ => random.between(1, 120),
    };
    let mut value = vec![0; len as usize];
    random.fill(&mut value);
    value
}
