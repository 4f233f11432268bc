//! Events of the layer, for metrics.

use hapax_client::Code;

macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $choice:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $choice,)+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$choice,)+];

            /// The name in metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$choice => $text,)+ }
            }
        }
    };
}

named!(
    /// How a request was answered. Also in the extensions of every response.
    Outcome {
        /// The handler was called under a claim of the key.
        Fresh = "fresh",
        /// The stored response was returned.
        Replayed = "replayed",
        /// Another request with the key is in progress.
        InProgress = "in_progress",
        /// The key was used for another request.
        Conflict = "conflict",
        MissingKey = "missing_key",
        MalformedKey = "malformed_key",
        /// Too large, too slow, too old, or without a tenant.
        Refused = "refused",
        /// Not protected: not a listed route, or no key on a route where it is optional.
        Bypassed = "bypassed",
        /// The outcome is unknown; an operator has to resolve it.
        InDoubt = "in_doubt",
        /// The handler's response was discarded: another request has the key.
        LeaseLost = "lease_lost",
        /// The broker could not be reached: nothing was done, or the response is not stored yet.
        Unavailable = "unavailable",
        /// The broker could not be reached, and the handler was called without protection.
        Unprotected = "unprotected",
        /// Too many operations are in progress.
        Overloaded = "overloaded",
        /// The broker refuses claims: the queue or the token is not suitable.
        Misconfigured = "misconfigured",
    }
);

named!(
    /// The outcome of a key after the handler.
    Settlement {
        /// The response is stored.
        Kept = "kept",
        /// Only the status was stored: the response was too large.
        NotKept = "not_kept",
        Released = "released",
        /// The outcome is unknown: parked, or freed if the queue does not park.
        InDoubt = "in_doubt",
        /// Another request has the key.
        Lost = "lost",
        /// The settle did not reach the broker in time.
        Failed = "failed",
    }
);

/// An event for an observer: see [`Builder::observe`](crate::Builder::observe).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    Answered(Outcome),
    Settled(Settlement),
    /// A call to the broker failed.
    BrokerFailed(Code),
}
