//! Checkpoints: which parts of the state are written as rows, and what may leave memory afterwards.
//!
//! `begin_checkpoint` takes a consistent [cut](crate::cut) on the writer's thread: the records of
//! finished keys are handed over as they are. Messages and groups that had changed by then are
//! copied by `copy_changed`, in bounded steps, while commands go on changing them. Encoding and
//! sorting happen where [`Snapshot::write`] is called. `finish_checkpoint` is called when the rows
//! are stored.
//!
//! Invariant: rows older than memory are recognised, because everything that ended since the
//! checkpoint is in the current or the frozen generation.

use std::sync::{Arc, OnceLock};

use crate::codec::{BadBytes, Reader, Write};
use crate::command::{LeaseName, QueueName};
use crate::decision::bytes_of::decode_digest;
use crate::ids::Time;
use crate::key::Digest;
use crate::list::List;
use crate::machine::Machine;
use crate::message::{self, Message};
use crate::places::groups;
use crate::places::keys::Generation;
use crate::queue::{Queue, decode_job, encode_job};
use crate::receives::Remembered;
use crate::record::{decode_fence, encode_fence};
use crate::row::{File, RowKey, RowSink, decode_message, encode_message, point, table};

/// A consistent cut through the state, ready to be written.
#[derive(Debug)]
pub struct Snapshot {
    seed: u64,
    records: Arc<Generation>,
    messages: message::Copied,
    /// Returns the list of messages for reuse once it is written.
    emptied: Emptied,
    groups: groups::Copied,
    rows: Vec<(RowKey, Vec<u8>)>,
    gone: Arc<Gone>,
}

/// Rows that a checkpoint deletes, apart from those of its generation. Its machine keeps them too,
/// until it is stored: if it is given up, the next one deletes them.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    rows: Vec<RowKey>,
    /// Earlier rows of messages and groups that have moved.
    moved: [List<RowKey>; 2],
}

impl Gone {
    fn iter(&self) -> impl Iterator<Item = &RowKey> {
        self.rows.iter().chain(self.moved.iter().flat_map(List::iter))
    }
}

/// The list of a snapshot's messages, once they are written. Reusing its memory is cheaper than
/// allocating.
pub(crate) type Emptied = Arc<OnceLock<List<Message>>>;

impl Snapshot {
    /// Estimated points and bytes that `write` will write, without the records that it lends.
    pub fn size(&self) -> (usize, usize) {
        let (records, bytes) = self.records.size();
        let messages = &self.messages.messages;
        let message_bytes: usize = messages.iter().map(|it| it.content.size() + 160).sum();
        (records + messages.len(), bytes + message_bytes)
    }

    /// Writes every row that changed since the previous snapshot. A key appears once: a write wins
    /// over a delete.
    pub fn write(mut self, sink: &mut dyn RowSink) {
        let mut deletes = self.records.deletes(self.seed);
        self.records.write(sink, &mut deletes);
        self.groups.point_deletes.iter().for_each(|group| deletes.add(group, u64::MAX));
        let mut messages = std::mem::take(&mut self.messages.messages);
        let mut written: Vec<RowKey> = Vec::with_capacity(messages.len());
        let mut value = Vec::new();
        for message in messages.drain() {
            debug_assert!(message.row.is_some(), "a copied message has its row");
            let Some(row) = message.row else { continue };
            value.clear();
            encode_message(&message, &mut value);
            sink.put_row(&row, &value);
            value.clear();
            value.u8(point::ALIVE);
            value.fixed(row.as_slice());
            sink.put_point(&message.digest, u64::MAX, &value);
            deletes.except(&message.digest, u64::MAX);
            written.push(row);
        }
        let _ = self.emptied.set(messages);
        for group in self.groups.groups.iter() {
            value.clear();
            group.encode(&mut value);
            sink.put_point(&group.digest, u64::MAX, &value);
            deletes.except(&group.digest, u64::MAX);
            if let Some(seq) = group.lead_row {
                let row = RowKey::lead(group.queue, seq, &group.digest);
                sink.put_row(&row, &[]);
                written.push(row);
            }
        }
        for (row, value) in &self.rows {
            sink.put_row(row, value);
            written.push(*row);
        }
        deletes.write(sink);
        self.delete_rows(written, sink);
    }

    fn delete_rows(&self, mut written: Vec<RowKey>, sink: &mut dyn RowSink) {
        written.sort_unstable();
        debug_assert!(written.is_sorted_by(|a, b| a < b), "a row is written once");
        let gone = self.records.row_deletes().chain(self.gone.iter());
        let mut rows: Vec<RowKey> = gone.copied().collect();
        rows.sort_unstable();
        rows.dedup();
        for row in &rows {
            if written.binary_search(row).is_err() {
                sink.delete_row(row);
            }
        }
    }
}

impl Machine {
    /// Whether a snapshot can be taken quickly now. If not, the work that earlier checkpoints left
    /// has to go on first: [`Self::tidy_up`], and each batch, does a bounded part of it.
    pub fn may_begin_checkpoint(&self) -> bool {
        self.keys.may_begin_checkpoint()
    }

    /// A bounded part of the work that earlier checkpoints left.
    pub fn tidy_up(&mut self) {
        self.keys.step();
    }

    /// Takes a cut: the next checkpoint writes the state as it is now, however it changes until
    /// [`Self::copy_changed`] has copied it. One at a time: `finish_checkpoint` comes before the
    /// next.
    pub fn begin_checkpoint(&mut self) {
        assert!(!self.is_in_checkpoint(), "the last checkpoint is finished before the next cut");
        let mut row_deletes = Vec::new();
        let (mut rows, gone) = self.relays.begin_checkpoint();
        row_deletes.extend(gone);
        self.checkpoint_receives(&mut rows, &mut row_deletes);
        for queue in self.queues.iter_mut().filter(|queue| queue.dirty) {
            queue.dirty = false;
            let mut value = Vec::new();
            queue.encode(&mut value);
            rows.push((RowKey::queue(queue.id), value));
            for (digest, job) in &queue.redrives {
                let mut value = Vec::new();
                encode_job(job, &mut value);
                rows.push((RowKey::redrive(queue.id, digest), value));
            }
        }
        let mut value = Vec::new();
        let next_queue = self.queues.next_id().into();
        for number in [self.now.0, self.next_seq, self.relays.next_id(), next_queue] {
            value.number(number);
        }
        rows.push((RowKey::table(table::MACHINE), value));
        self.keys_expired = false;
        assert!(self.receives.gone.is_empty(), "what went is deleted");
        let emptied = std::mem::take(&mut self.emptied);
        let emptied = Arc::into_inner(emptied).and_then(OnceLock::into_inner);
        self.messages.begin_cut(emptied.unwrap_or_default());
        self.groups.begin_cut();
        debug_assert!(self.messages.changed() + self.groups.changed() == 0, "all that changed");
        let records = self.keys.begin_checkpoint();
        let emptied = Arc::clone(&self.emptied);
        let (messages, groups) = Default::default();
        let seed = self.keys.seed();
        let gone = Arc::new(Gone { rows: row_deletes, moved: Default::default() });
        let snapshot = Snapshot { seed, records, messages, emptied, groups, rows, gone };
        self.snapshot = Some(Box::new(snapshot));
    }

    /// Looks at up to `most` more of the messages and groups that had changed when the checkpoint
    /// began, and copies them. Returns the snapshot when nothing is left to copy.
    pub fn copy_changed(&mut self, most: usize) -> Option<Snapshot> {
        let looked = self.messages.copy_some(most);
        let looked = looked + self.groups.copy_some(most - looked);
        debug_assert!(looked <= most, "a step is bounded");
        if looked == most {
            return None; // Perhaps there are more.
        }
        let mut snapshot = *self.snapshot.take()?;
        snapshot.messages = self.messages.end_cut();
        snapshot.groups = self.groups.end_cut();
        if let Some(gone) = Arc::get_mut(&mut snapshot.gone) {
            let moved = (&mut snapshot.messages.row_deletes, &mut snapshot.groups.row_deletes);
            gone.moved = [std::mem::take(moved.0), std::mem::take(moved.1)];
        }
        self.gone = Arc::clone(&snapshot.gone);
        Some(snapshot)
    }

    /// Whether [`Self::copy_changed`] has to be called.
    pub fn is_copying(&self) -> bool {
        self.snapshot.is_some()
    }

    fn checkpoint_receives(
        &mut self,
        rows: &mut Vec<(RowKey, Vec<u8>)>,
        row_deletes: &mut Vec<RowKey>,
    ) {
        for (id, receive) in &mut self.receives.by_id {
            if std::mem::take(&mut receive.dirty) {
                receive.stored = true;
                let mut value = Vec::new();
                value.number(receive.until.0);
                value.number(receive.leases.len() as u64);
                for lease in &receive.leases {
                    value.fixed(&lease.digest.0);
                    value.number(lease.seq);
                    encode_fence(lease.fence, &mut value);
                }
                rows.push((RowKey::receive(id), value));
            }
        }
        let gone = std::mem::take(&mut self.receives.gone);
        let gone = gone.iter().filter(|id| !self.receives.by_id.contains_key(id));
        row_deletes.extend(gone.map(RowKey::receive));
    }

    /// Ends the checkpoint: the rows of the snapshot are stored.
    pub fn finish_checkpoint(&mut self) {
        assert!(!self.is_copying(), "what is not copied cannot be stored");
        self.keys.finish_checkpoint();
        self.messages.forget_cut();
        self.groups.forget_cut();
        self.gone = Arc::default();
    }

    /// Gives up the checkpoint in progress, whose snapshot nobody will store: everything that it
    /// would have written is written by the next one, as it is then. This takes as long as there
    /// are records in it.
    pub fn cancel_checkpoint(&mut self) {
        assert!(self.is_in_checkpoint() && !self.is_copying(), "a snapshot was taken");
        self.keys.cancel_checkpoint();
        self.messages.cancel_cut();
        self.groups.cancel_cut();
        let gone = std::mem::take(&mut self.gone);
        gone.iter().for_each(|row| self.keys.delete_row(*row));
        self.queues.iter_mut().for_each(|queue| queue.dirty = true);
        self.relays.cancel_checkpoint();
        self.receives.by_id.values_mut().for_each(|receive| receive.dirty = true);
        self.keys_expired = true;
    }

    /// Whether a snapshot is still being written.
    pub fn is_in_checkpoint(&self) -> bool {
        self.keys.is_in_checkpoint()
    }

    /// The ranges a new owner reads whole, in this order, before it replays the journal: the
    /// machine, its queues, and then [`Machine::leases`], the leased messages.
    pub fn boot_ranges() -> Vec<(RowKey, RowKey)> {
        let tables = [table::MACHINE, table::QUEUE, table::RELAY, table::RECEIVE, table::REDRIVE];
        tables.map(|tag| (RowKey::table(tag), RowKey::table(tag).after_prefix())).to_vec()
    }

    /// The ranges of leases, one for each queue that has some. See [`Machine::boot_ranges`].
    pub fn leases(&self) -> Vec<(RowKey, RowKey)> {
        let queues = self.queues.iter().filter(|queue| queue.stats.leased > 0);
        let files = queues.map(|queue| RowKey::file(queue.id, File::Leased));
        files.map(|file| (file, file.after_prefix())).collect()
    }

    /// A queue whose number of leases differs from its count: name, counted, present. A missing
    /// lease would never end, and block its group for ever.
    pub fn missing_leases(&self) -> Option<(&QueueName, u64, u64)> {
        self.queues.iter().find_map(|queue| {
            let here = queue.leased.iter(&self.messages).count() + queue.leased.away().len();
            let (counted, here) = (queue.stats.leased, here as u64);
            (counted != here).then_some((&queue.name, counted, here))
        })
    }

    /// Loads a row of a boot range.
    pub fn boot(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadBytes> {
        let row = RowKey::try_from(key)?;
        let rest = key.get(1..).unwrap_or_default();
        match row.tag() {
            table::MACHINE => self.boot_machine(value)?,
            table::QUEUE => {
                let id = u32::from_be_bytes(exactly(rest)?);
                let queue = Queue::decode(id, value, self.next_seq)?;
                if queue.stats.ready > 0 {
                    self.heads.add(id);
                }
                self.queues.insert(queue);
                self.report_later(id);
            }
            table::RELAY => self.relays.load(u64::from_be_bytes(exactly(rest)?), value)?,
            table::RECEIVE => self.boot_receive(Digest(exactly(rest)?), value)?,
            table::REDRIVE => {
                let (queue, job) = rest.split_at_checked(4).ok_or(BadBytes::Short("redrive"))?;
                let (id, digest) = (u32::from_be_bytes(exactly(queue)?), Digest(exactly(job)?));
                let job = decode_job(id, digest, value)?;
                if let Some(queue) = self.queues.get_mut(id) {
                    queue.redrives.insert(digest, job);
                }
            }
            table::MESSAGE => {
                let message = decode_message(row, value)?;
                let lease = message.lease().ok_or(BadBytes::Bounds("lease"))?;
                if let Some(queue) = self.queues.get_mut(message.queue) {
                    queue.leased.leave_away(&message);
                    self.leases_away.insert(message.seq, lease.fence);
                }
            }
            other => return Err(BadBytes::Tag("row", other)),
        }
        self.next_due = Time(0); // Everything may be due.
        Ok(())
    }

    fn boot_machine(&mut self, value: &[u8]) -> Result<(), BadBytes> {
        let mut reader = Reader::new(value);
        self.now = Time(reader.number("time")?);
        self.next_seq = reader.number("seq")?;
        self.relays.set_next_id(reader.number("relay")?);
        self.queues.set_next_id(reader.u32("queue")?);
        reader.end()
    }

    fn boot_receive(&mut self, id: Digest, value: &[u8]) -> Result<(), BadBytes> {
        let mut reader = Reader::new(value);
        let until = Time(reader.number("until")?);
        let count = reader.count("leases")?;
        let mut leases = Vec::with_capacity(count);
        for _ in 0..count {
            let digest = decode_digest(&mut reader)?;
            let seq = reader.number("seq")?;
            leases.push(LeaseName { digest, seq, fence: decode_fence(&mut reader)? });
        }
        reader.end()?;
        let remembered = Remembered { until, leases, dirty: false, stored: true };
        self.receives.insert(id, remembered);
        Ok(())
    }
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], BadBytes> {
    bytes.try_into().map_err(|_| BadBytes::Bounds("row name"))
}
