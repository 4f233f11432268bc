//! The life of a queue from the command line.

use std::sync::mpsc;

use hapax_testing::TestBroker;
use serde_json::json;

use crate::broker::{Broker, Printed, hapax};

#[test]
fn a_queue_is_created_shown_changed_paused_and_deleted() {
    let broker = Broker::start();
    assert!(broker.run(&["queue", "ls"]).err.contains("hapax queue create"), "the next step");
    let created = broker.ok(&["queue", "create", "orders", "--lease", "2m", "--order", "group"]);
    assert!(created.contains("created orders"), "{created}");
    let shown = broker.json(&["queue", "show", "orders"]);
    assert_eq!(shown["config"]["lease_ms"], 120_000);
    assert_eq!(shown["config"]["order"], "group");
    assert_eq!(shown["config"]["max_attempts"], 10, "what was not said is a default");
    assert_eq!(shown["paused"], false);
    let changed = broker.ok(&["queue", "set", "orders", "--retention", "forever", "--lease", "5m"]);
    assert!(changed.contains("--lease 2m → 5m"), "{changed}");
    assert!(changed.contains("--retention 7d → forever"), "{changed}");
    let shown = broker.json(&["queue", "show", "orders"]);
    assert_eq!(shown["config"]["retention_ms"], serde_json::Value::Null);
    assert_eq!(shown["config"]["order"], "group", "the rest is left alone");
    broker.ok(&["queue", "pause", "orders"]);
    assert_eq!(broker.json(&["queue", "ls"])[0]["paused"], true);
    assert!(broker.ok(&["queue", "ls"]).contains("paused"));
    broker.ok(&["queue", "resume", "orders"]);
    assert_eq!(broker.json(&["queue", "ls"])[0]["paused"], false);
    assert!(broker.ok(&["queue", "rm", "orders"]).contains("--yes"), "a dry run");
    assert_eq!(broker.json(&["queue", "ls"]).as_array().unwrap().len(), 1);
    broker.ok(&["queue", "rm", "orders", "--yes"]);
    assert_eq!(broker.json(&["queue", "ls"]).as_array().unwrap().len(), 0);
}

#[test]
fn creating_twice_is_fine_and_never_changes_the_rules() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders", "--lease", "2m"]);
    assert!(broker.ok(&["queue", "create", "orders", "--lease", "2m"]).contains("already exists"));
    let told = broker.ok(&["queue", "create", "orders"]);
    let expected = "already exists and was not changed; fields with other values than the \
                    defaults: --lease 2m\n";
    assert!(told.contains(expected), "{told}");
    broker.ok(&["queue", "create", "plain"]);
    let told = broker.ok(&["queue", "create", "plain"]);
    assert!(told.contains("plain already exists with this configuration"), "{told}");
    let error = broker.fails(4, &["queue", "create", "orders", "--lease", "3m"]);
    assert!(error.contains("--lease 2m → 3m"), "{error}");
    assert!(error.contains("hapax queue set orders"), "the next step: {error}");
    assert_eq!(broker.json(&["queue", "show", "orders"])["config"]["lease_ms"], 120_000);
}

#[test]
fn rules_that_would_weaken_a_guarantee_are_refused_with_the_reason() {
    let broker = Broker::start();
    let error = broker.fails(2, &["queue", "create", "orders", "--retention", "1h"]);
    assert!(
        error.contains("--retention: 1h is less than twice the retry horizon of 1d"),
        "{error}"
    );
    let error = broker.fails(2, &["queue", "create", "orders", "--lease", "1ms"]);
    assert!(error.contains("--lease: 1ms is not between 100ms and 12h"), "{error}");
    let error = broker.fails(2, &["queue", "create", "orders", "--max-messages", "0"]);
    assert!(error.contains("at least 1, or none") && !error.contains("null"), "{error}");
    let error = broker.fails(2, &["queue", "set", "orders"]);
    assert!(error.contains("at least one field"), "{error}");
    assert!(broker.fails(2, &["queue", "create", "orders", "--lease", "30"]).contains("unit"));
}

#[test]
fn a_queue_that_is_not_there_is_explained_with_the_one_that_was_meant() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let error = broker.fails(3, &["queue", "show", "order"]);
    assert!(error.contains("there is no queue order"), "{error}");
    assert!(error.contains("did you mean orders?"), "{error}");
    assert!(error.contains("hapax queue create order"), "{error}");
    for arguments in [
        &["send", "nowhere", "x"][..],
        &["receive", "nowhere"],
        &["queue", "pause", "nowhere"],
        &["work", "nowhere", "--exec", "true"],
    ] {
        let error = broker.fails(3, arguments);
        assert!(error.contains("hapax queue create nowhere"), "{arguments:?}: {error}");
    }
    // Who looks for something does not find it in a new queue.
    for arguments in [
        &["peek", "nowhere"][..],
        &["get", "nowhere", "key"],
        &["dead", "ls", "nowhere"],
        &["tail", "nowhere", "--for", "1s"],
    ] {
        let error = broker.fails(3, arguments);
        assert!(error.contains("hapax queue ls") && !error.contains("create"), "{error}");
    }
}

#[test]
fn what_takes_a_queue_away_does_not_offer_to_create_it() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    for verb in ["rm", "purge"] {
        let error = broker.fails(3, &["queue", verb, "nowhere", "--yes"]);
        assert!(error.contains("hapax queue ls") && !error.contains("create"), "{error}");
        let error = broker.fails(3, &["queue", verb, "ordres", "--yes"]);
        assert!(error.contains("did you mean orders?") && !error.contains("create"), "{error}");
    }
}

#[test]
fn a_purge_drops_messages_and_keeps_their_keys_unless_told() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let told = broker.ok(&["queue", "purge", "orders"]);
    let message = "1 message (1 ready, 0 delayed, 0 parked, 0 dead)";
    assert!(told.contains(&format!("would discard {message} and keep")), "{told}");
    assert_eq!(broker.json(&["queue", "show", "orders"])["stats"]["ready"], 1);
    let told = broker.ok(&["queue", "purge", "orders", "--yes"]);
    assert!(told.contains(&format!("discarded {message} and kept the keys")), "{told}");
    assert_eq!(broker.json(&["queue", "show", "orders"])["stats"]["ready"], 0);
    assert_eq!(broker.run(&["send", "orders", "x", "--key", "a"]).code, Some(7), "still known");
    broker.ok(&["queue", "purge", "orders", "--keys", "--yes"]);
    assert!(broker.ok(&["send", "orders", "x", "--key", "a"]).starts_with("accepted"));
}

#[test]
fn without_a_broker_the_next_step_is_to_start_one() {
    let directory = tempfile::tempdir().unwrap();
    // A port that was free a moment ago: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = format!("http://{port}");
    for arguments in [&["queue", "ls"][..], &["send", "orders", "x"], &["get", "orders", "k"]] {
        let output =
            hapax(directory.path()).args(arguments).args(["--server", &server]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{arguments:?}: {error}");
        assert!(error.contains(&server) && error.contains("hapax dev"), "{error}");
    }
}

#[test]
fn a_reader_who_goes_away_is_no_error() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let mut child = broker
        .command(&["queue", "show", "orders"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn partitions_that_do_not_answer_are_named_by_the_list_of_queues() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let broker = runtime.block_on(TestBroker::start(4));
    let (url, engine) = (broker.url(), broker.service().engine().clone());
    let run = |arguments: &[&str]| {
        let mut command = hapax(broker.path());
        let output = command.args(arguments).env("HAPAX_SERVER", &url).output().unwrap();
        let told = Printed::of(&output);
        assert_eq!(told.code, Some(0), "{told:?}");
        told
    };
    run(&["queue", "create", "orders"]);
    let whole = run(&["queue", "ls"]);
    assert!(!whole.err.contains("did not answer"), "{whole:?}");
    let whole: serde_json::Value =
        serde_json::from_str(&run(&["queue", "ls", "-o", "json"]).out).unwrap();
    assert_eq!(whole[0].get("unanswered"), None);

    let (enter, entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let held = runtime.spawn(async move {
        let stand_still = move |_: &_| {
            enter.send(()).unwrap();
            released.recv().unwrap_err()
        };
        engine.inspect(2, stand_still).await
    });
    entered.recv().unwrap();
    let part = run(&["queue", "ls"]);
    assert!(part.out.contains("orders"), "{part:?}");
    assert!(part.err.contains("partition 2 did not answer in time"), "{part:?}");
    let part = run(&["queue", "ls", "-o", "json"]);
    assert!(part.err.contains("partition 2 did not answer in time"), "{part:?}");
    let part: serde_json::Value = serde_json::from_str(&part.out).unwrap();
    assert_eq!((&part[0]["queue"], &part[0]["unanswered"]), (&"orders".into(), &json!([2])));

    drop(release);
    assert!(runtime.block_on(held).unwrap().is_ok());
    runtime.block_on(broker.stop());
}
