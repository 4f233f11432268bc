//! Opening: own the partition, load what must be in memory, apply the journal's tail.

use hapax_core::{Decision, Machine, Time, read_batch};
use hapax_store::{Claim, Store};

use crate::fetch::Fetch;
use crate::partition::{Error, Options};

/// Claims the partition and rebuilds its machine. The rules are not asked again: what the journal
/// holds was decided and answered.
pub(crate) fn recover(
    store: &mut impl Store,
    fetch: &mut Fetch,
    options: &Options,
) -> Result<(Machine, Claim), Error> {
    let claim = store.claim()?;
    assert!(claim.through <= claim.last, "rows never run ahead of the journal");
    let mut machine =
        Machine::with_bounds(options.partition, claim.epoch, options.seed, options.bounds);
    load(store, &mut machine)?;
    fetch.fetch(&mut machine, store, Machine::leased)?;

    // A store cannot read rows while it reads its journal, so batches are gathered in between.
    let mut from = claim.through + 1;
    while from <= claim.last {
        let batches = gather(store, from, options.gather_bytes)?;
        assert!(!batches.is_empty(), "a store reads every batch up to the last");
        from += batches.len() as u64;
        for (at, decisions) in batches {
            replay(store, &mut machine, fetch, at, decisions)?;
        }
    }
    Ok((machine, claim))
}

/// Decodes batches until they have `most` bytes.
fn gather(
    store: &mut impl Store,
    from: u64,
    most: usize,
) -> Result<Vec<(Time, Vec<Decision>)>, Error> {
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
    failed.map_or(Ok(batches), Err)
}

fn load(store: &mut impl Store, machine: &mut Machine) -> Result<(), Error> {
    for (from, to) in Machine::boot_ranges() {
        let mut failed = None;
        store.scan(from.as_slice(), to.as_slice(), &mut |key, value| {
            failed = machine.boot(key, value).err();
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
    machine.cool();
    Ok(())
}
