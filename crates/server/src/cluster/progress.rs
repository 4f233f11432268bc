//! Whether the partitions of a node that serves get anything done.
//!
//! A node that beats and owns keeps others from claiming, whether it serves or not: a thread may
//! hang on a disk, a connection may be dead. So every partition is asked a question every second,
//! which goes all the way to the database as any other. A partition that neither answers it nor
//! makes a batch durable stands still; one that is only slow does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::Engine;

const EVERY: Duration = Duration::from_secs(1);

/// When each partition made its last batch durable.
#[derive(Debug)]
pub(super) struct Progress {
    started: Instant,
    /// In ms since then.
    durable_ms: Box<[AtomicU64]>,
}

impl Progress {
    pub(super) fn new(partitions: usize) -> Self {
        let durable_ms = (0..partitions).map(|_| AtomicU64::new(0)).collect();
        Self { started: Instant::now(), durable_ms }
    }

    /// A batch is durable. Called by the partition's writer.
    pub(super) fn durable(&self, partition: usize, now: Instant) {
        if let Some(last) = self.durable_ms.get(partition) {
            let passed = now.saturating_duration_since(self.started).as_millis();
            last.store(u64::try_from(passed).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// For how long a partition stands still that was asked at `asked` and has not answered.
    fn stalled(&self, partition: usize, asked: Instant, now: Instant) -> Duration {
        let last = self.durable_ms.get(partition).map_or(0, |last| last.load(Ordering::Relaxed));
        let since = asked.max(self.started + Duration::from_millis(last));
        now.saturating_duration_since(since)
    }
}

/// Asks all partitions again and again, and reports for how long the slowest one stands still.
pub(super) async fn watch(
    engine: Engine,
    progress: Arc<Progress>,
    stalled: watch::Sender<Duration>,
) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut asked: Vec<Option<(JoinHandle<()>, Instant)>> = Vec::new();
    asked.resize_with(engine.partitions(), || None);
    loop {
        every.tick().await;
        let now = Instant::now();
        let mut longest = Duration::ZERO;
        for (partition, asked) in asked.iter_mut().enumerate() {
            match asked {
                Some((question, since)) if !question.is_finished() => {
                    longest = longest.max(progress.stalled(partition, *since, now));
                }
                _ => {
                    let engine = engine.clone();
                    // One that has stopped is noticed elsewhere.
                    let question = async move { drop(engine.inspect(partition, |_| ()).await) };
                    *asked = Some((tokio::spawn(question), now));
                }
            }
        }
        stalled.send_replace(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_gets_something_done_does_not_stand_still() {
        let progress = Progress::new(2);
        let at = |seconds| progress.started + Duration::from_secs(seconds);
        assert_eq!(progress.stalled(0, at(5), at(15)), Duration::from_secs(10));
        progress.durable(0, at(14));
        assert_eq!(progress.stalled(0, at(5), at(15)), Duration::from_secs(1), "it is slow");
        assert_eq!(progress.stalled(1, at(5), at(15)), Duration::from_secs(10));
    }
}
