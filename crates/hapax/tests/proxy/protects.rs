//! Routes behind the proxy: one key, one call, one answer; and what is counted of it.

use axum::body::Bytes;
use http::Request;
use http_body_util::Full;

use crate::process::{Proxy, patient, request, start_broker};
use crate::upstream::{BINARY, Upstream};

on_each!(many_identical_requests_through_two_proxies_are_one_call);
async fn many_identical_requests_through_two_proxies_are_one_call(partitions: u16) {
    const COUNT: usize = 24;
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let one = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let two = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let asking = (0..COUNT).map(|number| {
        let proxy = if number % 2 == 0 { &one } else { &two };
        proxy.asking(patient("/charges", "k"))
    });
    let asking: Vec<_> = asking.collect();
    let mut replayed = 0;
    for told in asking {
        let told = told.await.unwrap();
        assert_eq!((told.status, &told.body[BINARY.len()..]), (201, &b"1"[..]), "{told:?}");
        replayed += usize::from(told.is_replayed());
    }
    assert_eq!((upstream.calls(), replayed), (1, COUNT - 1));
    assert_eq!(upstream.calls_by_key()["k"], 1, "the upstream is told the key");
}

on_each!(a_replay_is_the_upstreams_response_byte_for_byte);
async fn a_replay_is_the_upstreams_response_byte_for_byte(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let first = proxy.ask(request("/charges", "k")).await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert_eq!(first.headers["set-cookie"], "session=1");
    let again = proxy.ask(request("/charges", "k")).await;
    assert!(again.is_replayed());
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.body, [&BINARY[..], b"1"].concat());
    for told in [&first, &again] {
        assert_eq!(told.headers["location"], "/charges/1");
        let links: Vec<_> = told.headers.get_all("link").iter().collect();
        assert_eq!(links, ["</a>; rel=prev", "</b>; rel=next"]);
        assert!(!told.headers.contains_key("x-hop"), "of another connection: {told:?}");
    }
    assert!(!again.headers.contains_key("set-cookie"));
    // The server writes one of its own.
    assert_ne!(again.headers["date"], first.headers["date"]);
    assert_eq!(upstream.calls(), 1);
}

on_each!(a_client_cannot_take_from_the_upstream_what_a_request_is_told_by);
async fn a_client_cannot_take_from_the_upstream_what_a_request_is_told_by(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let more = ["--key-header", "webhook-id", "--tenant-header", "x-account"];
    let more = [&more[..], &["--compare-header", "x-version"]].concat();
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    let with = |path: &str, connection: &str| {
        let request = Request::post(path).header("connection", connection);
        let request = request.header("webhook-id", "k").header("x-account", "a");
        let request = request.header("x-version", "1").header("x-api-key", "secret");
        request.body(Full::from("17")).unwrap()
    };
    for name in ["webhook-id", "X-Account", "x-version", "X-Api-Key", "x-forwarded-for"] {
        for path in ["/charges", "/echo"] {
            let told = proxy.ask(with(path, &format!("close, {name}"))).await;
            assert_eq!(told.problem(), (400, "invalid".to_owned()), "{name} {path}");
        }
    }
    assert_eq!(upstream.calls(), 0);
    assert_eq!(proxy.ask(with("/charges", "close, x-hop")).await.status, 201);
    assert!(proxy.metric("hapax_proxy_requests_total{outcome=\"refused\"}").await >= 10);
}

on_each!(what_is_asked_in_a_wrong_way_does_not_reach_the_upstream_and_is_counted);
async fn what_is_asked_in_a_wrong_way_does_not_reach_the_upstream_and_is_counted(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &["--request-max", "1000"]).await;
    let with = |key: Option<&str>, body: Vec<u8>| {
        let mut request = Request::post("/charges");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(Full::new(Bytes::from(body))).unwrap()
    };
    let told = proxy.ask(with(None, vec![])).await;
    assert_eq!(told.problem(), (400, "missing_key".to_owned()));
    assert_eq!(told.headers["content-type"], "application/problem+json");
    let told = proxy.ask(with(Some("a b"), vec![])).await;
    assert_eq!(told.problem(), (400, "malformed_key".to_owned()));
    let told = proxy.ask(with(Some("k"), vec![b'x'; 1_001])).await;
    assert_eq!(told.problem(), (413, "too_large".to_owned()));
    assert_eq!(upstream.calls(), 0);

    assert_eq!(proxy.ask(with(Some("k"), b"17".to_vec())).await.status, 201);
    assert!(proxy.ask(with(Some("k"), b"17".to_vec())).await.is_replayed());
    let told = proxy.ask(with(Some("k"), b"18".to_vec())).await;
    assert_eq!(told.problem(), (422, "conflict".to_owned()));
    let in_progress = proxy.asking(request("/gate", "k"));
    upstream.called(2).await;
    let told = proxy.ask(request("/gate", "k")).await;
    assert_eq!(told.problem(), (409, "in_flight".to_owned()));
    assert_eq!(told.headers["retry-after"], "1");
    upstream.open(1);
    assert_eq!(in_progress.await.unwrap().status, 200);
    proxy.ask(Request::get("/echo").body(Full::default()).unwrap()).await;
    let put = || Request::put("/charges").body(Full::default()).unwrap();
    assert_eq!((proxy.ask(put()).await.status, proxy.ask(put()).await.status), (201, 201));

    for (outcome, count) in [
        ("fresh", 2),
        ("replayed", 1),
        ("in_progress", 1),
        ("conflict", 1),
        ("missing_key", 1),
        ("malformed_key", 1),
        ("refused", 1),
        ("bypassed", 3),
        ("unavailable", 0),
    ] {
        let series = format!("hapax_proxy_requests_total{{outcome=\"{outcome}\"}}");
        assert_eq!(proxy.metric(&series).await, count, "{outcome}");
    }
    assert_eq!(proxy.metric("hapax_proxy_settlements_total{how=\"kept\"}").await, 2);
    assert_eq!(proxy.metric("hapax_proxy_upstream_seconds_count").await, 5);
    assert_eq!(proxy.metric("hapax_proxy_upstream_requests_total{ended=\"2xx\"}").await, 5);
    assert_eq!(proxy.metric("hapax_proxy_operations").await, 0);
    assert_eq!(proxy.beside("/livez").await.status, 200);
    assert_eq!(proxy.beside("/readyz").await.status, 200);
}

on_each!(what_is_released_can_be_chosen_and_a_rejected_token_is_by_itself);
async fn what_is_released_can_be_chosen_and_a_rejected_token_is_by_itself(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let usual = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let chosen = ["--release", "404", "--namespace", "other"];
    let chosen = Proxy::start(&broker.url(), &upstream.url(), &chosen).await;
    for (status, is_usual, is_chosen) in
        [(200, true, true), (401, false, true), (404, true, false), (503, false, true)]
    {
        let (path, key) = (format!("/status/{status}"), format!("k-{status}"));
        for (proxy, is_remembered) in [(&usual, is_usual), (&chosen, is_chosen)] {
            assert_eq!(proxy.ask(request(&path, &key)).await.status, status);
            let again = proxy.ask(request(&path, &key)).await;
            assert_eq!((again.status, again.is_replayed()), (status, is_remembered), "{status}");
        }
    }
}

on_each!(callers_are_told_apart_by_the_header_that_was_chosen);
async fn callers_are_told_apart_by_the_header_that_was_chosen(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy =
        Proxy::start(&broker.url(), &upstream.url(), &["--tenant-header", "X-Account"]).await;
    let of = |account: &str, token: &str| {
        let mut request = request("/charges", "k");
        request.headers_mut().insert("x-account", account.parse().unwrap());
        request.headers_mut().insert("authorization", token.parse().unwrap());
        request
    };
    assert_eq!(proxy.ask(of("ada", "one")).await.headers["location"], "/charges/1");
    assert_eq!(proxy.ask(of("eve", "one")).await.headers["location"], "/charges/2");
    assert!(proxy.ask(of("ada", "two")).await.is_replayed());
    let nobody = proxy.ask(request("/charges", "k")).await;
    assert_eq!(nobody.problem(), (401, "unauthorized".to_owned()));
    let nameless = proxy.ask(of("", "one")).await;
    assert_eq!(nameless.problem(), (401, "unauthorized".to_owned()), "an empty name is none");

    // Without the header they share their keys, and get nothing of each other.
    for more in
        [["--namespace", "a", "--queue", "http"], ["--namespace", "b", "--compare-header", "x"]]
    {
        let shared = Proxy::start(&broker.url(), &upstream.url(), &more).await;
        assert_eq!(shared.ask(of("ada", "one")).await.status, 201);
        assert_eq!(shared.ask(of("eve", "two")).await.problem(), (422, "conflict".to_owned()));
    }
}

on_each!(callers_who_share_their_keys_get_nothing_of_each_other);
async fn callers_who_share_their_keys_get_nothing_of_each_other(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    for name in ["authorization", "cookie", "x-api-key"] {
        let of = |caller: &str| {
            let mut request = request("/charges", name);
            request.headers_mut().insert(name, caller.parse().unwrap());
            request
        };
        assert_eq!(proxy.ask(of("ada")).await.status, 201, "{name}");
        assert!(proxy.ask(of("ada")).await.is_replayed(), "{name}");
        assert_eq!(proxy.ask(of("eve")).await.problem(), (422, "conflict".to_owned()), "{name}");
    }
}

on_each!(a_key_may_be_in_another_header_or_in_the_body);
async fn a_key_may_be_in_another_header_or_in_the_body(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let start = async |more: &[&str]| Proxy::start(&broker.url(), &upstream.url(), more).await;
    let hook = |name: &str, key: &str, body: &str| {
        let request = Request::post("/charges").header(name, key);
        request.body(Full::from(body.to_owned())).unwrap()
    };
    let by_header = start(&["--key-header", "webhook-id"]).await;
    let ask = async |name, key| by_header.ask(hook(name, key, "{}")).await;
    assert_eq!(ask("webhook-id", "evt_1").await.status, 201);
    assert!(ask("webhook-id", "evt_1").await.is_replayed());
    assert_eq!(ask("webhook-id", "evt_2").await.status, 201);
    assert_eq!(ask("idempotency-key", "k").await.problem(), (400, "missing_key".to_owned()));

    let by_body = start(&["--key-json", "/data/id", "--namespace", "body"]).await;
    let ask = async |body| by_body.ask(hook("x", "y", body)).await;
    assert_eq!(ask(r#"{"data":{"id":"evt_1"}}"#).await.status, 201);
    assert!(ask(r#"{"data":{"id":"evt_1"}}"#).await.is_replayed());
    assert_eq!(ask(r#"{"data":{"id":2}}"#).await.status, 201);
    let other = ask(r#"{"data":{"id":"evt_1"},"more":1}"#).await;
    assert_eq!(other.problem(), (422, "conflict".to_owned()));
    assert_eq!(other.json()["type"], "urn:hapax:error:conflict", "no page of the upstream's");
    assert_eq!(ask(r#"{"data":{}}"#).await.problem(), (400, "missing_key".to_owned()));
}

on_each!(a_response_that_is_too_large_is_passed_on_and_never_asked_for_twice);
async fn a_response_that_is_too_large_is_passed_on_and_never_asked_for_twice(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &["--response-max", "5"]).await;
    let first = proxy.ask(request("/charges", "k")).await;
    assert_eq!((first.status, first.body.len()), (201, BINARY.len() + 1));
    let again = proxy.ask(request("/charges", "k")).await;
    assert_eq!(again.problem(), (410, "response_not_kept".to_owned()));
    assert_eq!((again.json()["original_status"].as_u64(), upstream.calls()), (Some(201), 1));
}
