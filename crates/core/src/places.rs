//! The places a message can be in. Nouns: listing this folder shows the state diagram.
//!
//! A place knows what is due next and what need not be in memory. It decides nothing; the moves do.

pub(crate) mod delayed;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod leased;
pub(crate) mod ready;
pub(crate) mod relay;
pub(crate) mod resident;

/// What happens to an entry of a place during eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Leaves,
    /// Refers to a message that is no longer here.
    Stale,
    /// Changed since the last snapshot: stays in memory.
    Stays,
    /// Arrived since the last snapshot, as did all younger ones.
    New,
    /// Enough was evicted.
    Enough,
}
