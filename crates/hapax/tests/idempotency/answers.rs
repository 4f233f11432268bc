//! Which response is remembered, and what those get who ask in a wrong way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use hapax_idempotency::{Event, Headers, Outcome, Policy, Remember, Settlement};
use hapax_wire::proto::State;
use http::{Request, Response};
use tower::{Layer, ServiceExt};

use crate::shop::{Shop, builder, open_shop, request, request_with};
use hapax_testing::TestQueue;

on_each!(what_is_decided_is_remembered_and_what_is_not_is_tried_again);
async fn what_is_decided_is_remembered_and_what_is_not_is_tried_again(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    for (status, is_remembered) in [
        (200, true),
        (201, true),
        (204, true),
        (302, true),
        (400, true),
        (401, true),
        (403, true),
        (404, true),
        (409, true),
        (410, true),
        (422, true),
        (408, false),
        (425, false),
        (429, false),
        (500, false),
        (502, false),
        (503, false),
        (504, false),
    ] {
        let path = format!("/status/{status}");
        let key = format!("k-{status}");
        let before = shop.calls();
        let first = shop.ask(request(&path, &key)).await;
        let other = shop.ask(request(&path, &format!("other-{key}"))).await;
        assert_eq!((first.status, other.status), (status, status));
        let again = shop.ask(request(&path, &key)).await;
        assert_eq!((again.status, again.is_replayed()), (status, is_remembered), "{status}");
        assert_eq!(shop.calls() - before, if is_remembered { 2 } else { 3 }, "{status}");
    }
    assert_eq!(shop.events(Event::Settled(Settlement::Kept)), 22);
    assert_eq!(shop.events(Event::Settled(Settlement::Released)), 21);
}

on_each!(a_policy_and_a_handler_can_say_otherwise);
async fn a_policy_and_a_handler_can_say_otherwise(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let everything = Policy::new(|_, _| Remember::Keep);
    let shop = Shop::open(builder(&broker.client).policy(everything));
    shop.ask(request("/status/503", "k")).await;
    assert!(shop.ask(request("/status/503", "k")).await.is_replayed());

    let shop = open_shop(&broker);
    let kept = shop.ask(request("/remember/keep", "keep")).await;
    assert_eq!(kept.status, 500);
    assert!(shop.ask(request("/remember/keep", "keep")).await.is_replayed());
    shop.ask(request("/remember/release", "release")).await;
    assert!(!shop.ask(request("/remember/release", "release")).await.is_replayed());

    let before = shop.calls();
    for call in 1..=2 {
        let doubtful = shop.ask(request("/remember/in-doubt", "in-doubt")).await;
        assert_eq!(doubtful.status, 200, "the client gets what the handler says");
        assert_eq!(shop.calls() - before, call, "its queue does not park");
        assert_eq!(shop.events(Event::Settled(Settlement::InDoubt)), call);
    }
}

/// Nobody waits for the end of a lease: it would last for longer than this test does.
const LEASE: Duration = Duration::from_secs(3_600);

on_each!(what_is_in_doubt_is_parked_at_once_where_the_queue_parks);
async fn what_is_in_doubt_is_parked_at_once_where_the_queue_parks(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", r#"{"on_lost":"park"}"#).await;
    for (number, (path, status, why)) in [
        ("/remember/in-doubt", 200, "its handler answered 200 without knowing the outcome"),
        ("/panic", 500, "its handler panicked"),
        ("/broken", 500, "its response was interrupted: the disk is gone"),
    ]
    .into_iter()
    .enumerate()
    {
        let shop = Shop::open(builder(&broker.client).lease(LEASE));
        assert_eq!(shop.ask(request(path, "k")).await.status, status, "{path}");
        let key = broker.key(&shop.claim_key()).await;
        let why = format!("POST {path}: {why}");
        assert_eq!((key.state(), key.error), (State::Parked, why), "{path}");
        let again = shop.ask(request(path, "k")).await;
        assert_eq!((again.status, again.code().as_str()), (409, "in_doubt"), "{path}");
        assert_eq!(shop.calls(), 1, "{path}");
        assert_eq!(shop.events(Event::Settled(Settlement::InDoubt)), 1, "{path}");
        assert_eq!(broker.stats().await.parked, number as u64 + 1);
    }
}

on_each!(a_service_that_fails_without_a_response_leaves_its_key_in_doubt);
async fn a_service_that_fails_without_a_response_leaves_its_key_in_doubt(partitions: u16) {
    for (config, answer, calls) in
        [(r#"{"on_lost":"park"}"#, Ok(409), 1), (r#"{"on_lost":"redeliver"}"#, Err("gone"), 2)]
    {
        let broker = TestQueue::open(partitions, "http", config).await;
        let counter = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&counter);
        let service = builder(&broker.client).lease(LEASE).build().unwrap().layer(
            tower::service_fn(move |_: Request<Body>| {
                counted.fetch_add(1, Ordering::SeqCst);
                std::future::ready(Err::<Response<Body>, _>("gone"))
            }),
        );
        let ask = || service.clone().oneshot(request("/charges", "k"));
        assert_eq!(ask().await.unwrap_err(), "gone", "as the service said");
        let again = ask().await.map(|response| response.status().as_u16());
        assert_eq!((again, counter.load(Ordering::SeqCst)), (answer, calls), "{config}");
    }
}

on_each!(only_the_headers_that_are_listed_are_remembered);
async fn only_the_headers_that_are_listed_are_remembered(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop =
        Shop::open(builder(&broker.client).headers(Headers::only(["Location", "Set-Cookie"])));
    shop.ask(request("/charges", "k")).await;
    let again = shop.ask(request("/charges", "k")).await;
    assert_eq!(again.headers["location"], "/charges/1");
    for absent in ["set-cookie", "link", "content-type", "date"] {
        assert!(!again.headers.contains_key(absent), "{absent}");
    }
}

on_each!(a_handler_that_panics_is_an_error_and_frees_its_key_where_the_queue_does_not_park);
async fn a_handler_that_panics_is_an_error_and_frees_its_key_where_the_queue_does_not_park(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.ask(request("/panic", "k")).await;
    assert_eq!((first.status, first.code().as_str()), (500, "internal"));
    let second = shop.ask(request("/panic", "k")).await;
    assert_eq!((second.status, &second.body[..]), (200, &b"receipt 2"[..]));
}

on_each!(a_key_is_needed_on_a_route_that_requires_it_and_nowhere_else);
async fn a_key_is_needed_on_a_route_that_requires_it_and_nowhere_else(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let without = |method: &str, path: &str| {
        Request::builder().method(method).uri(path).body(Body::from("x")).unwrap()
    };
    let told = shop.ask(without("POST", "/charges")).await;
    assert_eq!((told.status, told.code().as_str()), (400, "missing_key"));
    assert_eq!(told.outcome, Some(Outcome::MissingKey));
    let mut look_alike = without("POST", "/charges");
    look_alike.headers_mut().insert("x-idempotency-key", "k".parse().unwrap());
    let told = shop.ask(look_alike).await;
    assert_eq!(told.code(), "missing_key");
    assert!(String::from_utf8_lossy(&told.body).contains("x-idempotency-key"));
    assert_eq!(shop.calls(), 0);

    for (number, request) in [
        without("PUT", "/optional"),
        without("POST", "/unlisted"),
        request("/unlisted", "k"),
        request("/unlisted", "k"),
        without("POST", "/optional"),
    ]
    .into_iter()
    .enumerate()
    {
        let told = shop.ask(request).await;
        assert_eq!((told.status, told.is_replayed()), (201, false));
        assert_eq!((told.outcome, shop.calls()), (Some(Outcome::Bypassed), number + 1));
    }
    let optional = || {
        let request = Request::put("/optional").header("idempotency-key", "k");
        request.body(Body::from("x")).unwrap()
    };
    shop.ask(optional()).await;
    assert!(shop.ask(optional()).await.is_replayed());
}

on_each!(the_two_forms_of_a_key_are_one_and_what_is_none_is_refused);
async fn the_two_forms_of_a_key_are_one_and_what_is_none_is_refused(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    shop.ask(request("/charges", "order-42")).await;
    assert!(shop.ask(request("/charges", "\"order-42\"")).await.is_replayed());
    let odd = r#""größe, \"quoted\" \\ and all; x=1""#;
    assert_eq!(shop.ask(request("/charges", odd)).await.status, 201);
    assert!(shop.ask(request("/charges", odd)).await.is_replayed());
    let long = "x".repeat(255);
    assert_eq!(shop.ask(request("/charges", &long)).await.status, 201);
    assert!(shop.ask(request("/charges", &long)).await.is_replayed());
    let calls = shop.calls();
    for malformed in ["a b", "a, b", "\"open", "\"a\"b", "\"\"", "\"a\\b\"", &"x".repeat(256)] {
        let told = shop.ask(request("/charges", malformed)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "malformed_key"), "{malformed}");
    }
    let mut two = request("/charges", "a");
    two.headers_mut().append("idempotency-key", "a".parse().unwrap());
    assert_eq!(shop.ask(two).await.code(), "malformed_key");
    assert_eq!(shop.calls(), calls);
}

on_each!(another_request_under_the_same_key_is_a_conflict);
async fn another_request_under_the_same_key_is_a_conflict(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let base = || {
        let mut request = request("/orders/7/pay?currency=eur", "k");
        request.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        request.headers_mut().insert("authorization", "Bearer ada".parse().unwrap());
        request
    };
    assert_eq!(shop.ask(base()).await.status, 201);
    let mut traced = base();
    traced.headers_mut().insert("traceparent", "00-1".parse().unwrap());
    assert!(shop.ask(traced).await.is_replayed());
    let with = |change: fn(&mut Request<Body>)| {
        let mut request = base();
        change(&mut request);
        request
    };
    for other in [
        with(|request| *request.body_mut() = Body::from("18 euro")),
        with(|request| *request.uri_mut() = "/orders/8/pay?currency=eur".parse().unwrap()),
        with(|request| *request.uri_mut() = "/orders/7/pay?currency=usd".parse().unwrap()),
        with(|request| {
            request.headers_mut().insert("content-type", "text/html".parse().unwrap());
        }),
        with(|request| {
            request.headers_mut().insert("authorization", "Bearer eve".parse().unwrap());
        }),
    ] {
        let told = shop.ask(other).await;
        assert_eq!((told.status, told.code().as_str()), (422, "conflict"));
        assert_eq!(told.outcome, Some(Outcome::Conflict));
    }
    assert_eq!(shop.calls(), 1);
    assert!(shop.ask(base()).await.is_replayed());
}

on_each!(a_conflict_is_told_while_the_first_is_in_progress_too);
async fn a_conflict_is_told_while_the_first_is_in_progress_too(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.asking(request_with("/gate", "k", "17 euro"));
    shop.called(1).await;
    let told = shop.ask(request_with("/gate", "k", "18 euro")).await;
    assert_eq!((told.status, told.code().as_str()), (422, "conflict"));
    shop.counter.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
}

on_each!(a_key_older_than_what_is_remembered_is_refused);
async fn a_key_older_than_what_is_remembered_is_refused(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    // February 2022, as a UUIDv7 and as a ULID.
    for old in ["017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "01FWHE4YDGFK1SHH6W1G60EECF"] {
        let told = shop.ask(request("/charges", old)).await;
        assert_eq!((told.status, told.code().as_str(), shop.calls()), (410, "too_old", 0));
    }
    assert_eq!(shop.ask(request("/charges", &hapax_client::new_key())).await.status, 201);
}

on_each!(a_stored_response_is_the_result_of_its_claim);
async fn a_stored_response_is_the_result_of_its_claim(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    shop.ask(request("/status/200", "k")).await;
    let key =
        broker.admin.key(broker.named(&shop.claim_key()), std::time::Duration::ZERO).await.unwrap();
    let result = key.result.unwrap();
    assert_eq!(result.content_type, "application/vnd.hapax.http-response");
    let bytes = b"\x01\x00\x00\xc8\x01\x0ccontent-type\x19text/plain; charset=utf-81";
    assert_eq!(&result.body[..], bytes);
}
