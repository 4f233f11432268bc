//! Appends the batches of several partitions, one statement at a time: a state machine without
//! I/O, a clock or a thread.
//!
//! ```text
//!  idle ──next──▶ appending ──all rows back──▶ idle                 durable, questions answered
//!                     │ fewer rows, an error, a warning, no reply
//!                     ▼
//!                  looking ── another claim ──▶ fenced
//!                     │       the batch before is the last ──▶ the same bytes are sent again
//!                     │       one of ours is the last ──▶ found: durable after a later append or
//!                     │                                   question that finds it there and commits
//!                     └────── anything else ──▶ regressed
//! ```
//!
//! While a statement is on its way everything appended gathers; the next one takes all of it. A
//! look-up proves nothing by itself: what is visible need not be replicated, so what it finds
//! counts after a later clean commit, which is behind it in the same log of the database.
//!
//! Invariants:
//! - one statement at a time: a journal ends before it, after it, or at a batch of it;
//! - `clean` moves only by an answer without a warning, with every row;
//! - batches are kept until they are durable, whatever happens to the database.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hapax_store::{Error, LogEnd, Question, Sequence};
use uuid::Uuid;

use crate::call::{Answer, Appended, Batch, Call, End, Ends, Owner, Part, Position, chain};
use crate::error::Failure;

/// A statement takes at most so many bytes of batches, or one batch.
const CALL_BYTES_MAX: usize = 4 << 20;

/// Names an owner at an appender.
pub type Ticket = u64;

/// The appender of some partitions of a node.
#[derive(Debug)]
pub struct Appender {
    cluster: Uuid,
    lineage: Uuid,
    tails: BTreeMap<Ticket, Tail>,
    next_ticket: Ticket,
    /// The next statement begins after this one, so that all get their turn.
    turn: Ticket,
    doing: Doing,
    must_look: bool,
    /// Why nothing is acknowledged.
    trouble: Option<Failure>,
}

#[derive(Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Appending(Vec<Sent>),
    /// For these owners, with the claims that they had: who claims again meanwhile is not judged.
    Looking(Vec<(Ticket, Uuid)>),
}

/// A part that is on its way.
#[derive(Debug, PartialEq, Eq)]
struct Sent {
    ticket: Ticket,
    batches: usize,
    question: Question,
}

#[derive(Debug)]
struct Tail {
    label: String,
    owner: Owner,
    /// The last durable batch.
    clean: LogEnd,
    /// Not durable yet, in order.
    pending: VecDeque<Batch>,
    /// How many of these a look-up found in the journal.
    found: usize,
    asked: Question,
    answered: Question,
    is_held: bool,
    end: Option<Ended>,
}

/// Why an owner's appends ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Fenced { newest: u32 },
    Regressed { found: LogEnd },
    Unsafe(&'static str),
}

impl Appender {
    pub fn new(cluster: Uuid, lineage: Uuid) -> Self {
        Self {
            cluster,
            lineage,
            tails: BTreeMap::new(),
            next_ticket: 1,
            turn: 0,
            doing: Doing::Nothing,
            must_look: false,
            trouble: None,
        }
    }

    /// Begins to append for an owner, after the last batch of the journal.
    pub fn add(&mut self, label: String, owner: Owner, last: LogEnd) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let tail = Tail {
            label,
            owner,
            clean: last,
            pending: VecDeque::new(),
            found: 0,
            asked: 0,
            answered: 0,
            is_held: false,
            end: None,
        };
        self.tails.insert(ticket, tail);
        ticket
    }

    /// Forgets an owner. A statement on its way runs to its end all the same.
    pub fn remove(&mut self, ticket: Ticket) {
        self.tails.remove(&ticket);
    }

    /// Queues a batch.
    pub fn append(&mut self, ticket: Ticket, sequence: Sequence, bytes: &[u8]) {
        let cluster = self.cluster;
        let Some(tail) = self.tails.get_mut(&ticket) else { return };
        let last = tail.pending.back().map_or(position(&tail.clean), |batch| batch.at);
        assert_eq!(sequence, last.sequence + 1, "the store keeps batches in order");
        let chain = chain(cluster, tail.owner.partition, sequence, last.chain, bytes);
        let at = Position { sequence, chain };
        tail.pending.push_back(Batch { at, bytes: Arc::from(bytes) });
    }

    /// Asks whether the owner is still the owner.
    pub fn confirm(&mut self, ticket: Ticket) -> Question {
        let Some(tail) = self.tails.get_mut(&ticket) else { return 0 };
        tail.asked += 1;
        tail.asked
    }

    /// The last durable batch.
    pub fn durable(&self, ticket: Ticket) -> Option<LogEnd> {
        self.tails.get(&ticket).map(|tail| tail.clean)
    }

    /// The last answered question.
    pub fn confirmed(&self, ticket: Ticket) -> Question {
        self.tails.get(&ticket).map_or(0, |tail| tail.answered)
    }

    /// Whether nothing waits: every batch is durable and every question answered.
    pub fn is_idle(&self, ticket: Ticket) -> bool {
        let idle = |tail: &Tail| tail.pending.is_empty() && tail.asked == tail.answered;
        self.tails.get(&ticket).is_none_or(|tail| idle(tail) || tail.end.is_some())
    }

    /// Whether there is nothing to send and nothing on its way.
    pub fn is_at_rest(&self) -> bool {
        let wants = self.tails.values().any(Tail::wants);
        self.doing == Doing::Nothing && !self.must_look && !wants
    }

    /// Why the owner's appends ended, if they did.
    pub fn ended(&self, ticket: Ticket) -> Option<Error> {
        let tail = self.tails.get(&ticket)?;
        let file = tail.label.clone();
        Some(match tail.end.clone()? {
            Ended::Fenced { newest } => Error::Fenced { held: tail.owner.epoch, newest },
            Ended::Regressed { found } => Error::Regressed { file, had: tail.clean, found },
            Ended::Unsafe(setting) => Error::Unsafe { file, setting: format!("{setting} is off") },
        })
    }

    pub fn trouble(&self) -> Option<&Failure> {
        self.trouble.as_ref()
    }

    /// Whether the database has no room for batches.
    pub fn is_full(&self) -> bool {
        matches!(self.trouble, Some(Failure::Full(_)))
    }

    /// Sends nothing for the owner until [`Self::go_on`].
    pub fn hold(&mut self, ticket: Ticket) {
        if let Some(tail) = self.tails.get_mut(&ticket) {
            tail.is_held = true;
        }
    }

    /// Whether nothing of a held owner is on its way or unknown.
    pub fn is_quiet(&self, ticket: Ticket) -> bool {
        let on_its_way = match &self.doing {
            Doing::Nothing => false,
            Doing::Appending(sent) => sent.iter().any(|sent| sent.ticket == ticket),
            Doing::Looking(_) => true,
        };
        !on_its_way && !self.must_look
    }

    /// Goes on after a hold, as this owner.
    pub fn go_on(&mut self, ticket: Ticket, owner: Owner) {
        if let Some(tail) = self.tails.get_mut(&ticket) {
            tail.owner = owner;
            tail.is_held = false;
        }
    }

    /// Asks how far everything is before anything else, so that an idle owner learns of a
    /// successor.
    pub fn look(&mut self) {
        self.must_look = self.tails.values().any(|tail| tail.end.is_none());
    }

    /// The next statement; `None` while one is on its way, or if there is nothing to do.
    pub fn next_call(&mut self) -> Option<Call> {
        if self.doing != Doing::Nothing {
            return None;
        }
        if self.must_look {
            let living = self.tails.iter().filter(|(_, tail)| tail.end.is_none());
            let mut partitions: Vec<u16> =
                living.clone().map(|(_, tail)| tail.owner.partition).collect();
            let judged = living.filter(|(_, tail)| !tail.is_held);
            let judged = judged.map(|(ticket, tail)| (*ticket, tail.owner.claim)).collect();
            partitions.sort_unstable();
            partitions.dedup();
            self.must_look = false;
            if !partitions.is_empty() {
                self.doing = Doing::Looking(judged);
                return Some(Call::Ends(partitions));
            }
        }
        let (parts, sent) = self.gather();
        if parts.is_empty() {
            return None;
        }
        self.turn = sent.last().map_or(0, |sent| sent.ticket);
        self.doing = Doing::Appending(sent);
        Some(Call::Append(parts))
    }

    fn gather(&self) -> (Vec<Part>, Vec<Sent>) {
        let (mut parts, mut all_sent, mut bytes) = (Vec::new(), Vec::new(), 0);
        let from_turn = self.tails.range(self.turn + 1..).chain(self.tails.range(..=self.turn));
        for (ticket, tail) in from_turn.filter(|(_, tail)| tail.wants()) {
            let mut batches = Vec::new();
            for batch in tail.pending.iter().skip(tail.found) {
                if bytes > 0 && bytes + batch.bytes.len() > CALL_BYTES_MAX {
                    break;
                }
                bytes += batch.bytes.len().max(1);
                batches.push(batch.clone());
            }
            let is_all = tail.found + batches.len() == tail.pending.len();
            if batches.is_empty() && !is_all && tail.found == 0 {
                break; // No room for it in this statement.
            }
            let sent = Sent { ticket: *ticket, batches: batches.len(), question: tail.asked };
            all_sent.push(sent);
            parts.push(Part { owner: tail.owner, after: tail.after(), batches });
        }
        (parts, all_sent)
    }

    /// Takes the outcome of the statement. Returns who has something new to see.
    pub fn answered(&mut self, outcome: Result<Answer, Failure>) -> Vec<Ticket> {
        let doing = std::mem::replace(&mut self.doing, Doing::Nothing);
        match (doing, outcome) {
            (Doing::Appending(sent), Ok(Answer::Appended(answers)))
                if sent.len() == answers.len() =>
            {
                self.trouble = None;
                sent.iter().zip(&answers).filter_map(|(sent, it)| self.appended(sent, it)).collect()
            }
            (Doing::Looking(judged), Ok(Answer::Ends(ends))) => self.looked(&judged, &ends),
            (Doing::Nothing, _) => Vec::new(), // A reply that came twice.
            (_, outcome) => {
                let was_full = self.is_full();
                self.trouble =
                    Some(outcome.err().unwrap_or_else(|| {
                        Failure::Refused("it answered something else".to_owned())
                    }));
                self.must_look = true;
                match was_full == self.is_full() {
                    true => Vec::new(),
                    false => self.tails.keys().copied().collect(),
                }
            }
        }
    }

    fn appended(&mut self, sent: &Sent, appended: &Appended) -> Option<Ticket> {
        let tail = self.tails.get_mut(&sent.ticket)?;
        if let (true, Some(setting)) = (appended.owned, appended.unsafe_setting) {
            tail.end = Some(Ended::Unsafe(setting));
            return Some(sent.ticket);
        }
        let is_whole = appended.inserted.len() == sent.batches;
        if !(appended.owned && appended.follows && is_whole) {
            self.must_look = true;
            return None;
        }
        for _ in 0..tail.found + sent.batches {
            let batch = tail.pending.pop_front();
            #[expect(clippy::expect_used, reason = "what was sent stays pending until now")]
            let at = batch.expect("what was sent is pending").at;
            tail.clean = LogEnd { epoch: tail.owner.epoch, sequence: at.sequence, chain: at.chain };
        }
        tail.found = 0;
        tail.answered = tail.answered.max(sent.question);
        Some(sent.ticket)
    }

    fn looked(&mut self, judged: &[(Ticket, Uuid)], ends: &Ends) -> Vec<Ticket> {
        let is_same = ends.cluster == self.cluster && ends.lineage == self.lineage;
        // A loss was accepted, which fenced every owner: that is no loss for this one to report.
        let is_accepted =
            |end: &End, tail: &Tail| ends.cluster == self.cluster && end.epoch > tail.owner.epoch;
        let mut changed = Vec::new();
        // Who is held may be claiming again: the database has its next claim before this has.
        let living = |ticket: &Ticket, tail: &Tail| {
            let is_judged = judged.contains(&(*ticket, tail.owner.claim));
            is_judged && tail.end.is_none() && !tail.is_held
        };
        for (ticket, tail) in self.tails.iter_mut().filter(|(ticket, tail)| living(ticket, tail)) {
            let end = ends.ends.iter().find(|end| end.partition == tail.owner.partition);
            let judged = end.filter(|end| is_same || is_accepted(end, tail));
            match judged.map(|end| tail.judge(end)) {
                Some(Ok(found)) => tail.found = found,
                Some(Err(ended)) => {
                    tail.end = Some(ended);
                    changed.push(*ticket);
                }
                None => {
                    let nothing = LogEnd { epoch: 0, sequence: 0, chain: 0 };
                    let found = end.map_or(nothing, |end| end.last);
                    tail.end = Some(Ended::Regressed { found });
                    changed.push(*ticket);
                }
            }
        }
        changed
    }
}

impl Tail {
    fn wants(&self) -> bool {
        let waits = !self.pending.is_empty() || self.asked > self.answered;
        waits && !self.is_held && self.end.is_none()
    }

    /// What the next batch follows.
    fn after(&self) -> Position {
        let found = self.found.checked_sub(1).and_then(|at| self.pending.get(at));
        found.map_or(position(&self.clean), |batch| batch.at)
    }

    /// How many of the pending batches are in the journal, given its end.
    fn judge(&self, end: &End) -> Result<usize, Ended> {
        if end.claim != Some(self.owner.claim) || end.epoch != self.owner.epoch {
            // Epochs only grow. One that is free at this owner's was given up by itself.
            let is_later = end.epoch > self.owner.epoch;
            let is_given_up = end.epoch == self.owner.epoch && end.claim.is_none();
            return Err(match is_later || is_given_up {
                true => Ended::Fenced { newest: end.epoch },
                // The database forgot this owner.
                false => Ended::Regressed { found: end.last },
            });
        }
        if end.position() == position(&self.clean) {
            return Ok(0);
        }
        let at = self.pending.iter().position(|batch| batch.at == end.position());
        at.map(|at| at + 1).ok_or(Ended::Regressed { found: end.last })
    }
}

fn position(end: &LogEnd) -> Position {
    Position { sequence: end.sequence, chain: end.chain }
}
