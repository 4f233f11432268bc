//! What each route takes, by the document of the API: everything else is refused, and nothing done.

use serde_json::{Value, json};

use super::access::guarded;
use super::broker::{Ask, Broker, ask, get, text};
use super::strict::{busy_house, state};

const HEADERS: [&str; 9] = [
    "hapax-group",
    "hapax-delay-ms",
    "hapax-ttl-ms",
    "hapax-fingerprint",
    "hapax-issued-at",
    "hapax-lease-ms",
    "hapax-worker",
    "hapax-claim-id",
    "hapax-header-name",
];
const CONDITIONS: [&str; 4] =
    ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"];
const PARAMS: [&str; 5] = ["group", "wait_ms", "state", "limit", "cursor"];

/// An operation of the document, and a path that leads to it.
struct Route {
    method: String,
    path: String,
    operation: Value,
}

impl Route {
    async fn all(broker: &Broker) -> Vec<Self> {
        let document = broker.ask(get("/v1/openapi.json")).await.is(200);
        let mut all = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let key = if path.ends_with("forget") { "finished" } else { "dead" };
                let path = path.replace("{queue}", "orders").replace("{key}", key);
                let path = path.replace("{id}", "r").replace("{code}", "conflict");
                let (method, operation) = (method.to_uppercase(), operation.clone());
                all.push(Self { method, path, operation });
            }
        }
        all
    }

    fn ask(&self) -> Ask {
        ask(&self.method, &self.path)
    }

    fn takes(&self, kind: &str, name: &str) -> bool {
        if name == "hapax-header-name" {
            return self.operation["x-stored-headers"] == "hapax-header-";
        }
        let params = self.operation["parameters"].as_array();
        let is_it = |param: &Value| {
            text(param, "in") == kind && text(param, "name").eq_ignore_ascii_case(name)
        };
        params.is_some_and(|params| params.iter().any(is_it))
    }

    fn is_open(&self) -> bool {
        self.operation["security"] == json!([{}])
    }

    fn takes_body(&self) -> bool {
        self.operation.get("requestBody").is_some()
    }

    /// Requests that carry what the route does not take, and what their refusals say.
    fn wrong(&self) -> Vec<(Ask, &'static str)> {
        let mut wrong = vec![(self.ask().header("hapax-frobnicate", "1"), "unknown header")];
        for name in HEADERS.iter().filter(|name| !self.takes("header", name)) {
            wrong.push((self.ask().header(name, "1"), "has no meaning for this request"));
        }
        if self.method != "GET" {
            for name in CONDITIONS.iter().filter(|name| !self.takes("header", name)) {
                wrong.push((self.ask().header(name, "*"), "is not supported by this request"));
            }
        }
        if self.path.starts_with("/v1/") {
            let others = PARAMS.iter().filter(|name| !self.takes("query", name));
            for name in others.chain(&["frobnicate"]) {
                let uri = format!("{}?{name}=1", self.path);
                wrong.push((ask(&self.method, &uri), "unknown parameter"));
            }
        }
        if !self.takes_body() {
            for body in [r#"{"dry_run":true}"#.to_owned(), "x".to_owned(), "x".repeat(100_000)] {
                wrong.push((self.ask().body(body), "this request must have none"));
            }
        }
        wrong
    }
}

#[tokio::test]
async fn every_route_refuses_what_it_does_not_take_and_does_nothing() {
    let (broker, _) = busy_house().await;
    let before = state(&broker).await;
    let mut asked = 0;
    for route in Route::all(&broker).await {
        for (request, what) in route.wrong() {
            let told = broker.ask(request).await;
            let problem = told.fails(400, "invalid");
            let detail = text(&problem, "detail");
            assert!(detail.contains(what), "{} {}: {problem}", route.method, route.path);
            assert_eq!(state(&broker).await, before, "{} {}: {what}", route.method, route.path);
            asked += 1;
        }
    }
    assert!(asked > 400, "{asked}");
}

#[tokio::test]
async fn whoever_is_not_known_is_refused_before_the_request_is_looked_at() {
    let (broker, _) = guarded(&[("root", "shop", "*", "send,work,admin")]);
    let mut asked = 0;
    for route in Route::all(&broker).await {
        for (request, what) in route.wrong() {
            let told = broker.ask(request).await;
            match route.is_open() {
                true => told.fails(400, "invalid"),
                false => told.fails(401, "unauthorized"),
            };
            asked += usize::from(!route.is_open());
            assert_eq!(told.headers.contains_key("www-authenticate"), !route.is_open(), "{what}");
        }
    }
    assert!(asked > 400, "{asked}");
}

#[tokio::test]
async fn every_route_takes_what_its_document_says() {
    let (broker, _) = busy_house().await;
    for route in Route::all(&broker).await {
        let mut right = Vec::new();
        for name in HEADERS.iter().chain(&CONDITIONS).filter(|name| route.takes("header", name)) {
            right.push(route.ask().header(name, "1"));
        }
        for name in PARAMS.iter().filter(|name| route.takes("query", name)) {
            right.push(ask(&route.method, &format!("{}?{name}=1", route.path)));
        }
        // Some programs send an empty object with everything.
        let is_last = route.method == "DELETE" && route.path == "/v1/queues/orders";
        if !route.takes_body() && !is_last {
            right.extend(["", " ", "{}"].map(|body| route.ask().body(body)));
        }
        for request in right {
            let told = broker.ask(request).await.text();
            for what in ["unknown header", "has no meaning", "unknown parameter", "must have none"]
            {
                assert!(!told.contains(what), "{} {}: {told}", route.method, route.path);
            }
        }
    }
    let told = broker.ask(ask("DELETE", "/v1/queues/orders").body("{}")).await;
    assert_eq!(told.status, 204);
}

#[tokio::test]
async fn a_header_that_was_meant_is_named() {
    let (broker, _) = busy_house().await;
    let send = |name| ask("POST", "/v1/queues/orders/messages").header(name, "5");
    let said = async |ask| text(&broker.ask(ask).await.fails(400, "invalid"), "detail").to_owned();
    assert_eq!(
        said(send("hapax-dealy-ms")).await,
        "unknown header hapax-dealy-ms: did you mean hapax-delay-ms?"
    );
    assert!(said(send("hapax-colour")).await.ends_with("name it hapax-header-NAME"));
    let claim = ask("POST", "/v1/queues/orders/claims").header("hapax-delay-ms", "5");
    assert!(said(claim).await.contains("hapax-lease-ms, hapax-worker, hapax-claim-id"));
}

#[tokio::test]
async fn a_body_in_parts_is_found_where_none_is_taken() {
    let (broker, _) = busy_house().await;
    let parts = |parts: &'static [&'static str]| {
        let parts = parts.iter().map(|part| Ok::<_, std::convert::Infallible>(*part));
        axum::body::Body::from_stream(futures_util::stream::iter(parts))
    };
    let delete = || ask("DELETE", "/v1/queues/orders");
    for body in [&["{", "\"dry_run\":", "true}"][..], &["", "", "x"], &["[", "]"]] {
        broker.ask(delete().body(parts(body))).await.fails(400, "invalid");
    }
    assert_eq!(state(&broker).await["queue"], json!("orders"));
    assert_eq!(broker.ask(delete().body(parts(&["", "{", "}"]))).await.status, 204);
}

#[tokio::test]
async fn a_key_in_the_header_is_refused_where_it_has_no_meaning() {
    let broker = Broker::with_queue("{}").await;
    for (path, instead) in [
        ("batch", "give each message of the batch its own `key`"),
        ("receive", "to repeat a receive, give it a `receive_id`"),
        ("redrive", "to repeat a redrive, give it an `id`"),
        ("settle", "leave it out"),
        ("pause", "leave it out"),
    ] {
        let asked = ask("POST", &format!("/v1/queues/orders/{path}"));
        let told = broker.ask(asked.header("idempotency-key", "k1")).await.fails(400, "invalid");
        assert!(text(&told, "detail").ends_with(instead), "{told}");
    }
    let shown = broker.ask(get("/v1/queues/orders")).await.is(200);
    assert_eq!(shown["paused"], false);
    broker.ask(get("/v1/queues/orders").header("idempotency-key", "k1")).await.is(200);
}
