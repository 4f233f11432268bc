//! What a decision needs from the rows.

use crate::decision::QueueId;
use crate::key::Digest;
use crate::row::RowKey;

/// Something to fetch from the rows before a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// A key.
    Point(Digest),
    /// A group, which is also a point. If there is no such point,
    /// [`Machine::absent`](crate::Machine::absent) must be called.
    Group(QueueId, Digest),
    /// A message, by the name of its row.
    Row(RowKey),
    /// Boxed: nearly all needs are keys, and there are as many as commands.
    Range(Box<Range>),
}

/// Rows from a name up to another, as many as the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: RowKey,
    pub to: RowKey,
    pub limit: usize,
    pub of: RangeOf,
}

/// The purpose of a range read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeOf {
    Ready(QueueId),
    Leads(QueueId),
    Members(QueueId, Digest),
    Delayed(QueueId),
    Purge(QueueId),
    Browse,
    Redrive(QueueId, Digest),
}
