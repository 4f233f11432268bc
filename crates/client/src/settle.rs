//! Settles and their answers.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax_wire::settle::{self, Verb};
use hapax_wire::{self as wire, Blob, SettleKind, State, lean};

use crate::answer::at;
use crate::error::Error;
use crate::message::{Message, ms};

/// A settle: what to do with a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Settle {
    /// Done: the result is stored and the follow-ups are sent, atomically.
    Done(Done),
    /// Failed: the message is retried later, or dead. With [`Failure::in_doubt`] the outcome is
    /// unknown: a begun message is parked, if the queue has `on_lost = park`.
    Fail(Failure),
    /// Give the message back without counting the attempt.
    Release,
    /// Extend the lease; by default by the queue's lease.
    Extend(Option<Duration>),
    /// A non-repeatable effect starts now. If the lease is lost after this, a queue with `on_lost =
    /// park` parks the message.
    Begin,
    /// Stores a recovery point; the next attempt receives it.
    Save { name: String, data: Bytes },
}

/// The longest error that the broker stores.
const ERROR_BYTES_MAX: usize = 4_096;

impl Settle {
    /// Done, with no result and no follow-ups.
    pub fn done() -> Self {
        Self::Done(Done::new())
    }

    pub fn fail(error: impl Into<String>) -> Self {
        Self::Fail(Failure::new(error))
    }

    /// The outcome is unknown: [`Failure::in_doubt`].
    pub fn park(error: impl Into<String>) -> Self {
        Self::Fail(Failure { is_in_doubt: true, ..Failure::new(error) })
    }

    /// Its approximate size on the wire: all fields without a small bound.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Done(done) => {
                let result = done.result.as_ref();
                let result = result.map_or(0, |blob| blob.body.len() + blob.content_type.len());
                result + done.emits.iter().map(Emit::bytes).sum::<usize>()
            }
            Self::Save { name, data } => name.len() + data.len(),
            Self::Fail(_) => ERROR_BYTES_MAX,
            Self::Release | Self::Extend(_) | Self::Begin => 0,
        }
    }

    /// Writes it as a field of a `WorkFrame`.
    pub(crate) fn put(self, frame: &mut Vec<u8>, reference: u64, lease: Bytes) {
        match &self {
            Self::Done(Done { result, emits }) if emits.is_empty() => {
                let result = result.as_ref();
                let result = result.map(|blob| (&blob.body[..], &*blob.content_type));
                lean::put_done(frame, reference, &lease, result);
            }
            _ => lean::put_nested(frame, lean::SETTLE, &self.into_wire(reference, lease)),
        }
    }

    pub(crate) fn into_wire(self, reference: u64, lease: Bytes) -> wire::Settle {
        let verb = match self {
            Self::Done(done) => Verb::Done(settle::Done {
                result: done.result,
                emits: done.emits.into_iter().map(Emit::into_wire).collect(),
            }),
            Self::Fail(failure) => failure.into_wire(),
            Self::Release => Verb::Release(settle::Release {}),
            Self::Extend(lease) => Verb::Extend(settle::Extend { lease_ms: lease.map(ms) }),
            Self::Begin => Verb::Begin(settle::Begin {}),
            Self::Save { name, data } => Verb::Save(settle::Save { name, body: data }),
        };
        wire::Settle { r#ref: reference, lease, verb: Some(verb) }
    }
}

/// Cuts an error to the length that the broker stores.
fn cut(mut error: String) -> String {
    error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
    error
}

/// The successful outcome of a message. A handler may return anything that converts into it:
/// nothing, bytes, text, a [`Blob`], or this.
///
/// ```
/// use hapax_client::{Done, Emit, Message};
///
/// let done = Done::new()
///     .result("charged 17 euro")
///     .emit(Emit::new("emails", "receipt", Message::new("Thank you!")));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Done {
    result: Option<Blob>,
    emits: Vec<Emit>,
}

impl Done {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the result that every later send under the key gets.
    pub fn result(mut self, result: impl Into<Blob>) -> Self {
        self.result = Some(result.into());
        self
    }

    /// Adds a follow-up message, which is sent if and only if this `done` succeeds.
    pub fn emit(mut self, emit: Emit) -> Self {
        self.emits.push(emit);
        self
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::new()
    }
}

impl From<Blob> for Done {
    fn from(result: Blob) -> Self {
        Self::new().result(result)
    }
}

impl<B: Into<Blob>> From<Option<B>> for Done {
    fn from(result: Option<B>) -> Self {
        Self { result: result.map(Into::into), emits: Vec::new() }
    }
}

macro_rules! done_from_bytes {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for Done {
            fn from(result: $bytes) -> Self {
                Self::new().result(result)
            }
        }
    )*};
}

done_from_bytes!(Bytes, Vec<u8>, String, &'static str);

/// A follow-up message.
#[derive(Clone, Debug)]
pub struct Emit {
    queue: String,
    name: String,
    message: Message,
}

impl Emit {
    /// Creates a message for a queue of the same tenant. If it has no key, its key is
    /// [`derive`](crate::derive)d from the parent's and `name`, so that it is sent once, however
    /// many attempts the parent takes.
    ///
    /// Its date is the time at which its parent is done; an [`issued_at`](Message::issued_at) of
    /// the message is ignored.
    pub fn new(
        queue: impl Into<String>,
        name: impl Into<String>,
        message: impl Into<Message>,
    ) -> Self {
        Self { queue: queue.into(), name: name.into(), message: message.into() }
    }

    fn bytes(&self) -> usize {
        self.queue.len() + self.name.len() + self.message.bytes()
    }

    fn into_wire(self) -> wire::Emit {
        self.message.into_emit(self.queue, self.name)
    }
}

/// A failed attempt. Every error converts into one by `?`.
///
/// ```
/// use hapax_client::Failure;
/// use std::time::Duration;
///
/// fn charge() -> Result<(), Failure> {
///     let amount: u32 = "17".parse()?;
///     if amount > 1_000 {
///         return Err(Failure::dead("nobody pays that"));
///     }
///     Err(Failure::new("the bank is closed").retry_in(Duration::from_secs(3_600)))
/// }
/// # assert!(charge().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    error: String,
    delay: Option<Duration>,
    is_final: bool,
    is_in_doubt: bool,
}

impl Failure {
    /// A failure that is retried after the queue's backoff.
    pub fn new(error: impl Into<String>) -> Self {
        Self { error: error.into(), delay: None, is_final: false, is_in_doubt: false }
    }

    /// A failure that is not retried: the message is dead.
    pub fn dead(error: impl Into<String>) -> Self {
        Self { is_final: true, ..Self::new(error) }
    }

    /// The outcome is unknown: for an effect that cannot be repeated, after
    /// [`Context::begin`](crate::Context::begin). A queue with `on_lost = park` then parks the
    /// message with this error. Any other failure means that the effect did not happen, and the
    /// message is delivered again. If this attempt has not called `begin`, it is the failure that
    /// it was made from: with [`Failure::dead`] the message is dead.
    ///
    /// ```
    /// use hapax_client::Failure;
    ///
    /// fn print_label() -> Result<(), std::io::Error> {
    /// #   Err(std::io::Error::other("no answer"))
    /// }
    /// let printed = print_label().map_err(Failure::in_doubt);
    /// # assert!(printed.unwrap_err().is_in_doubt());
    /// ```
    pub fn in_doubt(error: impl Into<Self>) -> Self {
        Self { is_in_doubt: true, ..error.into() }
    }

    /// A failure that is retried after this time, instead of the queue's backoff.
    pub fn retry_in(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    pub fn error(&self) -> &str {
        &self.error
    }

    /// Whether it was made by [`Failure::dead`].
    pub fn is_dead(&self) -> bool {
        self.is_final
    }

    /// Whether it was made by [`Failure::in_doubt`].
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    fn into_wire(self) -> Verb {
        let (error, delay_ms, dead) = (cut(self.error), self.delay.map(ms), self.is_final);
        match self.is_in_doubt {
            true => Verb::Park(settle::Park { error, delay_ms, dead }),
            false => Verb::Fail(settle::Fail { error, delay_ms, dead }),
        }
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self::new(text)
    }
}

/// The answer to a settle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    Ok {
        /// The state of the message after the settle.
        state: State,
        /// The new deadline of an extended lease, the due time of a failed one.
        deadline: Option<SystemTime>,
    },
    /// Another worker has the message, or it is finished; with the result, if there is one.
    LeaseLost { state: State, result: Option<Blob> },
}

impl Settled {
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok { .. })
    }

    /// Most answers are a plain `ok`.
    pub(crate) fn of_lean(answer: &lean::SettleAnswer<'_>) -> Result<Self, Error> {
        if answer.kind == SettleKind::Ok as i32 {
            let deadline = answer.deadline_ms.map(at);
            return Ok(Self::Ok { state: State::of(answer.state), deadline });
        }
        Self::of(answer.whole().map_err(Error::malformed)?)
    }

    pub(crate) fn of(answer: wire::SettleAnswer) -> Result<Self, Error> {
        let state = State::of(answer.state);
        match answer.kind() {
            SettleKind::Ok => Ok(Self::Ok { state, deadline: answer.deadline_ms.map(at) }),
            SettleKind::LeaseLost => Ok(Self::LeaseLost { state, result: answer.result }),
            SettleKind::SettleError | SettleKind::Unspecified => {
                Err(Error::of_problem(answer.problem.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_the_whole_chain_of_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot charge")]
        struct Outer(#[source] std::num::ParseIntError);
        let inner = "x".parse::<u32>().unwrap_err();
        let failure = Failure::from(Outer(inner.clone()));
        assert_eq!(failure.error(), format!("cannot charge: {inner}"));
        assert_eq!(Failure::from("plain text"), Failure::new("plain text"));
    }

    #[test]
    fn an_emit_without_a_key_leaves_it_to_the_broker() {
        let done = Done::from("ok").emit(Emit::new("emails", "receipt", "Thank you!"));
        let settle = Settle::Done(done).into_wire(7, Bytes::new());
        let Some(Verb::Done(done)) = settle.verb else { panic!("{settle:?}") };
        assert_eq!(done.emits[0].key, None);
        assert_eq!(done.emits[0].name, "receipt");
        assert_eq!(done.result.unwrap().body, "ok");
    }

    #[test]
    fn an_emit_carries_everything_that_its_message_says() {
        let message = Message::new("x").key("k").ttl(Duration::from_secs(1)).fingerprint("f");
        let message = message.group("g").header("a", "b").delay(Duration::from_secs(2));
        let emit = Emit::new("emails", "receipt", message.content_type("text/plain")).into_wire();
        assert_eq!((emit.ttl_ms, emit.delay_ms), (Some(1_000), Some(2_000)));
        assert_eq!((emit.fingerprint.as_deref(), emit.key.as_deref()), (Some("f"), Some("k")));
        assert_eq!((emit.group.as_deref(), emit.content_type.as_str()), (Some("g"), "text/plain"));
        assert_eq!(emit.headers["a"], "b");
    }

    #[test]
    fn an_error_is_cut_to_what_the_broker_keeps() {
        let long = "ä".repeat(ERROR_BYTES_MAX);
        for settle in [Settle::fail(long.clone()), Settle::park(long)] {
            assert!(settle.bytes() <= ERROR_BYTES_MAX);
            let (Some(Verb::Fail(settle::Fail { error, .. }))
            | Some(Verb::Park(settle::Park { error, .. }))) =
                settle.into_wire(1, Bytes::new()).verb
            else {
                panic!("another verb")
            };
            assert_eq!(error.len(), ERROR_BYTES_MAX);
        }
    }
}
