//! A12 and A13: keys used for something else, keys in use, keys that are none; and how long keys
//! are remembered, over restarts and purges, to the edge of their time.

use hapax_client::{Admin, Client, Code, Message};
use hapax_wire::proto;
use serde_json::{Value, json};

use crate::broker_in;
use hapax_testing::http::{Connection, Request, Response};
use hapax_testing::until;

fn put(door: &mut Connection, queue: &str, rules: &Value) {
    door.ask(&Request::new("PUT", &format!("/v1/queues/{queue}")).json(rules)).is(201);
}

/// Takes the only message there is and finishes it.
fn finish(door: &mut Connection, queue: &str, result: &str) {
    let receive = json!({ "wait_ms": 20_000 });
    let receive = Request::post(&format!("/v1/queues/{queue}/receive"), &receive);
    let told = door.ask(&receive).is(200);
    let lease = &told["messages"][0]["lease"];
    settle(door, queue, lease, result);
}

fn settle(door: &mut Connection, queue: &str, lease: &Value, result: &str) {
    let item = json!({ "lease": lease, "do": "done", "result": { "body": result } });
    let path = format!("/v1/queues/{queue}/settle");
    let told = door.ask(&Request::post(&path, &json!({ "items": [item] }))).is(200);
    assert_eq!(told["answers"][0]["answer"], "ok", "{told}");
}

on_one_and_on_four!(a12_another_body_a_key_in_use_and_a_malformed_key_are_told_apart);

fn a12_another_body_a_key_in_use_and_a_malformed_key_are_told_apart(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, "orders", &json!({}));

    let first = door.ask(&Request::send("orders", "k", "three lemons")).is(201);
    let problem = door.ask(&Request::send("orders", "k", "four limes")).fails(422, "conflict");
    assert_eq!(problem["differs"], json!(["body"]), "{problem}");
    assert_eq!(problem["id"], first["id"], "{problem}");
    finish(&mut door, "orders", "shipped");
    // A conflict beats what the key would be answered.
    door.ask(&Request::send("orders", "k", "four limes")).fails(422, "conflict");
    let known = door.ask(&Request::send("orders", "k", "three lemons"));
    assert_eq!(known.header("idempotency-replayed"), Some("true"));
    assert_eq!(known.is(200)["result"]["body"], "shipped");

    for malformed in ["", &"x".repeat(256), "a\tb"] {
        let response = door.ask(&Request::send("orders", malformed, "x"));
        assert_eq!(response.status, 400, "{malformed:?}: {}", response.text());
        assert!(["malformed_key", "missing_key"].contains(&response.code().as_str()));
    }
    // What is no header at all is refused before anybody looks for a key.
    assert_eq!(setup.connection().ask(&Request::send("orders", "a\u{7f}b", "x")).status, 400);
    let twice = Request::send("orders", "a", "x").header("idempotency-key", "\"b\"");
    door.ask(&twice).fails(400, "malformed_key");
    for lookalike in ["x-idempotency-key", "idempotency_key", "idempotencykey", "idempotency-keys"]
    {
        let request = Request::new("POST", "/v1/queues/orders/messages").header(lookalike, "k");
        door.ask(&request.body("x")).fails(400, "missing_key");
    }
    by_grpc(&setup.url());
    claims(&mut door, setup.connection());
    broker.has_not_panicked();
}

fn by_grpc(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(url).unwrap();
        let queue = client.queue("orders");
        let error = queue.send(Message::new("four limes").key("k")).await.unwrap_err();
        assert_eq!(error.code(), Code::Conflict, "{error}");
        let known = queue.send(Message::new("three lemons").key("k")).await.unwrap();
        assert_eq!(known.result().and_then(|result| result.text()), Some("shipped"));
        let admin = Admin::new(client.clone());
        for (key, code) in [
            (String::new(), "malformed_key"),
            ("x".repeat(256), "malformed_key"),
            ("a\nb".to_owned(), "malformed_key"),
        ] {
            let message = proto::Message { key: Some(key), ..Default::default() };
            let answer = admin.send_batch("orders", vec![message]).await.unwrap().remove(0);
            assert_eq!(answer.problem.unwrap().code, code);
        }
    });
}

/// A claim in flight is told or waited for; one that is done is replayed.
fn claims(door: &mut Connection, mut another: Connection) {
    let claim = |key: &str, body: &str| {
        Request::new("POST", "/v1/queues/orders/claims")
            .header("idempotency-key", &format!("\"{key}\""))
            .body(body)
    };
    let fresh = door.ask(&claim("c", "17 euro")).is(201);
    assert_eq!(fresh["answer"], "fresh");
    let busy: Response = door.ask(&claim("c", "17 euro"));
    busy.fails(409, "in_flight");
    assert!(busy.header("retry-after").is_some(), "{busy:?}");
    door.ask(&claim("c", "18 euro")).fails(422, "conflict");
    let waited = std::thread::scope(|scope| {
        let waiting = claim("c", "17 euro").header("prefer", "wait=30");
        let waiter = scope.spawn(move || another.ask(&waiting));
        settle(door, "orders", &fresh["lease"], "charged");
        waiter.join().unwrap()
    });
    let told = waited.is(200);
    assert_eq!((&told["answer"], &told["result"]["body"]), (&json!("done"), &json!("charged")));
    assert_eq!(waited.header("idempotency-replayed"), Some("true"));
}

on_one_and_on_four!(a13_a_retry_is_a_duplicate_over_restarts_and_purges);

fn a13_a_retry_is_a_duplicate_over_restarts_and_purges(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, "orders", &json!({}));
    let done = door.ask(&Request::send("orders", "done", "x")).is(201)["id"].clone();
    finish(&mut door, "orders", "shipped");
    let open = door.ask(&Request::send("orders", "open", "x")).is(201)["id"].clone();
    let check = |door: &mut Connection| {
        let known = door.ask(&Request::send("orders", "done", "x")).is(200);
        assert_eq!((&known["answer"], &known["id"]), (&json!("done"), &done), "{known}");
        assert_eq!(known["result"]["body"], "shipped");
        let known = door.ask(&Request::send("orders", "open", "x")).is(200);
        assert_eq!(known["id"], open, "{known}");
        known
    };
    check(&mut door);
    broker.kill();
    broker = setup.start();
    check(&mut broker.connection());
    broker.stop();
    broker = setup.start();
    let mut door = broker.connection();
    assert_eq!(check(&mut door)["answer"], "in_flight");

    door.ask(&Request::post("/v1/queues/orders/purge", &json!({}))).is(200);
    assert_ne!(check(&mut door)["answer"], "in_flight", "its message is gone");
    broker.kill();
    broker = setup.start();
    let mut door = broker.connection();
    check(&mut door);
    door.ask(&Request::post("/v1/queues/orders/purge", &json!({ "keys": true }))).is(200);
    for (key, before) in [("done", &done), ("open", &open)] {
        let anew = until("the keys to be forgotten", || {
            let response = door.ask(&Request::send("orders", key, "x"));
            (response.status == 201).then(|| response.json())
        });
        assert_ne!(&anew["id"], before);
    }
    broker.has_not_panicked();
}

on_one_and_on_four!(a13_at_the_edge_of_its_time_a_key_is_judged_by_the_journal_alone);

fn a13_at_the_edge_of_its_time_a_key_is_judged_by_the_journal_alone(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, "orders", &json!({ "retention_ms": 2_500, "retry_horizon_ms": 1_000 }));
    let mut inside = 0;
    for round in 0..3 {
        let key = format!("key-{round}");
        let first = door.ask(&Request::send("orders", &key, "x")).is(201);
        finish(&mut door, "orders", &key);
        let told = door.ask(&Request::send("orders", &key, "x")).is(200);
        let until_when = told["remembered_until"].as_str().unwrap().to_owned();
        let mut killed = false;
        let anew = until("the key to be forgotten", || {
            let told = door.ask(&Request::send("orders", &key, "x"));
            if told.status == 200 {
                let told = told.json();
                inside += 1;
                assert_eq!((&told["answer"], &told["id"]), (&json!("done"), &first["id"]));
                // Being asked for does not keep it alive.
                assert_eq!(told["remembered_until"], json!(until_when), "{told}");
                if round > 0 && !std::mem::replace(&mut killed, true) {
                    broker.kill();
                    broker = setup.start();
                    door = setup.connection();
                }
                return None;
            }
            Some(told.is(201))
        });
        // Both times were written down: which clock anybody else has is no matter.
        let accepted_at: jiff::Timestamp = anew["accepted_at"].as_str().unwrap().parse().unwrap();
        let until_when: jiff::Timestamp = until_when.parse().unwrap();
        assert!(accepted_at >= until_when, "{accepted_at} is before {until_when}");
        assert_ne!(anew["id"], first["id"]);
        finish(&mut door, "orders", &key);
    }
    assert!(inside > 3, "{inside} retries came inside the window");
    broker.has_not_panicked();
}
