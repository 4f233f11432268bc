//! A service before a broker, that counts how often it is called.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Extension, Router};
use bytes::Bytes;
use hapax_client::Client;
use hapax_idempotency::{Builder, Event, Idempotency, Operation, Outcome, Remember};
use hapax_testing::{PATIENCE, TestQueue, in_time};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// Every byte, so that text would not survive it.
pub(crate) const BINARY: [u8; 6] = [0x00, 0xff, 0x80, b'\r', b'\n', 0xc3];

/// A layer on the queue `http` of this client's broker.
pub(crate) fn builder(client: &Client) -> Builder {
    Idempotency::builder(client.queue("http"))
        .required("POST /charges")
        .required("POST /orders/{order}/pay")
        .required("POST /gate")
        .required("POST /twice")
        .required("POST /status/{status}")
        .required("POST /remember/{how}")
        .required("POST /panic")
        .required("POST /large/{bytes}")
        .required("POST /broken")
        .required("POST /resumed")
        .optional("PUT /optional")
        // A machine that stalls for seconds is not a broker that is away.
        .broker_timeout(PATIENCE)
}

pub(crate) fn open_shop(broker: &TestQueue) -> Shop {
    Shop::open(builder(&broker.client))
}

/// Ends every lease there is, without a word to those who hold them.
pub(crate) async fn lose_everything(broker: &TestQueue) {
    broker.admin.delete_queue("http").await.unwrap();
    broker.admin.put_queue("http", "{}", None).await.unwrap();
}

/// A service that counts how often it is called.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) app: Router,
    pub(crate) idempotency: Idempotency,
    pub(crate) counter: Arc<Counter>,
    events: Arc<Mutex<Vec<Event>>>,
}

#[derive(Debug)]
pub(crate) struct Counter {
    calls: AtomicUsize,
    /// Handlers that wait do so here.
    pub(crate) gate: Semaphore,
    pub(crate) claim_keys: Mutex<Vec<String>>,
}

impl Shop {
    pub(crate) fn open(builder: Builder) -> Self {
        let counter = Arc::new(Counter {
            calls: AtomicUsize::new(0),
            gate: Semaphore::new(0),
            claim_keys: Mutex::default(),
        });
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let observe = move |event| seen.lock().unwrap().push(event);
        let idempotency = builder.observe(observe).build().unwrap();
        let app = routes(Arc::clone(&counter)).layer(idempotency.clone());
        Self { app, idempotency, counter, events }
    }

    pub(crate) fn calls(&self) -> usize {
        self.counter.calls.load(Ordering::SeqCst)
    }

    /// Waits until the handler was called so often.
    pub(crate) async fn called(&self, times: usize) {
        in_time(async {
            while self.calls() < times {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// The key of the newest claim.
    pub(crate) fn claim_key(&self) -> String {
        self.counter.claim_keys.lock().unwrap().last().unwrap().clone()
    }

    pub(crate) async fn ask(&self, request: Request<Body>) -> Answered {
        let response = in_time(self.app.clone().oneshot(request)).await.unwrap();
        Answered::of(response).await
    }

    /// The same, in a task.
    pub(crate) fn asking(&self, request: Request<Body>) -> JoinHandle<Answered> {
        let shop = self.clone();
        tokio::spawn(async move { shop.ask(request).await })
    }

    pub(crate) fn events(&self, event: Event) -> usize {
        self.events.lock().unwrap().iter().filter(|seen| **seen == event).count()
    }
}

/// A response, with all of its body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) outcome: Option<Outcome>,
}

impl Answered {
    async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes());
        Self {
            status: parts.status.as_u16(),
            outcome: parts.extensions.get().copied(),
            headers: parts.headers,
            body: body.unwrap_or_else(|_| Bytes::from_static(b"(broke off)")),
        }
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["status"], self.status);
        assert_eq!(document["retryable"], self.headers.contains_key("retry-after"));
        document["code"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn request(path: &str, key: &str) -> Request<Body> {
    request_with(path, key, "17 euro")
}

pub(crate) fn request_with(path: &str, key: &str, body: &'static str) -> Request<Body> {
    Request::post(path).header("idempotency-key", key).body(Body::from(body)).unwrap()
}

/// A request that waits for the one in progress.
pub(crate) fn patient(path: &str, key: &str) -> Request<Body> {
    let mut request = request(path, key);
    request.headers_mut().insert("prefer", "wait=30".parse().unwrap());
    request
}

fn routes(counter: Arc<Counter>) -> Router {
    Router::new()
        .route("/charges", post(charge))
        .route("/orders/{order}/pay", post(charge))
        .route("/optional", any(charge))
        .route("/unlisted", any(charge))
        .route("/gate", post(gate))
        .route("/twice", post(twice))
        .route("/status/{status}", post(status))
        .route("/remember/{how}", post(remember))
        .route("/panic", post(panics))
        .route("/large/{bytes}", post(large))
        .route("/broken", post(broken))
        .route("/resumed", post(resumed))
        .with_state(counter)
}

type Counted = State<Arc<Counter>>;

impl Counter {
    fn call(&self, operation: Option<Extension<Operation>>) -> usize {
        if let Some(Extension(operation)) = operation {
            self.claim_keys.lock().unwrap().push(operation.claim_key().to_owned());
        }
        self.calls.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// With everything a response can have, and the number of the call in it.
async fn charge(
    State(counter): Counted,
    operation: Option<Extension<Operation>>,
    _body: Bytes,
) -> impl IntoResponse {
    let number = counter.call(operation);
    let headers = AppendHeaders([
        ("location", format!("/charges/{number}")),
        ("link", "</a>; rel=prev".to_owned()),
        ("link", "</b>; rel=next".to_owned()),
        ("set-cookie", format!("session={number}")),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        ("content-type", "application/octet-stream".to_owned()),
    ]);
    let body = [&BINARY[..], number.to_string().as_bytes()].concat();
    (StatusCode::CREATED, headers, body)
}

async fn gate(State(counter): Counted, operation: Option<Extension<Operation>>) -> String {
    let number = counter.call(operation);
    counter.gate.acquire().await.unwrap().forget();
    format!("receipt {number}")
}

/// Waits the first time only.
async fn twice(State(counter): Counted, operation: Option<Extension<Operation>>) -> String {
    let number = counter.call(operation);
    if number == 1 {
        counter.gate.acquire().await.unwrap().forget();
    }
    format!("receipt {number}")
}

async fn status(
    State(counter): Counted,
    operation: Option<Extension<Operation>>,
    Path(status): Path<u16>,
) -> impl IntoResponse {
    let number = counter.call(operation);
    (StatusCode::from_u16(status).unwrap(), number.to_string())
}

async fn remember(
    State(counter): Counted,
    operation: Option<Extension<Operation>>,
    Path(how): Path<String>,
) -> Response {
    let number = counter.call(operation);
    let (status, remember) = match how.as_str() {
        "keep" => (StatusCode::INTERNAL_SERVER_ERROR, Remember::Keep),
        "release" => (StatusCode::OK, Remember::Release),
        _ => (StatusCode::OK, Remember::InDoubt),
    };
    let mut response = (status, number.to_string()).into_response();
    response.extensions_mut().insert(remember);
    response
}

async fn panics(State(counter): Counted, operation: Option<Extension<Operation>>) -> String {
    let number = counter.call(operation);
    assert!(number > 1, "the first call goes wrong");
    format!("receipt {number}")
}

async fn large(
    State(counter): Counted,
    operation: Option<Extension<Operation>>,
    Path(bytes): Path<usize>,
) -> Vec<u8> {
    counter.call(operation);
    vec![b'x'; bytes]
}

async fn broken(State(counter): Counted, operation: Option<Extension<Operation>>) -> Body {
    counter.call(operation);
    let frames = [Ok(Bytes::from_static(b"half a rec")), Err("the disk is gone")];
    Body::from_stream(futures_util::stream::iter(frames))
}

/// Saves that it charged, and goes wrong the first time after that.
async fn resumed(
    State(counter): Counted,
    Extension(operation): Extension<Operation>,
) -> Result<String, StatusCode> {
    let number = counter.call(Some(Extension(operation.clone())));
    if let Some(saved) = operation.recovery_point("charged") {
        return Ok(format!("{} by call {number}", String::from_utf8_lossy(&saved)));
    }
    let saved = operation.save("charged", format!("charged in call {number}")).await;
    saved.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Err(StatusCode::INTERNAL_SERVER_ERROR)
}
