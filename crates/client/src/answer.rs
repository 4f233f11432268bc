//! What a send gets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hapax_wire::{lean, proto};

use crate::error::Error;
use crate::message::{Blob, Id};

/// What the broker knows about a key, told to whoever sends under it.
///
/// The first send of a key gets [`Outcome::Accepted`], every later one what became of the message
/// since. Both are a success: the operation is the broker's to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Of the first message under the key.
    pub id: Id,
    pub state: State,
    pub accepted_at: SystemTime,
    pub outcome: Outcome,
}

/// What became of the message so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is new.
    Accepted,
    /// It waits, or somebody works on it.
    InFlight {
        attempts: u32,
        /// When the lease ends or the delay is over.
        deadline: Option<SystemTime>,
    },
    Done {
        attempts: u32,
        result: Option<Blob>,
        finished_at: SystemTime,
        /// `None` where the key is remembered for ever.
        remembered_until: Option<SystemTime>,
    },
    /// It was given up: by its last attempt, or by an operator who discarded or purged it. Then
    /// the state is [`State::Discarded`], and there is no message left to redrive.
    Dead { attempts: u32, error: String },
    /// Its effect had begun when its worker was lost; somebody has to resolve it.
    Parked { attempts: u32 },
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum State {
    Ready,
    Delayed,
    Leased,
    Parked,
    Dead,
    Done,
    Discarded,
    /// One that this release does not know.
    Unknown,
}

impl Answer {
    /// Whether this send was the first of its key.
    pub fn is_new(&self) -> bool {
        self.outcome == Outcome::Accepted
    }

    /// Whether there is nothing more to wait for: done, dead or parked.
    pub fn has_ended(&self) -> bool {
        !matches!(self.outcome, Outcome::Accepted | Outcome::InFlight { .. })
    }

    /// Whether it was discarded or purged: it is dead, and there is no message left to redrive.
    pub fn is_discarded(&self) -> bool {
        self.state == State::Discarded
    }

    /// What the worker stored.
    pub fn result(&self) -> Option<&Blob> {
        match &self.outcome {
            Outcome::Done { result, .. } => result.as_ref(),
            _ => None,
        }
    }

    /// Most answers say that a message was accepted, and nothing more.
    pub(crate) fn of_lean(answer: &lean::Answer<'_>) -> Result<Self, Error> {
        if answer.kind == proto::AnswerKind::Accepted as i32 {
            return Ok(Self {
                id: id(answer.id),
                state: State::of_proto(answer.state),
                accepted_at: at(answer.accepted_at_ms),
                outcome: Outcome::Accepted,
            });
        }
        Self::of_proto(answer.whole().map_err(Error::malformed)?)
    }

    /// An answer, or the refusal in its place.
    pub(crate) fn of_proto(answer: proto::Answer) -> Result<Self, Error> {
        let kind = answer.kind();
        let outcome = answer.outcome.unwrap_or_default();
        let attempts = outcome.attempts;
        let told = match kind {
            proto::AnswerKind::Accepted | proto::AnswerKind::Fresh => Outcome::Accepted,
            proto::AnswerKind::InFlight => {
                Outcome::InFlight { attempts, deadline: outcome.deadline_ms.map(at) }
            }
            proto::AnswerKind::Done => Outcome::Done {
                attempts,
                result: outcome.result.map(Blob::of_proto),
                finished_at: at(outcome.finished_at_ms),
                remembered_until: outcome.remembered_until_ms.map(at),
            },
            proto::AnswerKind::Dead => Outcome::Dead { attempts, error: outcome.error },
            proto::AnswerKind::Parked => Outcome::Parked { attempts },
            proto::AnswerKind::Error | proto::AnswerKind::Unspecified => {
                return Err(Error::of_problem(answer.problem.unwrap_or_default()));
            }
        };
        Ok(Self {
            id: id(&answer.id),
            state: State::of_proto(answer.state),
            accepted_at: at(answer.accepted_at_ms),
            outcome: told,
        })
    }
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Leased => "leased",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Done => "done",
            Self::Discarded => "discarded",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) fn of_proto(state: i32) -> Self {
        match proto::State::try_from(state) {
            Ok(proto::State::Ready) => Self::Ready,
            Ok(proto::State::Delayed) => Self::Delayed,
            Ok(proto::State::Leased) => Self::Leased,
            Ok(proto::State::Parked) => Self::Parked,
            Ok(proto::State::Dead) => Self::Dead,
            Ok(proto::State::Done) => Self::Done,
            Ok(proto::State::Discarded) => Self::Discarded,
            Ok(proto::State::Unspecified) | Err(_) => Self::Unknown,
        }
    }
}

/// A time as the broker tells it.
pub(crate) fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn id(bytes: &[u8]) -> Id {
    Id(bytes.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_a_success_and_a_conflict_is_not() {
        let done = proto::Answer {
            kind: proto::AnswerKind::Done.into(),
            state: proto::State::Done.into(),
            outcome: Some(proto::Outcome {
                attempts: 2,
                result: Some(proto::Blob { body: "ok".into(), content_type: String::new() }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let answer = Answer::of_proto(done).unwrap();
        assert!(answer.has_ended() && !answer.is_new());
        assert_eq!(answer.result(), Some(&Blob::new("ok")));

        let conflict = proto::Answer {
            kind: proto::AnswerKind::Error.into(),
            problem: Some(proto::Problem { code: "conflict".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let error = Answer::of_proto(conflict).unwrap_err();
        assert_eq!(error.code(), hapax_wire::Code::Conflict);
    }
}
