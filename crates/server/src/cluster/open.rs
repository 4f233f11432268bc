//! Opens the partitions of a node that serves, and closes them again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use hapax_postgres::{Database, Uuid};
use hapax_store::Epoch;
use tokio::task::JoinSet;

use super::clock::SharedClock;
use super::state::Loss;
use crate::auth::Auth;
use crate::broker;
use crate::engine::{self, Data, Engine, Place, Wall};
use crate::log;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::service::Service;

/// What every opening needs.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    pub(super) options: Arc<Options>,
    pub(super) database: Database,
    pub(super) cache: PathBuf,
    pub(super) clock: Arc<SharedClock>,
    pub(super) auth: Auth,
    pub(super) metrics: Metrics,
    pub(super) log: Option<log::Handle>,
}

/// The partitions of a node that serves, and the tasks beside them.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) service: Service,
    tasks: JoinSet<()>,
}

/// Why a node does not serve, for people.
pub(super) type Lost = (Loss, String);

impl Ground {
    /// Claims all partitions, recovers them and starts their writers.
    pub(super) async fn open(self, node: Uuid, epochs: Vec<Epoch>) -> Result<Serving, Lost> {
        let started = Instant::now();
        let engine = self.open_engine(node, epochs).await?;
        if let Err(error) = broker::declare(&engine, &self.options).await {
            let stopping = engine.clone();
            let _ = tokio::task::spawn_blocking(move || stopping.stop()).await;
            return Err((ended(&engine).0, error.to_string()));
        }
        let took_ms = started.elapsed().as_millis() as u64;
        tracing::info!(took_ms, "this node serves: all partitions are open");
        let Self { options, auth, metrics, log, .. } = self;
        let service = broker::service_on(engine, &options, auth, metrics, log);
        let mut tasks = JoinSet::new();
        tasks.spawn(broker::housekeep(service.clone()));
        Ok(Serving { service, tasks })
    }

    async fn open_engine(&self, node: Uuid, epochs: Vec<Epoch>) -> Result<Engine, Lost> {
        let ground = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let data = Data::shared(&ground.options.data, ground.database.shared());
            let options = engine::Options {
                partitions: data.partitions(),
                memory_bytes: usize::try_from(ground.options.memory_bytes).unwrap_or(usize::MAX),
            };
            let place =
                Place { database: &ground.database, node, epochs: &epochs, cache: &ground.cache };
            let wall = Wall::Shared(ground.clock);
            let metrics = ground.metrics;
            let on_beat = Box::new(move |_, beat| metrics.beat(beat));
            Engine::open_shared(data, &place, options, wall, on_beat)
        });
        match opened.await {
            Ok(Ok(engine)) => Ok(engine),
            Ok(Err(error)) => Err((loss_of(&error), error.to_string())),
            Err(error) => Err((Loss::Failed, format!("a task failed: {error}"))),
        }
    }
}

impl Serving {
    /// Completes when the partitions ended by themselves, with the reason.
    pub(super) async fn ended(&self) -> Lost {
        let engine = self.service.engine();
        tokio::select! {
            () = engine.fenced_any() => {}
            _ = engine.failed() => {}
        }
        ended(engine)
    }

    /// Stops the writers, and releases what is still owned.
    pub(super) async fn close(mut self) {
        self.tasks.shutdown().await;
        let engine = self.service.engine().clone();
        if let Err(error) = tokio::task::spawn_blocking(move || engine.stop()).await {
            tracing::error!(%error, "the partitions were not closed in order");
        }
    }
}

fn ended(engine: &Engine) -> Lost {
    let failed = engine.failure().map(|why| why.to_string());
    let fenced = engine.fenced().first().map(|(_, why)| why.to_string());
    match (failed, fenced) {
        (Some(why), _) if engine.is_regressed() => (Loss::Regressed, why),
        (_, Some(why)) => (Loss::Fenced, why),
        (Some(why), None) => (Loss::Failed, why),
        (None, None) => (Loss::Failed, "the partitions did not start".to_owned()),
    }
}

fn loss_of(error: &engine::Error) -> Loss {
    use hapax_store::Error::{Fenced, Regressed, Unreachable};
    let store = match error {
        engine::Error::Store { error, .. }
        | engine::Error::Partition { error: hapax_partition::Error::Store(error), .. } => error,
        _ => return Loss::Failed,
    };
    match store {
        // Another node was first, or the database went away: that is no fault of this one.
        Fenced { .. } | Unreachable { .. } => Loss::Outrun,
        Regressed { .. } => Loss::Regressed,
        _ => Loss::Failed,
    }
}
