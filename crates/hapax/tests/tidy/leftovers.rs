//! Leftovers: work put off, tests switched off, tests that wait for the clock.

use crate::source::{Source, line_of, paths, words};
use crate::tree::{Document, Finding, demand_none, documents, sources};

/// Words that put work off, in any text.
const WORDS: &[&str] = &["TODO", "FIXME", "XXX"];

/// Macros that put work off, in code and in the examples of comments.
const MACROS: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Texts that are not ours to write.
const FOREIGN: &[&str] = &["LICENSE", "Cargo.lock"];

#[test]
fn no_work_is_left_in_the_code() {
    demand_none(sources().iter().flat_map(markers_in_code));
}

#[test]
fn no_work_is_left_in_other_texts() {
    demand_none(documents().iter().flat_map(markers_in_text));
}

#[test]
fn no_test_is_switched_off() {
    demand_none(sources().iter().flat_map(ignored_tests));
}

#[test]
fn no_test_sleeps() {
    demand_none(sources().iter().flat_map(sleeping_tests));
}

fn markers_in_code(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        for marker in WORDS.iter().chain(MACROS) {
            let is_there = |text: &str| words(text, marker).next().is_some();
            if is_there(&line.code) || is_there(&line.comment) {
                findings.push(left_over(&source.path, index, marker));
            }
        }
    }
    findings
}

fn markers_in_text(document: &Document) -> Vec<Finding> {
    if document.path.ends_with(".rs") || FOREIGN.contains(&document.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        for marker in WORDS.iter().filter(|marker| words(line, marker).next().is_some()) {
            findings.push(left_over(&document.path, index, marker));
        }
    }
    findings
}

fn left_over(path: &str, index: usize, marker: &str) -> Finding {
    Finding::at(path, index, format!("{marker} is left over: do it now, or open an issue"))
}

/// Examples of comments are tests too.
fn ignored_tests(source: &Source) -> Vec<Finding> {
    let what = "a test is switched off: make it pass, or delete it";
    let lines = source.lines.iter().enumerate();
    lines
        .filter(|(_, line)| {
            let code = line.code.trim_start();
            let is_conditional =
                code.starts_with("#[cfg_attr(") && words(code, "ignore").count() > 0;
            code.contains("#[ignore") || is_conditional || line.comment.contains("```ignore")
        })
        .map(|(index, _)| Finding::at(&source.path, index, what))
        .collect()
}

fn sleeping_tests(source: &Source) -> Vec<Finding> {
    let code = source.code_of_tests();
    let what = "a test sleeps: wait for the event itself, or pass the time as an argument";
    paths(&code, "thread", "sleep")
        .into_iter()
        .map(|at| Finding::at(&source.path, line_of(&code, at), what))
        .collect()
}

#[track_caller]
fn check(expected: usize, find: impl Fn(&Source) -> Vec<Finding>, text: &str) {
    let found = find(&Source::parse("crates/x/src/a.rs", text));
    assert_eq!(found.len(), expected, "{text}");
}

#[test]
fn a_marker_is_found_in_code_and_comments_but_not_in_literals() {
    check(1, markers_in_code, "// TODO: later\n");
    check(1, markers_in_code, "let x = 1; // FIXME\n");
    check(1, markers_in_code, "/* XXX */\n");
    check(1, markers_in_code, "fn a() { todo!() }\n");
    check(1, markers_in_code, "fn a() { dbg!(1); }\n");
    check(1, markers_in_code, "//! unimplemented!()\n");
    check(0, markers_in_code, "let x = \"TODO\";\nlet y = mktemp_XXX;\n");
}

#[test]
fn a_marker_is_found_in_other_texts() {
    let at = |path: &str| Document { path: path.to_owned(), text: "a\nTODO b\n".to_owned() };
    assert_eq!(markers_in_text(&at("README.md")).first().map(|finding| finding.line), Some(2));
    assert!(markers_in_text(&at("LICENSE")).is_empty());
}

#[test]
fn a_test_that_is_switched_off_is_found() {
    check(1, ignored_tests, "#[test]\n#[ignore]\nfn a() {}\n");
    check(1, ignored_tests, "#[ignore = \"slow\"]\n");
    check(1, ignored_tests, "#[cfg_attr(debug_assertions, ignore)]\n");
    check(1, ignored_tests, "/// ```ignore\n");
    check(0, ignored_tests, "fn ignore() {}\n// #[ignore]\n");
}

#[test]
fn a_test_that_sleeps_is_found() {
    let test = |line: &str| format!("#[cfg(test)]\nmod tests {{\n{line}\n}}\n");
    check(1, sleeping_tests, &test("std::thread::sleep(wait);"));
    check(1, sleeping_tests, &test("use std::thread::{self, sleep};"));
    check(0, sleeping_tests, &test("std::thread::spawn(a);"));
    check(0, sleeping_tests, "fn a() { thread::sleep(wait); }\n");
}
