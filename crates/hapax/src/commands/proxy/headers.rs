//! Headers of proxied requests: removes hop-by-hop headers and adds `Forwarded` information for the
//! upstream.

use std::net::SocketAddr;

use hapax_idempotency::{is_end_to_end, named_by_connection};
use http::header::{self, Entry};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Hop-by-hop headers, whether `Connection` names them or not. `Expect` is answered by the proxy.
static HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const VIA: HeaderValue = HeaderValue::from_static("1.1 hapax");

/// Removes hop-by-hop headers. A request whose `Connection` names another header was refused by the
/// layer; a response keeps such a header.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named = named_by_connection(headers);
    let named: Vec<HeaderName> = named.filter(|name| !is_end_to_end(name)).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Adds the client's address and host for the upstream. `Host` stays the client's.
pub(super) fn forward(headers: &mut HeaderMap, host: Option<&str>, peer: Option<SocketAddr>) {
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok())
        && let Entry::Vacant(vacant) = headers.entry(header::HOST)
    {
        vacant.insert(host);
    }
    if let Some(peer) = peer {
        let address = peer.ip().to_canonical().to_string();
        // All lines: the last one is that of the proxy before this one, the first the client's own.
        let lines = headers.get_all(&FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
        let chain: Vec<&str> = lines.chain([address.as_str()]).collect();
        let chain = chain.join(", ");
        if let Ok(chain) = HeaderValue::from_str(&chain) {
            headers.insert(FORWARDED_FOR, chain);
        }
    }
    if let Some(host) = headers.get(header::HOST).cloned()
        && let Entry::Vacant(vacant) = headers.entry(FORWARDED_HOST)
    {
        vacant.insert(host);
    }
    if let Entry::Vacant(vacant) = headers.entry(FORWARDED_PROTO) {
        vacant.insert(HeaderValue::from_static("http"));
    }
    headers.append(header::VIA, VIA);
    join_cookies(headers);
}

/// Joins cookies into one header: HTTP/2 may send them one by one, HTTP/1.1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(cookies) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, cookies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn headers_of_a_connection_end_here_and_those_it_names() {
        let mut headers = map(&[
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("idempotency-key", "k"),
            ("x-other", "2"),
        ]);
        strip(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["idempotency-key", "x-other"]);
    }

    #[test]
    fn what_a_message_is_told_by_is_not_of_a_connection() {
        let mut headers = map(&[
            ("connection", "Authorization, Host, Cookie, Content-Type, X-Api-Key"),
            ("authorization", "Bearer t"),
            ("host", "shop.example"),
            ("cookie", "a=1"),
            ("content-type", "text/plain"),
            ("x-api-key", "k"),
        ]);
        strip(&mut headers);
        assert_eq!(headers.len(), 5, "{headers:?}");
    }

    #[test]
    fn every_line_of_who_asked_is_passed_on() {
        let peer = "10.0.0.7:1234".parse().unwrap();
        let mut headers =
            map(&[("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "192.0.2.1")]);
        forward(&mut headers, None, Some(peer));
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(lines, ["203.0.113.9, 192.0.2.1, 10.0.0.7"]);
    }

    #[test]
    fn the_upstream_is_told_who_asked_and_for_which_host() {
        let peer = "[::ffff:10.0.0.7]:1234".parse().unwrap();
        let mut headers = map(&[("host", "shop.example"), ("x-forwarded-for", "192.0.2.1")]);
        forward(&mut headers, Some("other.example"), Some(peer));
        assert_eq!(headers["host"], "shop.example");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1, 10.0.0.7");
        assert_eq!(headers["x-forwarded-host"], "shop.example");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["via"], "1.1 hapax");

        let mut bare = map(&[("x-forwarded-host", "outer"), ("cookie", "a=1"), ("cookie", "b=2")]);
        forward(&mut bare, Some("shop.example"), None);
        assert_eq!(bare["host"], "shop.example");
        assert_eq!(bare["x-forwarded-host"], "outer");
        assert_eq!(bare["cookie"], "a=1; b=2");
    }
}
