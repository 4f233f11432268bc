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

/// The only document on the standard error.
#[track_caller]
fn only_error(broker: &Broker, code: i32, arguments: &[&str]) -> Value {
    let told = broker.run(&[arguments, &["-o", "json"]].concat());
    assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
    assert_eq!(told.err.lines().count(), 1, "{arguments:?}: {told:?}");
    error(broker, code, arguments)
}

#[test]
fn every_other_exit_code_than_zero_comes_with_one_document() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let over = only_error(&broker, 8, &["receive", "orders"]);
    assert_eq!((&over["retryable"], over.get("code")), (&true.into(), None));
    let over = only_error(&broker, 8, &["receive", "orders", "--wait", "10ms"]);
    assert_eq!(over["detail"], "no message came within 10ms");
    let over = only_error(&broker, 8, &["send", "orders", "x", "--key", "a", "--wait", "10ms"]);
    assert_eq!(over["detail"], "not done within 10ms: the message is ready");
    assert_eq!(over["retryable"], true);
    only_error(&broker, 8, &["get", "orders", "a", "--wait", "10ms"]);
    only_error(&broker, 3, &["dead", "redrive", "orders", "--key", "a", "--key", "b", "--yes"]);

    let lease = broker.json(&["receive", "orders"])["lease"].as_str().unwrap().to_owned();
    broker.ok(&["settle", "fail", "orders", &lease, "--dead"]);
    let lost = only_error(&broker, 4, &["settle", "release", "orders", &lease]);
    assert_eq!((&lost["code"], &lost["retryable"]), (&"lease_lost".into(), &false.into()));
    let gone = only_error(&broker, 3, &["settle", "release", "nowhere", &lease]);
    assert_eq!((&gone["code"], &gone["retryable"]), (&"no_such_queue".into(), &false.into()));
    let gone = only_error(&broker, 3, &["send", "nowhere", "x", "--key", "a"]);
    assert_eq!(gone["code"], "no_such_queue");
    let dead = only_error(&broker, 7, &["send", "orders", "x", "--key", "a"]);
    assert_eq!((dead.get("code"), &dead["retryable"]), (None, &false.into()));
    only_error(&broker, 7, &["get", "orders", "a", "--wait", "10ms"]);

    let batch = ["send", "orders", "--batch", "-o", "json"];
    let told = broker.run_with(&batch, b"{\"key\":\"a\",\"body\":\"other\"}\n");
    assert!(told.code == Some(4) && told.err.lines().count() == 1, "{told:?}");
    let error: Value = serde_json::from_str(&told.err).unwrap();
    assert_eq!((&error["exit"], &error["code"]), (&4.into(), &"conflict".into()));
}

#[test]
fn the_limits_of_a_tenant_refuse_with_one_document() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("hapax.toml"), "[tenants.default]\nmax_queues = 1\n")
        .unwrap();
    let broker = Broker::start_in(directory, &["--auth", "off"]);
    broker.ok(&["queue", "create", "orders"]);
    let over = only_error(&broker, 75, &["queue", "create", "more"]);
    assert_eq!((&over["code"], &over["retryable"]), (&"over_quota".into(), &true.into()));
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
