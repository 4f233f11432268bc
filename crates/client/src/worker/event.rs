//! The events that a worker reports.

use std::fmt;
use std::sync::Arc;

use crate::delivery::Lease;
use crate::error::Error;
use crate::settle::{Settle, Settled};

/// An event of a worker: see [`Worker::observe`](crate::Worker::observe).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The broker has answered the final settle of a message. Only the answer shows the outcome.
    Settled { lease: &'a Lease, settle: &'a Settle, answer: &'a Result<Settled, Error> },
    /// The lease was lost and the handler failed, so nothing was reported to the broker.
    Lost { lease: &'a Lease },
    /// There is no connection to the broker. The worker continues with the messages it has, and
    /// reconnects. Reported again when it has another reason, at most every ten seconds.
    Away(&'a Error),
    /// The broker can be reached again.
    Back,
}

/// The observer of events.
#[derive(Clone, Default)]
pub(super) struct Observer(Option<Arc<Callback>>);

type Callback = dyn Fn(Event<'_>) + Send + Sync;

impl Observer {
    pub(super) fn new(observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(super) fn tell(&self, event: Event<'_>) {
        if let Some(observer) = &self.0 {
            observer(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer" } else { "nobody" })
    }
}
