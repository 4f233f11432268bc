//! Settles the claim after the handler has ended, and determines the client's response.
//!
//! The effect has happened by then, so storing the response is retried for minutes, in the
//! background if it takes long. Even if the lease was lost, the response is stored as long as
//! nobody else has the key.

use std::sync::Arc;
use std::time::Duration;

use hapax_client::{Blob, Claim, Code, Done, Error, Held, Retry, Settle, Settled, State};
use http::HeaderMap;
use tokio::time::timeout;

use crate::builder::Rules;
use crate::event::{Event, Settlement};
use crate::limits::SETTLE_PATIENCE;
use crate::run::{Asked, Running, claim};
use crate::stored::{CONTENT_TYPE, Stored};

/// The pause between two tries, each of which takes up to the client's timeout.
const PAUSE: Duration = Duration::from_millis(200);

/// The retries of a settle. Each try itself takes up to the client's timeout.
pub(crate) fn settle_retry() -> Retry {
    Retry::within(SETTLE_PATIENCE).pauses(PAUSE, PAUSE)
}

/// A claim whose handler has ended.
pub(crate) struct Settling<'a> {
    pub(crate) rules: &'a Arc<Rules>,
    pub(crate) asked: &'a Asked,
    pub(crate) held: Arc<Held>,
}

/// The outcome of storing a response.
#[derive(Debug)]
pub(crate) enum Ended {
    Stored,
    /// Another response was stored under the key and is returned instead.
    Replaced(Blob),
    /// Another request holds the key.
    Superseded,
    /// The broker does not answer. Retries continue in the background.
    Unknown,
    /// The broker refuses it for good.
    Refused,
}

impl Settling<'_> {
    /// Frees the key: the next request with it is a first one.
    pub(crate) async fn release(self) {
        self.end(Settle::Release, |settled| match settled {
            Settled::Ok { .. } => Settlement::Released,
            _ => Settlement::Lost,
        })
        .await;
    }

    /// Reports that the outcome is unknown: a queue that parks keeps the key until an operator
    /// resolves it, any other frees it.
    pub(crate) async fn park(self, why: &str) {
        let Asked { claim_key, route, request, .. } = self.asked;
        tracing::warn!(route, claim_key, "an operation is in doubt: {why}");
        self.end(Settle::park(format!("{request}: {why}")), |settled| match settled {
            Settled::Ok { .. } | Settled::LeaseLost { state: State::Parked, .. } => {
                Settlement::InDoubt
            }
            _ => Settlement::Lost,
        })
        .await;
    }

    async fn end(self, settle: Settle, named: fn(&Settled) -> Settlement) {
        let (rules, held) = (Arc::clone(self.rules), self.held);
        let running = Running::begin(&rules);
        let mut ending = Box::pin(async move {
            rules.tell(Event::Settled(match held.settle(settle).await {
                Ok(settled) => named(&settled),
                Err(error) => {
                    rules.tell(Event::BrokerFailed(error.code()));
                    tracing::warn!(%error, "a settle did not reach the broker; the lease of a key \
                                            will end");
                    Settlement::Failed
                }
            }));
            drop(running);
        });
        // Waits, so that an immediate retry sees the new state, but not for longer than the timeout
        // if the broker cannot be reached.
        if timeout(self.rules.broker_timeout, &mut ending).await.is_err() {
            tokio::spawn(ending);
        }
    }

    /// Stores the response. Waits for the broker at most for the timeout; retries continue in the
    /// background.
    pub(crate) async fn complete(self, stored: Stored) -> Ended {
        let (rules, asked) = (Arc::clone(self.rules), self.asked.clone());
        let completion = Completion { rules, asked, held: self.held, stored };
        let mut completing = Box::pin(completion.run());
        match timeout(self.rules.broker_timeout, &mut completing).await {
            Ok(ended) => ended,
            Err(_) => {
                self.rules.tell(Event::BrokerFailed(Code::Unavailable));
                tokio::spawn(completing);
                Ended::Unknown
            }
        }
    }
}

/// A response that is being stored.
struct Completion {
    rules: Arc<Rules>,
    asked: Asked,
    held: Arc<Held>,
    stored: Stored,
}

impl Completion {
    async fn run(mut self) -> Ended {
        let _running = Running::begin(&self.rules);
        let mut retry = settle_retry();
        loop {
            let error = match self.held.settle(Settle::Done(done(&self.stored))).await {
                Ok(Settled::Ok { .. }) => return self.is_stored(),
                Ok(Settled::LeaseLost { result: Some(result), .. }) => {
                    self.rules.tell(Event::Settled(Settlement::Lost));
                    return Ended::Replaced(result);
                }
                Ok(_) => return self.again().await,
                Err(error) => error,
            };
            self.rules.tell(Event::BrokerFailed(error.code()));
            if !error.is_retryable() && self.stored.body.is_some() {
                tracing::error!(%error, "the broker refuses a response; only its status is stored");
                self.stored.body = None;
                self.stored.headers = HeaderMap::new();
            } else if let Err(error) = retry.after(error).await {
                return self.failed(&error);
            }
        }
    }

    /// The lease is lost and nobody has finished. If nobody holds the key either, it is claimed
    /// again to store the response, because discarding it would only cause a repetition.
    async fn again(self) -> Ended {
        let Asked { route, .. } = &self.asked;
        tracing::warn!(route, "a response was ready after its lease was lost");
        let ended = match claim(&self.rules, &self.asked, None).await {
            Ok(Claim::Fresh(held)) => match held.finish(done(&self.stored)).await {
                Ok(Settled::Ok { .. }) => return self.is_stored(),
                Ok(Settled::LeaseLost { result: Some(result), .. }) => Ended::Replaced(result),
                Ok(_) => Ended::Superseded,
                Err(error) => return self.failed(&error),
            },
            Ok(Claim::Done(answer)) => {
                Ended::Replaced(answer.result().cloned().unwrap_or_default())
            }
            Ok(_) => Ended::Superseded,
            Err(error) if error.code() == Code::Conflict => Ended::Superseded,
            Err(error) => return self.failed(&error),
        };
        self.rules.tell(Event::Settled(Settlement::Lost));
        ended
    }

    fn is_stored(&self) -> Ended {
        self.rules.tell(Event::Settled(match self.stored.is_kept() {
            true => Settlement::Kept,
            false => Settlement::NotKept,
        }));
        Ended::Stored
    }

    fn failed(&self, error: &Error) -> Ended {
        let Asked { route, claim_key, .. } = &self.asked;
        tracing::error!(%error, route, claim_key, "a response could not be stored");
        self.rules.tell(Event::Settled(Settlement::Failed));
        if error.is_retryable() { Ended::Unknown } else { Ended::Refused }
    }
}

fn done(stored: &Stored) -> Done {
    Done::new().result(Blob::new(stored.encode()).content_type(CONTENT_TYPE))
}
