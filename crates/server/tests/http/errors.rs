//! Errors: every code with its status, and a page for each.

use hapax_wire::Code;
use serde_json::Value;

use super::broker::{Broker, ask, get, post, put, send};

/// What a browser accepts.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

#[tokio::test]
async fn every_code_has_a_page_for_people_and_for_programs() {
    let broker = Broker::open();
    let list = broker.ask(get("/errors")).await.is(200);
    let errors = list["errors"].as_array().unwrap();
    assert_eq!(errors.len(), Code::ALL.len());
    for (code, listed) in Code::ALL.iter().zip(errors) {
        let path = format!("/errors/{}", code.as_str());
        let page = broker.ask(get(&path).header("accept", BROWSER)).await;
        assert_eq!(page.status, 200);
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(page.text().contains(&format!("<code>{}</code>", code.as_str())));
        let json = broker.ask(get(&path).header("accept", "application/json")).await.is(200);
        assert_eq!(&json, listed);
        let json = broker.ask(get(&path).header("accept", "*/*")).await.is(200);
        assert_eq!(json["status"], code.status().as_u16());
        for field in ["title", "means", "why", "what_to_do"] {
            assert!(json[field].as_str().unwrap().len() > 10, "{field} of {path}");
        }
    }
    let index = broker.ask(get("/errors").header("accept", BROWSER)).await;
    assert!(index.text().contains("href=\"/errors/lease_lost\""));
    broker.ask(get("/errors/nonsense")).await.fails(404, "invalid");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let broker = Broker::open();
    for path in
        ["/nothing", "/v1", "/v1/", "/v2/queues", "/v1/queues/a/nothing", "//", "/v1/queues/"]
    {
        broker.ask(get(path)).await.fails(404, "invalid");
    }
    let told = broker.ask(ask("PATCH", "/v1/queues/orders")).await;
    told.fails(405, "invalid");
    let mut allowed: Vec<&str> = told.header("allow").split(',').map(str::trim).collect();
    allowed.sort();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "PUT"]);
    broker.ask(get("/v1/queues/orders/receive")).await.fails(405, "invalid");
}

#[tokio::test]
async fn a_broker_that_stopped_says_so_as_retryable() {
    let broker = Broker::with_queue("{}").await;
    let live = broker.ask(get("/livez")).await;
    let ready = broker.ask(get("/readyz")).await;
    assert_eq!((live.status.as_u16(), ready.status.as_u16()), (200, 200));
    broker.service.engine().stop();
    broker.ask(get("/readyz")).await.fails(503, "unavailable");
    assert_eq!(broker.ask(get("/livez")).await.status, 200);
    let told = broker.ask(send("orders", "k", "x")).await;
    told.fails(503, "unavailable");
    assert_eq!(told.header("retry-after"), "1");
    for (method, path) in [("GET", "/v1/queues"), ("GET", "/v1/queues/orders/keys/k")] {
        broker.ask(ask(method, path)).await.fails(503, "unavailable");
    }
    broker.ask(put("/v1/queues/more", "{}")).await.fails(503, "unavailable");
    let nothing = broker.ask(post("/v1/queues/orders/receive", "{}")).await.is(200);
    assert_eq!(nothing["messages"], Value::Array(Vec::new()), "no more leases");
}

/// The rest of the codes is shown where it belongs: by sends, claims, batches, tokens, queues. A
/// full disk and a fault of the broker cannot be asked for; they are shown by the door's own tests.
#[tokio::test]
async fn the_plain_codes_come_with_their_statuses() {
    let broker = Broker::with_queue("{}").await;
    broker.ask(put("/v1/queues/orders", "{")).await.fails(400, "invalid");
    broker.ask(ask("POST", "/v1/queues/orders/messages")).await.fails(400, "missing_key");
    broker.ask(send("orders", "\"", "x")).await.fails(400, "malformed_key");
    broker.ask(get("/v1/queues/none")).await.fails(404, "no_such_queue");
    broker.ask(get("/v1/queues/orders/keys/none")).await.fails(404, "no_such_key");
    broker.ask(put("/v1/queues/orders", r#"{"x":1}"#)).await.fails(422, "invalid_config");
}
