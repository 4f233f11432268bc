//! Writes the page for Prometheus: the counters, and the current state of the partitions.

use hapax_core::{QueueName, QueueView};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::{Metrics, QueueMeters};
use crate::engine::Engine;

/// The content type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Timeout for partitions to report their queues.
const SURVEY: Duration = Duration::from_millis(100);

pub(super) type Labels = Vec<(&'static str, String)>;
pub(super) type Level = Gauge<f64, AtomicU64>;

impl Metrics {
    /// Everything, in the text format of OpenMetrics.
    pub async fn encode(&self, engine: &Engine) -> String {
        let mut registry = Registry::with_prefix("hapax");
        self.register_node(&mut registry, engine.is_ready());
        self.register_partitions(&mut registry, engine);
        self.register_doors(&mut registry);
        // A slow partition must not delay the page that is to show it.
        let survey = engine.survey(SURVEY).await;
        register_answered(&mut registry, &survey.answered);
        register_queues(&mut registry, &survey.queues);
        page(&registry)
    }

    /// What a node has to tell that does not serve.
    pub fn encode_standby(&self) -> String {
        let mut registry = Registry::with_prefix("hapax");
        self.register_node(&mut registry, false);
        page(&registry)
    }

    fn register_node(&self, registry: &mut Registry, is_ready: bool) {
        let info = Family::<Labels, Level>::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        info.get_or_create(&version).set(1.0);
        registry.register("build", "The release, as labels; the value is 1", info);
        let up = Level::default();
        up.set(if is_ready { 1.0 } else { 0.0 });
        registry.register("ready", "Whether every partition can answer", up);
        register_memory(registry);
        self.register_port(registry);
        if let Some(cluster) = self.cluster() {
            cluster.register(registry);
        }
    }

    fn register_partitions(&self, registry: &mut Registry, engine: &Engine) {
        let clocks = Family::<Labels, Level>::default();
        for (partition, ahead_ms) in engine.clocks_ahead_ms().into_iter().enumerate() {
            let labels = vec![("partition", partition.to_string())];
            clocks.get_or_create(&labels).set(ahead_ms as f64 / 1_000.0);
        }
        registry.register_with_unit(
            "clock_ahead",
            "How far the wall clock is ahead of a partition's clock after a jump; zero when they \
             agree",
            Unit::Seconds,
            clocks,
        );
        let meters = &self.0.partitions;
        registry.register("batch_commands", "Commands per batch", meters.batch_commands.clone());
        registry.register_with_unit(
            "sync",
            "Time from the decision of a batch until it is durable",
            Unit::Seconds,
            meters.sync_seconds.clone(),
        );
        registry.register_with_unit(
            "checkpoint",
            "Duration of checkpoints, which run beside the writer",
            Unit::Seconds,
            meters.checkpoint_seconds.clone(),
        );
        let tails = Family::<Labels, Level>::default();
        for (partition, bytes) in engine.tail_bytes().into_iter().enumerate() {
            let labels = vec![("partition", partition.to_string())];
            tails.get_or_create(&labels).set(bytes as f64);
        }
        registry.register_with_unit(
            "partition_tail",
            "Journal since the last checkpoint began: about what the next start has to read",
            Unit::Bytes,
            tails,
        );
    }

    fn register_port(&self, registry: &mut Registry) {
        let Some(port) = self.0.port.get() else { return };
        let open = Level::default();
        open.set(port.open.get() as f64);
        registry.register("connections_open", "Connections that are open", open);
        for (name, help, count) in [
            ("connections_accepted", "Connections that were accepted", &port.accepted),
            (
                "connections_refused",
                "Connections refused because of max_connections",
                &port.refused,
            ),
            (
                "connections_timed_out",
                "Connections closed because the peer was too slow",
                &port.timed_out,
            ),
            ("handshakes_failed", "TLS handshakes that failed", &port.handshakes_failed),
        ] {
            let counter = Counter::<u64>::default();
            counter.inc_by(count.get());
            registry.register(name, help, counter);
        }
    }

    fn register_doors(&self, registry: &mut Registry) {
        let meters: Vec<_> = {
            let queues = self.0.queues.read().unwrap_or_else(PoisonError::into_inner);
            queues.iter().map(|(name, meters)| (name.clone(), meters.clone())).collect()
        };
        let mut sends = Vec::new();
        let mut settles = Vec::new();
        let mut rekeyed = Vec::new();
        let mut ages = Vec::new();
        for (name, meters) in &meters {
            let QueueMeters { accepted, duplicate, conflict, refused, .. } = &**meters;
            for (answer, counter) in [
                ("accepted", accepted),
                ("duplicate", duplicate),
                ("conflict", conflict),
                ("refused", refused),
            ] {
                sends.push((with(name, "answer", answer), counter.clone()));
            }
            for (answer, counter) in [
                ("ok", &meters.settled),
                ("lease_lost", &meters.stale),
                ("refused", &meters.misused),
            ] {
                settles.push((with(name, "answer", answer), counter.clone()));
            }
            rekeyed.push((labels(name), meters.rekeyed.clone()));
            ages.push((labels(name), meters.duplicate_age.clone()));
        }
        let rows: [(&str, &str, _); 3] = [
            ("sends", "Sends and claims by answer", sends),
            (
                "settles",
                "Settles by answer; those with lease_lost came too late and were refused",
                settles,
            ),
            (
                "requests_rekeyed",
                "Sends whose request id was seen before under another key: a component in between \
                 generates a new key for every retry, so duplicates cannot be detected",
                rekeyed,
            ),
        ];
        for (name, help, series) in rows {
            registry.register(name, help, Series(series));
        }
        registry.register_with_unit(
            "duplicate_age",
            "Time from the end of a message (or from its acceptance, if it has not ended) until \
             its key was sent again; compare it with the queue's retention",
            Unit::Seconds,
            Series(ages),
        );
    }
}

fn page(registry: &Registry) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = encode_registry(&mut page, registry);
    let _ = encode_eof(&mut page);
    page
}

fn register_answered(registry: &mut Registry, answered: &[bool]) {
    let levels = Family::<Labels, Level>::default();
    for (partition, answered) in answered.iter().enumerate() {
        let labels = vec![("partition", partition.to_string())];
        levels.get_or_create(&labels).set(if *answered { 1.0 } else { 0.0 });
    }
    let help = "Whether the partition reported its queues within 100 ms; if not, its share of \
                their counts is from an earlier scrape";
    registry.register("partition_answered", help, levels);
}

/// Metrics that exist already, put under one name with their labels.
#[derive(Debug)]
struct Series<M>(Vec<(Labels, M)>);

impl<M: EncodeMetric + TypedMetric> EncodeMetric for Series<M> {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::MetricEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        for (labels, metric) in &self.0 {
            metric.encode(encoder.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> prometheus_client::metrics::MetricType {
        M::TYPE
    }
}

fn register_queues(registry: &mut Registry, queues: &[(QueueName, QueueView)]) {
    let messages = Family::<Labels, Level>::default();
    for (name, view) in queues {
        let stats = &view.stats;
        for (state, count) in [
            ("ready", stats.ready),
            ("delayed", stats.delayed),
            ("leased", stats.leased),
            ("parked", stats.parked),
            ("dead", stats.dead),
        ] {
            messages.get_or_create(&with(name, "state", state)).set(count as f64);
        }
    }
    registry.register("messages", "Messages by state", messages);
    let now = crate::time::now();
    type Read = fn(&QueueView, hapax_core::Time) -> f64;
    let levels: [(&str, &str, Option<Unit>, Read); 5] = [
        (
            "messages_held",
            "Ready messages that wait for another message of their group",
            None,
            |view, _| view.stats.held as f64,
        ),
        ("keys_remembered", "Finished keys that are still remembered", None, |view, _| {
            view.stats.keys as f64
        }),
        ("queue_size", "Bytes of unfinished messages", Some(Unit::Bytes), |view, _| {
            view.stats.bytes as f64
        }),
        (
            "oldest_ready_age",
            "How long the oldest ready message has waited",
            Some(Unit::Seconds),
            |view, now| view.oldest_ready_at.map_or(0.0, |at| now.since(at) as f64 / 1_000.0),
        ),
        ("queue_paused", "Whether the queue is paused", None, |view, _| {
            f64::from(u8::from(view.paused))
        }),
    ];
    for (name, help, unit, read) in levels {
        let family = Family::<Labels, Level>::default();
        for (queue, view) in queues {
            family.get_or_create(&labels(queue)).set(read(view, now));
        }
        register(registry, name, help, unit, family);
    }
    type Count = fn(&QueueView) -> u64;
    let counts: [(&str, &str, Count); 5] = [
        ("messages_sent", "Messages that were accepted", |view| view.stats.sent_total),
        ("duplicates_absorbed", "Duplicate sends, which got the answer of the first", |view| {
            view.stats.duplicate_total
        }),
        ("messages_done", "Messages that were done", |view| view.stats.done_total),
        ("attempts_failed", "Attempts that failed", |view| view.stats.failed_total),
        ("leases_lost", "Leases that were lost because their deadline passed", |view| {
            view.stats.lease_lost_total
        }),
    ];
    for (name, help, read) in counts {
        let family = Family::<Labels, Counter>::default();
        for (queue, view) in queues {
            family.get_or_create(&labels(queue)).inc_by(read(view));
        }
        registry.register(name, help, family);
    }
}

fn register(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    metric: impl Metric,
) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric),
        None => registry.register(name, help, metric),
    }
}

/// Memory of this process according to the kernel, if known.
fn register_memory(registry: &mut Registry) {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return };
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let Some(pages) = pages else { return };
    let level = Level::default();
    level.set((pages * 4_096) as f64);
    registry.register_with_unit("resident_memory", "Memory in use", Unit::Bytes, level);
}

fn labels(queue: &QueueName) -> Labels {
    vec![("tenant", queue.tenant.to_string()), ("queue", queue.queue.to_string())]
}

fn with(queue: &QueueName, name: &'static str, value: &str) -> Labels {
    let mut labels = labels(queue);
    labels.push((name, value.to_owned()));
    labels
}

const _: fn() = || {
    fn is_label_set<L: EncodeLabelSet>() {}
    is_label_set::<Labels>();
};
