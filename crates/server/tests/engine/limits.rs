//! A queue's limits cover the whole queue, in however many partitions it lives.

use hapax_core::{Answer, Config, Quota};
use hapax_server::engine::Engine;

use crate::{LONG, Lists, create, done, message, on_one_and_on_four, open, receive};

/// Sends one message after the other; returns how many were accepted.
async fn accepted(engine: &Engine, keys: std::ops::Range<u32>, quota: Quota) -> usize {
    let mut accepted = 0;
    for n in keys {
        let answers = engine.send(vec![message("orders", &format!("k{n}"), "12345")]).await;
        match &answers.unwrap()[..] {
            [Answer::Accepted { .. }] => accepted += 1,
            [Answer::OverQuota { quota: over, .. }] if *over == quota => {}
            other => panic!("{other:?}"),
        }
    }
    accepted
}

#[test]
fn a_queue_holds_no_more_messages_than_it_may_over_all_partitions() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config { max_messages: Some(5), ..Config::default() }).await;
        assert_eq!(accepted(&engine, 0..20, Quota::Messages).await, 5);
        let taken = engine.receive(receive("orders", 2), LONG).await.unwrap().unwrap();
        assert_eq!(accepted(&engine, 20..24, Quota::Messages).await, 0, "leased ones count");
        for message in &taken {
            done(&engine, message, vec![]).await;
        }
        assert_eq!(accepted(&engine, 30..50, Quota::Messages).await, taken.len());
    });
}

#[test]
fn a_queue_holds_no_more_bytes_than_it_may_over_all_partitions() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        engine.send(vec![message("orders", "first", "12345")]).await.unwrap();
        let one = engine.show(&crate::queue("orders")).await.unwrap().unwrap().stats.bytes;
        // Keys of one length: every message is as large as the first, or a little smaller.
        let config = Config { max_bytes: Some(4 * one), ..Config::default() };
        let configure =
            hapax_core::Configure { queue: crate::queue("orders"), config, if_version: None };
        engine.configure(configure).await.unwrap().unwrap();
        accepted(&engine, 10..30, Quota::Bytes).await;
        let held = engine.show(&crate::queue("orders")).await.unwrap().unwrap().stats.bytes;
        assert!((3 * one..=4 * one).contains(&held), "{held} of {}", 4 * one);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_partitions_hold_is_known_to_all_of_them_from_a_start_on() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path(), 4);
    create(&engine, "orders", Config { max_messages: Some(7), ..Config::default() }).await;
    assert_eq!(accepted(&engine, 0..7, Quota::Messages).await, 7);
    engine.stop();
    let engine = open(directory.path(), 4);
    assert_eq!(accepted(&engine, 20..40, Quota::Messages).await, 0);
    engine.stop();
}

#[test]
fn partitions_share_the_memory_of_the_broker() {
    on_one_and_on_four(|engine, _| async move {
        let mut reserves = 0;
        for partition in 0..engine.partitions() {
            reserves += engine.inspect(partition, |it| it.reserve_bytes()).await.unwrap();
        }
        assert_eq!(reserves, 4 * 1_024 * 1_024, "a sixteenth of 64 MiB");
    });
}
