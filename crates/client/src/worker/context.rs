//! What a handler can do besides returning.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::Error;
use crate::settle::{Settle, Settled};

/// A handler's way to its lease. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) fence: u64,
    pub(super) asks: mpsc::UnboundedSender<Ask>,
    pub(super) lost: watch::Receiver<bool>,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Something a handler wants settled on the way.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) fence: u64,
    pub(super) settle: Settle,
    pub(super) reply: oneshot::Sender<Result<Settled, Error>>,
}

impl Context {
    /// Marks durably that a non-repeatable effect starts now. In a queue that parks, the message
    /// is not delivered again if the lease is lost from here on, until somebody resolves it.
    pub async fn begin(&self) -> Result<(), Error> {
        self.keep(Settle::Begin).await
    }

    /// Stores a recovery point: the next attempt finds it in the delivery.
    pub async fn save(&self, name: impl Into<String>, data: impl Into<Bytes>) -> Result<(), Error> {
        self.keep(Settle::Save { name: name.into(), data: data.into() }).await
    }

    /// Keeps the message for so long from now on, or for its lease. It is done by itself as long
    /// as the handler runs.
    pub async fn extend(&self, lease: Option<Duration>) -> Result<(), Error> {
        self.keep(Settle::Extend(lease)).await
    }

    /// Whether somebody else may have the message now.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Ends when the lease is lost. The handler should stop then; what it returns is not stored.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        when(self.lost.clone())
    }

    /// Ends when the worker is told to stop: for handlers that can finish early.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        when(self.stopping.clone())
    }

    async fn keep(&self, settle: Settle) -> Result<(), Error> {
        let (reply, receiver) = oneshot::channel();
        let ask = Ask { fence: self.fence, settle, reply };
        // Where the worker is gone, so is the lease.
        let _ = self.asks.send(ask);
        match receiver.await {
            Ok(Ok(Settled::Ok { .. })) => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Settled::LeaseLost { .. })) | Err(_) => Err(Error::lease_lost()),
        }
    }
}

async fn when(mut signal: watch::Receiver<bool>) {
    if signal.wait_for(|is_set| *is_set).await.is_err() {
        // Who would set it is gone: it never will be.
        std::future::pending().await
    }
}
