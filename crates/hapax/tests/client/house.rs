//! A broker that can be stopped and started again, and a way to it that can be cut.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_client::{Admin, Client, Queue};
use hapax_server::Broker;
use hapax_server::options::{Auth, Options};
use hapax_wire::proto;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

/// Longer than anything takes here.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct House {
    pub(crate) client: Client,
    pub(crate) admin: Admin,
    pub(crate) address: SocketAddr,
    directory: TempDir,
    partitions: u16,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl House {
    /// A broker of so many partitions, with the queue `orders` of these rules.
    pub(crate) async fn open(partitions: u16, config_json: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = "127.0.0.1:0".parse().unwrap();
        let (address, running) = start(directory.path().join("data"), port, partitions).await;
        let client = Client::connect(&format!("http://{address}")).unwrap();
        let admin = Admin::new(client.clone());
        admin.put_queue("orders", config_json, None).await.unwrap();
        Self { client, admin, address, directory, partitions, running: Some(running) }
    }

    pub(crate) fn orders(&self) -> Queue {
        self.client.queue("orders")
    }

    /// Stops the broker, and waits until it is gone.
    pub(crate) async fn stop(&mut self) {
        let (stop, running) = self.running.take().unwrap();
        let _ = stop.send(());
        in_time(running).await.unwrap();
    }

    /// Starts it again, on the same port and data.
    pub(crate) async fn start_again(&mut self) {
        let data = self.directory.path().join("data");
        let (_, running) = start(data, self.address, self.partitions).await;
        self.running = Some(running);
    }

    pub(crate) async fn key(&self, key: &str) -> proto::Key {
        self.admin.key(named(key), Duration::ZERO).await.unwrap()
    }

    /// The key when its message has ended.
    pub(crate) async fn ended(&self, key: &str) -> proto::Key {
        self.admin.key(named(key), LONG).await.unwrap()
    }

    pub(crate) async fn stats(&self) -> proto::QueueStats {
        self.admin.queue("orders").await.unwrap().stats.unwrap()
    }

    /// Waits until the lease of a key was extended so many times.
    pub(crate) async fn extended(&self, key: &str, times: usize) {
        let mut deadlines = std::collections::BTreeSet::new();
        let counted = async {
            while deadlines.len() <= times {
                deadlines.extend(self.key(key).await.deadline_ms);
                tokio::task::yield_now().await;
            }
        };
        in_time(counted).await;
    }
}

async fn start(
    data: PathBuf,
    listen: SocketAddr,
    partitions: u16,
) -> (SocketAddr, (oneshot::Sender<()>, JoinHandle<()>)) {
    let options = Options { listen, data, partitions, auth: Auth::Off, ..Options::default() };
    run(&options).await
}

pub(crate) async fn run(options: &Options) -> (SocketAddr, (oneshot::Sender<()>, JoinHandle<()>)) {
    let broker = Broker::start(options, None).await.unwrap();
    let address = broker.address();
    let (stop, stopped) = oneshot::channel();
    let until = async { drop(stopped.await) };
    let running = tokio::spawn(async move { broker.run(until).await.unwrap() });
    (address, (stop, running))
}

pub(crate) fn named(key: &str) -> proto::KeyRequest {
    let (queue, key) = ("orders".to_owned(), key.to_owned());
    proto::KeyRequest { queue, key, group: String::new() }
}

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it takes far too long")
}

/// Passes bytes on to a broker, until it is cut.
pub(crate) struct Wire {
    pub(crate) client: Client,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    is_held: Arc<AtomicBool>,
    is_mute: Arc<AtomicBool>,
    accepting: AbortHandle,
}

impl Wire {
    pub(crate) async fn to(house: &House) -> Self {
        Self::to_with(house, LONG).await
    }

    /// For a client that waits for no longer than this.
    pub(crate) async fn to_with(house: &House, timeout: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let is_held = Arc::new(AtomicBool::new(false));
        let is_mute = Arc::new(AtomicBool::new(false));
        let (target, accepted, held) =
            (house.address, Arc::clone(&connections), Arc::clone(&is_held));
        let mute = Arc::clone(&is_mute);
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                if held.load(Ordering::SeqCst) {
                    continue;
                }
                let mute = Arc::clone(&mute);
                let passing = tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(target).await else { return };
                    let _ = pass(near, far, &mute).await;
                });
                accepted.lock().unwrap().push(passing.abort_handle());
            }
        });
        let client =
            Client::builder(&format!("http://{address}")).timeout(timeout).connect().unwrap();
        Self { client, connections, is_held, is_mute, accepting: accepting.abort_handle() }
    }

    /// Breaks every connection; new ones can be made. Tells whether there was any.
    pub(crate) fn cut(&self) -> bool {
        let mut connections = self.connections.lock().unwrap();
        let was_any = connections.iter().any(|connection| !connection.is_finished());
        connections.drain(..).for_each(|connection| connection.abort());
        was_any
    }

    /// Breaks every connection, and no new ones last until it is let go.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// What the broker says is lost from now on, until it is let go and the connection cut.
    pub(crate) fn mute(&self) {
        self.is_mute.store(true, Ordering::SeqCst);
    }

    pub(crate) fn let_go(&self) {
        self.is_held.store(false, Ordering::SeqCst);
        self.is_mute.store(false, Ordering::SeqCst);
    }

    /// Breaks every connection, and no new ones can be made.
    pub(crate) fn close(&self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn pass(near: TcpStream, far: TcpStream, mute: &AtomicBool) -> std::io::Result<()> {
    let (mut from_near, mut to_near) = near.into_split();
    let (mut from_far, mut to_far) = far.into_split();
    let up = tokio::io::copy(&mut from_near, &mut to_far);
    let down = async {
        let mut buffer = vec![0; 64 * 1_024];
        loop {
            let count = from_far.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            if !mute.load(Ordering::SeqCst) {
                to_near.write_all(&buffer[..count]).await?;
            }
        }
    };
    tokio::select! {
        up = up => up.map(drop),
        down = down => down,
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}
