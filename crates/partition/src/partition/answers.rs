//! Answers that wait until their batch is durable and the owner is confirmed.
//!
//! An append that becomes durable proves who the owner is. Where nothing was appended the store is
//! asked: an owner that was replaced without noticing would answer from a state that is over.

use hapax_core::{Effect, Outcome};
use hapax_store::{Question, Sequence, Store};

use super::{Answered, Error, Partition, Ticket};

#[derive(Debug)]
pub(super) struct Waiting {
    /// Leaves when this batch is durable and this question is answered.
    after: Sequence,
    question: Question,
    /// Its own bytes in the journal.
    bytes: usize,
    answer_bytes: usize,
    answered: Answered,
}

impl<S: Store> Partition<S> {
    /// The oldest answer, if its batch is durable and the owner is confirmed.
    pub(super) fn next_durable(&mut self) -> Result<Option<Answered>, Error> {
        let durable = self.store.durable()?;
        assert!(durable <= self.appended, "only what was appended becomes durable");
        if self.waiting.front().is_some_and(|front| front.question > self.confirmed) {
            self.confirmed = self.store.confirmed()?;
        }
        let confirmed = self.confirmed;
        let is_next = |front: &mut Waiting| front.after <= durable && front.question <= confirmed;
        let front = self.waiting.pop_front_if(is_next);
        self.waiting_bytes -= front.as_ref().map_or(0, |front| front.bytes);
        self.waiting_answer_bytes -= front.as_ref().map_or(0, |front| front.answer_bytes);
        Ok(front.map(|front| front.answered))
    }

    /// Keeps an answer until [`Self::next_durable`] returns it.
    pub(super) fn wait_for(
        &mut self,
        ticket: Ticket,
        outcomes: Vec<Outcome>,
        effects: Vec<Effect>,
        answer_bytes: usize,
        more: bool,
    ) -> Result<(), Error> {
        let answered = Answered { ticket, outcomes, effects, more };
        let question = if self.is_proven { 0 } else { self.store.confirm()? };
        // A batch without decisions also depends on the batches before it.
        let bytes = std::mem::take(&mut self.appended_bytes);
        self.waiting_bytes += bytes;
        self.waiting_answer_bytes += answer_bytes;
        let after = self.appended;
        self.waiting.push_back(Waiting { after, question, bytes, answer_bytes, answered });
        Ok(())
    }
}
