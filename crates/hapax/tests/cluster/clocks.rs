//! A14: the clocks of the nodes differ, by 30 s and by hours, and so does that of a standby that
//! becomes the primary. Only the database's counts, and a jump of it is followed slowly.

use std::path::PathBuf;

use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, Setup, skip, until, within};
use serde_json::json;

use crate::standby::{BACK_WITHIN, both, is_synchronous, synchronous};
use crate::{Cluster, ends_whole, is_serving, load, names, serves};

/// Shorter than the difference of the clocks: believed at once, it would end them.
const RULES: &str =
    r#"{"lease_ms":600000,"retention_ms":3600000,"retry_horizon_ms":60000,"delay_ms":0}"#;

/// How far the standby's clock is ahead: longer than the lease, and than the retention.
const AHEAD_S: i64 = 7_200;

fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let mut files = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    files.find(|file| file.is_file())
}

/// The environment of a process whose clock is wrong by this many seconds.
fn wrong_by(library: &str, seconds: i64) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", library.to_owned()),
        ("FAKETIME", format!("{seconds:+}s")),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// A node whose clock is wrong by this many seconds.
fn wrong(setup: Setup, library: &str, seconds: i64) -> Setup {
    let variables = wrong_by(library, seconds);
    variables.iter().fold(setup, |setup, (name, value)| setup.variable(name, value))
}

/// The time of the first line of its log, as text that sorts.
fn logged(setup: &Setup) -> String {
    setup.log().lines().next().unwrap_or_default().chars().take(19).collect()
}

fn finish(door: &mut Connection, key: &str) -> String {
    let id = door.ask(&Request::send("letters", key, "lemons")).is(201)["id"].clone();
    let lease = take(door, key);
    let settle = json!({ "items": [{ "lease": lease, "do": "done", "result": { "body": "7" } }] });
    let settled = door.ask(&Request::post("/v1/queues/letters/settle", &settle)).is(200);
    assert_eq!(settled["answers"][0]["answer"], "ok", "{settled}");
    id.as_str().unwrap().to_owned()
}

fn take(door: &mut Connection, key: &str) -> String {
    let receive = json!({ "max": 1, "wait_ms": 10_000 });
    let got = door.ask(&Request::post("/v1/queues/letters/receive", &receive)).is(200);
    assert_eq!(got["messages"][0]["key"], key, "{got}");
    got["messages"][0]["lease"].as_str().unwrap().to_owned()
}

/// A finished key and a held one, of a queue of their own; returns the id and the lease.
fn finish_and_hold(node: &BrokerProcess) -> (String, String) {
    let queue = Request::new("PUT", "/v1/queues/letters");
    let mut door = node.connection();
    door.ask(&queue.header("content-type", "application/json").body(RULES)).is(201);
    let id = finish(&mut door, "finished");
    door.ask(&Request::send("letters", "held", "lemons")).is(201);
    (id, take(&mut door, "held"))
}

/// The key is remembered, and the lease holds.
#[track_caller]
fn has_kept(node: &BrokerProcess, id: &str) {
    let mut door = node.connection();
    let again = door.ask(&Request::send("letters", "finished", "lemons")).is(200);
    assert_eq!((&again["id"], &again["answer"]), (&json!(id), &json!("done")), "{again}");
    let held = door.ask(&Request::get("/v1/queues/letters/keys/held")).is(200);
    assert_eq!(held["state"], "leased", "{held}");
}

/// The lease is settled.
#[track_caller]
fn settles(node: &BrokerProcess, lease: &str) {
    let settle = json!({ "items": [{ "lease": lease, "do": "done" }] });
    let settled = until("the settle", || {
        let asked = Request::post("/v1/queues/letters/settle", &settle);
        node.connection().try_ask(&asked).ok().filter(|answer| answer.status == 200)
    });
    assert_eq!(settled.json()["answers"][0]["answer"], "ok", "{}", settled.text());
}

/// The first node's clock is wrong by `first_s`, the second one's by `second_s`: it takes over.
fn clocks_differ(first_s: i64, second_s: i64) {
    let Some(cluster) = Cluster::start() else { return };
    let Some(library) = library() else { return skip("libfaketime", "faketime") };
    let library = library.display().to_string();
    let mut first = wrong(cluster.setup("a"), &library, first_s).start();
    serves(&first);
    let mut second = wrong(cluster.setup("b"), &library, second_s).start();
    names(&second, &first);
    let (one, other) = (logged(&first.setup), logged(&second.setup));
    assert_eq!(one < other, first_s < second_s, "the clocks are not wrong: {one} and {other}");
    let load = load(&[&first, &second]);
    let (id, lease) = finish_and_hold(&first);
    for _ in 0..2 {
        load.gets_on(10);
        let owners = cluster.owners();
        load.gets_on(10);
        assert_eq!(cluster.owners(), owners, "one owner");
        first.kill();
        serves(&second);
        has_kept(&second, &id);
        first = first.setup.start();
        names(&first, &second);
        std::mem::swap(&mut first, &mut second);
    }
    settles(&first, &lease);
    ends_whole(load, &[&first, &second]);
}

/// The database's clock jumps by two hours when the standby takes the primary's place. The node
/// that serves follows slowly, and so does the one that takes over from it, by kill or in order.
#[test]
fn a14_a_promoted_standby_whose_clock_is_ahead_ends_no_key_and_no_lease() {
    let Some(mut cluster) = Cluster::start() else { return };
    let Some(library) = library() else { return skip("libfaketime", "faketime") };
    let mut standby = synchronous(&cluster);
    standby.stop();
    for (name, value) in wrong_by(&library.display().to_string(), AHEAD_S) {
        standby.variable(name, &value);
    }
    standby.launch();
    until("the standby", || is_synchronous(&cluster));
    cluster.url = both(&cluster.server, &standby);
    let (mut first, mut second) = cluster.two();
    let load = load(&[&first, &second]);
    let (id, lease) = finish_and_hold(&first);
    load.gets_on(10);
    cluster.has_watched("b", "a");
    let clock = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let before: i64 = cluster.server.sql("queues", clock).trim().parse().unwrap();
    cluster.server.stop();
    standby.promote();
    let after: i64 = standby.sql("queues", clock).trim().parse().unwrap();
    assert!(after - before >= AHEAD_S, "the clock is not wrong: {before}, {after}");
    within(BACK_WITHIN, "the node to serve on the new primary", || is_serving(&first));
    has_kept(&first, &id);
    load.gets_on(10);
    // Killed, and then stopped.
    first.kill();
    serves(&second);
    has_kept(&second, &id);
    first = first.setup.start();
    names(&first, &second);
    load.gets_on(10);
    cluster.url = standby.url("queues");
    cluster.server = standby;
    cluster.has_watched("a", "b");
    second = second.stop().start();
    serves(&first);
    has_kept(&first, &id);
    settles(&first, &lease);
    ends_whole(load, &[&first, &second]);
}

#[test]
fn a14_nodes_whose_clocks_differ_by_half_a_minute_end_no_key_and_no_lease() {
    clocks_differ(30, 0);
}

#[test]
fn a14_nodes_whose_clocks_differ_by_four_hours_end_no_key_and_no_lease() {
    clocks_differ(-7_200, 7_200);
}
