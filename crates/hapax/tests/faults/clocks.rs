//! A14: somebody sets the clock by two hours while the broker runs, and while it does not.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::broker_in;
use crate::machine::{say, skip};
use hapax_testing::http::{Connection, Request};
use hapax_testing::until;

const ROW: &str = "A14, a clock that jumps";
const JUMP_S: i64 = 2 * 60 * 60;
/// Shorter than the jump: believed at once, the jump would end them.
const RULES: &str =
    r#"{"lease_ms":60000,"retention_ms":3600000,"retry_horizon_ms":60000,"delay_ms":0}"#;

on_one_and_on_four!(a14_a_clock_set_by_two_hours_ends_no_key_and_no_lease_and_raises_an_alarm);

fn a14_a_clock_set_by_two_hours_ends_no_key_and_no_lease_and_raises_an_alarm(partitions: u16) {
    let Some(library) = library() else {
        return skip(ROW, "libfaketime is not installed (package faketime)");
    };
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock { file: directory.path().join("clock") };
    clock.set(0);
    let setup = broker_in(directory.path())
        .partitions(partitions)
        .variable("LD_PRELOAD", &library.display().to_string())
        .variable("FAKETIME_TIMESTAMP_FILE", &clock.file.display().to_string())
        .variable("FAKETIME_NO_CACHE", "1")
        .variable("DONT_FAKE_MONOTONIC", "1")
        .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut broker = setup.start();
    let mut door = broker.connection();
    let queue = Request::new("PUT", "/v1/queues/orders").header("content-type", "application/json");
    door.ask(&queue.body(RULES)).is(201);
    if !is_faked(&mut door, &clock) {
        return skip(ROW, "libfaketime does not reach this binary's clock");
    }

    let mut alarms = 0;
    for (round, jump) in [JUMP_S, -JUMP_S, JUMP_S].into_iter().enumerate() {
        let (finished, held) = (format!("finished-{round}"), format!("held-{round}"));
        let id = finish(&mut door, &finished);
        let lease = take(&mut door, &held);
        let before = setup.log().len();
        clock.set(jump);
        let ahead = until("the alarm", || {
            let ahead = ahead_s(&mut door);
            (ahead.abs() > JUMP_S as f64 / 2.0).then_some(ahead)
        });
        assert_eq!(ahead > 0.0, jump > 0, "{ahead} after {jump}");
        let log = setup.log().split_off(before);
        alarms += usize::from(log.contains("clock jumped"));
        is_unharmed(&mut door, &finished, &id, &lease);
        clock.set(0);
        until("the alarm's end", || (ahead_s(&mut door) == 0.0).then_some(()));
    }
    assert!(alarms >= 3, "{alarms} alarms in the log");

    // Set back while nobody was looking: time goes on from what was written down.
    // The lease first: what is confirmed after it tells that it is written down, too.
    let lease = take(&mut door, "held-at-last");
    let id = finish(&mut door, "finished-at-last");
    broker.kill();
    clock.set(-JUMP_S);
    let broker = setup.start();
    let mut door = broker.connection();
    is_unharmed(&mut door, "finished-at-last", &id, &lease);
    assert!(ahead_s(&mut door) < -(JUMP_S as f64) / 2.0, "{}", ahead_s(&mut door));
    broker.has_not_panicked();
    say("A14: the clock jumped by 2 hours four times; no key and no lease ended, each was told");
}

/// How far the machine may have set its own clock back meanwhile. A start that begins ahead, as
/// far as a crash may have promised, is a second ahead, and the next one two.
const SET_BACK_MS: u64 = 200;

on_one_and_on_four!(a14_restarts_do_not_push_the_brokers_time_ahead_of_the_wall_clock);

fn a14_restarts_do_not_push_the_brokers_time_ahead_of_the_wall_clock(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let mut door = broker.connection();
    let queue = Request::new("PUT", "/v1/queues/orders").header("content-type", "application/json");
    door.ask(&queue.body(RULES)).is(201);
    let mut last = 0;
    for round in 0..8 {
        let told = broker.connection().ask(&Request::send("orders", &format!("k{round}"), "x"));
        // The first 48 bits of an id are the broker's time in milliseconds.
        let id = told.is(201)["id"].as_str().unwrap().replace('-', "");
        let time = u64::from_str_radix(&id[..12], 16).unwrap();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let wall = since.as_millis() as u64;
        let ahead_ms = time.saturating_sub(wall);
        assert!(ahead_ms <= SET_BACK_MS, "{ahead_ms} ms ahead after {round} restarts");
        assert!(time >= last, "time ran backwards");
        last = time;
        if round % 2 == 0 {
            broker.kill();
        } else {
            broker.stop();
        }
        broker = setup.start();
    }
    broker.has_not_panicked();
}

/// The wall clock of the broker: its difference to the real one, in a file.
struct Clock {
    file: PathBuf,
}

impl Clock {
    fn set(&self, seconds: i64) {
        // Renamed into place: the broker must never read half of it.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
    }
}

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let mut places = folders.chain([PathBuf::from("/usr/lib"), PathBuf::from("/usr/lib64")]);
    places.find_map(|folder: PathBuf| {
        let file = Path::new(&folder).join("faketime/libfaketimeMT.so.1");
        file.is_file().then_some(file)
    })
}

/// Whether the broker sees the clock that we set.
fn is_faked(door: &mut Connection, clock: &Clock) -> bool {
    clock.set(JUMP_S);
    let seen = (0..500).any(|_| {
        hapax_testing::pause(std::time::Duration::from_millis(10));
        ahead_s(door) > 0.0
    });
    clock.set(0);
    until("the alarm's end", || (ahead_s(door) == 0.0).then_some(()));
    seen
}

/// What the metrics say about the clock.
fn ahead_s(door: &mut Connection) -> f64 {
    let page = door.ask(&Request::get("/metrics")).text();
    let line = page.lines().find(|line| line.starts_with("hapax_clock_ahead_seconds{"));
    line.and_then(|line| line.rsplit(' ').next()).unwrap().parse().unwrap()
}

/// Sends a message and finishes it; its id.
fn finish(door: &mut Connection, key: &str) -> String {
    let lease = take(door, key);
    settle(door, &lease);
    let known = door.ask(&Request::send("orders", key, "x")).is(200);
    assert_eq!(known["answer"], "done", "{known}");
    known["id"].as_str().unwrap().to_owned()
}

/// Sends a message and takes it; its lease.
fn take(door: &mut Connection, key: &str) -> String {
    door.ask(&Request::send("orders", key, "x")).is(201);
    let receive = Request::post("/v1/queues/orders/receive", &json!({ "wait_ms": 20_000 }));
    let told = door.ask(&receive).is(200);
    assert_eq!(told["messages"][0]["key"], key, "{told}");
    told["messages"][0]["lease"].as_str().unwrap().to_owned()
}

fn settle(door: &mut Connection, lease: &str) {
    let item = json!({ "lease": lease, "do": "done", "result": { "body": "r" } });
    let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }));
    let told = door.ask(&settle).is(200);
    assert_eq!(told["answers"][0]["answer"], "ok", "{told}");
}

/// The finished key is remembered and the lease is held, also after the broker had time to think.
fn is_unharmed(door: &mut Connection, finished: &str, id: &str, lease: &str) {
    let receive = Request::post("/v1/queues/orders/receive", &json!({ "wait_ms": 1_200 }));
    let told = door.ask(&receive).is(200);
    assert_eq!(told["messages"], json!([]), "the lease ended early");
    let known = door.ask(&Request::send("orders", finished, "x")).is(200);
    assert_eq!((&known["answer"], &known["id"]), (&json!("done"), &json!(id)), "{known}");
    settle(door, lease);
}
