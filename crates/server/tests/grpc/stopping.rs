//! A broker that stops: streams are told, and end.

use std::time::{Duration, Instant};

use hapax_wire::proto::{AnswerKind, SettleKind};

use crate::broker::{Broker, code, done, message, messages};
use hapax_testing::in_time;

#[tokio::test]
async fn a_worker_is_told_and_its_last_settles_are_answered() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 2)).await;
    let mut busy = broker.works("orders", 2).await;
    let deliveries = busy.deliveries(2).await;
    let stopped = broker.stop();
    let reply = busy.next().await.unwrap();
    assert!(reply.closing, "{reply:?}");
    busy.settle(vec![done(1, &deliveries[0], "ok")]).await;
    assert_eq!(busy.settled(1).await[0].kind(), SettleKind::Ok);
    busy.settle(vec![done(2, &deliveries[1], "ok")]).await;
    assert_eq!(busy.settled(1).await[0].kind(), SettleKind::Ok);
    // It holds nothing any more, so there is nothing to wait for.
    let status = busy.next().await.unwrap_err();
    assert_eq!(code(&status), "unavailable");
    in_time(stopped).await;
}

#[tokio::test]
async fn idle_streams_hold_up_nothing() {
    /// What a worker gets that holds a message.
    const GRACE: Duration = Duration::from_secs(10);
    // A machine that was busy for so long tells nothing: then it is tried again.
    let is_over = async {
        loop {
            let broker = Broker::with_queue("orders", "{}").await;
            let mut idle = broker.works("orders", 10).await;
            let mut without_credit = broker.works("orders", 0).await;
            let mut sends = broker.sends().await;
            sends.one("orders", message(1, "k", "body")).await;
            idle.deliveries(1).await;
            let started = Instant::now();
            let stopped = broker.stop();
            assert!(without_credit.next().await.unwrap().closing);
            assert_eq!(code(&without_credit.next().await.unwrap_err()), "unavailable");
            assert_eq!(code(&sends.end().await.unwrap_err()), "unavailable");
            drop(idle);
            stopped.await;
            if started.elapsed() < GRACE {
                return;
            }
        }
    };
    in_time(is_over).await;
}

#[tokio::test]
async fn what_was_read_before_the_stop_is_answered() {
    let broker = Broker::with_queue("orders", "{}").await;
    let sends = broker.sends().await;
    sends.say("orders", messages("k", 1_000)).await;
    let stopped = broker.stop();
    // Either read, then durable and answered; or not, then it is for the caller to send again.
    match sends.finish().await {
        Ok(answers) => assert_eq!(answers.len(), 1_000),
        Err(status) => assert_eq!(code(&status), "unavailable"),
    }
    in_time(stopped).await;
}

#[tokio::test]
async fn health_follows_the_engine() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let broker = Broker::with_queue("orders", "{}").await;
    let mut health = HealthClient::new(crate::broker::channel(&broker.url()));
    for service in ["", "hapax.v1.Hapax"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let mut news = health.watch(request).await.unwrap().into_inner();
        loop {
            let said = in_time(news.message()).await.unwrap().unwrap();
            if said.status() == ServingStatus::Serving {
                break;
            }
        }
    }
    let request = HealthCheckRequest { service: String::new() };
    let mut news = health.watch(request).await.unwrap().into_inner();
    assert_eq!(in_time(news.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);
    broker.service().engine().drain();
    assert_eq!(in_time(news.message()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let answer = broker.send("orders", vec![message(1, "k", "body")]).await.remove(0);
    assert_eq!(answer.kind(), AnswerKind::Accepted, "sends go on");
}
