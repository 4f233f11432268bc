//! The programs of the guides run, and the guides show what they do.
#![expect(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::process::{Command, Output};

use hapax_testing::{TestBroker, on_each};

/// Runs a program against a broker of its own, and tells what it said.
async fn run(partitions: u16, program: &'static str) -> String {
    let broker = TestBroker::start(partitions).await;
    let server = broker.url();
    let program = move || Command::new(program).env("HAPAX_SERVER", server).output();
    let Output { status, stdout, stderr } =
        tokio::task::spawn_blocking(program).await.unwrap().unwrap();
    broker.stop().await;
    let said = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{said}{}", String::from_utf8_lossy(&stderr));
    said
}

on_each!(steps_charge_once_however_often_they_are_tried, flavor = "multi_thread");
async fn steps_charge_once_however_often_they_are_tried(partitions: u16) {
    let said = run(partitions, env!("CARGO_BIN_EXE_steps")).await;
    assert!(said.contains("receipt 1000: 2 calls to the bank, 1 charge"), "{said}");
    assert_eq!(said.matches("your card was charged 1700 cents").count(), 1, "{said}");
}

on_each!(what_is_in_doubt_is_parked_and_resolved, flavor = "multi_thread");
async fn what_is_in_doubt_is_parked_and_resolved(partitions: u16) {
    let said = run(partitions, env!("CARGO_BIN_EXE_at-most-once")).await;
    assert_eq!(said.matches("parked: no answer from the printer").count(), 2, "{said}");
    assert!(said.contains("resolved (it had not): printed"), "{said}");
    assert!(said.ends_with("2 labels, 2 printed\n"), "{said}");
}

/// Text without the white space that only shapes it.
fn plain(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// Every Rust block of a guide is a part of its program, word for word.
#[track_caller]
fn check(guide: &str, program: &str) {
    let program = plain(program);
    let mut blocks = 0;
    for block in guide.split("```rust").skip(1) {
        let code = block.split_once('\n').unwrap().1.split("```").next().unwrap();
        assert!(program.contains(&plain(code)), "not in the program:\n{code}");
        blocks += 1;
    }
    assert!(blocks > 0, "the guide shows no code");
}

#[test]
fn the_guide_of_steps_shows_its_program() {
    let guide = include_str!("../../../docs/guides/steps.md");
    check(guide, include_str!("../src/bin/steps.rs"));
}

#[test]
fn the_guide_of_at_most_once_shows_its_program() {
    let guide = include_str!("../../../docs/guides/at-most-once.md");
    check(guide, include_str!("../src/bin/at-most-once.rs"));
}
