//! Keys of follow-ups.

/// The key of what follows from a message: the same for every attempt, another for every replay.
///
/// Lowercase hex of the first 16 bytes of BLAKE3 over the parent's key, a zero byte, the
/// generation as decimal, a zero byte, and the name; the same in every language, and what the
/// broker gives to emits that come without a key. Use it as the idempotency key of calls to other
/// services.
///
/// ```
/// let key = hapax_client::derive("order-42", 0, "receipt");
/// assert_eq!(key, "0565ea6d7cff144c61d13c71931a6bd3");
/// ```
pub fn derive(parent: &str, generation: u32, name: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(parent.as_bytes()).update(&[0]);
    hasher.update(generation.to_string().as_bytes()).update(&[0]);
    hasher.update(name.as_bytes());
    hasher.finalize().to_hex().chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_key_is_what_the_documentation_says() {
        let expected = blake3::hash(b"order-42\x000\0receipt").to_hex()[..32].to_owned();
        assert_eq!(derive("order-42", 0, "receipt"), expected);
        assert_ne!(derive("order-42", 1, "receipt"), expected);
        assert_eq!(expected, "0565ea6d7cff144c61d13c71931a6bd3");
    }
}
