//! Patterns of the queues that a token may use: names in which `*` matches any characters, or none.
//! These are not regular expressions: matching is linear in the lengths of pattern and name,
//! without backtracking.

use std::fmt;
use std::str::FromStr;

use hapax_core::limits::QUEUE_NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// The most patterns of a token.
const PATTERNS_MAX: usize = 64;

/// A queue's name, or many: `orders`, `orders.*`, `*.eu`, `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Box<str>);

/// Why a text is not a valid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    #[error("a queue pattern has 1 to {QUEUE_NAME_BYTES_MAX} characters, not {0}")]
    Length(usize),
    #[error(
        "{0:?} is not allowed in a queue pattern: use A-Z a-z 0-9 . _ - and * for any characters"
    )]
    Character(char),
    #[error("a token has 1 to {PATTERNS_MAX} queue patterns, not {0}")]
    Count(usize),
}

impl Pattern {
    pub fn matches(&self, name: &str) -> bool {
        let Some((prefix, rest)) = self.0.split_once('*') else { return &*self.0 == name };
        let Some(name) = name.strip_prefix(prefix) else { return false };
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(mut name) = name.strip_suffix(suffix) else { return false };
        // The leftmost match of each piece leaves the most for the next ones, so backtracking is
        // never needed.
        for piece in middle.split('*') {
            let Some((_, after)) = name.split_once(piece) else { return false };
            name = after;
        }
        true
    }

    fn is_everything(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }
}

impl FromStr for Pattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !(1..=QUEUE_NAME_BYTES_MAX).contains(&text.len()) {
            return Err(InvalidPattern::Length(text.len()));
        }
        let is_allowed = |letter: &char| letter.is_ascii_alphanumeric() || "._-*".contains(*letter);
        match text.chars().find(|letter| !is_allowed(letter)) {
            Some(letter) => Err(InvalidPattern::Character(letter)),
            None => Ok(Self(text.into())),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0.into()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The patterns of one token: a queue is seen if any of them matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Pattern>", into = "Vec<Pattern>")]
pub struct Patterns {
    patterns: Box<[Pattern]>,
    /// Most tokens see every queue of their tenant: no name is compared then.
    is_everything: bool,
}

impl Patterns {
    pub fn new(patterns: impl IntoIterator<Item = Pattern>) -> Result<Self, InvalidPattern> {
        let patterns: Box<[Pattern]> = patterns.into_iter().collect();
        if !(1..=PATTERNS_MAX).contains(&patterns.len()) {
            return Err(InvalidPattern::Count(patterns.len()));
        }
        let is_everything = patterns.iter().any(Pattern::is_everything);
        Ok(Self { patterns, is_everything })
    }

    /// `*`
    pub fn everything() -> Self {
        Self { patterns: [Pattern("*".into())].into(), is_everything: true }
    }

    pub fn matches(&self, name: &str) -> bool {
        self.is_everything || self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.patterns.iter()
    }
}

impl TryFrom<Vec<Pattern>> for Patterns {
    type Error = InvalidPattern;

    fn try_from(patterns: Vec<Pattern>) -> Result<Self, Self::Error> {
        Self::new(patterns)
    }
}

impl From<Patterns> for Vec<Pattern> {
    fn from(patterns: Patterns) -> Self {
        patterns.patterns.into()
    }
}

impl fmt::Display for Patterns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.iter().enumerate() {
            let separator = if index > 0 { " " } else { "" };
            write!(formatter, "{separator}{pattern}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let pattern: Pattern = pattern.parse().unwrap();
        for name in matching {
            assert!(pattern.matches(name), "{pattern} should match {name:?}");
        }
        for name in others {
            assert!(!pattern.matches(name), "{pattern} should not match {name:?}");
        }
    }

    #[test]
    fn a_star_stands_for_any_characters_and_nothing_else_is_special() {
        check("orders", &["orders"], &["order", "orders2", "Orders", "", "xorders"]);
        check("*", &["orders", "a", ""], &[]);
        check("orders.*", &["orders.", "orders.eu", "orders.eu.1"], &["orders", "ordersXeu", ""]);
        check("*.eu", &["a.eu", ".eu"], &["eu", "a.eu.b", "a.us"]);
        check("a*a", &["aa", "aba", "aaa"], &["a", "ab", "ba"]);
        check("a*b*c", &["abc", "axbxc", "abbcc", "abcbc"], &["acb", "ab", "bc", "abxcx"]);
        check("*ab*ab*", &["abab", "xabxabx"], &["ab", "aab", "ba"]);
        check("a**b", &["ab", "axb"], &["a", "b"]);
        check("**", &["", "a"], &[]);
    }

    #[test]
    fn greedy_matching_agrees_with_trying_everything() {
        fn slow(pattern: &[u8], name: &[u8]) -> bool {
            match pattern.split_first() {
                None => name.is_empty(),
                Some((b'*', rest)) => (0..=name.len()).any(|from| slow(rest, &name[from..])),
                Some((letter, rest)) => name
                    .split_first()
                    .is_some_and(|(first, name)| first == letter && slow(rest, name)),
            }
        }
        fn words(letters: &[u8], length: u32) -> Vec<String> {
            let base = letters.len();
            let word = |number: usize| {
                let digit = |place| letters[number / base.pow(place) % base];
                (0..length).map(digit).map(char::from).collect()
            };
            (0..base.pow(length)).map(word).collect()
        }
        let mut matched = 0;
        for pattern in (1..=5).flat_map(|length| words(b"ab*", length)) {
            let compiled: Pattern = pattern.parse().unwrap();
            for name in (0..=6).flat_map(|length| words(b"ab", length)) {
                let expected = slow(pattern.as_bytes(), name.as_bytes());
                assert_eq!(compiled.matches(&name), expected, "{pattern} {name}");
                matched += usize::from(expected);
            }
        }
        assert!(matched > 1_000, "{matched}");
    }

    #[test]
    fn what_no_queue_can_be_named_is_no_pattern() {
        for text in ["", "a b", "ü*", "[ab]", "a?", "a/b", &"a".repeat(81)] {
            assert!(text.parse::<Pattern>().is_err(), "{text:?}");
        }
        assert_eq!(Patterns::new([]), Err(InvalidPattern::Count(0)));
        let many = vec!["a".parse::<Pattern>().unwrap(); PATTERNS_MAX + 1];
        assert_eq!(Patterns::new(many), Err(InvalidPattern::Count(PATTERNS_MAX + 1)));
        assert!(serde_json::from_str::<Patterns>("[]").is_err());
        assert!(serde_json::from_str::<Patterns>("[\"a b\"]").is_err());
    }

    #[test]
    fn any_of_several_patterns_is_enough() {
        let patterns: Patterns = serde_json::from_str("[\"orders.*\",\"emails\"]").unwrap();
        assert!(patterns.matches("emails") && patterns.matches("orders.eu"));
        assert!(!patterns.matches("orders"));
        assert_eq!(patterns.to_string(), "orders.* emails");
        assert!(Patterns::everything().matches("anything"));
    }
}
