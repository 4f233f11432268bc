//! What operators do to keys: forget, replay, redrive, discard, resolve.

use serde_json::{Value, json};

use super::broker::{Broker, ask, get, post, send, text};

async fn act(broker: &Broker, key: &str, verb: &str) -> super::broker::Answered {
    broker.ask(ask("POST", &format!("/v1/queues/orders/keys/{key}/{verb}"))).await
}

async fn finish(broker: &Broker, key: &str) {
    broker.send("orders", key, "x").await;
    let message = broker.receive_one("orders").await;
    assert_eq!(message["key"], key);
    broker.settle("orders", json!({"lease": message["lease"], "do": "done"})).await;
}

async fn kill(broker: &Broker, key: &str, error: &str) {
    broker.send("orders", key, "x").await;
    let message = broker.receive_one("orders").await;
    let fail = json!({"lease": message["lease"], "do": "fail", "error": error, "dead": true});
    assert_eq!(broker.settle("orders", fail).await["state"], "dead");
}

#[tokio::test]
async fn a_forgotten_key_is_new_again() {
    let broker = Broker::with_queue("{}").await;
    finish(&broker, "k").await;
    let told = act(&broker, "k", "forget").await.is(200);
    assert_eq!(told, json!({"answer": "ok", "key": "k"}));
    act(&broker, "k", "forget").await.fails(404, "no_such_key");
    broker.send("orders", "k", "something else").await;
    act(&broker, "k", "forget").await.fails(400, "invalid");
}

#[tokio::test]
async fn a_replay_runs_the_same_message_as_the_next_generation() {
    let broker = Broker::with_queue("{}").await;
    finish(&broker, "k").await;
    let replay = |body: &'static str| ask("POST", "/v1/queues/orders/keys/k/replay").body(body);
    let gone = broker.ask(replay("")).await.fails(400, "invalid");
    assert!(text(&gone, "detail").contains("is no longer stored"), "{gone}");
    broker.ask(replay("y")).await.fails(422, "conflict");
    let other = replay("x").header("idempotency-key", "l");
    broker.ask(other).await.fails(400, "invalid");
    let told = broker.ask(replay("x")).await.is(200);
    let expected = json!({"answer": "ok", "key": "k", "state": "ready", "generation": 1});
    assert_eq!(told, expected);
    broker.ask(replay("x")).await.fails(400, "invalid");
    let message = broker.receive_one("orders").await;
    assert_eq!((&message["generation"], &message["body"]), (&json!(1), &json!("x")));
}

#[tokio::test]
async fn an_empty_message_can_be_replayed_too() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "k", "").await;
    let message = broker.receive_one("orders").await;
    broker.settle("orders", json!({"lease": message["lease"], "do": "done"})).await;
    act(&broker, "k", "replay").await.is(200);
}

#[tokio::test]
async fn a_dead_message_is_redriven_by_its_key() {
    let broker = Broker::with_queue("{}").await;
    kill(&broker, "k", "bad").await;
    let told = act(&broker, "k", "redrive").await.is(200);
    assert_eq!((&told["answer"], &told["state"]), (&json!("ok"), &json!("ready")));
    act(&broker, "k", "redrive").await.fails(400, "invalid");
    act(&broker, "none", "redrive").await.fails(404, "no_such_key");
    assert_eq!(broker.receive_one("orders").await["key"], "k");
}

#[tokio::test]
async fn a_discarded_message_is_given_up_and_remembered() {
    let broker = Broker::with_queue("{}").await;
    kill(&broker, "k", "bad").await;
    let told = act(&broker, "k", "discard").await.is(200);
    assert_eq!(told["state"], "discarded");
    assert_eq!(broker.key("orders", "k").await["state"], "discarded");
    let again = broker.ask(send("orders", "k", "x")).await.is(200);
    assert_eq!(again["answer"], "dead");
    broker.send("orders", "leased", "x").await;
    broker.receive_one("orders").await;
    act(&broker, "leased", "discard").await.fails(400, "invalid");
}

/// A message that is parked: begun, and its lease lost.
async fn park(broker: &Broker, key: &str) {
    broker.send("orders", key, "x").await;
    let receive = r#"{"max":1,"lease_ms":600000,"wait_ms":30000}"#;
    let told = broker.ask(post("/v1/queues/orders/receive", receive)).await.is(200);
    let lease = told["messages"][0]["lease"].clone();
    let begun = broker.settle("orders", json!({"lease": lease, "do": "begin"})).await;
    assert_eq!(begun["answer"], "ok");
    // Short only now: a machine that stalls would lose it before.
    let extend = json!({"lease": lease, "do": "extend", "lease_ms": 100});
    assert_eq!(broker.settle("orders", extend).await["answer"], "ok");
    let looked = broker.ask(get(&format!("/v1/queues/orders/keys/{key}?wait_ms=30000"))).await;
    assert_eq!(looked.is(200)["state"], "parked");
}

#[tokio::test]
async fn a_parked_message_is_resolved() {
    let broker = Broker::with_queue(r#"{"on_lost":"park"}"#).await;
    let resolve = |key: &str, json: &str| {
        broker.ask(post(&format!("/v1/queues/orders/keys/{key}/resolve"), json))
    };
    park(&broker, "a").await;
    let parked = broker.ask(send("orders", "a", "x")).await.is(200);
    assert_eq!(parked["answer"], "parked");
    for bad in [r#"{"do":"forget"}"#, "{}", r#"{"do":"done","result":{"body":1}}"#] {
        resolve("a", bad).await.fails(400, "invalid");
    }
    let done = resolve("a", r#"{"do":"done","result":{"body":"by hand"}}"#).await.is(200);
    assert_eq!(done["state"], "done");
    assert_eq!(broker.key("orders", "a").await["result"]["body"], "by hand");
    resolve("a", r#"{"do":"retry"}"#).await.fails(400, "invalid");
    park(&broker, "b").await;
    assert_eq!(resolve("b", r#"{"do":"retry"}"#).await.is(200)["state"], "ready");
    assert_eq!(broker.receive_one("orders").await["key"], "b");
}

async fn redrive(broker: &Broker, json: &str) -> Value {
    broker.ask(post("/v1/queues/orders/redrive", json)).await.is(200)
}

#[tokio::test]
async fn dead_messages_are_redriven_by_keys_by_filter_and_all() {
    let broker = Broker::with_queue("{}").await;
    for (key, error) in [("a", "timeout"), ("b", "refused"), ("c", "timeout"), ("d", "x")] {
        kill(&broker, key, error).await;
    }
    let by_keys = redrive(&broker, r#"{"id":"r1","keys":["a","none"]}"#).await;
    let expected = json!({
        "id": "r1", "matched": 1, "moved": 1, "total": 2, "missing": ["none"], "done": true,
        "cancelled": false, "dry_run": false,
    });
    assert_eq!(by_keys, expected);
    let again = redrive(&broker, r#"{"id":"r1","keys":["none","a"]}"#).await;
    assert_eq!(again, expected, "repeated, it moves nothing twice");
    let dry = redrive(&broker, r#"{"id":"r2","all":true,"dry_run":true}"#).await;
    assert_eq!(
        (&dry["matched"], &dry["moved"], &dry["done"]),
        (&json!(3), &json!(0), &json!(true))
    );
    let filter = r#"{"id":"r3","filter":{"error_contains":"time"}}"#;
    assert_eq!(redrive(&broker, filter).await["moved"], 1);
    let early = r#"{"filter":{"dead_before":"2020-01-01T00:00:00Z"},"per_s":null}"#;
    let early = redrive(&broker, early).await;
    assert_eq!((&early["matched"], &early["done"]), (&json!(0), &json!(true)));
    assert_eq!(text(&early, "id").len(), 36, "an id is made up");
    assert_eq!(redrive(&broker, r#"{"id":"r4","all":true}"#).await["moved"], 2);
    let progress = broker.ask(get("/v1/queues/orders/redrive/r4")).await.is(200);
    assert_eq!((&progress["moved"], &progress["done"]), (&json!(2), &json!(true)));
    broker.ask(get("/v1/queues/orders/redrive/none")).await.fails(404, "no_such_key");
    broker.ask(get("/v1/queues/none/redrive/r4")).await.fails(404, "no_such_queue");
}

#[tokio::test]
async fn a_dry_run_leaves_its_id_to_the_redrive() {
    let broker = Broker::with_queue("{}").await;
    for key in ["a", "b"] {
        kill(&broker, key, "bad").await;
    }
    let dry = redrive(&broker, r#"{"id":"r","all":true,"dry_run":true}"#).await;
    assert_eq!((&dry["matched"], &dry["dry_run"]), (&json!(2), &json!(true)));
    assert_ne!(dry["id"], "r");
    let path = format!("/v1/queues/orders/redrive/{}", text(&dry, "id"));
    assert_eq!(broker.ask(get(&path)).await.is(200), dry, "it can be looked at");
    let real = redrive(&broker, r#"{"id":"r","all":true}"#).await;
    assert_eq!((&real["moved"], &real["dry_run"]), (&json!(2), &json!(false)));
    // What there is now, not what became of the redrive of that name.
    let dry = redrive(&broker, r#"{"id":"r","all":true,"dry_run":true}"#).await;
    assert_eq!((&dry["matched"], &dry["dry_run"]), (&json!(0), &json!(true)));
}

#[tokio::test]
async fn an_id_of_another_redrive_is_a_conflict() {
    let broker = Broker::with(4, |_| hapax_server::service::Options::default());
    broker.put("orders", "{}").await;
    for key in ["a", "b", "c"] {
        kill(&broker, key, "bad").await;
    }
    redrive(&broker, r#"{"id":"keys","keys":["a","gone"]}"#).await;
    redrive(&broker, r#"{"id":"filter","filter":{"group":"g"}}"#).await;
    for other in [
        r#"{"id":"keys","all":true}"#,
        r#"{"id":"keys","keys":["a"]}"#,
        r#"{"id":"keys","keys":["a","b"]}"#,
        r#"{"id":"keys","keys":["a","gone"],"group":"g"}"#,
        r#"{"id":"keys","keys":["a","gone"],"per_s":1}"#,
        r#"{"id":"filter","keys":["b"]}"#,
        r#"{"id":"filter","filter":{"group":"h"}}"#,
        r#"{"id":"filter","filter":{"error_contains":"bad"}}"#,
        r#"{"id":"filter","all":true}"#,
    ] {
        let told = broker.ask(post("/v1/queues/orders/redrive", other)).await;
        let problem = told.fails(422, "conflict");
        assert!(text(&problem, "detail").contains("another redrive"), "{other}: {problem}");
    }
    redrive(&broker, r#"{"id":"filter","filter":{"group":"g"}}"#).await;
    redrive(&broker, r#"{"id":"keys","keys":["gone","a","a"]}"#).await;
    assert_eq!(broker.key("orders", "b").await["state"], "dead");
}

#[tokio::test]
async fn a_redrive_says_what_it_is_for() {
    let broker = Broker::with_queue("{}").await;
    for json in [
        "{}",
        r#"{"all":false}"#,
        r#"{"all":true,"keys":["a"]}"#,
        r#"{"filter":{},"all":true}"#,
        r#"{"keys":[]}"#,
        r#"{"keys":"a"}"#,
        r#"{"all":true,"per_s":0}"#,
        r#"{"all":true,"id":""}"#,
        r#"{"filter":{"dead_before":"soon"}}"#,
    ] {
        broker.ask(post("/v1/queues/orders/redrive", json)).await.fails(400, "invalid");
    }
    let many = json!({"keys": vec!["k"; 1_001]}).to_string();
    broker.ask(post("/v1/queues/orders/redrive", &many)).await.fails(413, "too_large");
}

#[tokio::test]
async fn where_keys_belong_to_groups_a_dead_message_is_redriven_by_key_and_group() {
    let broker = Broker::with_queue(r#"{"order":"group","dedup_scope":"group"}"#).await;
    for group in ["g", "h", "i"] {
        broker.ask(send("orders", "k", "x").header("hapax-group", group)).await.is(201);
        let message = broker.receive_one("orders").await;
        let fail = json!({"lease": message["lease"], "do": "fail", "dead": true});
        broker.settle("orders", fail).await;
    }
    let of_key = |query: &str| ask("POST", &format!("/v1/queues/orders/keys/k/redrive{query}"));
    broker.ask(of_key("")).await.fails(404, "no_such_key");
    broker.ask(of_key("?group=x")).await.fails(404, "no_such_key");
    broker.ask(of_key("?group=g")).await.is(200);
    broker.ask(of_key("?group=g")).await.fails(400, "invalid");
    let without = post("/v1/queues/orders/redrive", r#"{"keys":["k"]}"#);
    broker.ask(without).await.fails(404, "no_such_key");
    assert_eq!(redrive(&broker, r#"{"keys":["k"],"group":"h"}"#).await["moved"], 1);
    assert_eq!(redrive(&broker, r#"{"filter":{"group":"i"}}"#).await["moved"], 1);
    let stats = broker.ask(get("/v1/queues/orders")).await.is(200);
    assert_eq!(stats["stats"]["dead"], 0, "{stats}");
}

#[tokio::test]
async fn messages_behind_the_head_of_their_group_are_counted_as_held() {
    let broker = Broker::with_queue(r#"{"order":"group"}"#).await;
    for (key, group) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")] {
        broker.ask(send("orders", key, "x").header("hapax-group", group)).await.is(201);
    }
    let told = broker.ask(get("/v1/queues/orders")).await.is(200);
    let stats = |told: &Value| (told["stats"]["ready"].clone(), told["stats"]["held"].clone());
    assert_eq!(stats(&told), (json!(4), json!(2)));
    broker.receive_one("orders").await;
    let told = broker.ask(get("/v1/queues")).await.is(200);
    assert_eq!(stats(&told["queues"][0]), (json!(3), json!(2)));
}

#[tokio::test]
async fn a_redrive_tells_the_keys_that_are_not_dead() {
    let broker = Broker::with_queue("{}").await;
    kill(&broker, "dead", "bad").await;
    broker.send("orders", "waiting", "x").await;
    let told = redrive(&broker, r#"{"keys":["dead","waiting","none"]}"#).await;
    assert_eq!((&told["moved"], &told["total"]), (&json!(1), &json!(3)));
    assert_eq!(told["missing"], json!(["none", "waiting"]));
}

#[tokio::test]
async fn a_redrive_by_time_takes_what_died_after_it() {
    let broker = Broker::with_queue("{}").await;
    kill(&broker, "k", "bad").await;
    let late = redrive(&broker, r#"{"filter":{"dead_after":"2100-01-01T00:00:00Z"}}"#).await;
    assert_eq!(late["moved"], 0);
    let since = redrive(&broker, r#"{"filter":{"dead_after":"2020-01-01T00:00:00Z"}}"#).await;
    assert_eq!(since["moved"], 1);
}

#[tokio::test]
async fn a_redrive_is_cancelled_where_it_is() {
    for partitions in [1, 4] {
        let broker = Broker::with(partitions, |_| hapax_server::service::Options::default());
        broker.put("orders", "{}").await;
        for number in 0..40 {
            kill(&broker, &format!("k{number}"), "bad").await;
        }
        let started = redrive(&broker, r#"{"id":"r","all":true,"per_s":1}"#).await;
        assert_eq!((&started["done"], &started["total"]), (&json!(false), &json!(40)));
        let path = "/v1/queues/orders/redrive/r";
        let told = broker.ask(ask("DELETE", path)).await.is(200);
        assert_eq!((&told["cancelled"], &told["done"]), (&json!(true), &json!(true)));
        let moved = told["moved"].as_u64().unwrap();
        assert!(moved < 40, "{told}");
        let again = broker.ask(get(path)).await.is(200);
        assert_eq!((&again["cancelled"], &again["moved"]), (&json!(true), &told["moved"]));
        let dead = broker.ask(get("/v1/queues/orders")).await.is(200)["stats"]["dead"].clone();
        assert_eq!(dead, json!(40 - moved));
        let none = "/v1/queues/orders/redrive/none";
        let problem = broker.ask(ask("DELETE", none)).await.fails(404, "no_such_key");
        assert!(text(&problem, "detail").contains("no redrive"), "{problem}");
    }
}

#[tokio::test]
async fn a_key_that_is_not_parked_cannot_be_resolved_and_is_told_what_it_is() {
    let broker = Broker::with_queue("{}").await;
    finish(&broker, "finished").await;
    broker.send("orders", "waiting", "x").await;
    for (key, state) in [("finished", "done"), ("waiting", "ready")] {
        let path = format!("/v1/queues/orders/keys/{key}/resolve");
        let problem = broker.ask(post(&path, r#"{"do":"retry"}"#)).await.fails(400, "invalid");
        assert!(text(&problem, "detail").contains(state), "{problem}");
    }
    let none = post("/v1/queues/orders/keys/none/resolve", r#"{"do":"retry"}"#);
    broker.ask(none).await.fails(404, "no_such_key");
}

#[tokio::test]
async fn a_replay_needs_no_body_where_the_queue_keeps_bodies() {
    let broker = Broker::with_queue(r#"{"keep_bodies":true}"#).await;
    let sent = send("orders", "k", "three lemons").header("hapax-header-a", "b");
    broker.ask(sent).await.is(201);
    let message = broker.receive_one("orders").await;
    broker.settle("orders", json!({"lease": message["lease"], "do": "done"})).await;
    assert_eq!(act(&broker, "k", "replay").await.is(200)["generation"], 1);
    let again = broker.receive_one("orders").await;
    assert_eq!((&again["body"], &again["generation"]), (&json!("three lemons"), &json!(1)));
    assert_eq!(again["headers"], json!({"a": "b"}));
}

#[tokio::test]
async fn a_redrive_by_keys_without_their_group_says_what_is_missing() {
    let broker = Broker::with_queue(r#"{"order":"group","dedup_scope":"group"}"#).await;
    broker.ask(send("orders", "k", "x").header("hapax-group", "g")).await.is(201);
    let lease = broker.receive_one("orders").await["lease"].clone();
    let fail = json!({"lease": lease, "do": "fail", "error": "bad", "dead": true});
    broker.settle("orders", fail).await;
    for select in [r#""keys":["k"]"#, r#""keys":["k"],"dry_run":true"#] {
        let redrive = post("/v1/queues/orders/redrive", &format!("{{{select}}}"));
        let problem = broker.ask(redrive).await.fails(404, "no_such_key");
        assert!(text(&problem, "detail").contains("give the group of the keys"), "{problem}");
    }
    assert_eq!(redrive(&broker, r#"{"keys":["none"],"group":"g"}"#).await["moved"], 0);
    assert_eq!(redrive(&broker, r#"{"keys":["k"],"group":"g"}"#).await["moved"], 1);
}
