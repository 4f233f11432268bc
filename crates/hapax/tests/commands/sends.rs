//! Sending: first, again, in conflict, many; and taking by hand.

use serde_json::Value;

use crate::broker::Broker;
use hapax_testing::{Signal, signal, until};

#[test]
fn same_key_twice_is_one_message_and_another_body_is_a_conflict() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let send = |body| ["send", "orders", body, "--key", "order-42"];
    let first = broker.json(&send("three lemons"));
    assert_eq!((&first["answer"], &first["state"]), (&"accepted".into(), &"ready".into()));
    let again = broker.json(&send("three lemons"));
    assert_eq!(again["answer"], "in_flight");
    assert_eq!(again["id"], first["id"]);
    let error = broker.fails(4, &send("four limes"));
    assert!(
        error.contains("body differs") && error.contains("hapax get orders order-42"),
        "{error}"
    );
    let told = broker.run(&["send", "orders", "four limes", "--key", "order-42", "-o", "json"]);
    let conflict: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(told.code, Some(4));
    assert_eq!(conflict["code"], "conflict");
    assert_eq!(conflict["differs"][0], "body");
    assert_eq!(conflict["id"], first["id"]);
    assert_eq!(broker.json(&["queue", "show", "orders"])["stats"]["ready"], 1);
}

#[test]
fn an_empty_key_or_group_is_refused_and_is_not_the_same_as_none() {
    let broker = Broker::start();
    for (queue, guarantee) in [("orders", "exactly-once"), ("events", "at-least-once")] {
        broker.ok(&["queue", "create", queue, "--guarantee", guarantee]);
        let error = broker.fails(2, &["send", queue, "x", "--key", ""]);
        assert!(error.contains("malformed_key: key: a key has 1 to 255 bytes"), "{error}");
        let lines = b"{\"key\":\"\",\"body\":\"x\"}\n{\"key\":\"b\",\"body\":\"x\"}\n";
        let told = broker.run_with(&["send", queue, "--batch"], lines);
        assert!(told.out.contains("1 accepted, 0 sent before, 1 refused"), "{told:?}");
        assert!(told.err.contains("malformed_key"), "{told:?}");
        broker.fails(2, &["send", queue, "x", "--key", "c", "--group", ""]);
        assert_eq!(broker.json(&["queue", "show", queue])["stats"]["ready"], 1);
    }
}

#[test]
fn a_header_is_given_once_and_has_a_name() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let send = |more: &[&'static str]| [&["send", "orders", "x", "--key", "a"], more].concat();
    let error = broker.fails(2, &send(&["--header", "a=1", "--header", "a=2"]));
    assert!(error.contains("\"a\" is given twice"), "{error}");
    assert!(broker.fails(2, &send(&["--header", "=v"])).contains("the name is empty"));
    broker.fails(2, &send(&["--make-keys"]));
    assert_eq!(broker.json(&["queue", "show", "orders"])["stats"]["ready"], 0);
}

#[test]
fn without_a_key_one_is_made_and_told() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let told = broker.run(&["send", "orders", "x", "-o", "json"]);
    let answer: Value = serde_json::from_str(&told.out).unwrap();
    let key = answer["key"].as_str().unwrap();
    assert_eq!(uuid::Uuid::parse_str(key).unwrap().get_version_num(), 7);
    assert!(told.err.contains(key) && told.err.contains("--key"), "{}", told.err);
}

#[test]
fn a_body_comes_from_the_input_or_a_file_and_is_kept_byte_for_byte() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let bytes = [0, 159, 146, 150, b'\n'];
    std::fs::write(broker.path().join("body"), bytes).unwrap();
    broker.ok(&["send", "orders", "--file", "body", "--key", "a"]);
    let told = broker.run_with(&["send", "orders", "-", "--key", "a"], &bytes);
    assert!(told.out.starts_with("in_flight"), "the same body: {told:?}");
    let received = broker.json(&["receive", "orders"]);
    assert_eq!(received["body_base64"], "AJ+Slgo=");
    assert!(broker.fails(2, &["send", "orders", "--key", "b"]).contains("--file"));
    assert!(broker.fails(2, &["send", "orders", "--file", "nowhere"]).contains("nowhere"));
}

#[test]
fn what_travels_with_a_message_arrives_with_it() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders", "--order", "group"]);
    broker.ok(&[
        "send",
        "orders",
        "{}",
        "--key",
        "a",
        "--group",
        "eu",
        "--content-type",
        "application/json",
        "--header",
        "trace=1=2",
        "--header",
        "who=ada",
    ]);
    let received = broker.json(&["receive", "orders"]);
    assert_eq!(received["group"], "eu");
    assert_eq!(received["content_type"], "application/json");
    assert_eq!(received["headers"]["trace"], "1=2");
    assert_eq!(received["headers"]["who"], "ada");
}

#[test]
fn a_message_taken_by_hand_is_settled_by_its_lease_and_its_result_is_the_answer() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    assert_eq!(broker.run(&["receive", "orders"]).code, Some(8), "nothing is there");
    broker.ok(&["send", "orders", "three lemons", "--key", "order-42"]);
    let received = broker.json(&["receive", "orders", "--wait", "30s", "--worker", "ada"]);
    assert_eq!(received["body"], "three lemons");
    let lease = received["lease"].as_str().unwrap();
    let extended = broker.json(&["settle", "extend", "orders", lease, "--lease", "10m"]);
    assert_eq!(extended["answer"], "ok");
    assert!(extended["deadline"].as_str() > received["deadline"].as_str(), "{extended}");
    broker.ok(&["settle", "save", "orders", lease, "charged", "17 euro"]);
    broker.ok(&["settle", "done", "orders", lease, "receipt 17"]);
    let told = broker.ok(&["send", "orders", "three lemons", "--key", "order-42"]);
    assert!(told.starts_with("done") && told.ends_with("receipt 17\n"), "{told}");
    let told = broker.ok(&["settle", "done", "orders", lease, "receipt 17"]);
    assert!(told.starts_with("ok"), "the same settle again gets the same answer: {told}");
    let error = broker.fails(4, &["settle", "release", "orders", lease]);
    assert!(error.contains("lease_lost"), "{error}");
    assert!(broker.fails(2, &["settle", "done", "orders", "no lease!"]).contains("hapax receive"));
}

#[test]
fn a_receive_with_ack_settles_what_it_prints() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    for key in ["a", "b", "c"] {
        broker.ok(&["send", "orders", key, "--key", key]);
    }
    let told = broker.ok(&["receive", "orders", "--max", "10", "--ack", "-o", "json"]);
    let mut keys: Vec<String> = told
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].to_string())
        .collect();
    keys.sort();
    assert_eq!(keys, ["\"a\"", "\"b\"", "\"c\""]);
    assert_eq!(broker.json(&["get", "orders", "b"])["state"], "done");
}

#[test]
fn a_send_waits_for_the_result_or_for_the_end_of_its_wait() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let told = broker.run(&["send", "orders", "x", "--key", "a", "--wait", "50ms"]);
    assert_eq!(told.code, Some(8), "accepted, and nobody works: {told:?}");
    assert!(told.err.contains("not done within 50ms: the message is ready"), "{told:?}");
    let mut waiting = broker
        .command(&["send", "orders", "x", "--key", "a", "--wait", "100s", "-o", "json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut worker = broker.command(&["work", "orders", "--exec", "echo paid"]).spawn().unwrap();
    let answer: Value = serde_json::from_reader(waiting.stdout.take().unwrap()).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
    assert_eq!(answer["answer"], "done");
    assert_eq!(answer["result"]["body"], "paid\n");
    signal(worker.id(), Signal::TERM);
    assert_eq!(worker.wait().unwrap().code(), Some(0));
    until("the worker's end to be seen", || {
        (broker.json(&["queue", "show", "orders"])["stats"]["leased"] == 0).then_some(())
    });
}

#[test]
fn a_batch_answers_every_line_and_one_conflict_harms_no_neighbour() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "first", "--key", "k7"]);
    let lines: Vec<String> =
        (0..1_200).map(|number| format!("{{\"key\":\"k{number}\",\"body\":\"b\"}}\n")).collect();
    let input = lines.concat();
    let told = broker.run_with(&["send", "orders", "--batch"], input.as_bytes());
    assert_eq!(told.code, Some(4), "{told:?}");
    assert!(told.out.contains("1199 accepted, 0 sent before, 1 refused"), "{told:?}");
    assert!(told.err.contains("line 8, key k7: conflict"), "{told:?}");
    let told = broker.run_with(&["send", "orders", "--batch", "-o", "json"], input.as_bytes());
    let answers: Vec<Value> =
        told.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 1_200);
    assert_eq!(answers[7]["code"], "conflict");
    assert_eq!((&answers[8]["key"], &answers[8]["answer"]), (&"k8".into(), &"in_flight".into()));
    let wrong = broker.run_with(&["send", "orders", "--batch"], b"{\"key\":\"a\"}\n");
    assert!(wrong.code == Some(2) && wrong.err.contains("line 1: there is no body"), "{wrong:?}");
}

#[test]
fn a_batch_with_a_wrong_line_has_sent_what_came_before_it_and_nothing_after() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let input = b"{\"key\":\"a\",\"body\":\"x\"}\n\n{\"key\":\"b\",\"body\":{}}\n\
                  {\"key\":\"c\",\"body\":\"x\"}\n";
    let told = broker.run_with(&["send", "orders", "--batch"], input);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.out.contains("1 accepted, 0 sent before, 0 refused"), "{told:?}");
    assert!(told.err.contains("line 3: ") && told.err.contains("continue with line 3"), "{told:?}");
    assert_eq!(broker.json(&["get", "orders", "a"])["state"], "ready", "as it says");
    assert_eq!(broker.run(&["get", "orders", "c"]).code, Some(3), "not what came after");
}

#[test]
fn a_batch_line_without_a_key_is_refused_unless_its_key_is_made_and_printed() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let input =
        b"{\"key\":\"a\",\"body\":\"x\"}\n{\"body\":\"y\"}\n{\"key\":\"c\",\"body\":\"z\"}\n";
    let told = broker.run_with(&["send", "orders", "--batch"], input);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.out.contains("1 accepted, 0 sent before, 0 refused"), "{told:?}");
    for part in ["line 2: there is no key", "add \"key\"", "--make-keys", "continue with line 2"] {
        assert!(told.err.contains(part), "{part}: {told:?}");
    }
    assert_eq!(broker.run(&["get", "orders", "c"]).code, Some(3), "not what came after");

    let told = broker.run_with(&["send", "orders", "--batch", "--make-keys"], input);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.out.contains("2 accepted, 1 sent before, 0 refused"), "{told:?}");
    let key = told.err.trim().strip_prefix("line 2: the key is ").unwrap().to_owned();
    assert_eq!(broker.json(&["get", "orders", &key])["body"], "y");

    let make = ["send", "orders", "--batch", "--make-keys", "-o", "json"];
    let told = broker.run_with(&make, b"{\"body\":\"y\"}\n");
    let made: Value = serde_json::from_str(told.err.trim()).unwrap();
    let answer: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((&made["line"], &made["key"]), (&1.into(), &answer["key"]));

    broker.ok(&["queue", "create", "events", "--guarantee", "at-least-once"]);
    let told = broker.run_with(&["send", "events", "--batch"], b"{\"body\":\"y\"}\n");
    assert_eq!(told.code, Some(0), "keys are optional there: {told:?}");
}

#[test]
fn a_count_of_zero_is_refused_before_the_broker_is_asked() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    for (arguments, told) in [
        (&["receive", "orders", "--max", "0"][..], "0 is not in 1..=1000"),
        (&["receive", "orders", "--max", "1001"], "1001 is not in 1..=1000"),
        (&["peek", "nowhere", "--limit", "0"], "it must be at least 1"),
        (&["dead", "ls", "nowhere", "--limit", "0"], "it must be at least 1"),
        (&["work", "orders", "--exec", "true", "-c", "0"], "it must be at least 1"),
    ] {
        let error = broker.fails(2, arguments);
        assert!(error.contains(told), "{arguments:?}: {error}");
    }
    assert_eq!(broker.json(&["get", "orders", "a"])["attempts"], 0, "nothing was leased");
}

#[test]
fn a_discarded_key_is_not_called_dead() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    broker.kill_message("orders", "no such account");
    let dead = broker.run(&["send", "orders", "x", "--key", "a"]);
    assert!(dead.code == Some(7) && dead.out.starts_with("dead  a"), "{dead:?}");
    assert!(dead.err.contains("hapax dead redrive orders --key a --yes"), "{dead:?}");
    broker.ok(&["dead", "discard", "orders", "--key", "a", "--yes"]);
    let told = broker.run(&["send", "orders", "x", "--key", "a"]);
    assert_eq!(told.code, Some(7), "{told:?}");
    assert!(told.out.starts_with("discarded  a") && !told.out.contains("dead"), "{told:?}");
    assert!(told.err.contains("hapax forget orders a"), "{told:?}");
    broker.ok(&["forget", "orders", "a"]);
    assert!(broker.ok(&["send", "orders", "x", "--key", "a"]).starts_with("accepted"));
}

#[test]
fn a_settle_says_when_the_lease_ends_or_the_message_is_due() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let lease = broker.json(&["receive", "orders"])["lease"].as_str().unwrap().to_owned();
    let told = broker.ok(&["settle", "extend", "orders", &lease, "--lease", "5m"]);
    assert!(told.starts_with("ok  the message is leased; its lease ends in 5 m"), "{told}");
    let told = broker.ok(&["settle", "fail", "orders", &lease, "--delay", "1h"]);
    assert!(told.starts_with("ok  the message is delayed; due in 1 h"), "{told}");
}

#[test]
fn a_send_that_is_refused_for_now_says_so_or_tries_again_if_told() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders", "--max-messages", "1"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let error = broker.fails(75, &["send", "orders", "x", "--key", "b"]);
    assert!(error.contains("over_quota") && error.contains("under the same key"), "{error}");
    let waiting =
        broker.command(&["send", "orders", "x", "--key", "b", "--retry", "100s"]).spawn().unwrap();
    broker.ok(&["receive", "orders", "--ack"]);
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(broker.json(&["get", "orders", "b"])["state"], "ready");
}
