//! The broker is away: before the claim, and when the response is to be stored.

use std::time::Duration;

use hapax_client::Client;
use hapax_idempotency::{Event, OnUnavailable, Outcome, Policy, Remember, Settlement};

use crate::shop::{Shop, builder, request};
use hapax_testing::{PATIENCE, TestQueue, eventually, in_time};

/// For a broker that is not there at all.
const SHORT: Duration = Duration::from_millis(300);
/// For one that is there at first, however busy the machine is.
const ENOUGH: Duration = Duration::from_secs(10);
/// A lease that no test outlives: what is free before was released.
const LONG: Duration = Duration::from_secs(3_600);

fn nowhere() -> Client {
    Client::connect("http://127.0.0.1:1").unwrap()
}

#[tokio::test]
async fn without_a_broker_nothing_is_done_that_could_not_be_remembered() {
    let shop = Shop::open(builder(&nowhere()).broker_timeout(SHORT));
    let told = shop.ask(request("/charges", "k")).await;
    assert_eq!((told.status, told.code().as_str(), shop.calls()), (503, "unavailable", 0));
    assert!(told.headers.contains_key("retry-after"));
    assert!(shop.events(Event::BrokerFailed(hapax_client::Code::Unavailable)) > 0);
    let unlisted = shop.ask(request("/unlisted", "k")).await;
    assert_eq!((unlisted.status, shop.calls()), (201, 1), "what is not protected goes on");
}

#[tokio::test]
async fn without_a_broker_requests_are_passed_on_where_that_was_chosen() {
    let open = builder(&nowhere()).on_unavailable(OnUnavailable::Open);
    let shop = Shop::open(open.broker_timeout(SHORT));
    assert_eq!(shop.ask(request("/panic", "k")).await.code(), "internal");
    for call in 2..=3 {
        let told = shop.ask(request("/charges", "k")).await;
        assert_eq!((told.status, told.outcome), (201, Some(Outcome::Unprotected)));
        assert_eq!((told.is_replayed(), shop.calls()), (false, call));
    }
    let without = axum::http::Request::post("/charges").body(axum::body::Body::empty()).unwrap();
    assert_eq!(shop.ask(without).await.code(), "missing_key", "the rules of keys stay");
}

on_each!(a_queue_that_is_missing_is_a_fault_of_the_service_in_either_case);
async fn a_queue_that_is_missing_is_a_fault_of_the_service_in_either_case(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    broker.admin.delete_queue("http").await.unwrap();
    for on_unavailable in [OnUnavailable::Close, OnUnavailable::Open] {
        let shop = Shop::open(builder(&broker.client).on_unavailable(on_unavailable));
        let told = shop.ask(request("/charges", "k")).await;
        assert_eq!((told.status, told.code().as_str(), shop.calls()), (500, "internal", 0));
        assert_eq!(told.outcome, Some(Outcome::Misconfigured));
    }
}

on_each!(a_response_is_stored_when_the_broker_is_back_and_replayed_then);
async fn a_response_is_stored_when_the_broker_is_back_and_replayed_then(partitions: u16) {
    let mut broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).broker_timeout(ENOUGH));
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    broker.stop().await;
    shop.counter.gate.add_permits(1);
    let first = in_time(first).await.unwrap();
    assert_eq!((first.status, first.code().as_str()), (503, "unavailable"));
    assert_eq!(shop.idempotency.running(), 1, "it is still being stored");
    broker.start_again().await;
    assert!(shop.idempotency.drained(PATIENCE).await);
    let again = shop.ask(request("/gate", "k")).await;
    assert!(again.is_replayed());
    assert_eq!((again.status, &again.body[..], shop.calls()), (200, &b"receipt 1"[..], 1));
}

on_each!(a_response_that_cannot_be_stored_is_given_where_failing_open_was_chosen);
async fn a_response_that_cannot_be_stored_is_given_where_failing_open_was_chosen(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let builder = builder(&broker.client).broker_timeout(ENOUGH);
    let shop = Shop::open(builder.on_unavailable(OnUnavailable::Open));
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    broker.stop().await;
    shop.counter.gate.add_permits(1);
    let first = in_time(first).await.unwrap();
    assert_eq!((first.status, &first.body[..]), (200, &b"receipt 1"[..]));
    assert_eq!(first.outcome, Some(Outcome::Unprotected));
}

on_each!(a_key_is_released_when_the_broker_is_back);
async fn a_key_is_released_when_the_broker_is_back(partitions: u16) {
    let mut broker = TestQueue::open(partitions, "http", "{}").await;
    let client = Client::builder(&broker.url()).timeout(PATIENCE).connect().unwrap();
    let releases = Policy::new(|_, _| Remember::Release);
    let builder = builder(&client).policy(releases).lease(LONG);
    let shop = Shop::open(builder.broker_timeout(ENOUGH));
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    broker.stop().await;
    shop.counter.gate.add_permits(1);
    let first = in_time(first).await.unwrap();
    assert_eq!((first.status, &first.body[..]), (200, &b"receipt 1"[..]), "nobody waits for it");
    assert_eq!(shop.idempotency.running(), 1, "it is still being released");
    broker.start_again().await;
    assert!(shop.idempotency.drained(PATIENCE).await);
    assert_eq!(shop.events(Event::Settled(Settlement::Released)), 1);
    assert_eq!(broker.stats().await.leased, 0);
}

on_each!(a_key_that_is_claimed_after_its_request_was_answered_is_given_back);
async fn a_key_that_is_claimed_after_its_request_was_answered_is_given_back(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let link = broker.link().await;
    let shop = Shop::open(builder(&link.client()).lease(LONG).broker_timeout(ENOUGH));
    assert_eq!(shop.ask(request("/status/200", "before")).await.status, 200);
    link.hold_answers();
    let asking = shop.asking(request("/status/200", "k"));
    eventually("the claim to be granted", async || broker.stats().await.leased == 1).await;
    let told = in_time(asking).await.unwrap();
    assert_eq!((told.status, told.code().as_str(), shop.calls()), (503, "unavailable", 1));
    link.restore();
    eventually("the key to be free", async || broker.stats().await.leased == 0).await;
}
