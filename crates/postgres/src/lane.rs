//! A lane: an [`Appender`] that the threads of its partitions share with the task that has the
//! connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hapax_store::{Error, LogEnd};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::appender::{Appender, Ticket};
use crate::call::{Answer, Call, Owner};
use crate::connection::Connection;
use crate::error::Failure;
use crate::settings::Settings;

/// An idle lane asks this often how far everything is.
const LOOK: Duration = Duration::from_secs(60);
/// How often watchers are called, whatever happens.
const TICK: Duration = Duration::from_secs(1);
/// The pauses between tries are random, up to this for the first and the last of many.
const PAUSE_MS: (u64, u64) = (50, 500);

/// Is told what became of an owner's batches and questions.
pub(crate) trait Watcher: Send + Sync {
    /// Something became durable, was answered, or ended for this reason.
    fn changed(&self, last: LogEnd, ended: Option<Error>);
    /// Time passes.
    fn tick(&self);
}

pub struct Lane {
    state: Mutex<State>,
    /// Told with every outcome.
    moved: Condvar,
    /// Told when there may be something to send.
    wanted: Notify,
}

struct State {
    appender: Appender,
    watchers: BTreeMap<Ticket, Arc<dyn Watcher>>,
    /// Since when there is trouble.
    since: Option<Instant>,
}

impl Lane {
    pub fn new(cluster: Uuid, lineage: Uuid) -> Self {
        let appender = Appender::new(cluster, lineage);
        let state = State { appender, watchers: BTreeMap::new(), since: None };
        Self { state: Mutex::new(state), moved: Condvar::new(), wanted: Notify::new() }
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
        self.wanted.notify_one();
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes the lane's calls for ever, over a connection that is made anew when it fails.
    pub(crate) async fn run(self: Arc<Self>, settings: Settings) {
        let mut connection = None;
        let (mut looked, mut ticked) = (Instant::now(), Instant::now());
        let mut pause_ms = PAUSE_MS.0;
        loop {
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                let watchers: Vec<_> = self.lock().watchers.values().cloned().collect();
                watchers.iter().for_each(|watcher| watcher.tick());
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.with(Appender::look);
            }
            let Some(call) = self.next_call() else {
                // A wake that came before is kept for this wait.
                let _ = tokio::time::timeout(TICK, self.wanted.notified()).await;
                continue;
            };
            let outcome = execute(&settings, &mut connection, &call).await;
            let has_failed = outcome.is_err();
            if let Err(failure) = &outcome {
                tracing::warn!(%failure, "the database did not take an append; it is tried again");
            }
            self.answered(outcome);
            if !has_failed {
                pause_ms = PAUSE_MS.0;
                continue;
            }
            let pause = Duration::from_millis(fastrand::u64(pause_ms / 5..=pause_ms));
            pause_ms = (2 * pause_ms).min(PAUSE_MS.1);
            tokio::time::sleep(pause).await;
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

/// Executes a call on the connection, which is made if there is none.
pub(crate) async fn execute(
    settings: &Settings,
    connection: &mut Option<Connection>,
    call: &Call,
) -> Result<Answer, Failure> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::open(settings).await?,
    };
    let outcome = open.call(call).await;
    if !outcome.as_ref().is_err_and(Failure::ends_connection) {
        *connection = Some(open);
    }
    outcome
}
