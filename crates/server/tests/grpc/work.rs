//! The Work stream.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use hapax_wire::proto::settle::Verb;
use hapax_wire::proto::{self, SettleKind, State};

use crate::broker::{Broker, code, done, message, messages, named, opening, refusal, settle};
use hapax_testing::{eventually, in_time};

#[tokio::test]
async fn thousands_of_messages_are_delivered_and_settled_once_each() {
    const COUNT: usize = 10_000;
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sends = broker.sends().await;
    for frame in 0..COUNT / 500 {
        sends.say("orders", messages(&format!("{frame}-"), 500)).await;
    }
    let mut works = broker.works("orders", 1_000).await;
    let mut keys = HashSet::new();
    while keys.len() < COUNT {
        let some = works.deliveries(100.min(COUNT - keys.len())).await;
        let settles = some.iter().zip(0..).map(|(one, number)| done(number, one, "ok"));
        works.settle(settles.collect()).await;
        works.credit(some.len() as u32).await;
        keys.extend(some.into_iter().map(|one| one.key));
    }
    let settled = works.settled(COUNT).await;
    assert!(settled.iter().all(|answer| answer.kind() == SettleKind::Ok));
    assert!(settled.iter().all(|answer| answer.state() == State::Done));
    sends.answers(COUNT).await;
    let stats = broker.stats("orders").await;
    assert_eq!((stats.done_total, stats.ready, stats.leased), (COUNT as u64, 0, 0));
}

#[tokio::test]
async fn a_worker_waits_for_messages_and_is_woken_by_them() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut works = broker.works("orders", 10).await;
    for number in 0..5 {
        let key = format!("k{number}");
        broker.send("orders", vec![message(0, &key, "body")]).await;
        assert_eq!(works.deliveries(1).await[0].key, key);
    }
}

#[tokio::test]
async fn the_first_deliveries_of_a_stream_tell_its_tenant_and_whether_keys_are_per_group() {
    for (config, per_group) in [("{}", false), (r#"{"dedup_scope":"group"}"#, true)] {
        let broker = Broker::with_queue("orders", config).await;
        let grouped = messages("k", 2).into_iter();
        let grouped = grouped.map(|one| proto::Message { group: Some("g".to_owned()), ..one });
        broker.send("orders", grouped.collect()).await;
        let mut works = broker.works("orders", 1).await;
        let first = works.next().await.unwrap();
        assert_eq!((&*first.tenant, first.keys_per_group), ("default", per_group));
        works.credit(1).await;
        let second = works.next().await.unwrap();
        assert_eq!((second.deliveries.len(), &*second.tenant, second.lease_ms), (1, "", None));
    }
}

#[tokio::test]
async fn no_more_is_delivered_than_there_is_credit_for() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 100)).await;
    let mut works = broker.works("orders", 7).await;
    let first = works.deliveries(7).await;
    assert_eq!(broker.stats("orders").await.leased, 7);
    works.settle(vec![done(1, &first[0], "")]).await;
    works.settled(1).await;
    assert_eq!(broker.stats("orders").await.leased, 6, "a settle alone gives no credit");
    works.credit(3).await;
    works.deliveries(3).await;
    assert_eq!(broker.stats("orders").await.leased, 9);
}

/// A worker that takes no more than a frame or two, and messages that come with it in one receive.
const LARGE: u64 = 40;

async fn large(broker: &Broker) {
    let body = Bytes::from(vec![b'x'; 50_000]);
    let all = (0..LARGE).map(|number| message(number, &format!("k{number}"), body.clone()));
    broker.send("orders", all.collect()).await;
}

async fn until_leased(broker: &Broker, is_it: impl Fn(u64) -> bool) {
    eventually("leases", async || is_it(broker.stats("orders").await.leased)).await;
}

#[tokio::test]
async fn l11_what_a_worker_did_not_take_before_it_went_is_given_back_uncharged() {
    let broker = Broker::with_queue("orders", r#"{"lease_ms":600000}"#).await;
    large(&broker).await;
    let works = broker.works_narrow("orders", LARGE as u32).await;
    until_leased(&broker, |leased| leased == LARGE).await;
    drop(works);
    until_leased(&broker, |leased| leased < LARGE / 2).await;
    let mut others = broker.works("orders", LARGE as u32).await;
    let given_back = others.deliveries(LARGE as usize / 2).await;
    assert!(given_back.iter().all(|delivery| delivery.attempt == 1), "they never left");
}

#[tokio::test]
async fn l11_what_a_worker_does_not_take_for_long_is_given_back_uncharged() {
    let broker = Broker::with_queue("orders", r#"{"lease_ms":15000}"#).await;
    large(&broker).await;
    let mut works = broker.works_narrow("orders", LARGE as u32).await;
    until_leased(&broker, |leased| leased == LARGE).await;
    until_leased(&broker, |leased| leased < LARGE / 2).await;
    let mut others = broker.works("orders", LARGE as u32 / 2).await;
    let given_back = others.deliveries(LARGE as usize / 2).await;
    assert!(given_back.iter().all(|delivery| delivery.attempt == 1), "they never left");
    assert_eq!(broker.stats("orders").await.lease_lost_total, 0);
    // When it reads on it gets what there is, for the credit of those that it did not get.
    let rest = works.deliveries(LARGE as usize / 2).await;
    assert!(rest.iter().all(|one| given_back.iter().all(|other| other.key != one.key)));
}

#[tokio::test]
async fn a_stream_without_credit_settles_and_delivers_nothing() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 2)).await;
    let delivery = broker.works("orders", 1).await.deliveries(1).await.remove(0);
    let mut works = broker.works("orders", 0).await;
    works.settle(vec![done(5, &delivery, "")]).await;
    let reply = works.next().await.unwrap();
    assert_eq!(reply.settled.len(), 1);
    assert_eq!(reply.deliveries, []);
    assert_eq!(broker.stats("orders").await.ready, 1);
}

#[tokio::test]
async fn two_workers_share_what_there_is() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut workers = [broker.works("orders", 5).await, broker.works("orders", 5).await];
    // Both wait before there is anything: whoever came first is not served alone.
    let mut counts = [0, 0];
    for round in 0..20 {
        broker.send("orders", messages(&format!("{round}-"), 10)).await;
        for (worker, count) in workers.iter_mut().zip(&mut counts) {
            let some = worker.deliveries(5).await;
            let settles = some.iter().zip(0..).map(|(one, number)| done(number, one, ""));
            worker.settle(settles.collect()).await;
            worker.credit(5).await;
            worker.settled(5).await;
            *count += 5;
        }
    }
    assert_eq!(counts, [100, 100]);
    assert_eq!(broker.stats("orders").await.done_total, 200);
}

#[tokio::test]
async fn every_verb_is_answered_in_its_own_way() {
    let broker = Broker::with_queue("orders", r#"{"on_lost":"park"}"#).await;
    broker.put("emails", "{}").await.unwrap();
    broker.send("orders", messages("k", 5)).await;
    let mut works = broker.works("orders", 5).await;
    let all = works.deliveries(5).await;
    let lease = |place: usize| &all[place].lease;
    let saved = proto::Save { name: "charged".to_owned(), body: "17".into() };
    let fail = proto::Fail { error: "no".to_owned(), delay_ms: Some(60_000), dead: false };
    let kill = proto::Fail { error: "never".to_owned(), delay_ms: None, dead: true };
    let emit = proto::Emit {
        queue: "emails".to_owned(),
        name: "receipt".to_owned(),
        body: "thanks".into(),
        ..Default::default()
    };
    let finish = proto::Done { result: None, emits: vec![emit] };
    let settles = vec![
        settle(0, lease(0), Verb::Extend(proto::Extend { lease_ms: Some(50_000) })),
        settle(1, lease(0), Verb::Begin(proto::Begin {})),
        settle(2, lease(0), Verb::Save(saved)),
        settle(3, lease(0), Verb::Done(finish)),
        settle(4, lease(1), Verb::Fail(fail)),
        settle(5, lease(2), Verb::Fail(kill)),
        settle(6, lease(3), Verb::Release(proto::Release {})),
    ];
    works.settle(settles).await;
    let settled = works.settled(7).await;
    assert!(settled.iter().all(|answer| answer.kind() == SettleKind::Ok), "{settled:?}");
    let states: Vec<_> = settled.iter().map(|answer| answer.state()).collect();
    use State::{Dead, Delayed, Done, Leased, Ready};
    assert_eq!(states, [Leased, Leased, Leased, Done, Delayed, Dead, Ready]);
    assert!(settled[0].deadline_ms.unwrap() > all[0].deadline_ms);
    assert!(settled[4].deadline_ms.is_some());

    let parent = broker.key("orders", &all[0].key).await;
    assert_eq!(parent.state(), State::Done);
    let mut emails = broker.works("emails", 1).await;
    let email = emails.deliveries(1).await.remove(0);
    assert_eq!(email.body, "thanks");
    let parent =
        hapax_core::Parent { queue: "orders", group: None, key: &all[0].key, generation: 0 };
    let expected = hapax_core::derive(&parent, "receipt");
    assert_eq!(email.key, expected, "as the documentation says");
}

#[tokio::test]
async fn the_next_attempt_gets_what_the_last_one_saved() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", vec![message(0, "k", "body")]).await;
    let mut works = broker.works("orders", 2).await;
    let first = works.deliveries(1).await.remove(0);
    let save = proto::Save { name: "charged".to_owned(), body: "17".into() };
    let fail = proto::Fail { error: "no".to_owned(), delay_ms: Some(0), dead: false };
    works
        .settle(vec![
            settle(0, &first.lease, Verb::Save(save)),
            settle(1, &first.lease, Verb::Fail(fail)),
        ])
        .await;
    let second = works.deliveries(1).await.remove(0);
    assert_eq!(second.attempt, 2);
    assert_eq!(second.recovery_points["charged"], "17");
    assert!(second.fence > first.fence);
}

#[tokio::test]
async fn a_lost_lease_is_told_and_settles_nothing_any_more() {
    let broker = Broker::with_queue("orders", r#"{"lease_ms":100}"#).await;
    broker.send("orders", vec![message(0, "k", "body")]).await;
    let mut slow = broker.works("orders", 1).await;
    let first = slow.next().await.unwrap();
    assert_eq!(first.lease_ms, Some(100), "a worker knows how long it has");
    let lost = loop {
        let reply = slow.next().await.unwrap();
        if let Some(fence) = reply.lost.first() {
            break *fence;
        }
    };
    assert_eq!(lost, first.deliveries[0].fence);
    broker.put("orders", r#"{"lease_ms":600000}"#).await.unwrap();
    let mut quick = broker.works("orders", 1).await;
    let second = quick.deliveries(1).await.remove(0);
    quick.settle(vec![done(1, &second, "the winner's")]).await;
    quick.settled(1).await;
    slow.settle(vec![done(9, &first.deliveries[0], "too late")]).await;
    let answer = slow.settled(1).await.remove(0);
    assert_eq!((answer.kind(), answer.r#ref), (SettleKind::LeaseLost, 9));
    assert_eq!(answer.result.unwrap().body, "the winner's");
}

#[tokio::test]
async fn settling_the_same_way_again_gets_the_same_answer_also_on_another_stream() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", vec![message(0, "k", "body")]).await;
    let mut first = broker.works("orders", 1).await;
    let delivery = first.deliveries(1).await.remove(0);
    drop(first);
    // The stream broke; the lease lives on.
    let mut second = broker.works("orders", 0).await;
    second.settle(vec![done(1, &delivery, "ok"), done(2, &delivery, "ok")]).await;
    let settled = second.settled(2).await;
    assert!(settled.iter().all(|answer| answer.kind() == SettleKind::Ok), "{settled:?}");
}

#[tokio::test]
async fn what_a_worker_did_not_take_is_given_to_the_next() {
    let broker = Broker::with_queue("orders", "{}").await;
    // It waits when it goes away, so nothing may be lost to it.
    for _ in 0..20 {
        drop(broker.works("orders", 100).await);
    }
    broker.send("orders", messages("k", 10)).await;
    let mut works = broker.works("orders", 100).await;
    let keys: HashSet<_> = works.deliveries(10).await.into_iter().map(|one| one.key).collect();
    assert_eq!(keys.len(), 10);
}

#[tokio::test]
async fn a_drained_stream_takes_no_more_and_still_settles() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 1)).await;
    let mut works = broker.works("orders", 10).await;
    let delivery = works.deliveries(1).await.remove(0);
    works.say(proto::WorkFrame { drain: true, ..Default::default() }).await;
    works.settle(vec![done(1, &delivery, "")]).await;
    works.settled(1).await;
    broker.send("orders", messages("later", 3)).await;
    works.credit(10).await;
    works.settle(vec![done(2, &delivery, "")]).await;
    let reply = works.next().await.unwrap();
    assert_eq!((reply.deliveries.len(), reply.settled.len()), (0, 1));
    assert_eq!(broker.stats("orders").await.ready, 3);
}

#[tokio::test]
async fn a_malformed_lease_or_verb_is_answered_in_its_place() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 1)).await;
    let mut works = broker.works("orders", 1).await;
    let delivery = works.deliveries(1).await.remove(0);
    let mut forged = delivery.lease.to_vec();
    forged[20] ^= 1;
    let release = || Verb::Release(proto::Release {});
    let to_nowhere = proto::Emit { queue: "absent".to_owned(), ..Default::default() };
    let emits = vec![proto::Emit { name: "n".to_owned(), ..to_nowhere }];
    let nameless = proto::Emit {
        queue: "orders".to_owned(),
        name: "n".to_owned(),
        key: Some(String::new()),
        ..Default::default()
    };
    let nameless = proto::Done { result: None, emits: vec![nameless] };
    let settles = vec![
        settle(0, &Bytes::from_static(b"not a lease"), release()),
        settle(1, &forged.into(), release()),
        settle(2, &Bytes::new(), release()),
        proto::Settle { r#ref: 3, lease: delivery.lease.clone(), verb: None },
        settle(4, &delivery.lease, Verb::Done(proto::Done { result: None, emits })),
        settle(5, &delivery.lease, Verb::Done(nameless)),
        done(6, &delivery, "ok"),
    ];
    works.settle(settles).await;
    let settled = works.settled(7).await;
    let kinds: Vec<_> = settled.iter().map(|answer| answer.kind()).collect();
    use SettleKind::{LeaseLost, Ok, SettleError};
    let refused = [SettleError; 3];
    assert_eq!(kinds, [&[LeaseLost; 3][..], &refused, &[Ok]].concat());
    let code = |place: usize| settled[place].problem.as_ref().unwrap().code.clone();
    assert_eq!((code(3).as_str(), code(4).as_str()), ("invalid", "no_such_queue"));
    assert_eq!(code(5), "malformed_key", "an empty key is not a derived one");
}

#[tokio::test]
async fn a_lease_of_another_queue_is_no_lease() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.put("emails", "{}").await.unwrap();
    broker.send("orders", messages("k", 1)).await;
    let delivery = broker.works("orders", 1).await.deliveries(1).await.remove(0);
    let mut emails = broker.works("emails", 1).await;
    emails.settle(vec![done(1, &delivery, "stolen")]).await;
    assert_eq!(emails.settled(1).await[0].kind(), SettleKind::LeaseLost);
    assert_eq!(broker.key("orders", "k0").await.state(), State::Leased);
}

#[tokio::test]
async fn a_stream_that_breaks_the_protocol_is_told_how() {
    let broker = Broker::with_queue("orders", "{}").await;
    let refused = async |frames: Vec<proto::WorkFrame>| {
        let mut works = broker.unopened().await;
        for frame in frames {
            works.say(frame).await;
        }
        loop {
            if let Err(status) = works.next().await {
                break (code(&status).to_owned(), status.message().to_owned());
            }
        }
    };
    let early = proto::WorkFrame { credit: 5, ..Default::default() };
    let (code, detail) = refused(vec![early]).await;
    assert_eq!(code, "invalid");
    assert!(detail.contains("first frame"), "{detail}");
    let (code, detail) = refused(vec![opening("orders", 1), opening("orders", 1)]).await;
    assert_eq!(code, "invalid");
    assert!(detail.contains("already open"), "{detail}");
    assert_eq!(refused(vec![opening("absent", 1)]).await.0, "no_such_queue");
    assert_eq!(refused(vec![opening("absent", 0)]).await.0, "no_such_queue");
    assert_eq!(refused(vec![opening("no name", 1)]).await.0, "invalid");
    let mut name = opening("orders", 1);
    name.open.as_mut().unwrap().worker = "x".repeat(65);
    assert_eq!(refused(vec![name]).await.0, "invalid");
    let mut lease = opening("orders", 1);
    lease.open.as_mut().unwrap().lease_ms = Some(1);
    assert_eq!(refused(vec![lease]).await.0, "invalid");
}

#[tokio::test]
async fn a_lease_length_of_its_own_is_used_and_told() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 1)).await;
    let mut works = broker.unopened().await;
    let mut opening = opening("orders", 1);
    opening.open.as_mut().unwrap().lease_ms = Some(7_000);
    works.say(opening).await;
    let reply = works.next().await.unwrap();
    assert_eq!(reply.lease_ms, Some(7_000));
    let shown = broker.key("orders", "k0").await;
    assert_eq!(shown.deadline_ms, Some(reply.deliveries[0].deadline_ms));
    assert_eq!(shown.worker, "tester");
}

#[tokio::test]
async fn a_deleted_queue_ends_its_streams() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut works = broker.works("orders", 1).await;
    broker.send("orders", messages("k", 1)).await;
    let delivery = works.deliveries(1).await.remove(0);
    let request = proto::QueueRequest { queue: "orders".to_owned() };
    broker.client.clone().delete_queue(request).await.unwrap();
    works.settle(vec![done(1, &delivery, "")]).await;
    assert_eq!(works.settled(1).await[0].kind(), SettleKind::LeaseLost);
    works.credit(1).await;
    let status = works.next().await.unwrap_err();
    assert_eq!(code(&status), "no_such_queue");
}

#[tokio::test]
async fn a_worker_that_waits_learns_at_once_that_its_queue_was_deleted() {
    for partitions in [1, 4] {
        let broker = Broker::with(|settings| settings.partitions = partitions).await;
        broker.put("orders", "{}").await.unwrap();
        let mut works = broker.works("orders", 1).await;
        // It waits: the broker has answered one of its messages and asked for the next.
        broker.send("orders", messages("k", 1)).await;
        let delivery = works.deliveries(1).await.remove(0);
        works.settle(vec![done(1, &delivery, "")]).await;
        works.settled(1).await;
        works.credit(1).await;
        let request = proto::QueueRequest { queue: "orders".to_owned() };
        broker.client.clone().delete_queue(request).await.unwrap();
        let status = in_time(works.next()).await.unwrap_err();
        assert_eq!(code(&status), "no_such_queue");
    }
}

#[tokio::test]
async fn a_paused_queue_delivers_nothing_until_it_is_resumed() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut works = broker.works("orders", 10).await;
    let queue = || proto::QueueRequest { queue: "orders".to_owned() };
    broker.client.clone().pause_queue(queue()).await.unwrap();
    let answers = broker.send("orders", messages("k", 3)).await;
    assert!(answers.iter().all(|answer| refusal(answer).is_empty()));
    assert_eq!(broker.stats("orders").await.ready, 3);
    broker.client.clone().resume_queue(queue()).await.unwrap();
    works.deliveries(3).await;
}

#[tokio::test]
async fn a_key_that_ends_wakes_whoever_waits_for_it() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 1)).await;
    let wait_ms = Duration::from_secs(50).as_millis() as u64;
    let look = proto::GetKeyRequest { key: Some(named("orders", "k0")), wait_ms };
    let mut client = broker.client.clone();
    let waiting = tokio::spawn(async move { client.get_key(look).await.unwrap().into_inner() });
    let mut works = broker.works("orders", 1).await;
    let delivery = works.deliveries(1).await.remove(0);
    works.settle(vec![done(1, &delivery, "at last")]).await;
    let key = in_time(waiting).await.unwrap();
    assert_eq!((key.state(), key.result.unwrap().body), (State::Done, "at last".into()));
}
