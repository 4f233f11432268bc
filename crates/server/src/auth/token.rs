//! A token: the secret of the caller, and the hash that the broker stores.
//!
//! ```text
//!   hapax_1f0c22a9d3b4_5d3c…64 hexadecimal digits…
//!         └─ id, public └─ secret, 256 random bits
//! ```
//!
//! The broker stores the id and a BLAKE3 hash of the secret. A slow hash, as for passwords,
//! would not protect more: nobody can try 2^256 secrets, however fast the hash. It would only make
//! it easy to overload the broker.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use subtle::{Choice, ConstantTimeEq};

const PREFIX: &str = "hapax_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// The public half of a token: for look-up, listings and logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Id([u8; ID_BYTES]);

/// What is stored of a secret.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Hash([u8; SECRET_BYTES]);

/// The text is not hexadecimal, or not of the right length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the right number of lowercase hexadecimal digits")]
pub(crate) struct NotHex;

/// Creates a token: its text, to be shown once, and what to store of it.
pub(super) fn make() -> Result<(String, Id, Hash), getrandom::Error> {
    let mut id = [0; ID_BYTES];
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut id)?;
    getrandom::fill(&mut secret)?;
    let id = Id(id);
    let secret = hex(&secret);
    let hash = Hash::of(&secret);
    Ok((format!("{PREFIX}{id}_{secret}"), id, hash))
}

/// The two halves of a token's text; `None` if it is not one. The form is public, so the time this
/// takes reveals nothing.
pub(super) fn parse(text: &str) -> Option<(Id, Hash)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let id = id.parse().ok()?;
    (secret.len() == SECRET_BYTES * 2).then(|| (id, Hash::of(secret)))
}

impl Hash {
    /// What an unknown id is compared with, so that it takes as long as a known one.
    pub(super) const NONE: Self = Self([0; SECRET_BYTES]);

    /// The text is hashed as it is: there is one way to write a secret, and no other is accepted.
    fn of(secret: &str) -> Self {
        Self(*blake3::hash(secret.as_bytes()).as_bytes())
    }

    /// Compares in a time that does not depend on where the two differ.
    pub(super) fn is(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Result<[u8; N], NotHex> {
    let digit = |letter: &u8| match letter {
        b'0'..=b'9' => Ok(letter - b'0'),
        b'a'..=b'f' => Ok(letter - b'a' + 10),
        _ => Err(NotHex),
    };
    if text.len() != N * 2 {
        return Err(NotHex);
    }
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Ok(bytes)
}

impl FromStr for Id {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        unhex(text).map(Self)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl TryFrom<String> for Id {
    type Error = NotHex;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

/// Prints no hash: it must not be in a log either.
impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hash(…)")
    }
}

impl TryFrom<String> for Hash {
    type Error = NotHex;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        unhex(&text).map(Self)
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hex(&hash.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_no_two_are_alike() {
        let (text, id, hash) = make().unwrap();
        let (read_id, read_hash) = parse(&text).unwrap();
        assert_eq!(read_id, id);
        assert!(bool::from(read_hash.is(&hash)));
        let (other, other_id, other_hash) = make().unwrap();
        assert_ne!(other, text);
        assert_ne!(other_id, id);
        assert!(!bool::from(other_hash.is(&hash)));
    }

    #[test]
    fn the_hash_tells_nothing_of_the_secret() {
        let (text, _, hash) = make().unwrap();
        let secret = text.rsplit('_').next().unwrap();
        assert_eq!(secret.len(), 64);
        assert!(!String::from(hash).contains(secret));
        assert!(!format!("{hash:?}").contains(&String::from(hash)));
    }

    #[test]
    fn a_changed_digit_is_another_secret_and_a_malformed_text_is_none() {
        let (text, id, hash) = make().unwrap();
        let last = if text.ends_with('0') { "1" } else { "0" };
        let changed = format!("{}{last}", &text[..text.len() - 1]);
        assert!(parse(&changed).is_some_and(|(_, other)| !bool::from(other.is(&hash))));
        // One way to write it: capitals are another secret, though the same number.
        let capitals = text.replace(['a', 'b', 'c', 'd', 'e', 'f'], "A");
        assert!(parse(&capitals).is_none_or(|(_, other)| !bool::from(other.is(&hash))));
        for text in [
            String::new(),
            "hapax_".to_owned(),
            format!("hapax_{id}"),
            format!("hapax_{id}_"),
            text.replace("hapax_", "other_"),
            text.replace("hapax_", "hapax_0"),
            format!("{text}0"),
            text[..text.len() - 1].to_owned(),
        ] {
            assert!(parse(&text).is_none(), "{text}");
        }
    }
}
