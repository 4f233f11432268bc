//! How keys and bodies are hashed.
//!
//! A [`Recipe`] belongs to data: what was remembered under one recipe is not found under another,
//! and a retry would be taken for a new operation. So data keeps the recipe it was created with,
//! and nothing hashes a key or a body without one. All partitions of a broker share a recipe; a
//! caller MUST open data with the recipe it was created with.
//!
//! A key's digest is cryptographic under every recipe, because nobody may be able to make two keys
//! collide (K11). A fingerprint detects mistakes and is compared with one other only, so a fast
//! hash with a secret is enough (K3). docs/decisions/0020-hashing-recipes.md has the argument.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3, Xxh3Builder, xxh3_64_with_secret, xxh3_128_with_secret};

use crate::command::QueueName;
use crate::key::{Digest, Fingerprint, first_half};

/// How the keys and bodies of some data are hashed; fixed when the data is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// The recipe of 0.1. Keys: BLAKE3 over tenant, queue, group and key. Bodies: BLAKE3.
    First,
    /// Keys: BLAKE3 over group and key, keyed with the hash of the queue's name, so that an
    /// ordinary key takes one compression. Bodies: XXH3-128 under a secret.
    Second(Secret),
}

/// The secret with which bodies are hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

/// The length of an XXH3 secret.
const SECRET_BYTES: usize = 192;

/// Group and key of this many bytes, with the length of the group, are one block of BLAKE3.
const BLOCK_BYTES: usize = 64;
/// The longest group with a length of one byte, and the longest key.
const NAMES_BYTES: usize = 1 + 127 + 255;

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Recipe {
    /// The recipe for new data. The secret is random and stored with the data.
    pub fn second(secret: &[u8; 32]) -> Self {
        let mut bytes = [0; SECRET_BYTES];
        let mut hasher = blake3::Hasher::new_derive_key("hapax 2026 fingerprints of bodies");
        hasher.update(secret).finalize_xof().fill(&mut bytes);
        Self::Second(Secret(bytes))
    }

    /// The digest of a key of the queue; with the group if the queue deduplicates per group.
    pub fn key(&self, queue: &QueueName, group: Option<&str>, key: impl AsRef<[u8]>) -> Digest {
        let (group, key) = (group.unwrap_or_default(), key.as_ref());
        match self {
            Self::First => Digest::of_names(queue, group, key),
            Self::Second(_) => {
                let hash = keyed::<BLOCK_BYTES>(queue.hashed(), group, key)
                    .or_else(|| keyed::<NAMES_BYTES>(queue.hashed(), group, key));
                // Names longer than any key occur now and then.
                let hash = hash.unwrap_or_else(|| keyed_long(queue.hashed(), group, key));
                Digest(first_half(&hash))
            }
        }
    }

    /// The digest that chooses the partition of a message of this group.
    pub fn group(&self, queue: &QueueName, group: &str) -> Digest {
        self.key(queue, Some(group), "")
    }

    /// The digest that chooses the partition of a queue that lives in one.
    pub fn queue(&self, queue: &QueueName) -> Digest {
        match self {
            Self::First => Digest::of_names(queue, "", ""),
            Self::Second(_) => queue.digest(),
        }
    }

    /// The fingerprint of a message.
    pub fn fingerprint(&self, body: &[u8], group: Option<&str>) -> Fingerprint {
        Fingerprint { body: self.body(body), group: self.group_part(group), own: false }
    }

    /// The fingerprint that a caller gave, for bodies that differ between retries.
    pub fn own(&self, fingerprint: &str) -> Fingerprint {
        Fingerprint { body: self.body(fingerprint.as_bytes()), group: 0, own: true }
    }

    /// For a body that comes in parts and is not kept.
    pub fn hasher(&self) -> BodyHasher {
        let state = match self {
            Self::First => State::First(Box::new(blake3::Hasher::new())),
            Self::Second(Secret(secret)) => {
                State::Second(Box::new(Xxh3Builder::new().with_secret(*secret).build()))
            }
        };
        BodyHasher { recipe: *self, state, count: 0 }
    }

    fn body(&self, bytes: &[u8]) -> [u8; 16] {
        match self {
            Self::First => first_half(&blake3::hash(bytes)),
            Self::Second(Secret(secret)) => xxh3_128_with_secret(bytes, secret).to_le_bytes(),
        }
    }

    /// The group's part of a fingerprint; zero if there is no group.
    fn group_part(&self, group: Option<&str>) -> u64 {
        let Some(group) = group.map(str::as_bytes) else { return 0 };
        let hash = match self {
            Self::First => Digest(first_half(&blake3::hash(group))).halves()[0],
            Self::Second(Secret(secret)) => xxh3_64_with_secret(group, secret),
        };
        hash | 1
    }
}

/// Hashes a body that arrives in parts.
#[derive(Clone)]
pub struct BodyHasher {
    recipe: Recipe,
    state: State,
    count: u64,
}

#[derive(Clone)]
enum State {
    First(Box<blake3::Hasher>),
    Second(Box<Xxh3>),
}

impl fmt::Debug for BodyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyHasher").field("count", &self.count).finish_non_exhaustive()
    }
}

impl BodyHasher {
    pub fn update(&mut self, part: &[u8]) {
        self.count += part.len() as u64;
        match &mut self.state {
            State::First(hasher) => drop(hasher.update(part)),
            State::Second(hasher) => hasher.update(part),
        }
    }

    /// Bytes hashed so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Equal to [`Recipe::fingerprint`] of all parts.
    pub fn fingerprint(&self, group: Option<&str>) -> Fingerprint {
        let body = match &self.state {
            State::First(hasher) => first_half(&hasher.finalize()),
            State::Second(hasher) => hasher.digest128().to_le_bytes(),
        };
        Fingerprint { body, group: self.recipe.group_part(group), own: false }
    }
}

/// Hashes the length of the group, the group and the key, where they fit together. The queue's hash
/// is not a secret: as the hash key it separates queues from each other.
fn keyed<const BYTES: usize>(queue: &[u8; 32], group: &str, key: &[u8]) -> Option<blake3::Hash> {
    let mut buffer = [0; BYTES];
    let (length, names) = buffer.split_first_mut()?;
    *length = u8::try_from(group.len()).ok().filter(|length| *length < 0x80)?;
    let (at_group, rest) = names.split_at_mut_checked(group.len())?;
    at_group.copy_from_slice(group.as_bytes());
    rest.get_mut(..key.len())?.copy_from_slice(key);
    Some(blake3::keyed_hash(queue, buffer.get(..1 + group.len() + key.len())?))
}

/// Like `keyed` for any length. The length of the group, as LEB128, separates group and key.
fn keyed_long(queue: &[u8; 32], group: &str, key: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(queue);
    let mut length = group.len();
    while length >= 0x80 {
        hasher.update(&[length as u8 | 0x80]);
        length >>= 7;
    }
    hasher.update(&[length as u8]).update(group.as_bytes()).update(key);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Differs;

    fn both() -> [Recipe; 2] {
        [Recipe::First, Recipe::second(&[7; 32])]
    }

    fn queue(tenant: &str, name: &str) -> QueueName {
        QueueName::new(tenant, name).unwrap()
    }

    #[test]
    fn k11_scopes_do_not_run_into_each_other() {
        let long = "x".repeat(127);
        for recipe in both() {
            let digests = [
                recipe.key(&queue("a", "bc"), None, "d"),
                recipe.key(&queue("ab", "c"), None, "d"),
                recipe.key(&queue("a", "b"), None, "cd"),
                recipe.key(&queue("a", "b"), Some("c"), "d"),
                recipe.key(&queue("a", "b"), None, "\u{1}cd"),
                recipe.key(&queue("a", "b"), Some(&format!("{long}y")), "z"),
                recipe.key(&queue("a", "b"), Some(&long), "yz"),
                recipe.key(&queue("a", "b"), None, "k".repeat(600)),
                recipe.key(&queue("a", "b"), None, "k".repeat(601)),
                queue("a", "b").digest(),
                Digest::of_group(7, "d"),
            ];
            for (place, digest) in digests.iter().enumerate() {
                assert!(!digests[place + 1..].contains(digest), "{recipe:?} {place}");
            }
        }
    }

    #[test]
    fn keys_have_one_digest_however_long_they_are() {
        let queue = queue("shop", "orders");
        let all = "0123456789abcdef".repeat(64);
        for group in [0, 1, 30, 127, 128, 255, 300] {
            for key in [0, 1, 36, 61, 62, 63, 64, 200, 255, 256, 700] {
                let (group, key) = (&all[..group], &all[..key]);
                let long = keyed_long(queue.hashed(), group, key.as_bytes());
                for short in [keyed::<BLOCK_BYTES>, keyed::<NAMES_BYTES>]
                    .map(|it| it(queue.hashed(), group, key.as_bytes()))
                {
                    assert!(short.is_none_or(|short| short == long));
                }
                let digest = Recipe::second(&[1; 32]).key(&queue, Some(group), key);
                assert_eq!(digest, Digest(first_half(&long)));
            }
        }
        assert!(
            keyed::<BLOCK_BYTES>(queue.hashed(), "", &all.as_bytes()[..63]).is_some(),
            "one block"
        );
        assert!(
            keyed::<NAMES_BYTES>(queue.hashed(), &all[..127], &all.as_bytes()[..255]).is_some()
        );
    }

    /// Stored digests must match for ever.
    #[test]
    fn the_bytes_of_every_recipe_stay_as_they_are() {
        let hex = |bytes: [u8; 16]| format!("{:032x}", u128::from_be_bytes(bytes));
        let queue = queue("default", "orders");
        let of = |recipe: Recipe| {
            let fingerprint = recipe.fingerprint(b"one book", Some("g"));
            [
                hex(recipe.key(&queue, None, "order-42").0),
                hex(recipe.key(&queue, Some("g"), "order-42").0),
                hex(recipe.group(&queue, "g").0),
                hex(recipe.queue(&queue).0),
                hex(fingerprint.body),
                format!("{:016x}", fingerprint.group),
                hex(recipe.own("x").body),
                hex(recipe.fingerprint(&[b'x'; 1_000], None).body),
            ]
        };
        let first = [
            "8e7884bc4798876355f2bdf0e662443c",
            "bec8517f9df2c3ac0128388fc0c42756",
            "0f9ceb25383284ba978db8c617f5c9cc",
            "508ffddab9a5bfb0fcb5b115272541bf",
            "aefe84bb451ac0589332f1412f1f4869",
            "d3a0a2e1de315a81",
            "3ae7d805f6789a6402acb70ad4096a85",
            "ff6f2cf7750b0d32858b758ef1cd7971",
        ];
        assert_eq!(of(Recipe::First), first);
        let second = [
            "d56b18d08706335cda7e58bc73a08b18",
            "eba3212c8c2fd75843b02caae8d56c48",
            "3e0e3891f7595ed7eadb843ff5fb8a78",
            "1781c937fcb35e298635d38244cd3980",
            "5d400b362f59f3b22dd0d4cf03412302",
            "a0978215c6cf8727",
            "932c4f94e4688353193aa778eb783896",
            "85f4a50c56168e464dce7dad5778762b",
        ];
        assert_eq!(of(Recipe::second(&[7; 32])), second);
    }

    #[test]
    fn k11_the_key_digest_does_not_depend_on_the_secret() {
        let queue = queue("default", "orders");
        let [one, two] = [[1; 32], [2; 32]].map(|secret| Recipe::second(&secret));
        assert_eq!(one.key(&queue, None, "a"), two.key(&queue, None, "a"));
        assert_ne!(one.fingerprint(b"a", None), two.fingerprint(b"a", None));
    }

    #[test]
    fn k3_a_body_in_parts_has_the_fingerprint_of_the_whole() {
        let body: Vec<u8> = (0..5_000_u32).map(|n| (n * 31 % 251) as u8).collect();
        for recipe in both() {
            for length in [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 256, 257, 1_024, 5_000] {
                let whole = recipe.fingerprint(&body[..length], Some("g"));
                for step in [1, 7, 64, 255, 256, 1_000, 5_000] {
                    let mut hasher = recipe.hasher();
                    body[..length].chunks(step).for_each(|part| hasher.update(part));
                    assert_eq!(hasher.count(), length as u64);
                    let parts = hasher.fingerprint(Some("g"));
                    assert_eq!(parts, whole, "{recipe:?}, {length} bytes in parts of {step}");
                }
            }
        }
    }

    #[test]
    fn k3_a_fingerprint_names_what_differs() {
        for recipe in both() {
            let of = |body: &str, group| recipe.fingerprint(body.as_bytes(), group);
            let first = of("body", Some("g"));
            assert_eq!(first.differs(&of("body", Some("g"))), []);
            assert_eq!(first.differs(&of("other", Some("g"))), [Differs::Body]);
            assert_eq!(first.differs(&of("body", Some("h"))), [Differs::Group]);
            assert_eq!(first.differs(&of("other", None)), [Differs::Body, Differs::Group]);
            assert_eq!(first.differs(&recipe.own("body")), [Differs::Fingerprint]);
            assert_eq!(recipe.own("x").differs(&recipe.own("x")), []);
            assert_eq!(recipe.own("x").differs(&recipe.own("y")), [Differs::Fingerprint]);
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Recipe::second(&[7; 32])), "Second(Secret)");
    }
}
