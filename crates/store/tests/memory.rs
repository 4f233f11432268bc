//! The store in memory keeps the contract, and fails when asked to.
#![expect(clippy::expect_used, reason = "a test: what fails here fails it")]

use hapax_store::conformance::{self, Harness};
use hapax_store::memory::{Faults, MemoryStore};
use hapax_store::{Error, Store};

/// With `held`, nothing is durable before the suite settles; `unaware`, an owner that was replaced
/// does not notice by itself.
struct InMemory {
    store: MemoryStore,
    held: bool,
    unaware: bool,
}

impl Harness for InMemory {
    fn open(&mut self) -> Result<Box<dyn Store>, Error> {
        self.store.set_faults(Faults {
            held: self.held,
            asked: self.held,
            unaware: self.unaware,
            ..Faults::default()
        });
        Ok(Box::new(self.store.another()))
    }

    fn settle(&mut self) {
        self.store.settle().expect("settles");
    }

    fn settle_without_sync(&mut self) {
        self.store.finish_checkpoint();
    }

    fn crash(&mut self) {
        self.store = self.store.crash();
    }

    fn allows_two_owners(&self) -> bool {
        true
    }
}

#[test]
fn the_store_in_memory_keeps_the_contract() {
    for (held, unaware) in [(false, false), (true, false), (false, true), (true, true)] {
        conformance::run(&mut || {
            Box::new(InMemory { store: MemoryStore::default(), held, unaware })
        });
    }
}

#[test]
fn a_failed_append_stops_the_store_and_a_crash_recovers_the_rest() {
    let mut store = MemoryStore::default();
    let epoch = store.claim().unwrap().epoch;
    store.set_faults(Faults { failing_append: Some(3), ..Faults::default() });
    store.append(epoch, 1, b"one").unwrap();
    store.append(epoch, 2, b"two").unwrap();
    assert!(matches!(store.append(epoch, 3, b"three"), Err(Error::Stopped(_))));
    assert!(matches!(store.append(epoch, 3, b"three"), Err(Error::Stopped(_))));
    assert!(store.durable().is_err());
    assert_eq!(store.crash().claim().unwrap().last, 2);
}

#[test]
fn a_failed_sync_is_never_taken_for_success() {
    for seed in 0..64 {
        let mut store = MemoryStore::default();
        let epoch = store.claim().unwrap().epoch;
        store.set_faults(Faults::seeded(seed, 5));
        let mut confirmed = 0;
        for sequence in 1..=10 {
            let done = store.append(epoch, sequence, b"batch").and_then(|()| store.settle());
            match done {
                Ok(()) => confirmed = store.durable().unwrap(),
                Err(error) => assert!(matches!(error, Error::Stopped(_)), "seed {seed}: {error}"),
            }
        }
        assert!(confirmed < 10, "seed {seed}: the fault happened");
        assert_eq!(store.crash().claim().unwrap().last, confirmed, "seed {seed}");
    }
}
