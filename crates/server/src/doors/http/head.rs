//! Reads the headers of a request that describe its message.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::{BodyHasher, Content, Fingerprint, QueueName, Recipe, SendMessage, Time};
use hapax_wire as wire;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName};

use super::key;
use crate::doors::shape;
use crate::log::is_traceparent;
use crate::problem::Problem;
use crate::service::WAIT_MAX;

pub(super) const GROUP: &str = "hapax-group";
pub(super) const DELAY_MS: &str = "hapax-delay-ms";
pub(super) const TTL_MS: &str = "hapax-ttl-ms";
pub(super) const FINGERPRINT: &str = "hapax-fingerprint";
pub(super) const ISSUED_AT: &str = "hapax-issued-at";
pub(super) const LEASE_MS: &str = "hapax-lease-ms";
pub(super) const WORKER: &str = "hapax-worker";
pub(super) const OWN: &str = "hapax-";
pub(super) const KEPT: &str = "hapax-header-";
pub(super) const CLAIM_ID: &str = "hapax-claim-id";
const TRACEPARENT: &str = "traceparent";
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// The headers of a send, a claim or a replay.
#[derive(Debug)]
pub(super) struct Head<'a> {
    /// Empty if the caller gave none.
    pub(super) key: Cow<'a, str>,
    pub(super) content_type: Option<&'a str>,
    pub(super) group: Option<&'a str>,
    pub(super) delay_ms: Option<u64>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) lease_ms: Option<u64>,
    pub(super) worker: Option<&'a str>,
    pub(super) claim_id: Option<&'a str>,
    fingerprint: Option<Fingerprint>,
    pub(super) issued_at: Option<Time>,
    /// Headers stored with the message.
    headers: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> Head<'a> {
    /// Reads the headers of a request to data of this recipe.
    pub(super) fn read(recipe: &Recipe, headers: &'a HeaderMap) -> Result<Self, Problem> {
        let issued_at = one(headers, ISSUED_AT)?.map(|text| {
            wire::Timestamp::parse(text).map(|time| Time(time.0)).ok_or_else(|| {
                Problem::invalid(format!(
                    "{ISSUED_AT}: give an RFC 3339 time such as 2026-03-01T12:00:00Z"
                ))
            })
        });
        let fingerprint = one(headers, FINGERPRINT)?;
        let fingerprint = shape::own_fingerprint(recipe, FINGERPRINT, fingerprint)?;
        Ok(Self {
            key: key::read(headers)?.unwrap_or_default(),
            content_type: one(headers, CONTENT_TYPE.as_str())?,
            group: one(headers, GROUP)?,
            delay_ms: number(headers, DELAY_MS)?,
            ttl_ms: number(headers, TTL_MS)?,
            lease_ms: number(headers, LEASE_MS)?,
            worker: one(headers, WORKER)?,
            claim_id: one(headers, CLAIM_ID)?,
            fingerprint,
            issued_at: issued_at.transpose()?,
            headers: kept(headers)?,
        })
    }

    /// The message with its body.
    pub(super) fn content(&self, body: &[u8]) -> Result<Arc<Content>, Problem> {
        let mut builder =
            Content::builder(&self.key).content_type(self.content_type).group(self.group);
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        Ok(builder.build(body)?)
    }

    /// The caller's own, else that of the body.
    pub(super) fn fingerprint(&self, body: &BodyHasher) -> Fingerprint {
        self.fingerprint.unwrap_or_else(|| body.fingerprint(self.group))
    }

    pub(super) fn send(
        &self,
        recipe: &Recipe,
        queue: QueueName,
        body: &[u8],
    ) -> Result<SendMessage, Problem> {
        let content = self.content(body)?;
        let mut send = match self.fingerprint {
            Some(own) => SendMessage::with_fingerprint(recipe, queue, content, own),
            None => SendMessage::new(recipe, queue, content),
        };
        send.delay_ms = self.delay_ms;
        send.ttl_ms = self.ttl_ms;
        send.issued_at = self.issued_at;
        Ok(send)
    }
}

/// How long the caller wants to wait (`Prefer: wait=SECONDS`, RFC 7240). Unknown values are
/// ignored.
pub(super) fn wait(headers: &HeaderMap) -> Duration {
    let values = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    let preferences = values.flat_map(|value| value.split(','));
    let mut waits = preferences.filter_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("wait").then_some(Duration::from_secs(seconds))
    });
    waits.next().unwrap_or_default().min(WAIT_MAX)
}

/// The text of a header that may be given once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::invalid(format!("{name} is given more than once")));
    }
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Problem::invalid(format!("{name} is not UTF-8"))),
    }
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, Problem> {
    let Some(text) = one(headers, name)? else { return Ok(None) };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if is_number => Ok(Some(number)),
        _ => Err(Problem::invalid(format!("{name} must be a whole number of milliseconds"))),
    }
}

/// `hapax-header-NAME` under its name, and the caller's trace. Repeated headers are joined, as HTTP
/// defines it.
fn kept(headers: &HeaderMap) -> Result<Vec<(&str, Cow<'_, str>)>, Problem> {
    let mut kept = Vec::new();
    if let Some(trace) = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok())
        && is_traceparent(trace)
    {
        kept.push((TRACEPARENT, Cow::Borrowed(trace)));
    }
    for name in headers.keys() {
        let Some(bare) = name.as_str().strip_prefix(KEPT) else { continue };
        if bare.is_empty() {
            return Err(Problem::invalid(format!("{KEPT}NAME needs a name")));
        }
        let mut joined: Option<Cow<'_, str>> = None;
        for value in headers.get_all(name) {
            let text = std::str::from_utf8(value.as_bytes())
                .map_err(|_| Problem::invalid(format!("{name} is not UTF-8")))?;
            joined = Some(match joined {
                None => Cow::Borrowed(text),
                Some(before) => Cow::Owned(format!("{before}, {text}")),
            });
        }
        // The explicit header takes precedence over that of the connection.
        kept.retain(|(known, _)| *known != bare);
        kept.push((bare, joined.unwrap_or_default()));
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
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
    fn waiting_is_a_preference() {
        let wait = |value| wait(&headers(&[("prefer", value)])).as_secs();
        assert_eq!(wait("wait=10"), 10);
        assert_eq!(wait("respond-async, Wait=\"5\"; foo=bar"), 5);
        assert_eq!(wait("wait=3600"), 60);
        assert_eq!(wait("wait"), 0);
        assert_eq!(wait("wait=soon"), 0);
        assert_eq!(wait("handling=lenient"), 0);
    }

    #[test]
    fn headers_are_kept_under_their_names() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let headers = headers(&[
            ("traceparent", trace),
            ("hapax-header-a", "1"),
            ("hapax-header-b", "x"),
            ("hapax-header-b", "y"),
            ("other", "z"),
        ]);
        let mut kept = kept(&headers).unwrap();
        kept.sort();
        let expected = [("a", "1"), ("b", "x, y"), ("traceparent", trace)];
        assert_eq!(kept, expected.map(|(name, value)| (name, Cow::Borrowed(value))));
    }

    #[test]
    fn numbers_are_digits_and_given_once() {
        let read = |pairs: &[(&'static str, &'static str)]| {
            Head::read(&Recipe::First, &headers(pairs)).map(|head| head.delay_ms)
        };
        assert_eq!(read(&[("hapax-delay-ms", "250")]), Ok(Some(250)));
        for bad in ["", "-1", "+1", "1.5", "1s", "99999999999999999999"] {
            assert!(read(&[("hapax-delay-ms", bad)]).is_err(), "{bad}");
        }
        assert!(read(&[("hapax-delay-ms", "1"), ("hapax-delay-ms", "1")]).is_err());
        assert!(read(&[("hapax-issued-at", "yesterday")]).is_err());
        assert!(read(&[("hapax-fingerprint", "")]).is_err());
    }
}
