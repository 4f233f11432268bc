//! The partition itself: submit, poll, checkpoint.

use std::collections::VecDeque;

use hapax_core::{
    BadBytes, Batch, Bounds, Command, Digest, Effect, Machine, Outcome, RowKey, RowSink,
};
use hapax_core::{Stamp, Time, Usage};
use hapax_store::{Checkpoint, Epoch, Room, RowSet, Sequence, Store};

use crate::fetch::Fetch;
use crate::recover::recover;

/// What may be chosen about a partition.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its number, part of every message id.
    pub partition: u16,
    /// For caches, heads of queues and what waits for a checkpoint. Filters of the store come on
    /// top, at about 2.3 bytes per remembered key.
    pub memory_bytes: usize,
    /// A checkpoint comes after this much journal at the latest: it bounds recovery.
    pub journal_bytes: usize,
    /// Batches on their way to the disk at once.
    pub batches_in_flight: usize,
    /// Spreads tables; draw it at random.
    pub seed: u64,
    /// How much the machine does at once.
    pub bounds: Bounds,
    /// A batch that has grown beyond this is journaled before the next command is decided.
    pub batch_bytes: usize,
    /// No more than this is on its way to the disk at once, plus a batch: whoever comes next
    /// waits for it to be written.
    pub in_flight_bytes: usize,
    /// A range of rows is left off after so many bytes, and gone on with when it is asked for
    /// again: what is in it comes into memory, and a thousand rows may be a thousand times the
    /// largest body.
    pub range_bytes: usize,
    /// Bytes of the journal that are decoded at once by recovery.
    pub gather_bytes: usize,
    /// Messages that leave memory at once, so that nobody waits long for it.
    pub evict_step: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partition: 0,
            memory_bytes: 256 * 1_024 * 1_024,
            journal_bytes: 256 * 1_024 * 1_024,
            batches_in_flight: 8,
            seed: 0,
            bounds: Bounds::default(),
            batch_bytes: 4 * 1_024 * 1_024,
            in_flight_bytes: 4 * 1_024 * 1_024,
            range_bytes: 8 * 1_024 * 1_024,
            gather_bytes: 8 * 1_024 * 1_024,
            evict_step: 4_096,
        }
    }
}

/// Why a partition cannot be opened or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Store(#[from] hapax_store::Error),
    #[error("a row cannot be read: {0}; it was written by another release, or the store is wrong")]
    Bytes(BadBytes),
    #[error("batch {sequence} of the journal cannot be read: {error}")]
    Batch { sequence: Sequence, error: BadBytes },
    #[error("the rows lead in a circle; the directory is damaged in a way its checksums miss")]
    Endless,
    #[error("the partition stopped after: {0}; open it again, it recovers from what is on disk")]
    Stopped(String),
}

/// A submitted batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A batch that is durable: its outcomes in the order of its commands, and what should happen.
#[derive(Debug)]
pub struct Answered {
    pub ticket: Ticket,
    pub outcomes: Vec<Outcome>,
    pub effects: Vec<Effect>,
}

/// One partition, owned by one thread.
#[derive(Debug)]
pub struct Partition<S> {
    machine: Machine,
    store: S,
    options: Options,
    epoch: Epoch,
    /// The last batch that was appended.
    appended: Sequence,
    next_ticket: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Appended since the last batch was told to wait.
    appended_bytes: usize,
    batch: Batch,
    fetch: Fetch,
    /// Journal written since the last checkpoint was cut.
    journal_bytes: usize,
    /// What the checkpoint under way goes through.
    cutting: Option<Sequence>,
    /// When the last checkpoint was cut.
    cut_at: Time,
    /// The time of the last batch in the journal.
    journaled_at: Time,
    /// No time before this one is told: an earlier owner may have told a later one.
    not_before: Time,
    /// Why nothing goes on any more: memory may be ahead of what is on disk.
    stopped: Option<String>,
}

#[derive(Debug)]
struct Waiting {
    after: Sequence,
    /// What of the journal it waits for, by itself.
    bytes: usize,
    answered: Answered,
}

/// Answers may tell a time that is this much later than the journal's last one; who is told more
/// finds it journaled. A new owner starts that much later, so that time never runs backwards.
const TOLD_AHEAD_MS: u64 = 1_000;
/// Expired keys leave the disk with a checkpoint; an idle partition cuts one for them this often.
const EXPIRED_MS: u64 = 60_000;

impl<S: Store> Partition<S> {
    /// Takes ownership of the store and recovers. Emits that were waiting for their queues are
    /// told again by the first batch that is polled.
    pub fn open(mut store: S, options: Options) -> Result<Self, Error> {
        let mut fetch = Fetch::new(options.range_bytes);
        let (mut machine, claim) = recover(&mut store, &mut fetch, &options)?;
        machine.expect_records(options.memory_bytes / 4);
        let journaled_at = machine.now();
        let mut partition = Self {
            machine,
            store,
            options,
            epoch: claim.epoch,
            appended: claim.last,
            next_ticket: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            appended_bytes: 0,
            batch: Batch::default(),
            fetch,
            journal_bytes: 0,
            cutting: None,
            cut_at: Time(0),
            journaled_at,
            not_before: journaled_at.plus(TOLD_AHEAD_MS),
            stopped: None,
        };
        let relays = partition.machine.relays();
        let effects: Vec<Effect> =
            relays.map(|relay| Effect::Relay(Box::new(relay.clone()))).collect();
        if !effects.is_empty() {
            partition.wait_for(Vec::new(), effects);
        }
        Ok(partition)
    }

    /// Decides the commands, in order, at the stamp's time, and starts to make them durable.
    /// Their outcomes come from `poll`. What the time brings (lost leases, jobs) is done as well.
    pub fn submit(&mut self, stamp: Stamp, commands: Vec<Command>) -> Result<Ticket, Error> {
        self.unless_stopped(|partition| partition.decide(stamp, commands))
    }

    fn decide(&mut self, stamp: Stamp, commands: Vec<Command>) -> Result<Ticket, Error> {
        let at = stamp.at.max(self.now());
        let stamp = Stamp { at, ..stamp };
        self.machine.set_store_full(self.store.room() == Room::Low);
        let mut effects = Vec::new();
        self.batch.begin(at);
        self.machine.advance(at, &mut effects);
        let ask = |machine: &Machine, needs: &mut Vec<_>| {
            let ahead = commands.iter().filter(|command| !is_asked_late(command));
            ahead.for_each(|command| machine.needs(command, needs));
        };
        self.fetch.fetch(&mut self.machine, &mut self.store, ask)?;
        let mut outcomes = Vec::with_capacity(commands.len());
        for command in commands {
            outcomes.push(self.execute(stamp, command, &mut effects)?);
        }
        // After the commands: a lease that is settled in time by this very batch is not lost.
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= at) {
            self.execute(stamp, Command::Expire, &mut effects)?;
        }
        self.append(&mut effects)?;
        self.machine.cool();
        let ticket = self.wait_for(outcomes, effects);
        self.maintain()?;
        Ok(ticket)
    }

    /// The next batch whose outcomes may leave, in order. Nothing leaves after a failure.
    pub fn poll(&mut self) -> Result<Option<Answered>, Error> {
        self.unless_stopped(|partition| {
            let durable = partition.store.durable()?;
            assert!(durable <= partition.appended, "only what was appended becomes durable");
            partition.maintain()?;
            let may_leave = partition.waiting.front().is_some_and(|front| front.after <= durable);
            let front = if may_leave { partition.waiting.pop_front() } else { None };
            partition.waiting_bytes -= front.as_ref().map_or(0, |front| front.bytes);
            Ok(front.map(|front| front.answered))
        })
    }

    /// After any error memory may know what the disk does not: nothing may leave any more.
    fn unless_stopped<T>(
        &mut self,
        go_on: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(why) = &self.stopped {
            return Err(Error::Stopped(why.clone()));
        }
        let result = go_on(self);
        if let Err(error) = &result {
            self.stopped = Some(error.to_string());
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
        result
    }

    /// Whether callers should wait for `poll` before they submit more: too much is on its way to
    /// the disk, or memory is full of what the last checkpoint has not written yet.
    pub fn is_busy(&self) -> bool {
        let usage = self.machine.usage();
        self.waiting.len() >= self.options.batches_in_flight
            || self.waiting_bytes > self.options.in_flight_bytes
            || self.machine.is_frozen()
                && (usage.unwritten_bytes > self.records_max() * 3 / 2
                    || usage.message_bytes > self.heads_max() * 3)
    }

    /// Whether submitted batches wait for the disk.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When to submit a batch although nobody asked for anything.
    pub fn next_deadline(&self) -> Option<Time> {
        self.machine.next_deadline()
    }

    /// The time that the next batch cannot be before.
    pub fn now(&self) -> Time {
        self.machine.now().max(self.not_before)
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Cuts a checkpoint now, unless one is under way.
    pub fn checkpoint(&mut self) -> Result<(), Error> {
        self.unless_stopped(Self::cut)
    }

    fn cut(&mut self) -> Result<(), Error> {
        if self.cutting.is_some() {
            return Ok(());
        }
        if self.store.checkpointed()? == self.appended {
            let usage = self.machine.usage();
            if usage.unwritten_bytes == 0 && !usage.keys_expired {
                return Ok(()); // Nothing changed since the last one.
            }
            // Counted duplicates and expired keys are no decisions, but they do take memory and
            // disk: an empty batch gives their checkpoint a position.
            self.batch.begin(self.machine.now());
            self.store.append(self.epoch, self.appended + 1, self.batch.bytes())?;
            self.appended += 1;
        }
        let snapshot = self.machine.freeze();
        self.store.checkpoint(Checkpoint {
            epoch: self.epoch,
            through: self.appended,
            at: self.machine.now().0,
            rows: Box::new(move |rows| {
                let (points, bytes) = snapshot.size();
                rows.reserve(points, bytes);
                snapshot.write(&mut Sink(rows));
            }),
        })?;
        self.cutting = Some(self.appended);
        self.cut_at = self.machine.now();
        self.journal_bytes = 0;
        Ok(())
    }

    /// Whether a checkpoint is being written.
    pub fn is_checkpointing(&self) -> bool {
        self.cutting.is_some()
    }

    /// Ends ownership in good order. Outcomes that were not polled are gone, as after a crash;
    /// their effects on the state are not.
    pub fn close(mut self) -> Result<S, Error> {
        self.store.close()?;
        Ok(self.store)
    }

    /// The store as it is, without a word to it: what a crash leaves.
    pub fn abandon(self) -> S {
        self.store
    }

    fn execute(
        &mut self,
        stamp: Stamp,
        command: Command,
        effects: &mut Vec<Effect>,
    ) -> Result<Outcome, Error> {
        if is_asked_late(&command) {
            self.fetch.fetch(&mut self.machine, &mut self.store, |machine, needs| {
                machine.needs(&command, needs);
            })?;
        }
        let outcome = self.machine.execute(stamp, command, &mut self.batch);
        if self.batch.bytes().len() > self.options.batch_bytes {
            self.append(effects)?;
            self.batch.begin(stamp.at);
        }
        Ok(outcome)
    }

    fn append(&mut self, effects: &mut Vec<Effect>) -> Result<(), Error> {
        effects.append(&mut self.batch.effects);
        let is_told = self.machine.now().since(self.journaled_at) < TOLD_AHEAD_MS;
        if self.batch.is_empty() && is_told {
            return Ok(());
        }
        let bytes = self.batch.bytes();
        self.store.append(self.epoch, self.appended + 1, bytes)?;
        self.appended += 1;
        self.journaled_at = self.machine.now();
        self.journal_bytes += bytes.len();
        self.appended_bytes += bytes.len();
        Ok(())
    }

    fn wait_for(&mut self, outcomes: Vec<Outcome>, effects: Vec<Effect>) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let answered = Answered { ticket, outcomes, effects };
        // Also a batch without decisions saw what the batches before it decided.
        let bytes = std::mem::take(&mut self.appended_bytes);
        self.waiting_bytes += bytes;
        self.waiting.push_back(Waiting { after: self.appended, bytes, answered });
        ticket
    }

    /// Finishes the checkpoint under way, starts the next one when it is time, and leaves
    /// messages to the rows where there are too many.
    fn maintain(&mut self) -> Result<(), Error> {
        if let Some(through) = self.cutting
            && self.store.checkpointed()? >= through
        {
            self.machine.thaw();
            self.cutting = None;
        }
        if self.cutting.is_none() {
            let usage = self.machine.usage();
            if usage.message_bytes > self.heads_max() {
                self.machine.evict(self.heads_max(), self.options.evict_step);
            }
            if self.is_due(usage) {
                self.cut()?;
            }
        }
        Ok(())
    }

    fn is_due(&self, usage: Usage) -> bool {
        let is_crowded = usage.message_bytes > self.heads_max() * 2 && usage.changed_messages > 0;
        usage.unwritten_bytes > self.records_max()
            || self.journal_bytes > self.options.journal_bytes
            || usage.keys_expired && self.machine.now().since(self.cut_at) > EXPIRED_MS
            || is_crowded && self.journal_bytes > self.heads_max() / 8
    }

    /// A quarter for records that wait for a checkpoint, as much for those being written, a
    /// quarter for the heads of queues, and as much for messages that came since.
    fn records_max(&self) -> usize {
        self.options.memory_bytes / 4
    }

    fn heads_max(&self) -> usize {
        self.options.memory_bytes / 4
    }
}

/// What a receive or a step of time needs depends on the commands before it in the batch.
fn is_asked_late(command: &Command) -> bool {
    matches!(command, Command::Receive(_) | Command::Expire | Command::Browse(_))
}

/// Hands the machine's rows to the store's row set.
struct Sink<'a>(&'a mut RowSet);

impl RowSink for Sink<'_> {
    fn put_point(&mut self, digest: &Digest, drop_at: u64, value: &[u8]) {
        self.0.put_point(digest.0, drop_at, value);
    }

    fn delete_point(&mut self, digest: &Digest, drop_at: u64) {
        self.0.delete_point(digest.0, drop_at);
    }

    fn put_row(&mut self, key: &RowKey, value: &[u8]) {
        self.0.put_ordered(key.as_slice(), value);
    }

    fn delete_row(&mut self, key: &RowKey) {
        self.0.delete_ordered(key.as_slice());
    }
}
