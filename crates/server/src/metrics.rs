//! The metrics of the broker, for Prometheus. Requests are counted as they happen; the counts of
//! queues are read from the partitions at every scrape. A queue that does not exist gets no series,
//! so that nobody can fill the memory with names.

mod cluster;
mod plain;
mod requests;
mod scrape;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use hapax_core::{Answer, QueueName, Settled};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use crate::engine::Beat;
use crate::listen;
use requests::Requests;

pub use cluster::{ClusterMeters, Takeover};
pub use plain::{CONTENT_TYPE as PLAIN_CONTENT_TYPE, plain};
pub use scrape::CONTENT_TYPE;

/// All metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queues: RwLock<HashMap<QueueName, Arc<QueueMeters>>>,
    partitions: PartitionMeters,
    requests: Mutex<Requests>,
    port: OnceLock<Arc<listen::Stats>>,
    cluster: OnceLock<ClusterMeters>,
}

/// The request metrics of one queue.
#[derive(Debug)]
struct QueueMeters {
    accepted: Counter,
    duplicate: Counter,
    conflict: Counter,
    refused: Counter,
    settled: Counter,
    stale: Counter,
    misused: Counter,
    rekeyed: Counter,
    duplicate_age: Histogram,
}

#[derive(Debug)]
struct PartitionMeters {
    batch_commands: Histogram,
    sync_seconds: Histogram,
    checkpoint_seconds: Histogram,
}

impl Metrics {
    /// Counts the answers to sends or claims of a queue.
    pub fn answered<'a>(
        &self,
        queue: &QueueName,
        answers: impl Iterator<Item = &'a Answer> + Clone,
    ) {
        let exists = |answer: &Answer| !matches!(answer, Answer::NoSuchQueue);
        if !answers.clone().any(exists) {
            return;
        }
        let meters = self.meters(queue);
        let (mut accepted, mut duplicate, mut conflict, mut refused) = (0, 0, 0, 0);
        for answer in answers {
            match answer {
                Answer::Accepted { .. } | Answer::Fresh(_) => accepted += 1,
                Answer::Conflict { .. } => conflict += 1,
                answer if answer.is_replay() => {
                    duplicate += 1;
                    meters.duplicate_age.observe(age_seconds(answer));
                }
                _ => refused += 1,
            }
        }
        for (counter, count) in [
            (&meters.accepted, accepted),
            (&meters.duplicate, duplicate),
            (&meters.conflict, conflict),
            (&meters.refused, refused),
        ] {
            if count > 0 {
                counter.inc_by(count);
            }
        }
    }

    /// Counts the answers to settles.
    pub fn settled<'a>(&self, queue: &QueueName, answers: impl Iterator<Item = &'a Settled>) {
        let (mut ok, mut stale, mut misused) = (0, 0, 0);
        for answer in answers {
            match answer {
                Settled::Ok { .. } => ok += 1,
                Settled::LeaseLost { .. } => stale += 1,
                _ => misused += 1,
            }
        }
        // A forged lease does not prove that the queue exists.
        let Some(meters) = (if ok > 0 { Some(self.meters(queue)) } else { self.known(queue) })
        else {
            return;
        };
        meters.settled.inc_by(ok);
        meters.stale.inc_by(stale);
        meters.misused.inc_by(misused);
    }

    /// A new message came with the caller's own request id. The same request under another key
    /// indicates a layer that makes a new key for every try, which cannot be deduplicated.
    pub fn requested(&self, queue: &QueueName, request_id: &str, key: &str) {
        let mut requests = self.0.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.is_other_key(queue, request_id, key) {
            drop(requests);
            self.meters(queue).rekeyed.inc();
        }
    }

    /// Counts an event of a writer.
    pub fn beat(&self, beat: Beat) {
        let meters = &self.0.partitions;
        match beat {
            Beat::Submitted { commands } => meters.batch_commands.observe(commands as f64),
            Beat::Durable { waited } => meters.sync_seconds.observe(waited.as_secs_f64()),
            Beat::Checkpointed { took } => meters.checkpoint_seconds.observe(took.as_secs_f64()),
        }
    }

    /// Adds the counters of the port.
    pub fn watch_port(&self, stats: Arc<listen::Stats>) {
        let _ = self.0.port.set(stats);
    }

    /// Adds what a node knows of its database and of the others.
    pub fn watch_cluster(&self, database: hapax_postgres::Database) {
        let metrics = Arc::downgrade(&self.0);
        database.on_append(Box::new(move |took, batches, is_acknowledged| {
            if let Some(cluster) = metrics.upgrade().as_ref().and_then(|it| it.cluster.get()) {
                cluster.appended(took, batches, is_acknowledged);
            }
        }));
        let _ = self.0.cluster.set(ClusterMeters::new(database));
    }

    /// `None` if the store is not shared.
    pub fn cluster(&self) -> Option<&ClusterMeters> {
        self.0.cluster.get()
    }

    /// The queue is gone, and its series with it.
    pub fn forget(&self, queue: &QueueName) {
        self.0.queues.write().unwrap_or_else(PoisonError::into_inner).remove(queue);
    }

    fn known(&self, queue: &QueueName) -> Option<Arc<QueueMeters>> {
        self.0.queues.read().unwrap_or_else(PoisonError::into_inner).get(queue).cloned()
    }

    fn meters(&self, queue: &QueueName) -> Arc<QueueMeters> {
        if let Some(meters) = self.known(queue) {
            return meters;
        }
        let mut queues = self.0.queues.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(queue.clone()).or_default())
    }
}

impl Default for QueueMeters {
    fn default() -> Self {
        let (minute, hour, day) = (60.0, 3_600.0, 86_400.0);
        let ages = [0.1, 1.0, 10.0, minute, 10.0 * minute, hour, 6.0 * hour, day, 2.0 * day];
        let longer = [4.0 * day, 7.0 * day, 14.0 * day, 30.0 * day];
        Self {
            accepted: Counter::default(),
            duplicate: Counter::default(),
            conflict: Counter::default(),
            refused: Counter::default(),
            settled: Counter::default(),
            stale: Counter::default(),
            misused: Counter::default(),
            rekeyed: Counter::default(),
            duplicate_age: Histogram::new(ages.into_iter().chain(longer)),
        }
    }
}

impl Default for PartitionMeters {
    fn default() -> Self {
        let doubling = |first: f64, count: i32| (0..count).map(move |n| first * 2f64.powi(n));
        Self {
            batch_commands: Histogram::new(doubling(1.0, 14)),
            sync_seconds: Histogram::new(doubling(0.000_125, 16)),
            checkpoint_seconds: Histogram::new(doubling(0.005, 14)),
        }
    }
}

/// How long ago the key's message ended, or was accepted if it has not ended; to be compared with
/// the retention.
fn age_seconds(answer: &Answer) -> f64 {
    let since = match answer {
        Answer::Done(finished) => finished.finished_at,
        Answer::Dead { accepted_at, .. } | Answer::Parked { accepted_at, .. } => *accepted_at,
        Answer::InFlight(in_flight) => in_flight.accepted_at,
        _ => return 0.0,
    };
    crate::time::now().since(since) as f64 / 1_000.0
}
