//! kill -9 of the broker, of the proxy, and clients that hang up.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::process::{Proxy, ask, ok, patient, request, start_again, start_broker};
use crate::upstream::Upstream;
use hapax_testing::{BrokerProcess, Link, Signal, eventually, suspend};

/// A proxy that is killed when the upstream has answered and nobody was told.
async fn killed_after_the_answer(broker: &BrokerProcess, upstream: &Upstream, in_doubt: &str) {
    let link = Link::to(broker.setup.address).await;
    let more = ["--lease", "6s", "--in-doubt", in_doubt];
    let mut proxy = Proxy::start(&link.url, &upstream.url(), &more).await;
    let asking = proxy.asking(request("/gate", "k"));
    upstream.called(1).await;
    link.lose_requests();
    upstream.open(1);
    eventually("the answer to reach the proxy", async || {
        let series = "hapax_proxy_upstream_requests_total{ended=\"2xx\"}";
        (proxy.metric(series).await == 1).then_some(())
    })
    .await;
    proxy.kill();
    assert!(asking.await.is_err(), "the client saw its connection break");
}

on_each!(a_proxy_killed_between_answer_and_completion_leaves_its_key_parked);
async fn a_proxy_killed_between_answer_and_completion_leaves_its_key_parked(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    killed_after_the_answer(&broker, &upstream, "park").await;
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let told = proxy.ask(patient("/gate", "k")).await;
    assert_eq!(told.problem(), (409, "in_doubt".to_owned()));
    assert_eq!(upstream.calls(), 1);

    let claim_key = told.json()["claim_key"].as_str().unwrap().to_owned();
    let parked = ok(&broker, &["peek", "http", "--state", "parked"]).await;
    assert!(parked.contains("POST /gate: its lease was lost"), "{parked}");
    ok(&broker, &["resolve", "http", &claim_key, "--retry"]).await;
    upstream.open(1);
    let told = proxy.ask(request("/gate", "k")).await;
    assert_eq!((told.status, told.text()), (200, "receipt 2"), "somebody said so");
}

on_each!(a_proxy_killed_between_answer_and_completion_is_followed_by_a_call_under_the_same_key);
async fn a_proxy_killed_between_answer_and_completion_is_followed_by_a_call_under_the_same_key(
    partitions: u16,
) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    killed_after_the_answer(&broker, &upstream, "retry").await;
    let more = ["--in-doubt", "retry"];
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    upstream.open(1);
    let told = proxy.ask(patient("/gate", "k")).await;
    assert_eq!((told.status, told.text()), (200, "receipt 2"));
    assert_eq!(upstream.calls_by_key()["k"], 2);
    assert!(proxy.ask(request("/gate", "k")).await.is_replayed());
}

on_each!(a_claim_that_comes_too_late_is_given_back);
async fn a_claim_that_comes_too_late_is_given_back(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let more = ["--broker-timeout", "300ms"];
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    suspend(broker.pid());
    let told = proxy.ask(request("/charges", "k")).await;
    assert_eq!(told.problem(), (503, "unavailable".to_owned()));
    broker.signal(Signal::CONT);
    // Otherwise it would be parked at the end of its lease, with nothing done under it.
    assert!(insist(&proxy.address, "k").await.is_some());
    assert_eq!(upstream.calls(), 1);
}

on_each!(a_broker_that_stands_still_leaves_no_key_in_doubt_where_nothing_was_done);
/// Nobody gives the claims back: the proxy has given them up before the broker moves again.
async fn a_broker_that_stands_still_leaves_no_key_in_doubt_where_nothing_was_done(partitions: u16) {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let more = ["--broker-timeout", "300ms", "--lease", "1s"];
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    suspend(broker.pid());
    for key in KEYS {
        let told = proxy.ask(request("/charges", key)).await;
        assert_eq!(told.problem(), (503, "unavailable".to_owned()));
    }
    eventually("the proxy to give up on its claims", async || {
        (proxy.metric("hapax_proxy_operations").await == 0).then_some(())
    })
    .await;
    assert_eq!(upstream.calls(), 0);
    broker.signal(Signal::CONT);
    let calm = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    for key in KEYS {
        assert!(insist(&calm.address, key).await.is_some(), "{key} is in doubt");
    }
    let calls = upstream.calls_by_key();
    assert!(KEYS.iter().all(|key| calls[*key] == 1), "{calls:?}");
}

/// Waits until the broker has given a key away.
async fn until_leased(broker: &BrokerProcess) {
    eventually("the broker to give the key away", async || {
        let queue = ok(broker, &["queue", "show", "http", "-o", "json"]).await;
        let queue: serde_json::Value = serde_json::from_str(&queue).unwrap();
        (queue["stats"]["leased"] == 1).then_some(())
    })
    .await;
}

on_each!(a_claim_whose_answer_was_lost_on_the_way_is_asked_for_again);
/// The answer to a claim is lost with its connection: the proxy asks again, and is known.
async fn a_claim_whose_answer_was_lost_on_the_way_is_asked_for_again(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let link = Link::to(broker.setup.address).await;
    let more = ["--broker-timeout", "60s", "--lease", "60s"];
    let proxy = Proxy::start(&link.url, &upstream.url(), &more).await;
    assert_eq!(proxy.ask(request("/charges", "before")).await.status, 201);
    link.lose_answers();
    let asking = proxy.asking(request("/charges", "k"));
    until_leased(&broker).await;
    assert_eq!(upstream.calls(), 1);
    link.cut();
    link.restore();
    let told = asking.await.unwrap();
    assert_eq!((told.status, told.is_replayed()), (201, false), "{told:?}");
    assert_eq!(upstream.calls_by_key()["k"], 1);
}

on_each!(a_proxy_killed_between_claim_and_begin_leaves_nothing_in_doubt);
async fn a_proxy_killed_between_claim_and_begin_leaves_nothing_in_doubt(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let link = Link::to(broker.setup.address).await;
    let more = ["--broker-timeout", "60s", "--lease", "10s"];
    let mut proxy = Proxy::start(&link.url, &upstream.url(), &more).await;
    assert_eq!(proxy.ask(request("/charges", "before")).await.status, 201);
    link.lose_answers();
    let asking = proxy.asking(request("/charges", "k"));
    until_leased(&broker).await;
    proxy.kill();
    assert!(asking.await.is_err(), "the client saw its connection break");
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    assert!(insist(&proxy.address, "k").await.is_some(), "it is free when its lease is over");
    assert_eq!(upstream.calls_by_key()["k"], 1);
}

on_each!(a_client_that_hangs_up_finds_its_answer_when_it_comes_again);
async fn a_client_that_hangs_up_finds_its_answer_when_it_comes_again(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let mut stream = TcpStream::connect(&proxy.address).unwrap();
    let head = "POST /gate HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 7\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(b"17 euro").unwrap();
    upstream.called(1).await;
    drop(stream);
    upstream.open(1);
    let told = proxy.ask(patient("/gate", "k")).await;
    assert_eq!((told.status, told.text(), told.is_replayed()), (200, "receipt 1", true));
    assert_eq!(upstream.calls(), 1);
}

/// What the load saw of one key.
struct Seen {
    key: String,
    body: Option<String>,
}

/// Asks until there is an answer, as a client that retries does. `None` where it is in doubt.
async fn insist(address: &str, key: &str) -> Option<String> {
    loop {
        let told = ask(address, patient("/charges", key)).await;
        if told.status == 201 {
            return Some(told.headers["location"].to_str().unwrap().to_owned());
        }
        match told.problem() {
            (409, code) if code == "in_doubt" => return None,
            (409 | 503, _) => {}
            other => panic!("{other:?}"),
        }
    }
}

on_each!(every_key_is_one_call_and_one_answer_while_the_broker_is_killed_again_and_again);
async fn every_key_is_one_call_and_one_answer_while_the_broker_is_killed_again_and_again(
    partitions: u16,
) {
    const CLIENTS: usize = 8;
    const KEYS: usize = 60;
    const KILLS: usize = 5;
    let (mut broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let more = ["--broker-timeout", "60s", "--lease", "20s"];
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let (address, ended) = (proxy.address.clone(), Arc::clone(&ended));
        clients.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            for number in 0..KEYS {
                // Two clients for every key.
                let key = format!("k{}-{number}", client / 2);
                let body = insist(&address, &key).await;
                seen.push(Seen { key, body });
                ended.fetch_add(1, Ordering::SeqCst);
            }
            seen
        }));
    }
    for kill in 1..=KILLS {
        let enough = kill * CLIENTS * KEYS / (KILLS + 2);
        eventually("some answers", async || (ended.load(Ordering::SeqCst) >= enough).then_some(()))
            .await;
        broker.kill();
        start_again(&mut broker).await;
    }
    let mut answers = std::collections::BTreeMap::new();
    for client in clients {
        for Seen { key, body } in client.await.unwrap() {
            answers.entry(key).or_insert_with(Vec::new).push(body);
        }
    }
    let calls = upstream.calls_by_key();
    assert!(calls.values().all(|count| *count == 1), "{calls:?}");
    for (key, answers) in &answers {
        let known: Vec<_> = answers.iter().flatten().collect();
        assert!(known.windows(2).all(|two| two[0] == two[1]), "{key}: {answers:?}");
        assert!(known.is_empty() || calls.contains_key(key), "{key}: {answers:?}");
    }
    assert_eq!(answers.len(), CLIENTS / 2 * KEYS);
    // A key that was begun when the broker died is parked if its lease is over before the broker
    // is back: nobody but the upstream knows whether something was done under it.
    let in_doubt = answers.iter().filter(|(_, answers)| answers.iter().all(Option::is_none));
    let (called, in_doubt): (Vec<&String>, Vec<&String>) =
        in_doubt.map(|(key, _)| key).partition(|key| calls.contains_key(*key));
    let count = called.len() + in_doubt.len();
    assert!(count <= KILLS * CLIENTS, "{count} after {KILLS} kills");
    for key in called {
        assert_eq!(proxy.ask(request("/charges", key)).await.problem().1, "in_doubt", "{key}");
    }
    for key in &in_doubt {
        let told = proxy.ask(request("/charges", key)).await;
        let claim_key = told.json()["claim_key"].as_str().unwrap().to_owned();
        ok(&broker, &["resolve", "http", &claim_key, "--retry"]).await;
        assert!(insist(&proxy.address, key).await.is_some());
    }
    let calls = upstream.calls_by_key();
    assert_eq!(calls.len(), answers.len());
    assert!(calls.values().all(|count| *count == 1), "{calls:?}");
}
