//! Leases on the wire: opaque, and valid for one queue only. A lease is identified by a digest, a
//! sequence number and a fence, which could be guessed. So it is sealed with SipHash-2-4 over these
//! and the queue, under a secret of the broker. Nobody can forge a lease, or use one in another
//! queue or tenant.

use std::fmt;

use hapax_core::{Digest, Fence, LeaseName, QueueName};
use siphasher::sip::SipHasher24;

/// Partition, digest, sequence, fence, seal.
pub const LEASE_BYTES: usize = NAME_BYTES + SEAL_BYTES;
const NAME_BYTES: usize = 2 + 16 + 8 + 8;
const SEAL_BYTES: usize = 8;
const INPUT_BYTES: usize = NAME_BYTES + 16;

/// Seals and opens leases.
#[derive(Clone)]
pub struct Seal {
    hasher: SipHasher24,
    /// Opens leases that 0.1 sealed, with keyed BLAKE3.
    first: Option<[u8; 32]>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    pub fn new(secret: &[u8; 32]) -> Self {
        let key = blake3::derive_key("hapax 2026 seals of leases", secret);
        let Some(key) = key.first_chunk() else { unreachable!("a derived key has 32 bytes") };
        Self { hasher: SipHasher24::new_with_key(key), first: None }
    }

    /// Opens leases of 0.1 too: workers hold them across the upgrade of a broker.
    pub fn opening_first(self, secret: &[u8; 32]) -> Self {
        Self { first: Some(*secret), ..self }
    }

    pub fn seal(&self, queue: &QueueName, partition: u16, lease: &LeaseName) -> [u8; LEASE_BYTES] {
        let mut bytes = [0; LEASE_BYTES];
        let name = name(partition, lease);
        let seal = self.mark(&input(queue, &name));
        let (first, second) = bytes.split_at_mut(NAME_BYTES);
        first.copy_from_slice(&name);
        second.copy_from_slice(&seal);
        bytes
    }

    /// The partition and the lease, if the seal is valid for this queue.
    pub fn open(&self, queue: &QueueName, bytes: &[u8]) -> Option<(u16, LeaseName)> {
        let (name, seal) = bytes.split_first_chunk::<NAME_BYTES>()?;
        let input = input(queue, name);
        let is = |expected: &[u8]| bool::from(subtle::ConstantTimeEq::ct_eq(expected, seal));
        let is_first = || self.first.is_some_and(|secret| is(&first_mark(&secret, &input)));
        if !is(&self.mark(&input)) && !is_first() {
            return None;
        }
        let (partition, rest) = name.split_first_chunk::<2>()?;
        let (digest, rest) = rest.split_first_chunk::<16>()?;
        let (seq, rest) = rest.split_first_chunk::<8>()?;
        let fence = rest.first_chunk::<8>()?;
        let lease = LeaseName {
            digest: Digest(*digest),
            seq: u64::from_le_bytes(*seq),
            fence: Fence(u64::from_le_bytes(*fence)),
        };
        Some((u16::from_le_bytes(*partition), lease))
    }

    fn mark(&self, input: &[u8; INPUT_BYTES]) -> [u8; SEAL_BYTES] {
        self.hasher.hash(input).to_le_bytes()
    }
}

/// The seal of 0.1.
fn first_mark(secret: &[u8; 32], input: &[u8; INPUT_BYTES]) -> [u8; SEAL_BYTES] {
    let hash = blake3::keyed_hash(secret, input);
    let Some(seal) = hash.as_bytes().first_chunk() else {
        unreachable!("a hash has 32 bytes");
    };
    *seal
}

/// The lease, and the hash of the queue that it belongs to.
fn input(queue: &QueueName, name: &[u8; NAME_BYTES]) -> [u8; INPUT_BYTES] {
    let mut input = [0; INPUT_BYTES];
    let (first, second) = input.split_at_mut(NAME_BYTES);
    first.copy_from_slice(name);
    second.copy_from_slice(&queue.digest().0);
    input
}

fn name(partition: u16, lease: &LeaseName) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let parts: [&[u8]; 4] = [
        &partition.to_le_bytes(),
        &lease.digest.0,
        &lease.seq.to_le_bytes(),
        &lease.fence.0.to_le_bytes(),
    ];
    let mut rest = name.as_mut_slice();
    for part in parts {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> LeaseName {
        LeaseName { digest: Digest([7; 16]), seq: 9, fence: Fence::new(3, 5) }
    }

    #[test]
    fn a_lease_opens_under_its_own_queue_and_secret_only() {
        let lease = lease();
        let (orders, other) =
            (QueueName::new("shop", "orders").unwrap(), QueueName::new("bank", "orders").unwrap());
        let seal = Seal::new(&[1; 32]);
        let bytes = seal.seal(&orders, 4, &lease);
        for seal in [seal.clone(), seal.clone().opening_first(&[1; 32])] {
            assert_eq!(seal.open(&orders, &bytes), Some((4, lease)));
            assert_eq!(seal.open(&other, &bytes), None);
            for place in 0..bytes.len() {
                let mut changed = bytes;
                changed[place] ^= 1;
                assert_eq!(seal.open(&orders, &changed), None, "byte {place}");
                assert_eq!(seal.open(&orders, &bytes[..place]), None, "cut at {place}");
            }
            assert_eq!(seal.open(&orders, &[&bytes[..], b"x"].concat()), None);
        }
        assert_eq!(Seal::new(&[2; 32]).open(&orders, &bytes), None);
        // Workers hold leases across restarts and upgrades.
        assert_eq!(hex(&bytes[NAME_BYTES..]), "c8d9aa9695d7e23f");
    }

    #[test]
    fn a_lease_of_0_1_opens_in_data_of_0_1_only() {
        let lease = lease();
        let orders = QueueName::new("shop", "orders").unwrap();
        let name = name(4, &lease);
        let mark = first_mark(&[1; 32], &input(&orders, &name));
        assert_eq!(hex(&mark), "2588732ffe0dbb32");
        let bytes = [&name[..], &mark[..]].concat();
        let seal = Seal::new(&[1; 32]);
        assert_eq!(seal.open(&orders, &bytes), None);
        assert_eq!(seal.clone().opening_first(&[2; 32]).open(&orders, &bytes), None);
        let seal = seal.opening_first(&[1; 32]);
        assert_eq!(seal.open(&orders, &bytes), Some((4, lease)));
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert_eq!(seal.open(&orders, &changed), None, "byte {place}");
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
