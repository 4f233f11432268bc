//! Rust text, parted line by line into code and comment, with its tests marked.
//!
//! Literals are blanked: what a program says is not what it is. So a check can name the words it
//! looks for without finding itself.
//!
//! Invariants:
//! - `code` and `comment` have as many lines as the text, and a character stands in the column it
//!   had there;
//! - no character stands in both.

/// One Rust file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug)]
pub(crate) struct Line {
    /// The line as it was written.
    pub(crate) text: String,
    /// Without comments and the insides of literals.
    pub(crate) code: String,
    /// Comments alone.
    pub(crate) comment: String,
    /// Whether it belongs to an item under `#[cfg(test)]`, or the whole file is a test.
    pub(crate) is_test: bool,
}

/// Where an item ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ItemEnd {
    /// Index of its last line.
    pub(crate) line: usize,
    /// Whether it has a block, as a function has and its declaration in a trait has not.
    pub(crate) has_block: bool,
}

impl Source {
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let (code, comment) = Splitter::split(text);
        let whole_file = is_test_path(path) || code.contains("#![cfg(test)]");
        let lines = text
            .lines()
            .zip(code.lines())
            .zip(comment.lines())
            .map(|((text, code), comment)| Line {
                text: text.to_owned(),
                code: code.to_owned(),
                comment: comment.to_owned(),
                is_test: whole_file,
            })
            .collect();
        let mut source = Self { path: path.to_owned(), lines };
        assert_eq!(source.lines.len(), text.lines().count(), "{path} keeps its lines");
        source.mark_tests();
        source
    }

    /// Whether the file holds nothing but tests.
    pub(crate) fn is_test_file(&self) -> bool {
        self.lines.iter().all(|line| line.is_test)
    }

    /// The code of all lines, joined, with the lines of tests left blank.
    pub(crate) fn code_without_tests(&self) -> String {
        self.joined(|line| !line.is_test)
    }

    /// The code of all lines, joined, with everything but tests left blank.
    pub(crate) fn code_of_tests(&self) -> String {
        self.joined(|line| line.is_test)
    }

    /// The end of the item that starts in line `first`: its block's closing brace, or the
    /// semicolon of an item without one.
    pub(crate) fn item_end(&self, first: usize) -> ItemEnd {
        let mut open = Vec::new();
        for (index, line) in self.lines.iter().enumerate().skip(first) {
            for character in line.code.chars() {
                match character {
                    '(' | '[' | '{' => open.push(character),
                    ')' | ']' => drop(open.pop()),
                    '}' => {
                        open.pop();
                        if open.is_empty() {
                            return ItemEnd { line: index, has_block: true };
                        }
                    }
                    ';' if open.is_empty() => return ItemEnd { line: index, has_block: false },
                    _ => {}
                }
            }
        }
        ItemEnd { line: self.lines.len().saturating_sub(1), has_block: false }
    }

    fn joined(&self, keep: impl Fn(&Line) -> bool) -> String {
        let lines = self.lines.iter().map(|line| if keep(line) { line.code.as_str() } else { "" });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn mark_tests(&mut self) {
        for first in 0..self.lines.len() {
            let opens_test = self.lines.get(first).is_some_and(|line| {
                !line.is_test && line.code.trim_start().starts_with("#[cfg(test)]")
            });
            if opens_test {
                let last = self.item_end(first).line;
                for line in self.lines.iter_mut().take(last + 1).skip(first) {
                    line.is_test = true;
                }
            }
        }
    }
}

/// What follows the visibility in a line of code: `pub(crate) mod a;` gives `mod a;`.
pub(crate) fn without_visibility(code: &str) -> &str {
    let code = code.trim_start();
    let Some(rest) = code.strip_prefix("pub") else { return code };
    if let Some(scope) = rest.strip_prefix('(') {
        return scope.split_once(')').map_or(code, |(_, rest)| rest.trim_start());
    }
    if rest.starts_with(' ') { rest.trim_start() } else { code }
}

/// The byte offsets at which `word` stands by itself, not as part of a longer name.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text.get(..at).and_then(|text| text.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|text| text.chars().next());
        let starts = !word.starts_with(is_word) || !before.is_some_and(is_word);
        let ends = !word.ends_with(is_word) || !after.is_some_and(is_word);
        starts && ends
    })
}

/// The byte offsets of `parent::name`, also where the name stands in a group: `parent::{…, name}`.
pub(crate) fn paths(code: &str, parent: &str, name: &str) -> Vec<usize> {
    let prefix = format!("{parent}::");
    let names_it = |rest: &str| match rest.strip_prefix('{') {
        Some(group) => words(group.split(';').next().unwrap_or(group), name).next().is_some(),
        None => words(rest, name).next() == Some(0),
    };
    words(code, &prefix).filter(|at| code.get(at + prefix.len()..).is_some_and(names_it)).collect()
}

/// The index of the line in which the byte `offset` of `text` lies.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn is_test_path(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Walks over the text once and gives each character to one of the two outputs, or to none.
struct Splitter {
    input: Vec<char>,
    at: usize,
    code: String,
    comment: String,
}

#[derive(Clone, Copy)]
enum Part {
    Code,
    Comment,
    Literal,
}

impl Splitter {
    fn split(text: &str) -> (String, String) {
        let input: Vec<char> = text.chars().collect();
        let mut splitter = Self { input, at: 0, code: String::new(), comment: String::new() };
        while let Some(character) = splitter.peek(0) {
            splitter.step(character);
        }
        (splitter.code, splitter.comment)
    }

    fn step(&mut self, character: char) {
        match (character, self.peek(1)) {
            ('/', Some('/')) => {
                while self.peek(0).is_some_and(|character| character != '\n') {
                    self.take(1, Part::Comment);
                }
            }
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.character_or_lifetime(),
            ('r', _) => match self.raw_string_hashes() {
                Some(hashes) => self.raw_string(hashes),
                None => self.take(1, Part::Code),
            },
            _ => self.take(1, Part::Code),
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while let Some(character) = self.peek(0) {
            match (character, self.peek(1)) {
                ('/', Some('*')) => {
                    depth += 1;
                    self.take(2, Part::Comment);
                }
                ('*', Some('/')) => {
                    depth -= 1;
                    self.take(2, Part::Comment);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.take(1, Part::Comment),
            }
        }
    }

    fn string(&mut self) {
        self.take(1, Part::Code);
        while let Some(character) = self.peek(0) {
            match character {
                '\\' => self.take(2, Part::Literal),
                '"' => return self.take(1, Part::Code),
                _ => self.take(1, Part::Literal),
            }
        }
    }

    /// `'a'` and `'\n'` are characters, `'a` is a lifetime or a label.
    fn character_or_lifetime(&mut self) {
        self.take(1, Part::Code);
        if self.peek(0) == Some('\\') {
            self.take(2, Part::Literal);
            while self.peek(0).is_some_and(|character| character != '\'') {
                self.take(1, Part::Literal);
            }
            self.take(1, Part::Code);
        } else if self.peek(1) == Some('\'') {
            self.take(1, Part::Literal);
            self.take(1, Part::Code);
        }
    }

    /// The number of `#` where a raw string starts here. `r#fn` is a name and `for"` no prefix,
    /// while the `b` of `br"` and the `c` of `cr"` were taken as code.
    fn raw_string_hashes(&self) -> Option<usize> {
        let before = |back: usize| self.at.checked_sub(back).and_then(|at| self.input.get(at));
        let prefix =
            matches!(before(1), Some('b' | 'c')) && !before(2).copied().is_some_and(is_word);
        if before(1).copied().is_some_and(is_word) && !prefix {
            return None;
        }
        let hashes = self.input.iter().skip(self.at + 1).take_while(|&&c| c == '#').count();
        (self.peek(1 + hashes) == Some('"')).then_some(hashes)
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take(2 + hashes, Part::Code);
        while let Some(character) = self.peek(0) {
            let closes = (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if character == '"' && closes {
                return self.take(1 + hashes, Part::Code);
            }
            self.take(1, Part::Literal);
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.input.get(self.at + ahead).copied()
    }

    fn take(&mut self, count: usize, part: Part) {
        for character in self.input.iter().skip(self.at).take(count).copied() {
            let (code, comment) = match (character, part) {
                ('\n', _) => ('\n', '\n'),
                (_, Part::Code) => (character, ' '),
                (_, Part::Comment) => (' ', character),
                (_, Part::Literal) => (' ', ' '),
            };
            self.code.push(code);
            self.comment.push(comment);
        }
        self.at += count;
    }
}

#[track_caller]
fn check_code(text: &str, expected: &str) {
    let (code, comment) = Splitter::split(text);
    assert_eq!(code, expected);
    assert_eq!(code.chars().count(), comment.chars().count());
}

#[test]
fn literals_and_comments_are_no_code() {
    check_code(r#"a("{") // {"#, r#"a(" ")     "#);
    check_code(r#"a("\"{")"#, r#"a("   ")"#);
    check_code(r#"a('{', '\'', b'}')"#, r#"a(' ', '  ', b' ')"#);
    check_code("f::<'a>('b')", "f::<'a>(' ')");
    check_code("a /* { /* } */ */ b", "a                 b");
    check_code("r#\"{\"# br\"}\" r#fn", "r#\" \"# br\" \" r#fn");
    check_code("var\"x\"", "var\" \"");
    check_code("\"{\n}\" x", "\" \n \" x");
}

#[test]
fn comments_keep_their_column() {
    let (_, comment) = Splitter::split("let x = \"//\"; // why");
    assert_eq!(comment, "              // why");
}

#[test]
fn the_tests_of_a_file_are_marked_to_their_last_line() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
    let source = Source::parse("crates/x/src/a.rs", text);
    let marked: Vec<bool> = source.lines.iter().map(|line| line.is_test).collect();
    assert_eq!(marked, [false, true, true, true, true, false]);
    assert!(!source.is_test_file());
    assert!(Source::parse("crates/x/tests/a.rs", text).is_test_file());
    assert!(Source::parse("crates/x/src/a/tests.rs", text).is_test_file());

    let declared = "#[cfg(test)]\nmod tests;\nfn c() {}\n";
    let source = Source::parse("crates/x/src/a.rs", declared);
    assert_eq!(source.code_without_tests().trim(), "fn c() {}");
}

#[test]
fn an_item_ends_at_its_brace_or_semicolon() {
    let source = Source::parse("a.rs", "fn a(x: [u8; 2])\n{\n    b();\n}\nfn c(x: [u8; 2]);\n");
    assert_eq!(source.item_end(0), ItemEnd { line: 3, has_block: true });
    assert_eq!(source.item_end(4), ItemEnd { line: 4, has_block: false });
}

#[test]
fn a_path_is_found_in_a_group_too() {
    assert_eq!(paths("use std::fs::File;", "std", "fs"), [4]);
    assert_eq!(paths("use std::{io, fs};", "std", "fs"), [4]);
    assert!(paths("use std::fmt; // fs", "std", "fs").is_empty());
    assert!(paths("use std::fsx;", "std", "fs").is_empty());
    assert!(paths("use std::{io}; use a::fs;", "std", "fs").is_empty());
}

#[test]
fn visibility_is_set_aside() {
    for code in ["mod a;", "pub mod a;", "  pub(crate) mod a;", "pub(in crate::b) mod a;"] {
        assert_eq!(without_visibility(code), "mod a;");
    }
    assert_eq!(without_visibility("public()"), "public()");
}
