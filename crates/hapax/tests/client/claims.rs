//! Claims, on the stream and, with a broker that has none, by calls.

use std::ops::Deref;
use std::time::Duration;

use hapax_client::{Claim, Code, Done, Held, Queue, Settle, Settled};

use crate::leases::extended;
use crate::old::OldBroker;
use hapax_testing::{Link, PATIENCE, TestQueue, in_time};

/// For a lease that ends within a test, and that a busy machine can extend in time.
const SHORT: Duration = Duration::from_secs(10);

/// The way of claims and settles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Stream,
    Calls,
}

/// Makes a test of each way on one partition and on four.
macro_rules! both_ways {
    ($test:ident) => {
        mod $test {
            use super::Way;

            #[tokio::test]
            async fn on_a_stream_and_one_partition() {
                super::$test(1, Way::Stream).await;
            }

            #[tokio::test]
            async fn on_a_stream_and_four_partitions() {
                super::$test(4, Way::Stream).await;
            }

            #[tokio::test]
            async fn by_calls_on_one_partition() {
                super::$test(1, Way::Calls).await;
            }

            #[tokio::test]
            async fn by_calls_on_four_partitions() {
                super::$test(4, Way::Calls).await;
            }
        }
    };
}

/// A broker with one queue, and a client that claims in one way.
struct Claims {
    broker: TestQueue,
    old: Option<OldBroker>,
}

impl Claims {
    async fn open(partitions: u16, way: Way, config_json: &str) -> Self {
        let broker = TestQueue::open(partitions, "orders", config_json).await;
        let old = match way {
            Way::Stream => None,
            Way::Calls => Some(OldBroker::before(broker.address()).await),
        };
        Self { broker, old }
    }

    fn queue(&self) -> Queue {
        match &self.old {
            Some(old) => old.client.queue("orders"),
            None => self.broker.queue(),
        }
    }
}

impl Deref for Claims {
    type Target = TestQueue;

    fn deref(&self) -> &TestQueue {
        &self.broker
    }
}

async fn fresh(broker: &Claims, key: &str) -> Held {
    fresh_for(broker, key, SHORT).await
}

async fn fresh_for(broker: &Claims, key: &str, lease: Duration) -> Held {
    let request = broker.queue().claim(key).body("17 euro").lease(lease);
    match request.take().await.unwrap() {
        Claim::Fresh(held) => held,
        other => panic!("not fresh: {other:?}"),
    }
}

both_ways!(a_claim_is_fresh_once_and_answers_with_its_result_then);
async fn a_claim_is_fresh_once_and_answers_with_its_result_then(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    let claim = || broker.queue().claim("charge-7").body("17 euro");
    let held = fresh(&broker, "charge-7").await;
    assert!(matches!(claim().take().await.unwrap(), Claim::InFlight(_)));
    let conflict = claim().body("18 euro").take().await.unwrap_err();
    assert_eq!(conflict.code(), Code::Conflict);

    let waiting = tokio::spawn(claim().wait(PATIENCE).take());
    assert!(held.complete("charged").await.unwrap().is_ok());
    let Claim::Done(answer) = in_time(waiting).await.unwrap().unwrap() else { panic!() };
    assert_eq!(answer.result().unwrap().text(), Some("charged"));
}

both_ways!(a_held_claim_is_extended_by_itself_for_longer_than_its_lease);
async fn a_held_claim_is_extended_by_itself_for_longer_than_its_lease(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    let held = fresh(&broker, "k").await;
    extended(&broker, "k", 4).await;
    assert!(!held.is_lost());
    assert!(held.complete("done").await.unwrap().is_ok());
}

both_ways!(a_released_key_is_fresh_again_with_what_was_saved);
async fn a_released_key_is_fresh_again_with_what_was_saved(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    let held = fresh(&broker, "k").await;
    held.save("charged", "17").await.unwrap();
    let fence = held.fence();
    assert!(held.release().await.unwrap().is_ok());
    let again = fresh(&broker, "k").await;
    assert!(again.fence() > fence);
    assert_eq!(&again.recovery_point("charged").unwrap()[..], b"17");
}

both_ways!(a_dropped_claim_frees_its_key_when_its_lease_is_over);
async fn a_dropped_claim_frees_its_key_when_its_lease_is_over(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    drop(fresh(&broker, "k").await);
    let next = broker.queue().claim("k").body("17 euro").wait(PATIENCE).take();
    assert!(matches!(in_time(next).await.unwrap(), Claim::Fresh(_)));
}

both_ways!(a_claim_whose_queue_was_deleted_is_lost_and_says_so);
async fn a_claim_whose_queue_was_deleted_is_lost_and_says_so(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    let held = fresh(&broker, "k").await;
    let lost = held.lost();
    broker.admin.delete_queue("orders").await.unwrap();
    in_time(lost).await;
    assert!(held.is_lost());
    assert_eq!(held.save("a", "b").await.unwrap_err().code(), Code::LeaseLost);
    assert!(matches!(held.complete("late").await.unwrap(), Settled::LeaseLost { .. }));
}

both_ways!(a_claim_whose_answer_is_lost_gets_the_same_lease_again);
async fn a_claim_whose_answer_is_lost_gets_the_same_lease_again(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, r#"{"on_lost":"park"}"#).await;
    let link = match &broker.old {
        Some(old) => Link::to(old.address).await,
        None => broker.link().await,
    };
    let client = link.client();
    let claim = |key: &str| client.queue("orders").claim(key).body("17 euro");
    let Claim::Fresh(first) = claim("before").take().await.unwrap() else { panic!() };
    drop(first);
    link.lose_answers();
    let taking = tokio::spawn(claim("k").lease(PATIENCE).take());
    let taken =
        async { while broker.admin.key(broker.named("k"), Duration::ZERO).await.is_err() {} };
    in_time(taken).await;
    link.cut();
    link.restore();
    let Claim::Fresh(held) = in_time(taking).await.unwrap().unwrap() else {
        panic!("it met its own claim")
    };
    held.begin().await.unwrap();
    assert!(held.complete("charged").await.unwrap().is_ok());
    assert_eq!(broker.key("k").await.attempts, 1, "taken once");
}

both_ways!(a_claim_is_parked_only_where_its_holder_has_begun);
async fn a_claim_is_parked_only_where_its_holder_has_begun(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, r#"{"on_lost":"park"}"#).await;
    drop(fresh(&broker, "idle").await);
    let begun = fresh(&broker, "begun").await;
    begun.begin().await.unwrap();
    drop(begun);
    let wait = |key: &str| broker.queue().claim(key).body("17 euro").wait(PATIENCE).take();
    assert!(matches!(in_time(wait("idle")).await.unwrap(), Claim::Fresh(_)), "nothing was done");
    assert!(matches!(in_time(wait("begun")).await.unwrap(), Claim::Parked(_)));
}

both_ways!(a_longer_extension_of_a_claim_is_not_taken_back);
async fn a_longer_extension_of_a_claim_is_not_taken_back(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    let held = fresh(&broker, "k").await;
    assert_eq!(held.lease_length(), SHORT);
    held.extend(Some(Duration::from_secs(600))).await.unwrap();
    let asked = broker.key("k").await.deadline_ms.unwrap();
    // For longer than its own lease, in which it extends itself more than once.
    let start = std::time::Instant::now();
    while start.elapsed() < held.lease_length() + Duration::from_secs(1) {
        let deadline = broker.key("k").await.deadline_ms.unwrap();
        // Of ten minutes; two calls are not equally long on their way.
        assert!(deadline + 60_000 >= asked, "{} ms were taken back", asked - deadline);
    }
    assert!(held.complete("done").await.unwrap().is_ok());
}

both_ways!(what_no_frame_takes_is_refused_at_once_and_harms_nothing_else);
/// Larger than what a stream takes, than what the broker takes, and than what the client sends.
async fn what_no_frame_takes_is_refused_at_once_and_harms_nothing_else(partitions: u16, way: Way) {
    let broker = Claims::open(partitions, way, "{}").await;
    let held = fresh_for(&broker, "k", Duration::from_secs(3_600)).await;
    for mebibytes in [17, 33, 65] {
        let huge = bytes::Bytes::from(vec![b'x'; mebibytes << 20]);
        let result = Settle::Done(Done::new().result(huge.clone()));
        let mut refused = vec![
            in_time(held.settle(result)).await.unwrap_err(),
            in_time(held.save("point", huge.clone())).await.unwrap_err(),
        ];
        // The body of a claim is not stored: it has to fit into a frame, and no more.
        let claimed = in_time(broker.queue().claim("huge").body(huge).take()).await;
        match claimed {
            Ok(_) => assert_eq!(mebibytes, 17),
            Err(error) => refused.push(error),
        }
        for error in refused {
            assert_eq!(error.code(), Code::TooLarge, "{mebibytes} MiB: {error}");
            assert!(!error.is_retryable(), "{mebibytes} MiB: {error}");
        }
    }
    assert!(held.complete("charged").await.unwrap().is_ok(), "it is still held");
}
