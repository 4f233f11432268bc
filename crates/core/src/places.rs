//! The places a message can be in. Nouns: listing this folder shows the state diagram.
//!
//! A place knows how to find what is due next and what to keep out of memory. It never decides:
//! the moves do.

pub(crate) mod delayed;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod leased;
pub(crate) mod ready;
pub(crate) mod relay;
pub(crate) mod resident;

/// What becomes of an entry of a place that might leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Leaves,
    /// Names nothing that is here any more.
    Stale,
    /// Changed since the last snapshot.
    Stays,
    /// Came since the last snapshot; so did what is younger.
    New,
    /// Enough has left.
    Enough,
}
