//! A port with a small service behind it, and clients for it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hapax_server::listen::{Drained, Limits, Listener, Peer, Stats, Tls};
use hapax_testing::in_time;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// For limits that a test waits for. Honest peers must keep them too, on a busy machine.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    pub(crate) stats: Arc<Stats>,
    pub(crate) held: Arc<Held>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Drained>,
}

/// Requests to `/hold` wait here until they are let go.
pub(crate) struct Held {
    arrived: Semaphore,
    released: Semaphore,
}

impl Port {
    pub(crate) async fn open(limits: Limits, tls: Option<Tls>) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind(address, tls).await.unwrap();
        let held = Arc::new(Held { arrived: Semaphore::new(0), released: Semaphore::new(0) });
        let (stop, stopped) = oneshot::channel();
        let (address, stats) = (listener.local_addr(), listener.stats());
        let shutdown = async {
            let _ = stopped.await;
        };
        let running = tokio::spawn(listener.run(service(Arc::clone(&held)), limits, shutdown));
        Self { address, stats, held, stop, running }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) async fn http1(&self) -> Client {
        Client::http1(self.connect().await).await
    }

    pub(crate) async fn http2(&self) -> Client {
        Client::http2(self.connect().await).await
    }

    /// Tells it to stop, without waiting for its end.
    pub(crate) fn stop(self) -> JoinHandle<Drained> {
        self.stop.send(()).unwrap();
        self.running
    }

    /// Stops it, and demands that nothing was cut.
    pub(crate) async fn close(self) {
        let stats = Arc::clone(&self.stats);
        assert_eq!(in_time(self.stop()).await.unwrap(), Drained { cut: 0 });
        assert_eq!(stats.open.get(), 0);
    }
}

impl Held {
    /// Waits until so many requests have arrived.
    pub(crate) async fn arrive(&self, count: u32) {
        in_time(self.arrived.acquire_many(count)).await.unwrap().forget();
    }

    pub(crate) fn release(&self, count: usize) {
        self.released.add_permits(count);
    }
}

fn service(held: Arc<Held>) -> Router {
    let hold = move || async move {
        held.arrived.add_permits(1);
        held.released.acquire().await.unwrap().forget();
        "held"
    };
    let endless = || async {
        let zeros = || async { Some((Ok::<_, Infallible>(Bytes::from(vec![0; 65_536])), ())) };
        Body::from_stream(futures_util::stream::unfold((), move |()| zeros()))
    };
    let peer = |Extension(peer): Extension<Peer>| async move {
        format!("{} {}", peer.address, peer.is_encrypted)
    };
    Router::new()
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/hold", get(hold))
        .route("/endless", get(endless))
        .route("/peer", get(peer))
}

/// A well-behaved client of one connection.
pub(crate) enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(crate) async fn http1(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(io)).await.unwrap();
        tokio::spawn(connection);
        Self::Http1(sender)
    }

    pub(crate) async fn http2(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let io = TokioIo::new(io);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Self::Http2(sender)
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        let answer = async {
            match self {
                Self::Http1(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Self::Http2(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
            }
        };
        in_time(answer).await
    }

    /// Status and body of an answer that must come.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> (StatusCode, Bytes) {
        let response = self.send(request).await.unwrap();
        let status = response.status();
        (status, in_time(response.into_body().collect()).await.unwrap().to_bytes())
    }

    pub(crate) async fn echo(&mut self, body: &str) {
        let answer = self.ask(post_echo(body)).await;
        assert_eq!(answer, (StatusCode::OK, Bytes::copy_from_slice(body.as_bytes())));
    }

    /// Waits until the server has ended the connection.
    pub(crate) async fn closed(&mut self) {
        in_time(async {
            match self {
                Self::Http1(sender) => {
                    while sender.ready().await.is_ok() {
                        tokio::task::yield_now().await;
                    }
                }
                Self::Http2(sender) => {
                    while sender.ready().await.is_ok() {
                        tokio::task::yield_now().await;
                    }
                }
            }
        })
        .await;
    }
}

pub(crate) fn post_echo(body: &str) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    Request::post("http://localhost/echo").header("host", "localhost").body(body).unwrap()
}

pub(crate) fn get_path(path: &str) -> Request<Full<Bytes>> {
    let uri = format!("http://localhost{path}");
    Request::get(uri).header("host", "localhost").body(Full::default()).unwrap()
}

/// Everything that the peer sends until it closes, gently or not.
pub(crate) async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 65_536];
    in_time(async {
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..length]);
        }
    })
    .await;
    bytes
}
