//! Purity: `core` decides, and nothing else. Time and randomness are its arguments, effects are
//! its answers; so no clock, file, socket, thread or log is within its reach. `keys`, the part of
//! it that clients compute too, is held to the same.
//!
//! Clippy guards the same border from within (`crates/core/clippy.toml`). This check sees what
//! clippy does not: macros, whole modules, and what a dependency would bring along.

use crate::edges::{dependencies, package};
use crate::source::{Source, line_of, paths, words};
use crate::tree::{Document, Finding, demand_none, documents, sources};

/// Crates without input, output, clock or randomness.
const DEPENDENCIES: &[&str] =
    &["blake3", "bytes", "hapax-keys", "hashbrown", "sha2", "thiserror", "xxhash-rust"];

/// The pure crates, by their folders.
const PURE: &[&str] = &["crates/core/", "crates/keys/"];

/// Modules of the standard library that reach outside.
const STD_MODULES: &[&str] = &["env", "fs", "net", "process", "thread"];

/// Names that reach outside, wherever they come from.
const NAMES: &[&str] = &[
    "Instant",
    "SystemTime",
    "rand",
    "tokio",
    "tracing",
    "async",
    "println!",
    "eprintln!",
    "print!",
    "eprint!",
];

#[test]
fn core_depends_on_nothing_that_reaches_outside() {
    let documents = documents();
    for (folder, name) in PURE.iter().zip(["hapax-core", "hapax-keys"]) {
        let path = format!("{folder}Cargo.toml");
        let manifest = documents.iter().find(|document| document.path == path);
        assert!(manifest.is_some_and(|manifest| package(&manifest.text) == Some(name)), "{path}");
        demand_none(manifest.into_iter().flat_map(impure_dependencies));
    }
}

#[test]
fn core_names_nothing_that_reaches_outside() {
    let sources = sources();
    let is_pure = |source: &&Source| {
        PURE.iter().any(|folder| source.path.starts_with(&format!("{folder}src/")))
    };
    demand_none(sources.iter().filter(is_pure).flat_map(impure_words));
}

/// Tests of `core` may use what they like.
fn impure_dependencies(manifest: &Document) -> Vec<Finding> {
    dependencies(&manifest.text)
        .into_iter()
        .filter(|dependency| !dependency.is_dev)
        .filter(|dependency| !DEPENDENCIES.contains(&dependency.package.as_str()))
        .map(|dependency| {
            let what = format!(
                "a pure crate may not depend on {}: pass in what it would fetch, or show in \
                 purity.rs that it does no input or output",
                dependency.package
            );
            Finding::at(&manifest.path, dependency.line, what)
        })
        .collect()
}

fn impure_words(source: &Source) -> Vec<Finding> {
    let code = source.code_without_tests();
    let modules = STD_MODULES.iter().flat_map(|module| {
        paths(&code, "std", module).into_iter().map(move |at| (at, format!("std::{module}")))
    });
    let names =
        NAMES.iter().flat_map(|name| words(&code, name).map(move |at| (at, (*name).to_owned())));
    modules
        .chain(names)
        .map(|(at, name)| {
            let what = format!("a pure crate names {name}: make it an argument or an effect");
            Finding::at(&source.path, line_of(&code, at), what)
        })
        .collect()
}

#[track_caller]
fn check(text: &str, expected: &[usize]) {
    let found = impure_words(&Source::parse("crates/core/src/a.rs", text));
    let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
    assert_eq!(lines, expected, "{text}");
}

#[test]
fn an_impure_word_is_found() {
    check("\nlet now = std::time::Instant::now();\n", &[2]);
    check("use std::time::{Duration, SystemTime};\n", &[1]);
    check("use std::fs::File;\n", &[1]);
    check("use std::{fmt, net};\n", &[1]);
    check("use std::{\n    fmt,\n    thread,\n};\n", &[1]);
    check("let x = rand::random();\n", &[1]);
    check("tokio::spawn(a);\n", &[1]);
    check("tracing::info!(a);\n", &[1]);
    check("println!(\"a\");\n", &[1]);
    check("async fn a() {}\n", &[1]);
}

#[test]
fn an_innocent_word_is_no_finding() {
    check("// no Instant here\nlet random = operand + \"rand\".len();\n", &[]);
    check("use std::fmt;\nlet net = gross - std::cmp::min(a, b);\n", &[]);
    check("#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n", &[]);
}

#[test]
fn an_impure_dependency_is_found() {
    let text =
        "[dependencies]\nbytes = \"1\"\nrand = \"1\"\n\n[dev-dependencies]\nproptest = \"1\"\n";
    let found = impure_dependencies(&Document {
        path: "crates/core/Cargo.toml".to_owned(),
        text: text.to_owned(),
    });
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3]);
}
