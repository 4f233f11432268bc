//! An interrupted run ends like any other: its servers stop and their data is removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::signal::unix::{SignalKind, signal};

/// Set by a signal. Loops that may take long look at it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Pause between two looks of code that waits for something else.
const INTERVAL: Duration = Duration::from_millis(20);

/// From now on SIGINT and SIGTERM do not end the process, but make [`check`] fail.
pub fn on_signal() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        INTERRUPTED.store(true, Ordering::Relaxed);
    });
    Ok(())
}

pub fn check() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "stopped by a signal");
    Ok(())
}

/// Runs a future, and drops it if the process is interrupted.
pub async fn unless_interrupted<T>(future: impl Future<Output = T>) -> Result<T> {
    let interrupted = async {
        loop {
            if let Err(error) = check() {
                return error;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        output = future => Ok(output),
        error = interrupted => Err(error),
    }
}
