//! `-o json`: every answer is a document, and so is every error.

use serde_json::Value;

use crate::broker::{Broker, hapax};

/// The error of a command that fails: one document, on the last line of the standard error.
#[track_caller]
fn error(broker: &Broker, code: i32, arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
    let told = broker.run(&arguments);
    assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
    let error: Value = serde_json::from_str(told.err.lines().last().unwrap()).unwrap();
    assert_eq!(error["exit"], code, "{error}");
    assert_eq!(error["answer"], "error", "{error}");
    assert!(!error["detail"].as_str().unwrap().is_empty(), "{error}");
    error
}

#[test]
fn every_error_is_one_document_with_the_brokers_code() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders", "--max-messages", "1"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    for (arguments, code, exit) in [
        (&["get", "ordres", "a"][..], "no_such_queue", 3),
        (&["get", "orders", "nothing"], "no_such_key", 3),
        (&["queue", "rm", "nowhere"], "no_such_queue", 3),
        (&["forget", "orders", "nothing"], "no_such_key", 3),
        (&["resolve", "orders", "a", "--retry"], "invalid", 2),
        (&["send", "orders", "y", "--key", "a"], "conflict", 4),
        (&["log", "luod"], "invalid", 2),
    ] {
        let error = error(&broker, exit, arguments);
        assert_eq!(error["code"], code, "{arguments:?}: {error}");
        assert_eq!(error["retryable"], false, "{arguments:?}: {error}");
    }
    let near = error(&broker, 3, &["get", "ordres", "a"]);
    assert!(near["next"].as_str().unwrap().contains("did you mean orders?"), "{near}");
    let later = error(&broker, 75, &["send", "orders", "x", "--key", "b"]);
    assert_eq!((&later["code"], &later["retryable"]), (&"over_quota".into(), &true.into()));
    let away = ["queue", "ls", "--server", "http://127.0.0.1:1"];
    let away = error(&broker, 6, &away);
    assert_eq!((&away["code"], &away["retryable"]), (&"unavailable".into(), &true.into()));
    let local = error(&broker, 1, &["check", "nowhere"]);
    assert!(local.get("code").is_none(), "the broker was not asked: {local}");
}

#[test]
fn what_an_operator_does_is_told_as_a_document() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    assert_eq!(broker.json(&["queue", "pause", "orders"])["paused"], true);
    assert_eq!(broker.json(&["queue", "resume", "orders"])["paused"], false);
    assert_eq!(broker.json(&["log", "info"])["log"], "info");
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    broker.ok(&["receive", "orders", "--ack"]);
    let replayed = broker.json(&["replay", "orders", "a", "x"]);
    assert_eq!((&replayed["answer"], &replayed["state"]), (&"ok".into(), &"ready".into()));
    assert_eq!(replayed["generation"], 1, "as HTTP answers");
    broker.ok(&["receive", "orders", "--ack"]);
    let forgotten = broker.json(&["forget", "orders", "a"]);
    let expected = serde_json::json!({ "answer": "ok", "queue": "orders", "key": "a" });
    assert_eq!(forgotten, expected, "nothing is left of it");
    broker.ok(&["send", "orders", "x", "--key", "b"]);
    let purge = broker.json(&["queue", "purge", "orders"]);
    assert_eq!((&purge["messages"], &purge["dry_run"]), (&1.into(), &true.into()));
    let purge = broker.json(&["queue", "purge", "orders", "--yes"]);
    assert_eq!((&purge["purged"], &purge["keys"]), (&true.into(), &false.into()));
    let copied = broker.json(&["backup", "--online", "copy"]);
    assert_eq!(copied["verified"], true);
    let restored = broker.json(&["restore", "copy", "back"]);
    assert_eq!(restored["partitions"].as_array().unwrap().len(), 1);
    let removed = broker.json(&["queue", "rm", "orders"]);
    assert_eq!((&removed["deleted"], &removed["dry_run"]), (&false.into(), &true.into()));
    assert_eq!(broker.json(&["queue", "rm", "orders", "--yes"])["deleted"], true);
    assert_eq!(broker.json(&["queue", "ls"]), Value::Array(Vec::new()));
}

#[test]
fn what_needs_no_broker_is_told_as_a_document_too() {
    let directory = tempfile::tempdir().unwrap();
    let json = |arguments: &[&str]| -> Value {
        let output = hapax(directory.path()).args(arguments).args(["-o", "json"]).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(json(&["version"])["version"], env!("CARGO_PKG_VERSION"));
    let demo = json(&["demo", "--kills", "1", "--life-ms", "40"]);
    assert_eq!((&demo["kills"], &demo["lost"]), (&1.into(), &0.into()));
    let copied = json(&["backup", "hapax-demo", "copy"]);
    assert_eq!(copied["partitions"].as_array().unwrap().len(), 1);
    let create = ["token", "create", "--can", "send", "--name", "shop", "--data", "data"];
    assert!(json(&create)["file"].as_str().unwrap().ends_with("tokens.json"));
    assert_eq!(json(&["token", "rm", "shop", "--data", "data"])["name"], "shop");
}
