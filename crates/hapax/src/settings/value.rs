//! The types of settings whose text form differs from that of Rust and serde.
//!
//! A text is parsed the same way, whether it comes from a flag, a variable or the file.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use hapax_server::options::StoreUrl;
use hapax_server::time::show_ms;
use hapax_wire::nearest::closest;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use crate::{duration, size};

/// Reads a flag or a variable, for clap.
pub(crate) fn text<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let read = T::deserialize(StrDeserializer::<Error>::new(text));
    read.map_err(|error| error.to_string())
}

/// Reads a flag or a variable that is one of some words, for clap.
pub(crate) fn word<T: DeserializeOwned>(given: &str, words: &[&str]) -> Result<T, String> {
    let meant = closest(given, words.iter().copied());
    let meant = meant.map_or_else(String::new, |word| format!(": did you mean {word}?"));
    text(given).map_err(|_| format!("it is not one of {}{meant}", words.join(", ")))
}

/// Reads a flag or a variable that is a whole number, for clap.
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let digits = text.trim();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| match is_number {
        true => "it is too large".to_owned(),
        false => "it is not a whole number".to_owned(),
    })
}

/// An address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Address(pub(crate) SocketAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        local.as_deref().unwrap_or(&text).parse().map(Self).map_err(|_| {
            match text.parse::<IpAddr>() {
                Ok(_) => format!("{text:?} has no port"),
                Err(_) => format!("{text:?} is not an address with a port"),
            }
        })
    }
}

/// A duration with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Span(pub(crate) Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        duration::parse(&text).map(Self)
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        show_ms(duration::milliseconds(span.0))
    }
}

/// Where spans are sent: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Endpoint(pub(crate) String);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let url: http::Uri = text.parse().map_err(|_| format!("{text:?} is not a URL"))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err("https is not supported: send the spans to a collector on the same \
                            machine, and let it forward them by https"
                    .to_owned());
            }
            _ => return Err(format!("{text:?} does not begin with http://")),
        }
        if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("the URL has a password, which would be shown in logs: use the variable \
                        OTEL_EXPORTER_OTLP_HEADERS instead"
                .to_owned());
        }
        Ok(Self(text))
    }
}

/// The URL of the database of a broker with several nodes. It is shown without its password.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) struct Store(pub(crate) StoreUrl);

/// It is checked later: clap would show a URL that it refuses, with its password.
impl From<String> for Store {
    fn from(text: String) -> Self {
        Self(StoreUrl::new(&text))
    }
}

impl Serialize for Store {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Whether a path is the address of a database, as a URL or in the words of libpq. It may have a
/// password: whoever refuses it does not show it.
pub(crate) fn is_database(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let begins = |start: &str| text.split_whitespace().any(|word| word.starts_with(start));
    let words = ["password=", "host=", "hostaddr=", "user=", "dbname=", "service="];
    text.contains("://")
        || text.starts_with("postgres:")
        || text.starts_with("postgresql:")
        || begins("password=")
        || words.into_iter().filter(|word| begins(word)).count() > 1
}

/// What is wrong with the name of a node.
pub(super) fn bad_name(name: &str) -> Option<String> {
    let is_bad = |c: char| c.is_control() || c == '/';
    let length = name.chars().count();
    let is_good = (1..=80).contains(&length) && name.trim() == name && !name.contains(is_bad);
    (!is_good).then(|| {
        "a name must have 1 to 80 visible characters, without / and without a space at its ends"
            .to_owned()
    })
}

/// What is wrong with the address that clients are given.
pub(super) fn bad_address(address: &str) -> Option<String> {
    let url = address.parse::<http::Uri>().ok();
    let is_http = |url: &http::Uri| matches!(url.scheme_str(), Some("http" | "https"));
    let is_good = |url: &http::Uri| {
        is_http(url)
            && url.host().is_some_and(|host| !host.is_empty())
            && url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    };
    let why = "clients cannot follow it: it does not begin with http:// or https:// and a host";
    (!url.as_ref().is_some_and(is_good)).then(|| why.to_owned())
}

/// A number of bytes. A file may have the bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"256MiB\" or \"1GB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                let bytes = u64::try_from(bytes);
                bytes.map(Size).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                size::parse(text).map(Size).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// A value, or `off` for none, so that a flag can override a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OrOff<T>(pub(crate) Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for OrOff<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) if text == "off" => Ok(Self(None)),
            toml::Value::String(text) if text.is_empty() => Err(de::Error::custom("it is empty")),
            value => match T::deserialize(value) {
                Ok(value) => Ok(Self(Some(value))),
                Err(error) => Err(de::Error::custom(error.message())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[track_caller]
    fn reads<T: DeserializeOwned + PartialEq + fmt::Debug>(written: &str, expected: T) {
        assert_eq!(text(written), Ok(expected));
    }

    #[track_caller]
    fn refuses<T: DeserializeOwned + fmt::Debug>(written: &str, why: &str) {
        let error = text::<T>(written).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn addresses_have_a_port() {
        reads("127.0.0.1:4747", Address(([127, 0, 0, 1], 4747).into()));
        reads("localhost:80", Address(([127, 0, 0, 1], 80).into()));
        reads("[::1]:80", Address("[::1]:80".parse().unwrap()));
        refuses::<Address>("127.0.0.1", "has no port");
        refuses::<Address>("example.org:80", "is not an address with a port");
    }

    #[test]
    fn an_endpoint_is_unencrypted_and_without_a_password() {
        reads("http://127.0.0.1:4317", Endpoint("http://127.0.0.1:4317".into()));
        refuses::<Endpoint>("https://example.org:4317", "collector on the same machine");
        refuses::<Endpoint>("http://me:secret@example.org", "OTEL_EXPORTER_OTLP_HEADERS");
        refuses::<Endpoint>("127.0.0.1:4317", "does not begin with http://");
        refuses::<Endpoint>("http://a b", "is not a URL");
    }

    #[test]
    fn a_store_is_a_database_and_never_shows_its_password() {
        let url = "postgres://hapax:s3cret@db.example:5433/queues";
        let store: Store = text(url).unwrap();
        for shown in [format!("{store:?}"), serde_json::json!(store).to_string()] {
            assert!(!shown.contains("s3cret") && shown.contains("db.example"), "{shown}");
        }
        for bad in ["mysql://hapax:s3cret@host/db", "postgres://hapax:s3cret@host", "//s3cret"] {
            let store: Store = text(bad).unwrap();
            let why = store.0.check().unwrap_err().to_string();
            let shown = format!("{why} {store:?}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn the_address_of_a_database_is_no_directory() {
        for text in [
            "postgres://hapax:s3cret@db/queues",
            "mysql://db",
            "postgres:db",
            "host=db user=hapax",
            "password=s3cret",
        ] {
            assert!(is_database(Path::new(text)), "{text}");
        }
        for text in ["hapax-data", "/var/lib/hapax", "host=a", "postgres", "a:b/c", "a b"] {
            assert!(!is_database(Path::new(text)), "{text}");
        }
    }

    #[test]
    fn nodes_have_names_and_addresses_that_clients_can_follow() {
        for name in ["a", "node 1", "böse.example", &"n".repeat(80)] {
            assert_eq!(bad_name(name), None);
        }
        for name in ["", " ", "/", "a/b", "a\u{7}", "a\n", " a", &"n".repeat(81)] {
            assert!(bad_name(name).is_some(), "{name:?}");
        }
        for address in ["http://a:1", "https://a.example", "https://[::1]:4747", "http://a/"] {
            assert_eq!(bad_address(address), None, "{address}");
        }
        for address in ["ftp://x", "http://", "https://:4747", "a:4747", "a", "http://a b", "/"] {
            assert!(bad_address(address).is_some(), "{address}");
        }
    }

    #[test]
    fn off_is_none_and_sizes_and_durations_have_units() {
        reads("off", OrOff::<PathBuf>(None));
        reads("a/b", OrOff(Some(PathBuf::from("a/b"))));
        refuses::<OrOff<PathBuf>>("", "empty");
        reads("1GiB", OrOff(Some(Size(1 << 30))));
        refuses::<OrOff<Size>>("1G", "did you mean 1GiB?");
        reads("90m", Span(Duration::from_secs(5_400)));
        refuses::<Span>("30", "did you mean 30s?");
    }
}
