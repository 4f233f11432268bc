//! Looking at keys, and browsing.

use serde_json::{Value, json};

use super::broker::{Broker, ask, get, send, text};

#[tokio::test]
async fn keys_in_paths_are_percent_encoded() {
    let broker = Broker::with_queue("{}").await;
    for (key, path) in [
        ("\"a/b\"", "a%2Fb"),
        ("\"a b\"", "a%20b"),
        ("\"größe?#%\"", "gr%C3%B6%C3%9Fe%3F%23%25"),
        ("\"..\"", "%2E%2E"),
        ("\"100%\"", "100%25"),
        ("\"a+b\"", "a+b"),
        ("\"redrive\"", "redrive"),
    ] {
        let sent = broker.send("orders", key, "x").await;
        let found = broker.key("orders", path).await;
        assert_eq!((&found["id"], &found["key"]), (&sent["id"], &sent["key"]), "{path}");
    }
    broker.ask(get("/v1/queues/orders/keys/%FF%FE")).await.fails(400, "malformed_key");
    broker.ask(get("/v1/queues/orders/keys/a%00b")).await.fails(400, "malformed_key");
    let long = format!("/v1/queues/orders/keys/{}", "k".repeat(256));
    broker.ask(get(&long)).await.fails(400, "malformed_key");
    broker.ask(get("/v1/queues/orders/keys/none")).await.fails(404, "no_such_key");
    broker.ask(get("/v1/queues/none/keys/k")).await.fails(404, "no_such_queue");
}

#[tokio::test]
async fn a_key_belongs_to_its_group_where_the_queue_deduplicates_per_group() {
    let broker = Broker::with_queue(r#"{"order":"group","dedup_scope":"group"}"#).await;
    let grouped = |group: &str| send("orders", "k", group).header("hapax-group", group);
    let (one, two) =
        (broker.ask(grouped("g1")).await.is(201), broker.ask(grouped("g2")).await.is(201));
    assert_ne!(one["id"], two["id"]);
    broker.ask(send("orders", "k", "x")).await.fails(400, "invalid");
    for (group, sent) in [("g1", &one), ("g2", &two)] {
        let key = broker.key("orders", &format!("k?group={group}")).await;
        assert_eq!((&key["id"], &key["group"]), (&sent["id"], &json!(group)));
    }
    broker.ask(get("/v1/queues/orders/keys/k?group=g3")).await.fails(404, "no_such_key");
    let message = broker.receive_one("orders").await;
    broker.settle("orders", json!({"lease": message["lease"], "do": "done"})).await;
    let group = text(&message, "group");
    let key = broker.key("orders", &format!("k?group={group}")).await;
    assert_eq!((&key["state"], &key["group"]), (&json!("done"), &json!(group)));
}

#[tokio::test]
async fn a_look_at_a_living_message_shows_its_body_and_headers() {
    let broker = Broker::with_queue("{}").await;
    let ask = send("orders", "k", "hello").header("hapax-header-a", "1");
    broker.ask(ask.header("content-type", "text/plain")).await.is(201);
    let key = broker.key("orders", "k").await;
    assert_eq!((&key["body"], &key["content_type"]), (&json!("hello"), &json!("text/plain")));
    assert_eq!(key["headers"], json!({"a": "1"}));
    assert_eq!((&key["finished_at"], &key["result"]), (&json!(null), &json!(null)));
}

#[tokio::test]
async fn browsing_goes_page_by_page_and_leases_nothing() {
    for partitions in [1, 3] {
        let broker = Broker::with(partitions, |_| hapax_server::service::Options::default());
        broker.put("orders", "{}").await;
        for n in 0..25 {
            broker.send("orders", &format!("k{n:02}"), "x").await;
        }
        let (mut seen, mut ages) = (Vec::new(), Vec::new());
        let mut path = "/v1/queues/orders/messages?state=ready&limit=10".to_owned();
        loop {
            let page = broker.ask(get(&path)).await.is(200);
            let messages = page["messages"].as_array().unwrap();
            assert!(messages.len() <= 10);
            assert!(messages.iter().all(|it| it["body"] == "x" && it["state"] == "ready"));
            seen.extend(messages.iter().map(|it| text(it, "key").to_owned()));
            ages.extend(messages.iter().map(|it| text(it, "accepted_at").to_owned()));
            match page["next"].as_str() {
                Some(next) => {
                    path = format!("/v1/queues/orders/messages?limit=10&cursor={next}");
                }
                None => break,
            }
        }
        assert!(ages.is_sorted(), "the oldest first on {partitions} partitions: {ages:?}");
        seen.sort();
        let expected: Vec<String> = (0..25).map(|n| format!("k{n:02}")).collect();
        assert_eq!(seen, expected, "on {partitions} partitions");
        let stats = broker.ask(get("/v1/queues/orders")).await.is(200)["stats"].clone();
        assert_eq!((&stats["ready"], &stats["leased"]), (&json!(25), &json!(0)));
    }
}

#[tokio::test]
async fn a_page_of_large_messages_is_cut_and_goes_on() {
    for partitions in [1, 3] {
        large_pages(partitions).await;
    }
}

async fn large_pages(partitions: u16) {
    let broker = Broker::with(partitions, |_| hapax_server::service::Options::default());
    broker.put("orders", "{}").await;
    for n in 0..10 {
        broker.send("orders", &format!("k{n}"), &"b".repeat(1_000_000)).await;
    }
    let mut keys = Vec::new();
    let mut path = "/v1/queues/orders/messages".to_owned();
    let mut pages = 0;
    loop {
        let page = broker.ask(get(&path)).await.is(200);
        pages += 1;
        let messages = page["messages"].as_array().unwrap();
        keys.extend(messages.iter().map(|it| text(it, "key").to_owned()));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/queues/orders/messages?cursor={next}"),
            None => break,
        }
    }
    assert!(pages > 1);
    keys.sort();
    assert_eq!(keys, (0..10).map(|n| format!("k{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_cannot_be_browsed_is_said() {
    let broker = Broker::with_queue("{}").await;
    for query in [
        "state=done",
        "state=gone",
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=many",
        "cursor=nonsense",
        "cursor=MC45OTk5OTk5OTk5OTk5OTk5OTk5",
        "cursor=MC43",
        "cursor=v2.0.1.1",
        "cursor=v2.9.9223372036854775807",
    ] {
        let told = broker.ask(get(&format!("/v1/queues/orders/messages?{query}"))).await;
        told.fails(400, "invalid");
    }
    broker.ask(get("/v1/queues/none/messages")).await.fails(404, "no_such_queue");
    let empty = broker.ask(get("/v1/queues/orders/messages?state=dead")).await.is(200);
    assert_eq!(empty, json!({"messages": [], "next": null}));
}

#[tokio::test]
async fn a_keyless_message_is_found_by_its_id_wherever_it_lives() {
    let broker = Broker::with(4, |_| hapax_server::service::Options::default());
    broker.put("orders", r#"{"guarantee":"at-least-once"}"#).await;
    for _ in 0..20 {
        let ask = super::broker::ask("POST", "/v1/queues/orders/messages").body("x");
        let sent = broker.ask(ask).await.is(201);
        let found = broker.key("orders", text(&sent, "id")).await;
        assert_eq!((&found["id"], &found["state"]), (&sent["id"], &json!("ready")));
    }
}

#[tokio::test]
async fn the_group_of_a_key_is_its_own_and_not_that_of_the_request() {
    let broker = Broker::with_queue("{}").await;
    broker.put("scoped", r#"{"dedup_scope":"group"}"#).await;
    broker.send("orders", "k", "x").await;
    let looked = async |path: &str| broker.ask(get(path)).await.is(200)["group"].clone();
    assert_eq!(looked("/v1/queues/orders/keys/k?group=fake").await, Value::Null);
    let delivery = broker.receive_one("orders").await;
    assert!(delivery.get("keys_per_group").is_none(), "{delivery}");
    broker.settle("orders", json!({"lease": delivery["lease"], "do": "done"})).await;
    assert_eq!(looked("/v1/queues/orders/keys/k?group=fake").await, Value::Null);

    broker.ask(send("orders", "g", "x").header("hapax-group", "eu")).await.is(201);
    let delivery = broker.receive_one("orders").await;
    assert!(delivery.get("keys_per_group").is_none(), "a group alone is not part of the key");

    broker.ask(send("scoped", "k", "x").header("hapax-group", "eu")).await.is(201);
    let delivery = broker.receive_one("scoped").await;
    assert_eq!((&delivery["group"], &delivery["keys_per_group"]), (&json!("eu"), &json!(true)));
    broker.settle("scoped", json!({"lease": delivery["lease"], "do": "done"})).await;
    assert_eq!(looked("/v1/queues/scoped/keys/k?group=eu").await, json!("eu"));
}

#[tokio::test]
async fn a_key_that_is_asked_for_without_its_group_is_refused_with_a_hint() {
    let broker = Broker::with_queue(r#"{"order":"group","dedup_scope":"group"}"#).await;
    broker.ask(send("orders", "k", "x").header("hapax-group", "g1")).await.is(201);
    let key = "/v1/queues/orders/keys/k";
    for asked in
        [get(key), ask("POST", &format!("{key}/forget")), ask("POST", &format!("{key}/redrive"))]
    {
        let told = broker.ask(asked).await.fails(404, "no_such_key");
        assert!(text(&told, "detail").contains("give the group of the key too"), "{told}");
    }
    let told = broker.ask(get(&format!("{key}?group=g2"))).await.fails(404, "no_such_key");
    assert!(!text(&told, "detail").contains("group of the key"), "{told}");
    let plain = Broker::with_queue("{}").await;
    let told = plain.ask(get(key)).await.fails(404, "no_such_key");
    assert!(!text(&told, "detail").contains("group"), "{told}");
}

#[tokio::test]
async fn a_repeated_command_on_a_key_is_refused_with_the_hint_that_the_first_may_have_done_it() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "k", "x").await;
    for verb in ["redrive", "replay"] {
        let told = broker.ask(ask("POST", &format!("/v1/queues/orders/keys/k/{verb}"))).await;
        let told = told.fails(400, "invalid");
        assert!(text(&told, "detail").contains("the first one may have done it"), "{told}");
    }
}
