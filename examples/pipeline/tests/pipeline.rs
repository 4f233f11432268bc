//! The example does what it says, with kills on the way.

use std::process::Command;

#[test]
fn every_order_ends_as_one_letter() {
    let output = Command::new(env!("CARGO_BIN_EXE_hapax-example-pipeline"))
        .args(["--inputs", "200", "--kills", "8", "--seed", "42"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("200 orders, 200 letters; 0 missing, 0 doubled"), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("after")).count(), 8, "{said}");
    assert!(said.contains("killed broker"), "{said}");
    assert!(said.contains("killed worker"), "{said}");
}

/// Text without the white space that only shapes it.
fn plain(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_guide_shows_the_program() {
    let program = plain(include_str!("../src/main.rs"));
    let guide = include_str!("../../../docs/guides/pipelines.md");
    let blocks: Vec<&str> = guide.split("```rust").skip(1).collect();
    for block in &blocks {
        let code = block.split_once('\n').unwrap().1.split("```").next().unwrap();
        assert!(program.contains(&plain(code)), "not in the program:\n{code}");
    }
    assert!(!blocks.is_empty(), "the guide shows no code");
}
