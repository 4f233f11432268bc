//! Receives and settles.

use std::time::Duration;

use hapax_core::Receive;
use hapax_server::auth::Action;
use serde_json::{Value, json};

use super::broker::{Broker, get, post, send, text};
use super::waiting::until_state;

#[tokio::test]
async fn every_verb_of_a_settle_is_heard() {
    let broker = Broker::with_queue(r#"{"backoff_min_ms":600000}"#).await;
    broker.send("orders", "k", "x").await;
    let message = broker.receive_one("orders").await;
    let settle = |item: Value| {
        let mut item = item;
        item["lease"] = message["lease"].clone();
        broker.settle("orders", item)
    };
    assert_eq!(settle(json!({"do": "begin"})).await, json!({"answer": "ok"}));
    let save = json!({"do": "save", "name": "charged", "body": "ch_1"});
    assert_eq!(settle(save).await, json!({"answer": "ok"}));
    let extended = settle(json!({"do": "extend", "lease_ms": 3_600_000})).await;
    assert!(text(&extended, "deadline") > text(&message, "deadline"));
    let failed = settle(json!({"do": "fail", "error": "timeout"})).await;
    assert_eq!((&failed["answer"], &failed["state"]), (&json!("ok"), &json!("delayed")));
    let lost = settle(json!({"do": "done"})).await;
    assert_eq!(lost, json!({"answer": "lease_lost", "state": "delayed", "result": null}));
    let key = broker.key("orders", "k").await;
    assert_eq!((&key["error"], &key["attempts"]), (&json!("timeout"), &json!(1)));
    assert_eq!(key["recovery_points"], json!({"charged": {"body": "ch_1"}}));
}

#[tokio::test]
async fn a_released_message_comes_again_uncharged_with_its_recovery_points() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "k", "x").await;
    let first = broker.receive_one("orders").await;
    let save = json!({"lease": first["lease"], "do": "save", "name": "p", "body_base64": "/w=="});
    broker.settle("orders", save).await;
    let release = json!({"lease": first["lease"], "do": "release"});
    assert_eq!(broker.settle("orders", release).await, json!({"answer": "ok"}));
    let second = broker.receive_one("orders").await;
    assert_eq!(second["attempt"], 1);
    let fence = |message: &Value| text(message, "fence").parse::<u64>().unwrap();
    assert!(fence(&second) > fence(&first));
    assert_eq!(second["recovery_points"], json!({"p": {"body_base64": "/w=="}}));
    let done = |lease: &Value| json!({"lease": lease, "do": "done", "result": {"body": "r"}});
    broker.settle("orders", done(&second["lease"])).await;
    let late = broker.settle("orders", done(&first["lease"])).await;
    let expected = json!({"answer": "lease_lost", "state": "done", "result": {"body": "r"}});
    assert_eq!(late, expected, "the winner's result is in the answer");
}

#[tokio::test]
async fn a_message_that_is_given_up_is_dead() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "k", "x").await;
    let message = broker.receive_one("orders").await;
    let fail = json!({"lease": message["lease"], "do": "fail", "error": "bad", "dead": true});
    assert_eq!(broker.settle("orders", fail).await, json!({"answer": "ok", "state": "dead"}));
    let told = broker.ask(send("orders", "k", "x")).await.is(200);
    assert_eq!((&told["answer"], &told["error"]), (&json!("dead"), &json!("bad")));
}

#[tokio::test]
async fn emits_reach_their_queues_under_derived_keys() {
    let broker = Broker::with_queue("{}").await;
    broker.put("emails", "{}").await;
    broker.send("orders", "order-42", "x").await;
    let message = broker.receive_one("orders").await;
    let done = json!({"lease": message["lease"], "do": "done", "emit": [
        {"queue": "emails", "name": "receipt", "key": null, "body": "thanks",
         "content_type": "text/plain", "headers": {"to": "me"}},
        {"queue": "emails", "key": "mine", "body_base64": "/w=="},
    ]});
    assert_eq!(broker.settle("orders", done).await, json!({"answer": "ok"}));
    let mut emails = [broker.receive_one("emails").await, broker.receive_one("emails").await];
    emails.sort_by_key(|email| email["key"] == "mine");
    let parent =
        hapax_core::Parent { queue: "orders", group: None, key: "order-42", generation: 0 };
    assert_eq!(emails[0]["key"], hapax_core::derive(&parent, "receipt"));
    assert_eq!(
        (&emails[0]["body"], &emails[0]["headers"]),
        (&json!("thanks"), &json!({"to": "me"}))
    );
    assert_eq!((&emails[1]["key"], &emails[1]["body_base64"]), (&json!("mine"), &json!("/w==")));
}

#[tokio::test]
async fn one_bad_settle_harms_no_neighbour() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "a", "x").await;
    broker.send("orders", "b", "x").await;
    let (a, b) = (broker.receive_one("orders").await, broker.receive_one("orders").await);
    let (a, b) = (&a["lease"], &b["lease"]);
    let items = json!({"items": [
        {"lease": a, "do": "finish"},
        {"lease": a},
        {"lease": a, "do": "done", "emit": [{"queue": "none", "name": "n", "body": "x"}]},
        {"lease": a, "do": "done", "emit": [{"queue": "orders", "body": "x"}]},
        {"lease": a, "do": "done", "emit": [{"queue": "bad name", "name": "n"}]},
        {"lease": a, "do": "done", "result": {"body": "x", "body_base64": "eA=="}},
        {"lease": a, "do": "done", "result": "text"},
        {"lease": a, "do": "save", "name": "", "body": "x"},
        {"lease": a, "do": "extend", "lease_ms": 1},
        {"lease": a, "do": "fail", "delay_ms": 99_999_999_999_999_u64},
        {"lease": "made up", "do": "done"},
        {"lease": "", "do": "done"},
        7,
        {"lease": a, "do": "done"},
        {"lease": b, "do": "done", "result": null, "emit": null},
    ]});
    let told = broker.ask(post("/v1/queues/orders/settle", &items.to_string())).await.is(200);
    let answers: Vec<&str> = told["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["code"].as_str().unwrap_or_else(|| text(answer, "answer")))
        .collect();
    let expected = [
        "invalid",
        "invalid",
        "no_such_queue",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "invalid",
        "lease_lost",
        "lease_lost",
        "invalid",
        "ok",
        "ok",
    ];
    assert_eq!(answers, expected);
    let answers = &told["answers"];
    assert!(text(&answers[0], "detail").contains("\"finish\""));
    assert!(text(&answers[1], "detail").contains("do"), "{}", answers[1]);
    assert!(text(&answers[2], "detail").starts_with("emit[0]"));
    assert!(text(&answers[4], "detail").starts_with("emit[0]"));
    assert!(text(&answers[6], "detail").starts_with("result"), "{}", answers[6]);
}

#[tokio::test]
async fn a_lease_is_good_for_its_own_queue_only() {
    let broker = Broker::with_queue("{}").await;
    broker.put("other", "{}").await;
    broker.send("orders", "k", "x").await;
    let message = broker.receive_one("orders").await;
    let done = json!({"lease": message["lease"], "do": "done"});
    let elsewhere = broker.settle("other", done.clone()).await;
    assert_eq!(elsewhere["answer"], "lease_lost");
    assert_eq!(broker.settle("orders", done).await["answer"], "ok");
}

#[tokio::test]
async fn a_receive_repeated_under_its_id_gets_the_same_messages() {
    let broker = Broker::with_queue("{}").await;
    for key in ["a", "b", "c"] {
        broker.send("orders", key, "x").await;
    }
    let receive = r#"{"max":2,"receive_id":"r-1","worker":"w"}"#;
    let first = broker.ask(post("/v1/queues/orders/receive", receive)).await.is(200);
    let again = broker.ask(post("/v1/queues/orders/receive", receive)).await.is(200);
    let leases = |told: &Value| -> Vec<Value> {
        told["messages"].as_array().unwrap().iter().map(|it| it["lease"].clone()).collect()
    };
    assert_eq!(leases(&first).len(), 2);
    assert_eq!(leases(&first), leases(&again));
}

#[tokio::test]
async fn what_a_receive_asks_for_is_bounded() {
    let broker = Broker::with_queue("{}").await;
    for json in [
        r#"{"max":0}"#,
        r#"{"max":1001}"#,
        r#"{"max":-1}"#,
        r#"{"max":"ten"}"#,
        r#"{"lease_ms":1}"#,
        r#"{"receive_id":""}"#,
        r#"{"wait_ms":1e400}"#,
        &format!(r#"{{"worker":"{}"}}"#, "w".repeat(65)),
    ] {
        broker.ask(post("/v1/queues/orders/receive", json)).await.fails(400, "invalid");
    }
}

#[tokio::test]
async fn what_is_too_much_for_one_answer_comes_with_the_next_uncharged() {
    let broker = Broker::with_queue("{}").await;
    let body = "b".repeat(1_000_000);
    for n in 0..12 {
        broker.send("orders", &format!("k{n:02}"), &body).await;
    }
    let receive = || post("/v1/queues/orders/receive", r#"{"max":100}"#);
    let first = broker.ask(receive()).await.is(200)["messages"].as_array().unwrap().clone();
    let second = broker.ask(receive()).await.is(200)["messages"].as_array().unwrap().clone();
    assert_eq!((first.len(), second.len()), (9, 3), "8 MiB are passed with the ninth");
    let all: Vec<&str> = first.iter().chain(&second).map(|it| text(it, "key")).collect();
    assert!(all.is_sorted(), "in their old order: {all:?}");
    assert!(second.iter().all(|message| message["attempt"] == 1));
}

#[tokio::test]
async fn nothing_is_lost_of_an_at_most_once_receive_however_large() {
    let broker = Broker::with_queue(r#"{"guarantee":"at-most-once"}"#).await;
    let body = "b".repeat(1_000_000);
    for n in 0..10 {
        broker.send("orders", &format!("k{n}"), &body).await;
    }
    for (received, left) in [(9, 1), (1, 0)] {
        let receive = post("/v1/queues/orders/receive", r#"{"max":100}"#);
        let told = broker.ask(receive).await.is(200);
        assert_eq!(told["messages"].as_array().unwrap().len(), received);
        let stats = broker.ask(get("/v1/queues/orders")).await.is(200)["stats"].clone();
        assert_eq!((&stats["ready"], &stats["done_total"]), (&json!(left), &json!(10 - left)));
    }
}

#[tokio::test]
async fn settles_are_bounded_in_number() {
    let broker = Broker::with_queue("{}").await;
    let items: Value = (0..1_001).map(|_| json!({"lease": "l", "do": "done"})).collect();
    let many = json!({ "items": items }).to_string();
    broker.ask(post("/v1/queues/orders/settle", &many)).await.fails(413, "too_large");
    let none = broker.ask(post("/v1/queues/orders/settle", r#"{"items":[]}"#)).await.is(200);
    assert_eq!(none, json!({"answers": []}));
    broker.ask(post("/v1/queues/orders/settle", "")).await.fails(400, "invalid");
}

#[tokio::test]
async fn a_message_in_doubt_is_parked_only_where_it_was_begun_and_the_queue_parks() {
    for (config, begin, dead, state) in [
        (r#"{"on_lost":"park"}"#, true, false, "parked"),
        (r#"{"on_lost":"park"}"#, false, false, "delayed"),
        ("{}", true, false, "delayed"),
        (r#"{"on_lost":"park"}"#, true, true, "parked"),
        (r#"{"on_lost":"park"}"#, false, true, "dead"),
        ("{}", true, true, "dead"),
    ] {
        let broker = Broker::with_queue(config).await;
        broker.send("orders", "k", "x").await;
        let lease = broker.receive_one("orders").await["lease"].clone();
        if begin {
            broker.settle("orders", json!({"lease": lease, "do": "begin"})).await;
        }
        let park = json!({"lease": lease, "do": "park", "error": "killed in the middle",
                          "dead": dead});
        let told = broker.settle("orders", park.clone()).await;
        assert_eq!((&told["answer"], &told["state"]), (&json!("ok"), &json!(state)), "{config}");
        let again = broker.settle("orders", park).await;
        assert_eq!((&again["answer"], &again["state"]), (&told["answer"], &told["state"]));
        let key = broker.key("orders", "k").await;
        assert_eq!((&key["state"], &key["error"]), (&json!(state), &json!("killed in the middle")));
    }
}

#[tokio::test]
async fn a_delivery_tells_whose_it_is_and_how_long_it_lasts() {
    let broker = Broker::with_queue(r#"{"lease_ms":7000}"#).await;
    broker.send("orders", "k", "x").await;
    let message = broker.receive_one("orders").await;
    assert_eq!((&message["tenant"], &message["queue"]), (&json!("default"), &json!("orders")));
    assert_eq!(message["lease_ms"], 7_000);
    assert!(message["fence"].is_string(), "{message}");
}

#[tokio::test]
async fn an_emit_keeps_its_time_to_live_and_its_fingerprint() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "parent", "x").await;
    let lease = broker.receive_one("orders").await["lease"].clone();
    let emit = json!([{"queue": "orders", "key": "child", "body": "a", "ttl_ms": 1,
                       "fingerprint": "f"}]);
    broker.settle("orders", json!({"lease": lease, "do": "done", "emit": emit})).await;
    until_state(&broker, "child", "dead").await;
    let other = send("orders", "child", "b").header("hapax-fingerprint", "g");
    broker.ask(other).await.fails(422, "conflict");
    let same = send("orders", "child", "b").header("hapax-fingerprint", "f");
    assert_eq!(broker.ask(same).await.is(200)["answer"], "dead");
}

#[tokio::test]
async fn l10_what_an_answer_could_not_be_made_with_stays_leased_under_an_id_and_not_without() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "k", "x").await;
    let caller = broker.service.authenticate(None).unwrap();
    let permit = broker.service.authorise(&caller, Action::Work, "orders").unwrap();
    let receive = |id: Option<&str>| Receive {
        queue: permit.queue().clone(),
        max: 1,
        lease_ms: None,
        worker: "w".into(),
        receive_id: id.map(Into::into),
        several_per_group: false,
    };
    let received = async |id| {
        let received = broker.service.receive_list(&permit, receive(id), Duration::ZERO).await;
        received.unwrap().messages().len()
    };
    assert_eq!(received(None).await, 1);
    hapax_testing::eventually("what was dropped to be free", async || {
        received(Some("r")).await == 1
    })
    .await;
    assert_eq!(received(None).await, 0, "whoever asked under the id may hold it");
    assert_eq!(received(Some("r")).await, 1);
}
