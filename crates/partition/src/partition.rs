//! The partition itself: submit, poll, checkpoint.

mod epoch;
mod holding;
mod memory;

use std::collections::VecDeque;

use hapax_core::{
    BadBytes, Batch, Bounds, Command, Digest, Effect, Machine, Outcome, RowKey, RowSink,
};
use hapax_core::{Stamp, Time};
use hapax_store::{Checkpoint, Epoch, Room, RowSet, Sequence, Store};

use crate::clock::TOLD_AHEAD_MS;
use crate::fetch::Fetch;
use crate::recover::{Recovered, recover};

/// What may be chosen about a partition.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its number, part of every message id.
    pub partition: u16,
    /// How many partitions the broker has: no two of them give out the same fence.
    pub partitions: u16,
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
    /// Rows that nobody wants and a scan passes over on its way to the next one that somebody
    /// wants, where they are small; behind more of them it seeks.
    pub rows_passed: usize,
    /// Bytes of the journal that are decoded at once by recovery.
    pub gather_bytes: usize,
    /// Messages that leave memory at once, so that nobody waits long for it.
    pub evict_step: usize,
    /// Outcomes that wait to be polled, and rows that were read for them, take no more than this,
    /// plus one command: the commands behind it are decided when they have left.
    pub answer_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partition: 0,
            partitions: 1,
            memory_bytes: 256 * 1_024 * 1_024,
            journal_bytes: 256 * 1_024 * 1_024,
            batches_in_flight: 8,
            seed: 0,
            bounds: Bounds::default(),
            batch_bytes: 4 * 1_024 * 1_024,
            in_flight_bytes: 4 * 1_024 * 1_024,
            range_bytes: 8 * 1_024 * 1_024,
            rows_passed: 64,
            gather_bytes: 8 * 1_024 * 1_024,
            evict_step: 4_096,
            answer_bytes: 16 * 1_024 * 1_024,
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
    #[error(
        "queue {queue} counts {counted} leases and {found} are there; the directory is damaged in \
         a way its checksums miss"
    )]
    Leases { queue: String, counted: u64, found: u64 },
    #[error("the rows lead in a circle; the directory is damaged in a way its checksums miss")]
    Endless,
    #[error(
        "the partition is at epoch {0}, and fences have room for {max} epochs; restore a backup \
         from before the epoch was raised so far",
        max = hapax_core::Fence::EPOCHS
    )]
    Epochs(Epoch),
    #[error("the fences of epoch {0} are used up; open the partition again, which raises it")]
    Fences(Epoch),
    #[error("the partition stopped after: {0}; open it again, it recovers from what is on disk")]
    Stopped(String),
}

/// A submitted batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Commands that are durable: their outcomes in order, and what should happen.
#[derive(Debug)]
pub struct Answered {
    pub ticket: Ticket,
    pub outcomes: Vec<Outcome>,
    pub effects: Vec<Effect>,
    /// Outcomes of the same ticket follow: all of them at once would have been too much.
    pub more: bool,
}

/// One partition, owned by one thread.
#[derive(Debug)]
pub struct Partition<S> {
    machine: Machine,
    store: S,
    options: Options,
    epoch: Epoch,
    /// The first epoch of this owner.
    opened: Epoch,
    /// The last batch that was appended.
    appended: Sequence,
    next_ticket: u64,
    /// What was submitted and is not decided yet, oldest first.
    left: VecDeque<Left>,
    waiting: VecDeque<Waiting>,
    /// Of the journal, and of answers.
    waiting_bytes: usize,
    waiting_answer_bytes: usize,
    /// Appended since the last batch was told to wait.
    appended_bytes: usize,
    batch: Batch,
    fetch: Fetch,
    /// Journal written since the last checkpoint was cut.
    journal_bytes: usize,
    /// Messages in memory could not leave; they are left alone until there are so many bytes.
    stuck_bytes: usize,
    /// What the checkpoint under way goes through.
    cutting: Option<Sequence>,
    /// When the last checkpoint was cut, and what heads took then.
    cut_at: Time,
    cut_head_bytes: usize,
    /// The time of the last batch in the journal.
    journaled_at: Time,
    /// No time before this one is told: an earlier owner may have told a later one.
    not_before: Time,
    /// Why nothing goes on any more: memory may be ahead of what is on disk.
    stopped: Option<String>,
}

/// The rest of a submitted list.
#[derive(Debug)]
struct Left {
    ticket: Ticket,
    stamp: Stamp,
    commands: std::vec::IntoIter<Command>,
    /// What its commands need is too much to be read ahead: each reads its own.
    is_read_late: bool,
}

#[derive(Debug)]
struct Waiting {
    after: Sequence,
    /// What of the journal it waits for, by itself.
    bytes: usize,
    answer_bytes: usize,
    answered: Answered,
}

/// Emits that wait may take this much, however little memory there is.
const RELAY_BYTES_MIN: usize = 1_024 * 1_024;
/// Commands whose needs are read together.
const TOGETHER_MAX: usize = 16 * 1_024;

impl<S: Store> Partition<S> {
    /// Takes ownership of the store and recovers. Emits that were waiting for their queues are
    /// told again by the first batch that is polled.
    pub fn open(mut store: S, mut options: Options) -> Result<Self, Error> {
        let relay_bytes = (options.memory_bytes / 8).max(RELAY_BYTES_MIN);
        options.bounds.relay_bytes = options.bounds.relay_bytes.min(relay_bytes);
        let mut fetch = Fetch::new(options.range_bytes, options.rows_passed);
        let Recovered { mut machine, claim, journal_bytes } =
            recover(&mut store, &mut fetch, &options)?;
        machine.expect_records(memory::share(&options));
        let journaled_at = machine.now();
        let mut partition = Self {
            machine,
            store,
            options,
            epoch: claim.epoch,
            opened: claim.epoch,
            appended: claim.last,
            next_ticket: 0,
            left: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_answer_bytes: 0,
            appended_bytes: 0,
            batch: Batch::with_max(claim.batch_bytes_max),
            fetch,
            journal_bytes,
            stuck_bytes: 0,
            cutting: None,
            cut_at: Time(0),
            cut_head_bytes: 0,
            journaled_at,
            not_before: match claim.closed {
                true => journaled_at,
                false => journaled_at.plus(TOLD_AHEAD_MS),
            },
            stopped: None,
        };
        let relays = partition.machine.restart_relays().into_iter();
        let effects: Vec<Effect> = relays.map(|relay| Effect::Relay(Box::new(relay))).collect();
        if !effects.is_empty() {
            let ticket = partition.ticket();
            partition.wait_for(ticket, Vec::new(), effects, 0, false);
        }
        Ok(partition)
    }

    /// Decides the commands, in order, at the stamp's time, and starts to make them durable.
    /// Their outcomes come from `poll`. What the time brings (lost leases, jobs) is done as well.
    pub fn submit(&mut self, stamp: Stamp, commands: Vec<Command>) -> Result<Ticket, Error> {
        self.unless_stopped(|partition| {
            let ticket = partition.ticket();
            let is_next = partition.left.is_empty();
            let commands = commands.into_iter();
            partition.left.push_back(Left { ticket, stamp, commands, is_read_late: false });
            if is_next {
                partition.decide()?;
                partition.go_on()?;
            }
            Ok(ticket)
        })
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    /// Decides what was submitted, as long as there is room for its answers.
    fn go_on(&mut self) -> Result<(), Error> {
        while !self.left.is_empty() && !self.is_full() {
            self.decide()?;
        }
        Ok(())
    }

    /// Decides the next of the commands that were submitted, up to the bounds of one batch.
    fn decide(&mut self) -> Result<(), Error> {
        if self.machine.wants_epoch() {
            self.raise_epoch()?;
        }
        let Some(mut left) = self.left.pop_front() else { return Ok(()) };
        let at = left.stamp.at.max(self.now());
        let stamp = Stamp { at, ..left.stamp };
        self.machine.set_store_full(self.store.room() == Room::Low);
        let mut effects = Vec::new();
        self.batch.begin(at);
        self.machine.advance(at, &mut effects);
        let together = together(left.commands.as_slice(), self.options.batch_bytes);
        self.fetch.start();
        if !left.is_read_late {
            let ahead = left.commands.as_slice().get(..together).unwrap_or_default();
            left.is_read_late = !self.read_ahead(ahead)?;
        }
        let mut outcomes = Vec::with_capacity(together);
        let mut answer_bytes = 0;
        let mut is_late = left.is_read_late;
        for command in left.commands.by_ref().take(together) {
            is_late |= command.changes_needs();
            let outcome = self.execute(stamp, command, is_late, &mut effects)?;
            answer_bytes += outcome.size();
            outcomes.push(outcome);
            if answer_bytes + self.fetch.bytes() > self.options.answer_bytes
                || self.appended_bytes > 0
            {
                break;
            }
        }
        let more = left.commands.len() > 0;
        // After the commands: a lease that is settled in time by this very batch is not lost.
        if !more && self.machine.next_deadline().is_some_and(|deadline| deadline <= at) {
            self.execute(stamp, Command::Expire, true, &mut effects)?;
        }
        self.append(&mut effects)?;
        self.machine.unload();
        self.wait_for(left.ticket, outcomes, effects, answer_bytes, more);
        if more {
            self.left.push_front(left);
        }
        self.maintain()
    }

    /// Reads what the commands need, all at once. Returns whether that was not too much.
    fn read_ahead(&mut self, commands: &[Command]) -> Result<bool, Error> {
        let ask = |machine: &Machine, needs: &mut Vec<_>| {
            let ahead = commands.iter().take_while(|command| !command.changes_needs());
            let ahead = ahead.filter(|command| !command.is_asked_late());
            ahead.for_each(|command| machine.needs(command, needs));
        };
        let most = self.options.answer_bytes;
        let is_all = self.fetch.fetch_up_to(most, &mut self.machine, &mut self.store, ask)?;
        if !is_all {
            self.machine.unload();
            self.fetch.start();
        }
        Ok(is_all)
    }

    /// The next outcomes that may leave, in order. Nothing leaves after a failure.
    pub fn poll(&mut self) -> Result<Option<Answered>, Error> {
        self.unless_stopped(|partition| {
            partition.maintain()?;
            let front = partition.next_durable()?;
            partition.go_on()?;
            if front.is_some() { Ok(front) } else { partition.next_durable() }
        })
    }

    fn next_durable(&mut self) -> Result<Option<Answered>, Error> {
        let durable = self.store.durable()?;
        assert!(durable <= self.appended, "only what was appended becomes durable");
        let front = self.waiting.pop_front_if(|front| front.after <= durable);
        self.waiting_bytes -= front.as_ref().map_or(0, |front| front.bytes);
        self.waiting_answer_bytes -= front.as_ref().map_or(0, |front| front.answer_bytes);
        Ok(front.map(|front| front.answered))
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
            self.left.clear();
            self.waiting.clear();
            (self.waiting_bytes, self.waiting_answer_bytes) = (0, 0);
        }
        result
    }

    /// Whether callers should wait for `poll` before they submit more: too much is on its way to
    /// the disk, or memory is full of what the last checkpoint has not written yet.
    pub fn is_busy(&self) -> bool {
        !self.left.is_empty() || self.is_full()
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= self.options.batches_in_flight
            || self.waiting_bytes > self.options.in_flight_bytes
            || self.waiting_answer_bytes > self.options.answer_bytes
            || !self.waiting.is_empty() && self.machine.wants_epoch()
            || self.machine.is_in_checkpoint() && self.is_memory_full(&self.machine.usage())
    }

    /// Whether submitted commands wait for the disk.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.left.is_empty()
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
        let snapshot = self.machine.begin_checkpoint();
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
        self.cut_head_bytes = self.machine.usage().head_bytes();
        self.journal_bytes = 0;
        Ok(())
    }

    /// Whether a checkpoint is being written.
    pub fn is_checkpointing(&self) -> bool {
        self.cutting.is_some()
    }

    /// The last batch of the checkpoint that is being written.
    pub fn checkpoint_through(&self) -> Option<Sequence> {
        self.cutting
    }

    /// From now on no more than this is on its way to the disk at once, plus a batch.
    pub fn set_in_flight_bytes(&mut self, bytes: usize) {
        self.options.in_flight_bytes = bytes;
    }

    /// Ends ownership in good order. Outcomes that were not polled are gone, as after a crash;
    /// their effects on the state are not.
    pub fn close(mut self) -> Result<S, Error> {
        // The next owner goes on from the very time that was told last.
        if self.stopped.is_none() && self.machine.now() > self.journaled_at {
            self.batch.begin(self.machine.now());
            self.store.append(self.epoch, self.appended + 1, self.batch.bytes())?;
        }
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
        is_late: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Outcome, Error> {
        if is_late || command.is_asked_late() {
            self.fetch.fetch(&mut self.machine, &mut self.store, |machine, needs| {
                machine.needs(&command, needs);
            })?;
        }
        if !self.machine.has_fences() {
            return Err(Error::Fences(self.epoch));
        }
        let outcome = self.machine.execute(stamp, command, &mut self.batch);
        if is_late {
            self.machine.unload();
        }
        if self.batch.bytes().len() > self.options.batch_bytes || self.batch.has_full() {
            self.append(effects)?;
            self.batch.begin(stamp.at);
        }
        Ok(outcome)
    }

    fn append(&mut self, effects: &mut Vec<Effect>) -> Result<(), Error> {
        effects.append(&mut self.batch.effects);
        for bytes in self.batch.take_full() {
            self.journal(&bytes)?;
        }
        let is_told = self.machine.now().since(self.journaled_at) < TOLD_AHEAD_MS;
        if self.batch.is_empty() && is_told {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        let journaled = self.journal(batch.bytes());
        self.batch = batch;
        journaled
    }

    fn journal(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.store.append(self.epoch, self.appended + 1, bytes)?;
        self.appended += 1;
        self.journaled_at = self.machine.now();
        self.journal_bytes += bytes.len();
        self.appended_bytes += bytes.len();
        Ok(())
    }

    fn wait_for(
        &mut self,
        ticket: Ticket,
        outcomes: Vec<Outcome>,
        effects: Vec<Effect>,
        answer_bytes: usize,
        more: bool,
    ) {
        let answered = Answered { ticket, outcomes, effects, more };
        // Also a batch without decisions saw what the batches before it decided.
        let bytes = std::mem::take(&mut self.appended_bytes);
        self.waiting_bytes += bytes;
        self.waiting_answer_bytes += answer_bytes;
        self.waiting.push_back(Waiting { after: self.appended, bytes, answer_bytes, answered });
    }

    /// Finishes the checkpoint under way, starts the next one when it is time, and leaves
    /// messages to the rows where there are too many.
    fn maintain(&mut self) -> Result<(), Error> {
        if let Some(through) = self.cutting
            && self.store.checkpointed()? >= through
        {
            self.machine.finish_checkpoint();
            self.cutting = None;
            self.stuck_bytes = 0;
        }
        if self.cutting.is_none() {
            let usage = self.machine.usage();
            if usage.head_bytes() > self.heads_max().max(self.stuck_bytes) {
                self.evict(self.options.evict_step);
            }
            // A checkpoint is the owner's: it ends before the owner changes its epoch.
            if self.is_due(usage) && !self.machine.wants_epoch() {
                self.cut()?;
            }
        }
        Ok(())
    }
}

/// How many of the commands are decided together: as many as a batch has room for, and one more.
fn together(commands: &[Command], batch_bytes: usize) -> usize {
    let mut bytes = 0;
    let fit = commands.iter().take(TOGETHER_MAX).take_while(|command| {
        let is_next = bytes <= batch_bytes;
        if let Command::Send(send) = command {
            bytes += send.content.size();
        }
        is_next
    });
    fit.count()
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
