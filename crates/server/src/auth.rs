//! Authentication by tokens, and the one function that authorises every action. The HTTP and gRPC
//! handlers read a token from the request, [`Auth::authenticate`] turns it into a [`Principal`],
//! and [`authorise`] is called before anything is looked up. A request never names the tenant: it
//! is the principal's, so nothing crosses tenants. A queue that a token may not see is reported as
//! missing, before it is looked up.
//!
//! | action | needs, on a queue that the token's patterns match |
//! |---|---|
//! | [`Action::Send`] | `send` |
//! | [`Action::Work`] | `work` |
//! | [`Action::Claim`] | `send` and `work` |
//! | [`Action::Look`] | `send`, `work` or `admin` |
//! | [`Action::Browse`] | `work` or `admin` |
//! | [`Action::Create`], [`Action::Admin`] | `admin` |
//! | [`Action::Operate`] | `operate`; it is about the server, so patterns do not matter |
//!
//! A claim takes a key, as a send does, and is settled, as work is. With `work` alone a worker
//! could occupy the keys of a producer; with `send` alone a claim could never be settled. An emit
//! is a send: a settle with emits needs `send` on their queues.

mod file;
mod pattern;
mod permission;
mod set;
pub(crate) mod shared;
mod token;
mod tokens;

use std::fmt;
use std::sync::Arc;

use hapax_wire::{Code, DEFAULT_TENANT};
use jiff::Timestamp;

use crate::problem::Problem;

pub use file::TokenFile;
pub use pattern::{InvalidPattern, Pattern, Patterns};
pub use permission::{Permission, Permissions, UnknownPermission};
pub use set::{Created, Error, Listed, NewToken};
pub use shared::SharedTokens;
pub use tokens::Tokens;

/// An action on a queue, or on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send messages, also by an emit.
    Send,
    /// Receive and settle.
    Work,
    /// Take a key, to do the work oneself.
    Claim,
    /// Show a queue, or a key that the caller knows; list queues.
    Look,
    /// Read the messages of a queue, their keys and bodies, without leasing them.
    Browse,
    /// Create a queue or change its rules, which one request does.
    Create,
    /// Delete, pause, resume or purge a queue; forget, replay, redrive, discard or resolve keys.
    Admin,
    /// Actions on the whole server: backups, the log filter.
    Operate,
}

impl Action {
    pub const ALL: [Self; 8] = [
        Self::Send,
        Self::Work,
        Self::Claim,
        Self::Look,
        Self::Browse,
        Self::Create,
        Self::Admin,
        Self::Operate,
    ];

    fn is_permitted(self, permissions: Permissions) -> bool {
        let has = |permission| permissions.contains(permission);
        match self {
            Self::Send => has(Permission::Send),
            Self::Work => has(Permission::Work),
            Self::Claim => has(Permission::Send) && has(Permission::Work),
            Self::Look => has(Permission::Send) || has(Permission::Work) || has(Permission::Admin),
            Self::Browse => has(Permission::Work) || has(Permission::Admin),
            Self::Create | Self::Admin => has(Permission::Admin),
            Self::Operate => has(Permission::Operate),
        }
    }

    /// The permissions that a token needs, for messages.
    fn needs(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Work => "work",
            Self::Claim => "send,work",
            Self::Look => "send, work or admin",
            Self::Browse => "work or admin",
            Self::Create | Self::Admin => "admin",
            Self::Operate => "operate",
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    tenant: Arc<str>,
    queues: Patterns,
    permissions: Permissions,
    token: Option<token::Id>,
}

impl Principal {
    /// Every caller, if authentication is off.
    pub fn everything(tenant: impl Into<Arc<str>>) -> Self {
        Self {
            tenant: tenant.into(),
            queues: Patterns::everything(),
            permissions: Permissions::ALL,
            token: None,
        }
    }

    /// The namespace of everything that the principal can reach.
    pub fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    pub fn permissions(&self) -> Permissions {
        self.permissions
    }

    /// Identifies the token in logs; not a secret. `None` if authentication is off.
    pub fn token_id(&self) -> Option<impl fmt::Display + use<>> {
        self.token
    }

    /// Whether a listing shows the queue.
    pub fn sees(&self, queue: &str) -> bool {
        authorise(self, Action::Look, queue).is_ok()
    }
}

/// Why an action is not allowed, and how it must look to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The principal may not see the queue: answered as if it did not exist.
    #[error("the queue cannot be seen")]
    Invisible,
    #[error("the permission is missing")]
    Forbidden,
}

impl Denied {
    /// The answer to the caller. An invisible queue is answered like a missing one.
    pub fn problem(self, action: Action, queue: &str) -> Problem {
        match self {
            Self::Invisible => Problem::no_such_queue(queue),
            Self::Forbidden => {
                let needs = action.needs();
                let detail = match action {
                    Action::Operate => format!("the token lacks the permission {needs}"),
                    _ => format!("the token lacks the permission {needs} on queue {queue:?}"),
                };
                Problem::new(Code::Forbidden, detail)
            }
        }
    }
}

/// Whether the principal may do this to the queue of its tenant. Called for every request, before
/// the queue is looked up. The queue's name is ignored by [`Action::Operate`].
pub fn authorise(principal: &Principal, action: Action, queue: &str) -> Result<(), Denied> {
    if action != Action::Operate && !principal.queues.matches(queue) {
        return Err(match action {
            // "No such queue" would be no answer to its creation.
            Action::Create => Denied::Forbidden,
            _ => Denied::Invisible,
        });
    }
    if action.is_permitted(principal.permissions) { Ok(()) } else { Err(Denied::Forbidden) }
}

/// How a broker authenticates callers.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Every caller is this principal, with or without a token.
    Off(Arc<Principal>),
    Tokens(Arc<Tokens>),
}

/// The caller is not authenticated. The error does not reveal which part of a token was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorised {
    #[error(
        "the request has no token: send `Authorization: Bearer TOKEN`, \
         with one from `hapax token create`"
    )]
    Missing,
    #[error("the Authorization header is not `Bearer TOKEN`")]
    Malformed,
    #[error("the token is unknown, revoked or expired: make one with `hapax token create`")]
    Unknown,
}

impl From<Unauthorised> for Problem {
    fn from(unauthorised: Unauthorised) -> Self {
        Self::new(Code::Unauthorized, unauthorised.to_string())
    }
}

impl Auth {
    /// No authentication: everything is allowed in the default tenant.
    pub fn off() -> Self {
        Self::Off(Arc::new(Principal::everything(DEFAULT_TENANT)))
    }

    /// Authenticates the caller by the value of the `authorization` header or metadata.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Arc<Principal>, Unauthorised> {
        let tokens = match self {
            Self::Off(everybody) => return Ok(Arc::clone(everybody)),
            Self::Tokens(tokens) => tokens,
        };
        let value = authorization.ok_or(Unauthorised::Missing)?;
        let token = bearer(value).ok_or(Unauthorised::Malformed)?;
        tokens.authenticate(token, now).ok_or(Unauthorised::Unknown)
    }

    /// Whether a principal found earlier is still valid: for streams, which may outlive their
    /// token. Cheap enough for every frame.
    pub fn is_current(&self, principal: &Principal, now: Timestamp) -> bool {
        match self {
            Self::Off(_) => true,
            Self::Tokens(tokens) => tokens.is_current(principal, now),
        }
    }
}

impl Auth {
    /// Completes when a principal found earlier is no longer valid.
    pub fn revoked(
        &self,
        principal: Arc<Principal>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let auth = self.clone();
        async move {
            match auth {
                Self::Off(_) => std::future::pending().await,
                Self::Tokens(tokens) => tokens.revoked(&principal).await,
            }
        }
    }
}

/// The token in `Bearer TOKEN`. The scheme is case-insensitive, as in HTTP.
fn bearer(value: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(value).ok()?;
    let (scheme, token) = value.trim_ascii().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_ascii_start())
}

#[cfg(test)]
mod tests;
