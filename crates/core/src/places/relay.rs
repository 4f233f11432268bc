//! Emits that wait to be sent to their queues. The list is durable: an emit stays until its queue
//! has confirmed it, and its key makes sending it again harmless.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::{BadBytes, Reader, Write};
use crate::command::Emit;
use crate::decision::bytes_of::{decode_emit, decode_emit_more, encode_emit, encode_emit_more};
use crate::ids::Time;
use crate::outcome::Relay;
use crate::record::{decode_error, encode_error};
use crate::row::RowKey;

#[derive(Clone, Debug, Default)]
pub(crate) struct Relays {
    waiting: BTreeMap<u64, Waiting>,
    /// When failed emits are tried again.
    retries: BTreeSet<(Time, u64)>,
    next_id: u64,
    /// Rows of emits that were confirmed since the last checkpoint.
    gone: Vec<u64>,
    /// What each tenant has waiting; below, all tenants together.
    tenants: BTreeMap<Box<str>, Share>,
    all: Share,
}

/// A number of emits, and their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    count: usize,
    bytes: usize,
}

impl Share {
    fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }

    fn minus(self, other: Self) -> Self {
        debug_assert!(self.count >= other.count && self.bytes >= other.bytes, "what goes came");
        Self { count: self.count - other.count, bytes: self.bytes - other.bytes }
    }

    fn of(emit: &Emit) -> Self {
        let bytes = size_of::<Waiting>() + 96 + emit.name.len() + emit.content.size();
        Self { count: 1, bytes }
    }
}

#[derive(Clone, Debug)]
struct Waiting {
    relay: Relay,
    next_at: Option<Time>,
    dirty: bool,
    stored: bool,
}

impl Relays {
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(crate) fn set_next_id(&mut self, next_id: u64) {
        self.next_id = self.next_id.max(next_id);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Estimated memory of the waiting emits.
    pub(crate) fn bytes(&self) -> usize {
        self.all.bytes + self.gone.len() * 8
    }

    /// Whether there is room for the emits. A tenant may use half of what the other tenants leave,
    /// so that one that fills its share leaves as much free. A tenant with nothing waiting is
    /// refused only if the whole list is full.
    pub(crate) fn has_room(&self, emits: &[Emit], count_max: usize, bytes_max: usize) -> bool {
        let Some(tenant) = emits.first().map(|emit| &*emit.queue.tenant) else { return true };
        let all = emits.iter().map(Share::of).fold(self.all, Share::plus);
        let share = self.tenants.get(tenant).copied().unwrap_or_default();
        if share.count == 0 {
            return self.all.count <= count_max && self.all.bytes <= bytes_max;
        }
        let share = emits.iter().map(Share::of).fold(share, Share::plus);
        share.count <= count_max.saturating_sub(all.count - share.count) / 2
            && share.bytes <= bytes_max.saturating_sub(all.bytes - share.bytes) / 2
    }

    fn count(&mut self, emit: &Emit, came: bool) {
        let share = Share::of(emit);
        let step = |before: Share| if came { before.plus(share) } else { before.minus(share) };
        self.all = step(self.all);
        let tenant = &*emit.queue.tenant;
        let before = self.tenants.get(tenant).copied().unwrap_or_default();
        match step(before) {
            Share { count: 0, .. } => drop(self.tenants.remove(tenant)),
            after => drop(self.tenants.insert(tenant.into(), after)),
        }
    }

    pub(crate) fn push(&mut self, emit: Emit, within: bool, issued_at: Time) {
        self.count(&emit, true);
        let id = self.next_id;
        self.next_id += 1;
        let relay = Relay { id, emit, within, issued_at, attempts: 0, refused: None };
        let waiting = Waiting { relay, next_at: None, dirty: true, stored: false };
        let before = self.waiting.insert(id, waiting);
        debug_assert!(before.is_none());
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Relay> {
        self.waiting.get(&id).map(|waiting| &waiting.relay)
    }

    /// Confirmed: its queue has it under its key.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(waiting) = self.waiting.remove(&id) else { return };
        self.count(&waiting.relay.emit, false);
        if let Some(at) = waiting.next_at {
            let was_listed = self.retries.remove(&(at, id));
            debug_assert!(was_listed, "who waits for a time is listed under it");
        }
        if waiting.stored {
            self.gone.push(id);
        }
    }

    /// Its queue refused it for good: from now on it is sent as a dead letter.
    pub(crate) fn refuse(&mut self, id: u64, relay: Relay) {
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        debug_assert!(relay.id == id && relay.refused.is_some());
        waiting.dirty = true;
        let before = std::mem::replace(&mut waiting.relay, relay.clone());
        self.count(&before.emit, false);
        self.count(&relay.emit, true);
    }

    pub(crate) fn retry(&mut self, id: u64, attempts: u32, next_at: Time) {
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        if let Some(at) = waiting.next_at.replace(next_at) {
            let was_listed = self.retries.remove(&(at, id));
            debug_assert!(was_listed, "who waits for a time is listed under it");
        }
        waiting.relay.attempts = attempts;
        waiting.dirty = true;
        self.retries.insert((next_at, id));
        debug_assert!(self.retries.len() <= self.waiting.len(), "who is retried waits");
    }

    /// Emits whose retry is due; each is returned once per retry.
    pub(crate) fn take_due(&mut self, at: Time, most: usize) -> Vec<Relay> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some((next_at, id)) = self.retries.first().copied()
            && next_at <= at
        {
            self.retries.pop_first();
            if let Some(waiting) = self.waiting.get_mut(&id) {
                waiting.next_at = None;
                due.push(waiting.relay.clone());
            }
        }
        due
    }

    /// All waiting emits, for a new owner to send again. Pending retries are cancelled: two answers
    /// to one emit would be taken for a refusal and the refusal of its dead letter.
    pub(crate) fn restart(&mut self) -> Vec<Relay> {
        self.retries.clear();
        let waiting = self.waiting.values_mut();
        let restarted = waiting.map(|waiting| {
            waiting.next_at = None;
            waiting.relay.clone()
        });
        restarted.collect()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Relay> {
        self.waiting.values().map(|waiting| &waiting.relay)
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// The rows that changed: what to write, what to delete.
    pub(crate) fn begin_checkpoint(&mut self) -> (Vec<(RowKey, Vec<u8>)>, Vec<RowKey>) {
        let mut rows = Vec::new();
        for (id, waiting) in &mut self.waiting {
            debug_assert!(*id < self.next_id, "numbers are given once");
            if std::mem::take(&mut waiting.dirty) {
                waiting.stored = true;
                let mut bytes = Vec::new();
                bytes.number(waiting.relay.attempts.into());
                bytes.number(waiting.relay.issued_at.0);
                encode_emit(&waiting.relay.emit, &mut bytes);
                encode_more(&waiting.relay, &mut bytes);
                rows.push((RowKey::relay(*id), bytes));
            }
        }
        let gone = std::mem::take(&mut self.gone);
        (rows, gone.into_iter().map(RowKey::relay).collect())
    }

    /// What the last checkpoint wrote is written again.
    pub(crate) fn cancel_checkpoint(&mut self) {
        self.waiting.values_mut().for_each(|waiting| waiting.dirty = true);
    }

    pub(crate) fn load(&mut self, id: u64, bytes: &[u8]) -> Result<(), BadBytes> {
        let mut reader = Reader::new(bytes);
        let attempts = reader.u32("attempts")?;
        let issued_at = Time(reader.number("issued at")?);
        let mut emit = decode_emit(&mut reader)?;
        let (mut refused, mut within) = (None, false);
        // Rows of 0.1 end here.
        if !reader.is_empty() {
            decode_emit_more(&mut emit, &mut reader)?;
            refused = decode_error(&mut reader)?;
            within = !reader.is_empty() && reader.u8("within")? != 0;
        }
        reader.end()?;
        self.count(&emit, true);
        let relay = Relay { id, emit, within, issued_at, attempts, refused };
        let waiting = Waiting { relay, next_at: None, dirty: false, stored: true };
        let before = self.waiting.insert(id, waiting);
        assert!(before.is_none(), "a row is loaded once");
        self.set_next_id(id + 1);
        Ok(())
    }
}

/// Fields that relays of 0.1 did not have; written only if there are any.
fn encode_more(relay: &Relay, out: &mut Vec<u8>) {
    let emit = &relay.emit;
    let is_more = emit.ttl_ms.is_some() || emit.fingerprint.is_some() || relay.refused.is_some();
    if is_more || relay.within {
        encode_emit_more(emit, out);
        encode_error(relay.refused.as_deref(), out);
    }
    if relay.within {
        out.u8(1);
    }
}
