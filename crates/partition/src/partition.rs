//! The partition itself: submit, poll, checkpoint.

mod answers;
mod checkpoint;
mod commands;
mod epoch;
mod holding;
mod memory;
mod options;
mod shortage;

use std::collections::VecDeque;

use hapax_core::{BadBytes, Batch, Command, Effect, LOOK_AHEAD, Machine, Outcome, Stamp, Time};
use hapax_store::{Epoch, Question, Room, Sequence, Store};

use answers::Waiting;
use checkpoint::{Made, Unwritable};
pub use commands::{Commands, SPENT_MAX};
pub use options::Options;

use crate::clock::TOLD_AHEAD_MS;
use crate::fetch::Fetch;
use crate::recover::{Recovered, recover};

/// Why a partition cannot be opened or continue.
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

/// Durable commands: their outcomes in order, and the effects to perform.
#[derive(Debug)]
pub struct Answered {
    pub ticket: Ticket,
    pub outcomes: Vec<Outcome>,
    pub effects: Vec<Effect>,
    /// Outcomes of the same ticket follow: all at once would have taken too much memory.
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
    /// Submitted commands that are not decided yet, oldest first.
    left: VecDeque<Left>,
    /// Empty lists of decided commands, for reuse; below, one for outcomes.
    spent: Vec<Vec<Command>>,
    empty_outcomes: Vec<Outcome>,
    waiting: VecDeque<Waiting>,
    /// Bytes of the journal and of answers that wait.
    waiting_bytes: usize,
    waiting_answer_bytes: usize,
    /// Bytes appended since the last batch was queued.
    appended_bytes: usize,
    /// Nothing was executed since the last append, which proves who owns the partition.
    is_proven: bool,
    /// The last question to the store that was answered.
    confirmed: Question,
    batch: Batch,
    fetch: Fetch,
    /// Bytes and decisions of journal since the last checkpoint began.
    journal_bytes: usize,
    journal_decisions: usize,
    /// Nothing could be evicted; not tried again until memory exceeds this many bytes.
    stuck_bytes: usize,
    /// The last batch of the checkpoint in progress.
    cutting: Option<Sequence>,
    /// When the last checkpoint began; below, the memory of heads then, and what it was made of.
    cut_at: Time,
    cut_head_bytes: usize,
    cut_of: Made,
    /// The last checkpoint that was given up for lack of space, if none was written since.
    unwritable: Option<Unwritable>,
    /// Whether something was decided since.
    is_changed: bool,
    /// The room that the store reported last.
    room: Room,
    /// The time of the last batch in the journal.
    journaled_at: Time,
    /// No earlier time is returned: an earlier owner may have returned a later one.
    not_before: Time,
    /// Why the partition stopped: memory may be ahead of what is on disk.
    stopped: Option<String>,
}

/// The rest of a submitted list.
#[derive(Debug)]
struct Left {
    ticket: Ticket,
    stamp: Stamp,
    commands: Commands,
    /// Its commands need too much to be read ahead: each reads its own rows.
    is_read_late: bool,
}

/// Waiting emits may take this much, however small the memory budget is.
const RELAY_BYTES_MIN: usize = 1_024 * 1_024;
/// Commands whose needs are read together.
const TOGETHER_MAX: usize = 16 * 1_024;

impl<S: Store> Partition<S> {
    /// Takes ownership of the store and recovers. The first batch that is polled returns the emits
    /// that wait for their queues again.
    pub fn open(mut store: S, mut options: Options) -> Result<Self, Error> {
        let relay_bytes = (options.memory_bytes / 8).max(RELAY_BYTES_MIN);
        options.bounds.relay_bytes = options.bounds.relay_bytes.min(relay_bytes);
        let mut fetch = Fetch::new(options.range_bytes, options.rows_passed);
        let Recovered { mut machine, claim, journal_bytes, journal_decisions } =
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
            spent: Vec::new(),
            empty_outcomes: Vec::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_answer_bytes: 0,
            appended_bytes: 0,
            is_proven: false,
            confirmed: 0,
            batch: Batch::with_max(claim.batch_bytes_max),
            fetch,
            journal_bytes,
            journal_decisions,
            stuck_bytes: 0,
            cutting: None,
            cut_at: Time(0),
            cut_head_bytes: 0,
            cut_of: Made::default(),
            unwritable: None,
            is_changed: journal_bytes > 0,
            room: Room::Free,
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
            partition.wait_for(ticket, Vec::new(), effects, 0, false)?;
        }
        Ok(partition)
    }

    /// Decides the commands, in order, at the stamp's time, and starts to make them durable. `poll`
    /// returns their outcomes. What is due (expired leases, jobs) is done as well.
    pub fn submit(&mut self, stamp: Stamp, commands: impl Into<Commands>) -> Result<Ticket, Error> {
        let commands = commands.into();
        self.unless_stopped(|partition| {
            let ticket = partition.ticket();
            let is_next = partition.left.is_empty();
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

    /// Decides submitted commands, as long as there is room for their answers.
    fn go_on(&mut self) -> Result<(), Error> {
        while !self.left.is_empty() && !self.is_full() {
            self.decide()?;
        }
        Ok(())
    }

    /// Decides the next submitted commands, up to the bounds of one batch.
    fn decide(&mut self) -> Result<(), Error> {
        if self.machine.wants_epoch() {
            self.raise_epoch()?;
        }
        let Some(mut left) = self.left.pop_front() else { return Ok(()) };
        let at = left.stamp.at.max(self.now());
        let stamp = Stamp { at, ..left.stamp };
        self.room = self.store.room();
        self.machine.set_store_full(self.room.is_low());
        let mut effects = Vec::new();
        self.is_proven = false;
        self.batch.begin(at);
        self.machine.advance(at, &mut effects);
        let together = together(left.commands.iter(), self.options.batch_bytes);
        self.fetch.start();
        if !left.is_read_late {
            left.is_read_late = !self.read_ahead(&left.commands, together)?;
        }
        let mut outcomes = std::mem::take(&mut self.empty_outcomes);
        outcomes.reserve_exact(together);
        let mut answer_bytes = 0;
        let mut is_late = left.is_read_late;
        while outcomes.len() < together
            && let Some(command) = left.commands.pop(&mut self.spent)
        {
            if outcomes.len().is_multiple_of(LOOK_AHEAD) {
                // Prefetched when their needs were collected, and evicted from the cache since.
                self.machine.look_at(left.commands.iter());
            }
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
        let more = !left.commands.is_empty();
        // After the commands: a lease that is settled in time by this very batch is not lost.
        if !more && self.machine.next_deadline().is_some_and(|deadline| deadline <= at) {
            self.execute(stamp, Command::Expire, true, &mut effects)?;
        }
        self.append(&mut effects)?;
        self.machine.unload();
        self.wait_for(left.ticket, outcomes, effects, answer_bytes, more)?;
        if more {
            self.left.push_front(left);
        }
        self.maintain()
    }

    /// Reads everything that the commands need at once. Returns false if that was too much.
    fn read_ahead(&mut self, commands: &Commands, together: usize) -> Result<bool, Error> {
        let ask = |machine: &Machine, needs: &mut Vec<_>| {
            machine.needs_ahead(commands.iter().take(together), needs);
        };
        let most = self.options.answer_bytes;
        let is_all = self.fetch.fetch_up_to(most, &mut self.machine, &mut self.store, ask)?;
        if !is_all {
            self.machine.unload();
            self.fetch.start();
        }
        Ok(is_all)
    }

    /// The next outcomes whose batch is durable, in order. Nothing is returned after a failure.
    pub fn poll(&mut self) -> Result<Option<Answered>, Error> {
        self.unless_stopped(|partition| {
            partition.maintain()?;
            let front = partition.next_durable()?;
            partition.go_on()?;
            if front.is_some() { Ok(front) } else { partition.next_durable() }
        })
    }

    /// After any error memory may be ahead of the disk: nothing is returned any more.
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

    /// The lists whose commands are decided, empty. At most [`SPENT_MAX`] are kept.
    pub fn take_spent(&mut self) -> Vec<Vec<Command>> {
        std::mem::take(&mut self.spent)
    }

    /// Takes a list back, for the outcomes of the next commands.
    pub fn reuse(&mut self, outcomes: Vec<Outcome>) {
        debug_assert!(outcomes.is_empty(), "they would be answers to something else");
        self.empty_outcomes = outcomes;
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

    /// When to submit a batch even without commands.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.machine.is_copying() {
            return Some(self.machine.now()); // Every batch copies more for the checkpoint.
        }
        let usage = self.machine.usage();
        let checkpoints = [self.relief_at(&usage), self.expired_at(&usage)];
        self.machine.next_deadline().into_iter().chain(checkpoints.into_iter().flatten()).min()
    }

    /// The earliest possible time of the next batch.
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

    /// Whether a checkpoint is being copied or written.
    pub fn is_checkpointing(&self) -> bool {
        self.cutting.is_some()
    }

    /// Bytes of journal since the last checkpoint began.
    pub fn journal_bytes(&self) -> usize {
        self.journal_bytes
    }

    /// The last batch of the checkpoint that is being written.
    pub fn checkpoint_through(&self) -> Option<Sequence> {
        self.cutting
    }

    /// Sets the most bytes in flight to the disk at once, plus one batch.
    pub fn set_in_flight_bytes(&mut self, bytes: usize) {
        self.options.in_flight_bytes = bytes;
    }

    /// Closes the store cleanly. Outcomes that were not polled are lost, as after a crash; the
    /// changes are kept.
    pub fn close(mut self) -> Result<S, Error> {
        // The next owner continues from the last time that was returned.
        if self.stopped.is_none() && self.machine.now() > self.journaled_at {
            self.batch.begin(self.machine.now());
            self.store.append(self.epoch, self.appended + 1, self.batch.bytes())?;
        }
        self.store.close()?;
        Ok(self.store)
    }

    /// Returns the store without closing it, as a crash would.
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
        self.is_proven = false;
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
            self.is_changed = true;
            self.journal(&bytes)?;
        }
        let is_told = self.machine.now().since(self.journaled_at) < TOLD_AHEAD_MS;
        if self.batch.is_empty() && is_told {
            return Ok(());
        }
        self.is_changed |= !self.batch.is_empty();
        self.journal_decisions += self.batch.decisions();
        let batch = std::mem::take(&mut self.batch);
        let journaled = self.journal(batch.bytes());
        self.batch = batch;
        journaled
    }

    fn journal(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.store.append(self.epoch, self.appended + 1, bytes)?;
        self.appended += 1;
        self.is_proven = true;
        self.journaled_at = self.machine.now();
        self.journal_bytes += bytes.len();
        self.appended_bytes += bytes.len();
        Ok(())
    }

    /// Continues or finishes the checkpoint in progress, starts the next one when due, and evicts
    /// messages if there are too many.
    fn maintain(&mut self) -> Result<(), Error> {
        if self.machine.is_copying() {
            self.copy(self.copy_step())?;
        } else if let Some(through) = self.cutting
            && self.store.checkpointed()? >= through
        {
            self.machine.finish_checkpoint();
            self.cutting = None;
            self.stuck_bytes = 0;
            self.unwritable = None;
        }
        self.room = self.store.room();
        self.give_up()?;
        if self.cutting.is_none() {
            let mut usage = self.machine.usage();
            if usage.head_bytes() > self.heads_max().max(self.stuck_bytes) {
                self.evict(self.options.evict_step);
                usage = self.machine.usage();
            }
            // A checkpoint belongs to one epoch: it ends before the owner raises its epoch, which
            // it does not do while the disk is full.
            let is_next = self.room.is_low() || !self.machine.wants_epoch();
            // What can be evicted leaves first: it would stay until the checkpoint is written.
            let is_evicting = usage.head_bytes() > self.heads_max().max(self.stuck_bytes);
            let is_next = is_next && (!is_evicting || self.is_pressing(&usage));
            if self.is_due(usage) && is_next {
                // What earlier checkpoints left goes on in steps, so that nobody waits for all of
                // it; unless memory is full, for which everybody would wait.
                if self.machine.may_begin_checkpoint() || self.is_memory_full(&usage) {
                    self.cut()?;
                    self.copy(self.copy_step())?;
                } else {
                    self.machine.tidy_up();
                }
            }
        }
        Ok(())
    }
}

/// The number of commands decided together: as many as fit into a batch, and one more.
fn together<'a>(commands: impl Iterator<Item = &'a Command>, batch_bytes: usize) -> usize {
    let mut bytes = 0;
    let fit = commands.take(TOGETHER_MAX).take_while(|command| {
        let is_next = bytes <= batch_bytes;
        if let Command::Send(send) = command {
            bytes += send.content.size();
        }
        is_next
    });
    fit.count()
}
