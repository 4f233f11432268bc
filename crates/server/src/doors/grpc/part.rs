//! The answers of one partition to one list of a stream. Unread answers hold results, and each
//! answer to a list of duplicates may have a large one. A stream holds at most [`RESULT_BYTES_MAX`]
//! of results; an answer whose result does not fit is a retryable error, and succeeds after the
//! answers before it were read.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use hapax_core::{Answer, Outcome, Settled};
use hapax_wire::Code;

use crate::engine::{Listed, Room};
use crate::problem::Problem;
use crate::service::{into_answer, into_settled};

/// Bytes of results that wait to be read by the caller of a stream, or one result.
pub(super) const RESULT_BYTES_MAX: usize = 4 * 1_024 * 1_024;

/// An answer that may have a result.
pub(super) trait WithResult {
    /// Converts the outcome of a writer.
    fn of(outcome: Outcome) -> Self;
    fn result_bytes(&self) -> usize;
    /// Encodes the answer to the message or settle of this number.
    fn put(self, frame: &mut Vec<u8>, number: u64);
    fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem);
}

pub(super) struct Part<T> {
    numbers: std::vec::IntoIter<u64>,
    outcomes: Result<VecDeque<Outcome>, Problem>,
    /// How many were encoded, and which of them have no result.
    next: usize,
    omitted: std::iter::Peekable<std::vec::IntoIter<usize>>,
    room: Arc<Room>,
    /// How many bytes each message or settle counts for.
    pub(super) each_bytes: usize,
    answers: PhantomData<T>,
}

impl<T: WithResult> Part<T> {
    pub(super) fn new(
        numbers: Vec<u64>,
        listed: Result<Listed, Problem>,
        room: Arc<Room>,
        each_bytes: usize,
    ) -> Self {
        let (outcomes, omitted) = match listed {
            Ok(Listed { outcomes, omitted }) => (Ok(outcomes.into()), omitted),
            Err(problem) => (Err(problem), Vec::new()),
        };
        let (numbers, omitted) = (numbers.into_iter(), omitted.into_iter().peekable());
        Self { numbers, outcomes, next: 0, omitted, room, each_bytes, answers: PhantomData }
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.as_slice().is_empty()
    }

    /// The list that the outcomes were in.
    pub(super) fn into_list(self) -> Vec<Outcome> {
        self.outcomes.map(Vec::from).unwrap_or_default()
    }

    /// Encodes answers until the frame is full.
    pub(super) fn put(&mut self, frame: &mut Vec<u8>, full: usize) {
        while frame.len() < full
            && let Some(number) = self.numbers.next()
        {
            let is_omitted = self.omitted.next_if_eq(&self.next).is_some();
            self.next += 1;
            match &mut self.outcomes {
                Ok(outcomes) => match outcomes.pop_front().map(T::of) {
                    Some(_) if is_omitted => T::put_refusal(frame, number, &no_room()),
                    Some(answer) => {
                        self.room.give_back(answer.result_bytes());
                        answer.put(frame, number);
                    }
                    None => unreachable!("everything that was asked has an answer"),
                },
                Err(problem) => T::put_refusal(frame, number, problem),
            }
        }
    }
}

impl WithResult for Answer {
    fn of(outcome: Outcome) -> Self {
        into_answer(outcome)
    }

    fn result_bytes(&self) -> usize {
        match self {
            Self::Done(finished) => finished.result.as_ref().map_or(0, |blob| blob.body.len()),
            _ => 0,
        }
    }

    fn put(self, frame: &mut Vec<u8>, number: u64) {
        super::put::answer(frame, number, self);
    }

    fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem) {
        super::send::put_refusal(frame, number, problem);
    }
}

impl WithResult for Settled {
    fn of(outcome: Outcome) -> Self {
        into_settled(outcome)
    }

    fn result_bytes(&self) -> usize {
        match self {
            Self::LeaseLost { result: Some(blob), .. } => blob.body.len(),
            _ => 0,
        }
    }

    fn put(self, frame: &mut Vec<u8>, number: u64) {
        super::put::settled(frame, number, self);
    }

    fn put_refusal(frame: &mut Vec<u8>, number: u64, problem: &Problem) {
        super::work::put_refusal(frame, number, problem);
    }
}

pub(super) fn no_room() -> Problem {
    let detail = "the message is done, but there is no memory for its result beside the other \
                  unread answers of this stream: send it again after reading them";
    Problem::new(Code::Unavailable, detail)
}
