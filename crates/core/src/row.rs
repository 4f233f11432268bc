//! Rows: the form of the state in a checkpoint, and the keys of rows.
//!
//! The key of a point is a digest: of a finished key, of a pointer to an unfinished message, or of
//! a group. The keys of ordered rows sort in the order in which they are scanned:
//!
//! ```text
//! 01                                machine     02 queue                  queue
//! 03 id                             relay       04 receive digest         receive
//! 05 queue job                      redrive     06 queue seq group        group lead
//! 10 queue place …                  message     …: seq | due seq | group seq
//! ```

use std::fmt;
use std::sync::Arc;

use crate::codec::{BadBytes, Reader, Write};
use crate::cut::Mark;
use crate::decision::QueueId;
use crate::decision::bytes_of::{
    decode_content, decode_digest, decode_end, decode_fingerprint, encode_content, encode_end,
    encode_fingerprint,
};
use crate::ids::{Seq, Time};
use crate::key::Digest;
use crate::message::{Extra, How, Lease, Links, Message, Settlement, Slot, State};
use crate::outcome::Place;
use crate::places::keys::Records;
use crate::record::{
    decode_error, decode_fence, decode_history, decode_points, encode_error, encode_fence,
    encode_history, encode_points,
};

/// The name of an ordered row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RowKey {
    bytes: [u8; 32],
    len: u8,
}

/// In byte order; unused bytes at the end are zero. Fast, because checkpoints sort many.
impl Ord for RowKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let halves = |key: &Self| {
            let (high, low) = key.bytes.split_at(16);
            let number = |half: &[u8]| half.try_into().map_or(0, u128::from_be_bytes);
            (number(high), number(low), key.len)
        };
        halves(self).cmp(&halves(other))
    }
}

impl PartialOrd for RowKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(crate) mod table {
    pub(crate) const MACHINE: u8 = 1;
    pub(crate) const QUEUE: u8 = 2;
    pub(crate) const RELAY: u8 = 3;
    pub(crate) const RECEIVE: u8 = 4;
    pub(crate) const REDRIVE: u8 = 5;
    pub(crate) const LEAD: u8 = 6;
    pub(crate) const MESSAGE: u8 = 16;
}

/// The kind of a message's row. `Member`: ready, in a queue that keeps groups in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    Ready = 0,
    Delayed = 1,
    Leased = 2,
    Parked = 3,
    Dead = 4,
    Member = 5,
}

impl RowKey {
    pub(crate) fn new(parts: &[&[u8]]) -> Self {
        let mut key = Self { bytes: [0; 32], len: 0 };
        for part in parts {
            let end = usize::from(key.len) + part.len();
            let Some(room) = key.bytes.get_mut(key.len.into()..end) else {
                unreachable!("row names are at most 31 bytes, and one more to come after them");
            };
            room.copy_from_slice(part);
            key.len = end as u8;
        }
        key
    }

    pub fn as_slice(&self) -> &[u8] {
        debug_assert!(usize::from(self.len) <= self.bytes.len());
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }

    /// The first name after all that have this one as a prefix.
    pub(crate) fn after_prefix(mut self) -> Self {
        let before = self;
        while self.len > 0 {
            let last = usize::from(self.len) - 1;
            if let Some(byte) = self.bytes.get_mut(last).filter(|byte| **byte < u8::MAX) {
                *byte += 1;
                debug_assert!(before < self, "a range ends after it begins");
                return self;
            }
            if let Some(byte) = self.bytes.get_mut(last) {
                *byte = 0;
            }
            self.len -= 1;
        }
        self
    }

    /// The smallest name after this one.
    pub fn next(self) -> Self {
        Self::new(&[self.as_slice(), &[0]])
    }

    /// The distance to a later name of the same file. `None` for other files.
    pub fn names_to(&self, later: &Self) -> Option<u64> {
        let (file, from) = self.as_slice().split_last_chunk()?;
        let (later_file, to) = later.as_slice().split_last_chunk()?;
        let names = u64::from_be_bytes(*to).checked_sub(u64::from_be_bytes(*from));
        names.filter(|_| file == later_file)
    }

    pub(crate) fn table(tag: u8) -> Self {
        Self::new(&[&[tag]])
    }

    pub(crate) fn queue(queue: QueueId) -> Self {
        Self::new(&[&[table::QUEUE], &queue.to_be_bytes()])
    }

    pub(crate) fn relay(id: u64) -> Self {
        Self::new(&[&[table::RELAY], &id.to_be_bytes()])
    }

    pub(crate) fn receive(digest: &Digest) -> Self {
        Self::new(&[&[table::RECEIVE], &digest.0])
    }

    pub(crate) fn redrive(queue: QueueId, job: &Digest) -> Self {
        Self::new(&[&[table::REDRIVE], &queue.to_be_bytes(), &job.0])
    }

    /// Where the leads of a queue from `seq` on begin.
    pub(crate) fn leads(queue: QueueId, seq: Seq) -> Self {
        Self::new(&[&[table::LEAD], &queue.to_be_bytes(), &seq.to_be_bytes()])
    }

    pub(crate) fn lead(queue: QueueId, seq: Seq, group: &Digest) -> Self {
        Self::new(&[Self::leads(queue, seq).as_slice(), &group.0])
    }

    /// Where all messages of a queue begin.
    pub(crate) fn message_prefix(queue: QueueId) -> Self {
        Self::new(&[&[table::MESSAGE], &queue.to_be_bytes()])
    }

    /// The first name of a file.
    pub(crate) fn file(queue: QueueId, file: File) -> Self {
        Self::new(&[&[table::MESSAGE], &queue.to_be_bytes(), &[file as u8]])
    }

    pub(crate) fn filed(queue: QueueId, file: File, seq: Seq) -> Self {
        debug_assert!(!matches!(file, File::Delayed | File::Member));
        Self::new(&[Self::file(queue, file).as_slice(), &seq.to_be_bytes()])
    }

    pub(crate) fn delayed(queue: QueueId, due: Time, seq: Seq) -> Self {
        let file = Self::file(queue, File::Delayed);
        Self::new(&[file.as_slice(), &due.0.to_be_bytes(), &seq.to_be_bytes()])
    }

    pub(crate) fn member(queue: QueueId, group: &Digest, seq: Seq) -> Self {
        let file = Self::file(queue, File::Member);
        Self::new(&[file.as_slice(), &group.0, &seq.to_be_bytes()])
    }

    /// The key of the message's row in its current state.
    pub(crate) fn of(message: &Message) -> Self {
        let (queue, seq) = (message.queue, message.seq);
        match (&message.state, &message.group) {
            (State::Ready, Some(group)) => Self::member(queue, group, seq),
            (State::Ready, None) => Self::filed(queue, File::Ready, seq),
            (State::Delayed { due, .. }, _) => Self::delayed(queue, *due, seq),
            (State::Leased(_), _) => Self::filed(queue, File::Leased, seq),
            (State::Parked, _) => Self::filed(queue, File::Parked, seq),
            (State::Dead { .. }, _) => Self::filed(queue, File::Dead, seq),
        }
    }

    pub(crate) fn tag(&self) -> u8 {
        self.as_slice().first().copied().unwrap_or_default()
    }
}

impl TryFrom<&[u8]> for RowKey {
    type Error = BadBytes;

    fn try_from(bytes: &[u8]) -> Result<Self, BadBytes> {
        if bytes.len() > 31 {
            return Err(BadBytes::Bounds("row name"));
        }
        Ok(Self::new(&[bytes]))
    }
}

impl fmt::Debug for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Kinds of points. The tags are on disk.
pub(crate) mod point {
    /// A finished key: its record follows.
    pub(crate) const RECORD: u8 = 1;
    /// A living message: the name of its row follows.
    pub(crate) const ALIVE: u8 = 2;
    /// A group with unfinished messages.
    pub(crate) const GROUP: u8 = 3;
}

/// Appends a message row.
pub(crate) fn encode_message(message: &Message, out: &mut Vec<u8>) {
    debug_assert_eq!(message.row, Some(RowKey::of(message)), "a row is named for its place");
    debug_assert!(message.lease().is_none() || message.attempts > 0, "a lease is an attempt");
    out.fixed(&message.digest.0);
    out.number(message.seq);
    out.number(message.queue.into());
    out.number(message.attempts.into());
    out.number(message.generation.into());
    out.number(message.accepted_at.0);
    out.number(message.leased_at.0);
    encode_end(message.ttl_at, out);
    encode_fingerprint(&message.fingerprint, out);
    let extra = message.extra.as_deref();
    let (claim_id, dated_ahead) =
        extra.map_or((None, None), |extra| (extra.claim_id, extra.dated_ahead));
    let flags = [
        message.claim,
        message.group.is_some(),
        extra.is_some(),
        claim_id.is_some(),
        dated_ahead.is_some(),
    ];
    out.u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    if let Some(group) = &message.group {
        out.fixed(&group.0);
    }
    if let Some(id) = &claim_id {
        out.fixed(&id.0);
    }
    if let Some(dated) = dated_ahead {
        out.number(dated.0);
    }
    encode_state(&message.state, out);
    if let Some(extra) = &message.extra {
        encode_extra(extra, out);
    }
    encode_content(&message.content, out);
}

pub(crate) fn decode_message(row: RowKey, bytes: &[u8]) -> Result<Message, BadBytes> {
    let mut reader = Reader::new(bytes);
    let reader = &mut reader;
    let digest = decode_digest(reader)?;
    let seq = reader.number("seq")?;
    let queue = reader.u32("queue")?;
    let attempts = reader.u32("attempts")?;
    let generation = reader.u32("generation")?;
    let accepted_at = Time(reader.number("accepted_at")?);
    let leased_at = Time(reader.number("leased_at")?);
    let ttl_at = decode_end(reader)?;
    let fingerprint = decode_fingerprint(reader)?;
    let flags = reader.u8("flags")?;
    let group = if flags & 2 != 0 { Some(decode_digest(reader)?) } else { None };
    let claim_id = if flags & 8 != 0 { Some(decode_digest(reader)?) } else { None };
    let dated_ahead = if flags & 16 != 0 { Some(Time(reader.number("dated")?)) } else { None };
    let state = decode_state(reader)?;
    let extra = if flags & 4 != 0 {
        let extra = decode_extra(reader)?;
        Some(Box::new(Extra { claim_id, dated_ahead, ..extra }))
    } else {
        None
    };
    let content = decode_content(reader)?;
    reader.end()?;
    Ok(Message {
        seq,
        digest,
        queue,
        state,
        attempts,
        generation,
        accepted_at,
        leased_at,
        ttl_at,
        content,
        fingerprint,
        group,
        claim: flags & 1 != 0,
        extra,
        changed: Mark::default(),
        row: Some(row),
        links: Links { before: Slot::NONE, after: Slot::NONE },
    })
}

fn encode_state(state: &State, out: &mut Vec<u8>) {
    match state {
        State::Ready => out.u8(0),
        State::Delayed { due, backoff } => {
            out.u8(1);
            out.number(due.0);
            out.u8((*backoff).into());
        }
        State::Leased(lease) => {
            out.u8(2);
            encode_fence(lease.fence, out);
            out.number(lease.deadline.0);
            out.text(&lease.worker);
            out.u8(lease.begun.into());
        }
        State::Parked => out.u8(3),
        State::Dead { at, holds } => {
            out.u8(4);
            out.number(at.0);
            out.u8((*holds).into());
        }
    }
}

fn decode_state(reader: &mut Reader<'_>) -> Result<State, BadBytes> {
    Ok(match reader.u8("state")? {
        0 => State::Ready,
        1 => {
            let due = Time(reader.number("due")?);
            State::Delayed { due, backoff: reader.u8("backoff")? != 0 }
        }
        2 => {
            let fence = decode_fence(reader)?;
            let deadline = Time(reader.number("deadline")?);
            let worker = reader.text("worker")?.into();
            State::Leased(Lease { fence, deadline, worker, begun: reader.u8("begun")? != 0 })
        }
        3 => State::Parked,
        4 => {
            let at = Time(reader.number("dead")?);
            State::Dead { at, holds: reader.u8("holds")? != 0 }
        }
        other => return Err(BadBytes::Tag("state", other)),
    })
}

fn encode_extra(extra: &Extra, out: &mut Vec<u8>) {
    encode_history(&extra.history, out);
    encode_points(&extra.points, out);
    encode_error(extra.error.as_deref(), out);
    out.number(extra.duplicates);
    out.number(extra.losses.into());
    out.u8(extra.settled.is_some().into());
    if let Some(settled) = &extra.settled {
        encode_fence(settled.fence, out);
        out.u8(settled.how as u8);
        out.u8(settled.place as u8);
        out.optional(settled.deadline.map(|deadline| deadline.0));
    }
    encode_error(extra.worker.as_deref(), out);
    out.u8(extra.lost.is_some().into());
    if let Some(lost) = extra.lost {
        encode_fence(lost, out);
    }
}

fn decode_extra(reader: &mut Reader<'_>) -> Result<Extra, BadBytes> {
    let mut extra = Extra { history: decode_history(reader)?, ..Extra::default() };
    extra.points = decode_points(reader)?;
    extra.error = decode_error(reader)?;
    extra.duplicates = reader.number("duplicates")?;
    extra.losses = reader.u32("losses")?;
    if reader.u8("settled")? != 0 {
        let fence = decode_fence(reader)?;
        let how = match reader.u8("settled")? {
            0 => How::Released,
            1 => How::Failed,
            2 => How::Parked,
            other => return Err(BadBytes::Tag("settled", other)),
        };
        let number = reader.u8("place")?;
        let place = Place::ALL.get(usize::from(number)).copied();
        let place = place.ok_or(BadBytes::Tag("place", number))?;
        let deadline = reader.optional("deadline")?.map(Time);
        extra.settled = Some(Settlement { fence, how, place, deadline });
    }
    extra.worker = decode_error(reader)?;
    if reader.u8("lost")? != 0 {
        extra.lost = Some(decode_fence(reader)?);
    }
    Ok(extra)
}

/// Receives the rows of a checkpoint. The partition passes them to its store.
pub trait RowSink {
    /// Lends the records of finished keys, which do not change while the sink has them.
    fn borrow_from(&mut self, records: Records);
    /// A point whose value is one of the records that were lent.
    fn put_record(&mut self, digest: &Digest, drop_at: u64, place: u32);
    /// A point that may be dropped at `drop_at`; `u64::MAX` for never.
    fn put_point(&mut self, digest: &Digest, drop_at: u64, value: &[u8]);
    fn delete_point(&mut self, digest: &Digest, drop_at: u64);
    fn put_row(&mut self, key: &RowKey, value: &[u8]);
    fn delete_row(&mut self, key: &RowKey);
}

/// The name of an unknown worker: empty.
pub(crate) fn nobody() -> Arc<str> {
    "".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn row_names_are_ordered_as_their_bytes_are(
            one in proptest::collection::vec(0..3_u8, 0..31),
            other in proptest::collection::vec(0..3_u8, 0..31),
        ) {
            let (left, right) = (RowKey::new(&[&one]), RowKey::new(&[&other]));
            proptest::prop_assert_eq!(left.cmp(&right), one.cmp(&other));
        }
    }
}
