//! Leases on the wire: opaque, and valid for one queue only. A lease is identified by a digest, a
//! sequence number and a fence, which could be guessed. So it is sealed with 8 bytes of keyed
//! BLAKE3 over these and the queue. Nobody can forge a lease, or use one in another queue or
//! tenant.

use hapax_core::{Digest, Fence, LeaseName, QueueName};

/// Partition, digest, sequence, fence, seal.
pub const LEASE_BYTES: usize = NAME_BYTES + SEAL_BYTES;
const NAME_BYTES: usize = 2 + 16 + 8 + 8;
const SEAL_BYTES: usize = 8;

/// Seals and opens leases.
#[derive(Clone, Debug)]
pub struct Seal {
    secret: [u8; 32],
}

impl Seal {
    pub fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    pub fn seal(&self, queue: &QueueName, partition: u16, lease: &LeaseName) -> [u8; LEASE_BYTES] {
        let mut bytes = [0; LEASE_BYTES];
        let name = name(partition, lease);
        let seal = self.mark(queue, &name);
        let (first, second) = bytes.split_at_mut(NAME_BYTES);
        first.copy_from_slice(&name);
        second.copy_from_slice(&seal);
        bytes
    }

    /// The partition and the lease, where the seal is ours and for this queue.
    pub fn open(&self, queue: &QueueName, bytes: &[u8]) -> Option<(u16, LeaseName)> {
        let (name, seal) = bytes.split_first_chunk::<NAME_BYTES>()?;
        let expected = self.mark(queue, name);
        if !bool::from(subtle::ConstantTimeEq::ct_eq(&expected[..], seal)) {
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

    /// Name and the queue's hash fit one block of the hash, so a seal costs one compression.
    fn mark(&self, queue: &QueueName, name: &[u8; NAME_BYTES]) -> [u8; SEAL_BYTES] {
        let mut input = [0; NAME_BYTES + 16];
        let (first, second) = input.split_at_mut(NAME_BYTES);
        first.copy_from_slice(name);
        second.copy_from_slice(&queue.digest().0);
        let hash = blake3::keyed_hash(&self.secret, &input);
        let [seal, ..] = hash.as_bytes().as_chunks::<SEAL_BYTES>().0 else {
            unreachable!("a hash has 32 bytes");
        };
        *seal
    }
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

    #[test]
    fn a_lease_opens_under_its_own_queue_and_secret_only() {
        let lease = LeaseName { digest: Digest([7; 16]), seq: 9, fence: Fence::new(3, 5) };
        let (orders, other) =
            (QueueName::new("shop", "orders").unwrap(), QueueName::new("bank", "orders").unwrap());
        let seal = Seal::new([1; 32]);
        let bytes = seal.seal(&orders, 4, &lease);
        assert_eq!(seal.open(&orders, &bytes), Some((4, lease)));
        assert_eq!(seal.open(&other, &bytes), None);
        assert_eq!(Seal::new([2; 32]).open(&orders, &bytes), None);
        for place in 0..bytes.len() {
            let mut changed = bytes;
            changed[place] ^= 1;
            assert_eq!(seal.open(&orders, &changed), None, "byte {place}");
            assert_eq!(seal.open(&orders, &bytes[..place]), None, "cut at {place}");
        }
    }
}
