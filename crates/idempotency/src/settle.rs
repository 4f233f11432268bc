//! What the broker is told when the handler has ended, and what that leaves for the client.
//!
//! The effect has happened by then, so that a response is not given up lightly: it is tried to be
//! stored for minutes, behind the client's back where it takes long, and a lease that was lost is
//! no reason to forget it as long as nobody else has the key.

use std::sync::Arc;
use std::time::Duration;

use hapax_client::{Blob, Claim, Code, Done, Error, Held, Retry, Settle, Settled, State};
use http::HeaderMap;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::builder::Rules;
use crate::event::{Event, Settlement};
use crate::limits::SETTLE_PATIENCE;
use crate::run::{Asked, Running, claim};
use crate::stored::{CONTENT_TYPE, Stored};

/// Between two tries, each of which has tried for the client's timeout.
const PAUSE: Duration = Duration::from_millis(200);

/// How long the broker is asked to take the end of an operation. Every try waits for the client's
/// timeout by itself.
pub(crate) fn settle_retry() -> Retry {
    Retry::within(SETTLE_PATIENCE).pauses(PAUSE, PAUSE)
}

/// A claim whose handler has ended.
pub(crate) struct Settling<'a> {
    pub(crate) rules: &'a Arc<Rules>,
    pub(crate) asked: &'a Asked,
    pub(crate) held: Arc<Held>,
}

/// What became of a response that was to be kept.
#[derive(Debug)]
pub(crate) enum Ended {
    Stored,
    /// Another one was stored under the key: that is the answer.
    Replaced(Blob),
    /// Another request works under the key.
    Superseded,
    /// The broker does not answer. It is still being tried.
    Unknown,
    /// The broker does not take it, and never will.
    Refused,
}

impl Settling<'_> {
    /// Frees the key: the next request under it is a first one.
    pub(crate) async fn release(self) {
        self.end(Settle::Release, |settled| match settled {
            Settled::Ok { .. } => Settlement::Released,
            _ => Settlement::Lost,
        })
        .await;
    }

    /// Says that nobody knows whether it happened: a queue that parks keeps the key until somebody
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
        let task = tokio::spawn(async move {
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
        // Whoever comes again at once should find it so; but nobody waits for a broker that is
        // away to hear what became of a request.
        let _ = timeout(self.rules.broker_timeout, task).await;
    }

    /// Stores the response. Waits for the broker no longer than it may; trying goes on.
    pub(crate) async fn complete(self, stored: Stored) -> Ended {
        let (rules, asked) = (Arc::clone(self.rules), self.asked.clone());
        let completion = Completion { rules, asked, held: self.held, stored };
        let task: JoinHandle<Ended> = tokio::spawn(completion.run());
        match timeout(self.rules.broker_timeout, task).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => Ended::Unknown,
            Err(_) => {
                self.rules.tell(Event::BrokerFailed(Code::Unavailable));
                Ended::Unknown
            }
        }
    }
}

/// A response on its way to the broker.
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

    /// The lease is lost and nobody has finished. Where nobody has the key either, it is taken
    /// again, for the response that is there already: refusing it would only make sure that the
    /// operation is carried out again.
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
