//! What a handler is told about the operation it works on, and what it can say about it.

use std::future::Future;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use hapax_client::{Error, Held};

/// The operation that a request stands for: among the extensions of every request that is
/// protected. Cheap to clone.
///
/// A handler can save how far it is ([`Operation::save`]): where this process dies, whoever comes
/// next under the key finds it ([`Operation::recovery_point`]) and goes on from there. And it can
/// give other services keys that are the same for every attempt ([`Operation::derive`]).
///
/// ```no_run
/// # use hapax_idempotency::Operation;
/// # async fn bank(_key: String) -> String { String::new() }
/// async fn charge(operation: Operation) -> Result<String, hapax_client::Error> {
///     if let Some(receipt) = operation.recovery_point("charged") {
///         return Ok(String::from_utf8_lossy(&receipt).into_owned());
///     }
///     let receipt = bank(operation.derive("charge")).await;
///     operation.save("charged", receipt.clone()).await?;
///     Ok(receipt)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Operation(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: String,
    claim_key: String,
    tenant: String,
    fence: u64,
    queue: String,
    /// Not held up by handlers that keep this for longer than they run.
    held: Weak<Held>,
}

impl Operation {
    pub(crate) fn new(key: String, claim_key: String, tenant: String, held: &Arc<Held>) -> Self {
        let (fence, queue) = (held.fence(), held.queue().name().to_owned());
        Self(Arc::new(Inner { key, claim_key, tenant, fence, queue, held: Arc::downgrade(held) }))
    }

    /// The client's key.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Under which the broker knows it: see the digests of the guide.
    pub fn claim_key(&self) -> &str {
        &self.0.claim_key
    }

    pub fn tenant(&self) -> &str {
        &self.0.tenant
    }

    /// Grows with every attempt; of two attempts the larger is the newer. Written beside the
    /// effect and compared, it keeps a late attempt from overwriting a newer one.
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// The key for a call to another service: the same for every attempt.
    pub fn derive(&self, name: &str) -> String {
        hapax_client::derive(&self.0.queue, "", &self.0.claim_key, 0, name)
    }

    /// Saves how far the work is, for the next attempt. At most 64 points, 64 KiB together.
    pub async fn save(&self, name: &str, data: impl Into<Bytes>) -> Result<(), Error> {
        match self.0.held.upgrade() {
            Some(held) => held.save(name, data).await,
            None => Err(Error::Invalid("the operation has ended".to_owned())),
        }
    }

    /// What an earlier attempt saved, before it failed or its process died.
    pub fn recovery_point(&self, name: &str) -> Option<Bytes> {
        self.0.held.upgrade()?.recovery_point(name).cloned()
    }

    /// Whether the key is somebody else's by now: stop then.
    pub fn is_lost(&self) -> bool {
        self.0.held.upgrade().is_none_or(|held| held.is_lost())
    }

    /// Ends when the key is lost.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> + 'static {
        let lost = self.0.held.upgrade().map(|held| held.lost());
        async move {
            if let Some(lost) = lost {
                lost.await;
            }
        }
    }
}
