//! The row of this node, and the connection that keeps it.

use std::time::{Duration, Instant};

use hapax_store::LogEnd;
use uuid::Uuid;

use super::{Heartbeat, Node, NodeState, Seen};
use crate::call::{Answer, Call, unexpected};
use crate::database::{Database, draw};
use crate::error::Failure;
use crate::witness::numbers;

/// This node among the others. It has a connection of its own.
#[derive(Debug)]
pub struct Members {
    database: Database,
    id: Uuid,
}

impl Members {
    /// Enters a row under an id that is drawn anew. Refused if another broker's database is under
    /// the address meanwhile: a node that is in nobody's cluster is in nobody's way. Blocks, as all
    /// of this.
    pub fn register(database: &Database, node: &Node, within: Duration) -> Result<Self, Failure> {
        let id = draw().map_err(Failure::Refused)?;
        let members = Self { database: database.clone(), id };
        let cluster = database.shared().cluster;
        match members.changed(Call::Register { cluster, id, node: node.clone() }, within)? {
            0 => Err(Failure::Refused(
                "it is the database of another broker than the one this node started with".into(),
            )),
            _ => Ok(members),
        }
    }

    /// The id of this start.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Counts one up, and reads how far the partitions are, beside what was known of them. `None`
    /// if the row is gone: the node has to register again, under another id.
    pub fn heartbeat(
        &self,
        state: NodeState,
        told_ms: u64,
        known: &[(u16, LogEnd)],
        within: Duration,
    ) -> Result<Option<Heartbeat>, Failure> {
        let begun = Instant::now();
        let call = Call::Heartbeat { id: self.id, state, told_ms, known: numbers(known) };
        let beat = match self.database.call_member(call, within)? {
            Answer::Heartbeat(beat) => beat,
            other => return Err(unexpected(&other)),
        };
        let round_trip = begun.elapsed();
        Ok(beat.map(|beaten| Heartbeat::of(beaten, round_trip)))
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
