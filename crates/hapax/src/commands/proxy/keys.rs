//! The place of a request's key: `Idempotency-Key`, another header, or the JSON body, as in
//! webhooks.

use std::fmt;

use bytes::Bytes;
use hapax_idempotency::{NoKey, Route};
use serde::de::{Deserialize, DeserializeSeed};
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::Proxy;

/// Sets the place of the key on a route, from the command line.
pub(super) fn of(proxy: &Proxy, route: Route) -> Route {
    if let Some(name) = &proxy.key_header {
        return route.key_header(name.clone());
    }
    match proxy.key_json.clone() {
        Some(pointer) => route.try_key_from(move |_, body| in_body(&pointer, body)),
        None => route,
    }
}

/// Reads a JSON pointer (RFC 6901) for clap.
pub(super) fn pointer(text: &str) -> Result<String, String> {
    match text.starts_with('/') && text.len() > 1 {
        true => Ok(text.to_owned()),
        false => Err("a JSON pointer begins with /, such as /id or /data/object/id".to_owned()),
    }
}

/// The string or integer at the pointer. Any other value is not a key.
fn in_body(pointer: &str, body: &Bytes) -> Result<String, NoKey> {
    let names: Vec<String> = pointer.split('/').skip(1).map(unescaped).collect();
    let mut document = serde_json::Deserializer::from_slice(body);
    let read = At(&names).deserialize(&mut document);
    let value =
        read.and_then(|value| document.end().map(|()| value)).map_err(|error| {
            match error.classify() {
                serde_json::error::Category::Data => NoKey::Malformed(format!(
                    "the key of a request is at {pointer} of its body: {error}"
                )),
                _ => NoKey::Missing(format!(
                    "the key of a request is at {pointer} of its body, and this body is not JSON"
                )),
            }
        })?;
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        Some(_) => Err(NoKey::Missing(format!(
            "the key of a request is at {pointer} of its body, and this body has something else \
             there than a string or an integer"
        ))),
        None => Err(NoKey::Missing(format!(
            "the key of a request is at {pointer} of its body, and this body has nothing there"
        ))),
    }
}

fn unescaped(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

/// Reads the value at these names. A name on the way that is there twice is refused: the service
/// behind the proxy could read the other one.
#[derive(Clone, Copy)]
struct At<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Self::Value, D::Error> {
        match self.0.is_empty() {
            true => Value::deserialize(document).map(Some),
            false => document.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, below)) = self.0.split_first() else { return Ok(None) };
        let (mut found, mut is_found) = (None, false);
        while let Some(name) = map.next_key::<String>()? {
            if name != *wanted {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if is_found {
                return Err(A::Error::custom(format_args!("{name:?} is given twice")));
            }
            is_found = true;
            found = map.next_value_seed(At(below))?;
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, below)) = self.0.split_first() else { return Ok(None) };
        let is_number = wanted == "0" || !wanted.starts_with(['0', '+']);
        let place: Option<usize> = wanted.parse().ok().filter(|_| is_number);
        let mut found = None;
        for current in 0.. {
            let is_there = match Some(current) == place {
                true => {
                    let value = list.next_element_seed(At(below))?;
                    let is_there = value.is_some();
                    found = value.flatten();
                    is_there
                }
                false => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !is_there {
                break;
            }
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// The header and the body of an example request for `curl`.
pub(super) fn example(proxy: &Proxy) -> (String, String) {
    let Some(pointer) = &proxy.key_json else {
        let name = proxy.key_header.as_ref().map_or("Idempotency-Key", |name| name.as_str());
        return (format!(" -H '{name}: try-1'"), "{}".to_owned());
    };
    let names = pointer.rsplit('/').filter(|name| !name.is_empty());
    let body = names.fold("\"try-1\"".to_owned(), |below, name| format!("{{\"{name}\":{below}}}"));
    (" -H 'Content-Type: application/json'".to_owned(), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_the_body_is_a_string_or_an_integer() {
        let key =
            |pointer, body: &'static str| in_body(pointer, &Bytes::from_static(body.as_bytes()));
        assert_eq!(key("/id", r#"{"a":{"id":1},"id":"evt_1"}"#), Ok("evt_1".to_owned()));
        assert_eq!(key("/data/0/id", r#"{"data":[{"id":17},{}]}"#), Ok("17".to_owned()));
        assert_eq!(key("/data/1/id", r#"{"data":[1,{"id":-17}],"b":2}"#), Ok("-17".to_owned()));
        assert_eq!(key("/a~1b/~0", r#"{"a/b":{"~":"x"}}"#), Ok("x".to_owned()));
        for body in [r#"{"id":1.5}"#, r#"{"id":null}"#, r#"{"id":{}}"#, "{}", "7", "[1]", "\"\""] {
            assert!(matches!(key("/id", body), Err(NoKey::Missing(_))), "{body}");
        }
        for body in ["no JSON", "", "{\"id\":1}}"] {
            let Err(NoKey::Missing(why)) = key("/id", body) else { panic!("{body}") };
            assert!(why.contains("/id") && why.contains("not JSON"), "{why}");
        }
        assert_eq!(key("/01", "[1,2]").ok(), None, "not an index");
        assert!(pointer("id").is_err() && pointer("/").is_err() && pointer("/id").is_ok());
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused_and_other_doubled_fields_are_not() {
        let key = |body: &'static str| in_body("/a/id", &Bytes::from_static(body.as_bytes()));
        for body in [r#"{"a":{"id":"1","id":"2"}}"#, r#"{"a":{"id":"1"},"a":{"id":"1"}}"#] {
            let Err(NoKey::Malformed(why)) = key(body) else { panic!("{body}") };
            assert!(why.contains("is given twice"), "{why}");
        }
        assert_eq!(key(r#"{"a":{"id":"1","x":1,"x":2},"y":1,"y":2}"#), Ok("1".to_owned()));
    }
}
