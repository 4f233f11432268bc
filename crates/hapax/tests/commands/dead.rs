//! Dead messages: listed, redriven, discarded; nothing without `--yes`.

use crate::broker::Broker;

fn broker_with_dead() -> Broker {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    for (key, error) in [("a", "timeout"), ("b", "no such account"), ("c", "connect timeout")] {
        broker.ok(&["send", "orders", key, "--key", key]);
        broker.kill_message("orders", error);
    }
    broker
}

fn dead(broker: &Broker) -> u64 {
    broker.json(&["queue", "show", "orders"])["stats"]["dead"].as_u64().unwrap()
}

#[test]
fn dead_messages_are_listed_with_their_errors_and_filtered() {
    let broker = broker_with_dead();
    let all = broker.ok(&["dead", "ls", "orders"]);
    assert!(all.contains("no such account") && all.lines().count() == 4, "{all}");
    let head: Vec<&str> = all.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["KEY", "ATTEMPTS", "ACCEPTED", "DIED", "GROUP", "ERROR", "BODY"]);
    let some = broker.json(&["dead", "ls", "orders", "--error-contains", "timeout"]);
    let keys: Vec<_> = some.as_array().unwrap().iter().map(|it| it["key"].clone()).collect();
    assert_eq!(keys, ["a", "c"]);
    let none = broker.json(&["dead", "ls", "orders", "--before", "1h"]);
    assert_eq!(none.as_array().unwrap().len(), 0, "they died just now");
    let told = broker.run(&["dead", "ls", "orders", "--limit", "2"]);
    assert!(told.err.contains("there is more") && told.out.lines().count() == 3, "{told:?}");
    let why = broker.ok(&["get", "orders", "b"]);
    assert!(why.contains("dead after 1 attempt: no such account"), "{why}");
    let again = broker.run(&["send", "orders", "b", "--key", "b"]);
    assert_eq!(again.code, Some(7), "a send under a dead key gets the error: {again:?}");
    assert!(again.out.contains("no such account"), "{again:?}");
}

#[test]
fn the_oldest_come_first_wherever_they_live() {
    let broker = Broker::start_of(4);
    broker.ok(&["queue", "create", "orders"]);
    let keys: Vec<String> = (0..12).map(|n| format!("k{n:02}")).collect();
    for key in &keys {
        broker.ok(&["send", "orders", "x", "--key", key]);
    }
    let ready = broker.json(&["peek", "orders"]);
    let listed = |list: &serde_json::Value| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|it| it["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&ready), keys, "each was sent by a process of its own");
    for _ in &keys {
        broker.kill_message("orders", "no");
    }
    let dead = broker.json(&["dead", "ls", "orders", "--limit", "5"]);
    assert_eq!(listed(&dead), keys[..5]);
}

#[test]
fn a_redrive_counts_first_and_moves_only_when_told() {
    let broker = broker_with_dead();
    let dry = broker.ok(&["dead", "redrive", "orders", "--error-contains", "timeout"]);
    assert!(dry.contains("would redrive 2 dead messages") && dry.contains("--yes"), "{dry}");
    assert_eq!(dead(&broker), 3);
    let told = broker.json(&["dead", "redrive", "orders", "--error-contains", "timeout", "--yes"]);
    assert_eq!((&told["moved"], &told["done"]), (&2.into(), &true.into()));
    assert_eq!(dead(&broker), 1);
    assert_eq!(broker.json(&["get", "orders", "a"])["state"], "ready");
    assert!(broker.fails(2, &["dead", "redrive", "orders", "--yes"]).contains("--all"));
    let all = broker.ok(&["dead", "redrive", "orders", "--all", "--rate", "100", "--yes"]);
    assert!(all.contains("redrove 1 dead message ("), "{all}");
    assert_eq!(dead(&broker), 0);
}

#[test]
fn a_redrive_repeated_under_its_id_moves_nothing_twice() {
    let broker = broker_with_dead();
    let redrive = ["dead", "redrive", "orders", "--all", "--id", "after-the-outage", "--yes"];
    assert_eq!(broker.json(&redrive)["moved"], 3);
    broker.kill_message("orders", "again");
    let again = broker.json(&redrive);
    assert_eq!((&again["id"], &again["moved"]), (&"after-the-outage".into(), &3.into()));
    assert_eq!(dead(&broker), 1, "what died since stays where it is");
    let other = ["dead", "redrive", "orders", "--all", "--id", "after-the-outage", "--rate", "9"];
    let error = broker.fails(4, &[&other[..], &["--yes"]].concat());
    assert!(error.contains("another redrive") && error.contains("choose a new one"), "{error}");
    let one = broker.json(&["dead", "ls", "orders"])[0]["key"].as_str().unwrap().to_owned();
    assert_eq!(broker.json(&["dead", "redrive", "orders", "--key", &one, "--yes"])["moved"], 1);
}

#[test]
fn a_discard_lists_first_and_keeps_the_key() {
    let broker = broker_with_dead();
    let dry = broker.ok(&["dead", "discard", "orders", "--error-contains", "timeout"]);
    assert!(dry.contains("would discard 2 dead messages"), "{dry}");
    assert_eq!(dead(&broker), 3);
    let told = broker.ok(&["dead", "discard", "orders", "--error-contains", "timeout", "--yes"]);
    assert!(told.contains("discarded 2 dead messages"), "{told}");
    assert_eq!(dead(&broker), 1);
    assert_eq!(broker.json(&["get", "orders", "a"])["state"], "discarded");
    let told = broker.ok(&["dead", "discard", "orders", "--key", "b", "--yes"]);
    assert!(told.contains("discarded 1"), "{told}");
    let error = broker.fails(4, &["dead", "discard", "orders", "--key", "b", "--yes"]);
    assert!(error.contains("is discarded, not dead"), "{error}");
}

#[test]
fn a_key_that_is_not_dead_is_told_and_is_no_success() {
    let broker = broker_with_dead();
    let keys = ["dead", "redrive", "orders", "--key", "a", "--key", "none", "--yes"];
    let told = broker.run(&keys);
    assert_eq!(told.code, Some(3), "{told:?}");
    assert!(told.out.contains("redrove 1 dead message ("), "{told:?}");
    assert!(told.err.contains("none is not dead"), "{told:?}");
    let told = broker.run(&["dead", "redrive", "orders", "--key", "a", "--yes", "-o", "json"]);
    assert_eq!(told.code, Some(3), "{told:?}");
    let told: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((&told["moved"], &told["missing"][0]), (&0.into(), &"a".into()));
}

#[test]
fn a_redrive_is_watched_and_cancelled_by_its_id() {
    let broker = broker_with_dead();
    let slow = ["--all", "--rate", "1", "--id", "slow", "--no-wait", "--yes"];
    let started = broker.json(&[&["dead", "redrive", "orders"], &slow[..]].concat());
    assert_eq!((&started["total"], &started["done"]), (&3.into(), &false.into()));
    let status = broker.json(&["dead", "redrive", "orders", "--status", "slow"]);
    assert_eq!((&status["id"], &status["total"]), (&"slow".into(), &3.into()));
    let told = broker.ok(&["dead", "redrive", "orders", "--cancel", "slow"]);
    assert!(told.contains("redrive slow is cancelled") && told.contains("of 3 moved"), "{told}");
    assert!(dead(&broker) > 0);
    for verb in ["--cancel", "--status"] {
        let error = broker.fails(3, &["dead", "redrive", "orders", verb, "none"]);
        assert!(error.contains("the queue has no redrive none"), "{error}");
        assert!(error.contains("check the id"), "{error}");
    }
    let late = ["dead", "redrive", "orders", "--after", "2100-01-01T00:00:00Z", "--yes"];
    assert_eq!(broker.json(&late)["moved"], 0);
}

#[test]
fn where_keys_count_per_group_a_redrive_by_key_names_the_group() {
    let broker = Broker::start();
    let rules = ["--order", "group", "--dedup-scope", "group", "--max-attempts", "1"];
    broker.ok(&[&["queue", "create", "orders"], &rules[..]].concat());
    for group in ["g", "h"] {
        broker.ok(&["send", "orders", "x", "--key", "k", "--group", group]);
        broker.kill_message("orders", "no");
    }
    let redrive = ["dead", "redrive", "orders", "--key", "k", "--yes"];
    let told = broker.run(&redrive);
    assert_eq!(told.code, Some(3), "{told:?}");
    assert!(told.err.contains("--group GROUP"), "{told:?}");
    let told = broker.json(&[&redrive[..], &["--group", "h"]].concat());
    assert_eq!(told["moved"], 1);
    assert_eq!(dead(&broker), 1, "that of the other group stays");
}
