//! The storage of a partition.
//!
//! A store handles batches, rows and positions, and knows nothing of messages. Its contract is
//! [`Store`]; every implementation runs the test suite in [`conformance`]. A [`joined::Joined`]
//! store has its batches in a [`log::Log`] and its rows in an [`archive`] of immutable sorted runs,
//! on a [`Volume`]. [`disk::DiskStore`] is the default: its log is a segmented [`journal`], on the
//! same volume, so that the simulator can run the code that ships on a faulty disk.
//!
//! Important types: [`Store`], [`RowSet`], [`Volume`], [`Error`].

pub mod archive;
pub mod conformance;
mod contract;
pub mod disk;
mod error;
pub mod joined;
pub mod journal;
pub mod log;
pub mod memory;
mod os;
mod progress;
mod row;
mod stop;
mod volume;

pub use contract::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Question, Room, Sequence, Shortage, Store,
};
pub use error::{Corruption, Error, LogEnd};
pub use os::{OsVolume, create_private_directory, disk_bytes};
pub use row::{Lender, NEVER, PointKey, RowSet};
pub use stop::Stop;
pub use volume::{File, Lock, NotReplaced, Volume, replace_by_rename};
