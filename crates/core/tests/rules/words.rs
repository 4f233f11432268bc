//! The words of a line: what stands in its place, `name=value`, and a few spelled-out values.

use std::fmt::Debug;
use std::str::FromStr;

use hapax_core::*;

use crate::support::START;

pub(crate) struct Words {
    words: Vec<String>,
    /// `@queue`, where the line names one.
    pub(crate) queue: Option<String>,
}

impl Words {
    pub(crate) fn new(line: &str) -> Self {
        let mut words: Vec<String> = expand(line).split_whitespace().map(repeated).collect();
        let queue = words.iter().position(|word| word.starts_with('@'));
        let queue = queue.map(|place| words.remove(place)[1..].to_owned());
        Self { words, queue }
    }

    /// The next word that is not a `name=value`.
    pub(crate) fn next(&mut self) -> String {
        let place = self.words.iter().position(|word| !word.contains('='));
        place.map_or_else(String::new, |place| self.words.remove(place))
    }

    pub(crate) fn peek(&self) -> Option<String> {
        self.words.iter().find(|word| !word.contains('=')).cloned()
    }

    /// Takes the next `name=value`.
    pub(crate) fn option(&mut self, name: &str) -> Option<String> {
        let is_named = |word: &String| word.split_once('=').is_some_and(|(known, _)| known == name);
        let place = self.words.iter().position(is_named)?;
        Some(self.words.remove(place)[name.len() + 1..].to_owned())
    }

    /// Takes a word where it is there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let place = self.words.iter().position(|word| word == name);
        place.map(|place| self.words.remove(place)).is_some()
    }

    pub(crate) fn rest(self) -> Vec<String> {
        self.words
    }
}

/// `x*300` is three hundred x, also behind `name=`.
fn repeated(word: &str) -> String {
    if let Some((name, value)) = word.split_once('=') {
        return format!("{name}={}", repeated(value));
    }
    match word.split_once('*') {
        Some((text, times)) => text.repeat(times.parse().unwrap()),
        None => word.to_owned(),
    }
}

/// `300`, `100ms`, `30s`, `5m`, `48h`, `7d`, in milliseconds.
pub(crate) fn duration(text: &str) -> u64 {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        other => panic!("no such unit: {other}"),
    };
    number.parse::<u64>().unwrap() * unit
}

/// Puts in `derive(key,generation,name)` of a parent in the queue orders or, with a fourth part in
/// front, in the queue or queue/group that it names; and `uuid(8d)` or `ulid(8d)`: keys that were
/// made so long before the script began, or after it with `ahead-` in front.
pub(crate) fn expand(line: &str) -> String {
    let mut text = line.to_owned();
    while let Some((function, from, to)) = call(&text) {
        let inside = text[from + function.len() + 1..to].to_owned();
        let parts: Vec<&str> = inside.split(',').collect();
        let value = match function {
            "derive" => derived(&parts),
            "ahead-uuid" => MessageId::new(Time(START + duration(parts[0])), 0, 9).to_string(),
            "ahead-ulid" => ulid(START + duration(parts[0])),
            "uuid" => MessageId::new(Time(START - duration(parts[0])), 0, 9).to_string(),
            _ => ulid(START - duration(parts[0])),
        };
        text.replace_range(from..=to, &value);
    }
    text
}

fn derived(parts: &[&str]) -> String {
    let (queue, rest) = match parts {
        [queue, rest @ ..] if rest.len() == 3 => (*queue, rest),
        rest => ("orders", rest),
    };
    let [key, generation, name] = rest else { panic!("derive({parts:?})") };
    let (queue, group) = match queue.split_once('/') {
        Some((queue, group)) => (queue, Some(group)),
        None => (queue, None),
    };
    derive(&Parent { queue, group, key, generation: generation.parse().unwrap() }, name)
}

fn call(text: &str) -> Option<(&'static str, usize, usize)> {
    ["derive", "ahead-uuid", "ahead-ulid", "uuid", "ulid"].into_iter().find_map(|function| {
        let from = text.find(&format!("{function}("))?;
        Some((function, from, from + text[from..].find(')')?))
    })
}

fn ulid(at: u64) -> String {
    let value = u128::from(at) << 80 | 77;
    let digits = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    (0..26).rev().map(|place| char::from(digits[(value >> (5 * place) & 31) as usize])).collect()
}

/// A queue's configuration from the rest of the line, and the version it is meant for.
pub(crate) fn config(words: &mut Words) -> (Config, Option<Expected>) {
    let mut config = Config::default();
    let if_version =
        words.option("if").map(|expected| match (&*expected, expected.split_once('.')) {
            ("absent", _) => Expected::Absent,
            ("present", _) => Expected::Present,
            (_, Some((number, version))) => Expected::Version {
                number: number.parse().unwrap(),
                version: version.parse().unwrap(),
            },
            _ => panic!("{expected:?} is no expectation"),
        });
    if let Some(retention) = words.option("retention") {
        config.retention_ms = (retention != "forever").then(|| duration(&retention));
        // Most scripts are about the retention and not about the horizon that goes with it.
        config.retry_horizon_ms = config.retention_ms.unwrap_or(0) / 2;
    }
    for (name, value) in [
        ("horizon", &mut config.retry_horizon_ms),
        ("lease", &mut config.lease_ms),
        ("backoff_min", &mut config.backoff_min_ms),
        ("backoff_max", &mut config.backoff_max_ms),
        ("delay", &mut config.delay_ms),
        ("max_body", &mut config.max_body_bytes),
    ] {
        *value = words.option(name).map_or(*value, |text| duration(&text));
    }
    if let Some(backoff) = words.option("backoff") {
        (config.backoff_min_ms, config.backoff_max_ms) = (duration(&backoff), duration(&backoff));
    }
    config.ttl_ms = words.option("ttl").map(|ttl| duration(&ttl));
    config.max_attempts = number(words, "max_attempts").unwrap_or(config.max_attempts);
    config.max_messages = number(words, "max_messages");
    config.max_bytes = number(words, "max_bytes");
    config.sends_per_s = number(words, "sends_per_s");
    config.keep_bodies = words.flag("keep_bodies");
    config.guarantee = choice(words, "guarantee", Guarantee::ALL);
    config.order = choice(words, "order", Order::ALL);
    config.dedup_scope = choice(words, "scope", DedupScope::ALL);
    config.undated_keys = choice(words, "undated", UndatedKeys::ALL);
    config.on_dead = choice(words, "on_dead", OnDead::ALL);
    config.on_group_dead = choice(words, "on_group_dead", OnGroupDead::ALL);
    config.on_lost = choice(words, "on_lost", OnLost::ALL);
    let left: Vec<String> = std::mem::take(&mut words.words);
    assert!(left.is_empty(), "a queue has no such setting: {left:?}");
    (config, if_version)
}

fn number<T: FromStr>(words: &mut Words, name: &str) -> Option<T> {
    let text = words.option(name)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

fn choice<T: Copy + Default + Debug>(words: &mut Words, name: &str, all: &[T]) -> T {
    let Some(text) = words.option(name) else { return T::default() };
    let plain = text.replace('-', "");
    let found = all.iter().find(|choice| format!("{choice:?}").eq_ignore_ascii_case(&plain));
    let found = found.copied();
    found.unwrap_or_else(|| panic!("{name} is never {text}"))
}
