//! Files that the documents name exist: a path from the root in code font, and the target of every
//! link to a file.

use std::collections::BTreeSet;

use crate::tree::{Document, Finding, demand_none, documents};

/// The folders at the root that paths begin with.
const FOLDERS: &[&str] = &["crates/", "clients/", "examples/", "docs/"];

#[test]
fn every_file_that_a_document_names_exists() {
    let documents = documents();
    let paths: BTreeSet<&str> = documents.iter().map(|it| it.path.as_str()).collect();
    let written = documents.iter().filter(|it| it.path.ends_with(".md"));
    demand_none(written.flat_map(|document| dangling(document, &paths)));
}

fn dangling(document: &Document, paths: &BTreeSet<&str>) -> Vec<Finding> {
    let exists = |path: &str| {
        let folder = format!("{}/", path.trim_end_matches('/'));
        paths.contains(path)
            || paths.range(&*folder..).next().is_some_and(|it| it.starts_with(&folder))
    };
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        let links = links(line).map(|link| from_root(&document.path, link));
        let named = named(line).map(str::to_owned);
        for path in links.chain(named).filter(|path| !exists(path)) {
            findings.push(Finding::at(&document.path, index, format!("{path} does not exist")));
        }
    }
    findings
}

/// Targets of links, without those to other hosts and to a place in the same document.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let paths = targets.map(|(target, _)| target.split('#').next().unwrap_or(target));
    paths.filter(|path| !path.is_empty() && !path.contains(':') && !path.contains(' '))
}

/// Source files named in code font, by their path from the root.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        let is_path = span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        let has_ending = span.rsplit('/').next().is_some_and(|name| name.contains('.'));
        is_path && has_ending && FOLDERS.iter().any(|folder| span.starts_with(folder))
    })
}

/// The path from the root of what `document` links to.
fn from_root(document: &str, link: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[track_caller]
fn check(expected: &[&str], path: &str, text: &str) {
    let paths = BTreeSet::from(["README.md", "crates/core/src/lib.rs", "docs/guides/inbox.md"]);
    let document = Document { path: path.to_owned(), text: text.to_owned() };
    let found: Vec<String> = dangling(&document, &paths).into_iter().map(|it| it.what).collect();
    let expected: Vec<String> = expected.iter().map(|it| format!("{it} does not exist")).collect();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn a_file_that_is_gone_is_found() {
    check(&["crates/core/src/old.rs"], "README.md", "see `crates/core/src/old.rs`, then");
    check(&["docs/old.md"], "README.md", "see [old](docs/old.md#part) and [this](#part)");
    check(&["docs/README.md"], "docs/guides/a.md", "[a](../README.md) [b](../../README.md)");
}

#[test]
fn what_exists_or_is_no_file_is_not_found() {
    check(&[], "README.md", "`crates/core/src/lib.rs`, `crates/core`, [guides](docs/guides)");
    check(&[], "docs/a.md", "[inbox](guides/inbox.md), [there](https://example.com/a.md)");
    check(&[], "docs/a.md", "`crates/*/src/old.rs` and `cargo run -p x`");
}
