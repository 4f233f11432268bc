//! What is asked of the database, as data: every statement has a [`Call`] and an [`Answer`].
//!
//! The code that decides (the [`appender`](crate::appender), the log, the volume, the members)
//! makes calls and reads answers, and knows no connection. So a model of the database can stand in
//! for PostgreSQL.

use std::sync::Arc;

use hapax_store::{Epoch, LogEnd, Sequence};
use uuid::Uuid;

use crate::error::Failure;
use crate::members::{Node, NodeState, Seen};

/// A claim of a partition. The id is drawn with every claim: epochs may repeat after a backup was
/// restored, ids do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub partition: u16,
    pub epoch: Epoch,
    pub claim: Uuid,
}

/// A batch of a journal: its number, and a checksum over it and everything before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub sequence: Sequence,
    pub chain: u64,
}

/// The checksum of a batch, over the one before and where it belongs.
pub fn chain(cluster: Uuid, partition: u16, sequence: Sequence, before: u64, batch: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(cluster.as_bytes());
    hasher.update(&partition.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&before.to_le_bytes());
    hasher.update(batch);
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub at: Position,
    pub bytes: Arc<[u8]>,
}

/// What an append asks for one partition: that it is owned, that `after` is there, and that the
/// batches follow it. Without batches it is a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub owner: Owner,
    pub after: Position,
    pub batches: Vec<Batch>,
}

/// A piece of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub run: u64,
    pub at: u64,
    pub bytes: Arc<[u8]>,
}

/// One statement, in a transaction of its own.
#[derive(Clone, Debug)]
pub enum Call {
    /// Any number of partitions, each with any number of batches: [`Answer::Appended`].
    Append(Vec<Part>),
    /// How far the partitions are, and who owns them: [`Answer::Ends`].
    Ends(Vec<u16>),
    /// Takes a partition whose epoch is `seen`: [`Answer::Claimed`].
    Claim { partition: u16, seen: Epoch, least: Epoch, claim: Uuid, node: Uuid },
    /// Gives it up: [`Answer::Changed`].
    Release { owner: Owner, intended: Option<Uuid> },
    /// Rows of the journal from `from` on, at least one if there is one, up to so many bytes:
    /// [`Answer::Rows`].
    Read { partition: u16, from: Sequence, bytes: u64 },
    /// The first row of the journal: [`Answer::First`].
    First { partition: u16 },
    /// Deletes rows with `from <= sequence < to` that the manifest covers: [`Answer::Changed`].
    Truncate { partition: u16, from: Sequence, to: Sequence },
    /// [`Answer::Manifest`].
    Manifest { partition: u16 },
    /// Replaces the manifest if the caller owns the partition, the version is the one given, batch
    /// `through` is in the journal, and the runs have so many bytes: [`Answer::Changed`].
    Swap {
        owner: Owner,
        version: u64,
        through: Sequence,
        bytes: Arc<[u8]>,
        runs: Vec<u64>,
        size: u64,
    },
    /// Keeps a piece, for the owner alone. Twice is once. [`Answer::Owned`].
    Keep { owner: Owner, piece: Piece },
    /// Run, offset and length of every piece: [`Answer::Pieces`].
    Pieces { partition: u16 },
    /// [`Answer::Bytes`].
    Fetch { partition: u16, run: u64, at: u64 },
    /// Deletes at most 64 pieces of a run, for the owner alone, and only if the manifest has at
    /// least that version, which does not name the run: a database that was set back may have an
    /// earlier one, which does. [`Answer::Changed`].
    Remove { owner: Owner, run: u64, version: u64 },
    /// Enters a node, if the database is that of this cluster: [`Answer::Changed`].
    Register { cluster: Uuid, id: Uuid, node: Node },
    /// Counts a node's row up. In the same statement, so that its commit proves what it saw: how
    /// far all partitions are, and the batches with the numbers that were `known` of them.
    /// [`Answer::Heartbeat`].
    Heartbeat { id: Uuid, state: NodeState, told_ms: u64, known: Vec<(u16, Sequence)> },
    /// [`Answer::Seen`].
    Members,
    /// Deletes a node's row; if `heartbeat` is given, only if it has that one:
    /// [`Answer::Changed`].
    Forget { id: Uuid, heartbeat: Option<u64> },
    /// [`Answer::Document`].
    Document { name: String },
    /// Replaces a document of that version and raises the catalog: [`Answer::Changed`].
    Replace { name: String, version: u64, bytes: Arc<[u8]> },
    /// Draws another lineage, given here, and raises every epoch: [`Answer::Changed`].
    AcceptLoss { lineage: Uuid },
}

/// What came of a part of an append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// The owner was the owner, and stays it until this is committed.
    pub owned: bool,
    /// The batch before was there.
    pub follows: bool,
    /// The batches that were inserted now.
    pub inserted: Vec<Sequence>,
    /// A setting of the server with which nothing is inserted.
    pub unsafe_setting: Option<&'static str>,
}

/// How far a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub partition: u16,
    pub epoch: Epoch,
    pub claim: Option<Uuid>,
    pub owner: Option<Uuid>,
    pub last: LogEnd,
}

/// By how much accepting a loss raises every epoch.
pub const LOSS_STEP: Epoch = 65_536;

impl End {
    /// Whether a loss was accepted after the last batch. Takeovers raise the epoch by one each.
    pub fn is_loss_accepted(&self) -> bool {
        self.epoch.saturating_sub(self.last.epoch) >= LOSS_STEP
    }

    pub fn position(&self) -> Position {
        Position { sequence: self.last.sequence, chain: self.last.chain }
    }
}

/// How far a partition was at a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    pub end: End,
    /// The batch that was asked for, if the journal still has it.
    pub kept: Option<LogEnd>,
}

/// What a heartbeat brings back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beaten {
    pub count: u64,
    /// The database's clock in ms.
    pub database_ms: u64,
    pub catalog: u64,
    pub lineage: Uuid,
    pub watched: Vec<Watched>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    pub cluster: Uuid,
    pub lineage: Uuid,
    pub ends: Vec<End>,
}

/// A row of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub epoch: Epoch,
    pub at: Position,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Appended(Vec<Appended>),
    Ends(Ends),
    Claimed(Option<Epoch>),
    Changed(u64),
    Owned(bool),
    Rows(Vec<Row>),
    First(Option<Sequence>),
    Manifest {
        version: u64,
        through: Sequence,
        bytes: Vec<u8>,
    },
    Pieces(Vec<(u64, u64, u64)>),
    Bytes(Option<Vec<u8>>),
    /// `None` if the row is gone.
    Heartbeat(Option<Beaten>),
    Seen(Seen),
    Document(Vec<u8>, u64),
}

/// A database, or a model of one.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Executes a call. Blocks. After a failure it is open whether the call took effect, or will.
    fn call(&self, call: Call) -> Result<Answer, Failure>;

    /// Waits a moment before the next try.
    fn pause(&self);

    /// Draws an id that nobody drew before.
    fn draw(&self) -> Result<Uuid, String>;
}

/// An answer to something else than was asked.
pub(crate) fn unexpected(answer: &Answer) -> Failure {
    Failure::Refused(format!("it answered {answer:?}"))
}
