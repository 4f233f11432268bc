//! A broker in this process, and a way to it that can be cut.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_client::{Admin, Client, Delivery, Message, Queue};
use hapax_server::Broker;
use hapax_server::options::{Auth, Options};
use hapax_wire::proto;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};

/// Far longer than anything here takes, on a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Leases that end soon, attempts that never do.
pub(crate) const HASTY: &str =
    r#"{"lease_ms":1000,"max_attempts":1000,"backoff_min_ms":0,"backoff_max_ms":50}"#;

/// Failed attempts come again at once; leases hold on a busy machine too.
pub(crate) const AGAIN_AT_ONCE: &str =
    r#"{"max_attempts":1000,"backoff_min_ms":0,"backoff_max_ms":50}"#;

pub(crate) struct House {
    pub(crate) client: Client,
    pub(crate) admin: Admin,
    address: SocketAddr,
    directory: TempDir,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl House {
    /// A broker of so many partitions with the queue `orders` of these rules.
    pub(crate) async fn open(partitions: u16, rules: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            partitions,
            listen: "127.0.0.1:0".parse().unwrap(),
            data: directory.path().join("data"),
            auth: Auth::Off,
            ..Options::default()
        };
        let broker = Broker::start(&options, None).await.unwrap();
        let address = broker.address();
        let (stop, stopped) = oneshot::channel();
        let until = async { drop(stopped.await) };
        let running = tokio::spawn(async move { broker.run(until).await.unwrap() });
        let client = Client::connect(&format!("http://{address}")).unwrap();
        let admin = Admin::new(client.clone());
        admin.put_queue("orders", rules, None).await.unwrap();
        Self { client, admin, address, directory, running: Some((stop, running)) }
    }

    pub(crate) fn orders(&self) -> Queue {
        self.client.queue("orders")
    }

    /// A place for a database file, gone with the house.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) async fn send(&self, key: &str) {
        self.orders().send(Message::new(format!("body of {key}")).key(key)).await.unwrap();
    }

    /// Takes one message by hand.
    pub(crate) async fn take(&self) -> Delivery {
        let mut work = self.orders().work().open();
        work.credit(1);
        let mut batch = hapax_client::Batch::default();
        while batch.deliveries.is_empty() {
            in_time(work.next(&mut batch)).await.unwrap();
        }
        batch.deliveries.remove(0)
    }

    /// The key when its message has ended.
    pub(crate) async fn ended(&self, key: &str) -> proto::Key {
        self.admin.key(named(key), LONG).await.unwrap()
    }

    pub(crate) async fn stats(&self, queue: &str) -> proto::QueueStats {
        self.admin.queue(queue).await.unwrap().stats.unwrap()
    }

    pub(crate) async fn stop(mut self) {
        let (stop, running) = self.running.take().unwrap();
        let _ = stop.send(());
        in_time(running).await.unwrap();
    }
}

pub(crate) fn named(key: &str) -> proto::KeyRequest {
    let (queue, key) = ("orders".to_owned(), key.to_owned());
    proto::KeyRequest { queue, key, group: String::new() }
}

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it takes far too long")
}

/// Waits until something is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, looking).await.is_ok(), "waited in vain for {what}");
}

/// Passes bytes on to a broker, until it is cut.
pub(crate) struct Wire {
    pub(crate) client: Client,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: AbortHandle,
}

impl Wire {
    pub(crate) async fn to(house: &House) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (target, accepted) = (house.address, Arc::clone(&connections));
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((mut near, _)) = listener.accept().await else { return };
                let passing = tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
                accepted.lock().unwrap().push(passing.abort_handle());
            }
        });
        let client = Client::connect(&format!("http://{address}")).unwrap();
        Self { client, connections, accepting: accepting.abort_handle() }
    }

    /// Breaks every connection, and no new ones can be made: the worker behind it works on, and
    /// nothing it says arrives.
    pub(crate) fn close(&self) {
        self.accepting.abort();
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}
