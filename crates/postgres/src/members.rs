//! The nodes of a broker: their rows, and the map of who owns what.

use std::time::{Duration, Instant};

use hapax_store::Epoch;
use uuid::Uuid;

use crate::call::{Answer, Call};
use crate::database::{Database, draw, unexpected};
use crate::error::Failure;

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
}

impl NodeState {
    pub(crate) fn of(number: i16) -> Option<Self> {
        [Self::Standby, Self::Serving, Self::Draining].into_iter().find(|it| *it as i16 == number)
    }
}

/// What a heartbeat brings back.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    pub count: u64,
    /// The database's clock, in ms since 1970, at some moment of the round trip.
    pub database_ms: u64,
    pub round_trip: Duration,
    /// Raised with every change of what nodes share.
    pub catalog: u64,
    pub lineage: Uuid,
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

/// This node among the others. It has a connection of its own.
#[derive(Debug)]
pub struct Members {
    database: Database,
    id: Uuid,
}

impl Members {
    /// Enters a row under an id that is drawn anew. Blocks, as all of this.
    pub fn register(database: &Database, node: &Node, within: Duration) -> Result<Self, Failure> {
        let id = draw().map_err(Failure::Refused)?;
        let members = Self { database: database.clone(), id };
        members.changed(Call::Register { id, node: node.clone() }, within)?;
        Ok(members)
    }

    /// The id of this start.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Counts one up. `None` if the row is gone: the node has to register again, under another id.
    pub fn heartbeat(
        &self,
        state: NodeState,
        told_ms: u64,
        within: Duration,
    ) -> Result<Option<Heartbeat>, Failure> {
        let begun = Instant::now();
        let call = Call::Heartbeat { id: self.id, state, told_ms };
        let beat = match self.database.call_member(call, within)? {
            Answer::Heartbeat(beat) => beat,
            other => return Err(unexpected(&other)),
        };
        let round_trip = begun.elapsed();
        Ok(beat.map(|(count, database_ms, catalog, lineage)| Heartbeat {
            count,
            database_ms,
            round_trip,
            catalog,
            lineage,
        }))
    }

    /// Reads all nodes and all partitions.
    pub fn read(&self, within: Duration) -> Result<Seen, Failure> {
        match self.database.call_member(Call::Members, within)? {
            Answer::Seen(seen) => Ok(seen),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes the row of a node that is gone, unless its heartbeat changed.
    pub fn delete(&self, id: Uuid, heartbeat: u64, within: Duration) -> Result<bool, Failure> {
        let call = Call::Forget { id, heartbeat: Some(heartbeat) };
        self.changed(call, within).map(|changed| changed > 0)
    }

    /// Deletes this node's row, at a clean stop.
    pub fn leave(self, within: Duration) -> Result<(), Failure> {
        self.changed(Call::Forget { id: self.id, heartbeat: None }, within).map(drop)
    }

    fn changed(&self, call: Call, within: Duration) -> Result<u64, Failure> {
        match self.database.call_member(call, within)? {
            Answer::Changed(count) => Ok(count),
            other => Err(unexpected(&other)),
        }
    }
}
