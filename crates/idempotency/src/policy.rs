//! Which responses are stored, and which of their headers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use http::{HeaderMap, HeaderName, StatusCode, header};

use crate::connection;

/// What to do with a key after its response.
///
/// A handler overrides the policy with one in the extensions of its response:
///
/// ```
/// use hapax_idempotency::Remember;
///
/// let mut response = http::Response::new("the bank did not say whether it worked");
/// response.extensions_mut().insert(Remember::InDoubt);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remember {
    /// Store the response: every retry gets it.
    Keep,
    /// Nothing has happened: free the key.
    Release,
    /// It may have happened. If the queue's `on_lost` is `park`, the key is parked until an
    /// operator resolves it. Otherwise the key is freed.
    InDoubt,
}

/// Which responses are stored.
///
/// By default 2xx, 3xx and 4xx, because they are the outcome of the operation. Not 408, 425, 429
/// and 5xx, which mean that it was not processed: their key is freed.
#[derive(Clone)]
pub struct Policy(Arc<Choose>);

type Choose = dyn Fn(StatusCode, &HeaderMap) -> Remember + Send + Sync;

impl Policy {
    pub fn new(
        choose: impl Fn(StatusCode, &HeaderMap) -> Remember + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(choose))
    }

    /// The default policy, with further statuses that free the key.
    pub fn releasing(statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        let released: BTreeSet<u16> = statuses.into_iter().map(|status| status.as_u16()).collect();
        Self::new(move |status, _| match released.contains(&status.as_u16()) {
            true => Remember::Release,
            false => usual(status),
        })
    }

    /// The handler's choice, or else the policy's.
    pub(crate) fn choose(&self, response: &Parts) -> Remember {
        match response.extensions.get::<Remember>() {
            Some(remember) => *remember,
            None => (self.0)(response.status, &response.headers),
        }
    }
}

fn usual(status: StatusCode) -> Remember {
    let is_passing = matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
    );
    match status.as_u16() {
        200..=499 if !is_passing => Remember::Keep,
        _ => Remember::Release,
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new(|status, _| usual(status))
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Policy")
    }
}

/// Which headers of a response are stored.
///
/// Never stored are hop-by-hop headers, those that are valid for one response or one caller only,
/// and those that mark a replay: `Set-Cookie`, `Date`, `Connection` and what it names,
/// `Content-Length` (which follows from the body), `Transfer-Encoding`, `Trailer`, `Upgrade`,
/// `Keep-Alive`, `Age`, `Server-Timing`, `Clear-Site-Data`, proxy authentication,
/// `Idempotency-Replayed` and `Preference-Applied`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// All others.
    #[default]
    All,
    /// Only the headers of the list.
    Only(BTreeSet<String>),
}

static NEVER: [HeaderName; 18] = [
    header::SET_COOKIE,
    header::DATE,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::AGE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("preference-applied"),
    REPLAYED,
];

/// Marks a response that was stored before.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

impl Headers {
    /// Only these headers, case-insensitive.
    pub fn only<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Only(names.into_iter().map(|name| name.as_ref().to_ascii_lowercase()).collect())
    }

    pub(crate) fn choose(&self, headers: &HeaderMap) -> HeaderMap {
        let named: Vec<HeaderName> = connection::named(headers).collect();
        let mut chosen = HeaderMap::with_capacity(headers.len());
        for (name, value) in headers {
            let is_wanted = match self {
                Self::All => true,
                Self::Only(names) => names.contains(name.as_str()),
            };
            if is_wanted && !NEVER.contains(name) && !named.contains(name) {
                chosen.append(name, value.clone());
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Response};

    fn chosen(policy: &Policy, status: u16) -> Remember {
        policy.choose(&Response::builder().status(status).body(()).unwrap().into_parts().0)
    }

    #[test]
    fn what_says_how_it_ended_is_kept_and_what_says_that_it_did_not_is_released() {
        let policy = Policy::default();
        for status in [200, 201, 202, 204, 301, 302, 307, 400, 401, 403, 404, 409, 410, 422, 451] {
            assert_eq!(chosen(&policy, status), Remember::Keep, "{status}");
        }
        for status in [408, 425, 429, 500, 501, 502, 503, 504, 507, 599, 101] {
            assert_eq!(chosen(&policy, status), Remember::Release, "{status}");
        }
    }

    #[test]
    fn a_policy_can_be_changed_and_a_handler_knows_better() {
        let policy = Policy::releasing([StatusCode::UNAUTHORIZED]);
        assert_eq!(chosen(&policy, 401), Remember::Release);
        assert_eq!(chosen(&policy, 403), Remember::Keep);
        assert_eq!(chosen(&policy, 503), Remember::Release);
        let mut response = Response::builder().status(503).body(()).unwrap();
        response.extensions_mut().insert(Remember::Keep);
        assert_eq!(policy.choose(&response.into_parts().0), Remember::Keep);
    }

    #[test]
    fn cookies_dates_and_what_belongs_to_a_connection_are_never_kept() {
        let mut headers = HeaderMap::new();
        for name in &NEVER {
            headers.append(name, HeaderValue::from_static("x-hop"));
        }
        headers.append("x-hop", HeaderValue::from_static("named by Connection"));
        headers.append("etag", HeaderValue::from_static("\"1\""));
        headers.append("link", HeaderValue::from_static("a"));
        headers.append("link", HeaderValue::from_static("b"));
        let all = Headers::All.choose(&headers);
        assert_eq!(
            all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["etag", "link", "link"]
        );
        let only = Headers::only(["ETag", "Set-Cookie"]).choose(&headers);
        assert_eq!(only.keys().collect::<Vec<_>>(), ["etag"]);
    }
}
