//! A15 and A16: workers that die or come back too late, and messages that no worker can do.

use std::process::Child;
use std::sync::Barrier;
use std::time::Duration;

use hapax_client::{Admin, Client};
use hapax_wire::proto;
use serde_json::{Value, json};

use crate::broker::{Broker, Setup, pause, until};
use crate::http::{Connection, Request};
use crate::machine::say;

fn put(door: &mut Connection, rules: &Value) {
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(rules)).is(201);
}

fn receive(door: &mut Connection, request: &Value) -> Vec<Value> {
    let told = door.ask(&Request::post("/v1/queues/orders/receive", request)).is(200);
    told["messages"].as_array().unwrap().clone()
}

fn settle(door: &mut Connection, item: &Value) -> Value {
    let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }));
    door.ask(&settle).is(200)["answers"][0].clone()
}

fn key(door: &mut Connection, key: &str) -> Value {
    door.ask(&Request::get(&format!("/v1/queues/orders/keys/{key}"))).is(200)
}

/// A process that is not needed any more at the end of the test.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn worker(broker: &Broker, directory: &std::path::Path, exec: &str) -> Worker {
    let mut command = broker.command(&["work", "orders", "--quiet", "--exec", exec]);
    Worker(command.current_dir(directory).spawn().unwrap())
}

#[test]
fn a15_the_message_of_a_killed_worker_is_delivered_to_another() {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup::new(directory.path());
    let broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, &json!({ "lease_ms": 1_000, "backoff_min_ms": 0, "backoff_max_ms": 0 }));
    door.ask(&Request::send("orders", "a", "x")).is(201);
    // The command outlives its killed worker, and ends with the directory it looks at.
    std::fs::write(directory.path().join("hold"), "").unwrap();
    let exec = "touch taken; while test -e hold; do sleep 0.05; done; echo first";
    let mut first = worker(&broker, directory.path(), exec);
    until("the first worker to begin", || directory.path().join("taken").exists().then_some(()));
    // It extends its lease for as long as it lives: nobody else gets the message.
    let nothing = receive(&mut door, &json!({ "wait_ms": 1_500 }));
    assert_eq!(nothing, Vec::<Value>::new(), "a living worker keeps its message");
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    let second = worker(&broker, directory.path(), "echo \"second, attempt $HAPAX_ATTEMPT\"");
    let done = until("the second worker to finish it", || {
        let found = key(&mut door, "a");
        (found["state"] == "done").then_some(found)
    });
    assert_eq!(done["result"]["body"], "second, attempt 2\n", "{done}");
    let history = done["history"].as_array().unwrap();
    assert!(history.iter().any(|event| event["event"] == "lost"), "{done}");
    std::fs::remove_file(directory.path().join("hold")).unwrap();
    drop(second);
    broker.has_not_panicked();
}

#[test]
fn a15_a_stale_lease_is_told_that_it_is_lost_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup::new(directory.path());
    let broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, &json!({ "backoff_min_ms": 0, "backoff_max_ms": 0 }));
    for name in ["a", "b"] {
        door.ask(&Request::send("orders", name, "x")).is(201);
        let stale = receive(&mut door, &json!({ "lease_ms": 300, "worker": "stale" }))[0].clone();
        let again = json!({ "wait_ms": 30_000, "lease_ms": 600_000, "worker": "next" });
        let next = receive(&mut door, &again)[0].clone();
        assert_eq!((&next["key"], &next["attempt"]), (&stale["key"], &json!(2)), "{next}");
        assert!(next["fence"].as_u64() > stale["fence"].as_u64(), "{next} {stale}");
        let stale_ones = |door: &mut Connection, state: &str, result: Option<&str>| {
            for verb in [
                json!({ "do": "done", "result": { "body": "too late" } }),
                json!({ "do": "fail", "error": "too late", "dead": true }),
                json!({ "do": "extend" }),
                json!({ "do": "begin" }),
                json!({ "do": "save", "name": "n", "body": "too late" }),
                json!({ "do": "release" }),
            ] {
                let mut item = verb;
                item["lease"] = stale["lease"].clone();
                let told = settle(door, &item);
                assert_eq!(
                    (&told["answer"], &told["state"]),
                    (&json!("lease_lost"), &json!(state))
                );
                assert_eq!(told["result"]["body"].as_str(), result, "{told}");
            }
        };
        stale_ones(&mut door, "leased", None);
        stale_by_grpc(&setup.url(), stale["lease"].as_str().unwrap());
        let done = json!({ "lease": next["lease"], "do": "done", "result": { "body": "r" } });
        assert_eq!(settle(&mut door, &done)["answer"], "ok");
        stale_ones(&mut door, "done", Some("r"));
        assert_eq!(settle(&mut door, &done)["answer"], "ok", "the same settle, the same answer");
        let found = key(&mut door, name);
        assert_eq!((&found["state"], &found["result"]["body"]), (&json!("done"), &json!("r")));
        assert_eq!(found["recovery_points"], json!({}), "{found}");
    }
    broker.has_not_panicked();
}

/// The door does not matter: the lease is the same bytes.
fn stale_by_grpc(url: &str, lease: &str) {
    use base64::Engine as _;
    let lease = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(lease).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let admin = Admin::new(Client::connect(url).unwrap());
        let verb = Some(proto::settle::Verb::Done(proto::Done::default()));
        let item = proto::Settle { r#ref: 1, lease: lease.into(), verb };
        let told = admin.settle("orders", vec![item]).await.unwrap().remove(0);
        assert_eq!(told.kind(), proto::SettleKind::LeaseLost, "{told:?}");
    });
}

const POISON: usize = 8;
const NEIGHBOURS: usize = 4;
const ATTEMPTS: u64 = 2;

#[test]
fn a16_a_poison_message_dies_once_also_over_a_crash_and_its_neighbours_flow() {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup::new(directory.path());
    let mut broker = setup.start();
    let mut door = broker.connection();
    put(
        &mut door,
        &json!({
            "order": "group", "max_attempts": ATTEMPTS, "lease_ms": 1_000,
            "backoff_min_ms": 0, "backoff_max_ms": 0,
        }),
    );
    let mut cut_off = 0;
    let mut told_dead = Vec::new();
    for number in 0..POISON {
        let poison = format!("poison-{number}");
        for place in 0..NEIGHBOURS {
            let name = match place {
                1 => poison.clone(),
                _ => format!("neighbour-{number}-{place}"),
            };
            let group = format!("group-{number}");
            let send = Request::send("orders", &name, name.clone()).header("hapax-group", &group);
            door.ask(&send).is(201);
        }
        // All but the last attempt of the poison, and those before it.
        let last = loop {
            let taken = receive(&mut door, &json!({ "wait_ms": 30_000, "max": 1 }))[0].clone();
            let is_poison = taken["key"] == json!(poison);
            if is_poison && taken["attempt"] == ATTEMPTS {
                break taken;
            }
            assert!(!told_dead.contains(&taken["key"]), "a dead one was delivered: {taken}");
            deal_with(&mut door, &taken);
        };
        let (next, is_told) = die_and_crash(broker, &last);
        cut_off += usize::from(!is_told);
        if is_told {
            told_dead.push(last["key"].clone());
        }
        broker = next;
        door = broker.connection();
        work_off(&mut door, &told_dead);
    }
    let dead = door.ask(&Request::get("/v1/queues/orders/messages?state=dead")).is(200);
    let dead: Vec<&Value> =
        dead["messages"].as_array().unwrap().iter().map(|message| &message["key"]).collect();
    assert_eq!(dead.len(), POISON, "each is there once: {dead:?}");
    for number in 0..POISON {
        let poison = format!("poison-{number}");
        assert!(dead.contains(&&json!(poison)), "{poison} is missing: {dead:?}");
        let told = door
            .ask(
                &Request::send("orders", &poison, poison.clone())
                    .header("hapax-group", &format!("group-{number}")),
            )
            .is(200);
        assert_eq!(told["answer"], "dead", "{told}");
        // Where the broker was killed first, the attempt ended with its lease.
        let last_words = told["error"].as_str().unwrap();
        assert!(matches!(last_words, "poison" | "its lease was lost"), "{told}");
        assert!(key(&mut door, &poison)["attempts"].as_u64() <= Some(ATTEMPTS));
        for place in (0..NEIGHBOURS).filter(|place| *place != 1) {
            let found = key(&mut door, &format!("neighbour-{number}-{place}"));
            assert_eq!(found["state"], "done", "{found}");
        }
    }
    is_redriven_once(&mut door);
    broker.has_not_panicked();
    say(&format!(
        "A16: {POISON} poison messages died once each; {cut_off} of the answers were cut off"
    ));
}

/// Fails poison, finishes everything else.
fn deal_with(door: &mut Connection, taken: &Value) {
    let is_poison = taken["key"].as_str().unwrap().starts_with("poison");
    let item = match is_poison {
        true => json!({ "lease": taken["lease"], "do": "fail", "error": "poison" }),
        false => json!({ "lease": taken["lease"], "do": "done" }),
    };
    assert_eq!(settle(door, &item)["answer"], "ok");
}

/// Fails the last attempt while the broker is killed: the next life, and whether it was told.
fn die_and_crash(mut broker: Broker, last: &Value) -> (Broker, bool) {
    let setup = broker.setup.clone();
    let item = json!({ "lease": last["lease"], "do": "fail", "error": "poison" });
    let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }));
    let mut door = setup.connection();
    door.ask(&Request::get("/livez"));
    let start = Barrier::new(2);
    let told = std::thread::scope(|scope| {
        let settling = scope.spawn(|| {
            start.wait();
            door.try_ask(&settle)
        });
        start.wait();
        pause(Duration::from_micros(fastrand::u64(..3_000)));
        broker.kill();
        settling.join().unwrap()
    });
    let is_told = match told {
        Ok(response) => {
            let told = response.is(200);
            assert_eq!(told["answers"][0]["state"], "dead", "{told}");
            true
        }
        Err(_) => false,
    };
    (setup.start(), is_told)
}

/// Works until nothing is left that is not dead.
fn work_off(door: &mut Connection, told_dead: &[Value]) {
    until("everything to be done or dead", || {
        for taken in receive(door, &json!({ "wait_ms": 100 })) {
            assert!(!told_dead.contains(&taken["key"]), "a dead one was delivered: {taken}");
            deal_with(door, &taken);
        }
        let stats = door.ask(&Request::get("/v1/queues/orders")).is(200)["stats"].clone();
        let left = ["ready", "delayed", "leased"].map(|place| stats[place].as_u64().unwrap());
        (left == [0, 0, 0]).then_some(())
    });
}

/// A redrive puts a dead message back under its own key; repeated, it moves nothing twice.
fn is_redriven_once(door: &mut Connection) {
    let redrive = json!({ "id": "r1", "keys": ["poison-0"], "dry_run": false });
    for _ in 0..2 {
        let told = door.ask(&Request::post("/v1/queues/orders/redrive", &redrive));
        assert!(matches!(told.status, 200 | 202), "{}", told.text());
    }
    let taken = receive(door, &json!({ "wait_ms": 30_000 }));
    assert_eq!(taken[0]["key"], "poison-0");
    let done = json!({ "lease": taken[0]["lease"], "do": "done", "result": { "body": "cured" } });
    assert_eq!(settle(door, &done)["answer"], "ok");
    assert_eq!(receive(door, &json!({ "wait_ms": 200 })), Vec::<Value>::new());
    let told = door
        .ask(&Request::send("orders", "poison-0", "poison-0").header("hapax-group", "group-0"))
        .is(200);
    assert_eq!(told["result"]["body"], "cured", "{told}");
}
