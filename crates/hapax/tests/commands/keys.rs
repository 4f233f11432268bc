//! Looking at keys and at places; what an operator does to a key.

use crate::broker::Broker;
use hapax_testing::{Signal, signal, until};

#[test]
fn get_tells_the_whole_story_and_the_why_of_it() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "three lemons", "--key", "order-42"]);
    let waits = broker.ok(&["get", "orders", "order-42"]);
    assert!(waits.contains("has waited for a worker"), "{waits}");
    let received = broker.json(&["receive", "orders", "--worker", "billing-1"]);
    let leased = broker.ok(&["get", "orders", "order-42"]);
    assert!(leased.contains("billing-1 works on it (attempt 1)"), "{leased}");
    let lease = received["lease"].as_str().unwrap();
    broker.ok(&["settle", "save", "orders", lease, "charged", "17 euro"]);
    broker.ok(&["settle", "done", "orders", lease, "paid"]);
    for _ in 0..3 {
        broker.ok(&["send", "orders", "three lemons", "--key", "order-42"]);
    }
    let done = broker.ok(&["get", "orders", "order-42"]);
    assert!(done.contains("done once at"), "{done}");
    assert!(done.contains(
        "by billing-1; 3 duplicates were answered and not run; the next one gets its result paid"
    ));
    for event in ["sent", "leased", "saved", "done", "duplicate"] {
        assert!(done.contains(event), "{event}: {done}");
    }
    let shape = broker.json(&["get", "orders", "order-42"]);
    assert_eq!((&shape["state"], &shape["duplicates"]), (&"done".into(), &3.into()));
    assert_eq!(shape["result"]["body"], "paid");
    assert_eq!(shape["worker"], "billing-1");
    assert!(shape["history"].as_array().unwrap().len() >= 4, "{shape}");
    assert_eq!(broker.ok(&["get", "orders", "order-42", "--result"]), "paid");
    assert_eq!(broker.run(&["get", "orders", "nothing"]).code, Some(3));
}

#[test]
fn the_why_of_a_ready_message_says_what_is_in_its_way() {
    let broker = Broker::start();
    let rules = ["--order", "group", "--on-group-dead", "park"];
    broker.ok(&[&["queue", "create", "pay"], &rules[..]].concat());
    for key in ["g1", "g2"] {
        broker.ok(&["send", "pay", "x", "--key", key, "--group", "eu"]);
    }
    let why = || {
        let told = broker.ok(&["get", "pay", "g2"]);
        told.lines().find(|line| line.starts_with("  why")).unwrap().to_owned()
    };
    assert!(why().contains("has waited for a worker since"), "{}", why());
    broker.ok(&["queue", "pause", "pay"]);
    assert!(why().contains("its queue is paused") && why().contains("queue resume pay"));
    broker.ok(&["queue", "resume", "pay"]);
    let lease = broker.json(&["receive", "pay"])["lease"].as_str().unwrap().to_owned();
    assert!(why().contains("waits behind g1 of its group, which is leased"), "{}", why());
    broker.ok(&["settle", "fail", "pay", &lease, "--delay", "1h"]);
    assert!(why().contains("waits behind g1 of its group, which is delayed"), "{}", why());
    broker.ok(&["send", "pay", "x", "--key", "h1", "--group", "us"]);
    broker.ok(&["send", "pay", "x", "--key", "h2", "--group", "us"]);
    broker.kill_message("pay", "no such account");
    let told = broker.ok(&["get", "pay", "h2"]);
    assert!(told.contains("waits behind h1 of its group, which is dead"), "{told}");
    assert!(told.contains("hapax dead redrive pay --key h1 --yes"), "{told}");
}

#[test]
fn advice_names_the_group_where_keys_count_per_group() {
    let broker = Broker::start_of(4);
    let rules = ["--dedup-scope", "group", "--on-lost", "park"];
    broker.ok(&[&["queue", "create", "pay"], &rules[..]].concat());
    fn of_eu<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--group", "eu"]].concat()
    }
    // The command that the output of another one tells.
    let advised = |told: &str, from: &str, to: &str| {
        let at = told.find(from).unwrap_or_else(|| panic!("{from}: {told}"));
        let command = told[at..].split(to).next().unwrap();
        command.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let run =
        |command: Vec<String>| broker.ok(&command.iter().map(String::as_str).collect::<Vec<_>>());
    broker.ok(&of_eu(&["send", "pay", "x", "--key", "dead"]));
    let conflict = broker.fails(4, &of_eu(&["send", "pay", "y", "--key", "dead"]));
    assert!(run(advised(&conflict, "hapax get", " shows")).starts_with("dead  ready"));
    broker.kill_message("pay", "no such account");
    let told = broker.ok(&of_eu(&["get", "pay", "dead"]));
    let by_key = broker.run(&["dead", "redrive", "pay", "--key", "dead", "--yes"]);
    assert!(by_key.err.contains("--group GROUP"), "{by_key:?}");
    let redriven = run(advised(&told, "hapax dead redrive", "\n"));
    assert!(redriven.contains("redrove 1 dead message"), "{redriven}");
    broker.kill_message("pay", "no such account");
    broker.ok(&of_eu(&["dead", "discard", "pay", "--key", "dead", "--yes"]));

    broker.ok(&of_eu(&["send", "pay", "x", "--key", "parked"]));
    let lease =
        broker.json(&["receive", "pay", "--wait", "30s"])["lease"].as_str().unwrap().to_owned();
    broker.ok(&["settle", "begin", "pay", &lease]);
    broker.ok(&["settle", "park", "pay", &lease, "--error", "no answer"]);
    let told = broker.ok(&of_eu(&["get", "pay", "parked"]));
    assert!(told.contains("does not know whether it happened: no answer. "), "{told}");
    run([advised(&told, "hapax resolve", "RESULT"), vec!["paid".to_owned()]].concat());
    assert_eq!(broker.ok(&of_eu(&["get", "pay", "parked", "--result"])), "paid");
}

#[test]
fn looking_at_a_queue_that_is_not_there_does_not_advise_to_create_it() {
    let broker = Broker::start();
    for command in [&["get", "none", "k"][..], &["peek", "none"], &["dead", "ls", "none"]] {
        let told = broker.fails(3, command);
        assert!(told.contains("there is no queue none"), "{told}");
        assert!(told.contains("hapax queue ls") && !told.contains("queue create"), "{told}");
    }
}

#[test]
fn a_get_with_a_wait_ends_when_the_message_does() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    assert_eq!(broker.run(&["get", "orders", "a", "--wait", "50ms"]).code, Some(8));
    let waiting = broker.command(&["get", "orders", "a", "--wait", "100s"]).spawn().unwrap();
    broker.kill_message("orders", "no such account");
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(7), "dead");
}

#[test]
fn peek_shows_what_is_where_without_taking_it() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "one", "--key", "a"]);
    broker.ok(&["send", "orders", "two", "--key", "b", "--delay", "1h"]);
    let all = broker.json(&["peek", "orders"]);
    let places: Vec<_> = all.as_array().unwrap().iter().map(|it| it["state"].clone()).collect();
    assert_eq!(places, ["ready", "delayed"]);
    let delayed = broker.json(&["peek", "orders", "--state", "delayed"]);
    assert_eq!(delayed[0]["body"], "two");
    assert!(broker.ok(&["peek", "orders"]).contains("due in"));
    assert!(broker.fails(2, &["peek", "orders", "--state", "gone"]).contains("ready"));
    let long = "k".repeat(255);
    broker.ok(&["send", "orders", "x", "--key", &long]);
    assert!(broker.ok(&["peek", "orders"]).contains(&long), "a key is there to be copied");
    assert_eq!(broker.json(&["get", "orders", "a"])["attempts"], 0, "nothing was leased");
}

#[test]
fn tail_tells_what_happens_and_ends_when_told() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let log = std::fs::File::create(broker.path().join("tail")).unwrap();
    let told = || std::fs::read_to_string(broker.path().join("tail")).unwrap();
    let mut tail = broker.command(&["tail", "orders"]).stdout(log).spawn().unwrap();
    until("the first look", || told().contains("0 ready").then_some(()));
    broker.ok(&["send", "orders", "three lemons", "--key", "order-42"]);
    until("the send", || told().contains("order-42  three lemons").then_some(()));
    broker.ok(&["receive", "orders", "--ack", "--worker", "ada"]);
    until("the end", || told().contains("+1 done").then_some(()));
    signal(tail.id(), Signal::INT);
    assert_eq!(tail.wait().unwrap().code(), Some(0));
}

#[test]
fn a_forgotten_key_is_new_and_a_replayed_one_runs_again() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    let send = ["send", "orders", "x", "--key", "a"];
    broker.ok(&send);
    assert_eq!(broker.run(&["forget", "orders", "a"]).code, Some(2), "its message is alive");
    broker.ok(&["receive", "orders", "--ack"]);
    let error = broker.fails(4, &["replay", "orders", "a", "another body"]);
    assert!(error.contains("conflict"), "{error}");
    assert!(error.contains("next: give the same body, group and fingerprint"), "{error}");
    broker.ok(&["replay", "orders", "a", "x"]);
    let again = broker.json(&["receive", "orders", "--ack"]);
    assert_eq!((&again["key"], &again["generation"]), (&"a".into(), &1.into()));
    broker.ok(&["forget", "orders", "a"]);
    assert!(broker.ok(&send).starts_with("accepted"));
}

#[test]
fn a_parked_message_waits_until_somebody_resolves_it() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "charges", "--on-lost", "park"]);
    for (key, answer) in [("a", "--done=charged"), ("b", "--retry")] {
        broker.ok(&["send", "charges", "x", "--key", key]);
        let received = broker.json(&["receive", "charges"]);
        let lease = received["lease"].as_str().unwrap();
        broker.ok(&["settle", "begin", "charges", lease]);
        broker.ok(&["settle", "extend", "charges", lease, "--lease", "1s"]);
        let parked = broker.run(&["get", "charges", key, "--wait", "100s"]);
        assert_eq!(parked.code, Some(7), "{parked:?}");
        assert!(parked.out.contains(&format!("hapax resolve charges {key}")), "{parked:?}");
        broker.ok(&["resolve", "charges", key, answer]);
    }
    assert_eq!(broker.ok(&["get", "charges", "a", "--result"]), "charged");
    assert_eq!(broker.json(&["receive", "charges"])["key"], "b");
    let neither = broker.fails(2, &["resolve", "charges", "a"]);
    assert!(neither.contains("--done") && neither.contains("--retry"), "{neither}");
    assert_eq!(broker.run(&["resolve", "charges", "a", "--done", "--retry"]).code, Some(2));
}
