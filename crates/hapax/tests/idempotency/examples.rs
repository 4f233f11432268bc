//! The programs of the guides, as they are, on a running broker.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hapax_client::Client;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use hapax_testing::{TestQueue, in_time};

#[expect(dead_code, reason = "its main is not called here")]
#[path = "../../../idempotency/examples/charges.rs"]
mod charges;

#[expect(dead_code, reason = "its main is not called here")]
#[path = "../../../idempotency/examples/webhooks.rs"]
mod webhooks;

async fn ask(app: &Router, request: Request<Body>) -> (u16, bool, String) {
    let response = in_time(app.clone().oneshot(request)).await.unwrap();
    let status = response.status().as_u16();
    let is_replayed = response.headers().contains_key("idempotency-replayed");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, is_replayed, String::from_utf8_lossy(&body).into_owned())
}

fn charge(account: &str, key: &str, cents: &'static str) -> Request<Body> {
    let request = Request::post("/charges").header("x-account", account);
    request.header("idempotency-key", key).body(Body::from(cents)).unwrap()
}

on_each!(the_charges_of_the_guide_are_charged_once);
async fn the_charges_of_the_guide_are_charged_once(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    broker.admin.put_queue("charges", "{}", None).await.unwrap();
    let bank = charges::Bank::default();
    let app = charges::app(bank.clone(), &charges::idempotency(&broker.client).unwrap());
    let first = ask(&app, charge("ada", "order-42", "1700")).await;
    assert_eq!(first, (201, false, "charged 1700 cents\n".to_owned()));
    let again = ask(&app, charge("ada", "order-42", "1700")).await;
    assert_eq!(again, (201, true, first.2));
    assert_eq!(ask(&app, charge("ada", "order-42", "1800")).await.0, 422);
    assert!(!ask(&app, charge("ada", "order-43", "a lot")).await.1);
    assert!(ask(&app, charge("ada", "order-43", "a lot")).await.1);
    assert_eq!(bank.charged(), 1);
    assert_eq!(ask(&app, charge("eve", "order-42", "1700")).await.0, 201);
    assert_eq!(bank.charged(), 2);
}

fn event(provider: &str, id: &str, sequence: u64, state: &str) -> Request<Body> {
    let event = json!({"id": id, "object": "invoice-7", "sequence": sequence, "state": state});
    let request = Request::post(format!("/webhooks/{provider}"));
    let request = request.header("content-type", "application/json");
    // Another with every delivery, as providers send them.
    let request = request.header("x-delivery", hapax_client::new_key());
    request.body(Body::from(event.to_string())).unwrap()
}

fn verdict(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

on_each!(an_event_is_applied_once_and_only_if_it_is_newer);
async fn an_event_is_applied_once_and_only_if_it_is_newer(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    broker.admin.put_queue("webhooks", "{}", None).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let receiver = Arc::new(webhooks::Receiver::new(directory.path()).unwrap());
    let layer = webhooks::idempotency(&broker.client).unwrap();
    let app = webhooks::app(Arc::clone(&receiver), &layer);
    let notified = || receiver.notified.lock().unwrap().len();

    let (status, is_replayed, body) = ask(&app, event("bank", "evt_2", 2, "paid")).await;
    assert_eq!((status, is_replayed, verdict(&body)), (200, false, json!("applied")));
    let (status, is_replayed, body) = ask(&app, event("bank", "evt_2", 2, "paid")).await;
    assert_eq!((status, is_replayed, verdict(&body)), (200, true, json!("applied")));
    let (_, is_replayed, body) = ask(&app, event("bank", "evt_1", 1, "sent")).await;
    assert_eq!((is_replayed, verdict(&body)), (false, json!("older")));
    assert_eq!(receiver.known("bank", "invoice-7").unwrap().state, "paid");
    assert_eq!(notified(), 1);

    // The same id of another provider is another event, about something else.
    let (_, is_replayed, body) = ask(&app, event("post", "evt_2", 1, "lost")).await;
    assert_eq!((is_replayed, verdict(&body)), (false, json!("applied")));
    assert_eq!(receiver.known("post", "invoice-7").unwrap().state, "lost");
    assert_eq!(receiver.known("bank", "invoice-7").unwrap().state, "paid");
    assert_eq!(notified(), 2);

    let other = ask(&app, event("bank", "evt_2", 2, "cancelled")).await;
    assert_eq!(other.0, 422, "an event does not change: {}", other.2);
    let nothing = Request::post("/webhooks/bank").body(Body::from("{}")).unwrap();
    assert_eq!(ask(&app, nothing).await.0, 400);
}

on_each!(a_receiver_that_dies_after_applying_an_event_goes_on_from_there);
async fn a_receiver_that_dies_after_applying_an_event_goes_on_from_there(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    broker.admin.put_queue("webhooks", "{}", None).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let address = broker.client.address().to_owned();
    let path = directory.path().to_owned();
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&address).unwrap();
            let receiver = Arc::new(webhooks::Receiver::new(&path).unwrap());
            let permits = receiver.after_applying.available_permits();
            receiver.after_applying.forget_permits(permits);
            let layer = webhooks::idempotency(&client).unwrap();
            let app = webhooks::app(Arc::clone(&receiver), &layer);
            let asking = tokio::spawn(app.oneshot(event("bank", "evt_1", 1, "paid")));
            in_time(async {
                while receiver.known("bank", "invoice-7").is_none() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            drop(asking);
            assert!(
                receiver.notified.lock().unwrap().is_empty(),
                "it died before the notification"
            );
        });
        runtime.shutdown_timeout(Duration::ZERO);
    });
    tokio::task::spawn_blocking(move || died.join().unwrap()).await.unwrap();

    let receiver = Arc::new(webhooks::Receiver::new(directory.path()).unwrap());
    let layer = webhooks::idempotency(&broker.client).unwrap();
    let app = webhooks::app(Arc::clone(&receiver), &layer);
    let mut again = event("bank", "evt_1", 1, "paid");
    again.headers_mut().insert("prefer", "wait=30".parse().unwrap());
    let (status, is_replayed, body) = ask(&app, again).await;
    assert_eq!((status, is_replayed, verdict(&body)), (200, false, json!("applied")));
    assert_eq!(receiver.notified.lock().unwrap().len(), 1);
    assert_eq!(receiver.known("bank", "invoice-7").unwrap().sequence, 1);
}
