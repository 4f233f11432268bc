//! The text files of the workspace, and what the checks say about them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::source::Source;

/// A text file, named by its path from the root of the workspace.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Something to be put right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Finding {
    /// `index` counts lines from zero, as iterators do; people count from one.
    pub(crate) fn at(path: &str, index: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: index + 1, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Fails with one line for each finding.
#[track_caller]
pub(crate) fn demand_none(findings: impl IntoIterator<Item = Finding>) {
    let lines: Vec<String> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(lines.is_empty(), "{} to put right:\n{}\n", lines.len(), lines.join("\n"));
}

/// Every text file that git tracks or would track, sorted by path. Where git cannot tell (a source
/// archive, no git), every file that is not cargo's.
pub(crate) fn documents() -> Vec<Document> {
    let root = root();
    let mut paths = listed_by_git(&root).unwrap_or_else(|| walked(&root));
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().filter_map(|path| read_text(&root, path)).collect()
}

/// Every Rust file of the workspace.
pub(crate) fn sources() -> Vec<Source> {
    documents()
        .iter()
        .filter(|document| document.path.ends_with(".rs"))
        // Generated, and compared with its source by a test of its own.
        .filter(|document| !document.path.contains("/src/proto/"))
        .map(|document| Source::parse(&document.path, &document.text))
        .collect()
}

/// Cargo runs a test in the folder of its package. A path fixed by `env!` at compile time would be
/// that of another checkout where two share a target directory.
fn root() -> PathBuf {
    PathBuf::from("../..")
}

/// Untracked files count too, unless ignored: a finding is cheapest before the commit.
fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let paths: Vec<String> =
        String::from_utf8(output.stdout).ok()?.split_terminator('\0').map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let absolute = root.join(&folder);
        let entries = fs::read_dir(&absolute)
            .unwrap_or_else(|error| panic!("reading {}: {error}", absolute.display()));
        for entry in entries.flatten() {
            let path = folder.join(entry.file_name());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_folder {
                paths.extend(path.to_str().map(str::to_owned));
            } else if entry.file_name() != ".git" && !is_target(&entry.path()) {
                open.push(path);
            }
        }
    }
    paths
}

/// Cargo marks its target directories, whatever they are called.
fn is_target(folder: &Path) -> bool {
    folder.join("CACHEDIR.TAG").exists()
}

/// `None` for a file that is deleted but still tracked, and for one that is not text.
fn read_text(root: &Path, path: String) -> Option<Document> {
    let absolute = root.join(&path);
    if !absolute.is_file() {
        return None;
    }
    let bytes = fs::read(&absolute).unwrap_or_else(|error| panic!("reading {path}: {error}"));
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))?;
    Some(Document { path, text })
}

#[test]
fn the_workspace_is_seen() {
    let this_file = "crates/hapax/tests/tidy/tree.rs";
    for expected in ["Cargo.toml", "Cargo.lock", this_file] {
        assert!(documents().iter().any(|document| document.path == expected), "{expected}");
    }
    assert!(sources().iter().any(|source| source.path == this_file));
}

#[test]
fn walking_sees_what_git_lists() {
    let Some(listed) = listed_by_git(&root()) else { return };
    let walked = walked(&root());
    for path in listed.iter().filter(|path| root().join(path).is_file()) {
        assert!(walked.contains(path), "{path} is listed but not walked");
    }
    assert!(!walked.iter().any(|path| path.starts_with(".git/")));
}

#[test]
#[should_panic(expected = "a.rs:3: too long")]
fn a_finding_fails_with_its_file_and_line() {
    demand_none([Finding::at("a.rs", 2, "too long")]);
}
