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

/// A handler's way to its lease. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) message: Arc<InHand>,
    pub(super) asks: mpsc::UnboundedSender<Ask>,
    pub(super) lost: watch::Receiver<bool>,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Something a handler wants settled on the way.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) number: Number,
    pub(super) settle: Settle,
    pub(super) reply: oneshot::Sender<Result<Settled, Error>>,
}

/// The message that a handler works on, and what it has saved.
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

    /// Sound after a panic: every change of it is one call.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Does something elsewhere once per message, under a key of its own: charges a card, sends an
    /// email, calls whatever takes an idempotency key.
    ///
    /// `call` is given that key, [`derive`](crate::derive)d from the message's and `name`: the same
    /// in every attempt. Before the call it is saved that the step was begun,
    /// and after it the outcome, both as the recovery point `step:NAME`. A later attempt gets the
    /// saved outcome without a call, and so goes on after the last step that was finished.
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
    /// - An attempt that dies between the call and its outcome leaves the call in doubt: the next
    ///   one calls again, under the same key. The service must know the key by then, and answer as
    ///   it did. For one that takes no key there is [`Context::begin`].
    /// - An error of the call fails the step and saves nothing. What is to be remembered, such as
    ///   a card that was declined, is an outcome: return it as one.
    /// - Outcomes are kept as JSON, within the 64 KiB that all recovery points of a message have
    ///   together. A step begins only where a KiB is left; one whose outcome turns out not to fit
    ///   gives the message up, and says so, since every attempt would call again. Return an id
    ///   instead of a document.
    /// - Names are unique per message: the same name twice in one attempt is an error.
    /// - Where the lease is lost the step ends there: the call is dropped, nothing is saved.
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
        // Also proves that the lease was still ours a moment before the call.
        self.save_surely(&point, step::intent(&key)).await?;
        let outcome = call(key.clone()).await.map_err(Into::into)?;
        let data = step::outcome(name, &key, &outcome)?;
        let bytes = data.len();
        let mut fits = self.message.ledger().fits(&point, &data);
        if fits {
            match self.save_surely(&point, data).await {
                Ok(()) => self.message.ledger().saved(&point, bytes),
                // Somebody else's points, or a broker with other bounds.
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

    /// Saves, and tries again as long as that may help: a call was made, or is about to be.
    async fn save_surely(&self, name: &str, data: Bytes) -> Result<(), Error> {
        let save = || self.keep(Settle::Save { name: name.to_owned(), data: data.clone() });
        Retry::forever().run(save).await
    }

    /// Marks durably that a non-repeatable effect starts now. In a queue that parks, the message
    /// is not delivered again if the lease is lost from here on, until somebody resolves it; so
    /// too where the handler panics, is dropped, or returns a [`Failure::in_doubt`], and where its
    /// result is refused.
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

    /// Keeps the message for at least so long from now on, or for its lease. It is done by itself
    /// as long as the handler runs; this is for one that is about to block, or to be stopped, for
    /// longer than the lease.
    pub async fn extend(&self, lease: Option<Duration>) -> Result<(), Error> {
        self.keep(Settle::Extend(lease)).await
    }

    /// The message: also its tenant, its queue and the length of its lease.
    pub fn delivery(&self) -> &Delivery {
        &self.message.delivery
    }

    /// Whether somebody else may have the message now.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Ends when the lease is lost. The handler should stop then. An error that it returns is not
    /// told to anybody; a result is, and counts if nobody else took the message meanwhile.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        when(self.lost.clone())
    }

    /// Ends when the worker is told to stop: for handlers that can finish early.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        when(self.stopping.clone())
    }

    async fn keep(&self, settle: Settle) -> Result<(), Error> {
        let (reply, receiver) = oneshot::channel();
        let ask = Ask { number: self.message.number, settle, reply };
        // Where the worker is gone, so is the lease.
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
        // Who would set it is gone: it never will be.
        std::future::pending().await
    }
}
