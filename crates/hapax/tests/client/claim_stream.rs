//! The stream that the claims of a client share: connections that break, callers that go away,
//! brokers that stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_client::{Claim, Code, Held, Queue};
use hapax_wire::proto;

use crate::old::OldBroker;
use hapax_testing::{PATIENCE, TestQueue, eventually, in_time};

/// A lease that no test outlives: what is free before was released.
const LONG: Duration = Duration::from_secs(3_600);

async fn fresh(queue: &Queue, key: &str) -> Held {
    match in_time(queue.claim(key).lease(LONG).take()).await.unwrap() {
        Claim::Fresh(held) => held,
        other => panic!("not fresh: {other:?}"),
    }
}

/// A claim that waits at the broker, known by the duplicate that is counted of it.
async fn waits(broker: &TestQueue, queue: &Queue, key: &'static str) -> Waiter {
    let before = broker.key(key).await.duplicates;
    let waiting = tokio::spawn(queue.claim(key).lease(LONG).wait(PATIENCE).take());
    eventually("a claim to wait", async || broker.key(key).await.duplicates > before).await;
    waiting
}

type Waiter = tokio::task::JoinHandle<Result<Claim, hapax_client::Error>>;

on_each!(claims_over_a_breaking_wire_are_taken_and_completed_once);
async fn claims_over_a_breaking_wire_are_taken_and_completed_once(partitions: u16) {
    const CALLERS: u64 = 16;
    const EACH: u64 = 100;
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let link = Arc::new(broker.link().await);
    let queue = link.client().queue("orders");
    let done = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (queue, done) = (queue.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                for number in 0..EACH {
                    let key = format!("k{caller}-{number}");
                    let held = fresh(&queue, &key).await;
                    held.begin().await.unwrap();
                    assert!(held.complete(key.clone()).await.unwrap().is_ok());
                    let again = queue.claim(&key).take().await.unwrap();
                    let Claim::Done(answer) = again else { panic!("{again:?}") };
                    assert_eq!(answer.result().unwrap().text(), Some(&*key));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut cuts = 0;
    while done.load(Ordering::Relaxed) < CALLERS * EACH && cuts < 20 {
        let next = (cuts + 1) * CALLERS * EACH / 30;
        eventually("more to be done", async || done.load(Ordering::Relaxed) >= next).await;
        cuts += u64::from(link.cut());
    }
    for caller in callers {
        in_time(caller).await.unwrap();
    }
    assert!(cuts >= 5, "the link broke {cuts} times only");
    let stats = broker.stats().await;
    assert_eq!((stats.done_total, stats.leased), (CALLERS * EACH, 0));
}

on_each!(a_claim_that_waits_over_a_broken_connection_goes_on_waiting);
async fn a_claim_that_waits_over_a_broken_connection_goes_on_waiting(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let link = broker.link().await;
    let queue = link.client().queue("orders");
    let held = fresh(&broker.queue(), "k").await;
    let waiting = waits(&broker, &queue, "k").await;
    let before = broker.key("k").await.duplicates;
    assert!(link.cut());
    eventually("it to ask again", async || broker.key("k").await.duplicates > before).await;
    held.complete("done").await.unwrap();
    assert!(matches!(in_time(waiting).await.unwrap().unwrap(), Claim::Done(_)));
}

on_each!(a_broker_that_restarts_is_waited_for_by_holders_and_by_those_who_wait);
async fn a_broker_that_restarts_is_waited_for_by_holders_and_by_those_who_wait(partitions: u16) {
    let mut broker = TestQueue::open(partitions, "orders", "{}").await;
    let queue = broker.queue();
    let held = fresh(&queue, "k").await;
    held.begin().await.unwrap();
    let waiting = waits(&broker, &queue, "k").await;
    broker.stop().await;
    let completing = tokio::spawn(held.complete("done"));
    broker.start_again().await;
    assert!(in_time(completing).await.unwrap().unwrap().is_ok());
    assert!(matches!(in_time(waiting).await.unwrap().unwrap(), Claim::Done(_)));
}

on_each!(a_caller_that_goes_away_while_it_waits_takes_nothing);
async fn a_caller_that_goes_away_while_it_waits_takes_nothing(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let queue = broker.queue();
    let held = fresh(&queue, "k").await;
    let waiting = waits(&broker, &queue, "k").await;
    waiting.abort();
    assert!(in_time(waiting).await.unwrap_err().is_cancelled());
    // Its leaving is on the stream before the release: both take the same way.
    assert!(held.release().await.unwrap().is_ok());
    let free = async || matches!(queue.claim("k").take().await.unwrap(), Claim::Fresh(_));
    eventually("the key to be free", free).await;
}

on_each!(a_claim_that_is_granted_to_a_caller_who_has_gone_is_released);
async fn a_claim_that_is_granted_to_a_caller_who_has_gone_is_released(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"on_lost":"park"}"#).await;
    let link = broker.link().await;
    let queue = link.client().queue("orders");
    fresh(&queue, "before").await.release().await.unwrap();
    link.hold_answers();
    let taking = tokio::spawn(queue.claim("k").lease(LONG).take());
    let named = || broker.admin.key(broker.named("k"), Duration::ZERO);
    eventually("the claim to be granted", async || named().await.is_ok()).await;
    taking.abort();
    assert!(in_time(taking).await.unwrap_err().is_cancelled());
    link.restore();
    let free = async || matches!(broker.queue().claim("k").take().await.unwrap(), Claim::Fresh(_));
    eventually("the key to be free", free).await;
}

on_each!(a_claim_of_a_caller_who_went_while_the_connection_broke_is_released);
async fn a_claim_of_a_caller_who_went_while_the_connection_broke_is_released(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let link = broker.link().await;
    let queue = link.client().queue("orders");
    fresh(&queue, "before").await.release().await.unwrap();
    link.lose_answers();
    let taking = tokio::spawn(queue.claim("k").lease(LONG).take());
    let named = || broker.admin.key(broker.named("k"), Duration::ZERO);
    eventually("the claim to be granted", async || named().await.is_ok()).await;
    taking.abort();
    assert!(in_time(taking).await.unwrap_err().is_cancelled());
    assert!(link.cut());
    link.restore();
    let free = async || matches!(broker.queue().claim("k").take().await.unwrap(), Claim::Fresh(_));
    eventually("the key to be free", free).await;
}

on_each!(thousands_that_wait_do_not_keep_other_claims_waiting);
async fn thousands_that_wait_do_not_keep_other_claims_waiting(partitions: u16) {
    const COUNT: usize = 6_000;
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let queue = broker.queue();
    let held = fresh(&queue, "k").await;
    let waiting: Vec<_> =
        (0..COUNT).map(|_| tokio::spawn(queue.claim("k").wait(PATIENCE).take())).collect();
    eventually("most to wait", async || broker.key("k").await.duplicates >= 4_096).await;
    fresh(&queue, "now").await;
    let patient = queue.claim("soon").wait(PATIENCE).take();
    assert!(matches!(in_time(patient).await.unwrap(), Claim::Fresh(_)));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    // If its answer is lost, it is repeated, and then one of those that waited may have the key.
    in_time(held.release()).await.unwrap();
}

on_each!(thousands_that_wait_do_not_keep_the_holder_from_ending);
/// More than the client has on its way at once.
async fn thousands_that_wait_do_not_keep_the_holder_from_ending(partitions: u16) {
    const COUNT: usize = 6_000;
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let queue = broker.queue();
    let held = fresh(&queue, "k").await;
    let waiting: Vec<_> =
        (0..COUNT).map(|_| tokio::spawn(queue.claim("k").wait(PATIENCE).take())).collect();
    eventually("most to wait", async || broker.key("k").await.duplicates >= 4_096).await;
    let other = broker.queue();
    held.save("point", "data").await.unwrap();
    assert!(in_time(held.complete("done")).await.unwrap().is_ok());
    for one in waiting {
        assert!(matches!(in_time(one).await.unwrap().unwrap(), Claim::Done(_)));
    }
    assert!(matches!(other.claim("k").take().await.unwrap(), Claim::Done(_)));
}

on_each!(claims_of_several_queues_share_the_stream);
async fn claims_of_several_queues_share_the_stream(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    broker.admin.put_queue("refunds", "{}", None).await.unwrap();
    let queues = ["orders", "refunds", "absent"].map(|name| broker.client.queue(name));
    let claims = (0..300).map(|number: usize| {
        let queue = queues[number % 3].clone();
        tokio::spawn(async move {
            let key = format!("k{}", number / 3);
            match queue.claim(&key).take().await {
                Ok(Claim::Fresh(held)) => held.complete(queue.name().to_owned()).await.map(drop),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error),
            }
        })
    });
    let claims: Vec<_> = claims.collect();
    for (number, claim) in claims.into_iter().enumerate() {
        let ended = in_time(claim).await.unwrap();
        match number % 3 {
            2 => assert_eq!(ended.unwrap_err().code(), hapax_client::Code::NoSuchQueue),
            _ => ended.unwrap(),
        }
    }
    for queue in &queues[..2] {
        let Claim::Done(answer) = queue.claim("k7").take().await.unwrap() else { panic!() };
        assert_eq!(answer.result().unwrap().text(), Some(queue.name()));
    }
}

#[tokio::test]
async fn a_broker_without_the_stream_is_asked_for_it_once() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let old = OldBroker::before(broker.address()).await;
    let queue = old.client.queue("orders");
    let many: Vec<_> = (0..100)
        .map(|number| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let held = fresh(&queue, &format!("k{number}")).await;
                held.complete("done").await.unwrap().is_ok()
            })
        })
        .collect();
    for one in many {
        assert!(in_time(one).await.unwrap());
    }
    assert_eq!(old.asked(), 1);
    let waited: proto::QueueStats = broker.stats().await;
    assert_eq!(waited.done_total, 100);
}

#[tokio::test]
async fn a_stream_that_is_refused_for_another_reason_is_asked_for_again() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let front = OldBroker::refusing(broker.address(), "16", "unauthorized").await;
    for asked in 1..=3 {
        let refused = front.client.queue("orders").claim("k").take().await.unwrap_err();
        assert_eq!((refused.code(), front.asked()), (Code::Unauthorized, asked));
    }
}

#[tokio::test]
async fn a_claim_waits_longer_than_the_broker_does_at_once() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let old = OldBroker::before(broker.address()).await;
    let held = fresh(&broker.queue(), "k").await;
    let waiting = waits(&broker, &old.client.queue("orders"), "k").await;
    let first = broker.key("k").await.duplicates;
    eventually("it to ask again", async || broker.key("k").await.duplicates > first + 1).await;
    held.complete("done").await.unwrap();
    assert!(matches!(in_time(waiting).await.unwrap().unwrap(), Claim::Done(_)));
}

#[tokio::test]
async fn results_too_large_for_the_stream_together_are_all_found() {
    const COUNT: usize = 24;
    let broker = TestQueue::open(1, "orders", "{}").await;
    let queue = broker.queue();
    let large = "r".repeat(1_000_000);
    let held = fresh(&queue, "k").await;
    assert!(in_time(held.complete(large.clone())).await.unwrap().is_ok());
    let claims: Vec<_> = (0..COUNT).map(|_| tokio::spawn(queue.claim("k").take())).collect();
    for claim in claims {
        let Claim::Done(answer) = in_time(claim).await.unwrap().unwrap() else { panic!() };
        assert!(answer.result().unwrap().text() == Some(&*large));
    }
}
