//! How far each partition was when this machine last knew it for certain, in a small file beside
//! the cache.
//!
//! A database that was set back does not know it. Nodes that lived through it do, and nodes that
//! were restarted meanwhile have these files. They are not synced: an old value is true, too.
//!
//! Noted is only what no failover to a synchronous standby can undo: what an append committed
//! cleanly, and what a heartbeat saw. A heartbeat is one statement that reads the ends of all
//! partitions and updates its node's row: what its snapshot shows was committed before it, so it
//! lies before the heartbeat's own commit in the database's one log, and a heartbeat that is
//! acknowledged without a warning proves all of it.
//!
//! A file of another lineage says one thing: an operator who accepts a loss raises all epochs, so a
//! database with lower ones is from before that.
//!
//! A file has a checksum. One that was cut by a crash, or changed, says nothing: half of a number
//! would be another position, and halt a node whose database is sound.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use hapax_store::{Error, LogEnd};
use uuid::Uuid;

use crate::call::{End, Watched};
use crate::log::lock;
use crate::members::Heartbeat;

/// Where a witness is kept: a file, or what the simulator has for one.
pub trait Note: Debug + Send + Sync {
    fn read(&self) -> Option<String>;

    /// False if that fails.
    fn write(&self, text: &str) -> bool;
}

/// A file.
impl Note for PathBuf {
    fn read(&self) -> Option<String> {
        fs::read_to_string(self).ok()
    }

    fn write(&self, text: &str) -> bool {
        let temporary = self.with_extension("tmp");
        let write = || fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, self));
        // Somebody may clean up under a living node.
        let made = |error: io::Error| match (error.kind(), self.parent()) {
            (io::ErrorKind::NotFound, Some(parent)) => {
                hapax_store::create_private_directory(parent)
            }
            _ => Err(error),
        };
        write().or_else(|error| made(error).and_then(|()| write())).is_ok()
    }
}

/// What this machine knows of one partition. The owner of the partition and the heartbeats of its
/// node share it.
#[derive(Debug, Default)]
pub struct Witness {
    kept: Option<Arc<dyn Note>>,
    /// Cluster and lineage: another one says nothing about this.
    of: (Uuid, Uuid),
    /// What was known of another lineage of this cluster: its epoch counts.
    other: Option<LogEnd>,
    noted: Mutex<Option<LogEnd>>,
    /// What the file has; locked while it is written.
    written: Mutex<Option<LogEnd>>,
}

impl Witness {
    pub fn read(kept: Arc<dyn Note>, cluster: Uuid, lineage: Uuid) -> Self {
        let of = (cluster, lineage);
        let found = kept.read().and_then(|text| parse(&text));
        let last = found.filter(|(found, _)| *found == of).map(|it| it.1);
        let is_other = |found: (Uuid, Uuid)| found.0 == cluster && found.1 != lineage;
        let other = found.filter(|(found, _)| is_other(*found)).map(|it| it.1);
        let (noted, written) = (Mutex::new(last), Mutex::new(last));
        Self { kept: Some(kept), of, other, noted, written }
    }

    pub(crate) fn last(&self) -> Option<LogEnd> {
        *lock(&self.noted)
    }

    /// What was known of another lineage, if the database is from before it.
    pub(crate) fn undone_by(&self, end: &End) -> Option<LogEnd> {
        self.other.filter(|other| end.epoch < other.epoch)
    }

    /// The partition was that far, for certain. What is known never goes back: a heartbeat may
    /// report less than an append that overtook it.
    pub(crate) fn note(&self, last: LogEnd) {
        let mut noted = lock(&self.noted);
        let known = noted.get_or_insert(last);
        let epoch = known.epoch.max(last.epoch);
        let further = if last.sequence > known.sequence { last } else { *known };
        *known = LogEnd { epoch, ..further };
    }

    /// Writes it, if it changed. A failure costs the file's use and nothing else.
    pub(crate) fn write(&self) {
        let mut written = lock(&self.written);
        let last = self.last();
        let (Some(kept), Some(noted), false) = (&self.kept, last, *written == last) else {
            return;
        };
        if kept.write(&text_of(self.of, noted)) {
            *written = last;
        }
    }
}

/// What the partition ends at, if that is not a continuation of what was known of it. `kept` is
/// the batch of that number, if the journal still has it.
pub(crate) fn set_back(had: &LogEnd, end: &End, kept: Option<LogEnd>) -> Option<LogEnd> {
    if end.last.sequence < had.sequence || end.epoch < had.epoch {
        return Some(end.last);
    }
    kept.filter(|kept| kept.sequence == had.sequence && kept.chain != had.chain)
}

/// What this machine knows of all partitions.
#[derive(Clone, Debug)]
pub struct Witnesses {
    lineage: Uuid,
    all: Arc<[Arc<Witness>]>,
}

impl Witnesses {
    /// Reads the files, in one directory for each partition.
    #[cfg(feature = "connection")]
    pub(crate) fn of_files(of: (Uuid, Uuid), directories: &[PathBuf]) -> Self {
        let file = |(partition, directory): (u16, &PathBuf)| {
            // Without a directory the files are not written: the node remembers while it lives.
            let _ = hapax_store::create_private_directory(directory);
            Arc::new(path(directory, partition)) as Arc<dyn Note>
        };
        Self::read(of, (0..).zip(directories).map(file))
    }

    /// Reads what is kept of cluster and lineage, for each partition.
    pub fn read(of: (Uuid, Uuid), kept: impl Iterator<Item = Arc<dyn Note>>) -> Self {
        let witness = |kept| Arc::new(Witness::read(kept, of.0, of.1));
        Self { lineage: of.1, all: kept.map(witness).collect() }
    }

    pub fn of(&self, partition: u16) -> Option<Arc<Witness>> {
        self.all.get(usize::from(partition)).cloned()
    }

    /// What is known now. A heartbeat is compared with what was known when it began: while it is
    /// on its way, appends may get further than it sees.
    pub fn known(&self) -> Vec<(u16, LogEnd)> {
        let last = |(partition, witness): (u16, &Arc<Witness>)| Some((partition, witness.last()?));
        (0..).zip(self.all.iter()).filter_map(last).collect()
    }

    /// Notes what a heartbeat saw, which was begun when that was known. Returns the first partition
    /// that was set back, as an error; nothing is noted of it.
    pub fn note(&self, known: &[(u16, LogEnd)], heartbeat: &Heartbeat) -> Option<Error> {
        let is_same = heartbeat.lineage == self.lineage;
        let mut first = None;
        for Watched { end, kept } in &heartbeat.watched {
            let witness = self.of(end.partition);
            let had = known.iter().find(|(partition, _)| *partition == end.partition);
            let found = had.and_then(|(_, had)| match is_same {
                true => Some((*had, set_back(had, end, *kept)?)),
                // Positions of different histories say nothing about each other.
                false => Some((*had, end.last)).filter(|_| end.epoch < had.epoch),
            });
            let undone = witness.as_ref().and_then(|witness| witness.undone_by(end));
            let found = found.or_else(|| Some((undone?, end.last)));
            match (found, witness.filter(|_| is_same)) {
                (Some((had, found)), _) => {
                    let file = label(end.partition);
                    first = first.or(Some(Error::Regressed { file, had, found }));
                }
                (None, Some(witness)) => witness.note(LogEnd { epoch: end.epoch, ..end.last }),
                (None, None) => {}
            }
        }
        first
    }

    /// Writes what changed. Blocks.
    pub fn write(&self) {
        self.all.iter().for_each(|witness| witness.write());
    }
}

/// A partition in messages. Who reads them need not know where the database is.
pub(crate) fn label(partition: u16) -> String {
    format!("partition {partition} in the database")
}

/// The numbers of the batches that a heartbeat looks for.
#[cfg(feature = "connection")]
pub(crate) fn numbers(known: &[(u16, LogEnd)]) -> Vec<(u16, hapax_store::Sequence)> {
    known.iter().map(|(partition, end)| (*partition, end.sequence)).collect()
}

#[cfg(feature = "connection")]
pub(crate) fn path(directory: &std::path::Path, partition: u16) -> PathBuf {
    directory.join(format!("witness-{partition:04}"))
}

/// Cluster and lineage, how far it was, and a checksum of that.
fn text_of(of: (Uuid, Uuid), last: LogEnd) -> String {
    let LogEnd { epoch, sequence, chain } = last;
    let said = format!("{} {} {epoch} {sequence} {chain}", of.0, of.1);
    format!("{said} {}\n", sum(&said))
}

fn sum(said: &str) -> String {
    blake3::hash(said.as_bytes()).to_hex().chars().take(16).collect()
}

/// Only what [`text_of`] wrote, to the last byte.
fn parse(text: &str) -> Option<((Uuid, Uuid), LogEnd)> {
    let (said, found) = text.strip_suffix('\n')?.rsplit_once(' ')?;
    if found != sum(said) {
        return None;
    }
    let mut words = said.split(' ');
    let of = (Uuid::parse_str(words.next()?).ok()?, Uuid::parse_str(words.next()?).ok()?);
    let epoch = words.next()?.parse().ok()?;
    let sequence = words.next()?.parse().ok()?;
    let chain = words.next()?.parse().ok()?;
    Some((of, LogEnd { epoch, sequence, chain }))
}

#[cfg(test)]
mod tests {
    use hapax_store::Sequence;

    use super::*;

    fn end(epoch: u32, sequence: Sequence, chain: u64) -> LogEnd {
        LogEnd { epoch, sequence, chain }
    }

    /// A heartbeat of a broker with one partition, at that epoch and with that last batch.
    fn heartbeat(epoch: u32, last: LogEnd, kept: Option<LogEnd>, lineage: Uuid) -> Heartbeat {
        let end = End { partition: 0, epoch, claim: None, owner: None, last };
        Heartbeat {
            count: 1,
            database_ms: 0,
            round_trip: std::time::Duration::ZERO,
            catalog: 0,
            lineage,
            watched: vec![Watched { end, kept }],
        }
    }

    fn witnesses(directory: &std::path::Path) -> Witnesses {
        Witnesses::of_files((Uuid::from_u128(1), Uuid::from_u128(2)), &[directory.to_owned()])
    }

    #[test]
    fn what_a_heartbeat_saw_is_kept_over_a_restart_and_less_is_a_loss() {
        let directory = tempfile::tempdir().unwrap();
        let (lineage, other) = (Uuid::from_u128(2), Uuid::from_u128(3));
        let all = witnesses(directory.path());
        assert_eq!(all.known(), []);
        assert!(all.note(&[], &heartbeat(7, end(6, 100, 1), None, lineage)).is_none());
        all.write();
        let all = witnesses(directory.path());
        let known = all.known();
        assert_eq!(known, [(0, end(7, 100, 1))]);
        let lost = |epoch, last, kept| all.note(&known, &heartbeat(epoch, last, kept, lineage));
        for (epoch, last, kept) in [
            (7, end(6, 99, 9), None),
            (6, end(6, 100, 1), Some(end(6, 100, 1))),
            (8, end(8, 150, 3), Some(end(6, 100, 2))),
        ] {
            let error = lost(epoch, last, kept).unwrap().to_string();
            assert!(error.contains("it went to batch 100 of epoch 7"), "{error}");
            assert_eq!(all.known(), known, "nothing is noted of it");
        }
        let elsewhere = heartbeat(9, end(1, 1, 1), None, other);
        assert!(all.note(&known, &elsewhere).is_none(), "another history");
        assert_eq!(all.known(), known);
        assert!(lost(8, end(8, 101, 5), Some(end(6, 100, 1))).is_none());
        assert!(lost(8, end(8, 102, 6), None).is_none(), "it was truncated");
        assert_eq!(all.known(), [(0, end(8, 102, 6))]);
    }

    #[test]
    fn a_directory_that_was_deleted_under_a_living_node_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let (directory, lineage) = (parent.path().join("cache/one"), Uuid::from_u128(2));
        let all = witnesses(&directory);
        fs::remove_dir_all(parent.path().join("cache")).unwrap();
        assert!(all.note(&[], &heartbeat(7, end(6, 100, 1), None, lineage)).is_none());
        all.write();
        assert_eq!(witnesses(&directory).known(), [(0, end(7, 100, 1))]);
    }

    /// A crash of the machine may leave a part of it, or zeroes: it is not synced.
    #[test]
    fn a_file_that_was_cut_or_changed_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let lineage = Uuid::from_u128(2);
        let all = witnesses(directory.path());
        let last = end(70, 123_456, 9_876_543_210);
        assert!(all.note(&[], &heartbeat(70, last, None, lineage)).is_none());
        all.write();
        let file = path(directory.path(), 0);
        let whole = fs::read(&file).unwrap();
        assert_eq!(witnesses(directory.path()).known(), [(0, last)]);
        let says_nothing = |bytes: &[u8], what: &str| {
            fs::write(&file, bytes).unwrap();
            let all = witnesses(directory.path());
            assert_eq!(all.known(), [], "{what}");
            // Also not of another lineage.
            let of = (Uuid::from_u128(1), Uuid::from_u128(8));
            let other = Witnesses::of_files(of, &[directory.path().to_owned()]);
            let sound = heartbeat(1, end(1, 1, 1), None, of.1);
            assert!(other.note(&[], &sound).is_none(), "{what}");
        };
        for length in 0..whole.len() {
            says_nothing(&whole[..length], &format!("cut at {length}"));
            for bit in [0, 3, 6] {
                let mut changed = whole.clone();
                changed[length] ^= 1 << bit;
                says_nothing(&changed, &format!("bit {bit} of byte {length}"));
            }
        }
        says_nothing(&[whole.clone(), whole.clone()].concat(), "twice");
        says_nothing(&vec![0; whole.len()], "zeroes");
        fs::write(&file, &whole).unwrap();
        assert_eq!(witnesses(directory.path()).known(), [(0, last)]);
    }

    /// A backup is restored, the loss accepted, and the same backup is restored again.
    #[test]
    fn a_database_from_before_a_loss_was_accepted_is_noticed_by_its_epochs() {
        let directory = tempfile::tempdir().unwrap();
        let (cluster, first, second) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        let of = |lineage| Witnesses::of_files((cluster, lineage), &[directory.path().to_owned()]);
        let accepted = of(second);
        let known = accepted.known();
        let (after, before) = (end(65_543, 90, 1), end(7, 95, 2));
        assert!(accepted.note(&known, &heartbeat(65_543, after, None, second)).is_none());
        accepted.write();
        // A node that lives, and one that was restarted.
        let (lives, restarted) = (accepted, of(first));
        for all in [&lives, &restarted] {
            let known = all.known();
            let error = all.note(&known, &heartbeat(7, before, None, first)).unwrap().to_string();
            assert!(error.contains("it went to batch 90 of epoch 65543"), "{error}");
            assert_eq!(all.known(), known, "nothing is noted of it");
        }
        // Another loss is accepted, which raises the epochs above all of them.
        let third = Uuid::from_u128(4);
        let again = of(third);
        let known = again.known();
        assert_eq!(known, [], "positions of another history");
        assert!(again.note(&known, &heartbeat(65_544, end(7, 95, 2), None, third)).is_none());
        assert_eq!(again.known(), [(0, end(65_544, 95, 2))]);
    }

    #[test]
    fn a_heartbeat_that_an_append_overtook_is_no_loss_and_takes_nothing_back() {
        let directory = tempfile::tempdir().unwrap();
        let all = witnesses(directory.path());
        let witness = all.of(0).unwrap();
        witness.note(end(7, 100, 1));
        let known = all.known();
        // It is on its way while its node appends.
        witness.note(end(7, 103, 4));
        let beaten = heartbeat(7, end(7, 101, 2), Some(end(7, 100, 1)), Uuid::from_u128(2));
        assert!(all.note(&known, &beaten).is_none());
        assert_eq!(all.known(), [(0, end(7, 103, 4))]);
        // And claims, before anything is appended.
        witness.note(end(8, 103, 4));
        assert!(all.note(&known, &beaten).is_none());
        assert_eq!(all.known(), [(0, end(8, 103, 4))]);
    }
}
