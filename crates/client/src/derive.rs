//! Derives the keys of follow-up messages.

use hapax_keys::Parent;

/// Derives the key of a follow-up of a message. It is the same in every attempt, and differs after
/// a replay.
///
/// Lowercase hex of the first 16 bytes of SHA-256 over six netstrings (`LENGTH:BYTES,`): `hapax-2`,
/// the queue, the group, the key, the generation as decimal, and the name. The group is empty
/// unless the queue deduplicates per group. The broker derives the keys of emits without a key in
/// the same way. Use it as the idempotency key of calls to other services;
/// [`Delivery::derive`](crate::Delivery::derive) knows all parts but the name.
///
/// ```
/// let key = hapax_client::derive("orders", "", "order-42", 0, "receipt");
/// assert_eq!(key, "ec2a383ce95827d036ed0a7ed7f64dff");
/// ```
pub fn derive(queue: &str, group: &str, key: &str, generation: u32, name: &str) -> String {
    hapax_keys::derive(&Parent { queue, group: Some(group), key, generation }, name)
}
