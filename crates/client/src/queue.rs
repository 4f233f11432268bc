//! A queue of a broker: sends, claims and workers.

use std::sync::Arc;
use std::time::Duration;

use hapax_wire::{self as wire, AnswerKind, proto};
use tokio::time::Instant;

use crate::answer::Answer;
use crate::claim::ClaimRequest;
use crate::client::Client;
use crate::error::Error;
use crate::message::{Message, ms};
use crate::retry::{Retry, moment};
use crate::sender::Sender;
use crate::work::WorkBuilder;

/// The most messages of a list in flight.
const SEND_ALL_MAX: usize = 1_024;
/// The longest wait of one call; longer waits take several calls.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Time allowed beyond the requested wait.
const WAIT_SLACK: Duration = Duration::from_secs(10);

type Answers = Vec<Result<Answer, Error>>;

/// A queue of a broker. Cheap to clone. Made by [`Client::queue`], whether or not the queue exists.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: Arc<str>,
}

impl Queue {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Self { client, name: name.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a message and waits until it is durable.
    ///
    /// Retries under the same key while the broker cannot be reached or returns a retryable error,
    /// for at most the client's timeout. A known key is a success too: see [`Answer`].
    ///
    /// ```no_run
    /// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_client::Error> {
    /// use hapax_client::{Code, Message};
    ///
    /// let lemons = || Message::new("three lemons").key("order-42");
    /// assert!(orders.send(lemons()).await?.is_new());
    /// assert!(!orders.send(lemons()).await?.is_new(), "the same operation again");
    ///
    /// let other = Message::new("four limes").key("order-42");
    /// assert_eq!(orders.send(other).await.unwrap_err().code(), Code::Conflict);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A message without a key gets one. If it is unknown whether the message was accepted, the
    /// error contains that key: see [`Error::key`].
    pub async fn send(&self, message: impl Into<Message>) -> Result<Answer, Error> {
        let until = moment(Instant::now(), self.client.timeout());
        let (answers, _) = self.send_until(vec![message.into()], until).await;
        one(answers)
    }

    /// Sends many messages and returns the answers in the same order. A refusal of one message does
    /// not affect the others.
    ///
    /// If the broker cannot be reached for the client's timeout, messages without an answer, sent
    /// or not, get the error as their answer. The whole call fails only if there is no answer at
    /// all and no key was generated for any message.
    ///
    /// Messages of one group keep their order unless one of them has to be retried.
    pub async fn send_all<M: Into<Message>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let mut messages = messages.into_iter();
        let mut answers = Vec::with_capacity(messages.size_hint().0);
        loop {
            let until = moment(Instant::now(), self.client.timeout());
            let some: Vec<Message> = messages.by_ref().take(SEND_ALL_MAX).map(Into::into).collect();
            if some.is_empty() {
                return Ok(answers);
            }
            let (part, broken) = self.send_until(some, until).await;
            if let Some(error) = &broken
                && answers.is_empty()
                && part.iter().all(|answer| matches!(answer, Err(error) if error.key().is_none()))
            {
                return Err(error.clone());
            }
            answers.extend(part);
            if let Some(error) = broken {
                answers.extend(messages.map(|_| Err(error.clone())));
                return Ok(answers);
            }
        }
    }

    /// Sends a message and waits until it is done, dead or parked, for at most this long. If the
    /// time ends first, the answer is [`Outcome::Accepted`](crate::Outcome::Accepted) or
    /// [`Outcome::InFlight`](crate::Outcome::InFlight), and calling again with the same key
    /// continues to wait.
    pub async fn send_and_wait(
        &self,
        message: impl Into<Message>,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let until = moment(Instant::now(), timeout);
        let message = message.into();
        let is_keyed = message.key_str().is_some();
        let message = message.keyed();
        let key = proto::KeyRequest {
            queue: self.name.to_string(),
            key: message.key_str().unwrap_or_default().to_owned(),
            group: message.group_str().to_owned(),
        };
        let (answers, _) = self.send_until(vec![message], until).await;
        let answered = match one(answers) {
            Ok(answer) => self.wait(key.clone(), answer, until).await,
            Err(error) => Err(error),
        };
        answered.map_err(|error| if is_keyed { error } else { told_key(error, &key.key) })
    }

    async fn wait(
        &self,
        key: proto::KeyRequest,
        mut answer: Answer,
        until: Instant,
    ) -> Result<Answer, Error> {
        let left = || until.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let mut retry = Retry::until(until);
        while !answer.has_ended() && !left().is_zero() {
            let look = || {
                let left = left();
                let request = proto::GetKeyRequest { key: Some(key.clone()), wait_ms: ms(left) };
                self.client.call_within(left + WAIT_SLACK, |mut rpc| async move {
                    rpc.get_key(request).await
                })
            };
            let found = retry.run(look).await?;
            let kind = AnswerKind::InFlight.into();
            answer = Answer::of(wire::Answer { kind, ..Default::default() }.waited(found))?;
        }
        Ok(answer)
    }

    /// Sends over the client's shared stream, and retries the messages with a retryable refusal.
    /// Every message has an answer. The second value is the error of the connection, if some
    /// messages have no answer of the broker because of it.
    async fn send_until(&self, messages: Vec<Message>, until: Instant) -> (Answers, Option<Error>) {
        let keyless: Vec<usize> = places(&messages, |message| message.key_str().is_none());
        let messages: Vec<Message> = messages.into_iter().map(Message::keyed).collect();
        let (mut answers, broken) = self.send_keyed(&messages, until).await;
        for place in keyless {
            if let (Some(answer), Some(message)) = (answers.get_mut(place), messages.get(place))
                && let Err(error) = answer
            {
                let key = message.key_str().unwrap_or_default();
                *answer = Err(told_key(error.clone(), key));
            }
        }
        (answers, broken)
    }

    async fn send_keyed(&self, messages: &[Message], until: Instant) -> (Answers, Option<Error>) {
        let mut retry = Retry::until(until);
        let mut answers = match self.try_send(messages.to_vec(), until).await {
            Ok(answers) => answers,
            Err(error) => {
                let all = messages.iter().map(|_| Err(error.clone())).collect();
                return (all, Some(error));
            }
        };
        answers.resize_with(messages.len(), || Err(no_answer()));
        loop {
            let again = places(&answers, is_worth_a_retry);
            let asked = again.iter().filter_map(|place| match answers.get(*place) {
                Some(Err(error)) => error.retry_after(),
                _ => None,
            });
            if again.is_empty() || !retry.pause(asked.max()).await {
                return (answers, None);
            }
            let some = again.iter().filter_map(|place| messages.get(*place).cloned()).collect();
            let newer = match self.try_send(some, until).await {
                Ok(newer) => newer,
                // These keep their earlier refusal; it is unknown whether they were accepted.
                Err(error) => return (answers, Some(error)),
            };
            for (place, answer) in again.into_iter().zip(newer) {
                if let Some(slot) = answers.get_mut(place) {
                    *slot = answer;
                }
            }
        }
    }

    async fn try_send(&self, messages: Vec<Message>, until: Instant) -> Result<Answers, Error> {
        let left = until.saturating_duration_since(Instant::now());
        self.client.lane().send(&self.client, &self.name, messages, left).await
    }

    /// Creates a pipelined sender with its own connection, for the highest throughput.
    pub fn sender(&self) -> Sender {
        Sender::new(&self.client, &self.name)
    }

    /// Opens a stream of deliveries and settles, for use without [`Worker`](crate::Worker).
    pub fn work(&self) -> WorkBuilder {
        WorkBuilder::new(self)
    }

    /// Claims a key to do the work in this process. No message is delivered to a worker.
    ///
    /// ```no_run
    /// # async fn example(charges: hapax_client::Queue) -> Result<(), hapax_client::Error> {
    /// use hapax_client::Claim;
    ///
    /// match charges.claim("charge-7").body("17 euro").take().await? {
    ///     Claim::Fresh(claim) => {
    ///         // Do it, and store the answer for every retry.
    ///         claim.complete("charged").await?;
    ///     }
    ///     Claim::Done(answer) => println!("done before: {:?}", answer.result()),
    ///     Claim::InFlight(_) => println!("another caller holds the key: retry later"),
    ///     Claim::Parked(_) | Claim::Dead(_) => println!("an operator has to act"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&self, key: impl Into<String>) -> ClaimRequest {
        ClaimRequest::new(self, key.into())
    }
}

/// The indexes of the items that match.
fn places<T>(list: &[T], is_one: impl Fn(&T) -> bool) -> Vec<usize> {
    let places = list.iter().enumerate();
    places.filter_map(|(place, item)| is_one(item).then_some(place)).collect()
}

/// Whether a retry of this message may succeed.
fn is_worth_a_retry(answer: &Result<Answer, Error>) -> bool {
    answer.as_ref().err().is_some_and(Error::is_retryable)
}

/// Adds the generated key to an error that leaves open whether the message was accepted.
fn told_key(error: Error, key: &str) -> Error {
    if error.is_retryable() && error.key().is_none() { error.under(key) } else { error }
}

/// The answer to the one message of a list.
fn one(mut answers: Answers) -> Result<Answer, Error> {
    answers.pop().unwrap_or_else(|| Err(no_answer()))
}

fn no_answer() -> Error {
    Error::invalid("the broker left a message without an answer")
}
