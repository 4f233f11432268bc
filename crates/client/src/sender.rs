//! Pipelined sends, as fast as the broker accepts them.
//!
//! A [`Sender`] is driven by one task: push messages while there is room in the window, then wait
//! for answers, which come by the batch. There is no future per message. When the connection
//! breaks, what is unanswered is sent again under its keys.

use bytes::Bytes;
use hapax_wire::{lean, proto};
use prost::Message as _;

use crate::answer::Answer;
use crate::client::Client;
use crate::error::Error;
use crate::message::Message;
use crate::retry::Retry;
use crate::stream::{Pipe, Protocol};

/// The default window: messages without an answer.
const WINDOW: usize = 4_096;
/// The most bytes kept for sending them again.
const UNANSWERED_BYTES_MAX: usize = 16 * 1_024 * 1_024;
/// About the most answers returned at once.
const ANSWERS_MAX: usize = 8_192;

/// A pipelined sender to one queue: see [`Queue::sender`](crate::Queue::sender).
///
/// ```no_run
/// # async fn example() -> Result<(), hapax_client::Error> {
/// use hapax_client::{Client, Message};
///
/// let mut sender = Client::connect("http://127.0.0.1:4747")?.queue("orders").sender();
/// let mut answers = Vec::new();
/// let (mut next, mut confirmed) = (0, 0);
/// while confirmed < 1_000_000 {
///     while next < 1_000_000 && sender.room() > 0 {
///         sender.push(Message::new("body").key(format!("order-{next}")), next);
///         next += 1;
///     }
///     sender.answers(&mut answers).await?;
///     for answered in answers.drain(..) {
///         answered.answer?;
///         confirmed += 1;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sender {
    queue: String,
    window: usize,
    outbound: Outbound,
    /// Limits the time without an answer.
    retry: Retry,
}

/// The answer to one message.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The tag that was given to [`Sender::push`].
    pub tag: u64,
    pub answer: Result<Answer, Error>,
}

impl Sender {
    pub(crate) fn new(client: &Client, queue: &str) -> Self {
        Self {
            queue: queue.to_owned(),
            window: WINDOW,
            outbound: Outbound::new(client),
            retry: Retry::within(client.timeout()),
        }
    }

    /// Sets the window: the most messages without an answer.
    pub fn window(mut self, window: usize) -> Self {
        self.window = window.max(1);
        self
    }

    /// The number of messages that may be pushed now.
    pub fn room(&self) -> usize {
        self.outbound.room(self.window)
    }

    /// The number of messages without an answer.
    pub fn unanswered(&self) -> usize {
        self.outbound.unanswered()
    }

    /// Adds a message. It is sent with others when a frame is full, or by the next
    /// [`flush`](Sender::flush) or [`answers`](Sender::answers). The window is not enforced: check
    /// [`room`](Sender::room) first.
    pub fn push(&mut self, message: impl Into<Message>, tag: u64) {
        if self.outbound.unanswered() == 0 {
            self.retry.reset();
        }
        self.outbound.push(&self.queue, &message.into().keyed(), tag);
    }

    /// Like [`push`](Sender::push), but a message without a key stays without one, which
    /// at-least-once queues allow. Messages without an answer when a connection breaks may then be
    /// accepted twice.
    pub fn push_unkeyed(&mut self, message: impl Into<Message>, tag: u64) {
        if self.outbound.unanswered() == 0 {
            self.retry.reset();
        }
        self.outbound.push(&self.queue, &message.into(), tag);
    }

    /// Sends what was pushed.
    pub fn flush(&mut self) {
        self.outbound.flush();
    }

    /// Waits for answers and adds them to the list, in the order of arrival. Returns at once if
    /// there is nothing to wait for.
    ///
    /// An error means that there was no answer for the client's timeout, or that there will be
    /// none, for example because the token is not valid. No message is dropped: the call can be
    /// repeated. It is cancel-safe.
    pub async fn answers(&mut self, answers: &mut Vec<Answered>) -> Result<(), Error> {
        self.flush();
        while self.outbound.unanswered() > 0 {
            match self.outbound.answers(answers).await {
                Ok(()) => {
                    self.retry.reset();
                    return Ok(());
                }
                Err(error) if self.retry.goes_on_after(&error) => {
                    tracing::debug!(%error, "connecting again");
                }
                Err(error) => {
                    self.retry.reset();
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Sends;

impl Protocol for Sends {
    const PATH: &'static str = "/hapax.v1.Hapax/Send";

    fn open(&self) -> Option<Bytes> {
        None
    }

    fn again(&self, frame: &Bytes, is_open: &dyn Fn(u64) -> bool) -> Option<Bytes> {
        let mut frame = proto::SendFrame::decode(frame.clone()).ok()?;
        frame.messages.retain(|message| is_open(message.r#ref));
        (!frame.messages.is_empty()).then(|| frame.encode_to_vec().into())
    }
}

/// Messages of any queue on one stream.
#[derive(Debug)]
pub(crate) struct Outbound {
    pipe: Pipe<Sends>,
    /// The queue of the frame that is being filled.
    queue: String,
    /// Answers to messages that fit into no frame and were not sent.
    refused: Vec<Answered>,
}

impl Outbound {
    pub(crate) fn new(client: &Client) -> Self {
        let pipe = Pipe::new(client, Sends);
        Self { pipe, queue: String::new(), refused: Vec::new() }
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.pipe.unanswered.len() + self.refused.len()
    }

    pub(crate) fn room(&self, window: usize) -> usize {
        if self.pipe.bytes() >= UNANSWERED_BYTES_MAX {
            return 0;
        }
        window.saturating_sub(self.unanswered())
    }

    pub(crate) fn push(&mut self, queue: &str, message: &Message, tag: u64) {
        if queue != self.queue {
            self.flush();
            queue.clone_into(&mut self.queue);
        }
        let head = |frame: &mut Vec<u8>| lean::frame_head(frame, queue);
        let filled = self.pipe.fill(message.bytes(), tag, head, |frame, reference| {
            lean::put_message(frame, &message.view(reference));
        });
        if let Err(error) = filled {
            self.refused.push(Answered { tag, answer: Err(error) });
        }
    }

    pub(crate) fn flush(&mut self) {
        self.pipe.flush();
    }

    /// Waits for at least one answer. An error means a broken connection; see [`Pipe::next`].
    pub(crate) async fn answers(&mut self, answers: &mut Vec<Answered>) -> Result<(), Error> {
        let before = answers.len();
        answers.append(&mut self.refused);
        while answers.len() == before {
            let reply = self.pipe.next().await?;
            self.take(&reply, answers)?;
        }
        while answers.len() - before < ANSWERS_MAX
            && let Some(reply) = self.pipe.next_now()
        {
            self.take(&reply, answers)?;
        }
        Ok(())
    }

    fn take(&mut self, reply: &[u8], answers: &mut Vec<Answered>) -> Result<(), Error> {
        let mut read = lean::Answers::new(reply);
        while let Some(answer) = read.next().map_err(Error::malformed)? {
            if let Some(tag) = self.pipe.unanswered.answer(answer.reference) {
                answers.push(Answered { tag, answer: Answer::of_lean(&answer) });
            }
        }
        Ok(())
    }

    /// Drops messages whose answer nobody waits for.
    pub(crate) fn retain(&mut self, is_wanted: impl FnMut(u64) -> bool) {
        self.flush();
        self.pipe.unanswered.retain(is_wanted);
    }

    /// Drops everything without an answer and returns the tags.
    pub(crate) fn give_up(&mut self) -> Vec<u64> {
        self.flush();
        self.pipe.hang_up();
        self.pipe.unanswered.give_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_again_is_what_has_no_answer() {
        let mut frame = Vec::new();
        lean::frame_head(&mut frame, "orders");
        for reference in [7, 8] {
            let message = Message::new("x").key(format!("k{reference}"));
            lean::put_message(&mut frame, &message.view(reference));
        }
        let frame = Bytes::from(frame);
        let again = Sends.again(&frame, &|reference| reference == 8).unwrap();
        let again = proto::SendFrame::decode(again).unwrap();
        assert_eq!((again.queue.as_str(), again.messages.len()), ("orders", 1));
        assert_eq!(again.messages[0].r#ref, 8);
        assert_eq!(Sends.again(&frame, &|_| false), None);
    }
}
