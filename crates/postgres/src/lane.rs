//! A lane: an [`Appender`] that the threads of its partitions share with whoever executes its
//! calls: the task that has the connection, or the simulator.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hapax_store::journal::Wake;
use hapax_store::{Error, LogEnd};
use uuid::Uuid;

use crate::appender::{Appender, Ticket};
use crate::call::{Answer, Call, Owner};
use crate::error::Failure;

/// Is told of every append: how long the statement took, how many batches it had, and whether it
/// was acknowledged. Must not block.
pub type OnAppend = Box<dyn Fn(Duration, usize, bool) + Send + Sync>;

/// Is told what became of an owner's batches and questions.
pub(crate) trait Watcher: Send + Sync {
    /// Something became durable, was answered, or ended for this reason.
    fn changed(&self, last: LogEnd, ended: Option<Error>);
    /// Time passes.
    fn tick(&self);
}

/// Lets outcomes arrive. False if who waits has waited for long enough.
pub type Pass = Arc<dyn Fn() -> bool + Send + Sync>;

pub struct Lane {
    state: Mutex<State>,
    /// Told with every outcome.
    moved: Condvar,
    /// Called when there may be something to send.
    wanted: Wake,
    /// Lets time pass for who waits, where it does not pass by itself.
    pass: Option<Pass>,
}

struct State {
    appender: Appender,
    watchers: BTreeMap<Ticket, Arc<dyn Watcher>>,
    /// Since when there is trouble.
    since: Option<Instant>,
}

impl Lane {
    /// `wanted` is called when there may be something to send.
    pub fn new(cluster: Uuid, lineage: Uuid, wanted: Wake) -> Self {
        let appender = Appender::new(cluster, lineage);
        let state = State { appender, watchers: BTreeMap::new(), since: None };
        Self { state: Mutex::new(state), moved: Condvar::new(), wanted, pass: None }
    }

    /// A lane whose calls are executed in steps, between which `pass` is called.
    pub fn stepped(cluster: Uuid, lineage: Uuid, pass: Pass) -> Self {
        Self { pass: Some(pass), ..Self::new(cluster, lineage, Arc::new(|| {})) }
    }

    pub(crate) fn add(
        &self,
        label: String,
        owner: Owner,
        last: LogEnd,
        watcher: Arc<dyn Watcher>,
    ) -> Ticket {
        let mut state = self.lock();
        let ticket = state.appender.add(label, owner, last);
        state.watchers.insert(ticket, watcher);
        ticket
    }

    pub(crate) fn remove(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.appender.remove(ticket);
        state.watchers.remove(&ticket);
    }

    /// Reads or changes the appender, and lets it go on.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Appender) -> T) -> T {
        let changed = change(&mut self.lock().appender);
        (self.wanted)();
        changed
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Appender) -> T) -> T {
        read(&self.lock().appender)
    }

    /// Waits until something holds of the appender. False if it took too long.
    pub(crate) fn wait(&self, within: Duration, mut holds: impl FnMut(&Appender) -> bool) -> bool {
        let until = Instant::now() + within;
        let mut state = self.lock();
        while !holds(&state.appender) {
            if let Some(pass) = &self.pass {
                drop(state);
                if !pass() {
                    return false;
                }
                state = self.lock();
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.moved.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn trouble(&self) -> Option<(Failure, Duration)> {
        let state = self.lock();
        Some((state.appender.trouble()?.clone(), state.since?.elapsed()))
    }

    /// The next statement, for whoever executes them: the lane's task, or the simulator.
    pub fn next_call(&self) -> Option<Call> {
        self.lock().appender.next_call()
    }

    /// Its outcome. Tells the owners.
    pub fn answered(&self, outcome: Result<Answer, Failure>) {
        let mut state = self.lock();
        let changed = state.appender.answered(outcome);
        match state.appender.trouble() {
            None => state.since = None,
            Some(_) => state.since = state.since.or_else(|| Some(Instant::now())),
        }
        let told: Vec<_> = changed
            .into_iter()
            .filter_map(|ticket| {
                let watcher = Arc::clone(state.watchers.get(&ticket)?);
                let last = state.appender.durable(ticket)?;
                Some((watcher, last, state.appender.ended(ticket)))
            })
            .collect();
        drop(state);
        self.moved.notify_all();
        told.into_iter().for_each(|(watcher, last, ended)| watcher.changed(last, ended));
    }

    /// Asks how far everything is before anything else: see [`Appender::look`].
    pub fn look(&self) {
        self.with(Appender::look);
    }

    /// Time passes: owners write down how far they are.
    pub fn tick(&self) {
        let watchers: Vec<_> = self.lock().watchers.values().cloned().collect();
        watchers.iter().for_each(|watcher| watcher.tick());
    }

    /// Whether there is nothing to send and nothing on its way.
    pub fn is_at_rest(&self) -> bool {
        self.read(Appender::is_at_rest)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}
