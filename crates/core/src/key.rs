//! Keys: their digest, the fingerprint of what was sent under them, their date, derived keys.

use sha2::{Digest as _, Sha256};

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

/// The message that follow-ups derive their keys from.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a> {
    pub queue: &'a str,
    /// Where the queue deduplicates per group.
    pub group: Option<&'a str>,
    pub key: &'a str,
    pub generation: u32,
}

/// The key of a follow-up or a step: lowercase hex of the first 16 bytes of SHA-256 over the
/// netstrings of `hapax-2`, the parent's queue, its group (empty unless the queue deduplicates per
/// group), its key, its generation as decimal, and the name. The same in every language.
pub fn derive(parent: &Parent<'_>, name: &str) -> String {
    let generation = parent.generation.to_string();
    let group = parent.group.unwrap_or_default();
    netstrings(&["hapax-2", parent.queue, group, parent.key, &generation, name])
}

/// A key for a message whose own is taken by another message: the same message gets the same one.
pub(crate) fn aside(key: &str, fingerprint: &Fingerprint) -> String {
    let body = format!("{:032x}", u128::from_be_bytes(fingerprint.body));
    let parts = format!("{:016x} {}", fingerprint.group, fingerprint.own);
    let unique = netstrings(&["hapax-2 aside", key, &body, &parts]);
    let room = limits::KEY_BYTES_MAX - unique.len() - 1;
    let start = key.get(..key.floor_char_boundary(room)).unwrap_or_default();
    format!("{start}~{unique}")
}

fn netstrings(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_string().as_bytes());
        hasher.update(b":");
        hasher.update(part.as_bytes());
        hasher.update(b",");
    }
    let hash: [u8; 32] = hasher.finalize().into();
    let [low, _] = hash.as_chunks::<16>().0 else { unreachable!("SHA-256 has 32 bytes") };
    format!("{:032x}", u128::from_be_bytes(*low))
}

/// When the key was made, where it tells: a UUIDv7 or a ULID of a believable time. A UUIDv7 tells
/// whatever its time is; a word of 26 letters may look like a ULID by chance, mostly of a time that
/// is thousands of years ahead. A clock that runs ahead by days is no chance: what it dates must
/// not pass for undated now and be new again when its date has come.
pub fn date(key: &str, now: Time) -> Option<Time> {
    let latest = now.plus(limits::ULID_AHEAD_MS).0;
    let uuid = uuid_date(key).filter(|at| *at >= limits::DATED_FROM_MS);
    let ulid = || ulid_date(key).filter(|at| (limits::DATED_FROM_MS..=latest).contains(at));
    uuid.or_else(ulid).map(Time)
}

fn uuid_date(key: &str) -> Option<u64> {
    let value = u128::from_be_bytes(MessageId::parse(key)?.0);
    let (version, variant) = (value >> 76 & 0xf, value >> 62 & 0b11);
    (version == 7 && variant == 0b10).then_some((value >> 80) as u64)
}

fn ulid_date(key: &str) -> Option<u64> {
    if key.len() != 26 {
        return None;
    }
    let mut value = 0u128;
    for (place, letter) in key.bytes().enumerate() {
        let digit = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
            .iter()
            .position(|known| *known == letter.to_ascii_uppercase())?;
        if place == 0 && digit > 7 {
            return None;
        }
        value = value << 5 | digit as u128;
    }
    Some((value >> 80) as u64)
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
    fn a_derived_key_is_what_the_documentation_says() {
        let parent = Parent { queue: "payments", group: None, key: "order-42", generation: 0 };
        // printf '7:hapax-2,8:payments,0:,8:order-42,1:0,7:receipt,' | sha256sum | cut -c1-32
        assert_eq!(derive(&parent, "receipt"), "0b8370e7dbbb232a7c3ebeae3c071041");
        // printf '7:hapax-2,8:payments,1:g,8:order-42,2:10,7:receipt,' | sha256sum | cut -c1-32
        let grouped = Parent { group: Some("g"), generation: 10, ..parent };
        assert_eq!(derive(&grouped, "receipt"), "5d709f6843c175e07feb9e08066d09c0");
        for other in [
            Parent { queue: "shipping", ..parent },
            Parent { group: Some("g"), ..parent },
            Parent { key: "order-4", ..parent },
            Parent { generation: 1, ..parent },
        ] {
            assert_ne!(derive(&other, "receipt"), derive(&parent, "receipt"), "{other:?}");
        }
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

    #[test]
    fn k8_uuid_v7_and_ulid_tell_their_date_and_nothing_else_does() {
        let now = Time(1_700_000_000_000);
        assert_eq!(date("018bcfe5-6800-7000-8000-000000000001", now), Some(Time(0x018b_cfe5_6800)));
        assert_eq!(date("018bcfe5-6800-4000-8000-000000000001", now), None);
        assert_eq!(date("01HF7YAT0000000000000000AB", now), Some(Time(0x018b_cfe5_6800)));
        assert_eq!(date("ORDERORDERORDERORDERORDER1", now), None);
        assert_eq!(date("order-42", now), None);
        let (days, far) = (now.0 - 3 * 86_400_000, now.0 - 367 * 86_400_000);
        let ahead = |now| date("01HF7YAT0000000000000000AB", Time(now));
        assert_eq!((ahead(days), ahead(far)), (Some(Time(0x018b_cfe5_6800)), None));
    }
}
