//! Authenticates the caller of a route, before anything else of the request is read. An unknown
//! caller gets 401, whatever else is wrong with the request, and its body is not read. The handlers
//! decide with [`Service::authorise`] what a caller may do.

use std::sync::Arc;

use axum::extract::Request;
use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::failure::Failure;
use crate::auth::Principal;
use crate::listen::Peer;
use crate::service::Service;

/// The callers that may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody.
    Open,
    /// Everybody on the broker's own machine; callers with a token from elsewhere.
    Near,
    /// Callers with a valid token.
    Token,
}

/// Stores the caller in the extensions of the request, or refuses it.
pub(super) fn check(
    service: &Service,
    access: Access,
    request: &mut Request,
) -> Result<(), Failure> {
    let peer = request.extensions().get::<Peer>();
    let is_near = peer.is_some_and(|peer| peer.address.ip().is_loopback());
    match access {
        Access::Open => return Ok(()),
        Access::Near if is_near => return Ok(()),
        Access::Near | Access::Token => {}
    }
    let principal = authenticate(service, request.headers())?;
    request.extensions_mut().insert(principal);
    Ok(())
}

fn authenticate(service: &Service, headers: &HeaderMap) -> Result<Arc<Principal>, Failure> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().map(http::HeaderValue::as_bytes);
    // Two tokens count as none: the caller would be ambiguous.
    let value = if values.next().is_some() { Some(&b""[..]) } else { value };
    Ok(service.authenticate(value)?)
}
