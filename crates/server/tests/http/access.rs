//! Tokens: who may do what, and what looks absent.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hapax_server::auth::{Auth, NewToken, Patterns, TokenFile, Tokens};
use hapax_server::listen::Peer;
use hapax_server::service::{Ceiling, Options};
use hapax_server::tenants::{Limits, Tenants};
use serde_json::json;

use super::broker::{Ask, Broker, ask, get, post, put, send};

/// A broker with tokens: `NAME` is of `tenant`, for queues, and can do things.
pub(crate) fn guarded(
    tokens: &[(&'static str, &str, &str, &str)],
) -> (Broker, HashMap<&'static str, String>) {
    let mut made = HashMap::new();
    let broker = Broker::with(1, |path| {
        for (name, tenant, queues, can) in tokens {
            let new = NewToken {
                name: None,
                tenant: (*tenant).to_owned(),
                queues: Patterns::new([queues.parse().unwrap()]).unwrap(),
                can: can.parse().unwrap(),
                expires_at: None,
            };
            let created = TokenFile::in_directory(path).create(new, jiff::Timestamp::now());
            made.insert(*name, created.unwrap().token);
        }
        let auth = Auth::Tokens(Arc::new(Tokens::open(path).unwrap()));
        Options { auth, ..Options::default() }
    });
    (broker, made)
}

pub(crate) trait By {
    fn by(self, token: &str) -> Self;
}

impl By for Ask {
    fn by(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }
}

#[tokio::test]
async fn without_a_token_nothing_but_the_brokers_own_pages_is_served() {
    let (broker, tokens) = guarded(&[("root", "shop", "*", "send,work,admin")]);
    for (method, path) in hapax_server::doors::http::ROUTES {
        let path = path.replace("{queue}", "q").replace("{key}", "k").replace("{id}", "i");
        let path = path.replace("{code}", "conflict");
        let told = broker.ask(ask(&method.to_uppercase(), &path)).await;
        let is_open = !path.starts_with("/v1/queues") && path != "/metrics";
        match is_open {
            true => assert_eq!(told.status, 200, "{path}"),
            false => {
                told.fails(401, "unauthorized");
                assert_eq!(told.header("www-authenticate"), "Bearer");
            }
        }
    }
    let root = &tokens["root"];
    broker.ask(get("/v1/queues").by(root)).await.is(200);
    for bad in ["", "x", &format!("{root}x"), &root[..root.len() - 1]] {
        broker.ask(get("/v1/queues").by(bad)).await.fails(401, "unauthorized");
    }
    let basic = get("/v1/queues").header("authorization", format!("Basic {root}"));
    broker.ask(basic).await.fails(401, "unauthorized");
    broker.ask(get("/v1/queues").by(root).by(root)).await.fails(401, "unauthorized");
}

#[tokio::test]
async fn what_a_token_may_not_do_is_forbidden_and_what_it_may_not_see_is_absent() {
    let (broker, tokens) = guarded(&[
        ("root", "shop", "*", "send,work,admin"),
        ("sender", "shop", "orders", "send"),
        ("worker", "shop", "orders", "work"),
        ("other", "bank", "*", "send,work,admin"),
    ]);
    let by = |name: &str, ask: Ask| broker.ask(ask.by(&tokens[name]));
    by("root", put("/v1/queues/orders", "{}")).await.is(201);
    by("root", put("/v1/queues/secret", "{}")).await.is(201);
    by("sender", send("orders", "k", "x")).await.is(201);
    by("sender", post("/v1/queues/orders/receive", "{}")).await.fails(403, "forbidden");
    by("sender", put("/v1/queues/orders", "{}")).await.fails(403, "forbidden");
    by("sender", ask("DELETE", "/v1/queues/orders")).await.fails(403, "forbidden");
    by("sender", send("secret", "k", "x")).await.fails(404, "no_such_queue");
    by("worker", send("orders", "k", "x")).await.fails(403, "forbidden");
    let claim = post("/v1/queues/orders/claims", "x").header("idempotency-key", "c");
    by("worker", claim).await.fails(403, "forbidden");
    let list = by("sender", get("/v1/queues")).await.is(200);
    assert_eq!(list["queues"].as_array().unwrap().len(), 1);
    assert_eq!(list["queues"][0]["queue"], "orders");

    let absent = by("other", get("/v1/queues/orders")).await.fails(404, "no_such_queue");
    let nowhere = by("sender", get("/v1/queues/secret")).await.fails(404, "no_such_queue");
    assert_eq!(
        absent["detail"].as_str().map(|it| it.replace("orders", "secret")).as_deref(),
        nowhere["detail"].as_str()
    );
    by("other", get("/v1/queues/orders/keys/k")).await.fails(404, "no_such_queue");
    assert_eq!(by("other", get("/v1/queues")).await.is(200), json!({"queues": []}));
}

#[tokio::test]
async fn an_emit_needs_the_right_to_send() {
    let (broker, tokens) =
        guarded(&[("root", "shop", "*", "send,work,admin"), ("worker", "shop", "*", "work")]);
    let by = |name: &str, ask: Ask| broker.ask(ask.by(&tokens[name]));
    for queue in ["orders", "emails"] {
        by("root", put(&format!("/v1/queues/{queue}"), "{}")).await.is(201);
    }
    by("root", send("orders", "k", "x")).await.is(201);
    let told = by("worker", post("/v1/queues/orders/receive", "{}")).await.is(200);
    let lease = &told["messages"][0]["lease"];
    let emitting = json!({"items": [
        {"lease": lease, "do": "done", "emit": [{"queue": "emails", "name": "n", "body": "x"}]},
        {"lease": lease, "do": "done"},
    ]});
    let settle = post("/v1/queues/orders/settle", &emitting.to_string());
    let told = by("worker", settle).await.is(200);
    assert_eq!(told["answers"][0]["code"], "forbidden");
    assert_eq!(told["answers"][1]["answer"], "ok");
}

#[tokio::test]
async fn metrics_are_open_to_the_own_machine_and_else_need_a_token() {
    let (broker, tokens) = guarded(&[("root", "shop", "*", "send,work,admin")]);
    broker.ask(put("/v1/queues/orders", "{}").by(&tokens["root"])).await.is(201);
    let from = |address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        let get = get("/metrics").header("host", "localhost");
        get.extension(Peer { address, is_encrypted: false })
    };
    for near in ["127.0.0.1:5", "[::1]:5"] {
        let told = broker.ask(from(near)).await;
        assert_eq!(told.status, 200);
        assert!(told.text().contains("hapax_"), "{}", told.text());
    }
    broker.ask(from("192.0.2.7:5")).await.fails(401, "unauthorized");
    let told = broker.ask(from("192.0.2.7:5").by(&tokens["root"])).await;
    assert_eq!(told.status, 200);
    assert!(told.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = told.text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types: Vec<(&str, &str)> = types.filter_map(|line| line.split_once(' ')).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let is_of = |(of, kind): &&(&str, &str)| match *kind {
            "histogram" => name.strip_prefix(of).is_some_and(|rest| rest.starts_with('_')),
            _ => name == *of,
        };
        let (_, kind) = types.iter().find(is_of).unwrap_or_else(|| panic!("what is {line}?"));
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{line}");
    }
    let open = from("127.0.0.1:5").header("accept", "application/openmetrics-text;version=1.0.0");
    let told = broker.ask(open).await;
    assert!(told.header("content-type").starts_with("application/openmetrics-text"));
    assert!(told.text().ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_tenant_has_limits_of_its_own() {
    let limits = Limits { sends_per_s: Some(2), max_queues: Some(1) };
    let broker = Broker::with(1, |_| {
        let tenants = Tenants::new(limits, Default::default(), Instant::now());
        Options { tenants, ..Options::default() }
    });
    broker.put("orders", "{}").await;
    broker.ask(put("/v1/queues/more", "{}")).await.fails(429, "over_quota");
    broker.ask(put("/v1/queues/orders", "{}")).await.is(200);
    // What is paid for later holds however slow the machine is.
    let many: Vec<_> = (0..1_000).map(|number| json!({"key": format!("k{number}")})).collect();
    let batch = json!({ "messages": many }).to_string();
    broker.ask(post("/v1/queues/orders/batch", &batch)).await.is(200);
    broker.ask(send("orders", "c", "x")).await.fails(429, "rate_limited");
    let claim = |key| post("/v1/queues/orders/claims", "x").header("idempotency-key", key);
    broker.ask(claim("c")).await.fails(429, "rate_limited");
    let more = json!({"messages": [{"key": "c"}, {"key": "d"}, {"key": "e"}]}).to_string();
    let told = broker.ask(post("/v1/queues/orders/batch", &more)).await.is(200);
    for result in told["answers"].as_array().unwrap() {
        assert_eq!(result["code"], "rate_limited", "{told}");
    }
}

#[tokio::test]
async fn k2_the_limits_of_a_tenant_leave_known_keys_their_answers() {
    let limits = Limits { sends_per_s: Some(3), max_queues: None };
    let broker = Broker::with(1, |_| {
        let tenants = Tenants::new(limits, Default::default(), Instant::now());
        Options { tenants, ..Options::default() }
    });
    broker.put("orders", "{}").await;
    broker.ask(send("orders", "done", "x")).await.is(201);
    let lease = broker.receive_one("orders").await["lease"].clone();
    let done = json!({"lease": lease, "do": "done"});
    assert_eq!(broker.settle("orders", done).await, json!({"answer": "ok"}));
    broker.ask(send("orders", "lives", "x")).await.is(201);
    for _ in 0..20 {
        broker.ask(send("orders", "done", "x")).await.is(200);
    }
    // None of that was taken from the rate.
    broker.ask(send("orders", "third", "x")).await.is(201);
    let mut refused = None;
    for number in 0..1_000 {
        // The rate is earned again while the test runs.
        let told = broker.ask(send("orders", &format!("new-{number}"), "x")).await;
        if told.status != 201 {
            refused = Some(told);
            break;
        }
    }
    let refused = refused.expect("a rate that is kept").fails(429, "rate_limited");
    assert_eq!(refused["detail"], "the tenant's sends_per_s is exceeded");
    for _ in 0..10 {
        let told = broker.ask(send("orders", "done", "x")).await.is(200);
        assert_eq!(told["answer"], "done");
        let told = broker.ask(send("orders", "lives", "x")).await.is(200);
        assert_eq!(told["answer"], "in_flight");
        broker.ask(send("orders", "done", "another")).await.fails(422, "conflict");
    }
}

#[tokio::test]
async fn queues_that_are_made_at_once_are_counted_one_by_one() {
    for partitions in [1, 4] {
        let limits = Limits { sends_per_s: None, max_queues: Some(3) };
        let broker = Broker::with(partitions, |_| {
            let tenants = Tenants::new(limits, Default::default(), Instant::now());
            Options { tenants, ..Options::default() }
        });
        let paths: Vec<_> = (0..12).map(|number| format!("/v1/queues/q{number}")).collect();
        let puts = paths.iter().map(|path| broker.ask(put(path, "{}")));
        let told = futures_util::future::join_all(puts).await;
        let made = told.iter().filter(|told| told.status == 201).count();
        assert_eq!(made, 3, "{told:?}");
        told.iter().filter(|told| told.status != 201).for_each(|told| {
            told.fails(429, "over_quota");
        });
    }
}

#[tokio::test]
async fn k2_a_claim_that_waited_is_judged_by_the_rate_of_the_moment() {
    let limits = Limits { sends_per_s: Some(100), max_queues: None };
    let broker = Broker::with(1, |_| {
        let tenants = Tenants::new(limits, Default::default(), Instant::now());
        Options { tenants, ..Options::default() }
    });
    broker.put("orders", "{}").await;
    broker.put("full", r#"{"max_messages":1}"#).await;
    broker.ask(send("full", "first", "x")).await.is(201);
    let claim = |wait| {
        let claim = post("/v1/queues/orders/claims", "x").header("idempotency-key", "k");
        claim.header("prefer", format!("wait={wait}"))
    };
    let batch = |count| {
        let messages: Vec<_> = (0..count).map(|n| json!({"key": format!("k{n}")})).collect();
        json!({ "messages": messages }).to_string()
    };
    let first = broker.ask(claim(0)).await.is(201);
    // More than a second's worth, for which a full bucket is needed: the next one has to wait.
    hapax_testing::eventually("the rate to be earned", async || {
        let told = broker.ask(post("/v1/queues/orders/batch", &batch(300))).await.is(200);
        told["answers"][0]["answer"] == "accepted"
    })
    .await;
    let waiting = broker.ask(claim(60));
    let released = async {
        // A full queue refuses what the rate lets through, which takes nothing from the rate.
        hapax_testing::eventually("the rate to be earned again", async || {
            let told = broker.ask(post("/v1/queues/full/batch", &batch(50))).await.is(200);
            told["answers"][0]["code"] == "over_quota"
        })
        .await;
        broker.settle("orders", json!({"lease": first["lease"], "do": "release"})).await
    };
    let (second, _) = futures_util::future::join(waiting, released).await;
    assert_eq!(second.is(201)["answer"], "fresh");
}

#[tokio::test]
async fn k2_a_tenant_that_holds_all_it_may_gets_its_answers() {
    let ceiling = Ceiling { max_messages: Some(1), max_bytes: None };
    let broker = Broker::with(1, |_| {
        let ceilings = [(hapax_wire::DEFAULT_TENANT.into(), ceiling)].into();
        Options { ceilings, ..Options::default() }
    });
    broker.put("orders", "{}").await;
    broker.ask(send("orders", "a", "x")).await.is(201);
    broker.service.weigh_tenants().await;
    let refused = broker.ask(send("orders", "b", "x")).await.fails(429, "over_quota");
    assert_eq!(refused["detail"], "the tenant has reached its max_messages");
    assert_eq!(broker.ask(send("orders", "a", "x")).await.is(200)["answer"], "in_flight");
    let batch = json!({"messages": [{"key": "a", "body": "x"}, {"key": "b"}]}).to_string();
    let told = broker.ask(post("/v1/queues/orders/batch", &batch)).await.is(200);
    assert_eq!(told["answers"][0]["answer"], "in_flight", "{told}");
    assert_eq!(told["answers"][1]["code"], "over_quota", "{told}");
}

#[tokio::test]
async fn a_web_page_of_another_site_gets_nothing_done() {
    let broker = Broker::with_queue("{}").await;
    for site in ["cross-site", "same-site"] {
        let ask = send("orders", "k", "x").header("sec-fetch-site", site);
        broker.ask(ask).await.fails(403, "forbidden");
    }
    let own = send("orders", "k", "x").header("sec-fetch-site", "same-origin");
    broker.ask(own).await.is(201);
    broker.ask(get("/v1/queues").header("sec-fetch-site", "cross-site")).await.is(200);
}

#[tokio::test]
async fn a_producer_does_not_browse_the_messages_of_others() {
    let callers = [("root", "send,work,admin"), ("producer", "send"), ("worker", "work")];
    let callers = callers.map(|(name, can)| (name, "shop", "*", can));
    let (broker, tokens) = guarded(&callers);
    broker.ask(put("/v1/queues/orders", "{}").by(&tokens["root"])).await.is(201);
    broker.ask(send("orders", "k", "secret").by(&tokens["producer"])).await.is(201);
    let browse = || get("/v1/queues/orders/messages?state=ready");
    let told = broker.ask(browse().by(&tokens["producer"])).await.fails(403, "forbidden");
    assert!(told["detail"].as_str().unwrap().contains("work or admin"), "{told}");
    for name in ["root", "worker"] {
        let page = broker.ask(browse().by(&tokens[name])).await.is(200);
        assert_eq!(page["messages"][0]["body"], "secret", "{name}");
    }
    broker.ask(get("/v1/queues/orders/keys/k").by(&tokens["producer"])).await.is(200);
}
