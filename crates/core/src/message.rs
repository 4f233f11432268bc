//! A message in memory, and the slots that hold messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::LeaseName;
use crate::content::Content;
use crate::cut::{Cuts, Mark};
use crate::decision::QueueId;
use crate::ids::{Fence, MessageId, Seq, Time};
use crate::key::{Digest, Fingerprint};
use crate::list::List;
use crate::outcome::Place;
use crate::record::{Event, remember};
use crate::row::RowKey;

/// Everything about a message that is alive.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) seq: Seq,
    pub(crate) digest: Digest,
    pub(crate) queue: QueueId,
    pub(crate) state: State,
    /// Leases so far that count as attempts.
    pub(crate) attempts: u32,
    pub(crate) generation: u32,
    pub(crate) accepted_at: Time,
    /// When it was last leased.
    pub(crate) leased_at: Time,
    pub(crate) ttl_at: Time,
    pub(crate) content: Arc<Content>,
    pub(crate) fingerprint: Fingerprint,
    /// The digest of its group, if the queue keeps groups in order.
    pub(crate) group: Option<Digest>,
    /// A claim: the key is held by its caller, and nothing is delivered.
    pub(crate) claim: bool,
    /// Fields that most messages never need.
    pub(crate) extra: Option<Box<Extra>>,
    /// Whether it changed and a checkpoint must write it.
    pub(crate) changed: Mark,
    /// Where its row is, in the last cut that it was copied for.
    pub(crate) row: Option<RowKey>,
    pub(crate) links: Links,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Ready,
    /// `backoff`: waits for another attempt after a failure, and blocks its group meanwhile.
    Delayed {
        due: Time,
        backoff: bool,
    },
    Leased(Lease),
    Parked,
    /// `holds`: younger messages of its group wait until it is redriven or discarded.
    Dead {
        at: Time,
        holds: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) fence: Fence,
    pub(crate) deadline: Time,
    pub(crate) worker: Arc<str>,
    pub(crate) begun: bool,
}

/// Fields that few messages need: incidents, recovery points, errors.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Extra {
    pub(crate) history: Vec<Event>,
    pub(crate) points: BTreeMap<String, Bytes>,
    pub(crate) error: Option<Arc<str>>,
    pub(crate) duplicates: u64,
    pub(crate) losses: u32,
    /// The last lease that was settled without ending the message, and the answer it got.
    pub(crate) settled: Option<Settlement>,
    /// The last lease, if it expired and none was granted since: it may still settle.
    pub(crate) lost: Option<Fence>,
    /// The worker of the last lease.
    pub(crate) worker: Option<Arc<str>>,
    /// The digest of the id that the key was claimed under.
    pub(crate) claim_id: Option<Digest>,
    /// See [`Accepted`](crate::Accepted).
    pub(crate) dated_ahead: Option<Time>,
    /// Bytes of memory, as counted last.
    pub(crate) counted: usize,
}

impl Extra {
    /// Estimated bytes of memory.
    fn footprint(&self) -> usize {
        let event = |event: &Event| size_of::<Event>() + 64 + event.detail.len();
        let point = |(name, data): (&String, &Bytes)| 128 + name.len() + data.len();
        size_of::<Self>()
            + self.history.iter().map(event).sum::<usize>()
            + self.points.iter().map(point).sum::<usize>()
            + self.error.as_ref().map_or(0, |error| error.len() + 16)
    }
}

/// How a lease was settled, to give the same answer again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settlement {
    pub(crate) fence: Fence,
    pub(crate) how: How,
    pub(crate) place: Place,
    pub(crate) deadline: Option<Time>,
}

/// The verb of a settle. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Released = 0,
    Failed = 1,
    Parked = 2,
}

/// The neighbours in a list of leases by deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) before: Slot,
    pub(crate) after: Slot,
}

/// Where a message is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u32);

impl Slot {
    pub(crate) const NONE: Self = Self(u32::MAX);
}

impl Message {
    pub(crate) fn id(&self, partition: u16) -> MessageId {
        MessageId::new(self.accepted_at, partition, self.seq)
    }

    pub(crate) fn place(&self) -> Place {
        match &self.state {
            State::Ready => Place::Ready,
            State::Delayed { .. } => Place::Delayed,
            State::Leased(_) => Place::Leased,
            State::Parked => Place::Parked,
            State::Dead { .. } => Place::Dead,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// Whether the lease may settle: it holds the message, or it expired and no newer lease exists.
    pub(crate) fn may_settle(&self, fence: Fence) -> bool {
        match &self.state {
            State::Leased(lease) => lease.fence == fence,
            State::Dead { .. } => false,
            _ => self.extra.as_ref().is_some_and(|extra| extra.lost == Some(fence)),
        }
    }

    /// The worker of the last lease; empty if unknown.
    pub(crate) fn worker(&self) -> Arc<str> {
        let last = || self.extra.as_ref().and_then(|extra| extra.worker.clone());
        let holder = self.lease().map(|lease| Arc::clone(&lease.worker));
        holder.or_else(last).unwrap_or_else(crate::row::nobody)
    }

    pub(crate) fn lease_name(&self, fence: Fence) -> LeaseName {
        LeaseName { digest: self.digest, seq: self.seq, fence }
    }

    /// Whether it changed since it was copied for a checkpoint.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed.is_set()
    }

    /// When its present state ends by itself.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.state {
            State::Delayed { due, .. } => Some(*due),
            State::Leased(lease) => Some(lease.deadline),
            _ => None,
        }
    }

    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub(crate) fn remember(&mut self, event: Event) {
        remember(&mut self.extra().history, event);
    }

    pub(crate) fn error(&self) -> Arc<str> {
        let error = self.extra.as_ref().and_then(|extra| extra.error.clone());
        error.unwrap_or_else(|| "".into())
    }

    /// Whether it has no key: nothing is remembered of it.
    pub(crate) fn is_keyless(&self) -> bool {
        !self.content.has_key()
    }

    /// Estimated bytes of memory, as counted last.
    pub(crate) fn footprint(&self) -> usize {
        let extra = self.extra.as_ref().map_or(0, |extra| extra.counted);
        size_of::<Self>() + self.content.size() + 64 + extra
    }

    /// Counts its memory again.
    fn count(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.counted = extra.footprint();
        }
    }

    /// Whether the counted memory is up to date.
    pub(crate) fn is_counted(&self) -> bool {
        self.extra.as_ref().is_none_or(|extra| extra.counted == extra.footprint())
    }
}

/// Messages by slot. A freed slot is used again.
///
/// What belongs to a [cut](crate::cut) is copied here before it changes or goes, whoever does it.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// In chunks of equal size: growing moves nothing.
    slots: Vec<Vec<Option<Message>>>,
    free: Vec<Slot>,
    used: u32,
    bytes: usize,
    cuts: Cuts<(Seq, Slot), Copied>,
}

/// The messages of a cut, and the rows that they had under other names.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) messages: List<Message>,
    pub(crate) row_deletes: List<RowKey>,
}

const PIECE: usize = 1_024;

impl Messages {
    pub(crate) fn insert(&mut self, mut message: Message) -> Slot {
        message.count();
        self.bytes += message.footprint();
        if let Some(slot) = self.free.pop() {
            let place = slot_in(&mut self.slots, slot);
            debug_assert!(matches!(place, Some(None)), "a free slot is empty");
            if let Some(place) = place {
                *place = Some(message);
            }
            return slot;
        }
        let slot = Slot(self.used);
        assert!(slot != Slot::NONE, "memory ends before slots do");
        if self.used as usize == self.slots.len() * PIECE {
            self.slots.push(Vec::with_capacity(PIECE));
        }
        if let Some(piece) = self.slots.last_mut() {
            piece.push(Some(message));
        }
        debug_assert!(matches!(self.slot(slot), Some(Some(_))), "a slot names what was put there");
        self.used += 1;
        slot
    }

    #[inline]
    fn slot(&self, slot: Slot) -> Option<&Option<Message>> {
        let at = slot.0 as usize;
        self.slots.get(at / PIECE)?.get(at % PIECE)
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Message {
        self.copy(slot);
        let message = slot_in(&mut self.slots, slot).and_then(Option::take);
        let Some(message) = message else { gone(slot) };
        debug_assert!(self.bytes >= message.footprint(), "what leaves was counted");
        self.bytes -= message.footprint();
        debug_assert!(slot.0 < self.used, "only a slot that was given is free again");
        self.free.push(slot);
        message
    }

    #[inline]
    pub(crate) fn at(&self, slot: Slot) -> &Message {
        match self.slot(slot) {
            Some(Some(message)) => message,
            _ => gone(slot),
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: Slot) -> &mut Message {
        self.copy(slot);
        match slot_in(&mut self.slots, slot) {
            Some(Some(message)) => message,
            _ => gone(slot),
        }
    }

    /// The message of a slot, if the slot was not reused since.
    #[inline]
    pub(crate) fn same(&self, seq: Seq, slot: Slot) -> Option<&Message> {
        self.slot(slot)?.as_ref().filter(|message| message.seq == seq)
    }

    /// The number of the message in a slot, if there is one.
    #[inline]
    pub(crate) fn peek(&self, slot: Slot) -> Option<Seq> {
        self.slot(slot)?.as_ref().map(|message| message.seq)
    }

    /// Whether the slot holds the message of that digest.
    #[inline]
    pub(crate) fn is_of(&self, slot: Slot, digest: &Digest) -> bool {
        matches!(self.slot(slot), Some(Some(message)) if message.digest == *digest)
    }

    /// Whether the slot still holds that message, and it can be received.
    #[inline]
    pub(crate) fn is_ready(&self, seq: Seq, slot: Slot) -> bool {
        self.same(seq, slot).is_some_and(|message| matches!(message.state, State::Ready))
    }

    /// Updates the memory count after the message changed.
    pub(crate) fn recount(&mut self, slot: Slot) {
        let message = self.at_mut(slot);
        if message.extra.is_none() {
            return;
        }
        let before = message.footprint();
        message.count();
        let after = message.footprint();
        debug_assert!(self.bytes >= before, "what changes was counted");
        self.bytes = self.bytes - before + after;
    }

    /// Lists the message among those that the next checkpoint must write.
    pub(crate) fn list_changed(&mut self, slot: Slot) {
        self.copy(slot);
        if let Some(Some(message)) = slot_in(&mut self.slots, slot) {
            self.cuts.list(&mut message.changed, (message.seq, slot));
        }
    }

    /// How many were listed since the last cut.
    pub(crate) fn changed(&self) -> usize {
        self.cuts.changed()
    }

    /// A cut: [`Self::copy_some`] copies what has changed by now. `messages` is an empty list.
    pub(crate) fn begin_cut(&mut self, messages: List<Message>) {
        debug_assert_eq!(messages.len(), 0, "it would be written again");
        self.cuts.begin(Copied { messages, row_deletes: List::default() });
    }

    /// Looks at `most` of those that the cut lists, and copies what was not copied yet. Returns how
    /// many it looked at: fewer than `most` if there were no more.
    pub(crate) fn copy_some(&mut self, most: usize) -> usize {
        let mut looked = 0;
        while looked < most
            && let Some((seq, slot)) = self.cuts.next_listed()
        {
            looked += 1;
            if self.same(seq, slot).is_some() {
                self.copy(slot);
            }
        }
        looked
    }

    /// The messages of the cut, all of which were looked at.
    pub(crate) fn end_cut(&mut self) -> Copied {
        self.cuts.end()
    }

    /// The checkpoint of the last cut is over.
    pub(crate) fn forget_cut(&mut self) {
        self.cuts.forget();
    }

    /// The checkpoint of the last cut was given up: the next one writes what it would have written.
    pub(crate) fn cancel_cut(&mut self) {
        for (seq, slot) in self.cuts.take_copied().drain() {
            if self.same(seq, slot).is_some() {
                self.list_changed(slot);
            }
        }
    }

    /// Copies a message that belongs to the cut, unless that was done.
    #[inline]
    fn copy(&mut self, slot: Slot) {
        if !self.cuts.is_copying() {
            return;
        }
        let Some(Some(message)) = slot_in(&mut self.slots, slot) else { return };
        let Some(copied) = self.cuts.copies_for(&mut message.changed) else { return };
        let row = RowKey::of(message);
        if let Some(before) = message.row.replace(row).filter(|before| *before != row) {
            copied.row_deletes.push(before);
        }
        copied.messages.push(message.clone());
    }

    /// Panics if a change of the message would not be written.
    pub(crate) fn check_changed(&self, slot: Slot, message: &Message) {
        self.cuts.check(message.changed, (message.seq, slot));
        if !message.is_changed() {
            assert_eq!(message.row, Some(RowKey::of(message)), "what did not change is in its row");
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        debug_assert!(self.free.len() <= self.used as usize, "a slot is free once");
        self.used as usize - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Message)> {
        let slots = self.slots.iter().flatten().enumerate();
        slots.filter_map(|(slot, message)| Some((Slot(slot as u32), message.as_ref()?)))
    }
}

#[inline]
fn slot_in(slots: &mut [Vec<Option<Message>>], slot: Slot) -> Option<&mut Option<Message>> {
    let at = slot.0 as usize;
    slots.get_mut(at / PIECE)?.get_mut(at % PIECE)
}

#[cold]
#[expect(clippy::panic, reason = "an index that names an empty slot is a bug, not an input")]
fn gone(slot: Slot) -> ! {
    panic!("slot {} is empty", slot.0)
}
