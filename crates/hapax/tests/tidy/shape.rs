//! Shape: lengths, the first words of a file, white space.

use crate::limits::{FILE_LINES_MAX, FUNCTION_LINES_MAX, LINE_COLUMNS_MAX, TEST_FILE_LINES_MAX};
use crate::source::{Source, without_visibility};
use crate::tree::{Document, Finding, demand_none, documents, sources};

#[test]
fn every_file_is_short() {
    demand_none(sources().iter().filter_map(long_file));
}

#[test]
fn every_line_is_short() {
    demand_none(sources().iter().flat_map(long_lines));
}

#[test]
fn every_function_is_short() {
    demand_none(sources().iter().flat_map(long_functions));
}

#[test]
fn every_file_starts_with_its_contract() {
    demand_none(sources().iter().filter_map(missing_contract));
}

#[test]
fn no_line_ends_in_white_space() {
    demand_none(documents().iter().flat_map(trailing_white_space));
}

#[test]
fn every_file_ends_with_a_newline() {
    demand_none(documents().iter().filter_map(missing_newline));
}

fn long_file(source: &Source) -> Option<Finding> {
    let (lines, max) = if source.is_test_file() {
        (source.lines.len(), TEST_FILE_LINES_MAX)
    } else {
        (source.lines.iter().filter(|line| !line.is_test).count(), FILE_LINES_MAX)
    };
    let what = format!("{lines} lines, at most {max}: part it by what its pieces are about");
    (lines > max).then(|| Finding::at(&source.path, max, what))
}

fn long_lines(source: &Source) -> Vec<Finding> {
    let lines = source.lines.iter().enumerate();
    lines
        .filter(|(_, line)| !line.text.contains("://"))
        .map(|(index, line)| (index, line.text.chars().count()))
        .filter(|&(_, columns)| columns > LINE_COLUMNS_MAX)
        .map(|(index, columns)| {
            let what = format!("{columns} columns, at most {LINE_COLUMNS_MAX}: break the line");
            Finding::at(&source.path, index, what)
        })
        .collect()
}

/// A table may be long: parting it would not make it easier to read.
fn long_functions(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (first, line) in source.lines.iter().enumerate().filter(|(_, line)| !line.is_test) {
        let Some(name) = function_name(&line.code) else { continue };
        let end = source.item_end(first);
        let lines = end.line - first + 1;
        let may_be_long = || is_table(source, first, end.line) || is_match(source, first, end.line);
        if end.has_block && lines > FUNCTION_LINES_MAX && !may_be_long() {
            let what = format!(
                "`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}: \
                 leave the branches here and move straight code out"
            );
            findings.push(Finding::at(&source.path, first, what));
        }
    }
    findings
}

fn function_name(code: &str) -> Option<&str> {
    let mut rest = without_visibility(code);
    for qualifier in ["default ", "const ", "async ", "unsafe ", "extern "] {
        rest = rest.strip_prefix(qualifier).unwrap_or(rest).trim_start();
    }
    if let Some(after) = rest.strip_prefix('"') {
        rest = after.split_once('"').map_or(after, |(_, rest)| rest.trim_start());
    }
    rest.strip_prefix("fn ")?.split(['(', '<', ' ']).next()
}

/// One match, and nothing but asserts before it: in two halves, the compiler would no longer notice
/// an arm that is missing.
fn is_match(source: &Source, first: usize, last: usize) -> bool {
    let body = source.lines.iter().take(last).skip(first + 1).map(|line| &*line.code);
    let mut body = body.skip_while(|code| !code.trim().starts_with("match "));
    let before = source.lines.iter().take(last).skip(first + 1).map(|line| line.code.trim());
    let before = before.take_while(|code| !code.starts_with("match "));
    let is_short = before.filter(|code| !code.contains("assert")).all(str::is_empty);
    let Some(start) = body.next() else { return false };
    let indent = start.len() - start.trim_start().len();
    let closes = |code: &&str| code.trim() == "}" && code.len() - 1 == indent;
    is_short
        && body.position(|code| closes(&code)).is_some()
        && body.all(|code| code.trim().is_empty())
}

/// Four lines in five are the arms of a match or the rows of a list.
fn is_table(source: &Source, first: usize, last: usize) -> bool {
    let body: Vec<&str> = source
        .lines
        .iter()
        .take(last)
        .skip(first + 1)
        .map(|line| line.code.trim())
        .filter(|code| !code.is_empty())
        .collect();
    let is_row = |code: &&&str| {
        let is_tuple = code.starts_with(['(', '[', '"']) && code.ends_with(',');
        code.contains("=>") && code.ends_with(',') || is_tuple
    };
    body.iter().filter(is_row).count() * 5 >= body.len() * 4
}

/// A program of one file may do without: its `main` says what it is.
fn missing_contract(source: &Source) -> Option<Finding> {
    let declares_modules =
        source.lines.iter().any(|line| without_visibility(&line.code).starts_with("mod "));
    let is_program = source.path.ends_with("/src/main.rs") || source.path.contains("/src/bin/");
    let is_exempt = source.path.ends_with("/build.rs") || is_program && !declares_modules;
    let first = source.lines.first().map_or("", |line| line.text.as_str());
    let has_contract = first.strip_prefix("//! ").is_some_and(|text| !text.trim().is_empty());
    (!is_exempt && !has_contract).then(|| {
        let what = "starts without a contract: in the first line, after `//!`, say what it does";
        Finding::at(&source.path, 0, what)
    })
}

fn trailing_white_space(document: &Document) -> Vec<Finding> {
    let lines = document.text.split('\n').enumerate();
    lines
        .filter(|(_, line)| line.ends_with(char::is_whitespace))
        .map(|(index, _)| Finding::at(&document.path, index, "ends in white space: delete it"))
        .collect()
}

fn missing_newline(document: &Document) -> Option<Finding> {
    let is_missing = !document.text.is_empty() && !document.text.ends_with('\n');
    is_missing.then(|| {
        let last = document.text.lines().count().saturating_sub(1);
        Finding::at(&document.path, last, "has no newline at its end: add one")
    })
}

fn rust(text: &str) -> Source {
    Source::parse("crates/x/src/a.rs", text)
}

fn document(text: &str) -> Document {
    Document { path: "docs/a.md".to_owned(), text: text.to_owned() }
}

fn function_of(lines: usize, line: &str) -> String {
    format!("fn long() {{\n{}}}\n", format!("{line}\n").repeat(lines - 2))
}

#[test]
fn a_long_file_is_found_and_its_tests_are_not_counted() {
    let code = "a();\n".repeat(FILE_LINES_MAX);
    let tests = "#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
    assert_eq!(long_file(&rust(&format!("{code}{tests}"))), None);
    assert!(long_file(&rust(&format!("{code}a();\n{tests}"))).is_some());
}

#[test]
fn a_file_of_tests_may_be_longer_but_not_endless() {
    let of = |lines| Source::parse("crates/x/tests/a.rs", &"a();\n".repeat(lines));
    assert_eq!(long_file(&of(TEST_FILE_LINES_MAX)), None);
    assert!(long_file(&of(TEST_FILE_LINES_MAX + 1)).is_some());
}

#[test]
fn a_long_line_is_found_unless_it_holds_an_address() {
    let long = "x".repeat(LINE_COLUMNS_MAX + 1);
    let found = long_lines(&rust(&format!("short\n// {long}\n// https://{long}\n")));
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    assert!(long_lines(&rust(&"ä".repeat(LINE_COLUMNS_MAX))).is_empty());
}

#[test]
fn a_long_function_is_found() {
    assert!(long_functions(&rust(&function_of(FUNCTION_LINES_MAX, "a();"))).is_empty());
    let found = long_functions(&rust(&function_of(FUNCTION_LINES_MAX + 1, "a(\"}\");")));
    assert!(found.first().is_some_and(|finding| finding.what.contains("`long` has 71 lines")));
}

#[test]
fn a_long_table_or_test_is_no_long_function() {
    let table = function_of(FUNCTION_LINES_MAX + 1, "A::B => 1,");
    assert!(long_functions(&rust(&table)).is_empty());
    let arms = "        A => {\n            a();\n        }\n".repeat(FUNCTION_LINES_MAX);
    let one = format!("fn f() {{\n    debug_assert!(a);\n    match a {{\n{arms}    }}\n}}\n");
    assert!(long_functions(&rust(&one)).is_empty());
    let more = format!("fn f() {{\n    match a {{\n{arms}    }}\n    b();\n}}\n");
    assert_eq!(long_functions(&rust(&more)).len(), 1);
    let test = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function_of(100, "a();"));
    assert!(long_functions(&rust(&test)).is_empty());
}

#[test]
fn functions_are_known_by_their_first_line() {
    for code in [
        "fn a() {",
        "    pub fn a<T>() {",
        "pub(crate) const fn a()",
        "async unsafe fn a(",
        "extern \" \" fn a()",
    ] {
        assert_eq!(function_name(code), Some("a"), "{code}");
    }
    for code in ["let f: fn() = a;", "function()", "// fn a()"] {
        assert_eq!(function_name(&rust(code).code_without_tests()), None, "{code}");
    }
}

#[test]
fn a_file_without_a_contract_is_found() {
    let check = |path: &str, text: &str| missing_contract(&Source::parse(path, text)).is_some();
    assert!(check("crates/x/src/a.rs", "fn a() {}\n"));
    assert!(check("crates/x/src/a.rs", "//!\n"));
    assert!(check("crates/x/src/main.rs", "mod a;\nfn main() {}\n"));
    assert!(!check("crates/x/src/a.rs", "//! Says it.\n"));
    assert!(!check("crates/x/src/main.rs", "fn main() {}\n"));
    assert!(!check("crates/x/build.rs", "fn main() {}\n"));
}

#[test]
fn trailing_white_space_is_found() {
    let found = trailing_white_space(&document("a\nb \nc\t\nd\r\n"));
    assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn a_missing_last_newline_is_found() {
    assert_eq!(missing_newline(&document("a\nb")).map(|finding| finding.line), Some(2));
    assert_eq!(missing_newline(&document("a\nb\n")), None);
}
