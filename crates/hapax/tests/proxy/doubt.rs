//! The upstream does not answer: was it called or not? And whose answer counts, when a proxy wakes
//! up late.

use axum::body::Bytes;
use http::Request;
use http_body_util::Full;

use crate::process::{Proxy, ok, patient, request, start_again, start_broker};
use crate::upstream::Upstream;
use hapax_testing::{BrokerProcess, Signal, eventually, suspend};

/// Long enough for what should be in time, on a busy machine.
const TIMEOUT: [&str; 2] = ["--upstream-timeout", "6s"];

on_each!(an_upstream_that_cannot_be_reached_was_not_called_and_its_key_is_free);
async fn an_upstream_that_cannot_be_reached_was_not_called_and_its_key_is_free(partitions: u16) {
    let broker = start_broker(partitions);
    let upstream = Upstream::start().await;
    let address = upstream.address.to_string();
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    drop(upstream);
    eventually("the upstream to be gone", async || {
        let told = proxy.ask(request("/charges", "k")).await;
        (told.problem() == (502, "upstream_unreachable".to_owned())).then_some(())
    })
    .await;
    let upstream = Upstream::start_at(&address).await;
    let told = proxy.ask(request("/charges", "k")).await;
    assert_eq!((told.status, told.is_replayed(), upstream.calls()), (201, false, 1));
    assert!(proxy.metric("hapax_proxy_settlements_total{how=\"released\"}").await >= 1);
}

on_each!(an_upstream_that_may_have_acted_is_not_called_again_until_somebody_says_so);
async fn an_upstream_that_may_have_acted_is_not_called_again_until_somebody_says_so(
    partitions: u16,
) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    // No lease ends in this test: what is in doubt is parked at once.
    let more = [&TIMEOUT[..], &["--lease", "1h"]].concat();
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    for (path, status, code, calls) in
        [("/hang", 504, "upstream_timeout", 1), ("/cut", 502, "upstream_failed", 2)]
    {
        let first = proxy.ask(request(path, "k")).await;
        assert_eq!(first.problem(), (status, code.to_owned()), "{path}");
        assert!(!first.headers.contains_key("retry-after"), "{first:?}");
        let claim_key = first.json()["claim_key"].as_str().unwrap().to_owned();
        let again = proxy.ask(request(path, "k")).await;
        assert_eq!(again.problem(), (409, "in_doubt".to_owned()), "{path}");
        assert_eq!(again.json()["claim_key"], claim_key);
        assert_eq!(upstream.calls(), calls, "{path}");

        let parked = ok(&broker, &["peek", "http", "--state", "parked", "-o", "json"]).await;
        assert!(parked.contains(&claim_key), "{parked}");
        let why = format!("POST {path}: its handler answered {status} without knowing");
        assert!(parked.contains(&why), "{parked}");
        ok(&broker, &["resolve", "http", &claim_key, "--done", "it did happen"]).await;
        let resolved = proxy.ask(request(path, "k")).await;
        assert_eq!((resolved.status, resolved.text()), (200, "it did happen"));
        assert!(resolved.is_replayed());
        assert_eq!(upstream.calls(), calls);
    }
    assert_eq!(proxy.metric("hapax_proxy_settlements_total{how=\"in_doubt\"}").await, 2);
}

on_each!(a_response_that_breaks_off_is_not_asked_for_again);
async fn a_response_that_breaks_off_is_not_asked_for_again(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &["--lease", "1h"]).await;
    let asking = proxy.asking(request("/half", "k"));
    eventually("the head of the response", async || {
        let series = "hapax_proxy_upstream_requests_total{ended=\"2xx\"}";
        (proxy.metric(series).await == 1).then_some(())
    })
    .await;
    upstream.open(1);
    assert_eq!(asking.await.unwrap().problem(), (500, "in_doubt".to_owned()));
    let again = proxy.ask(request("/half", "k")).await;
    assert_eq!((again.problem(), upstream.calls()), ((409, "in_doubt".to_owned()), 1));

    // One that does not end in time is no different.
    let slow = ["--lease", "1h", "--upstream-timeout", "6s", "--namespace", "slow"];
    let slow = Proxy::start(&broker.url(), &upstream.url(), &slow).await;
    let told = slow.ask(request("/half", "k")).await;
    assert_eq!((told.problem(), upstream.calls()), ((500, "in_doubt".to_owned()), 2));
}

on_each!(an_upstream_that_honours_keys_itself_is_called_again_with_the_same_one);
async fn an_upstream_that_honours_keys_itself_is_called_again_with_the_same_one(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    // No lease ends in this test: the key is free at once.
    let more = [&TIMEOUT[..], &["--lease", "1h", "--in-doubt", "retry"]].concat();
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    for _ in 0..2 {
        let told = proxy.ask(request("/half", "half")).await;
        assert_eq!(told.problem(), (500, "in_doubt".to_owned()), "it broke off in the middle");
    }
    assert_eq!(upstream.calls_by_key()["half"], 2);
    for (path, status, code) in
        [("/hang", 504, "upstream_timeout"), ("/cut", 502, "upstream_failed")]
    {
        for _ in 0..2 {
            let told = proxy.ask(request(path, path)).await;
            assert_eq!(told.problem(), (status, code.to_owned()), "{path}");
            assert!(told.headers.contains_key("retry-after"), "{told:?}");
        }
        assert_eq!(upstream.calls_by_key()[path], 2);
    }
}

/// Stops a proxy with a request at its upstream, until its lease is over.
async fn asleep(
    broker: &BrokerProcess,
    upstream: &Upstream,
    more: &[&str],
) -> (Proxy, tokio::task::JoinHandle<crate::process::Answered>) {
    let more = [&["--lease", "6s"], more].concat();
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    let asking = proxy.asking(request("/gate", "k"));
    upstream.called(1).await;
    suspend(proxy.child.id());
    (proxy, asking)
}

on_each!(a_proxy_that_wakes_up_late_still_tells_the_outcome_where_keys_are_parked);
async fn a_proxy_that_wakes_up_late_still_tells_the_outcome_where_keys_are_parked(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let (sleeper, first) = asleep(&broker, &upstream, &[]).await;
    upstream.open(1);
    let other = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let told = other.ask(patient("/gate", "k")).await;
    assert_eq!(told.problem(), (409, "in_doubt".to_owned()));
    sleeper.signal(Signal::CONT);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text()), (200, "receipt 1"));
    let told = other.ask(request("/gate", "k")).await;
    assert_eq!((told.is_replayed(), told.text()), (true, "receipt 1"));
    assert_eq!(upstream.calls(), 1);
}

on_each!(a_proxy_that_wakes_up_late_gives_the_answer_that_was_stored_meanwhile);
async fn a_proxy_that_wakes_up_late_gives_the_answer_that_was_stored_meanwhile(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let retry = ["--in-doubt", "retry"];
    let (sleeper, first) = asleep(&broker, &upstream, &retry).await;
    upstream.open(2);
    let other = Proxy::start(&broker.url(), &upstream.url(), &retry).await;
    let second = other.ask(patient("/gate", "k")).await;
    assert_eq!((second.status, second.text()), (200, "receipt 2"));
    sleeper.signal(Signal::CONT);
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text()), (200, "receipt 2"), "its own is discarded");
    assert!(first.is_replayed());
    assert_eq!(sleeper.metric("hapax_proxy_requests_total{outcome=\"lease_lost\"}").await, 1);
    assert_eq!(upstream.calls_by_key()["k"], 2, "the upstream is told that it is the same one");
}

on_each!(while_the_broker_is_away_requests_pass_unprotected_where_that_was_chosen);
async fn while_the_broker_is_away_requests_pass_unprotected_where_that_was_chosen(partitions: u16) {
    let (mut broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let more = ["--fail-open", "--broker-timeout", "300ms"];
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    // By one with patience: this answer is stored.
    let calm = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    assert_eq!(calm.ask(request("/charges", "before")).await.status, 201);
    broker.kill();
    for _ in 0..2 {
        let told = proxy.ask(request("/charges", "k")).await;
        assert_eq!((told.status, told.is_replayed()), (201, false));
    }
    assert_eq!(upstream.calls_by_key()["k"], 2);
    let late = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    let without = Request::post("/charges").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(late.ask(without).await.problem(), (400, "missing_key".to_owned()));
    start_again(&mut broker).await;
    let told = eventually("the broker to be seen again", async || {
        let told = proxy.ask(request("/charges", "before")).await;
        told.is_replayed().then_some(told)
    });
    assert_eq!(told.await.headers["location"], "/charges/1");
}
