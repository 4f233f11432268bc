//! One key, one call: however many ask at once, hang up, come late, or lose their lease.

use std::time::Duration;

use hapax_idempotency::{Event, Outcome, Settlement};
use hapax_wire::proto::State;

use crate::shop::{BINARY, Shop, builder, lose_everything, open_shop, patient, request};
use hapax_testing::{PATIENCE, TestQueue, in_time};

on_each!(many_identical_requests_at_once_are_one_call);
async fn many_identical_requests_at_once_are_one_call(partitions: u16) {
    const COUNT: usize = 32;
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let asking: Vec<_> = (0..COUNT).map(|_| shop.asking(patient("/charges", "k"))).collect();
    let mut replayed = 0;
    for told in asking {
        let told = told.await.unwrap();
        assert_eq!((told.status, &told.body[BINARY.len()..]), (201, &b"1"[..]));
        replayed += usize::from(told.is_replayed());
    }
    assert_eq!((shop.calls(), replayed), (1, COUNT - 1));
}

on_each!(a_replay_is_the_first_response_byte_for_byte_without_cookies_and_dates);
async fn a_replay_is_the_first_response_byte_for_byte_without_cookies_and_dates(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.ask(request("/charges", "k")).await;
    assert_eq!((first.status, first.outcome), (201, Some(Outcome::Fresh)));
    assert!(!first.is_replayed());
    assert_eq!(first.headers["set-cookie"], "session=1");
    assert!(first.headers.contains_key("date"));

    // Another process of the same service has nothing but the broker's memory.
    let second = open_shop(&broker).ask(request("/charges", "k")).await;
    assert!(second.is_replayed());
    assert_eq!(second.outcome, Some(Outcome::Replayed));
    assert_eq!((second.status, &second.body), (first.status, &first.body));
    assert_eq!(second.body, [&BINARY[..], b"1"].concat());
    let links: Vec<_> = second.headers.get_all("link").iter().collect();
    assert_eq!(links, ["</a>; rel=prev", "</b>; rel=next"]);
    let mut expected = first.headers.clone();
    for never in ["set-cookie", "date", "content-length"] {
        expected.remove(never);
    }
    expected.insert("idempotency-replayed", "true".parse().unwrap());
    let mut headers = second.headers;
    headers.remove("content-length");
    assert_eq!(headers, expected);
    assert_eq!(shop.calls(), 1);
}

on_each!(a_retry_that_comes_too_early_is_told_so_or_waits);
async fn a_retry_that_comes_too_early_is_told_so_or_waits(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    let early = shop.ask(request("/gate", "k")).await;
    assert_eq!((early.status, early.code().as_str()), (409, "in_flight"));
    assert_eq!(early.headers["retry-after"], "1");

    let waiting = shop.asking(patient("/gate", "k"));
    let impatient = {
        let mut request = request("/gate", "k");
        request.headers_mut().insert("prefer", "wait=1".parse().unwrap());
        shop.ask(request).await
    };
    assert_eq!((impatient.status, impatient.code().as_str()), (409, "in_flight"));
    assert_eq!(impatient.headers["preference-applied"], "wait=1");
    shop.counter.gate.add_permits(1);
    let (first, waited) = (first.await.unwrap(), waiting.await.unwrap());
    assert_eq!((first.status, &first.body[..]), (200, &b"receipt 1"[..]));
    assert!(waited.is_replayed());
    assert_eq!(waited.headers["preference-applied"], "wait=30");
    assert_eq!((waited.body, shop.calls()), (first.body, 1));
}

on_each!(a_client_that_hangs_up_leaves_its_work_recorded);
async fn a_client_that_hangs_up_leaves_its_work_recorded(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled(), "nobody waits any more");
    assert_eq!(shop.idempotency.running(), 1, "but the work goes on");
    shop.counter.gate.add_permits(1);
    assert!(shop.idempotency.drained(PATIENCE).await);
    let again = shop.ask(request("/gate", "k")).await;
    assert!(again.is_replayed());
    assert_eq!((&again.body[..], shop.calls()), (&b"receipt 1"[..], 1));
}

on_each!(a_handler_may_take_longer_than_the_lease);
async fn a_handler_may_take_longer_than_the_lease(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).lease(Duration::from_secs(10)));
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    let claim_key = shop.claim_key();
    let mut deadlines = std::collections::BTreeSet::new();
    let extended = async {
        while deadlines.len() < 4 {
            deadlines.extend(broker.key(&claim_key).await.deadline_ms);
            tokio::task::yield_now().await;
        }
    };
    in_time(extended).await;
    shop.counter.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    assert!(shop.ask(request("/gate", "k")).await.is_replayed());
    assert_eq!(shop.calls(), 1);
}

/// The service dies between its claim and its completion: all that it ran on is gone.
async fn crash(broker: &TestQueue, lease: Duration) -> String {
    let address = broker.client.address().to_owned();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let shop = runtime.block_on(async {
            let client = hapax_client::Client::connect(&address).unwrap();
            let builder = hapax_idempotency::Idempotency::builder(client.queue("http"));
            let shop =
                Shop::open(builder.required("POST /twice").broker_timeout(PATIENCE).lease(lease));
            drop(shop.asking(request("/twice", "k")));
            shop.called(1).await;
            shop
        });
        runtime.shutdown_background();
        let _ = sender.send(shop.claim_key());
    });
    let claim_key = in_time(receiver).await.unwrap();
    died.join().unwrap();
    claim_key
}

on_each!(a_service_that_dies_is_called_again_when_its_lease_is_over_and_not_before);
async fn a_service_that_dies_is_called_again_when_its_lease_is_over_and_not_before(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let claim_key = crash(&broker, Duration::from_secs(12)).await;
    let shop = open_shop(&broker);
    let early = shop.ask(request("/twice", "k")).await;
    assert_eq!((early.status, early.code().as_str(), shop.calls()), (409, "in_flight", 0));
    shop.counter.gate.add_permits(1);
    let told = shop.ask(patient("/twice", "k")).await;
    assert_eq!((told.status, told.is_replayed(), shop.calls()), (200, false, 1));
    assert_eq!(shop.claim_key(), claim_key, "the same key for whoever is called by it");
}

on_each!(a_service_that_dies_is_not_called_again_where_the_queue_parks);
async fn a_service_that_dies_is_not_called_again_where_the_queue_parks(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", r#"{"on_lost":"park"}"#).await;
    let claim_key = crash(&broker, Duration::from_secs(6)).await;
    let parked = broker.admin.key(broker.named(&claim_key), PATIENCE).await.unwrap();
    assert_eq!(parked.state(), State::Parked);
    let shop = open_shop(&broker);
    let told = shop.ask(patient("/twice", "k")).await;
    assert_eq!((told.status, told.code().as_str(), shop.calls()), (409, "in_doubt", 0));
    let document: serde_json::Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!(document["claim_key"], claim_key);

    // Somebody asks the bank, and says what happened.
    let result = hapax_wire::proto::Blob {
        body: r#"{"charged":17}"#.into(),
        content_type: "application/json".to_owned(),
    };
    let done = hapax_wire::proto::ResolveDone { result: Some(result) };
    let done = hapax_wire::proto::resolve_request::Resolution::Done(done);
    broker.admin.resolve_key(broker.named(&claim_key), done).await.unwrap();
    let told = shop.ask(request("/twice", "k")).await;
    assert!(told.is_replayed());
    assert_eq!((told.status, &told.body[..]), (200, &br#"{"charged":17}"#[..]));
    assert_eq!(told.headers["content-type"], "application/json");
    assert_eq!(shop.calls(), 0);
}

on_each!(a_claim_that_was_not_begun_is_free_when_its_lease_is_over_also_where_the_queue_parks);
/// A process that dies between its claim and its handler has done nothing.
async fn a_claim_that_was_not_begun_is_free_when_its_lease_is_over_also_where_the_queue_parks(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "http", r#"{"on_lost":"park"}"#).await;
    let shop = open_shop(&broker);
    // Its key is released; now it is known.
    assert_eq!(shop.ask(request("/status/500", "k")).await.status, 500);
    let claim_key = shop.claim_key();
    let http = broker.client.queue("http");
    let claim = http.claim(&claim_key).lease(Duration::from_millis(500)).take().await.unwrap();
    assert!(matches!(claim, hapax_client::Claim::Fresh(_)), "{claim:?}");
    drop(claim);
    let ended = broker.admin.key(broker.named(&claim_key), PATIENCE).await.map(|key| key.state());
    assert_ne!(ended.ok(), Some(State::Parked));
    assert_eq!(broker.stats().await.parked, 0);
    let told = shop.ask(request("/status/500", "k")).await;
    assert_eq!((told.status, shop.calls()), (500, 2), "it is a first request");
}

on_each!(a_completion_that_lost_its_lease_gives_way_to_the_one_that_was_stored);
async fn a_completion_that_lost_its_lease_gives_way_to_the_one_that_was_stored(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.asking(request("/twice", "k"));
    shop.called(1).await;
    lose_everything(&broker).await;
    let second = shop.ask(request("/twice", "k")).await;
    assert_eq!(&second.body[..], b"receipt 2");
    shop.counter.gate.add_permits(1);
    let first = first.await.unwrap();
    assert!(first.is_replayed());
    assert_eq!(first.outcome, Some(Outcome::LeaseLost));
    assert_eq!(first.body, second.body, "everybody gets the same answer");
    assert_eq!(shop.ask(request("/twice", "k")).await.body, second.body);
    assert_eq!(shop.events(Event::Settled(Settlement::Lost)), 1);
}

on_each!(a_completion_that_lost_its_lease_is_discarded_while_another_is_in_progress);
async fn a_completion_that_lost_its_lease_is_discarded_while_another_is_in_progress(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    lose_everything(&broker).await;
    let other = open_shop(&broker);
    let second = other.asking(request("/gate", "k"));
    other.called(1).await;
    shop.counter.gate.add_permits(1);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.code().as_str()), (409, "lease_lost"));
    other.counter.gate.add_permits(1);
    assert_eq!(second.await.unwrap().status, 200);
    let again = shop.ask(request("/gate", "k")).await;
    assert!(again.is_replayed());
}

on_each!(a_late_completion_is_stored_where_nobody_has_the_key);
async fn a_late_completion_is_stored_where_nobody_has_the_key(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.asking(request("/gate", "k"));
    shop.called(1).await;
    lose_everything(&broker).await;
    shop.counter.gate.add_permits(1);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.is_replayed()), (200, false));
    let again = shop.ask(request("/gate", "k")).await;
    assert!(again.is_replayed());
    assert_eq!((again.body, shop.calls()), (first.body, 1));
}

on_each!(the_next_attempt_goes_on_from_what_was_saved);
async fn the_next_attempt_goes_on_from_what_was_saved(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = open_shop(&broker);
    let first = shop.ask(request("/resumed", "k")).await;
    assert_eq!((first.status, first.is_replayed()), (500, false));
    let second = shop.ask(request("/resumed", "k")).await;
    assert_eq!((second.status, &second.body[..]), (200, &b"charged in call 1 by call 2"[..]));
    assert!(shop.ask(request("/resumed", "k")).await.is_replayed());
}
