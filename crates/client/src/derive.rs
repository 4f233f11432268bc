//! Derives the keys of follow-up messages.

use sha2::{Digest, Sha256};

/// What derived keys of this version begin with.
const VERSION: &str = "hapax-2";

/// The key of what follows from a message: the same for every attempt, another for every replay.
///
/// Lowercase hex of the first 16 bytes of SHA-256 over six netstrings (`LENGTH:BYTES,`): `hapax-2`,
/// the queue, the group, the key, the generation as decimal, and the name. The group is empty
/// unless the queue deduplicates per group. It is the same in every language, and what the broker
/// gives to emits that come without a key. Use it as the idempotency key of calls to other
/// services; [`Delivery::derive`](crate::Delivery::derive) knows all parts but the name.
///
/// ```
/// let key = hapax_client::derive("orders", "", "order-42", 0, "receipt");
/// assert_eq!(key, "ec2a383ce95827d036ed0a7ed7f64dff");
/// ```
pub fn derive(queue: &str, group: &str, key: &str, generation: u32, name: &str) -> String {
    let mut hasher = Sha256::new();
    for part in [VERSION, queue, group, key, &generation.to_string(), name] {
        hasher.update(format!("{}:", part.len()));
        hasher.update(part);
        hasher.update(",");
    }
    hex(&hasher.finalize())
}

/// The key that release 0.1 derived, over the key, the generation and the name alone: what its
/// steps have saved stays valid.
pub(crate) fn derive_first(key: &str, generation: u32, name: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.as_bytes()).update(&[0]);
    hasher.update(generation.to_string().as_bytes()).update(&[0]);
    hasher.update(name.as_bytes());
    hex(hasher.finalize().as_bytes())
}

/// The first 16 bytes.
fn hex(digest: &[u8]) -> String {
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_key_is_what_the_documentation_says() {
        let whole = Sha256::digest(b"7:hapax-2,6:orders,0:,8:order-42,1:0,7:receipt,");
        let key = derive("orders", "", "order-42", 0, "receipt");
        assert_eq!(key, hex(&whole));
        assert_eq!(key, "ec2a383ce95827d036ed0a7ed7f64dff");
        let key = derive("orders", "eu", "order-42", 0, "charge");
        assert_eq!(key, "ae8e38f5d2a520608b49c9dc0486e77a");
    }

    #[test]
    fn no_two_operations_share_a_derived_key() {
        let keys = [
            derive("orders", "", "k", 0, "a"),
            derive("other", "", "k", 0, "a"),
            derive("orders", "g", "k", 0, "a"),
            derive("orders", "", "l", 0, "a"),
            derive("orders", "", "k", 1, "a"),
            derive("orders", "", "k", 0, "b"),
            derive("orders", "", "k,1:0,1:a", 0, "a"),
        ];
        let different: std::collections::HashSet<&String> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn keys_of_the_first_release_are_still_known() {
        assert_eq!(derive_first("order-42", 0, "receipt"), "0565ea6d7cff144c61d13c71931a6bd3");
    }
}
