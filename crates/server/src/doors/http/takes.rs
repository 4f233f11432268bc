//! The inputs that each route accepts besides its path: headers named `hapax-…`, conditions,
//! parameters and a body. They are declared in the table of routes and checked before any handler
//! runs. A caller that sends more relies on it, so unsupported input is refused and nothing is
//! done.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use hapax_wire::key::IDEMPOTENCY_KEY;
use hapax_wire::nearest::closest;
use hapax_wire::{self as wire, json};
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, HeaderName};

use super::Route;
use super::body::next_frame;
use super::failure::Failure;
use super::head::{
    CLAIM_ID, DELAY_MS, FINGERPRINT, GROUP, ISSUED_AT, KEPT, LEASE_MS, OWN, TTL_MS, WORKER,
};
use crate::doors::pace::Pace;

/// Every header of ours, besides those that are kept.
const KNOWN: [&str; 8] =
    [GROUP, DELAY_MS, TTL_MS, FINGERPRINT, ISSUED_AT, LEASE_MS, WORKER, CLAIM_ID];
/// Refused if unsupported: an ignored condition would allow a change that it should prevent.
const CONDITIONS: [HeaderName; 4] =
    [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE];
const NO_KEY: Result<(), &str> = Err("leave it out");
/// How much is read of a body where none is allowed: enough to describe the error.
const NOTHING_BYTES_MAX: usize = 1_024;

/// What a route takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Takes {
    /// Headers named `hapax-…`.
    pub(super) headers: &'static [&'static str],
    /// Whether headers named `hapax-header-…` are kept with the message.
    pub(super) kept: bool,
    pub(super) conditions: &'static [HeaderName],
    pub(super) params: &'static [&'static str],
    pub(super) body: bool,
    /// Whether `Idempotency-Key` has a meaning; else what to do instead.
    pub(super) key: Result<(), &'static str>,
}

impl Takes {
    /// Nothing besides the path.
    pub(super) const NOTHING: Self =
        Self { headers: &[], kept: false, conditions: &[], params: &[], body: false, key: NO_KEY };
    pub(super) const BODY: Self = Self { body: true, ..Self::NOTHING };
    pub(super) const BATCH: Self =
        Self { key: Err("give each message of the batch its own `key`"), ..Self::BODY };
    pub(super) const RECEIVE: Self =
        Self { key: Err("to repeat a receive, give it a `receive_id`"), ..Self::BODY };
    pub(super) const REDRIVE: Self =
        Self { key: Err("to repeat a redrive, give it an `id`"), ..Self::BODY };
    pub(super) const CONFIG: Self = Self { conditions: &[IF_MATCH, IF_NONE_MATCH], ..Self::BODY };
    pub(super) const IF_MATCH: Self = Self { conditions: &[IF_MATCH], ..Self::NOTHING };
    pub(super) const MESSAGE: Self = Self {
        headers: &[GROUP, DELAY_MS, TTL_MS, FINGERPRINT, ISSUED_AT],
        kept: true,
        key: Ok(()),
        ..Self::BODY
    };
    pub(super) const CLAIM: Self = Self {
        headers: &[GROUP, FINGERPRINT, ISSUED_AT, LEASE_MS, WORKER, CLAIM_ID],
        ..Self::MESSAGE
    };
    pub(super) const PAGE: Self = Self { params: &["state", "limit", "cursor"], ..Self::NOTHING };
    pub(super) const LOOK: Self = Self { params: &["group", "wait_ms"], ..Self::NOTHING };
    pub(super) const KEY: Self = Self { params: &["group"], ..Self::NOTHING };
    pub(super) const RESOLVE: Self = Self { body: true, ..Self::KEY };
    /// The message again.
    pub(super) const REPLAY: Self =
        Self { headers: &[GROUP, FINGERPRINT], kept: true, key: Ok(()), ..Self::RESOLVE };
}

/// Refuses what the route of a request does not accept.
pub(super) async fn check(route: &Route, request: &mut Request) -> Result<(), Failure> {
    let takes = &route.takes;
    check_headers(takes, request.headers())?;
    if !request.method().is_safe() {
        check_conditions(takes, request.headers())?;
        check_key(takes, request.headers())?;
    }
    // Other pages are requested by browsers and probes, which may add parameters.
    if route.path.starts_with("/v1/") {
        check_params(takes, request.uri().query().unwrap_or_default())?;
    }
    match takes.body || request.body().is_end_stream() {
        true => Ok(()),
        false => read_nothing(request).await,
    }
}

/// Refuses unsupported `hapax-…` headers: a typo, or something that would not be done.
fn check_headers(takes: &Takes, headers: &HeaderMap) -> Result<(), Failure> {
    let own = headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with(OWN));
    let is_taken =
        |name: &&str| takes.headers.contains(name) || takes.kept && name.starts_with(KEPT);
    let mut others = own.filter(|name| !is_taken(name));
    let Some(name) = others.next() else { return Ok(()) };
    if KNOWN.contains(&name) || name.starts_with(KEPT) {
        let taken = match takes.headers {
            [] => "it takes no such headers".to_owned(),
            headers => format!("it takes {}", headers.join(", ")),
        };
        return Err(Failure::invalid(format!("{name} has no meaning for this request: {taken}")));
    }
    // Without the common prefix, which would make any two of them similar.
    let bare = |name: &'static str| name.strip_prefix(OWN).unwrap_or(name);
    let rest = name.strip_prefix(OWN).unwrap_or_default();
    Err(Failure::invalid(match closest(rest, takes.headers.iter().map(|name| bare(name))) {
        Some(known) => format!("unknown header {name}: did you mean {OWN}{known}?"),
        None if takes.kept => {
            format!("unknown header {name}: to store it with the message, name it {KEPT}NAME")
        }
        None => format!("unknown header {name}"),
    }))
}

fn check_conditions(takes: &Takes, headers: &HeaderMap) -> Result<(), Failure> {
    let mut conditions = CONDITIONS.iter().filter(|name| !takes.conditions.contains(name));
    match conditions.find(|name| headers.contains_key(*name)) {
        Some(name) => Err(Failure::invalid(format!("{name} is not supported by this request"))),
        None => Ok(()),
    }
}

/// An ignored key would suggest that a retry is safe.
fn check_key(takes: &Takes, headers: &HeaderMap) -> Result<(), Failure> {
    match takes.key {
        Err(instead) if headers.contains_key(&IDEMPOTENCY_KEY) => Err(Failure::invalid(format!(
            "Idempotency-Key has no meaning for this request: {instead}"
        ))),
        _ => Ok(()),
    }
}

fn check_params(takes: &Takes, query: &str) -> Result<(), Failure> {
    let known = takes.params;
    let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    let mut unknown = names.filter(|name| !name.is_empty() && !known.contains(name));
    let Some(name) = unknown.next() else { return Ok(()) };
    let shown: String = name.chars().take(64).collect();
    Err(Failure::invalid(match closest(name, known.iter().copied()) {
        Some(known) => format!("unknown parameter {shown:?}: did you mean {known}?"),
        None if known.is_empty() => format!(
            "unknown parameter {shown:?}: no parameters are \
                                             allowed here"
        ),
        None => {
            format!("unknown parameter {shown:?}: the known parameters are {}", known.join(", "))
        }
    }))
}

/// Reads a body where none is accepted. An empty one is allowed: some programs send an empty object
/// with every request.
async fn read_nothing(request: &mut Request) -> Result<(), Failure> {
    let mut body = std::mem::replace(request.body_mut(), Body::empty());
    let mut pace = Pace::begin();
    let mut said = Vec::new();
    while let Some(frame) = next_frame(&mut body, &mut pace).await? {
        let Ok(part) = frame.into_data() else { continue };
        if said.len() + part.len() > NOTHING_BYTES_MAX {
            return Err(Failure::invalid("the body: this request must have none"));
        }
        said.extend_from_slice(&part);
    }
    if said.trim_ascii().is_empty() {
        return Ok(());
    }
    match json::read(&said) {
        Ok(wire::Nothing {}) => Ok(()),
        Err(error) => {
            Err(Failure::invalid(format!("the body: this request must have none: {error}")))
        }
    }
}
