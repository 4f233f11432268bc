//! Authenticates the caller of a route, before anything else of the request is read. An unknown
//! caller gets 401, whatever else is wrong with the request, and its body is not read. The handlers
//! decide with [`Service::authorise`] what a caller may do.

use axum::extract::Request;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;

use super::failure::Failure;
use crate::auth::Auth;
use crate::listen::Peer;
use crate::problem::Problem;
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
    match access {
        Access::Open => return Ok(()),
        Access::Near if is_near(request) => return Ok(()),
        Access::Near | Access::Token => {}
    }
    let principal = service.authenticate(authorization(request.headers()))?;
    request.extensions_mut().insert(principal);
    Ok(())
}

/// [`Access::Near`] at a node that does not serve.
pub(super) fn check_near(auth: &Auth, request: &Request) -> Result<(), Failure> {
    if !is_near(request) {
        let authorization = authorization(request.headers());
        auth.authenticate(authorization, Timestamp::now()).map_err(Problem::from)?;
    }
    Ok(())
}

fn is_near(request: &Request) -> bool {
    let peer = request.extensions().get::<Peer>();
    peer.is_some_and(|peer| peer.address.ip().is_loopback())
}

fn authorization(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().map(http::HeaderValue::as_bytes);
    // Two tokens count as none: the caller would be ambiguous.
    if values.next().is_some() { Some(b"") } else { value }
}
