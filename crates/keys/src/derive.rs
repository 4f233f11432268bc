//! Derived keys.

use sha2::{Digest as _, Sha256};

/// The first part of every derived key of this version.
const VERSION: &str = "hapax-2";

/// The message that follow-ups derive their keys from.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    pub queue: &'a str,
    /// The group, if the queue deduplicates per group.
    pub group: Option<&'a str>,
    pub key: &'a str,
    pub generation: u32,
}

/// Derives the key of a follow-up or a step: lowercase hex of the first 16 bytes of SHA-256 over
/// the netstrings of `hapax-2`, the parent's queue, its group (empty unless the queue deduplicates
/// per group), its key, its generation as decimal, and the name. The same in every language.
pub fn derive(parent: &Parent<'_>, name: &str) -> String {
    let generation = parent.generation.to_string();
    let group = parent.group.unwrap_or_default();
    digest(&[VERSION, parent.queue, group, parent.key, &generation, name])
}

/// Derives a key as release 0.1 did, over key, generation and name only: what its steps have saved
/// stays valid.
pub fn derive_first(key: &str, generation: u32, name: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.as_bytes()).update(&[0]);
    hasher.update(generation.to_string().as_bytes()).update(&[0]);
    hasher.update(name.as_bytes());
    first_half(hasher.finalize().as_bytes())
}

/// Hashes a list of texts unambiguously: lowercase hex of the first 16 bytes of SHA-256 over their
/// netstrings (`LENGTH:BYTES,`).
pub fn digest(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_string());
        hasher.update(b":");
        hasher.update(part);
        hasher.update(b",");
    }
    first_half(&hasher.finalize().into())
}

fn first_half(hash: &[u8; 32]) -> String {
    let [high, _] = hash.as_chunks::<16>().0 else { unreachable!("32 bytes are twice 16") };
    format!("{:032x}", u128::from_be_bytes(*high))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: Parent<'_> =
        Parent { queue: "payments", group: None, key: "order-42", generation: 0 };

    /// Each is what `printf '7:hapax-2,8:payments,0:,8:order-42,1:0,7:receipt,' | sha256sum |
    /// cut -c1-32` prints for its netstrings.
    #[test]
    fn a_derived_key_is_what_the_documentation_says() {
        let check = |parent: &Parent<'_>, name: &str, key: &str| {
            assert_eq!(derive(parent, name), key, "{parent:?} {name}");
        };
        check(&PARENT, "receipt", "0b8370e7dbbb232a7c3ebeae3c071041");
        let grouped = Parent { group: Some("g"), generation: 10, ..PARENT };
        check(&grouped, "receipt", "5d709f6843c175e07feb9e08066d09c0");
        let orders = Parent { queue: "orders", ..PARENT };
        check(&orders, "receipt", "ec2a383ce95827d036ed0a7ed7f64dff");
        let european = Parent { group: Some("eu"), ..orders };
        check(&european, "charge", "ae8e38f5d2a520608b49c9dc0486e77a");
    }

    #[test]
    fn no_two_operations_share_a_derived_key() {
        let parents = [
            PARENT,
            Parent { queue: "shipping", ..PARENT },
            Parent { group: Some("g"), ..PARENT },
            Parent { key: "order-4", ..PARENT },
            Parent { key: "order-42,1:0,1:a", ..PARENT },
            Parent { generation: 1, ..PARENT },
        ];
        let keys: std::collections::BTreeSet<String> =
            parents.iter().flat_map(|parent| ["a", "b"].map(|name| derive(parent, name))).collect();
        assert_eq!(keys.len(), 2 * parents.len());
    }

    #[test]
    fn keys_of_the_first_release_are_still_known() {
        assert_eq!(derive_first("order-42", 0, "receipt"), "0565ea6d7cff144c61d13c71931a6bd3");
    }
}
