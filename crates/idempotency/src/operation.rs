//! The handler's access to its operation.

use std::future::Future;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use hapax_client::{Error, Held};

/// The operation of a request, in the extensions of every protected request. Cheap to clone.
///
/// A handler can save recovery points ([`Operation::save`]). If this process dies, the next attempt
/// under the key can read them ([`Operation::recovery_point`]) and continue from there. It can also
/// derive keys for other services that are the same in every attempt ([`Operation::derive`]).
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
    /// Weak, so that a handler that keeps this does not keep the claim.
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

    /// The key of the claim at the broker, a digest: see the guide.
    pub fn claim_key(&self) -> &str {
        &self.0.claim_key
    }

    pub fn tenant(&self) -> &str {
        &self.0.tenant
    }

    /// Grows with every attempt; of two attempts the larger is the newer. Store it with the effect
    /// and compare it, so that a late attempt does not overwrite a newer one.
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// The key for a call to another service: the same for every attempt.
    pub fn derive(&self, name: &str) -> String {
        hapax_client::derive(&self.0.queue, "", &self.0.claim_key, 0, name)
    }

    /// Saves a recovery point for the next attempt. At most 64, and 64 KiB together.
    pub async fn save(&self, name: &str, data: impl Into<Bytes>) -> Result<(), Error> {
        match self.0.held.upgrade() {
            Some(held) => held.save(name, data).await,
            None => Err(Error::Invalid("the operation has ended".to_owned())),
        }
    }

    /// The data that an earlier attempt saved before it failed or its process died.
    pub fn recovery_point(&self, name: &str) -> Option<Bytes> {
        self.0.held.upgrade()?.recovery_point(name).cloned()
    }

    /// Whether another attempt may have the key now. Stop then.
    pub fn is_lost(&self) -> bool {
        self.0.held.upgrade().is_none_or(|held| held.is_lost())
    }

    /// Resolves when the lease of the key is lost.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> + 'static {
        let lost = self.0.held.upgrade().map(|held| held.lost());
        async move {
            if let Some(lost) = lost {
                lost.await;
            }
        }
    }
}
