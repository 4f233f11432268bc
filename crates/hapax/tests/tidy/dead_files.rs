//! Dead files: Rust that no `mod` declares is compiled by nobody and rots unseen.

use std::collections::BTreeSet;

use crate::source::{Source, without_visibility};
use crate::tree::{Document, Finding, demand_none, documents, sources};

#[test]
fn every_file_is_part_of_a_crate() {
    demand_none(dead_files(&sources(), &documents()));
}

fn dead_files(sources: &[Source], documents: &[Document]) -> Vec<Finding> {
    let manifests: Vec<&Document> =
        documents.iter().filter(|document| is_manifest(&document.path)).collect();
    let mut open: Vec<&Source> = sources
        .iter()
        .filter(|source| manifests.iter().any(|manifest| is_root(manifest, &source.path)))
        .collect();
    let roots: BTreeSet<&str> = open.iter().map(|source| source.path.as_str()).collect();
    let mut reached = roots.clone();
    while let Some(source) = open.pop() {
        let declared = declared_paths(source, roots.contains(source.path.as_str()));
        for child in sources.iter().filter(|child| declared.contains(&child.path)) {
            if reached.insert(&child.path) {
                open.push(child);
            }
        }
    }
    let what = "no `mod` declares this file: declare it, or delete it";
    sources
        .iter()
        .filter(|source| !reached.contains(source.path.as_str()))
        .map(|source| Finding::at(&source.path, 0, what))
        .collect()
}

fn is_manifest(path: &str) -> bool {
    path == "Cargo.toml" || path.ends_with("/Cargo.toml")
}

/// Whether cargo compiles the file as a crate of its own.
fn is_root(manifest: &Document, path: &str) -> bool {
    let folder = manifest.path.trim_end_matches("Cargo.toml");
    let Some(inside) = path.strip_prefix(folder) else { return false };
    let is_named = manifest
        .text
        .lines()
        .any(|line| line.starts_with("path = ") && line.contains(&format!("\"{inside}\"")));
    let parts: Vec<&str> = inside.split('/').collect();
    let is_standard = matches!(
        parts.as_slice(),
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    );
    is_named || is_standard
}

/// Where the modules that a file declares may lie. Those inside an inline module lie in a folder
/// of its name: `mod a { mod b; }`, on lines of their own as rustfmt writes it, declares `a/b.rs`.
fn declared_paths(source: &Source, is_root: bool) -> Vec<String> {
    let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let children = if is_root || name == "mod.rs" {
        folder.to_owned()
    } else {
        source.path.trim_end_matches(".rs").to_owned()
    };
    let mut paths = Vec::new();
    let mut given = None;
    // The inline modules that are open here: their names, and their last lines.
    let mut inline: Vec<(&str, usize)> = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        inline.retain(|(_, last)| index <= *last);
        if line.code.trim_start().starts_with("#[path") {
            given = line.text.split('"').nth(1);
        }
        let declared = without_visibility(&line.code).strip_prefix("mod ");
        let Some(declared) = declared.map(str::trim_end) else { continue };
        if let Some(module) = declared.strip_suffix('{') {
            inline.push((module.trim_end(), source.item_end(index).line));
            continue;
        }
        let Some(module) = declared.strip_suffix(';') else { continue };
        let parents: String = inline.iter().map(|(name, _)| format!("/{name}")).collect();
        match given.take() {
            // Inside an inline module, cargo counts from that module's folder.
            Some(path) if inline.is_empty() => paths.push(format!("{folder}/{path}")),
            Some(path) => paths.push(format!("{children}{parents}/{path}")),
            None => {
                paths.push(format!("{children}{parents}/{module}.rs"));
                paths.push(format!("{children}{parents}/{module}/mod.rs"));
            }
        }
    }
    paths
}

#[track_caller]
fn check(expected: &[&str], files: &[(&str, &str)]) {
    let sources: Vec<Source> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| Source::parse(path, text))
        .collect();
    let documents: Vec<Document> = files
        .iter()
        .map(|&(path, text)| Document { path: path.to_owned(), text: text.to_owned() })
        .collect();
    let found = dead_files(&sources, &documents);
    assert_eq!(found.iter().map(|finding| finding.path.as_str()).collect::<Vec<_>>(), expected);
}

#[test]
fn a_file_that_nobody_declares_is_found() {
    check(
        &["crates/x/src/b/d.rs", "crates/x/src/dead.rs"],
        &[
            ("crates/x/Cargo.toml", ""),
            ("crates/x/src/lib.rs", "mod a;\npub(crate) mod b;\n// mod dead;\n"),
            ("crates/x/src/a.rs", ""),
            ("crates/x/src/b.rs", "mod c;\n"),
            ("crates/x/src/b/c.rs", ""),
            ("crates/x/src/b/d.rs", ""),
            ("crates/x/src/dead.rs", ""),
        ],
    );
}

#[test]
fn modules_inside_inline_ones_lie_in_their_folders() {
    let root = "mod a {\n    mod b;\n    pub(crate) mod c {\n        mod d;\n    }\n    mod e;\n}\n\
                mod f;\nmod g {\n    #[path = \"odd.rs\"]\n    mod h;\n}\nmod i { }\nmod j;\n";
    check(
        &["crates/x/tests/a/d.rs", "crates/x/tests/a/f.rs", "crates/x/tests/a/j.rs"],
        &[
            ("crates/x/Cargo.toml", ""),
            ("crates/x/tests/rules.rs", root),
            ("crates/x/tests/a/b.rs", "mod k {\n    mod l;\n}\n"),
            ("crates/x/tests/a/b/k/l.rs", ""),
            ("crates/x/tests/a/c/d.rs", ""),
            ("crates/x/tests/a/d.rs", ""),
            ("crates/x/tests/a/e/mod.rs", ""),
            ("crates/x/tests/a/f.rs", ""),
            ("crates/x/tests/a/j.rs", ""),
            ("crates/x/tests/f/mod.rs", ""),
            ("crates/x/tests/g/odd.rs", ""),
            ("crates/x/tests/j/mod.rs", ""),
        ],
    );
}

#[test]
fn every_root_that_cargo_knows_is_alive() {
    check(
        &[],
        &[
            ("crates/x/Cargo.toml", "[[bin]]\npath = \"programs/a.rs\"\n"),
            ("crates/x/build.rs", ""),
            ("crates/x/examples/a.rs", ""),
            ("crates/x/programs/a.rs", ""),
            ("crates/x/src/bin/a.rs", ""),
            ("crates/x/src/main.rs", "#[path = \"odd/b.rs\"]\nmod a;\n"),
            ("crates/x/src/odd/b.rs", ""),
            ("crates/x/tests/a.rs", "mod common;\n"),
            ("crates/x/tests/common/mod.rs", "mod deep;\n"),
            ("crates/x/tests/common/deep.rs", ""),
            ("crates/x/tests/b/main.rs", "mod c;\n"),
            ("crates/x/tests/b/c.rs", ""),
        ],
    );
}
