//! Power cuts at random moments, with any part of what was not synced surviving: nothing durable
//! is lost, nothing else is made up, and the store always opens.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::collections::BTreeMap;

use hapax_store::{Error, Store};
use support::{Disk, Random, Stepped, content, small};

/// What one life of a store told its owner.
#[derive(Debug, Default)]
struct Written {
    durable: u64,
    checkpointed: u64,
}

/// Works until the power goes out. Rows: under key `n % 16` the last batch that was `n`.
fn live(store: &mut Stepped, random: &mut Random, told: &mut Written) -> Result<(), Error> {
    loop {
        match random.below(10) {
            0..4 => store.append_next()?,
            4..6 => drop(store.workers.flusher.step()?),
            6 => drop(store.workers.keeper.step()?),
            7 => drop(store.workers.checkpointer.step()?),
            8 => drop(store.workers.merger.step()?),
            _ => {
                let through = store.last;
                let refused = store.checkpoint(move |rows| {
                    for number in through.saturating_sub(15).max(1)..=through {
                        rows.put_ordered(&[(number % 16) as u8], &number.to_le_bytes());
                    }
                });
                assert!(matches!(refused, Ok(()) | Err(Error::OutOfOrder { .. })), "{refused:?}");
            }
        }
        told.durable = store.store.durable()?;
        told.checkpointed = store.store.checkpointed()?;
    }
}

fn check(store: &mut Stepped, told: &Written) -> Result<(), Error> {
    assert!(store.last >= told.durable, "{} is durable, {} there", told.durable, store.last);
    assert!(store.claim.through >= told.checkpointed);
    store.check_contents(store.claim.through + 1)?;
    let mut rows = BTreeMap::new();
    store.store.scan(b"", b"\xff", &mut |key, value| {
        rows.insert(key.to_vec(), u64::from_le_bytes(value.unwrap().try_into().unwrap()));
        true
    })?;
    for number in store.claim.through.saturating_sub(15).max(1)..=store.claim.through {
        assert_eq!(rows.get(&vec![(number % 16) as u8]), Some(&number));
    }
    Ok(())
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing_durable() {
    let (mut cuts, mut lost, mut rolled, mut moved) = (0_u64, 0_u64, 0, 0);
    for seed in 0..300_u64 {
        let mut random = Random(seed);
        let mut disk = Disk::default();
        let mut told = Written::default();
        for round in 0..12 {
            disk.cut_power_after(random.below(120));
            let mut last = told.durable;
            let opened = Stepped::open(&disk, &small()).and_then(|mut store| {
                check(&mut store, &told)?;
                let result = live(&mut store, &mut random, &mut told);
                last = store.last;
                result
            });
            let error = opened.err();
            // The only thing that can go wrong is the power.
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("power"), "seed {seed}, round {round}: {text}");
            cuts += 1;
            lost += last - told.durable;
            rolled = rolled.max(disk.segments().len());
            moved = moved.max(told.checkpointed);
            disk = disk.after_power_cut(&mut random);
        }
        let mut store =
            Stepped::open(&disk, &small()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        check(&mut store, &told).unwrap();
        store.settle().unwrap();
        store.append(&content(store.last + 1)).unwrap();
        store.store.close().unwrap();
        drop(store);
        let damages = hapax_store::disk::check(&disk, &mut |_| {}).unwrap().damages;
        assert_eq!(damages, 0, "seed {seed}");
    }
    assert!(cuts > 1000 && lost > 100 && rolled > 2 && moved > 50, "{lost} {rolled} {moved}");
}
