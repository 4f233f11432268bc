//! Executes calls over connections that are made anew when they fail.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::call::{Answer, Call};
use crate::connection::Connection;
use crate::error::Failure;
use crate::lane::{Lane, OnAppend};
use crate::patience::{Patience, Pulse};
use crate::repeats::Repeats;
use crate::settings::Settings;

/// An idle lane asks this often how far everything is.
const LOOK: Duration = Duration::from_secs(60);
/// A statement that takes longer may be on a dead connection.
const LATE: Duration = Duration::from_secs(5);
/// How often watchers are called, whatever happens.
const TICK: Duration = Duration::from_secs(1);
/// The pauses between tries are random, up to this for the first and the last of many.
const PAUSE_MS: (u64, u64) = (50, 500);

/// Executes a lane's calls for ever.
pub(crate) struct Driver {
    pub(crate) lane: Arc<Lane>,
    /// Is told when there may be a call.
    pub(crate) wanted: Arc<Notify>,
    pub(crate) settings: Settings,
    pub(crate) pulse: Pulse,
    pub(crate) on_append: Arc<OnceLock<OnAppend>>,
}

impl Driver {
    pub(crate) async fn run(self) {
        let Self { lane, wanted, settings, pulse, on_append } = self;
        let mut connection = None;
        let mut patience = Patience::new(pulse, LATE);
        let (mut looked, mut ticked) = (Instant::now(), Instant::now());
        let mut pause_ms = PAUSE_MS.0;
        let mut failures = Repeats::default();
        loop {
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                lane.tick();
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                lane.look();
            }
            let Some(call) = lane.next_call() else {
                // A wake that came before is kept for this wait.
                let _ = tokio::time::timeout(TICK, wanted.notified()).await;
                continue;
            };
            let begun = Instant::now();
            let outcome = execute(&settings, &mut connection, &call, patience.ends()).await;
            if let (Call::Append(parts), Some(on_append)) = (&call, on_append.get()) {
                let batches = parts.iter().map(|part| part.batches.len()).sum();
                on_append(begun.elapsed(), batches, outcome.is_ok());
            }
            patience.ended(matches!(outcome, Err(Failure::TimedOut(_))));
            let has_failed = outcome.is_err();
            if let Err(failure) = &outcome
                && let Some(not_logged) = failures.count(Instant::now())
            {
                let what = "the database did not take an append; it is tried again";
                tracing::warn!(%failure, not_logged, "{what}");
            }
            lane.answered(outcome);
            if !has_failed {
                // A look-up that succeeds says nothing of the append that comes after it.
                if matches!(call, Call::Append(_)) {
                    pause_ms = PAUSE_MS.0;
                }
                continue;
            }
            let pause = Duration::from_millis(fastrand::u64(pause_ms / 5..=pause_ms));
            pause_ms = (2 * pause_ms).min(PAUSE_MS.1);
            tokio::time::sleep(pause).await;
        }
    }
}

/// Executes a call on the connection, which is made if there is none. When `gives_up` completes its
/// connection is closed: nothing is cancelled, and the statement may take effect later.
pub(crate) async fn execute(
    settings: &Settings,
    connection: &mut Option<Connection>,
    call: &Call,
    gives_up: impl Future<Output = Duration>,
) -> Result<Answer, Failure> {
    let mut gives_up = pin!(gives_up);
    let open = match connection.take() {
        Some(open) => open,
        None => tokio::select! {
            opened = Connection::open(settings) => opened?,
            waited = &mut gives_up => return Err(Failure::TimedOut(waited)),
        },
    };
    let (outcome, open) = execute_on(settings, open, call, gives_up).await;
    *connection = open;
    outcome
}

/// The same on an open connection, which is returned if it is of further use.
pub(crate) async fn execute_on(
    settings: &Settings,
    mut open: Connection,
    call: &Call,
    gives_up: impl Future<Output = Duration>,
) -> (Result<Answer, Failure>, Option<Connection>) {
    let outcome = tokio::select! {
        outcome = open.call(call) => outcome,
        waited = gives_up => Err(Failure::TimedOut(waited)),
    };
    let is_over = outcome.as_ref().is_err_and(Failure::ends_connection);
    if is_over {
        settings.failed.fetch_add(1, Ordering::Relaxed);
    }
    (outcome, Some(open).filter(|_| !is_over))
}
