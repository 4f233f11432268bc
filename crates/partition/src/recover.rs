//! Opens a partition: takes ownership, loads what must be in memory, applies the journal's tail.

use hapax_core::{Bounds, Decision, Fence, Machine, RowKey, Time, read_batch};
use hapax_store::{Claim, Store};

use crate::fetch::Fetch;
use crate::partition::{Error, Options};

/// A recovered machine, and how much journal was read.
pub(crate) struct Recovered {
    pub(crate) machine: Machine,
    pub(crate) claim: Claim,
    pub(crate) journal_bytes: usize,
    pub(crate) journal_decisions: usize,
}

/// Claims the partition and rebuilds its machine. Nothing is decided again: what the journal holds
/// was decided and answered.
pub(crate) fn recover(
    store: &mut impl Store,
    fetch: &mut Fetch,
    options: &Options,
) -> Result<Recovered, Error> {
    let claim = store.claim()?;
    assert!(claim.through <= claim.last, "rows never run ahead of the journal");
    if claim.epoch >= Fence::EPOCHS {
        return Err(Error::Epochs(claim.epoch));
    }
    let bounds = fitting(options.bounds, claim.batch_bytes_max);
    let Options { partition, partitions, seed, recipe, .. } = *options;
    let mut machine =
        Machine::with_bounds(partition, partitions, claim.epoch, seed, recipe, bounds);
    load(store, &mut machine, Machine::boot_ranges())?;
    let leases = machine.leases();
    load(store, &mut machine, leases)?;
    check_leases(&machine)?;

    // A store cannot read rows while it reads its journal, so batches are collected in between.
    let mut from = claim.through + 1;
    let (mut journal_bytes, mut journal_decisions) = (0, 0);
    while from <= claim.last {
        let (batches, bytes) = gather(store, from, options.gather_bytes)?;
        journal_bytes += bytes;
        assert!(!batches.is_empty(), "a store reads every batch up to the last");
        from += batches.len() as u64;
        for (at, decisions) in batches {
            journal_decisions += decisions.len();
            replay(store, &mut machine, fetch, at, decisions)?;
        }
    }
    check_leases(&machine)?;
    Ok(Recovered { machine, claim, journal_bytes, journal_decisions })
}

/// Bounds under which one tick fits into a batch of the journal.
fn fitting(bounds: Bounds, batch_bytes_max: usize) -> Bounds {
    let most = (batch_bytes_max / MOVED_BYTES).max(1);
    Bounds {
        tick_step: bounds.tick_step.min(most),
        expire_step: bounds.expire_step.min(most),
        job_step: bounds.job_step.min(most),
        ..bounds
    }
}

/// An upper bound of what a tick writes for one message that it moves.
const MOVED_BYTES: usize = 128;

/// Refuses a state with a lease that is counted but missing: it would never end.
fn check_leases(machine: &Machine) -> Result<(), Error> {
    match machine.missing_leases() {
        Some((queue, counted, found)) => Err(Error::Leases {
            queue: format!("{}/{}", queue.tenant, queue.queue),
            counted,
            found,
        }),
        None => Ok(()),
    }
}

/// Batches of the journal, decoded, and how many bytes they had.
type Gathered = (Vec<(Time, Vec<Decision>)>, usize);

/// Decodes batches until they have `most` bytes.
fn gather(store: &mut impl Store, from: u64, most: usize) -> Result<Gathered, Error> {
    let mut batches = Vec::new();
    let mut bytes_read = 0;
    let mut failed = None;
    store.read(from, &mut |sequence, bytes| {
        debug_assert_eq!(sequence, from + batches.len() as u64);
        match read_batch(bytes) {
            Ok(batch) => batches.push(batch),
            Err(error) => failed = Some(Error::Batch { sequence, error }),
        }
        bytes_read += bytes.len();
        Ok(failed.is_none() && bytes_read < most)
    })?;
    failed.map_or(Ok((batches, bytes_read)), Err)
}

fn load(
    store: &mut impl Store,
    machine: &mut Machine,
    ranges: Vec<(RowKey, RowKey)>,
) -> Result<(), Error> {
    for (from, to) in ranges {
        let mut failed = None;
        store.scan(from.as_slice(), to.as_slice(), &mut |key, value| {
            failed = value.and_then(|value| machine.boot(key, value).err());
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(Error::Bytes(error));
        }
    }
    Ok(())
}

fn replay(
    store: &mut impl Store,
    machine: &mut Machine,
    fetch: &mut Fetch,
    at: Time,
    decisions: Vec<Decision>,
) -> Result<(), Error> {
    machine.advance(at, &mut Vec::new());
    fetch.fetch(machine, store, |machine, needs| {
        for decision in &decisions {
            machine.needs_of(decision, needs);
        }
    })?;
    for decision in decisions {
        machine.apply(at, decision);
    }
    machine.unload();
    Ok(())
}
