//! The journal alone on the simulated disk: faster than the whole store, so that far more power
//! cuts fall between the writes of a roll, a seal, a recycling and a cut tail.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "all of this file is a test")]

use std::sync::Arc;

use hapax_sim::volume::Trigger;
use hapax_sim::{Random, SimDisk};
use hapax_store::journal::{Bounds, Journal, Options, Position};
use hapax_store::{Error, Sequence};

const IDENTITY: u64 = 7;
/// The first segment, and the bytes before a batch in it, as docs/disk-format.md has them.
const SEGMENT: &str = "journal-00000001.seg";
const RECORD_HEADER_LEN: u64 = 48;

struct Run {
    disk: SimDisk,
    random: Random,
    batches: Vec<Vec<u8>>,
    acknowledged: Sequence,
    /// What the rows would hold.
    through: Sequence,
    epoch: u32,
    rolled: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(random.bits());
        Journal::create(&*disk.mount(), &options(), IDENTITY).unwrap();
        Self {
            disk,
            random,
            batches: Vec::new(),
            acknowledged: 0,
            through: 0,
            epoch: 0,
            rolled: false,
        }
    }

    /// Recovers and compares. An error is fine where the machine went down.
    fn open(&mut self) -> Result<Journal, Error> {
        // The manifest's epoch is durable before the journal sees it.
        self.epoch += 1;
        let synced = Position::default();
        let bounds = Bounds { epoch: self.epoch, through: self.through, synced };
        let journal = open(&self.disk, bounds)?;
        let (last, _) = journal.begin(self.epoch)?;
        assert!(
            (self.acknowledged..=self.batches.len() as u64).contains(&last),
            "recovered to {last}, acknowledged {}, appended {}",
            self.acknowledged,
            self.batches.len()
        );
        self.batches.truncate(last as usize);
        self.acknowledged = last;
        self.compare(&journal)?;
        Ok(journal)
    }

    fn compare(&mut self, journal: &Journal) -> Result<(), Error> {
        let mut next = self.through + 1;
        journal.read(next, &mut |sequence, batch| {
            assert_eq!(sequence, next, "in order");
            assert_eq!(batch, self.batches[sequence as usize - 1], "batch {sequence}");
            next += 1;
            Ok(true)
        })?;
        assert!(next > self.acknowledged, "{next} is missing");
        Ok(())
    }

    fn live(&mut self, steps: u64) -> Result<(), Error> {
        let journal = self.open()?;
        let (mut flusher, mut keeper) = (journal.flusher(), journal.keeper());
        for _ in 0..steps {
            match self.random.weighted(&[8, 6, 3, 2, 1]) {
                0 => {
                    let len_max = if self.random.one_in(8) { 3000 } else { 400 };
                    let len = self.random.below(len_max);
                    let mut batch = vec![0; len as usize];
                    self.random.fill(&mut batch);
                    self.batches.push(batch.clone());
                    journal.append(self.epoch, self.batches.len() as u64, &batch)?;
                }
                1 => drop(flusher.step()?),
                2 => drop(keeper.step()?),
                3 => {
                    let durable = journal.durable()?;
                    assert!((self.acknowledged..=self.batches.len() as u64).contains(&durable));
                    self.acknowledged = durable;
                }
                _ => {
                    self.through = self.random.between(self.through, self.acknowledged);
                    journal.release(self.through);
                    self.compare(&journal)?;
                }
            }
        }
        self.rolled |= self.disk.names().iter().any(|name| name.ends_with("4.seg"));
        if self.random.one_in(6) {
            journal.close(self.epoch)?;
            self.acknowledged = self.batches.len() as u64;
        }
        Ok(())
    }
}

fn open(disk: &SimDisk, bounds: Bounds) -> Result<Journal, Error> {
    let (wake, nudge) = (Arc::new(|| {}), Arc::new(|| {}));
    Journal::open(disk.mount(), &options(), IDENTITY, bounds, wake, nudge)
}

fn options() -> Options {
    Options { segment_bytes: 8 << 10, pending_bytes_max: 16 << 10, ..Options::default() }
}

/// Runs the seed and panics where anything but the end of the machine stopped it.
fn run(seed: u64, errors: bool) -> Run {
    let mut run = Run::new(seed);
    for _ in 0..run.random.between(2, 6) {
        let nth = run.random.between(1, 80);
        let interrupted = run.random.share(7, 8);
        run.disk.faults(|faults| {
            if interrupted {
                faults.power_cut = Trigger::nth(nth);
            }
            if errors {
                faults.sync_error = Trigger::one_in(30);
                faults.write_error = Trigger::one_in(60);
            }
        });
        let steps = run.random.between(1, 100);
        let ended = run.live(steps);
        if let Err(error) = ended {
            let excused = run.disk.stopped().is_some()
                || errors && matches!(error, Error::Io { .. } | Error::Stopped(_));
            assert!(excused, "{error}");
        }
        run.disk.heal();
        if run.disk.stopped().is_none() {
            if run.random.one_in(4) { run.disk.kill() } else { run.disk.crash() }
        }
    }
    run.live(30).unwrap();
    run
}

fn for_seeds(count: u64, errors: bool) {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    if let Some(seed) = number("HAPAX_SEED") {
        drop(run(seed, errors));
        return;
    }
    let (mut rolled, mut lost, mut failed) = (0, 0, 0);
    for seed in 0..number("HAPAX_SEEDS").unwrap_or(count) {
        let ended = std::panic::catch_unwind(|| run(seed, errors));
        let run = ended.unwrap_or_else(|_| panic!("seed {seed} failed, as told above"));
        rolled += u64::from(run.rolled);
        lost += run.disk.counters().sectors_lost;
        failed += run.disk.counters().sync_errors;
    }
    assert!(rolled > count / 10 && lost > count / 2, "{rolled} rolled, {lost} sectors lost");
    assert!(!errors || failed > count / 4, "{failed} syncs failed");
}

#[test]
fn acknowledged_batches_survive_power_cuts_at_any_operation() {
    for_seeds(6000, false);
}

#[test]
fn acknowledged_batches_survive_failing_syncs_with_or_without_a_power_cut() {
    for_seeds(4000, true);
}

/// Where the record of a batch begins and its bytes end, in the first segment.
fn place_of(disk: &SimDisk, batch: &[u8]) -> (u64, u64) {
    let bytes = disk.contents(SEGMENT).unwrap();
    let at = bytes.windows(batch.len()).position(|window| window == batch).unwrap() as u64;
    (at - RECORD_HEADER_LEN, at + batch.len() as u64)
}

#[test]
fn a_tail_cut_at_every_byte_leaves_whole_batches_or_is_refused() {
    let disk = SimDisk::new(1);
    let volume = disk.mount();
    Journal::create(&*volume, &options(), IDENTITY).unwrap();
    let bounds = Bounds { epoch: 1, through: 0, synced: Position::default() };
    let journal = open(&disk, bounds).unwrap();
    journal.begin(1).unwrap();
    let batches = [[b'a'; 100], [b'b'; 100], [b'c'; 100]];
    for (sequence, batch) in (1..).zip(&batches) {
        journal.append(1, sequence, batch).unwrap();
        journal.flusher().step().unwrap();
    }
    assert_eq!(journal.durable().unwrap(), 3);
    disk.kill();
    let (second, safe) = place_of(&disk, &batches[1]);
    let (_, end) = place_of(&disk, &batches[2]);
    for cut in second..=end {
        for wiped in [false, true] {
            let disk = disk.fork(1);
            if wiped {
                let len = disk.contents(SEGMENT).unwrap().len() as u64;
                disk.overwrite(SEGMENT, &vec![0; (len - cut) as usize], cut).unwrap();
            } else {
                disk.cut(SEGMENT, cut).unwrap();
            }
            match open(&disk, bounds).and_then(|journal| journal.begin(2)) {
                Ok((last, _)) if cut == end => assert_eq!(last, 3),
                Ok((last, _)) => assert!(last == 2 && cut >= safe, "cut at {cut}: {last} batches"),
                Err(Error::Corrupt(damage)) => {
                    assert!(cut < safe, "cut at {cut}: {damage}");
                    assert!(damage.file.ends_with(SEGMENT) && damage.offset == second);
                }
                Err(error) => panic!("cut at {cut}: {error}"),
            }
        }
    }
}
