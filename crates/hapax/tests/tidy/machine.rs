//! Traces of one machine: paths of somebody's home and hosts of somebody's registry. What is
//! checked in must mean the same everywhere.
//!
//! The words looked for are written in two halves, since literals are searched too.

use crate::tree::{Document, Finding, demand_none, documents};

/// Folders under which everything belongs to one machine or one person.
const FOLDERS: &[&str] =
    &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/"), concat!("/", "Users/")];

/// Parts of the names of hosts that stand in for the public registry.
const REGISTRY_HOSTS: &[&str] = &["registry", "mirror", "artifactory", "nexus"];

/// The one source a lock file may name.
const PUBLIC_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn no_text_names_a_folder_of_one_machine() {
    demand_none(documents().iter().flat_map(machine_paths));
}

#[test]
fn no_text_names_the_host_of_a_registry() {
    demand_none(documents().iter().flat_map(registries));
}

fn machine_paths(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        for folder in FOLDERS.iter().filter(|folder| is_absolute_in(line, folder)) {
            let what = format!("{folder}… is a path of one machine: make it relative");
            findings.push(Finding::at(&document.path, index, what));
        }
    }
    findings
}

/// At the start of a path, that is, and with something behind it: `a/home/b` is relative.
fn is_absolute_in(line: &str, folder: &str) -> bool {
    let continues_path = |c: char| c.is_alphanumeric() || "._-/~})".contains(c);
    line.match_indices(folder).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + folder.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(continues_path) && after.is_some_and(char::is_alphanumeric)
    })
}

fn registries(document: &Document) -> Vec<Finding> {
    let is_lock = document.path.ends_with("Cargo.lock");
    let is_config = document.path.ends_with(".toml") || document.path.ends_with(".cargo/config");
    let mut findings = Vec::new();
    for (index, line) in document.text.lines().enumerate() {
        let is_foreign_source =
            is_lock && line.starts_with("source = ") && !line.contains(PUBLIC_REGISTRY);
        let is_replacement = is_config
            && ["replace-with", "[source.", "[registries", "registry ="]
                .iter()
                .any(|key| line.trim_start().starts_with(key));
        if is_foreign_source || is_replacement || names_registry_host(line) {
            let what = "names a registry of its own: crates come from crates.io; \
                        settings of one machine belong into its cargo home";
            findings.push(Finding::at(&document.path, index, what));
        }
    }
    findings
}

fn names_registry_host(line: &str) -> bool {
    line.split("://").skip(1).any(|rest| {
        let host = rest.split(['/', '"', ' ', ')', '>']).next().unwrap_or(rest);
        REGISTRY_HOSTS.iter().any(|part| host.contains(part))
    })
}

#[track_caller]
fn check(expected: usize, find: impl Fn(&Document) -> Vec<Finding>, path: &str, text: &str) {
    let document = Document { path: path.to_owned(), text: text.to_owned() };
    assert_eq!(find(&document).len(), expected, "{text}");
}

#[test]
fn a_path_of_one_machine_is_found() {
    for folder in FOLDERS {
        check(1, machine_paths, "a.md", &format!("see `{folder}ada/x`"));
        check(0, machine_paths, "a.md", &format!("see crates{folder}ada, https://a.b{folder}c"));
        check(0, machine_paths, "a.md", &format!("folders under {folder}, whatever they are"));
    }
}

#[test]
fn a_registry_is_found() {
    let host = format!("https://{}.example.com/index", REGISTRY_HOSTS.join("-"));
    check(1, registries, "docs/a.md", &host);
    check(1, registries, "Cargo.lock", "source = \"git+https://example.com/a\"");
    check(1, registries, ".cargo/config.toml", "replace-with = \"local\"");
    check(1, registries, ".cargo/config.toml", "[source.crates-io]");
    check(0, registries, "Cargo.lock", &format!("source = \"{PUBLIC_REGISTRY}\""));
    check(0, registries, "docs/a.md", "the registry is https://crates.io");
}
