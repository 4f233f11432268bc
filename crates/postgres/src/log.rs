//! The journal of a partition in the database: the [`Log`] contract.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hapax_store::journal::Wake;
use hapax_store::log::Log;
use hapax_store::{
    Corruption, EachBatch, Epoch, Error, LogEnd, Question, Sequence, Shortage, Stop,
};
use uuid::Uuid;

use crate::appender::{Appender, Ticket};
use crate::call::{Answer, Backend, Call, End, Owner, Part, Position, Row, chain, unexpected};
use crate::error::Failure;
use crate::lane::Lane;
use crate::ownership::Ownership;
use crate::steps::Steps;
use crate::witness::{Witness, set_back};

/// The largest batch.
const BATCH_BYTES_MAX: u32 = 32 << 20;
/// Bytes of batches that one page of [`Log::read`] has, or one batch.
const PAGE_BYTES: u64 = 8 << 20;
/// Rows that one statement of a truncation deletes.
const TRUNCATE_ROWS: u64 = 64;

/// What a log is made of.
pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) cluster: Uuid,
    pub(crate) lineage: Uuid,
    pub(crate) partition: u16,
    pub(crate) node: Uuid,
    pub(crate) label: String,
    pub(crate) witness: Arc<Witness>,
    pub(crate) steps: Arc<Steps>,
    pub(crate) wake: Wake,
    /// How often a claim tries to reach the database, and how long a close waits for it.
    pub(crate) tries: u32,
    pub(crate) close_wait: Duration,
}

/// The journal of one partition. It is claimed before the archive is read, by
/// [`PostgresLog::claim_first`].
pub struct PostgresLog {
    parts: Parts,
    shared: Arc<Ownership>,
    ticket: OnceLock<Ticket>,
    /// The epoch of the first claim, until [`Log::claim`] has returned it.
    claimed: Mutex<Option<Epoch>>,
    /// Whether the owner before gave the partition up.
    closed: AtomicBool,
    /// Rows before this one are deleted.
    truncated: Mutex<Option<Sequence>>,
    /// What a read left of its last page, for the read that goes on: the first was used.
    ahead: Mutex<VecDeque<Row>>,
}

impl PostgresLog {
    pub(crate) fn new(parts: Parts) -> Self {
        let witness = Arc::clone(&parts.witness);
        let shared = Arc::new(Ownership::new(Arc::clone(&parts.wake), witness));
        Self {
            parts,
            shared,
            ticket: OnceLock::new(),
            claimed: Mutex::new(None),
            closed: AtomicBool::new(false),
            truncated: Mutex::new(None),
            ahead: Mutex::default(),
        }
    }

    pub(crate) fn ownership(&self) -> &Arc<Ownership> {
        &self.shared
    }

    /// Takes the partition from whoever has it, if its epoch is `seen` or that is none. The first
    /// act of an owner: what is read after it cannot change any more.
    pub(crate) fn claim_first(&self, seen: Option<Epoch>) -> Result<(), Error> {
        let claim = self.parts.backend.draw().map_err(Error::Stopped)?;
        let mut tries = self.parts.tries;
        let mut was_closed = None;
        let epoch = loop {
            // Compared is what was known before that was asked: heartbeats go on meanwhile.
            let had = self.shared.witness.last();
            let end = self.end()?;
            if end.claim == Some(claim) {
                break end.epoch; // An earlier try, whose answer was lost.
            }
            was_closed.get_or_insert(end.claim.is_none());
            if let Some(seen) = seen.filter(|seen| *seen != end.epoch) {
                return Err(Error::Fenced { held: seen, newest: end.epoch });
            }
            self.check_witness(had, &end)?;
            let (partition, node) = (self.parts.partition, self.parts.node);
            let call = Call::Claim { partition, seen: end.epoch, least: 0, claim, node };
            match self.parts.backend.call(call) {
                Ok(Answer::Claimed(Some(epoch))) => {
                    self.shared.prove();
                    break epoch;
                }
                Ok(_) => was_closed = None, // Somebody else was faster.
                Err(failure) => self.again(&mut tries, &failure)?,
            }
        };
        self.closed.store(was_closed == Some(true), Ordering::Release);
        *lock(&self.shared.owner) = Some(Owner { partition: self.parts.partition, epoch, claim });
        *lock(&self.claimed) = Some(epoch);
        Ok(())
    }

    /// Whether one may try again.
    fn again(&self, tries: &mut u32, failure: &Failure) -> Result<(), Error> {
        self.shared.stop.check()?;
        if matches!(failure, Failure::Damaged(_)) {
            return Err(self.corrupt(0, &failure.to_string()));
        }
        *tries = tries.saturating_sub(1);
        if *tries == 0 {
            let (file, why) = (self.parts.label.clone(), failure.to_string());
            return Err(Error::Unreachable { file, why });
        }
        self.parts.backend.pause();
        Ok(())
    }

    /// Executes a call that may be executed twice, a few times if need be.
    fn ask(&self, call: &Call) -> Result<Answer, Error> {
        self.ask_for(call, self.parts.tries)
    }

    fn ask_for(&self, call: &Call, mut tries: u32) -> Result<Answer, Error> {
        loop {
            match self.parts.backend.call(call.clone()) {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.again(&mut tries, &failure)?,
            }
        }
    }

    fn end(&self) -> Result<End, Error> {
        self.end_for(self.parts.tries)
    }

    fn end_for(&self, tries: u32) -> Result<End, Error> {
        let asked = self.ask_for(&Call::Ends(vec![self.parts.partition]), tries)?;
        let Answer::Ends(ends) = asked else {
            return Err(self.corrupt(0, "its end is missing"));
        };
        if (ends.cluster, ends.lineage) != (self.parts.cluster, self.parts.lineage) {
            return Err(Error::Stopped(format!(
                "{} is another database than the one this node started with, or a loss was \
                 accepted meanwhile: start the node again",
                self.parts.label
            )));
        }
        let end = ends.ends.into_iter().find(|end| end.partition == self.parts.partition);
        end.ok_or_else(|| self.corrupt(0, "its row is missing"))
    }

    /// Refuses a database that ends before what this machine had seen of it.
    fn check_witness(&self, had: Option<LogEnd>, end: &End) -> Result<(), Error> {
        let file = self.parts.label.clone();
        if let Some(had) = self.shared.witness.undone_by(end) {
            return Err(Error::Regressed { file, had, found: end.last });
        }
        let Some(had) = had else { return Ok(()) };
        let partition = self.parts.partition;
        let call = Call::Read { partition, from: had.sequence, bytes: 1 };
        let Answer::Rows(rows) = self.ask(&call)? else { return Ok(()) };
        let kept = rows.first().map(|row| {
            let Position { sequence, chain } = row.at;
            LogEnd { epoch: row.epoch, sequence, chain }
        });
        match set_back(&had, end, kept) {
            Some(found) => Err(Error::Regressed { file, had, found }),
            None => Ok(()),
        }
    }

    /// Proves what was read after the claim: a question that is committed cleanly is behind all of
    /// it in the database's own log.
    fn prove(&self, owner: Owner, after: Position) -> Result<(), Error> {
        let part = Part { owner, after, batches: Vec::new() };
        let Answer::Appended(answers) = self.ask(&Call::Append(vec![part]))? else {
            return Err(self.corrupt(after.sequence, "its owner is unknown"));
        };
        match answers.first() {
            Some(answer) if answer.owned && answer.unsafe_setting.is_some() => {
                let setting = format!("{} is off", answer.unsafe_setting.unwrap_or_default());
                Err(Error::Unsafe { file: self.parts.label.clone(), setting })
            }
            Some(answer) if answer.owned && answer.follows => Ok(()),
            _ => Err(Error::Fenced { held: owner.epoch, newest: self.end()?.epoch }),
        }
    }

    /// Claims again: the batches of the claim before are durable first, so that none is refused.
    fn claim_again(&self, ticket: Ticket, least: Epoch) -> Result<Epoch, Error> {
        let owner = self.shared.owner()?;
        self.drain()?;
        self.parts.lane.with(|appender| appender.hold(ticket));
        let quiet = |appender: &Appender| appender.is_quiet(ticket);
        if !self.parts.lane.wait(self.parts.close_wait, quiet) {
            self.parts.lane.with(|appender| appender.go_on(ticket, owner));
            return Err(self.unreachable());
        }
        let claim = self.parts.backend.draw().map_err(Error::Stopped)?;
        let _claiming = lock(&self.shared.claiming);
        let claimed = self.replace_claim(owner, claim, least);
        let next = claimed.as_ref().map_or(owner, |epoch| Owner { epoch: *epoch, claim, ..owner });
        *lock(&self.shared.owner) = Some(next);
        self.parts.lane.with(|appender| appender.go_on(ticket, next));
        claimed
    }

    /// Insists, however long the database is away: a claim may be on its way there, and without it
    /// this owner would be fenced by its own.
    fn replace_claim(&self, owner: Owner, claim: Uuid, least: Epoch) -> Result<Epoch, Error> {
        let (mut tries, next) = (u32::MAX, Owner { claim, ..owner });
        loop {
            let end = self.end_for(u32::MAX)?;
            if end.claim == Some(claim) {
                // What is visible may be lost with its server: a later commit proves it.
                match self.prove(Owner { epoch: end.epoch, ..next }, end.position()) {
                    Ok(()) => return Ok(end.epoch),
                    Err(Error::Unreachable { .. } | Error::Fenced { .. }) => continue,
                    Err(error) => return Err(self.shared.fail(error)),
                }
            }
            if end.claim != Some(owner.claim) || end.epoch != owner.epoch {
                let replaced = self.shared.replaced(&self.parts.label, owner, &end);
                return Err(self.shared.fail(replaced));
            }
            let (partition, node) = (owner.partition, self.parts.node);
            let call = Call::Claim { partition, seen: owner.epoch, least, claim, node };
            match self.parts.backend.call(call) {
                Ok(Answer::Claimed(Some(epoch))) => return Ok(epoch),
                Ok(_) => {}
                Err(failure) => self.again(&mut tries, &failure)?,
            }
        }
    }

    fn read_page(&self, from: Sequence) -> Result<VecDeque<Row>, Error> {
        let ahead = std::mem::take(&mut *lock(&self.ahead));
        if ahead.front().is_some_and(|row| row.at.sequence == from) {
            return Ok(ahead);
        }
        let partition = self.parts.partition;
        let begun = Instant::now();
        match self.ask(&Call::Read { partition, from, bytes: PAGE_BYTES })? {
            Answer::Rows(rows) => {
                let bytes = rows.iter().map(|row| row.bytes.len() as u64).sum();
                self.parts.steps.tail.note(begun.elapsed(), bytes);
                Ok(rows.into())
            }
            other => Err(Error::Stopped(unexpected(&other).to_string())),
        }
    }

    /// Why the journal does not have the first batch that was asked for.
    fn missing_first(&self, from: Sequence) -> Result<Error, Error> {
        let partition = self.parts.partition;
        Ok(match self.ask(&Call::Manifest { partition })? {
            // Released already: the rows have it.
            Answer::Manifest { through, .. } if from <= through => {
                Error::OutOfOrder { got: from, last: through }
            }
            _ => self.missing(from),
        })
    }

    /// Why a batch is missing: who was replaced while it read has seen its successor truncate.
    fn missing(&self, sequence: Sequence) -> Error {
        let owner = self.shared.owner();
        match owner.and_then(|owner| Ok((owner, self.end()?))) {
            Ok((owner, end)) if end.claim != Some(owner.claim) => {
                self.shared.replaced(&self.parts.label, owner, &end)
            }
            Ok(_) => self.corrupt(sequence, "a batch is missing"),
            Err(error) => error,
        }
    }

    fn corrupt(&self, sequence: Sequence, what: &str) -> Error {
        let file = format!("the journal of {}", self.parts.label);
        Error::Corrupt(Corruption { file, offset: sequence, what: what.to_owned() })
    }

    fn unreachable(&self) -> Error {
        let trouble = self.parts.lane.trouble();
        let why =
            trouble.map_or("it does not answer".to_owned(), |(failure, _)| failure.to_string());
        Error::Unreachable { file: self.parts.label.clone(), why }
    }
}

impl Log for PostgresLog {
    fn claim(&self, least: Epoch) -> Result<Epoch, Error> {
        self.shared.stop.check()?;
        if let Some(epoch) = lock(&self.claimed).take() {
            // The manifest is a successor's already: this owner was slow.
            return match epoch >= least {
                true => Ok(epoch),
                false => Err(Error::Fenced { held: epoch, newest: least - 1 }),
            };
        }
        match self.ticket.get() {
            Some(ticket) => self.claim_again(*ticket, least),
            None => Err(Error::Stopped("the log was not claimed".to_owned())),
        }
    }

    fn begin(&self, _: Epoch) -> Result<(Sequence, bool), Error> {
        let owner = self.shared.owner()?;
        if let Some(ticket) = self.ticket.get() {
            return Ok((self.durable_of(*ticket)?.sequence, false));
        }
        let end = self.end()?;
        if end.claim != Some(owner.claim) {
            return Err(Error::Fenced { held: owner.epoch, newest: end.epoch });
        }
        self.prove(owner, end.position())?;
        self.shared.prove();
        let watcher = Arc::clone(&self.shared);
        let label = self.parts.label.clone();
        let ticket = self.parts.lane.add(label, owner, end.last, watcher);
        let was_set = self.ticket.set(ticket).is_ok();
        assert!(was_set, "a log begins once");
        // An owner that did nothing yet was here, too.
        let last = LogEnd { epoch: owner.epoch, ..end.last };
        self.shared.witness.note(last);
        self.shared.witness.write();
        Ok((end.last.sequence, self.closed.load(Ordering::Acquire)))
    }

    fn read(&self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        self.shared.stop.check()?;
        let last = self.durable()?;
        let mut before: Option<Position> = None;
        let mut next = from.saturating_sub(1);
        while before.is_none_or(|before| before.sequence < last) {
            let mut rows = self.read_page(next)?;
            if rows.is_empty() {
                break;
            }
            while let Some(row) = rows.pop_front() {
                let Position { sequence, chain: found } = row.at;
                if sequence > last {
                    return match before {
                        None if from <= last => Err(self.missing(from)),
                        _ => Ok(()),
                    };
                }
                if let Some(before) = before {
                    if sequence != before.sequence + 1 {
                        return Err(self.missing(before.sequence + 1));
                    }
                    let (cluster, number) = (self.parts.cluster, self.parts.partition);
                    if chain(cluster, number, sequence, before.chain, &row.bytes) != found {
                        return Err(self.corrupt(sequence, "a batch fails its checksum"));
                    }
                } else if sequence > from {
                    return Err(self.missing_first(from)?);
                }
                before = Some(row.at);
                next = sequence + 1;
                if sequence >= from && sequence > 0 && !each(sequence, &row.bytes)? {
                    if !rows.is_empty() {
                        rows.push_front(row);
                        *lock(&self.ahead) = rows;
                    }
                    return Ok(());
                }
            }
        }
        match before.map_or(0, |before| before.sequence) {
            reached if reached < last && from <= last => Err(self.missing(reached + 1)),
            _ => Ok(()),
        }
    }

    fn append(&self, _: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        self.shared.stop.check()?;
        if batch.len() > BATCH_BYTES_MAX as usize {
            let (bytes, max) = (batch.len() as u64, u64::from(BATCH_BYTES_MAX));
            return Err(Error::TooLarge { bytes, max });
        }
        match self.ticket.get() {
            Some(ticket) => {
                self.parts.lane.with(|appender| appender.append(*ticket, sequence, batch));
                Ok(())
            }
            None => Err(Error::Stopped("the log was not begun".to_owned())),
        }
    }

    fn durable(&self) -> Result<Sequence, Error> {
        self.shared.stop.check()?;
        match self.ticket.get() {
            Some(ticket) => self.durable_of(*ticket).map(|last| last.sequence),
            None => Ok(0),
        }
    }

    fn confirm(&self) -> Result<Question, Error> {
        self.shared.stop.check()?;
        let confirm = |ticket: &Ticket| self.parts.lane.with(|it| it.confirm(*ticket));
        Ok(self.ticket.get().map_or(0, confirm))
    }

    fn confirmed(&self) -> Result<Question, Error> {
        self.shared.stop.check()?;
        let confirmed = |ticket: &Ticket| self.parts.lane.read(|it| it.confirmed(*ticket));
        Ok(self.ticket.get().map_or(0, confirmed))
    }

    fn synced(&self) -> u64 {
        self.durable().unwrap_or(0)
    }

    /// In steps, on the thread that wrote the checkpoint. What fails here is deleted next time.
    fn release(&self, through: Sequence) {
        let partition = self.parts.partition;
        let mut truncated = lock(&self.truncated);
        let mut from = match *truncated {
            Some(from) => from,
            None => match self.parts.backend.call(Call::First { partition }) {
                Ok(Answer::First(Some(first))) => first,
                _ => return,
            },
        };
        while from < through && !self.shared.stop.is_thrown() {
            let to = through.min(from + TRUNCATE_ROWS);
            if self.parts.backend.call(Call::Truncate { partition, from, to }).is_err() {
                return;
            }
            from = to;
            *truncated = Some(from);
        }
    }

    fn is_low(&self) -> bool {
        self.parts.lane.read(Appender::is_full)
    }

    fn shortage(&self) -> Shortage {
        Shortage::default()
    }

    fn make_room(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn batch_bytes_max(&self) -> u32 {
        BATCH_BYTES_MAX
    }

    fn drain(&self) -> Result<(), Error> {
        let Some(ticket) = self.ticket.get() else { return self.shared.stop.check() };
        let idle = |it: &Appender| it.is_idle(*ticket) || self.shared.stop.is_thrown();
        let waited = self.parts.lane.wait(self.parts.close_wait, idle);
        self.shared.stop.check()?;
        match self.parts.lane.read(|it| it.ended(*ticket)) {
            Some(ended) => Err(self.shared.fail(ended)),
            None if waited => Ok(()),
            None => Err(self.unreachable()),
        }
    }

    fn close(&self, _: Epoch) -> Result<(), Error> {
        self.drain()?;
        let owner = self.shared.owner()?;
        self.shared.witness.write();
        self.ask(&Call::Release { owner, intended: None }).map(drop)
    }

    fn stop(&self) -> &Stop {
        &self.shared.stop
    }

    fn halt(&self, cause: &str) {
        self.shared.stop.fail(cause);
        self.forget();
    }

    fn interrupt(&self) {
        (self.shared.wake)();
    }
}

impl PostgresLog {
    fn durable_of(&self, ticket: Ticket) -> Result<LogEnd, Error> {
        let gone = || Error::Stopped("it was closed".to_owned());
        self.parts.lane.read(|appender| appender.durable(ticket)).ok_or_else(gone)
    }

    /// Whether the owner was told of the end of its appends, if they ended.
    pub fn is_told(&self) -> bool {
        let has_ended = |ticket: &Ticket| self.parts.lane.read(|it| it.ended(*ticket).is_some());
        self.shared.stop.is_thrown() || !self.ticket.get().is_some_and(has_ended)
    }

    /// What is on its way runs to its end; nothing more is sent.
    fn forget(&self) {
        if let Some(ticket) = self.ticket.get() {
            self.parts.lane.remove(*ticket);
        }
    }
}

impl Drop for PostgresLog {
    fn drop(&mut self) {
        self.forget();
        // Whatever it ended by: the next claim of this process has to know how far it was.
        self.shared.witness.write();
    }
}

impl std::fmt::Debug for PostgresLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresLog").field("of", &self.parts.label).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
