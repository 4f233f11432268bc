//! Threads for the workers: the only part of the store that uses timeouts.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Checkpointer, Merger, Shared, lock};
use crate::Error;
use crate::log::Log;

/// How often a full disk is retried and free space is measured.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// The nice value of background threads.
const BACKGROUND: i32 = 10;

/// The threads of a store. They end when the store is closed, dropped or stopped; dropping this
/// stops the store, as a crash would, and waits for them.
pub struct Threads<L: Log> {
    shared: Arc<Shared<L>>,
    handles: Vec<JoinHandle<()>>,
}

impl<L: Log> Threads<L> {
    pub(crate) fn new(shared: &Arc<Shared<L>>) -> Self {
        Self { shared: Arc::clone(shared), handles: Vec::new() }
    }

    pub(crate) fn start(
        &mut self,
        name: &str,
        run: impl FnOnce(&Shared<L>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let handle = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let guard = PanicGuard(&shared);
            // The error is recorded: the next call to the store returns it.
            let _ = run(&shared);
            drop(guard);
        });
        self.handles.push(handle.map_err(|error| Error::io("start the thread", name, error))?);
        Ok(())
    }
}

impl<L: Log> Drop for Threads<L> {
    fn drop(&mut self) {
        self.shared.log.stop().fail("its threads were ended");
        for handle in self.handles.drain(..) {
            // Raised again for each: a signal wakes one wait.
            self.shared.interrupt();
            // A panic is recorded too.
            let _ = handle.join();
        }
    }
}

impl<L: Log> std::fmt::Debug for Threads<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.handles.len()).finish_non_exhaustive()
    }
}

/// Stops the store when a worker panics: its work would no longer be done.
struct PanicGuard<'a, L: Log>(&'a Shared<L>);

impl<L: Log> Drop for PanicGuard<'_, L> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(Error::Stopped("a worker panicked, see the log".to_owned()));
        }
    }
}

/// Writes checkpoints, and does what else there is to `keep`, until the store stops.
pub(crate) fn checkpoint<L: Log>(
    mut keep: impl FnMut() -> Result<bool, Error>,
    mut checkpointer: Checkpointer<L>,
    shared: &Shared<L>,
) -> Result<(), Error> {
    give_way();
    while !shared.log.stop().is_thrown() {
        let kept = keep()?;
        let wrote = checkpointer.step()?;
        if !kept && !wrote {
            if shared.room().is_low() {
                // The choice of merges may depend on the free space.
                shared.signals.merge.raise();
            }
            shared.signals.background.wait(Some(RETRY));
        }
    }
    Ok(())
}

/// Merges until the store stops.
pub(crate) fn merge<L: Log>(mut merger: Merger<L>, shared: &Shared<L>) -> Result<(), Error> {
    give_way();
    while !shared.log.stop().is_thrown() {
        if !merger.step()? {
            shared.signals.merge.wait(shared.is_merge_full().then_some(RETRY));
        }
    }
    Ok(())
}

/// Lowers the priority of this thread, so that threads that callers wait for go first.
fn give_way() {
    // If that is not permitted, it only runs at normal priority.
    let _ = rustix::process::nice(BACKGROUND);
}

/// A flag that one thread waits for. Raised while nobody waits, it ends the next wait at once.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: Mutex<bool>,
    woken: Condvar,
}

impl Signal {
    pub(crate) fn raise(&self) {
        *lock(&self.raised) = true;
        self.woken.notify_one();
    }

    /// Lowers it. Returns whether it was raised.
    #[cfg(test)]
    pub(super) fn take(&self) -> bool {
        std::mem::take(&mut *lock(&self.raised))
    }

    fn wait(&self, timeout: Option<Duration>) {
        let mut raised = lock(&self.raised);
        if let Some(timeout) = timeout {
            if !*raised {
                let waited = self.woken.wait_timeout(raised, timeout);
                raised = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        } else {
            while !*raised {
                raised = self.woken.wait(raised).unwrap_or_else(PoisonError::into_inner);
            }
        }
        *raised = false;
    }
}
