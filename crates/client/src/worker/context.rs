//! The context of a handler: save, extend, begin, steps.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_wire::Code;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot, watch};

use super::leases::Number;
use crate::delivery::Delivery;
use crate::error::Error;
use crate::retry::Retry;
use crate::settle::{Failure, Settle, Settled};
use crate::step::{self, Found, Ledger};

/// A handler's access to its lease. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) message: Arc<InHand>,
    pub(super) asks: mpsc::UnboundedSender<Ask>,
    pub(super) lost: watch::Receiver<bool>,
    pub(super) stopping: watch::Receiver<bool>,
}

/// A settle that a handler asks for while it runs.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) number: Number,
    pub(super) settle: Settle,
    pub(super) reply: oneshot::Sender<Result<Settled, Error>>,
}

/// The message of a handler, and what the handler has saved.
#[derive(Debug)]
pub(super) struct InHand {
    number: Number,
    delivery: Delivery,
    ledger: Mutex<Ledger>,
}

impl InHand {
    pub(super) fn new(number: Number, delivery: Delivery) -> Self {
        let ledger = Mutex::new(Ledger::new(delivery.recovery_points()));
        Self { number, delivery, ledger }
    }

    /// Consistent after a panic, because every change is one call.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Calls another service once per message, with its own key: charges a card, sends an email, or
    /// anything else that takes an idempotency key.
    ///
    /// `call` gets a key that is [`derive`](crate::derive)d from the message's key and `name`: the
    /// same in every attempt. The intent is saved before the call and the outcome after it, both as
    /// the recovery point `step:NAME`. A later attempt gets the saved outcome without a call, and
    /// continues after the last finished step.
    ///
    /// ```no_run
    /// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_client::Error> {
    /// use hapax_client::{Failure, Worker};
    ///
    /// Worker::new(orders)
    ///     .run(|message, context| async move {
    ///         let euro: u32 = message.parse_json()?;
    ///         let receipt: String = context.step("charge", |key| charge(key, euro)).await?;
    ///         context.step("mail", |key| mail(key, receipt.clone())).await?;
    ///         Ok::<_, Failure>(receipt)
    ///     })
    ///     .await
    /// # }
    /// # use hapax_client::Failure;
    /// # async fn charge(_key: String, _euro: u32) -> Result<String, Failure> { Err("".into()) }
    /// # async fn mail(_key: String, _receipt: String) -> Result<(), Failure> { Ok(()) }
    /// ```
    ///
    /// - If an attempt dies between the call and its outcome, the call is in doubt: the next
    ///   attempt calls again with the same key, and the service must return its first answer. For a
    ///   service that takes no key there is [`Context::begin`].
    /// - An error of the call fails the step and saves nothing. Return a final answer, such as a
    ///   declined card, as an outcome.
    /// - Outcomes are stored as JSON. All recovery points of a message together have at most 64
    ///   KiB. A step begins only if 1 KiB is left. If its outcome does not fit, the message becomes
    ///   dead, because every attempt would call again. Return an id instead of a document.
    /// - Names are unique per message: the same name twice in one attempt is an error.
    /// - If the lease is lost the step ends: the call is dropped and nothing is saved.
    pub async fn step<T, E, F>(
        &self,
        name: &str,
        call: impl FnOnce(String) -> F,
    ) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
        E: Into<Failure>,
        F: Future<Output = Result<T, E>>,
    {
        self.message.ledger().take(name)?;
        let delivery = &self.message.delivery;
        let mut key = delivery.derive(name);
        if let Some(point) = delivery.recovery_point(&step::point_name(name)) {
            let first = hapax_keys::derive_first(delivery.key(), delivery.generation(), name);
            match step::found(name, point, |saved| saved == key || saved == first)? {
                Found::Done(outcome) => return Ok(outcome),
                Found::Open(saved) => key = saved,
            }
        }
        tokio::select! {
            biased;
            () = self.lost() => Err(lost_during(name)),
            outcome = self.call(name, key, call) => outcome,
        }
    }

    async fn call<T, E, F>(
        &self,
        name: &str,
        key: String,
        call: impl FnOnce(String) -> F,
    ) -> Result<T, Failure>
    where
        T: Serialize,
        E: Into<Failure>,
        F: Future<Output = Result<T, E>>,
    {
        let point = step::point_name(name);
        self.message.ledger().reserve(name)?;
        // Also proves that this worker still holds the lease.
        self.save_surely(&point, step::intent(&key)).await?;
        let outcome = call(key.clone()).await.map_err(Into::into)?;
        let data = step::outcome(name, &key, &outcome)?;
        let bytes = data.len();
        let mut fits = self.message.ledger().fits(&point, &data);
        if fits {
            match self.save_surely(&point, data).await {
                Ok(()) => self.message.ledger().saved(&point, bytes),
                // Recovery points saved elsewhere, or a broker with other bounds.
                Err(error) if matches!(error.code(), Code::Invalid | Code::TooLarge) => {
                    fits = false
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !fits {
            self.save_surely(&point, step::too_large(&key, bytes)).await?;
            return Err(step::too_large_failure(name, &key, bytes));
        }
        Ok(outcome)
    }

    /// Saves, and retries as long as that may help: a call was made, or is about to be.
    async fn save_surely(&self, name: &str, data: Bytes) -> Result<(), Error> {
        let save = || self.keep(Settle::Save { name: name.to_owned(), data: data.clone() });
        Retry::forever().run(save).await
    }

    /// Marks durably that a non-repeatable effect starts now. A queue with `on_lost = park` parks
    /// the message, until an operator resolves it, if after this the lease is lost, the handler
    /// panics, is dropped or returns a [`Failure::in_doubt`], or its result is refused.
    pub async fn begin(&self) -> Result<(), Error> {
        self.keep(Settle::Begin).await
    }

    /// Stores a recovery point: the next attempt finds it in the delivery.
    pub async fn save(&self, name: impl Into<String>, data: impl Into<Bytes>) -> Result<(), Error> {
        let (name, data) = (name.into(), data.into());
        let bytes = data.len();
        self.keep(Settle::Save { name: name.clone(), data }).await?;
        self.message.ledger().saved(&name, bytes);
        Ok(())
    }

    /// Extends the lease to at least this long from now, by default to its own length. Leases are
    /// extended automatically while the handler runs; this is for a handler that is about to block,
    /// or to be suspended, for longer than its lease.
    pub async fn extend(&self, lease: Option<Duration>) -> Result<(), Error> {
        self.keep(Settle::Extend(lease)).await
    }

    /// The message: also its tenant, its queue and the length of its lease.
    pub fn delivery(&self) -> &Delivery {
        &self.message.delivery
    }

    /// Whether another worker may have the message now.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Resolves when the lease is lost. The handler should stop then. An error that it returns is
    /// not reported to the broker. A result is, and counts if no other worker has taken the message
    /// meanwhile.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        when(self.lost.clone())
    }

    /// Resolves when the worker is stopped: for handlers that can finish early.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        when(self.stopping.clone())
    }

    async fn keep(&self, settle: Settle) -> Result<(), Error> {
        let (reply, receiver) = oneshot::channel();
        let ask = Ask { number: self.message.number, settle, reply };
        // If the worker has ended, so has the lease.
        let _ = self.asks.send(ask);
        match receiver.await {
            Ok(Ok(Settled::Ok { .. })) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Settled::LeaseLost { .. })) | Err(_) => Err(Error::lease_lost()),
        }
    }
}

fn lost_during(step: &str) -> Failure {
    Failure::new(format!(
        "the lease was lost during the step {step}: another worker may have the message"
    ))
}

async fn when(mut signal: watch::Receiver<bool>) {
    if signal.wait_for(|is_set| *is_set).await.is_err() {
        // The sender has ended, so it will never be set.
        std::future::pending().await
    }
}
