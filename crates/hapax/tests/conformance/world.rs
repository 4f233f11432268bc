//! What the steps of a case share: the broker, the client, and what earlier steps have left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_client::{Admin, Client, Held, Retry};
use hapax_testing::{BrokerProcess, PATIENCE, Setup};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::worker::Working;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A broker that is killed and started again, with the same data.
#[derive(Debug)]
pub(crate) struct Broker {
    setup: Setup,
    life: tokio::sync::Mutex<Option<BrokerProcess>>,
}

impl Broker {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let setup = Setup::temporary(env!("CARGO_BIN_EXE_hapax"), directory);
        let life = tokio::sync::Mutex::new(Some(setup.start()));
        Self { setup, life }
    }

    pub(crate) async fn kill(&self) {
        self.life.lock().await.take().unwrap().kill();
    }

    /// Starts it, unless it runs.
    pub(crate) async fn start_again(&self) {
        let mut life = self.life.lock().await;
        if life.is_none() {
            let setup = self.setup.clone();
            *life = Some(tokio::task::spawn_blocking(move || setup.start()).await.unwrap());
        }
        self.client(TIMEOUT).ready(PATIENCE).await.unwrap();
    }

    pub(crate) fn client(&self, timeout: Duration) -> Client {
        Client::builder(&self.setup.url()).timeout(timeout).connect().unwrap()
    }
}

/// The step that goes on while others are executed; its result.
type Background = JoinHandle<Result<Value, String>>;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) broker: Arc<Broker>,
    pub(crate) client: Client,
    pub(crate) admin: Admin,
    pub(crate) background: Mutex<HashMap<String, Background>>,
    pub(crate) claims: Mutex<HashMap<String, Arc<Held>>>,
    pub(crate) workers: Mutex<HashMap<String, Working>>,
    /// For each step of a handler, the keys with which its service was called.
    pub(crate) calls: Arc<Mutex<HashMap<String, Vec<String>>>>,
    /// The names of all recovery points of the case: a claim returns them by name only.
    pub(crate) points: Vec<String>,
    /// The drain timeouts of workers, which the client wants to know when it starts them.
    pub(crate) drains: HashMap<String, Duration>,
}

impl World {
    pub(crate) fn new(broker: Arc<Broker>, case: &Value) -> Self {
        let steps = || case["steps"].as_array().unwrap().iter();
        let saves = steps().filter(|step| step["op"] == "save");
        let points = saves.map(|step| step["name"].as_str().unwrap().to_owned()).collect();
        let drains = steps().filter_map(|step| {
            let drain = Duration::from_millis(step["drain_ms"].as_u64()?);
            Some((step["name"].as_str()?.to_owned(), drain))
        });
        let client = broker.client(TIMEOUT);
        Self {
            admin: Admin::new(client.clone()),
            client,
            broker,
            background: Mutex::default(),
            claims: Mutex::default(),
            workers: Mutex::default(),
            calls: Arc::default(),
            points,
            drains: drains.collect(),
        }
    }

    /// The client for a step, with its own timeout if it has one.
    pub(crate) fn client_for(&self, timeout: Option<Duration>) -> Client {
        timeout.map_or_else(|| self.client.clone(), |timeout| self.broker.client(timeout))
    }

    pub(crate) fn held(&self, claim: &str) -> Arc<Held> {
        Arc::clone(self.claims.lock().unwrap().get(claim).unwrap())
    }

    /// Calls of an operator are not retried by the client: its caller decides.
    pub(crate) fn retry(&self) -> Retry {
        Retry::within(TIMEOUT)
    }
}
