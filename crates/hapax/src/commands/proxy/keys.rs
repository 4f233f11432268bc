//! The place of a request's key: `Idempotency-Key`, another header, or the JSON body, as in
//! webhooks.

use bytes::Bytes;
use hapax_idempotency::Route;
use serde_json::Value;

use super::Proxy;

/// Sets the place of the key on a route, from the command line.
pub(super) fn of(proxy: &Proxy, route: Route) -> Route {
    if let Some(name) = &proxy.key_header {
        return route.key_header(name.clone());
    }
    match proxy.key_json.clone() {
        Some(pointer) => route.key_from(move |_, body| in_body(&pointer, body)),
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
fn in_body(pointer: &str, body: &Bytes) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    match value.pointer(pointer)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        _ => None,
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
        assert_eq!(key("/id", r#"{"id":"evt_1"}"#), Some("evt_1".to_owned()));
        assert_eq!(key("/data/0/id", r#"{"data":[{"id":17}]}"#), Some("17".to_owned()));
        for body in [r#"{"id":1.5}"#, r#"{"id":null}"#, r#"{"id":{}}"#, "{}", "no JSON", ""] {
            assert_eq!(key("/id", body), None, "{body}");
        }
        assert!(pointer("id").is_err() && pointer("/").is_err() && pointer("/id").is_ok());
    }
}
