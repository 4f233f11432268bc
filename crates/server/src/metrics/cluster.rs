//! The metrics of a node on a shared store, whether it serves or not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hapax_postgres::{Database, Seen};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::scrape::{Labels, Level};

/// What a node knows of the database, of the partitions and of its own takeover.
#[derive(Debug)]
pub struct ClusterMeters {
    database: Database,
    view: Mutex<View>,
    append_seconds: Histogram,
    append_batches: Histogram,
    appends_failed: Counter,
}

#[derive(Debug)]
struct View {
    seen: Seen,
    /// When the last heartbeat succeeded, or the node began.
    beaten: Instant,
    is_up: bool,
    is_halted: bool,
    clock_offset_s: f64,
    takeover: Option<Takeover>,
}

/// What a takeover took. `claim`, `read` and `replay` are sums over the partitions.
#[derive(Clone, Copy, Debug)]
pub struct Takeover {
    /// From the last heartbeat of the last owner that was seen until this node began to claim;
    /// `None` if none was seen.
    pub detection: Option<Duration>,
    pub claim: Duration,
    pub read: Duration,
    pub replay: Duration,
    /// Everything else until the partitions answer: the first commits, and what starts them.
    pub commit: Duration,
}

impl ClusterMeters {
    pub(super) fn new(database: Database) -> Self {
        let doubling = |first: f64, count: i32| (0..count).map(move |n| first * 2f64.powi(n));
        Self {
            database,
            view: Mutex::new(View {
                seen: Seen::default(),
                beaten: Instant::now(),
                is_up: true,
                is_halted: false,
                clock_offset_s: 0.0,
                takeover: None,
            }),
            append_seconds: Histogram::new(doubling(0.000_125, 16)),
            append_batches: Histogram::new(doubling(1.0, 12)),
            appends_failed: Counter::default(),
        }
    }

    /// An append to the database ended.
    pub fn appended(&self, took: Duration, batches: usize, is_acknowledged: bool) {
        if !is_acknowledged {
            self.appends_failed.inc();
            return;
        }
        self.append_seconds.observe(took.as_secs_f64());
        // A statement without batches asks who owns the partitions.
        if batches > 0 {
            self.append_batches.observe(batches as f64);
        }
    }

    /// A heartbeat succeeded, and this was read after it.
    pub fn beaten(&self, seen: &Seen, clock_offset_s: f64) {
        let mut view = self.view();
        view.seen.clone_from(seen);
        (view.beaten, view.is_up) = (Instant::now(), true);
        view.clock_offset_s = clock_offset_s;
    }

    pub fn missed(&self) {
        self.view().is_up = false;
    }

    /// Whether it serves nobody until an operator has decided.
    pub fn set_halted(&self, is_halted: bool) {
        self.view().is_halted = is_halted;
    }

    pub fn took_over(&self, takeover: Takeover) {
        self.view().takeover = Some(takeover);
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let view = self.view();
        let level = |value: f64| {
            let level = Level::default();
            level.set(value);
            level
        };
        let up = level(if view.is_up { 1.0 } else { 0.0 });
        registry.register("database_up", "Whether the last heartbeat succeeded", up);
        let halted = level(if view.is_halted { 1.0 } else { 0.0 });
        registry.register("halted", "Whether the node waits for an operator", halted);
        registry.register_with_unit(
            "heartbeat_age",
            "Time since the last heartbeat that succeeded",
            Unit::Seconds,
            level(view.beaten.elapsed().as_secs_f64()),
        );
        registry.register_with_unit(
            "clock_offset",
            "How far the clock of this machine is ahead of the database's",
            Unit::Seconds,
            level(view.clock_offset_s),
        );
        let connections = level(self.database.connections() as f64);
        registry.register("database_connections", "Connections to the database", connections);
        register_owners(registry, &view.seen);
        if let Some(takeover) = &view.takeover {
            register_takeover(registry, takeover);
        }
        registry.register_with_unit(
            "append",
            "Duration of appends to the database; one has the batches of several partitions",
            Unit::Seconds,
            self.append_seconds.clone(),
        );
        registry.register("append_batches", "Batches per append", self.append_batches.clone());
        let help = "Appends whose outcome was not known, which was then looked up";
        registry.register("appends_failed", help, self.appends_failed.clone());
    }
}

fn register_owners(registry: &mut Registry, seen: &Seen) {
    let (owners, epochs) = (Family::<Labels, Level>::default(), Family::<Labels, Level>::default());
    for row in &seen.partitions {
        let partition = vec![("partition", row.partition.to_string())];
        epochs.get_or_create(&partition).set(f64::from(row.epoch));
        let owner = seen.nodes.iter().find(|node| row.owner == Some(node.id));
        if let Some(owner) = owner {
            let labels = [partition, vec![("node", owner.name.clone())]].concat();
            owners.get_or_create(&labels).set(1.0);
        }
    }
    let help = "The node that owns the partition, as a label; none if nobody does";
    registry.register("partition_owner", help, owners);
    let help = "The epoch of the partition, which grows with every takeover";
    registry.register("partition_epoch", help, epochs);
}

fn register_takeover(registry: &mut Registry, takeover: &Takeover) {
    let Takeover { detection, claim, read, replay, commit } = *takeover;
    let parts = Family::<Labels, Level>::default();
    for (part, took) in [
        ("detection", detection.unwrap_or_default()),
        ("claim", claim),
        ("read", read),
        ("replay", replay),
        ("commit", commit),
    ] {
        let labels = vec![("part", part.to_owned())];
        parts.get_or_create(&labels).set(took.as_secs_f64());
    }
    let help = "What the last takeover by this node took, by part";
    registry.register_with_unit("takeover", help, Unit::Seconds, parts);
}
