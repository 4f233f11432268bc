//! Extractors of handlers: the caller, and the values of path and query.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Query};
use hapax_core::KeyName;
use hapax_wire::Code;
use hapax_wire::key::Malformed;
use http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::key;
use crate::auth::{Action, Principal};
use crate::problem::Problem;
use crate::service::{Permit, Service};

/// The caller, as authenticated by [`super::access`].
#[derive(Debug)]
pub(super) struct Caller(pub(super) Arc<Principal>);

impl FromRequestParts<Service> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Service) -> Result<Self, Failure> {
        let caller = parts.extensions.get::<Arc<Principal>>();
        let unknown = || Problem::new(Code::Internal, "the request was not authenticated");
        Ok(Self(caller.cloned().ok_or_else(unknown)?))
    }
}

/// The queue of the path, and the caller.
#[derive(Debug)]
pub(super) struct InQueue {
    pub(super) caller: Arc<Principal>,
    pub(super) queue: String,
}

impl InQueue {
    pub(super) fn may(&self, service: &Service, action: Action) -> Result<Permit, Failure> {
        Ok(service.authorise(&self.caller, action, &self.queue)?)
    }
}

#[derive(Deserialize)]
struct QueuePath {
    queue: String,
}

impl FromRequestParts<Service> for InQueue {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        let Caller(caller) = Caller::from_request_parts(parts, service).await?;
        let Path(QueuePath { queue }) = Path::from_request_parts(parts, service)
            .await
            .map_err(|_| Failure::invalid("the path is not percent-encoded UTF-8"))?;
        Ok(Self { caller, queue })
    }
}

/// The key of the path, and the caller.
#[derive(Debug)]
pub(super) struct InKey {
    pub(super) caller: Arc<Principal>,
    queue: String,
    pub(super) key: String,
    pub(super) group: Option<String>,
}

impl InKey {
    pub(super) fn may(&self, service: &Service, action: Action) -> Result<Permit, Failure> {
        Ok(service.authorise(&self.caller, action, &self.queue)?)
    }

    pub(super) fn name(&self, service: &Service, permit: &Permit) -> KeyName {
        service.key_name(permit, &self.key, self.group.as_deref())
    }
}

#[derive(Deserialize)]
struct KeyPath {
    queue: String,
    key: String,
}

#[derive(Deserialize)]
struct OfGroup {
    group: Option<String>,
}

impl FromRequestParts<Service> for InKey {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        let Caller(caller) = Caller::from_request_parts(parts, service).await?;
        let Path(KeyPath { queue, key }) = Path::from_request_parts(parts, service)
            .await
            .map_err(|_| Malformed("the key in the path is not percent-encoded UTF-8".into()))
            .map_err(Problem::from)?;
        key::check(&key)?;
        let OfGroup { group } = query(parts, service).await?;
        Ok(Self { caller, queue, key, group })
    }
}

/// The parameters of the query.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Service> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        Ok(Self(query(parts, service).await?))
    }
}

async fn query<T: DeserializeOwned>(parts: &mut Parts, service: &Service) -> Result<T, Failure> {
    match Query::from_request_parts(parts, service).await {
        Ok(Query(params)) => Ok(params),
        Err(rejection) => {
            let text = rejection.body_text();
            let (_, why) = text.split_once(": ").unwrap_or(("", &text));
            Err(Failure::invalid(format!("the query: {why}")))
        }
    }
}

/// The number that a parameter gives.
pub(super) fn number(name: &str, text: Option<&str>) -> Result<Option<u64>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if is_number => Ok(Some(number)),
        _ => {
            let shown: String = text.chars().take(64).collect();
            Err(Failure::invalid(format!("{name}: {shown:?} is not a whole number")))
        }
    }
}
