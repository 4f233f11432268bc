//! Opens the partitions of a node that serves, and closes them again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_postgres::node::Loss;
use hapax_postgres::{Database, Steps, Uuid, Witnesses};
use hapax_store::Epoch;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::clock::SharedClock;
use super::progress::{self, Progress};
use crate::auth::Auth;
use crate::broker;
use crate::engine::{self, Beat, Data, Engine, Place, Wall};
use crate::log;
use crate::metrics::{Metrics, Takeover};
use crate::options::Options;
use crate::service::Service;

/// What every opening needs.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    pub(super) options: Arc<Options>,
    pub(super) database: Database,
    pub(super) cache: PathBuf,
    pub(super) witnesses: Witnesses,
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
    stalled: watch::Receiver<Duration>,
}

/// Why a node does not serve, for people.
pub(super) type Lost = (Loss, String);

impl Ground {
    /// Claims all partitions, recovers them and starts their writers.
    pub(super) async fn open(
        self,
        node: Uuid,
        epochs: Vec<Epoch>,
        detection: Option<Duration>,
    ) -> Result<Serving, Lost> {
        let started = Instant::now();
        let progress = Arc::new(Progress::new(epochs.len()));
        let steps = Arc::new(Steps::default());
        let opening = self.open_engine(node, epochs, Arc::clone(&progress), Arc::clone(&steps));
        let engine = opening.await?;
        if let Err(error) = broker::declare(&engine, &self.options).await {
            let stopping = engine.clone();
            let _ = tokio::task::spawn_blocking(move || stopping.stop()).await;
            return Err((ended(&engine).0, error.to_string()));
        }
        self.took_over(detection, &steps, started.elapsed());
        let Self { options, auth, metrics, log, .. } = self;
        let service = broker::service_on(engine, &options, auth, metrics, log);
        let mut tasks = JoinSet::new();
        tasks.spawn(broker::housekeep(service.clone()));
        let (sender, stalled) = watch::channel(Duration::ZERO);
        tasks.spawn(progress::watch(service.engine().clone(), progress, sender));
        Ok(Serving { service, tasks, stalled })
    }

    fn took_over(&self, detection: Option<Duration>, steps: &Steps, took: Duration) {
        let (tail, pieces, replay) = (steps.tail(), steps.pieces(), steps.replay());
        let (claim, archive) = (steps.claim().time, steps.archive().time);
        let read = archive + tail.time;
        let commit = took.saturating_sub(claim + read + replay);
        let ms = |part: Duration| part.as_millis() as u64;
        tracing::info!(
            took_ms = ms(took),
            detection_ms = detection.map(ms),
            claim_ms = ms(claim),
            archive_ms = ms(archive),
            tail_ms = ms(tail.time),
            tail_bytes = tail.bytes,
            replay_ms = ms(replay),
            pieces = pieces.count,
            pieces_ms = ms(pieces.time),
            commit_ms = ms(commit),
            "this node serves: all partitions are open"
        );
        if let Some(meters) = self.metrics.cluster() {
            meters.took_over(Takeover { detection, claim, read, replay, commit });
        }
    }

    async fn open_engine(
        &self,
        node: Uuid,
        epochs: Vec<Epoch>,
        progress: Arc<Progress>,
        steps: Arc<Steps>,
    ) -> Result<Engine, Lost> {
        let ground = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let data = Data::shared(&ground.options.data, ground.database.shared());
            let options = engine::Options {
                partitions: data.partitions(),
                memory_bytes: usize::try_from(ground.options.memory_bytes).unwrap_or(usize::MAX),
            };
            let place = Place {
                database: &ground.database,
                node,
                epochs: &epochs,
                cache: &ground.cache,
                witnesses: &ground.witnesses,
                steps: &steps,
            };
            let wall = Wall::Shared(ground.clock);
            let metrics = ground.metrics;
            let on_beat = Box::new(move |partition, beat| {
                if let Beat::Durable { .. } = beat {
                    progress.durable(partition, Instant::now());
                }
                metrics.beat(beat);
            });
            Engine::open_shared(data, &place, options, wall, on_beat)
        });
        match opened.await {
            Ok(Ok(engine)) => Ok(engine),
            Ok(Err(error)) => Err((loss_of(&error), told(&error))),
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

    /// For how long some partition has got nothing done.
    pub(super) fn stalled(&self) -> Duration {
        *self.stalled.borrow()
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
    match store_error(error) {
        Some(error) => Loss::of_opening(error),
        _ => Loss::Failed,
    }
}

/// What everybody may know of a database that was set back has no paths.
fn told(error: &engine::Error) -> String {
    match store_error(error) {
        Some(regressed @ hapax_store::Error::Regressed { .. }) => regressed.to_string(),
        _ => error.to_string(),
    }
}

fn store_error(error: &engine::Error) -> Option<&hapax_store::Error> {
    match error {
        engine::Error::Store { error, .. }
        | engine::Error::Partition { error: hapax_partition::Error::Store(error), .. } => {
            Some(error)
        }
        _ => None,
    }
}
