//! Waiting receivers and callers that go away.

use std::time::Duration;

use hapax_core::{
    Answer, Blob, Config, Content, Guarantee, Receive, SendMessage, Settle, Settled, Verb,
};
use hapax_partition::change::Change;
use hapax_server::auth::Action;
use hapax_server::service::{Options, Service};

use crate::{LONG, Lists, create, done, message, on_one_and_on_four, open, queue, receive, recipe};

#[test]
fn who_waits_is_woken_where_another_took_less_than_it_was_called_for() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), 1);
    runtime.block_on(async {
        create(&engine, "orders", Config { max_body_bytes: 4 << 20, ..Config::default() }).await;
        engine.change(Change::Pause(queue("orders"))).await.unwrap().unwrap();
        // Six of 2 MiB: one answer has room for fewer.
        for n in 0..6 {
            let content = Content::builder(&format!("k{n}")).build(&vec![0; 2 << 20]).unwrap();
            engine.send(vec![SendMessage::new(&recipe(), queue("orders"), content)]).await.unwrap();
        }
        let wait = || {
            let engine = engine.clone();
            tokio::spawn(async move { engine.receive(receive("orders", 20), LONG).await })
        };
        let (one, other) = (wait(), wait());
        engine.change(Change::Resume(queue("orders"))).await.unwrap().unwrap();
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        let counts = [one.unwrap().unwrap().len(), other.unwrap().unwrap().len()];
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    });
    engine.stop();
}

#[test]
fn l11_what_a_caller_who_went_away_was_given_comes_back_uncharged() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config { lease_ms: 600_000, ..Config::default() }).await;
        let sends = (0..40).map(|n| message("orders", &format!("k{n}"), "b")).collect();
        engine.send(sends).await.unwrap();
        for round in 0..60u64 {
            let gone = engine.receive(receive("orders", 40), Duration::ZERO);
            let received = tokio::time::timeout(Duration::from_micros(round * 40), gone).await;
            if received.is_ok() {
                break; // It was in time: its messages are its own.
            }
            let all_back = async {
                while engine.show(&queue("orders")).await.unwrap().unwrap().stats.ready < 40 {
                    tokio::task::yield_now().await;
                }
            };
            let back = tokio::time::timeout(LONG, all_back).await;
            assert!(back.is_ok(), "messages stay leased to a caller that is gone");
        }
        for message in engine.receive(receive("orders", 40), Duration::ZERO).await.unwrap().unwrap()
        {
            assert_eq!(message.attempt, 1, "uncharged");
        }
    });
}

#[test]
fn l7_who_went_away_at_the_beginning_of_a_wait_takes_no_message_that_comes_later() {
    on_one_and_on_four(|engine, _| async move {
        let guarantee = Guarantee::AtMostOnce;
        create(&engine, "orders", Config { guarantee, ..Config::default() }).await;
        create(&engine, "other", Config::default()).await;
        for round in 0..200u64 {
            // Others keep the disk busy, so that turns are held for a while.
            let busy = engine.send(vec![message("other", &format!("k{round}"), "b")]);
            let gone = engine.receive(receive("orders", 1), LONG);
            let gone = tokio::time::timeout(Duration::from_micros(round % 50 * 20), gone);
            let (sent, gone) = tokio::join!(busy, gone);
            sent.unwrap();
            assert!(gone.is_err(), "there is nothing to receive");
        }
        // Whatever was held then is given back by now.
        engine.send(vec![message("other", "last", "b")]).await.unwrap();
        for partition in 0..engine.partitions() {
            engine.inspect(partition, |_| ()).await.unwrap();
        }
        for n in 0..50 {
            engine.send(vec![message("orders", &format!("k{n}"), "b")]).await.unwrap();
            let received = engine.receive(receive("orders", 1), LONG).await.unwrap().unwrap();
            assert_eq!(received.len(), 1, "message {n} went to somebody who is gone");
        }
    });
}

#[test]
fn a_receive_is_bounded_by_bytes_over_all_partitions() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        for n in 0..40 {
            let content = Content::builder(&format!("k{n}")).build(&vec![0; 1 << 20]).unwrap();
            engine.send(vec![SendMessage::new(&recipe(), queue("orders"), content)]).await.unwrap();
        }
        let received = engine.receive(receive("orders", 40), Duration::ZERO).await;
        let count = received.unwrap().unwrap().len();
        // The first partitions may have less than 8 MiB; the next one is asked for as much again.
        assert!((8..=16).contains(&count), "{count} MiB");
    });
}

#[test]
fn results_of_one_list_are_bounded_by_bytes() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        let keys = || (0..40).map(|n| message("orders", &format!("k{n}"), "b")).collect::<Vec<_>>();
        engine.send(keys()).await.unwrap();
        let mut left = 40;
        while left > 0 {
            let received = engine.receive(receive("orders", 40), Duration::ZERO).await;
            for delivery in received.unwrap().unwrap() {
                let body = vec![b'r'; 1 << 20].into();
                let result = Some(Blob { content_type: None, body });
                let verb = Verb::Done { result, emits: Vec::new() };
                let settle = Settle { lease: delivery.lease, verb };
                engine.settle(vec![(delivery.id.partition(), settle)]).await.unwrap();
                left -= 1;
            }
        }
        let service = Service::new(engine, Options::default());
        let caller = service.authenticate(None).unwrap();
        let permit = service.authorise(&caller, Action::Send, "orders").unwrap();
        let told = service.send(&permit, keys(), 8 << 20).await.unwrap();
        let has = |answer: &Answer| matches!(answer, Answer::Done(it) if it.result.is_some());
        assert_eq!(told.iter().filter(|(answer, _)| has(answer)).count(), 8);
        assert!(told.iter().all(|(answer, omitted)| has(answer) != *omitted));
    });
}

#[test]
fn l10_a_repeated_receive_keeps_the_leases_that_its_first_caller_never_got() {
    // An id is known to one partition: the one that has the message, or another.
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), 1);
    runtime.block_on(async {
        create(&engine, "orders", Config { lease_ms: 600_000, ..Config::default() }).await;
        for round in 0..60u64 {
            engine.send(vec![message("orders", &format!("k{round}"), "b")]).await.unwrap();
            let receive =
                Receive { receive_id: Some(format!("r{round}").into()), ..receive("orders", 1) };
            let first = engine.receive(receive.clone(), LONG);
            let first = tokio::time::timeout(Duration::from_micros(round * 30), first).await;
            // The caller is gone, or has its answer and asks again all the same.
            drop(first);
            let again = engine.receive(receive, LONG).await.unwrap().unwrap();
            let [delivery] = again.as_slice() else { panic!("{again:?}") };
            // Whatever was on its way to the first caller has come to nothing by now.
            engine.inspect(0, |_| ()).await.unwrap();
            let settled = done(&engine, delivery, vec![]).await;
            assert!(matches!(settled, Settled::Ok { .. }), "round {round}: {settled:?}");
        }
    });
    engine.stop();
}
