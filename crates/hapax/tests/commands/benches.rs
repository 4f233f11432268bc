//! `hapax bench`: small runs, every message verified, nothing left behind.

use serde_json::Value;

use crate::broker::{Broker, Printed, hapax};
use hapax_testing::{Signal, signal, until};

/// A run against a broker of its own; what it printed, and what it left in its directory.
fn bench(arguments: &[&str]) -> (Value, usize) {
    let directory = tempfile::tempdir().unwrap();
    let output = hapax(directory.path()).args(["bench", "--json"]).args(arguments).output();
    let told = Printed::of(&output.unwrap());
    assert_eq!(told.code, Some(0), "{arguments:?}: {told:#?}");
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    (serde_json::from_str(&told.out).unwrap(), left)
}

#[test]
fn lives_are_counted_and_verified_and_the_broker_of_the_run_is_gone() {
    let (told, left) =
        bench(&["--count", "3000", "--producers", "3", "--workers", "2", "--size", "300"]);
    assert_eq!(left, 0, "its data is removed");
    assert_eq!((&told["verified"], &told["count"]), (&true.into(), &3_000.into()));
    for field in [
        "sends_per_s",
        "lives_per_s",
        "p50_ms",
        "p99_ms",
        "settle_p50_ms",
        "settle_max_ms",
        "cores_busy",
        "server_cpu_us_per_life",
        "client_cpu_us_per_life",
        "sync_p50_ms",
        "sync_p99_ms",
    ] {
        let value = told[field].as_f64().unwrap_or(-1.0);
        assert!(value >= 0.0, "{field}: {told:#}");
    }
    assert!(told["lives_per_s"].as_f64() > Some(0.0));
    assert!(told["p50_ms"].as_f64() <= told["p99_ms"].as_f64());
    assert!(told["settle_p50_ms"].as_f64() <= told["settle_max_ms"].as_f64());
}

#[test]
fn without_deduplication_and_at_a_fixed_rate_lives_are_verified_too() {
    let (told, _) = bench(&["--count", "1000", "--dedup", "off", "--window", "50"]);
    assert_eq!((&told["verified"], &told["dedup"]), (&true.into(), &false.into()));
    let (told, _) = bench(&["--latency", "--rate", "200", "--count", "200"]);
    assert_eq!((&told["verified"], &told["mode"]), (&true.into(), &"latency".into()));
    let rate = told["sends_per_s"].as_f64().unwrap();
    assert!(rate < 210.0, "no faster than it was told: {rate}");
}

#[test]
fn a_backlog_is_piled_up_and_then_drained_beside_the_rest_of_the_sends() {
    let (told, _) = bench(&["--count", "3000", "--backlog", "2000", "--pile-up"]);
    assert_eq!((&told["verified"], &told["backlog"]), (&true.into(), &2_000.into()));
    assert!(told["piled_s"].as_f64() > Some(0.0), "workers came later: {told:#}");
    assert!(told["drained_per_s"].as_f64() >= told["lives_per_s"].as_f64(), "{told:#}");
    assert!(told["max_beside_ms"].as_f64() > Some(0.0), "a third was sent beside them: {told:#}");
    let (told, _) = bench(&["--count", "3000", "--backlog", "3000", "--pile-up"]);
    assert_eq!(told["max_beside_ms"], 0.0, "all were sent before: {told:#}");
    let (told, _) = bench(&["--count", "1000"]);
    assert!(told["piled_s"].is_null() && told["max_beside_ms"].is_null(), "{told:#}");
}

#[test]
fn a_run_against_a_broker_leaves_no_queue_there() {
    let broker = Broker::start();
    let arguments = ["bench", "--count", "500", "--server", &broker.url];
    let told = broker.ok(&arguments);
    assert!(told.contains("done exactly once, as it was sent"), "{told}");
    assert!(told.contains("not known"), "the broker's process was not named: {told}");
    assert_eq!(broker.json(&["queue", "ls"]).as_array().unwrap().len(), 0);
    assert!(broker.fails(2, &["bench", "--size", "7"]).contains("at least 8"));
    assert!(broker.fails(2, &["bench", "--workers", "0"]).contains("--workers"));
}

#[test]
fn a_run_that_is_broken_off_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = hapax(directory.path());
    let mut child = command.args(["bench", "--latency", "--rate", "1"]).spawn().unwrap();
    let left = || std::fs::read_dir(directory.path()).unwrap().flatten().next();
    let data = until("its broker", || left().filter(|data| data.path().join("port").exists()));
    signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!data.path().exists() && left().is_none());
}

#[test]
fn a_run_that_is_broken_off_leaves_no_queue_in_a_broker_that_runs_already() {
    let broker = Broker::start();
    let arguments = ["bench", "--latency", "--rate", "1", "--server", &broker.url];
    let mut child = broker.command(&arguments).spawn().unwrap();
    let queues = || broker.json(&["queue", "ls"]).as_array().unwrap().len();
    until("its queue", || (queues() == 1).then_some(()));
    signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(queues(), 0);
}

#[test]
fn a_broker_that_is_not_there_is_told_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let server = format!("http://{}", hapax_testing::free_address());
    let begun = std::time::Instant::now();
    let output = hapax(directory.path()).args(["bench", "--server", &server]).output().unwrap();
    let told = Printed::of(&output);
    assert_eq!(told.code, Some(6), "{told:#?}");
    assert!(told.err.contains("check --server"), "{told:#?}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it waited for a start");
}
