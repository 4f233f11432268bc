//! What is too large: a request is refused, and a response is not forgotten for it.

use axum::body::Body;
use bytes::Bytes;
use hapax_idempotency::{Event, Outcome, Settlement};
use http::Request;

use crate::shop::{Shop, builder, open_shop, request};
use hapax_testing::{PATIENCE, TestQueue};

on_each!(a_request_that_is_too_large_is_refused_before_anything_is_done);
async fn a_request_that_is_too_large_is_refused_before_anything_is_done(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).request_max(10));
    let of =
        |body: Body| Request::post("/charges").header("idempotency-key", "k").body(body).unwrap();
    let announced = of(Body::from("eleven byte"));
    let frames = ["six by", "six by"].map(|frame| Ok::<_, std::io::Error>(Bytes::from(frame)));
    let streamed = of(Body::from_stream(futures_util::stream::iter(frames)));
    let mut liar = of(Body::from("ten bytes!"));
    liar.headers_mut().insert("content-length", "11".parse().unwrap());
    for large in [announced, streamed, liar] {
        let told = shop.ask(large).await;
        assert_eq!((told.status, told.code().as_str()), (413, "too_large"));
    }
    assert_eq!(shop.calls(), 0);
    assert_eq!(broker.stats().await.keys, 0, "no key was taken");
    assert_eq!(shop.ask(of(Body::from("ten bytes!"))).await.status, 201);
}

on_each!(a_request_beyond_the_bound_of_those_under_way_is_refused);
async fn a_request_beyond_the_bound_of_those_under_way_is_refused(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).operations_max(2));
    let first = shop.asking(request("/gate", "a"));
    let gone = shop.asking(request("/gate", "b"));
    shop.called(2).await;
    gone.abort();
    let told = shop.ask(request("/charges", "c")).await;
    assert_eq!((told.status, told.code().as_str()), (503, "unavailable"));
    assert_eq!(told.outcome, Some(Outcome::Overloaded));
    assert_eq!(shop.ask(request("/unlisted", "c")).await.status, 201, "they stand in no way");
    shop.counter.gate.add_permits(2);
    assert_eq!(first.await.unwrap().status, 200);
    assert!(shop.idempotency.drained(PATIENCE).await);
    assert_eq!(shop.ask(request("/charges", "c")).await.status, 201);
}

on_each!(slow_uploads_keep_no_other_request_out);
async fn slow_uploads_keep_no_other_request_out(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    // Room for one body of 16 KiB beyond what each has for itself.
    let builder = builder(&broker.client).operations_max(1).uploads_max(0);
    let shop = Shop::open(builder.request_max(32 << 10));
    let slow = |bytes: usize, key: &str| {
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; bytes].into())]);
        let never = futures_util::stream::pending::<Result<Bytes, _>>();
        let body = Body::from_stream(futures_util::StreamExt::chain(first, never));
        Request::post("/charges").header("idempotency-key", key).body(body).unwrap()
    };
    let whole = |bytes: usize, key: &str| {
        let frames = [vec![b'x'; bytes / 2], vec![b'x'; bytes - bytes / 2]];
        let frames = frames.map(|frame| Ok::<_, std::io::Error>(Bytes::from(frame)));
        let body = Body::from_stream(futures_util::stream::iter(frames));
        Request::post("/charges").header("idempotency-key", key).body(body).unwrap()
    };
    let small: Vec<_> = (0..50).map(|n| shop.asking(slow(1, &format!("slow {n}")))).collect();
    assert_eq!(shop.ask(whole(10, "a")).await.status, 201, "they have no place yet");
    assert_eq!(shop.ask(whole(32 << 10, "b")).await.status, 201, "nor take they room");
    let large = shop.asking(slow((32 << 10) - 1, "large"));
    let refused = hapax_testing::in_time(async {
        loop {
            let told = shop.ask(whole(32 << 10, "c")).await;
            if told.status == 503 {
                break told;
            }
            tokio::task::yield_now().await;
        }
    });
    let refused = refused.await;
    assert_eq!(
        (refused.code().as_str(), refused.outcome),
        ("unavailable", Some(Outcome::Overloaded))
    );
    assert_eq!(shop.ask(whole(10, "d")).await.status, 201, "small ones are not concerned");
    large.abort();
    assert!(large.await.is_err());
    assert_eq!(shop.ask(whole(32 << 10, "e")).await.status, 201, "it gave its room back");
    small.iter().for_each(tokio::task::JoinHandle::abort);
}

on_each!(a_request_that_breaks_off_or_does_not_end_is_refused);
async fn a_request_that_breaks_off_or_does_not_end_is_refused(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop =
        Shop::open(builder(&broker.client).request_timeout(std::time::Duration::from_secs(1)));
    let of =
        |body: Body| Request::post("/charges").header("idempotency-key", "k").body(body).unwrap();
    let broken = [Ok(Bytes::from("half")), Err(std::io::Error::other("gone"))];
    let broken = Body::from_stream(futures_util::stream::iter(broken));
    let told = shop.ask(of(broken)).await;
    assert_eq!((told.status, told.code().as_str()), (400, "invalid"));
    let endless = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
    let told = shop.ask(of(Body::from_stream(endless))).await;
    assert_eq!((told.status, told.code().as_str()), (408, "unavailable"));
    assert_eq!(shop.calls(), 0);
}

on_each!(a_response_that_is_too_large_is_given_once_and_never_leads_to_a_second_effect);
async fn a_response_that_is_too_large_is_given_once_and_never_leads_to_a_second_effect(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).response_max(1_000));
    let fits = shop.ask(request("/large/1000", "k")).await;
    assert_eq!(fits.body.len(), 1_000);
    assert_eq!(shop.ask(request("/large/1000", "k")).await.body, fits.body);

    let first = shop.ask(request("/large/1001", "l")).await;
    assert_eq!((first.status, first.body.len()), (200, 1_001));
    let again = shop.ask(request("/large/1001", "l")).await;
    assert_eq!((again.status, again.code().as_str()), (410, "response_not_kept"));
    assert!(again.is_replayed());
    let document: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
    assert_eq!(document["original_status"], 200);
    assert_eq!(shop.calls(), 2);
    assert_eq!(shop.events(Event::Settled(Settlement::NotKept)), 1);
}

on_each!(a_response_larger_than_any_frame_is_given_once_and_not_kept);
async fn a_response_larger_than_any_frame_is_given_once_and_not_kept(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).response_max(100 << 20));
    for (call, mebibytes) in [(1, 17), (2, 33), (3, 65)] {
        let path = format!("/large/{}", mebibytes << 20);
        let first = shop.ask(request(&path, &path)).await;
        assert_eq!((first.status, first.body.len()), (200, mebibytes << 20));
        let again = shop.ask(request(&path, &path)).await;
        assert_eq!((again.status, again.code().as_str()), (410, "response_not_kept"));
        assert_eq!(shop.calls(), call);
    }
}

on_each!(a_queue_that_takes_less_than_the_layer_keeps_is_told_and_forgets_nothing);
async fn a_queue_that_takes_less_than_the_layer_keeps_is_told_and_forgets_nothing(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", r#"{"max_body_bytes":500}"#).await;
    let shop = open_shop(&broker);
    let (_, wrong) = shop.idempotency.check_queue().await.unwrap();
    assert!(wrong[0].contains("max_body_bytes"), "{wrong:?}");
    let first = shop.ask(request("/large/600", "k")).await;
    assert_eq!((first.status, first.body.len()), (200, 600));
    let again = shop.ask(request("/large/600", "k")).await;
    assert_eq!((again.status, again.code().as_str(), shop.calls()), (410, "response_not_kept", 1));
}

on_each!(a_response_that_breaks_off_leaves_its_key_in_doubt);
async fn a_response_that_breaks_off_leaves_its_key_in_doubt(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", r#"{"on_lost":"park"}"#).await;
    let shop = open_shop(&broker);
    let first = shop.ask(request("/broken", "k")).await;
    assert_eq!((first.status, first.code().as_str()), (500, "in_doubt"));
    let again = shop.ask(request("/broken", "k")).await;
    assert_eq!((again.status, again.code().as_str(), shop.calls()), (409, "in_doubt", 1));
}
