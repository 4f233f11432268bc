//! The service behind the proxy. It knows nothing of idempotency, and counts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::{any, get, post, put};
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use hapax_testing::eventually;

/// Every kind of byte that text would not survive.
pub(crate) const BINARY: [u8; 6] = [0x00, 0xff, 0x80, b'\r', b'\n', 0xc3];

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    serving: tokio::task::JoinHandle<()>,
}

/// What the service was asked.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The keys of the calls, in their order; empty where there was none.
    calls: Mutex<Vec<String>>,
    /// Handlers that wait do so here, and streams before every part but the first.
    pub(crate) gate: Semaphore,
    pub(crate) uploaded: Mutex<Vec<usize>>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    pub(crate) async fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen {
            calls: Mutex::default(),
            gate: Semaphore::new(0),
            uploaded: Mutex::default(),
        });
        let app = routes(Arc::clone(&seen));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, seen, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.calls.lock().unwrap().len()
    }

    pub(crate) fn calls_by_key(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for key in self.seen.calls.lock().unwrap().iter() {
            *counts.entry(key.clone()).or_default() += 1;
        }
        counts
    }

    /// Waits until it was called so often.
    pub(crate) async fn called(&self, times: usize) {
        eventually("a call", async || (self.calls() >= times).then_some(())).await;
    }

    pub(crate) fn open(&self, gates: usize) {
        self.seen.gate.add_permits(gates);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Asked = State<Arc<Seen>>;

impl Seen {
    fn call(&self, headers: &HeaderMap) -> usize {
        let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
        let mut calls = self.calls.lock().unwrap();
        calls.push(key.unwrap_or_default());
        calls.len()
    }
}

fn routes(seen: Arc<Seen>) -> Router {
    Router::new()
        .route("/charges", post(charge).merge(put(charge)))
        .route("/unlisted", any(charge))
        .route("/gate", post(gate))
        .route("/hang", post(hang))
        .route("/cut", post(cut))
        .route("/half", post(half))
        .route("/status/{status}", post(status))
        .route("/echo", any(echo))
        .route("/stream", get(stream))
        .route("/upload", post(upload))
        .with_state(seen)
}

async fn charge(State(seen): Asked, headers: HeaderMap, _body: Bytes) -> impl IntoResponse {
    let number = seen.call(&headers);
    let headers = AppendHeaders([
        ("location", format!("/charges/{number}")),
        ("link", "</a>; rel=prev".to_owned()),
        ("link", "</b>; rel=next".to_owned()),
        ("set-cookie", format!("session={number}")),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        ("connection", "x-hop".to_owned()),
        ("x-hop", "of this connection".to_owned()),
    ]);
    (StatusCode::CREATED, headers, [&BINARY[..], number.to_string().as_bytes()].concat())
}

async fn gate(State(seen): Asked, headers: HeaderMap) -> String {
    let number = seen.call(&headers);
    seen.gate.acquire().await.unwrap().forget();
    format!("receipt {number}")
}

async fn hang(State(seen): Asked, headers: HeaderMap) {
    seen.call(&headers);
    std::future::pending().await
}

/// Acts, and is gone before it can say so.
async fn cut(State(seen): Asked, headers: HeaderMap) {
    seen.call(&headers);
    std::panic::resume_unwind(Box::new("the connection goes with it"));
}

/// The half of a response, and after the gate nothing more.
async fn half(State(seen): Asked, headers: HeaderMap) -> Body {
    seen.call(&headers);
    let first = futures_util::stream::iter([Ok(Bytes::from_static(b"half a rec"))]);
    let broken = futures_util::stream::once(async move {
        seen.gate.acquire().await.unwrap().forget();
        Err("the disk is gone")
    });
    Body::from_stream(first.chain(broken))
}

async fn status(
    State(seen): Asked,
    headers: HeaderMap,
    Path(status): Path<u16>,
) -> impl IntoResponse {
    let number = seen.call(&headers);
    (StatusCode::from_u16(status).unwrap(), number.to_string())
}

/// The head of the request, a line each, and its body.
async fn echo(headers: HeaderMap, uri: http::Uri, body: Bytes) -> String {
    let mut lines = vec![uri.to_string()];
    for (name, value) in &headers {
        lines.push(format!("{name}: {}", value.to_str().unwrap()));
    }
    lines.push(String::from_utf8_lossy(&body).into_owned());
    lines.join("\n")
}

/// A part at once, and then one for every gate.
async fn stream(State(seen): Asked) -> Body {
    let parts = futures_util::stream::iter(0..3).then(move |part| {
        let seen = Arc::clone(&seen);
        async move {
            if part > 0 {
                seen.gate.acquire().await.unwrap().forget();
            }
            Ok::<_, std::io::Error>(Bytes::from(format!("part {part};")))
        }
    });
    Body::from_stream(parts)
}

/// Tells the test of every piece as it comes.
async fn upload(State(seen): Asked, body: Body) -> String {
    let mut frames = body.into_data_stream();
    let mut total = 0;
    while let Some(frame) = frames.next().await {
        total += frame.unwrap().len();
        seen.uploaded.lock().unwrap().push(total);
    }
    total.to_string()
}
