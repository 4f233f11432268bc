//! The port: accepts connections, with or without TLS, and speaks HTTP/1.1 and HTTP/2 on them. HTTP
//! and gRPC requests are not distinguished here: the service does that by the path. It has its own
//! accept loop, because the usual ones cannot limit how long a peer may take. Every connection is
//! bounded in time at each of its stages and in the memory it can hold ([`Limits`]), and their
//! number is bounded, so that slow, hostile or vanished peers cost little and are closed in time.
//! The limits for a request's body and answer are in `doors`.

mod connection;
mod io;
mod limits;
mod pulse;
mod refuse;
mod stats;
mod tls;

use std::convert::Infallible;
use std::future::pending;
use std::io::Error as IoError;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tower::Service;
use tracing::{debug, error, info, warn};

pub use limits::Limits;
pub use stats::Stats;
pub use tls::{Tls, TlsError, TlsFiles};

use refuse::Refusals;

/// The peer of a request, in the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub address: SocketAddr,
    pub is_encrypted: bool,
}

/// An open port that is not served yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    stats: Arc<Stats>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}{}", hint(source))]
pub struct BindError {
    pub address: SocketAddr,
    pub source: IoError,
}

fn hint(source: &IoError) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program listens there, perhaps another broker: choose another address with \
             --listen"
        }
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

/// How a listener ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that still had requests at the end of [`Limits::drain`], and were cut.
    pub cut: usize,
}

impl Listener {
    pub async fn bind(address: SocketAddr, tls: Option<Tls>) -> Result<Self, BindError> {
        let error = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        Ok(Self { listener, address, tls: tls.map(Arc::new), stats: Arc::default() })
    }

    /// The address it listens on, with the chosen port if it was 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Counts, to be exported while it runs.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Serves until `shutdown` is ready. Then nothing new is accepted, every connection is asked to
    /// finish (an idle one closes, HTTP/2 sends GOAWAY), and what still runs after
    /// [`Limits::drain`] is cut.
    pub async fn run<S>(
        self,
        service: S,
        limits: Limits,
        shutdown: impl Future<Output = ()>,
    ) -> Drained
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut refusals = Refusals::new(self.tls.is_some());
        let server = Arc::new(connection::Server::new(self.tls.clone(), limits, self.stats));
        let mut follow = pin!(follow(self.tls, Arc::clone(server.stats())));
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                () = &mut follow => continue,
                Some(ended) = connections.join_next() => {
                    log_panic(ended);
                    continue;
                }
                () = refusals.tidy() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) if connections.len() >= limits.connections_max => {
                    server.stats().refused.add();
                    refusals.refuse(stream);
                }
                Ok((stream, address)) => {
                    server.stats().accepted.add();
                    prepare(&stream);
                    let server = Arc::clone(&server);
                    let stopped = stopped.clone();
                    connections.spawn(server.serve(stream, address, service.clone(), stopped));
                }
                Err(error) => wait_after(&error).await,
            }
        }
        drop(self.listener);
        drain(connections, &stop, limits.drain).await
    }
}

async fn follow(tls: Option<Arc<Tls>>, stats: Arc<Stats>) {
    match tls {
        Some(tls) => tls.follow(&stats).await,
        None => pending().await,
    }
}

/// Disables Nagle's algorithm: answers are batched above, where it is known what belongs together.
fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set TCP_NODELAY on a connection");
    }
}

/// Waits after a failed accept. A peer that gave up is no reason to wait; without descriptors or
/// memory accepting again would fail at once, until connections end.
async fn wait_after(error: &IoError) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    if !matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    ) {
        error!(%error, "cannot accept connections; retrying (is the limit of open files too low?)");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn drain(
    mut connections: JoinSet<()>,
    stop: &watch::Sender<bool>,
    bound: Duration,
) -> Drained {
    stop.send_replace(true);
    let ended = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    };
    if tokio::time::timeout(bound, ended).await.is_err() {
        warn!(connections = connections.len(), "connections did not finish in time and are closed");
    } else {
        info!("all connections are closed");
    }
    let cut = connections.len();
    connections.shutdown().await;
    Drained { cut }
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a connection was lost by a bug in the broker");
    }
}
