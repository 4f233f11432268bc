//! The identity of a request: the key of its claim, and its fingerprint.
//!
//! Both are lowercase hex of BLAKE3 over a list of texts, each preceded by its length in bytes as 8
//! bytes, little endian, so that different lists never have the same bytes:
//!
//! | digest | of |
//! |---|---|
//! | claim key | `hapax-http-claim-1`, namespace, tenant, method, route, key |
//! | fingerprint | `hapax-http-request-1`, method, path, query, headers, body |
//!
//! The query is the text with its `?`, or nothing; for every compared header, in alphabetical
//! order, its name, the number of its values in decimal, and the values; `Cookie` and `X-Api-Key`
//! only if they are present. A claim's key has 64 characters, so that the client's key may have 255
//! bytes of anything, and the digest cannot be mistaken for a dated key.

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderName, Method};

use crate::builder::CREDENTIALS;

/// The scope in which a key is unique.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) tenant: &'a str,
    pub(crate) method: &'a Method,
    pub(crate) route: &'a str,
}

impl Scope<'_> {
    pub(crate) fn claim_key(&self, key: &str) -> String {
        let mut digest = Digest::default();
        digest.text("hapax-http-claim-1").text(self.namespace).text(self.tenant);
        digest.text(self.method.as_str()).text(self.route).text(key);
        digest.finish()
    }
}

/// The fingerprint, which a retry must share with the first request. `headers` are sorted.
pub(crate) fn fingerprint(request: &Parts, headers: &[HeaderName], body: &Bytes) -> String {
    let mut digest = Digest::default();
    digest.text("hapax-http-request-1").text(request.method.as_str()).text(request.uri.path());
    digest.text(&request.uri.query().map(|query| format!("?{query}")).unwrap_or_default());
    for name in headers {
        let values = request.headers.get_all(name);
        if values.iter().next().is_none() && CREDENTIALS.contains(name) && *name != AUTHORIZATION {
            continue; // Keys from before these were compared stay valid.
        }
        digest.text(name.as_str()).text(&values.iter().count().to_string());
        for value in values {
            digest.part(value.as_bytes());
        }
    }
    digest.part(body).finish()
}

#[derive(Default)]
struct Digest(blake3::Hasher);

impl Digest {
    fn text(&mut self, text: &str) -> &mut Self {
        self.part(text.as_bytes())
    }

    fn part(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        self
    }

    fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    static HEADERS: [HeaderName; 2] = [http::header::ACCEPT, http::header::CONTENT_TYPE];

    fn scope<'a>(tenant: &'a str, method: &'a Method, route: &'a str) -> Scope<'a> {
        Scope { namespace: "shop", tenant, method, route }
    }

    #[test]
    fn every_part_of_a_scope_makes_another_key() {
        let base = scope("a", &Method::POST, "/charges").claim_key("k");
        assert_eq!(base.len(), 64);
        for other in [
            scope("b", &Method::POST, "/charges").claim_key("k"),
            scope("a", &Method::PATCH, "/charges").claim_key("k"),
            scope("a", &Method::POST, "/refunds").claim_key("k"),
            scope("a", &Method::POST, "/charges").claim_key("l"),
            Scope { namespace: "", ..scope("a", &Method::POST, "/charges") }.claim_key("k"),
            scope("a/", &Method::POST, "charges").claim_key("k"),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_claim_key_is_what_the_documentation_says() {
        let mut bytes = Vec::new();
        for part in ["hapax-http-claim-1", "shop", "a", "POST", "/charges", "k"] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part.bytes());
        }
        let expected = blake3::hash(&bytes).to_hex().to_string();
        assert_eq!(scope("a", &Method::POST, "/charges").claim_key("k"), expected);
        assert_eq!(expected, "9f0bffd967d373335e7f3e012e9dda01a1f595e264b4b7e99a1bd0e3d68c3442");
    }

    #[test]
    fn callers_with_other_cookies_or_api_keys_are_told_apart_and_others_keep_their_fingerprint() {
        let of = |pairs: &[(&str, &str)], headers: &[HeaderName]| {
            let mut request = Request::post("/charges");
            for (name, value) in pairs {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            fingerprint(&parts, headers, &Bytes::from_static(b"x"))
        };
        let bare = of(&[], &CREDENTIALS);
        assert_eq!(bare, of(&[], &[AUTHORIZATION]), "as of a release that compared no others");
        for name in ["cookie", "x-api-key"] {
            let one = of(&[(name, "a")], &CREDENTIALS);
            assert_ne!(one, bare);
            assert_ne!(one, of(&[(name, "b")], &CREDENTIALS));
        }
    }

    fn print(request: http::request::Builder, body: &'static str) -> String {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        fingerprint(&parts, &HEADERS, &Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn method_path_query_chosen_headers_and_body_are_told_apart_and_nothing_else_is() {
        let base = || Request::post("/charges?a=1").header("content-type", "text/plain");
        let first = print(base(), "body");
        assert_eq!(print(base().header("x-trace", "7"), "body"), first);
        for other in [
            print(base().method("PUT"), "body"),
            print(base().uri("/charge?a=1"), "body"),
            print(base().uri("/charges?a=2"), "body"),
            print(base().uri("/charges"), "body"),
            print(base().uri("/charges?"), "body"),
            print(base().header("content-type", "text/html"), "body"),
            print(base().header("accept", "text/plain"), "body"),
            print(base(), "bodY"),
            print(base(), ""),
        ] {
            assert_ne!(first, other);
        }
    }
}
