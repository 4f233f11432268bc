//! A broker in this process, on its own port, that can be stopped and started again.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use hapax_server::Broker;
use hapax_server::options::{Auth, Options};
use hapax_server::service::Service;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::link::Link;
use crate::ports::free_address;
use crate::wait::in_time;

/// A broker that serves until it is stopped or dropped. Its data ends with it.
#[derive(Debug)]
pub struct TestBroker {
    options: Options,
    life: Mutex<Option<Life>>,
    service: Service,
    directory: TempDir,
}

#[derive(Debug)]
struct Life {
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl TestBroker {
    /// Starts a broker without authentication.
    pub async fn start(partitions: u16) -> Self {
        Self::with(|options| options.partitions = partitions).await
    }

    /// Starts a broker with other options than [`start`](Self::start).
    pub async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options {
            listen: free_address(),
            data: directory.path().join("data"),
            auth: Auth::Off,
            ..Options::default()
        };
        change(&mut options);
        let (service, life) = run(&options).await;
        Self { options, life: Mutex::new(Some(life)), service, directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.options.listen
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The service of the last start.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// A directory that is removed with the broker.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a link to it that can be broken.
    pub async fn link(&self) -> Link {
        Link::to(self.address()).await
    }

    /// Stops the broker; the future is ready when it has stopped cleanly.
    pub fn stop(&self) -> impl Future<Output = ()> + use<> {
        let Life { stop, running } = self.life.lock().unwrap().take().expect("it runs");
        let _ = stop.send(());
        async move { in_time(running).await.unwrap() }
    }

    /// Starts it again, on the same port and data.
    pub async fn start_again(&mut self) {
        let (service, life) = run(&self.options).await;
        (self.service, self.life) = (service, Mutex::new(Some(life)));
    }
}

async fn run(options: &Options) -> (Service, Life) {
    let broker = Broker::start(options, None).await.unwrap();
    let service = broker.service().clone();
    let (stop, stopped) = oneshot::channel();
    let until = async { drop(stopped.await) };
    let running = tokio::spawn(async move { broker.run(until).await.unwrap() });
    (service, Life { stop, running })
}
