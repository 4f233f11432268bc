//! Keys: their digest, the fingerprint of what was sent under them, and their date.

use crate::ids::{MessageId, Time};
use crate::limits;

/// What a key is compared by: 128 bits of BLAKE3 over tenant, queue, group (where the queue
/// deduplicates per group) and key, each with its length, so that no two scopes run into each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    pub fn of_key(tenant: &str, queue: &str, group: Option<&str>, key: &str) -> Self {
        let group = group.unwrap_or_default();
        let parts = [tenant, queue, group, key];
        Self::of(b'k', &parts.map(str::as_bytes))
    }

    pub(crate) fn of_queue(tenant: &str, queue: &str) -> Self {
        Self::of(b'q', &[tenant, queue].map(str::as_bytes))
    }

    /// By the queue's number: an older queue of the same name may be on its way out.
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

    /// The digest of a message that came without a key. Nobody can make a key whose BLAKE3 is the
    /// id of a message to come.
    pub(crate) fn of_keyless(id: MessageId) -> Self {
        Self(id.0)
    }

    fn of(kind: u8, parts: &[&[u8]]) -> Self {
        // One update of one buffer: the common key is hashed in a single block.
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
            // A name longer than any key is asked for now and then; it must not be another's.
            let Ok(len) = u8::try_from(part.len()) else { return Self::of_long(kind, parts) };
            push(&[len]);
            push(part);
        }
        Self(first_half(&blake3::hash(buffer.get(..length).unwrap_or_default())))
    }

    fn of_long(kind: u8, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[kind | 0x80]);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self(first_half(&hasher.finalize()))
    }

    /// Well-mixed bits for tables; `seed` keeps callers from aiming at one place of them. Also the
    /// digests of messages without keys, which count up, must not crowd together there.
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

/// What was sent under a key, in parts, so that a conflict can say what differs. The content type
/// is no part of it: clients set it differently for the same operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the body, or of the fingerprint that the caller gave instead.
    pub body: [u8; 16],
    /// Zero where there is none.
    pub group: u64,
    /// The caller gave its own.
    pub own: bool,
}

impl Fingerprint {
    pub fn of(body: &[u8], group: Option<&str>) -> Self {
        Self::of_hashed(&blake3::hash(body), group)
    }

    /// As [`Fingerprint::of`], of a body that was hashed on its way and not kept.
    pub fn of_hashed(body: &blake3::Hash, group: Option<&str>) -> Self {
        Self { body: first_half(body), group: group.map_or(0, part), own: false }
    }

    /// For callers whose bodies carry noise.
    pub fn own(fingerprint: &str) -> Self {
        let body = first_half(&blake3::hash(fingerprint.as_bytes()));
        Self { body, group: 0, own: true }
    }

    /// What differs; empty where nothing does.
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
    /// One of the two was given by the caller, and they are not the same.
    Fingerprint,
}

/// A key for a message whose own is taken by another message: the same message gets the same one.
pub(crate) fn aside(key: &str, fingerprint: &Fingerprint) -> String {
    let body = format!("{:032x}", u128::from_be_bytes(fingerprint.body));
    let parts = format!("{:016x} {}", fingerprint.group, fingerprint.own);
    let unique = hapax_keys::digest(&["hapax-2 aside", key, &body, &parts]);
    let room = limits::KEY_BYTES_MAX - unique.len() - 1;
    let start = key.get(..key.floor_char_boundary(room)).unwrap_or_default();
    format!("{start}~{unique}")
}

/// When the key was made, where it tells; see [`hapax_keys::date_ms`].
pub fn date(key: &str, now: Time) -> Option<Time> {
    hapax_keys::date_ms(key, now.0).map(Time)
}

fn part(text: &str) -> u64 {
    let [low, _] = Digest(first_half(&blake3::hash(text.as_bytes()))).halves();
    low | 1 // Zero says that there is none.
}

fn first_half(hash: &blake3::Hash) -> [u8; 16] {
    let [low, _] = hash.as_bytes().as_chunks::<16>().0 else {
        unreachable!("a BLAKE3 hash has 32 bytes");
    };
    *low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k11_scopes_do_not_run_into_each_other() {
        let digests = [
            Digest::of_key("a", "bc", None, "d"),
            Digest::of_key("ab", "c", None, "d"),
            Digest::of_key("a", "b", None, "cd"),
            Digest::of_key("a", "b", Some("c"), "d"),
            Digest::of_queue("a", "b"),
            Digest::of_group(7, "d"),
        ];
        for (place, digest) in digests.iter().enumerate() {
            assert!(!digests[place + 1..].contains(digest));
        }
    }

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
            // At random 63 % of the places are taken, and every tag comes 512 times.
            assert!(places.len() > 35_000, "{} places, seed {seed}", places.len());
            assert!(tags.iter().all(|count| (256..1_024).contains(count)), "{tags:?}, seed {seed}");
        }
    }

    #[test]
    fn k3_a_fingerprint_names_what_differs() {
        let first = Fingerprint::of(b"body", Some("g"));
        assert_eq!(first.differs(&Fingerprint::of(b"body", Some("g"))), []);
        assert_eq!(first.differs(&Fingerprint::of(b"other", Some("g"))), [Differs::Body]);
        assert_eq!(
            first.differs(&Fingerprint::of(b"other", None)),
            [Differs::Body, Differs::Group]
        );
        assert_eq!(first.differs(&Fingerprint::own("x")), [Differs::Fingerprint]);
        assert_eq!(Fingerprint::own("x").differs(&Fingerprint::own("x")), []);
    }

    #[test]
    fn a_key_made_aside_is_a_key_and_another_for_every_content() {
        let (one, two) = (Fingerprint::of(b"1", None), Fingerprint::of(b"2", None));
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
