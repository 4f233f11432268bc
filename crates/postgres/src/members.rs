//! The nodes of a broker: their rows, and the map of who owns what.

#[cfg(feature = "connection")]
mod row;

use std::time::Duration;

use hapax_store::Epoch;
use uuid::Uuid;

use crate::call::{Beaten, Watched};
#[cfg(feature = "connection")]
pub use row::Members;

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct Node {
    /// Stays the same over restarts.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    pub release: String,
    /// The highest level of features that it knows.
    pub feature: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum NodeState {
    Standby = 1,
    Serving = 2,
    Draining = 3,
    /// It noticed that the database was set back.
    Halted = 4,
}

impl NodeState {
    #[cfg(feature = "connection")]
    pub(crate) fn of(number: i16) -> Option<Self> {
        let all = [Self::Standby, Self::Serving, Self::Draining, Self::Halted];
        all.into_iter().find(|it| *it as i16 == number)
    }
}

/// What a heartbeat brings back.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub count: u64,
    /// The database's clock, in ms since 1970, at some moment of the round trip.
    pub database_ms: u64,
    pub round_trip: Duration,
    /// Raised with every change of what nodes share.
    pub catalog: u64,
    pub lineage: Uuid,
    /// How far every partition is. The heartbeat was committed after that: it cannot be undone,
    /// unless the database loses what it acknowledged.
    pub watched: Vec<Watched>,
}

impl Heartbeat {
    pub fn of(beaten: Beaten, round_trip: Duration) -> Self {
        let Beaten { count, database_ms, catalog, lineage, watched } = beaten;
        Self { count, database_ms, round_trip, catalog, lineage, watched }
    }
}

/// A node's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub id: Uuid,
    pub name: String,
    pub address: String,
    pub release: String,
    pub feature: i32,
    pub state: Option<NodeState>,
    /// Counts its heartbeats.
    pub heartbeat: u64,
    /// The latest partition time that it answered with, in ms.
    pub told_ms: u64,
}

/// A partition's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRow {
    pub partition: u16,
    pub epoch: Epoch,
    /// A node; none if the partition is free.
    pub owner: Option<Uuid>,
    /// For whom the last owner left it.
    pub intended: Option<Uuid>,
}

/// All rows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub nodes: Vec<NodeRow>,
    pub partitions: Vec<OwnerRow>,
}
