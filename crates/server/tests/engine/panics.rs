//! A writer that panics: nobody waits for ever, and the broker ends.

use std::sync::mpsc;

use hapax_core::{Command, Config, KeyName, Order};
use hapax_server::Broker;
use hapax_server::options::{Auth, Options};

use crate::{LONG, Lists, create, message, on_one_and_on_four, queue, receive};

#[test]
fn a_writer_that_panics_refuses_all_who_wait_and_is_not_ready_any_more() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        create(&engine, "empty", Config { order: Order::Group, ..Config::default() }).await;
        engine.send(vec![message("orders", "k", "b")]).await.unwrap();
        assert!(engine.is_ready());
        // Who waits for messages, for the end of a key, and for an answer.
        let (one, two) = (engine.clone(), engine.clone());
        let receiver = tokio::spawn(async move { one.receive(receive("empty", 1), LONG).await });
        let key = KeyName { queue: queue("orders"), key: "k".into(), group: None };
        let looker = tokio::spawn(async move { two.look(key, LONG).await });
        // They are most likely waiting by now; whether they are or come too late, they are refused.
        for partition in (0..engine.partitions()).cycle().take(8) {
            engine.call(partition, Command::Show(queue("orders"))).await.unwrap();
        }
        let (replied, replies) = mpsc::channel();
        for partition in 0..engine.partitions() {
            let replied = replied.clone();
            let panics = engine.inspect(partition, |_| panic!("planted"));
            engine.submit(partition, vec![Command::Show(queue("orders"))], move |outcomes| {
                replied.send(outcomes.is_err()).unwrap();
            });
            assert!(panics.await.is_err());
        }
        drop(replied);
        assert!(tokio::time::timeout(LONG, receiver).await.unwrap().unwrap().is_err());
        assert!(tokio::time::timeout(LONG, looker).await.unwrap().unwrap().is_err());
        let refused: Vec<bool> = replies.iter().collect();
        assert_eq!(refused.len(), engine.partitions(), "every reply was called");
        let why = tokio::time::timeout(LONG, engine.failed()).await.unwrap();
        assert!(why.to_string().contains("planted"), "{why}");
        assert!(!engine.is_ready());
        assert!(engine.send(vec![message("orders", "late", "b")]).await.is_err());
        assert!(engine.receive(receive("orders", 1), LONG).await.is_err());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_writer_panics_ends_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        data: directory.path().join("data"),
        auth: Auth::Off,
        ..Options::default()
    };
    let broker = Broker::start(&options, None).await.unwrap();
    let engine = broker.service().engine().clone();
    let running = tokio::spawn(broker.run(std::future::pending()));
    assert!(engine.inspect(0, |_| panic!("planted")).await.is_err());
    let ended = tokio::time::timeout(LONG, running).await.unwrap().unwrap();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("planted"), "{error}");
    // What was written is there: the next broker starts.
    let broker = Broker::start(&options, None).await.unwrap();
    broker.run(std::future::ready(())).await.unwrap();
}
