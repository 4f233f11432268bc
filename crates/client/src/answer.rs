//! The answer to a send.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_wire::{self as wire, AnswerKind, Blob, Id, State, lean};

use crate::error::Error;

/// The answer to a send: what the broker knows about the key.
///
/// The first send of a key gets [`Outcome::Accepted`], every later one the current state of the
/// message. Both are a success: the broker has the message.
///
/// It differs from the wire type: it is made from a stream without an allocation, a refusal is an
/// error, and fields that belong to one outcome exist with that outcome only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The id of the first message under the key.
    pub id: Id,
    pub state: State,
    pub accepted_at: SystemTime,
    pub outcome: Outcome,
}

/// The state of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The key is new.
    Accepted,
    /// The message waits, or a worker has it.
    InFlight {
        attempts: u32,
        /// The time at which the lease or the delay ends.
        deadline: Option<SystemTime>,
    },
    Done {
        attempts: u32,
        result: Option<Blob>,
        finished_at: SystemTime,
        /// `None` if the key is remembered for ever.
        remembered_until: Option<SystemTime>,
    },
    /// Its attempts are used up, or an operator discarded or purged it. In the second case the
    /// state is [`State::Discarded`], and there is no message left to redrive.
    Dead { attempts: u32, error: String },
    /// Its effect had begun when its worker was lost; an operator has to resolve it.
    Parked { attempts: u32 },
}

impl Answer {
    /// Whether this send was the first of its key.
    pub fn is_new(&self) -> bool {
        self.outcome == Outcome::Accepted
    }

    /// Whether waiting for the end is over: done, dead or parked.
    pub fn has_ended(&self) -> bool {
        !matches!(self.outcome, Outcome::Accepted | Outcome::InFlight { .. })
    }

    /// Whether it was discarded or purged: it is dead, and there is no message left to redrive.
    pub fn is_discarded(&self) -> bool {
        self.state == State::Discarded
    }

    /// The result that the worker stored.
    pub fn result(&self) -> Option<&Blob> {
        match &self.outcome {
            Outcome::Done { result, .. } => result.as_ref(),
            _ => None,
        }
    }

    /// Most answers are a plain `accepted`.
    pub(crate) fn of_lean(answer: &lean::Answer<'_>) -> Result<Self, Error> {
        if answer.kind == AnswerKind::Accepted as i32 {
            return Ok(Self {
                id: Id::of(answer.id),
                state: State::of(answer.state),
                accepted_at: at(answer.accepted_at_ms),
                outcome: Outcome::Accepted,
            });
        }
        Self::of(answer.whole().map_err(Error::malformed)?)
    }

    /// The answer, or the refusal as an error.
    pub(crate) fn of(answer: wire::Answer) -> Result<Self, Error> {
        let kind = answer.kind();
        let outcome = answer.outcome.unwrap_or_default();
        let attempts = outcome.attempts;
        let told = match kind {
            AnswerKind::Accepted | AnswerKind::Fresh => Outcome::Accepted,
            AnswerKind::InFlight => {
                Outcome::InFlight { attempts, deadline: outcome.deadline_ms.map(at) }
            }
            AnswerKind::Done => Outcome::Done {
                attempts,
                result: outcome.result,
                finished_at: at(outcome.finished_at_ms),
                remembered_until: outcome.remembered_until_ms.map(at),
            },
            AnswerKind::Dead => Outcome::Dead { attempts, error: outcome.error },
            AnswerKind::Parked => Outcome::Parked { attempts },
            AnswerKind::Error | AnswerKind::Unspecified => {
                return Err(Error::of_problem(answer.problem.unwrap_or_default()));
            }
        };
        Ok(Self {
            id: Id::of(&answer.id),
            state: State::of(answer.state),
            accepted_at: at(answer.accepted_at_ms),
            outcome: told,
        })
    }
}

/// A time of the broker.
pub(crate) fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_a_success_and_a_conflict_is_not() {
        let done = wire::Answer {
            kind: AnswerKind::Done.into(),
            state: State::Done.into(),
            outcome: Some(wire::Outcome {
                attempts: 2,
                result: Some(Blob::new("ok")),
                ..Default::default()
            }),
            ..Default::default()
        };
        let answer = Answer::of(done).unwrap();
        assert!(answer.has_ended() && !answer.is_new());
        assert_eq!(answer.result(), Some(&Blob::new("ok")));

        let conflict = wire::Answer {
            kind: AnswerKind::Error.into(),
            problem: Some(wire::Problem { code: "conflict".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let error = Answer::of(conflict).unwrap_err();
        assert_eq!(error.code(), hapax_wire::Code::Conflict);
    }
}
