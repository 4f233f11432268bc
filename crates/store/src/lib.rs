//! What keeps a partition's bytes.
//!
//! A store knows batches, rows and positions, never messages. Its contract is [`Store`]; every
//! implementation runs the one suite in [`conformance`]. [`disk::DiskStore`] is the default: a
//! segmented [`journal`] and an [`archive`] of immutable sorted runs, both written through a
//! [`Volume`], so that the simulator can put a faulty disk under the very code that ships.
//!
//! Important types: [`Store`], [`RowSet`], [`Volume`], [`Error`].

pub mod archive;
pub mod conformance;
mod contract;
pub mod disk;
mod error;
pub mod journal;
pub mod memory;
mod os;
mod row;
mod volume;

pub use contract::{Checkpoint, Claim, EachBatch, Epoch, Room, Sequence, Store};
pub use error::{Corruption, Error};
pub use os::{OsVolume, create_private_directory};
pub use row::{NEVER, PointKey, RowSet};
pub use volume::{File, Lock, Volume};
