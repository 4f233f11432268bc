//! The allowed edges between our crates. An edge that is not listed is a decision somebody has to
//! make, not one that a manifest makes by the way. Development dependencies count: a test that
//! needs more belongs to the crate that has it.

use crate::tree::{Document, Finding, demand_none, documents};

/// Crate, and our crates it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("hapax-allocator", &[]),
    ("hapax-keys", &[]),
    ("hapax-core", &["hapax-keys"]),
    ("hapax-store", &[]),
    ("hapax-postgres", &["hapax-store"]),
    ("hapax-wire", &[]),
    ("hapax-client", &["hapax-keys", "hapax-wire"]),
    ("hapax-idempotency", &["hapax-keys", "hapax-client", "hapax-wire"]),
    ("hapax-partition", &["hapax-core", "hapax-store"]),
    ("hapax-sim", &["hapax-core", "hapax-store", "hapax-partition", "hapax-postgres"]),
    (
        "hapax-bench",
        &["hapax-allocator", "hapax-core", "hapax-store", "hapax-partition", "hapax-client"],
    ),
    (
        "hapax-server",
        &["hapax-core", "hapax-store", "hapax-partition", "hapax-postgres", "hapax-wire"],
    ),
    ("hapax-testing", &["hapax-client", "hapax-wire", "hapax-server"]),
    ("hapax-transactions", &["hapax-client", "hapax-wire"]),
    (
        "hapax",
        &[
            "hapax-allocator",
            "hapax-core",
            "hapax-store",
            "hapax-partition",
            "hapax-wire",
            "hapax-client",
            "hapax-idempotency",
            "hapax-server",
            "hapax-transactions",
            "hapax-bench",
        ],
    ),
    ("hapax-example-pipeline", &["hapax-client", "hapax-server"]),
    ("hapax-example-steps", &["hapax-client", "hapax-wire"]),
    (
        "hapax-example-payment",
        &["hapax-client", "hapax-server", "hapax-idempotency", "hapax-transactions"],
    ),
];

/// Test support, a development dependency and no other, and the crates that may have it. One of
/// them is below it: integration tests use the same library as it does.
const TESTING: &str = "hapax-testing";
const TESTED: &[&str] =
    &["hapax-postgres", "hapax-server", "hapax-transactions", "hapax", "hapax-example-steps"];

/// One dependency in a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// Index of its line.
    pub(crate) line: usize,
    /// The package, also where it is given another name here.
    pub(crate) package: String,
    /// Whether only tests and examples get it.
    pub(crate) is_dev: bool,
}

#[test]
fn every_edge_between_crates_is_allowed() {
    let documents = documents();
    let manifests = documents.iter().filter(|document| document.path.ends_with("/Cargo.toml"));
    demand_none(manifests.flat_map(forbidden_edges));
}

/// The dependencies of a manifest, of every kind and target.
pub(crate) fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    let mut section = Section::Other;
    for (line, text) in manifest.lines().map(str::trim).enumerate() {
        if text.starts_with('[') && text.ends_with(']') {
            section = Section::parse(text);
            if let Section::One { name, is_dev } = section {
                found.push(Dependency { line, package: name.to_owned(), is_dev });
            }
            continue;
        }
        let Some((name, _)) = text.split_once('=') else { continue };
        let renamed = text.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
        match section {
            Section::Many { is_dev } => {
                let name = name.split('.').next().unwrap_or(name).trim();
                found.push(Dependency {
                    line,
                    package: renamed.unwrap_or(name).to_owned(),
                    is_dev,
                });
            }
            Section::One { .. } => {
                if let (Some(package), Some(last)) = (renamed, found.last_mut()) {
                    last.package = package.to_owned();
                }
            }
            Section::Other => {}
        }
    }
    found
}

/// The name of the package that a manifest describes.
pub(crate) fn package(manifest: &str) -> Option<&str> {
    let (_, rest) = manifest.split_once("[package]")?;
    rest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

/// What the lines under a header of a manifest mean.
#[derive(Clone, Copy)]
enum Section<'a> {
    /// `[dependencies]`: a dependency each.
    Many {
        is_dev: bool,
    },
    /// `[dependencies.name]`: the properties of one.
    One {
        name: &'a str,
        is_dev: bool,
    },
    Other,
}

impl<'a> Section<'a> {
    fn parse(header: &'a str) -> Self {
        let header = header.trim_matches(['[', ']']);
        let is_dev = header.contains("dev-dependencies");
        if header.ends_with("dependencies") {
            return Self::Many { is_dev };
        }
        match header.rsplit_once("dependencies.") {
            Some((_, name)) => Self::One { name, is_dev },
            None => Self::Other,
        }
    }
}

fn forbidden_edges(manifest: &Document) -> Vec<Finding> {
    let Some(package) = package(&manifest.text) else { return Vec::new() };
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package) else {
        let what = format!("the crate {package} is new: list what it may depend on in edges.rs");
        return vec![Finding::at(&manifest.path, 0, what)];
    };
    dependencies(&manifest.text)
        .into_iter()
        .filter(|dependency| is_ours(&dependency.package))
        .filter(|dependency| match dependency.package.as_str() {
            TESTING => !dependency.is_dev || !TESTED.contains(&package),
            other => !allowed.contains(&other),
        })
        .map(|dependency| {
            let what = format!(
                "{package} may not depend on {}: move the code, or change ARCHITECTURE.md first",
                dependency.package
            );
            Finding::at(&manifest.path, dependency.line, what)
        })
        .collect()
}

fn is_ours(package: &str) -> bool {
    package == "hapax" || package.starts_with("hapax-")
}

#[track_caller]
fn check(package: &str, section: &str, expected: usize) {
    let text = format!("[package]\nname = \"{package}\"\n\n{section}\n");
    let found = forbidden_edges(&Document { path: "crates/x/Cargo.toml".to_owned(), text });
    assert_eq!(found.len(), expected, "{package}: {section}");
}

#[test]
fn a_forbidden_edge_is_found_however_it_is_written() {
    check("hapax-core", "[dependencies]\nhapax-store.workspace = true", 1);
    check("hapax-core", "[dependencies]\nhapax-store = { path = \"../store\" }", 1);
    check("hapax-core", "[dependencies]\nkeep = { package = \"hapax-store\", path = \"a\" }", 1);
    check("hapax-core", "[dependencies.hapax-store]\nworkspace = true", 1);
    check("hapax-core", "[dependencies.keep]\npackage = \"hapax-store\"", 1);
    check("hapax-core", "[dev-dependencies]\nhapax-sim.workspace = true", 1);
    check("hapax-core", "[target.'cfg(unix)'.dependencies]\nhapax-store.workspace = true", 1);
    check("hapax-client", "[dependencies]\nhapax-wire.workspace = true\nhapax-core = \"1\"", 1);
    check("hapax-drawer", "[dependencies]", 1);
}

#[test]
fn an_allowed_edge_is_no_finding() {
    check("hapax-partition", "[dependencies]\nhapax-store.workspace = true", 0);
    check("hapax-core", "[dependencies]\nbytes.workspace = true\n\n[lints]\nworkspace = true", 0);
}

#[test]
fn test_support_is_for_tests_alone() {
    check("hapax-server", "[dev-dependencies]\nhapax-testing.workspace = true", 0);
    check("hapax-server", "[dependencies]\nhapax-testing.workspace = true", 1);
    check("hapax-core", "[dev-dependencies]\nhapax-testing.workspace = true", 1);
}

#[test]
fn the_edges_form_no_circle() {
    for (index, (_, allowed)) in ALLOWED.iter().enumerate() {
        for package in *allowed {
            let at = ALLOWED.iter().position(|(name, _)| name == package);
            assert!(at.is_some_and(|at| at < index), "{package} stands above its users");
        }
    }
}
