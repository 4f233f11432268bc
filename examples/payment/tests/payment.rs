//! The whole service under mischief, with a fixed seed: every order is charged once.
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::process::Command;

fn run(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax-example-payment"));
    let output = command.args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    said
}

/// So many were absorbed at a place, by the last table.
fn absorbed(said: &str, born: &str) -> u64 {
    let line = said.lines().rev().find(|line| line.contains(born)).unwrap();
    let count = line.split_once(born).unwrap().1.split_whitespace().next().unwrap();
    count.parse().unwrap()
}

#[test]
fn every_order_is_charged_once_whatever_is_killed() {
    let said = run(&["--chaos", "--orders", "40", "--seed", "11"]);
    assert!(said.contains("of 40 orders exactly 40 were charged once"), "{said}");
    assert!(said.contains("40 rows of orders, 40 of payments"), "{said}");
    for born in [
        "a customer sends again",
        "a reply is lost",
        "the broker crashes",
        "a worker dies after the charge",
        "a commit is not heard of",
    ] {
        assert!(absorbed(&said, born) > 0, "no duplicate was born where {born}: {said}");
    }
}

#[test]
fn on_a_good_day_nobody_sends_twice_and_every_order_is_charged_once() {
    let said = run(&["--orders", "20"]);
    assert!(said.contains("of 20 orders exactly 20 were charged once"), "{said}");
    assert_eq!(absorbed(&said, "a customer sends again"), 0, "{said}");
}
