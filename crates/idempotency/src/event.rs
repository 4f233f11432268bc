//! What happens at the layer, told to whoever counts it.

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
    /// How a request was answered. It is among the extensions of every response, too.
    Outcome {
        /// The handler was called under a claim of the key.
        Fresh = "fresh",
        /// The remembered response was given.
        Replayed = "replayed",
        /// Another request with the key is in progress.
        InProgress = "in_progress",
        /// The key belongs to another request.
        Conflict = "conflict",
        MissingKey = "missing_key",
        MalformedKey = "malformed_key",
        /// Too large, too slow, too old, of nobody.
        Refused = "refused",
        /// Not protected: not a listed route, or no key on a route where it is optional.
        Bypassed = "bypassed",
        /// What became of the operation is not known; somebody has to resolve it.
        InDoubt = "in_doubt",
        /// The handler's response was discarded: another request has the key.
        LeaseLost = "lease_lost",
        /// The broker could not be reached, and nothing was done or nothing can be promised.
        Unavailable = "unavailable",
        /// The broker could not be reached, and the handler was called all the same.
        Unprotected = "unprotected",
        /// Too many operations are in progress.
        Overloaded = "overloaded",
        /// The broker refuses claims: its queue, or the token, is not what is needed.
        Misconfigured = "misconfigured",
    }
);

named!(
    /// What became of a key after the handler.
    Settlement {
        /// The response is remembered.
        Kept = "kept",
        /// Only the status was stored: the response was too large.
        NotKept = "not_kept",
        Released = "released",
        /// The outcome is unknown: parked, or freed if the queue does not park.
        InDoubt = "in_doubt",
        /// Another request has the key.
        Lost = "lost",
        /// The broker could not be told in time.
        Failed = "failed",
    }
);

/// What an observer is told: see [`Builder::observe`](crate::Builder::observe).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    Answered(Outcome),
    Settled(Settlement),
    /// A call to the broker failed.
    BrokerFailed(Code),
}
