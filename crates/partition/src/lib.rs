//! One partition: the rules of `hapax-core` on the bytes of `hapax-store`.
//!
//! ```text
//!   commands ─▶ stamp time ─▶ warm ─▶ decide ─▶ append ┄┄▶ durable ─▶ outcomes, effects
//!                              ▲                  │
//!                        rows ─┘◀── checkpoint ◀──┘
//! ```
//!
//! A [`Partition`] is owned by one thread and never blocks on a sync: `submit` decides a batch and
//! starts to make it durable, `poll` hands out what may leave the house. Batches overlap: the next
//! is decided while the last one is on its way to the disk.
//!
//! Invariants:
//! - nothing leaves before the batch it was decided in, and every batch it could have seen, is
//!   durable: not an `accepted`, not a duplicate's answer, not a delivery;
//! - after a failure of the store nothing leaves any more: a new owner recovers from what is on
//!   disk;
//! - memory is bounded: changes wait for a checkpoint up to a limit, and then so do callers.
//!
//! It refuses to know threads, sockets and the clock; time comes from a [`Clock`] that is told
//! what the clocks say.

mod clock;
mod fetch;
mod partition;
mod recover;

pub use clock::Clock;
pub use partition::{Answered, Error, Options, Partition, Ticket};
