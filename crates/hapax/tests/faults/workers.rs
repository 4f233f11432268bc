//! A15 and A16: workers that die or come back too late, and messages that no worker can do.

use std::process::Child;
use std::sync::Barrier;
use std::time::Duration;

use hapax_client::{Admin, Client};
use hapax_wire::proto;
use serde_json::{Value, json};

use crate::broker_in;
use crate::machine::say;
use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, Setup, Signal, pause, signal, until};

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

fn worker(broker: &BrokerProcess, directory: &std::path::Path, exec: &str) -> Worker {
    let mut command = broker.command(&["work", "orders", "--quiet", "--exec", exec]);
    Worker(command.current_dir(directory).spawn().unwrap())
}

on_one_and_on_four!(a15_the_message_of_a_killed_worker_is_delivered_to_another);
fn a15_the_message_of_a_killed_worker_is_delivered_to_another(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, &json!({ "lease_ms": 8_000, "backoff_min_ms": 0, "backoff_max_ms": 0 }));
    door.ask(&Request::send("orders", "a", "x")).is(201);
    // The command outlives its killed worker, and ends with the directory it looks at.
    std::fs::write(directory.path().join("hold"), "").unwrap();
    let exec = "touch taken; while test -e hold; do sleep 0.05; done; echo first";
    let mut first = worker(&broker, directory.path(), exec);
    until("the first worker to begin", || directory.path().join("taken").exists().then_some(()));
    // It extends its lease for as long as it lives: nobody else gets the message.
    let nothing = receive(&mut door, &json!({ "wait_ms": 9_000 }));
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

on_one_and_on_four!(a15_a_stale_lease_is_told_that_it_is_lost_and_changes_nothing);
fn a15_a_stale_lease_is_told_that_it_is_lost_and_changes_nothing(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, &json!({ "backoff_min_ms": 0, "backoff_max_ms": 0 }));
    for name in ["a", "b"] {
        door.ask(&Request::send("orders", name, "x")).is(201);
        let stale = receive(&mut door, &json!({ "lease_ms": 300, "worker": "stale" }))[0].clone();
        let again = json!({ "wait_ms": 30_000, "lease_ms": 600_000, "worker": "next" });
        let next = receive(&mut door, &again)[0].clone();
        assert_eq!((&next["key"], &next["attempt"]), (&stale["key"], &json!(2)), "{next}");
        let fence = |it: &Value| it["fence"].as_str().unwrap().parse::<u64>().unwrap();
        assert!(fence(&next) > fence(&stale), "{next} {stale}");
        let stale_ones = |door: &mut Connection, state: &str, result: Option<&str>| {
            for verb in [
                json!({ "do": "done", "result": { "body": "too late" } }),
                json!({ "do": "fail", "error": "too late", "dead": true }),
                json!({ "do": "extend" }),
                json!({ "do": "begin" }),
                json!({ "do": "save", "name": "n", "body": "too late" }),
                json!({ "do": "release" }),
                json!({ "do": "park", "error": "too late" }),
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

on_one_and_on_four!(a16_a_poison_message_dies_once_also_over_a_crash_and_its_neighbours_flow);
fn a16_a_poison_message_dies_once_also_over_a_crash_and_its_neighbours_flow(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let mut door = broker.connection();
    put(
        &mut door,
        &json!({
            "order": "group", "max_attempts": ATTEMPTS, "lease_ms": 5_000,
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
fn die_and_crash(mut broker: BrokerProcess, last: &Value) -> (BrokerProcess, bool) {
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

/// A directory with a broker and one message whose command begins an effect and then waits.
struct Begun {
    directory: tempfile::TempDir,
    setup: Setup,
    broker: BrokerProcess,
    worker: Worker,
}

impl Begun {
    fn start(partitions: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let setup = broker_in(directory.path()).partitions(partitions);
        let broker = setup.start();
        let mut door = broker.connection();
        let rules = json!({
            "on_lost": "park", "lease_ms": 5_000, "backoff_min_ms": 0, "backoff_max_ms": 0,
        });
        put(&mut door, &rules);
        door.ask(&Request::send("orders", "a", "x")).is(201);
        std::fs::write(directory.path().join("hold"), "").unwrap();
        let begin = "settle begin \"$HAPAX_QUEUE\" \"$HAPAX_LEASE\" >/dev/null";
        let exec = format!(
            "{} {begin} && echo printed >> effects && while test -e hold; do sleep 0.05; done; \
             echo finished",
            env!("CARGO_BIN_EXE_hapax")
        );
        let worker = worker(&broker, directory.path(), &exec);
        let begun = Self { directory, setup, broker, worker };
        until("the effect", || (begun.effects() == 1).then_some(()));
        begun
    }

    fn effects(&self) -> usize {
        let text = std::fs::read_to_string(self.directory.path().join("effects"));
        text.unwrap_or_default().lines().count()
    }

    fn state(&self) -> String {
        let found = key(&mut self.setup.connection(), "a");
        found["state"].as_str().unwrap().to_owned()
    }

    fn is_parked(&self) {
        until("the message to be parked", || (self.state() == "parked").then_some(()));
    }

    /// The worker stops in good order, with everything settled that it wants to settle; another
    /// one finds nothing to do, and the message is still parked.
    fn stays_parked(mut self) {
        signal(self.worker.0.id(), Signal::TERM);
        until("the worker's end", || self.worker.0.try_wait().unwrap());
        let mut door = self.broker.connection();
        assert_eq!(receive(&mut door, &json!({ "wait_ms": 500 })), Vec::<Value>::new());
        assert_eq!((self.state().as_str(), self.effects()), ("parked", 1));
        std::fs::remove_file(self.directory.path().join("hold")).unwrap();
        self.broker.has_not_panicked();
    }
}

on_one_and_on_four!(a15_an_effect_that_has_begun_stays_parked_when_its_worker_stalls_and_wakes);
fn a15_an_effect_that_has_begun_stays_parked_when_its_worker_stalls_and_wakes(partitions: u16) {
    let begun = Begun::start(partitions);
    let worker = begun.worker.0.id();
    signal(worker, Signal::STOP);
    begun.is_parked();
    signal(worker, Signal::CONT);
    begun.stays_parked();
}

on_one_and_on_four!(a15_an_effect_that_has_begun_stays_parked_when_the_broker_stalls_and_wakes);
fn a15_an_effect_that_has_begun_stays_parked_when_the_broker_stalls_and_wakes(partitions: u16) {
    let begun = Begun::start(partitions);
    begun.broker.signal(Signal::STOP);
    // For longer than the lease: the worker stops the command, as nobody extends it.
    pause(Duration::from_secs(7));
    begun.broker.signal(Signal::CONT);
    begun.is_parked();
    begun.stays_parked();
}

on_one_and_on_four!(a15_an_effect_that_has_begun_is_parked_when_its_worker_is_killed);
fn a15_an_effect_that_has_begun_is_parked_when_its_worker_is_killed(partitions: u16) {
    let mut begun = Begun::start(partitions);
    begun.worker.0.kill().unwrap();
    begun.is_parked();
    let path = begun.directory.path().to_owned();
    begun.worker = worker(&begun.broker, &path, "echo again >> effects");
    begun.stays_parked();
}

on_one_and_on_four!(
    a15_a_worker_says_done_when_the_broker_has_confirmed_it_and_that_the_broker_is_away
);
fn a15_a_worker_says_done_when_the_broker_has_confirmed_it_and_that_the_broker_is_away(
    partitions: u16,
) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let setup = broker_in(path).partitions(partitions);
    let mut broker = setup.start();
    let mut door = broker.connection();
    put(&mut door, &json!({ "lease_ms": 600_000 }));
    door.ask(&Request::send("orders", "a", "x")).is(201);
    std::fs::write(path.join("hold"), "").unwrap();
    let exec = "touch taken; while test -e hold; do sleep 0.05; done; touch ended";
    let mut command = broker.command(&["work", "orders", "--exec", exec]);
    let (out, err) = (path.join("out"), path.join("err"));
    command.stdout(std::fs::File::create(&out).unwrap());
    command.stderr(std::fs::File::create(&err).unwrap());
    let worker = Worker(command.current_dir(path).spawn().unwrap());
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let said = |path: &std::path::Path, words: &str| {
        until(words, || read(path).contains(words).then_some(()));
    };
    until("the command to run", || path.join("taken").exists().then_some(()));
    broker.kill();
    said(&err, "cannot reach the broker");
    std::fs::remove_file(path.join("hold")).unwrap();
    until("the command's end", || path.join("ended").exists().then_some(()));
    assert_eq!(read(&out), "", "nobody has confirmed anything");
    broker = setup.start();
    said(&err, "the broker can be reached again");
    said(&out, "done");
    assert_eq!(key(&mut broker.connection(), "a")["state"], "done");
    drop(worker);
}
