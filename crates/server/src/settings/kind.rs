//! The kinds of values that settings have: how each is written, read and shown.
//!
//! A kind reads text, since flags and variables are text; what is shown of a value reads back as
//! the same value.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hapax_core::limits;
use serde_json::Value;

use crate::log::{Filter, Format};

/// The smallest and the largest number that a value may be.
pub(crate) type Bounds = (u64, u64);

/// How a value is written where types matter, in TOML and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Text,
    Number,
    NumberOrText,
    Boolean,
}

pub(crate) trait Kind: Sized {
    /// What stands for a value in help texts.
    const PLACEHOLDER: &'static str;
    const TAKES: Takes = Takes::Text;
    /// Whether `null` is one of its values, in JSON.
    const NULLABLE: bool = false;

    /// What may be written, to follow "allowed:".
    fn allowed(bounds: Option<Bounds>) -> String;

    /// Reads a value, or says what is wrong with it.
    fn parse(text: &str, bounds: Option<Bounds>) -> Result<Self, String>;

    /// The value as people write it.
    fn text(&self) -> String;

    fn json(&self) -> Value {
        Value::String(self.text())
    }
}

/// A number of bytes, which people may write as `256MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Where spans are sent: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// Who may speak to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Everybody, as the tenant `default` and with every right.
    Off,
    /// Who shows a token.
    Tokens,
}

impl Auth {
    pub const ALL: &[Self] = &[Self::Off, Self::Tokens];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tokens => "tokens",
        }
    }
}

impl Bytes {
    pub const fn mebi(count: u64) -> Self {
        Self(count << 20)
    }
}

impl Endpoint {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const SIZES: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

const DURATIONS_MS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Kind for Bytes {
    const PLACEHOLDER: &'static str = "SIZE";
    const TAKES: Takes = Takes::NumberOrText;

    fn allowed(bounds: Option<Bounds>) -> String {
        format!("a size such as 256MiB or 1GB{}", between(bounds, show_size))
    }

    fn parse(text: &str, bounds: Option<Bounds>) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let scale = match unit {
            "" => Some(1),
            unit => SIZES.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale),
        };
        let size = scale.and_then(|scale| number?.checked_mul(scale)).ok_or_else(|| {
            match (number, SIZES.iter().find(|(name, _)| is_abbreviation(unit, name))) {
                (Some(number), Some((name, _))) => {
                    format!("{text:?} has an unknown unit: {number}{name} is meant, perhaps")
                }
                _ => format!("{text:?} is no size"),
            }
        })?;
        within(size, bounds, show_size).map(Self)
    }

    fn text(&self) -> String {
        show_size(self.0)
    }

    fn json(&self) -> Value {
        self.0.into()
    }
}

impl Kind for Duration {
    const PLACEHOLDER: &'static str = "DURATION";

    fn allowed(bounds: Option<Bounds>) -> String {
        format!("a duration such as 500ms, 30s or 5m{}", between(bounds, show_ms))
    }

    fn parse(text: &str, bounds: Option<Bounds>) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let scale = DURATIONS_MS.iter().find(|(name, _)| *name == unit).map(|(_, ms)| *ms);
        let ms = scale.and_then(|scale| number?.checked_mul(scale)).ok_or_else(|| {
            match (number, unit) {
                (Some(number), "") => format!("{text:?} has no unit: {number}s is meant, perhaps"),
                _ => format!("{text:?} is no duration"),
            }
        })?;
        within(ms, bounds, show_ms).map(Self::from_millis)
    }

    fn text(&self) -> String {
        show_ms(u64::try_from(self.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Kind for bool {
    const PLACEHOLDER: &'static str = "true|false";
    const TAKES: Takes = Takes::Boolean;

    fn allowed(_: Option<Bounds>) -> String {
        "true or false".to_owned()
    }

    fn parse(text: &str, _: Option<Bounds>) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn json(&self) -> Value {
        (*self).into()
    }
}

impl Kind for SocketAddr {
    const PLACEHOLDER: &'static str = "ADDRESS";

    fn allowed(_: Option<Bounds>) -> String {
        "an address and a port, such as 127.0.0.1:4747, 0.0.0.0:4747 or [::]:4747".to_owned()
    }

    fn parse(text: &str, _: Option<Bounds>) -> Result<Self, String> {
        let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        local.as_deref().unwrap_or(text).parse().map_err(|_| {
            if text.parse::<std::net::IpAddr>().is_ok() {
                format!("{text:?} has no port")
            } else {
                format!("{text:?} is no address with a port")
            }
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Kind for PathBuf {
    const PLACEHOLDER: &'static str = "PATH";

    fn allowed(_: Option<Bounds>) -> String {
        "a path".to_owned()
    }

    fn parse(text: &str, _: Option<Bounds>) -> Result<Self, String> {
        match text {
            "" => Err("it is empty".to_owned()),
            text => Ok(text.into()),
        }
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

impl Kind for Endpoint {
    const PLACEHOLDER: &'static str = "URL";

    fn allowed(_: Option<Bounds>) -> String {
        "a URL such as http://127.0.0.1:4317".to_owned()
    }

    fn parse(text: &str, _: Option<Bounds>) -> Result<Self, String> {
        let url: http::Uri = text.parse().map_err(|_| format!("{text:?} is no URL"))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(
                    "spans leave unencrypted only: let a collector beside the broker take \
                            them and pass them on by https"
                        .to_owned(),
                );
            }
            _ => return Err(format!("{text:?} does not begin with http://")),
        }
        let authority = url.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err("a URL with a password would be shown: give headers by the variable \
                        OTEL_EXPORTER_OTLP_HEADERS"
                .to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

impl Kind for Filter {
    const PLACEHOLDER: &'static str = "FILTER";

    fn allowed(_: Option<Bounds>) -> String {
        "off, error, warn, info, debug or trace, and TARGET=LEVEL for parts, with commas between"
            .to_owned()
    }

    fn parse(text: &str, _: Option<Bounds>) -> Result<Self, String> {
        text.parse().map_err(|error: crate::log::BadFilter| error.to_string())
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl<T: Kind> Kind for Option<T> {
    const PLACEHOLDER: &'static str = T::PLACEHOLDER;
    const TAKES: Takes = T::TAKES;
    const NULLABLE: bool = true;

    fn allowed(bounds: Option<Bounds>) -> String {
        // A number has no word for "none" in a file: there it is left out.
        match T::TAKES {
            Takes::Number => T::allowed(bounds),
            _ => format!("{}, or \"{NONE}\"", T::allowed(bounds)),
        }
    }

    fn parse(text: &str, bounds: Option<Bounds>) -> Result<Self, String> {
        match text {
            NONE => Ok(None),
            text => T::parse(text, bounds).map(Some),
        }
    }

    fn text(&self) -> String {
        self.as_ref().map_or_else(|| NONE.to_owned(), T::text)
    }

    fn json(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::json)
    }
}

/// How "none" is written, so that a flag can take back what a file says.
pub(crate) const NONE: &str = "off";

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Kind for $number {
            const PLACEHOLDER: &'static str = "NUMBER";
            const TAKES: Takes = Takes::Number;

            fn allowed(bounds: Option<Bounds>) -> String {
                format!("a whole number{}", between(bounds, |number| number.to_string()))
            }

            fn parse(text: &str, bounds: Option<Bounds>) -> Result<Self, String> {
                let max: u64 = Self::MAX.into();
                let (min, max) = bounds.map_or((0, max), |(min, bound)| (min, max.min(bound)));
                let number: i128 =
                    text.parse().map_err(|_| format!("{text:?} is no whole number"))?;
                Self::try_from(number)
                    .ok()
                    .filter(|number| (min..=max).contains(&(*number).into()))
                    .ok_or_else(|| format!("{number} is not within {min} to {max}"))
            }

            fn text(&self) -> String {
                self.to_string()
            }

            fn json(&self) -> Value {
                (*self).into()
            }
        }
    )+};
}

numbers!(u16, u32, u64);

macro_rules! choices {
    ($($choice:ty, $placeholder:literal;)+) => {$(
        impl Kind for $choice {
            const PLACEHOLDER: &'static str = $placeholder;

            fn allowed(_: Option<Bounds>) -> String {
                let all: Vec<String> =
                    Self::ALL.iter().map(|choice| format!("\"{}\"", choice.as_str())).collect();
                all.join(" or ")
            }

            fn parse(text: &str, _: Option<Bounds>) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|choice| choice.as_str() == text);
                found.copied().ok_or_else(|| {
                    let all = Self::ALL.iter().map(|choice| choice.as_str());
                    let hint = hapax_wire::nearest::closest(text, all)
                        .map(|choice| format!(": \"{choice}\" is meant, perhaps"));
                    format!("{text:?} is unknown{}", hint.unwrap_or_default())
                })
            }

            fn text(&self) -> String {
                self.as_str().to_owned()
            }
        }
    )+};
}

choices! {
    Auth, "off|tokens";
    Format, "text|json";
    hapax_core::Guarantee, "CHOICE";
    hapax_core::Order, "CHOICE";
    hapax_core::DedupScope, "CHOICE";
    hapax_core::UndatedKeys, "CHOICE";
    hapax_core::OnDead, "CHOICE";
    hapax_core::OnGroupDead, "CHOICE";
    hapax_core::OnLost, "CHOICE";
}

/// The digits in front and what follows them.
fn split_unit(text: &str) -> (Option<u64>, &str) {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits).unwrap_or((text, ""));
    (number.parse().ok(), unit.trim())
}

/// `M`, `Mi`, `mib` for `MiB`: clear to people, but whether 1000 or 1024 is meant is not.
fn is_abbreviation(unit: &str, name: &str) -> bool {
    !unit.is_empty() && name.to_lowercase().starts_with(&unit.to_lowercase())
}

/// A duration in the largest unit that tells it exactly.
pub(crate) fn show_ms(ms: u64) -> String {
    exactly(ms, DURATIONS_MS.iter().rev(), "ms")
}

pub(crate) fn show_size(bytes: u64) -> String {
    let binary = SIZES.iter().filter(|(name, _)| name.ends_with("iB"));
    exactly(bytes, binary.rev(), "")
}

fn exactly<'a>(
    number: u64,
    mut largest_first: impl Iterator<Item = &'a (&'a str, u64)>,
    smallest: &str,
) -> String {
    match largest_first.find(|(_, scale)| number >= *scale && number.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", number / scale),
        None => format!("{number}{smallest}"),
    }
}

fn between(bounds: Option<Bounds>, show: impl Fn(u64) -> String) -> String {
    match bounds {
        // Beyond it there is no limit at all, and nobody gets there.
        Some((min, limits::COUNT_MAX)) => format!(", at least {}", show(min)),
        Some((min, max)) => format!(", from {} to {}", show(min), show(max)),
        None => String::new(),
    }
}

fn within(
    number: u64,
    bounds: Option<Bounds>,
    show: impl Fn(u64) -> String,
) -> Result<u64, String> {
    match bounds {
        Some((min, max)) if !(min..=max).contains(&number) => {
            Err(format!("{} is not within {} to {}", show(number), show(min), show(max)))
        }
        _ => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads<T: Kind + PartialEq + std::fmt::Debug>(text: &str, expected: T) {
        let read = T::parse(text, None);
        assert_eq!(read.as_ref(), Ok(&expected));
        assert_eq!(T::parse(&expected.text(), None).as_ref(), Ok(&expected), "shown reads back");
    }

    #[track_caller]
    fn refuses<T: Kind + std::fmt::Debug>(text: &str, why: &str) {
        let error = T::parse(text, Some((1, 1 << 30))).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn sizes_are_written_by_people() {
        reads("256MiB", Bytes(256 << 20));
        reads("1 GiB", Bytes(1 << 30));
        reads("1MB", Bytes(1_000_000));
        reads("4096", Bytes(4096));
        reads("77B", Bytes(77));
        assert_eq!(Bytes(4096).text(), "4KiB");
        assert_eq!(Bytes(4097).text(), "4097");
        refuses::<Bytes>("256M", "256MiB is meant, perhaps");
        refuses::<Bytes>("1.5GiB", "is no size");
        refuses::<Bytes>("GiB", "is no size");
        refuses::<Bytes>("99999999999TiB", "99999999999TiB");
        refuses::<Bytes>("2GiB", "2GiB is not within 1 to 1GiB");
        refuses::<Bytes>("-1", "is no size");
    }

    #[test]
    fn durations_have_a_unit() {
        reads("30s", Duration::from_secs(30));
        reads("1500ms", Duration::from_millis(1500));
        reads("90m", Duration::from_secs(5400));
        reads("7d", Duration::from_secs(7 * 86_400));
        assert_eq!(Duration::from_secs(120).text(), "2m");
        refuses::<Duration>("30", "30s is meant, perhaps");
        refuses::<Duration>("soon", "is no duration");
        refuses::<Duration>("0s", "0ms is not within 1ms to");
    }

    #[test]
    fn addresses_have_a_port() {
        reads("127.0.0.1:4747", SocketAddr::from(([127, 0, 0, 1], 4747)));
        reads("localhost:80", SocketAddr::from(([127, 0, 0, 1], 80)));
        reads("[::1]:80", "[::1]:80".parse::<SocketAddr>().unwrap());
        refuses::<SocketAddr>("127.0.0.1", "has no port");
        refuses::<SocketAddr>("example.org:80", "is no address with a port");
    }

    #[test]
    fn an_endpoint_is_unencrypted_and_without_a_password() {
        reads("http://127.0.0.1:4317", Endpoint("http://127.0.0.1:4317".into()));
        refuses::<Endpoint>("https://example.org:4317", "collector beside the broker");
        refuses::<Endpoint>("http://me:secret@example.org", "OTEL_EXPORTER_OTLP_HEADERS");
        refuses::<Endpoint>("127.0.0.1:4317", "does not begin with http://");
        refuses::<Endpoint>("http://a b", "is no URL");
    }

    #[test]
    fn choices_are_spelled_exactly() {
        reads("tokens", Auth::Tokens);
        reads("at-most-once", hapax_core::Guarantee::AtMostOnce);
        refuses::<Auth>("token", "\"tokens\" is meant, perhaps");
        refuses::<Auth>("basic", "\"basic\" is unknown");
        assert_eq!(Auth::allowed(None), "\"off\" or \"tokens\"");
    }

    #[test]
    fn numbers_and_truth_are_read() {
        reads("12", 12_u16);
        reads("true", true);
        reads("off", None::<PathBuf>);
        reads("a/b", Some(PathBuf::from("a/b")));
        refuses::<u16>("70000", "70000 is not within 1 to 65535");
        refuses::<u32>("0", "0 is not within 1 to 1073741824");
        refuses::<u64>("-3", "-3 is not within 1 to");
        refuses::<u64>("99999999999999999999", "99999999999999999999 is not within 1 to");
        refuses::<u32>("3x", "is no whole number");
        refuses::<bool>("maybe", "neither true nor false");
        refuses::<PathBuf>("", "empty");
    }
}
