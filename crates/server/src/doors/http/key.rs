//! The `Idempotency-Key` of a request.

use std::borrow::Cow;

use hapax_core::limits;
use hapax_wire::Code;
use hapax_wire::key::{self, IDEMPOTENCY_KEY, Malformed};
use http::HeaderMap;

use crate::problem::Problem;

const _: () = assert!(key::KEY_BYTES_MAX == limits::KEY_BYTES_MAX, "one bound for keys");

impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        Self::new(Code::MalformedKey, malformed.0)
    }
}

/// The caller's key; `None` if there is no such header.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Problem> {
    Ok(key::read(headers, &IDEMPOTENCY_KEY)?)
}

/// Whether a text can be a key at all.
pub(super) fn check(key: &str) -> Result<(), Problem> {
    Ok(key::check(key)?)
}

/// Why a key may be missing although the caller thinks it sent one.
pub(super) fn missing(headers: &HeaderMap) -> Problem {
    let detail = match key::look_alike(headers) {
        Some(name) => format!(
            "the queue requires a key: the request has the header {name}, but the key's header is \
             Idempotency-Key"
        ),
        None => "the queue requires a key: send the header Idempotency-Key".to_owned(),
    };
    Problem::new(Code::MissingKey, detail)
}
