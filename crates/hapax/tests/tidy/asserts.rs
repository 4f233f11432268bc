//! Asserts: how densely `core` and `store` say what must be true.
//!
//! Counted are lines that hold code, so that comments cost nothing, without tests. The store's
//! conformance suite ships with it but is a test.

use std::io::Write;

use crate::limits::ASSERTS_PER_100_LINES_MIN;
use crate::source::{Source, words};
use crate::tree::sources;

const ASSERTS: &[&str] = &[
    "assert!",
    "assert_eq!",
    "assert_ne!",
    "debug_assert!",
    "debug_assert_eq!",
    "debug_assert_ne!",
];

/// What a crate has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    asserts: usize,
    lines: usize,
}

#[test]
fn core_says_what_must_be_true() {
    demand_enough("core");
}

#[test]
fn store_says_what_must_be_true() {
    demand_enough("store");
}

#[track_caller]
fn demand_enough(name: &str) {
    let folder = format!("crates/{name}/src/");
    let count = sources()
        .iter()
        .filter(|source| source.path.starts_with(&folder))
        .filter(|source| !source.path.starts_with(&format!("{folder}conformance")))
        .map(Count::of)
        .fold(Count::default(), Count::plus);
    let line = format!("{name}: {count}, at least {ASSERTS_PER_100_LINES_MIN}\n");
    // Written past the test harness, which would keep the figure of a passing test to itself.
    let _ = std::io::stdout().write_all(line.as_bytes());
    assert!(count.is_enough(), "{folder}:1: {line}assert what the code relies on");
}

impl Count {
    fn of(source: &Source) -> Self {
        let code = source.code_without_tests();
        let asserts = ASSERTS.iter().map(|name| words(&code, name).count()).sum();
        let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
        Self { asserts, lines }
    }

    fn plus(self, other: Self) -> Self {
        Self { asserts: self.asserts + other.asserts, lines: self.lines + other.lines }
    }

    fn per_100_lines(self) -> f64 {
        self.asserts as f64 * 100.0 / self.lines.max(1) as f64
    }

    /// A crate too small for one assert needs none.
    fn is_enough(self) -> bool {
        let needed = self.lines as f64 * ASSERTS_PER_100_LINES_MIN / 100.0;
        self.asserts as f64 >= needed.floor()
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { asserts, lines } = *self;
        write!(f, "{asserts} asserts in {lines} lines, {:.1} per 100", self.per_100_lines())
    }
}

#[test]
fn asserts_are_counted_in_code_alone() {
    let text = "// assert!(a)\n\nassert!(a);\ndebug_assert_eq!(a, b);\nmy_assert!(a);\n\
                #[cfg(test)]\nmod tests {\n    fn a() { assert!(b); }\n}\n";
    let count = Count::of(&Source::parse("crates/core/src/a.rs", text));
    assert_eq!(count, Count { asserts: 2, lines: 3 });
}

#[test]
fn too_few_asserts_are_not_enough() {
    assert!(!Count { asserts: 0, lines: 1_000 }.is_enough());
    assert!(Count { asserts: 30, lines: 1_000 }.is_enough());
    assert!(Count { asserts: 0, lines: 10 }.is_enough());
}
