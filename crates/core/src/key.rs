//! Keys: their digest, their fingerprint, and their date. The [`Recipe`](crate::recipe::Recipe) of
//! the data computes the first two.

use crate::command::QueueName;
use crate::ids::{MessageId, Time};
use crate::limits;

/// Identifies a key: 128 bits of BLAKE3 over tenant, queue, group (if the queue deduplicates per
/// group) and key, so that scopes do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// The digest of an id that is not a key: of a redrive or a receive. It is the same under every
    /// recipe.
    pub fn of_id(queue: &QueueName, kind: &str, id: &str) -> Self {
        Self::of_names(queue, kind, id)
    }

    /// The digest of a key under the first recipe.
    pub(crate) fn of_names(queue: &QueueName, group: &str, key: impl AsRef<[u8]>) -> Self {
        let [tenant, queue, group] = [&queue.tenant, &queue.queue, group].map(str::as_bytes);
        Self::of(b'k', &[tenant, queue, group, key.as_ref()])
    }

    /// The digest of a group. By the queue's number, because an older queue of the same name may
    /// still be being deleted.
    pub(crate) fn of_group(queue: u32, group: &str) -> Self {
        Self::of(b'g', &[&queue.to_be_bytes(), group.as_bytes()])
    }

    /// See [`Digest::of_group`].
    pub(crate) fn of_receive(queue: u32, receive_id: &str) -> Self {
        Self::of(b'r', &[&queue.to_be_bytes(), receive_id.as_bytes()])
    }

    /// See [`Digest::of_group`].
    pub(crate) fn of_claim(queue: u32, claim_id: &str) -> Self {
        Self::of(b'c', &[&queue.to_be_bytes(), claim_id.as_bytes()])
    }

    /// The digest of what a redrive asks for.
    pub(crate) fn of_redrive(asked: &[u8]) -> Self {
        Self::of(b'd', &[asked])
    }

    /// The digest of a message without a key. Nobody can make a key whose BLAKE3 is the id of a
    /// future message.
    pub(crate) fn of_keyless(id: MessageId) -> Self {
        Self(id.0)
    }

    fn of(kind: u8, parts: &[&[u8]]) -> Self {
        Self(first_half(&hash(kind, parts)))
    }

    /// Well-mixed bits for hash tables. `seed` keeps callers from causing collisions, and the
    /// digests of messages without keys, which count up, are spread as well.
    pub(crate) fn spread(&self, seed: u64) -> u64 {
        let [a, b] = self.halves();
        let fold = |product: u128| product as u64 ^ (product >> 64) as u64;
        let mixed = fold(
            u128::from(a ^ seed ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db),
        );
        fold(u128::from(mixed) * 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn halves(&self) -> [u64; 2] {
        let value = u128::from_le_bytes(self.0);
        [value as u64, (value >> 64) as u64]
    }
}

/// What was sent under a key, in parts, so that a conflict can report what differs. The content
/// type is not included: clients set it differently for the same operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the body, or of the fingerprint that the caller gave instead.
    pub body: [u8; 16],
    /// Hash of the group; zero if there is none.
    pub group: u64,
    /// Whether the caller gave its own fingerprint.
    pub own: bool,
}

impl Fingerprint {
    /// The parts that differ; empty if none does.
    pub fn differs(&self, other: &Self) -> Vec<Differs> {
        if self == other {
            return Vec::new();
        }
        if self.own || other.own {
            return vec![Differs::Fingerprint];
        }
        let parts =
            [(self.body != other.body, Differs::Body), (self.group != other.group, Differs::Group)];
        parts.into_iter().filter_map(|(differs, what)| differs.then_some(what)).collect()
    }
}

/// A part of a message in which a second send differs from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Differs {
    Body,
    Group,
    /// The fingerprints differ, and at least one was given by the caller.
    Fingerprint,
}

/// A key for a message whose own is taken by another message; deterministic.
pub(crate) fn aside(key: &str, fingerprint: &Fingerprint) -> String {
    let body = format!("{:032x}", u128::from_be_bytes(fingerprint.body));
    let parts = format!("{:016x} {}", fingerprint.group, fingerprint.own);
    let unique = hapax_keys::digest(&["hapax-2 aside", key, &body, &parts]);
    let room = limits::KEY_BYTES_MAX - unique.len() - 1;
    let start = key.get(..key.floor_char_boundary(room)).unwrap_or_default();
    format!("{start}~{unique}")
}

/// The date that the key carries, if any; see [`hapax_keys::date_ms`].
pub fn date(key: impl AsRef<[u8]>, now: Time) -> Option<Time> {
    hapax_keys::date_ms(key, now.0).map(Time)
}

/// The hash of the queue's full name.
pub(crate) fn hash_of_queue(tenant: &str, queue: &str) -> blake3::Hash {
    hash(b'q', &[tenant, queue].map(str::as_bytes))
}

/// BLAKE3 over the parts, each with its length.
fn hash(kind: u8, parts: &[&[u8]]) -> blake3::Hash {
    // One update of one buffer: a short name is hashed in a single block.
    let mut buffer = [0u8; 1 + 4 * 256];
    let mut length = 0;
    let mut push = |bytes: &[u8]| {
        let end = length + bytes.len();
        let Some(room) = buffer.get_mut(length..end) else {
            unreachable!("names are bounded before they are hashed");
        };
        room.copy_from_slice(bytes);
        length = end;
    };
    push(&[kind]);
    for part in parts {
        // Names longer than any key occur now and then; they must not collide with others.
        let Ok(len) = u8::try_from(part.len()) else { return hash_long(kind, parts) };
        push(&[len]);
        push(part);
    }
    blake3::hash(buffer.get(..length).unwrap_or_default())
}

fn hash_long(kind: u8, parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind | 0x80]);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}

pub(crate) fn first_half(hash: &blake3::Hash) -> [u8; 16] {
    let [low, _] = hash.as_bytes().as_chunks::<16>().0 else {
        unreachable!("a BLAKE3 hash has 32 bytes");
    };
    *low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn messages_without_keys_do_not_crowd_together_in_tables() {
        const COUNT: u64 = 1 << 16;
        for (at, seed) in [(0, 0), (1_763_164_800_000, 7), (1_763_164_800_001, u64::MAX)] {
            let mut places = std::collections::BTreeSet::new();
            let mut tags = [0u32; 128];
            for seq in 0..COUNT {
                let id = MessageId::new(Time(at), 3, 1_000_000 + seq);
                let hash = Digest::of_keyless(id).spread(seed);
                places.insert(hash % COUNT);
                tags[(hash >> 57) as usize] += 1;
            }
            // Random values take 63 % of the places, and every tag 512 times.
            assert!(places.len() > 35_000, "{} places, seed {seed}", places.len());
            assert!(tags.iter().all(|count| (256..1_024).contains(count)), "{tags:?}, seed {seed}");
        }
    }

    #[test]
    fn a_key_made_aside_is_a_key_and_another_for_every_content() {
        let of = |body: &[u8]| Recipe::second(&[7; 32]).fingerprint(body, None);
        let (one, two) = (of(b"1"), of(b"2"));
        let long = "\u{fc}".repeat(127);
        for key in ["order-42", &long] {
            let made = aside(key, &one);
            assert!(made.len() <= limits::KEY_BYTES_MAX && made.starts_with(&key[..8]), "{made}");
            assert_eq!(made, aside(key, &one));
            assert_ne!(made, aside(key, &two));
            assert_ne!(made, aside(key, &Fingerprint { own: true, ..one }));
        }
    }
}
