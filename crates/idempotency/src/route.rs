//! Routes: which requests are protected, and where their key is found.
//!
//! A pattern is methods and a path: `POST /charges`, `PUT,PATCH /orders/{order}`, `POST
//! /files/{*path}`. `{name}` is one segment, `{*name}` the rest, at least one. A path is compared
//! as most services would read it: percent-encodings decoded, empty segments and dots resolved. So
//! another spelling of a protected path is protected too. Services differ in how they read case,
//! encoded slashes, `;` and double encodings: a path that only some of them would read as a
//! protected one is detected, and the request refused.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Method};
use percent_encoding::percent_decode_str;

use crate::key::IDEMPOTENCY_KEY;

/// The place of the key in a request.
#[derive(Clone)]
pub(crate) enum KeySource {
    Header(HeaderName),
    Function(KeyFunction),
}

type KeyFunction = Arc<dyn Fn(&Parts, &Bytes) -> Result<String, NoKey> + Send + Sync>;

/// Why a request has no key, for its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// There is none: 400 `missing_key` if the route requires one.
    Missing(String),
    /// There is a value that is not a valid key: 400 `malformed_key` on every route.
    Malformed(String),
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "{name}"),
            Self::Function(_) => f.write_str("a function"),
        }
    }
}

/// A pattern of protected requests.
///
/// ```
/// use hapax_idempotency::Route;
///
/// let charges: Route = "POST /charges".parse()?;
/// let orders = "PUT,PATCH /orders/{order}".parse::<Route>()?.optional();
/// assert_eq!(orders.to_string(), "PUT,PATCH /orders/{order}");
/// assert!("GET /charges".parse::<Route>().is_err(), "it can be repeated as it is");
/// # Ok::<(), hapax_idempotency::BadRoute>(())
/// ```
#[derive(Clone, Debug)]
pub struct Route {
    methods: Vec<Method>,
    path: String,
    segments: Vec<Segment>,
    pub(crate) is_required: bool,
    pub(crate) key: KeySource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Any,
    Rest,
}

/// Why a text is not a valid route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{pattern:?} is not a route: {why}; write it as 'POST /charges' or 'PUT,PATCH /orders/{{id}}'"
)]
pub struct BadRoute {
    pattern: String,
    why: String,
}

impl Route {
    /// Makes the key optional: a request without a key goes to the handler unprotected.
    pub fn optional(mut self) -> Self {
        self.is_required = false;
        self
    }

    /// Reads the key from this header instead of `Idempotency-Key`.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.key = KeySource::Header(name);
        self
    }

    /// Computes the key from the request and its body, such as the id of a webhook's event. The
    /// function returns `None` if there is no key.
    pub fn key_from(
        self,
        key: impl Fn(&Parts, &Bytes) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.try_key_from(move |request, body| {
            let missing = || NoKey::Missing("this request contains no key".to_owned());
            key(request, body).ok_or_else(missing)
        })
    }

    /// Like [`Route::key_from`], with the reason if there is no key.
    pub fn try_key_from(
        mut self,
        key: impl Fn(&Parts, &Bytes) -> Result<String, NoKey> + Send + Sync + 'static,
    ) -> Self {
        self.key = KeySource::Function(Arc::new(key));
        self
    }

    /// The path's pattern; it is part of a key's scope.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn matches(&self, method: &Method, path: &Path) -> bool {
        self.methods.contains(method) && self.fits(path, |literal, part| literal == part)
    }

    /// Whether some service would read the request as one for this route; the path is read loosely.
    pub(crate) fn may_match(&self, method: &Method, path: &Path) -> bool {
        let is_it = |own: &Method| own.as_str().eq_ignore_ascii_case(method.as_str());
        self.methods.iter().any(is_it) && self.fits(path, |literal, part| folded(literal) == part)
    }

    fn fits(&self, path: &Path, is_same: impl Fn(&str, &str) -> bool) -> bool {
        let mut path = path.0.iter();
        for segment in &self.segments {
            let Some(part) = path.next() else { return false };
            match segment {
                Segment::Literal(literal) if is_same(literal, part) => {}
                Segment::Literal(_) => return false,
                Segment::Any => {}
                Segment::Rest => return true,
            }
        }
        path.next().is_none()
    }
}

impl FromStr for Route {
    type Err = BadRoute;

    fn from_str(pattern: &str) -> Result<Self, BadRoute> {
        let bad = |why: String| BadRoute { pattern: pattern.to_owned(), why };
        let mut words = pattern.split_whitespace();
        let (Some(methods), Some(path), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad("it is not a method and a path".to_owned()));
        };
        let methods = methods.split(',').map(|name| method(name).map_err(bad));
        let methods = methods.collect::<Result<_, _>>()?;
        let segments = segments_of_pattern(path).map_err(bad)?;
        let (path, key) = (path.to_owned(), KeySource::Header(IDEMPOTENCY_KEY));
        Ok(Self { methods, path, segments, is_required: true, key })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        write!(f, "{} {}", methods.join(","), self.path)
    }
}

fn method(name: &str) -> Result<Method, String> {
    match name {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" | "CONNECT" => {
            Err(format!("{name} is safe to repeat and needs no key"))
        }
        _ if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            Err(format!("{name:?} is not a method; methods are in upper case"))
        }
        _ => name.parse().map_err(|_| format!("{name:?} is not a method")),
    }
}

fn segments_of_pattern(path: &str) -> Result<Vec<Segment>, String> {
    let Some(inner) = path.strip_prefix('/') else {
        return Err(format!("the path {path:?} does not begin with a slash"));
    };
    if path.contains(['?', '#']) {
        return Err("a path has no query; queries are compared with the key".to_owned());
    }
    let mut segments = Vec::new();
    if inner.is_empty() {
        return Ok(segments);
    }
    for text in inner.split('/') {
        if segments.contains(&Segment::Rest) {
            return Err("nothing can follow a {*rest}".to_owned());
        }
        segments.push(segment(text)?);
    }
    Ok(segments)
}

fn segment(text: &str) -> Result<Segment, String> {
    let name = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let (name, segment) = match name {
        Some(name) => match name.strip_prefix('*') {
            Some(name) => (name, Segment::Rest),
            None => (name, Segment::Any),
        },
        None if text.contains(['{', '}', '*']) => {
            return Err(format!("{text:?} is not valid: a {{name}} must be a whole segment"));
        }
        None if matches!(text, "" | "." | "..") => {
            return Err(format!("a segment must not be {text:?}"));
        }
        None => return Ok(Segment::Literal(decoded(text))),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match !name.is_empty() && name.chars().all(is_name) {
        true => Ok(segment),
        false => Err(format!("{text:?} has no name of letters, digits and _")),
    }
}

/// The segments of a request's path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path(Vec<String>);

impl Path {
    /// Reads a path as most services do.
    pub(crate) fn of(path: &str) -> Self {
        Self::resolved(path.split('/').map(decoded))
    }

    /// Reads a path as loosely as any service might: double encodings are decoded before it is
    /// split, backslashes are slashes, parameters (`;`) and everything after a zero byte are cut
    /// off, and case is ignored.
    pub(crate) fn loosely(path: &str) -> Self {
        let mut text = path.to_owned();
        for _ in 0..DECODED_MAX {
            if !text.contains('%') {
                break;
            }
            text = decoded(&text);
        }
        let uncut = |part: &str| part.split([';', '\0']).next().map(folded).unwrap_or_default();
        Self::resolved(text.split(['/', '\\']).map(uncut))
    }

    fn resolved(parts: impl Iterator<Item = String>) -> Self {
        let mut segments = Vec::new();
        for text in parts {
            match text.as_str() {
                "" | "." => {}
                ".." => drop(segments.pop()),
                _ => segments.push(text),
            }
        }
        Self(segments)
    }
}

/// The most rounds of decoding.
const DECODED_MAX: usize = 4;

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn folded(text: &str) -> String {
    text.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, method: Method, path: &str) -> bool {
        let route: Route = pattern.parse().unwrap();
        route.matches(&method, &Path::of(path))
    }

    fn may_match(pattern: &str, method: &str, path: &str) -> bool {
        let route: Route = pattern.parse().unwrap();
        route.may_match(&method.parse().unwrap(), &Path::loosely(path))
    }

    #[test]
    fn a_route_matches_its_methods_and_its_path() {
        assert!(matches("POST /charges", Method::POST, "/charges"));
        assert!(!matches("POST /charges", Method::PUT, "/charges"));
        assert!(!matches("POST /charges", Method::POST, "/charges/7"));
        assert!(!matches("POST /charges", Method::POST, "/charge"));
        assert!(!matches("POST /charges", Method::POST, "/"));
        assert!(matches("PUT,PATCH /orders/{id}", Method::PATCH, "/orders/7"));
        assert!(!matches("PUT,PATCH /orders/{id}", Method::PATCH, "/orders"));
        assert!(!matches("PUT,PATCH /orders/{id}", Method::PATCH, "/orders/7/lines"));
        assert!(matches("POST /orders/{id}/lines", Method::POST, "/orders/7/lines"));
        assert!(matches("POST /files/{*path}", Method::POST, "/files/a/b/c"));
        assert!(!matches("POST /files/{*path}", Method::POST, "/files"));
        assert!(matches("POST /{*path}", Method::POST, "/a"));
        assert!(matches("POST /", Method::POST, "/"));
    }

    #[test]
    fn another_spelling_of_a_path_is_protected_too() {
        for path in [
            "//charges",
            "/charges/",
            "/./charges",
            "/x/../charges",
            "/%63harges",
            "/../charges",
            "/x/%2e%2e/charges",
        ] {
            assert!(matches("POST /charges", Method::POST, path), "{path}");
        }
        assert!(matches("POST /größe", Method::POST, "/gr%C3%B6%C3%9Fe"));
        assert!(!matches("POST /charges", Method::POST, "/Charges"));
    }

    #[test]
    fn what_some_service_reads_as_a_protected_path_is_noticed() {
        for path in [
            "/CHARGES",
            "/charges%2f",
            "/..%2Fcharges",
            "/x%2f..%2fcharges",
            "/charges;a=b",
            "/x;a/..;/charges",
            "/charges%3Ba=b",
            "/charges%00.txt",
            "/x\\..\\charges",
            "/%5ccharges",
            "/%2563harges",
            "/%25252e%25252e/charges",
        ] {
            assert!(!matches("POST /charges", Method::POST, path), "{path}");
            assert!(may_match("POST /charges", "POST", path), "{path}");
            assert!(!may_match("PUT /charges", "POST", path), "{path}");
        }
        assert!(may_match("POST /charges", "post", "/charges"));
        assert!(may_match("POST /Größe/{id}", "POST", "/gr%C3%B6%C3%9Fe/7;v=1"));
        for path in ["/charge", "/charges/7", "/x/charges", "/", "/charges%2f7"] {
            assert!(!may_match("POST /charges", "POST", path), "{path}");
        }
    }

    #[test]
    fn what_is_no_route_is_explained() {
        for (pattern, why) in [
            ("/charges", "not a method and a path"),
            ("POST", "not a method and a path"),
            ("POST /a /b", "not a method and a path"),
            ("post /charges", "methods are in upper case"),
            ("POST, /charges", "methods are in upper case"),
            ("GET /charges", "needs no key"),
            ("POST charges", "slash"),
            ("POST /a//b", "must not be"),
            ("POST /a/", "must not be"),
            ("POST /a/..", "must not be"),
            ("POST /a?b", "query"),
            ("POST /a/{b", "must be a whole segment"),
            ("POST /a/b{c}", "must be a whole segment"),
            ("POST /a/*", "must be a whole segment"),
            ("POST /a/{}", "no name"),
            ("POST /a/{*b}/c", "nothing can follow"),
        ] {
            let bad = pattern.parse::<Route>().unwrap_err().to_string();
            assert!(bad.contains(why) && bad.contains("POST /charges"), "{pattern}: {bad}");
        }
    }
}
