//! Waiting for conditions. Every wait has the same generous bound, so that a hang is a failure
//! and a slow machine is not.

use std::time::{Duration, Instant};

/// Far longer than anything takes in the tests, on a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Pause between two checks.
const STEP: Duration = Duration::from_millis(2);

/// The result of a check: a boolean, or the value found.
pub trait Condition {
    type Found;

    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Blocks until the condition holds.
#[track_caller]
pub fn until<C: Condition>(what: &str, look: impl FnMut() -> C) -> C::Found {
    within(PATIENCE, what, look)
}

/// Blocks until the condition holds, for at most `bound`.
#[track_caller]
pub fn within<C: Condition>(bound: Duration, what: &str, mut look: impl FnMut() -> C) -> C::Found {
    let start = Instant::now();
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(start.elapsed() < bound, "waited {:?} in vain for {what}", start.elapsed());
        pause(STEP);
    }
}

/// Waits until the condition holds.
pub async fn eventually<C: Condition>(what: &str, mut look: impl AsyncFnMut() -> C) -> C::Found {
    let start = Instant::now();
    loop {
        // A check that hangs counts as a timeout too.
        let looked = tokio::time::timeout(PATIENCE, look()).await;
        if let Some(found) = looked.ok().and_then(Condition::found) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited {:?} in vain for {what}", start.elapsed());
        tokio::time::sleep(STEP).await;
    }
}

/// Waits for a future that must become ready.
pub async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes far too long")
}

/// Lets time pass; no result may depend on how much.
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
