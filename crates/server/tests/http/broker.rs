//! A broker in a temporary directory, and requests to its router that need no port.

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use hapax_server::doors::http::router;
use hapax_server::engine::{Data, Engine, Options};
use hapax_server::service::{self, Service};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;

use super::described;

/// A broker. It stops when it is dropped.
pub(crate) struct Broker {
    pub(crate) service: Service,
    router: Router,
    directory: TempDir,
}

impl Broker {
    pub(crate) fn open() -> Self {
        Self::with(1, |_| service::Options::default())
    }

    /// A broker with options that may depend on its data directory.
    pub(crate) fn with(
        partitions: u16,
        options: impl FnOnce(&std::path::Path) -> service::Options,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        Self::open_at(&path, directory, partitions, options)
    }

    /// A broker of data that outlives it.
    pub(crate) fn of(path: &std::path::Path) -> Self {
        Self::open_at(path, tempfile::tempdir().unwrap(), 2, |_| service::Options::default())
    }

    fn open_at(
        path: &std::path::Path,
        directory: TempDir,
        partitions: u16,
        options: impl FnOnce(&std::path::Path) -> service::Options,
    ) -> Self {
        let data = Data::open(path, partitions).unwrap();
        let memory_bytes = 64 * 1_024 * 1_024;
        let engine_options = Options { partitions, memory_bytes };
        let engine = Engine::open(data, engine_options, Box::new(|_, _| {})).unwrap();
        let service = Service::new(engine, options(path));
        Self { router: router(service.clone()), service, directory }
    }

    /// A broker with one queue.
    pub(crate) async fn with_queue(config: &str) -> Self {
        let broker = Self::open();
        broker.put("orders", config).await;
        broker
    }

    pub(crate) async fn put(&self, queue: &str, config: &str) {
        let told = self.ask(put(&format!("/v1/queues/{queue}"), config)).await;
        assert_eq!(told.status, 201, "{}", told.text());
    }

    pub(crate) async fn ask(&self, ask: Ask) -> Answered {
        let (method, path) = (ask.request.method().clone(), ask.request.uri().path().to_owned());
        let response = self.router.clone().oneshot(ask.request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        assert!(parts.headers.contains_key("request-id"), "every answer has an id");
        let answered = Answered { status: parts.status, headers: parts.headers, body };
        described::check(&self.router, &method, &path, &answered).await;
        answered
    }

    /// Receives one message, which must be there, and gives its delivery.
    pub(crate) async fn receive_one(&self, queue: &str) -> Value {
        let path = format!("/v1/queues/{queue}/receive");
        let told = self.ask(post(&path, r#"{"max":1,"wait_ms":30000,"worker":"w1"}"#)).await;
        let messages = told.is(200)["messages"].as_array().unwrap().clone();
        assert_eq!(messages.len(), 1);
        messages[0].clone()
    }

    /// Settles one lease and gives its answer.
    pub(crate) async fn settle(&self, queue: &str, item: Value) -> Value {
        let items = serde_json::json!({ "items": [item] }).to_string();
        let told = self.ask(post(&format!("/v1/queues/{queue}/settle"), &items)).await;
        told.is(200)["answers"][0].clone()
    }

    /// Sends a message that must be accepted.
    pub(crate) async fn send(&self, queue: &str, key: &str, body: &str) -> Value {
        self.ask(send(queue, key, body)).await.is(201)
    }

    pub(crate) async fn key(&self, queue: &str, key: &str) -> Value {
        self.ask(get(&format!("/v1/queues/{queue}/keys/{key}"))).await.is(200)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.service.engine().stop();
        assert!(self.directory.path().exists());
    }
}

/// A request.
pub(crate) struct Ask {
    request: Request<Body>,
}

pub(crate) fn ask(method: &str, path: &str) -> Ask {
    let method: Method = method.parse().unwrap();
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    Ask { request }
}

pub(crate) fn get(path: &str) -> Ask {
    ask("GET", path)
}

pub(crate) fn post(path: &str, json: &str) -> Ask {
    ask("POST", path).header("content-type", "application/json").body(json.to_owned())
}

pub(crate) fn put(path: &str, json: &str) -> Ask {
    ask("PUT", path).header("content-type", "application/json").body(json.to_owned())
}

pub(crate) fn send(queue: &str, key: &str, body: &str) -> Ask {
    ask("POST", &format!("/v1/queues/{queue}/messages"))
        .header("idempotency-key", key)
        .body(body.to_owned())
}

impl Ask {
    pub(crate) fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let mut request = self.request;
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, http::HeaderValue::from_bytes(value.as_ref()).unwrap());
        Self { request }
    }

    pub(crate) fn body(self, body: impl Into<Body>) -> Self {
        Self { request: self.request.map(|_| body.into()) }
    }

    /// As it comes over HTTP/2.
    pub(crate) fn http2(mut self) -> Self {
        *self.request.version_mut() = http::Version::HTTP_2;
        self
    }

    pub(crate) fn extension(mut self, extension: impl Clone + Send + Sync + 'static) -> Self {
        self.request.extensions_mut().insert(extension);
        self
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answered {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of an answer with this status.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json", "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The problem document of a refusal with this status and code.
    #[track_caller]
    pub(crate) fn fails(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(problem["type"], format!("/errors/{code}"), "{problem}");
        assert_eq!(problem["request_id"], self.header("request-id"), "{problem}");
        for field in ["title", "detail"] {
            assert!(!problem[field].as_str().unwrap().is_empty(), "{problem}");
        }
        let is_retryable = problem["retryable"].as_bool().unwrap();
        assert_eq!(is_retryable, self.headers.contains_key("retry-after"), "{problem}");
        problem
    }

    /// The text of a header; empty where it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// The text of a field.
#[track_caller]
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} in {value}"))
}
