//! Threads for the workers: the only place of the store that waits by the clock.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Shared, Workers, lock};
use crate::Error;
use crate::journal::{Flusher, Keeper};

use super::workers::{Checkpointer, Merger};

/// How often a full disk is tried again, and free space is looked at.
const RETRY: Duration = Duration::from_secs(1);
/// How much less of a core a thread gets that nobody waits for.
const BACKGROUND: i32 = 10;

/// The threads of a store. They end when the store is closed, dropped or stopped; dropping this
/// stops the store, as a crash would, and waits for them.
pub struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    pub(super) fn spawn(workers: Workers, shared: Arc<Shared>) -> Result<Self, Error> {
        let Workers { flusher, keeper, checkpointer, merger } = workers;
        let mut threads = Self { shared, handles: Vec::new() };
        threads.start("hapax-flush", |shared| flush(flusher, shared))?;
        threads.start("hapax-checkpoint", |shared| checkpoint(keeper, checkpointer, shared))?;
        threads.start("hapax-merge", |shared| merge(merger, shared))?;
        Ok(threads)
    }

    fn start(
        &mut self,
        name: &str,
        run: impl FnOnce(&Shared) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let handle = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let guard = PanicGuard(&shared);
            // The error is on record: whoever asks the store next gets it.
            let _ = run(&shared);
            drop(guard);
        });
        self.handles.push(handle.map_err(|error| Error::io("start the thread", name, error))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.journal.stop().fail("its threads were ended");
        for handle in self.handles.drain(..) {
            // Raised again for each: a signal wakes one wait.
            self.shared.interrupt();
            // A panic is on record too.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.handles.len()).finish_non_exhaustive()
    }
}

/// A worker that panics stops the store: nobody would do its work any more.
struct PanicGuard<'a>(&'a Shared);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(Error::Stopped("a worker panicked, see the log".to_owned()));
        }
    }
}

fn flush(mut flusher: Flusher, shared: &Shared) -> Result<(), Error> {
    while !shared.journal.stop().is_thrown() {
        if !flusher.step()? {
            shared.journal.wait(flusher.is_starved().then_some(RETRY));
        }
    }
    Ok(())
}

fn checkpoint(
    mut keeper: Keeper,
    mut checkpointer: Checkpointer,
    shared: &Shared,
) -> Result<(), Error> {
    give_way();
    while !shared.journal.stop().is_thrown() {
        let kept = keeper.step()?;
        let wrote = checkpointer.step()?;
        if !kept && !wrote {
            shared.signals.background.wait(Some(RETRY));
        }
    }
    Ok(())
}

fn merge(mut merger: Merger, shared: &Shared) -> Result<(), Error> {
    give_way();
    while !shared.journal.stop().is_thrown() {
        if !merger.step()? {
            shared.signals.merge.wait(shared.is_merge_full().then_some(RETRY));
        }
    }
    Ok(())
}

/// Lets threads that somebody waits for go first where there are not enough cores for all.
fn give_way() {
    // Where that is not allowed everything is done, and in turn.
    let _ = rustix::process::nice(BACKGROUND);
}

/// A flag one thread waits for. Raised while nobody waits, it ends the next wait at once.
#[derive(Debug, Default)]
pub(super) struct Signal {
    raised: Mutex<bool>,
    woken: Condvar,
}

impl Signal {
    pub(super) fn raise(&self) {
        *lock(&self.raised) = true;
        self.woken.notify_one();
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
