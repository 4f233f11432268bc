//! The messages of a run. Each is made from its number alone, so both ends can make it: the
//! producer to send it, the worker to compare every byte of what it got.

use anyhow::{Context, Result, ensure};
use uuid::Uuid;

/// Length of the smallest body, which is the number of its message.
pub const NUMBER_BYTES: usize = 8;

/// Number of places in the pool where a body may begin.
const PLACES: u64 = 4_096;

#[derive(Clone, Debug)]
pub struct Messages {
    count: u64,
    size: usize,
    seed: u64,
    /// Random bytes. The number in a body is followed by a piece of them that depends on it:
    /// copying is cheaper than making bytes, and the client's CPU time is part of the figures.
    pool: Vec<u8>,
}

impl Messages {
    /// Another seed makes other keys and other bodies. A body has at least [`NUMBER_BYTES`].
    pub fn new(count: u64, size: usize, seed: u64) -> Self {
        let size = size.max(NUMBER_BYTES);
        let words = (size as u64 + PLACES).div_ceil(8);
        let word = |place: u64| mix(place.wrapping_mul(GOLDEN) ^ seed).to_le_bytes();
        Self { count, size, seed, pool: (0..words).flat_map(word).collect() }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// A UUID of version 4, made of the number and the seed.
    pub fn key(&self, number: u64) -> Uuid {
        let first = mix(number ^ mix(self.seed));
        let second = mix(first ^ self.seed);
        let random = u128::from(first) << 64 | u128::from(second);
        uuid::Builder::from_random_bytes(random.to_le_bytes()).into_uuid()
    }

    pub fn body(&self, number: u64) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.size);
        self.write_body(number, &mut body);
        body
    }

    /// Replaces the content of `body`: the number first, then bytes that do not compress.
    pub fn write_body(&self, number: u64, body: &mut Vec<u8>) {
        body.clear();
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(self.rest(number));
    }

    /// The number of a message, if it is unchanged. Its key is compared if it has one.
    pub fn verify(&self, key: Option<Uuid>, body: &[u8]) -> Result<u64> {
        let (number, rest) =
            body.split_first_chunk::<NUMBER_BYTES>().context("a body without its number")?;
        let number = u64::from_le_bytes(*number);
        ensure!(number < self.count, "message {number} was never sent");
        ensure!(rest == self.rest(number), "the body of message {number} was changed");
        let is_own_key = key.is_none_or(|key| key == self.key(number));
        ensure!(is_own_key, "the key of message {number} was changed");
        Ok(number)
    }

    fn rest(&self, number: u64) -> &[u8] {
        let place = (mix(number ^ self.seed) % PLACES) as usize;
        // The pool is longer than a body by as many bytes as there are places.
        self.pool.get(place..place + self.size - NUMBER_BYTES).unwrap_or_default()
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64, which is a bijection.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_size_that_was_asked_for() {
        for size in [8, 9, 100, 1_024, 70_000] {
            let messages = Messages::new(10_000, size, 7);
            for number in 0..10_000 {
                assert_eq!(messages.body(number).len(), size);
            }
        }
    }

    #[test]
    fn keys_and_bodies_differ_by_number_and_by_seed() {
        let (messages, other) = (Messages::new(9, 100, 7), Messages::new(9, 100, 8));
        assert_ne!(messages.key(1), messages.key(2));
        assert_ne!(messages.key(1), other.key(1));
        let rest = |messages: &Messages, number| messages.body(number).split_off(NUMBER_BYTES);
        assert_ne!(rest(&messages, 1), rest(&messages, 2));
        assert_ne!(rest(&messages, 1), rest(&other, 1));
    }

    #[track_caller]
    fn check(key: u64, tamper: impl FnOnce(&mut Vec<u8>), expected: &str) {
        let messages = Messages::new(9, 100, 7);
        let mut body = messages.body(5);
        tamper(&mut body);
        let error = messages.verify(Some(messages.key(key)), &body).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_message_that_is_not_as_it_was_sent_is_noticed() {
        check(6, |_| {}, "the key of message 5 was changed");
        check(5, |body| *body.last_mut().unwrap() ^= 1, "the body of message 5 was changed");
        check(5, |body| body.truncate(99), "the body of message 5 was changed");
        check(5, |body| body.push(0), "the body of message 5 was changed");
        check(5, |body| body[0] = 4, "the body of message 4 was changed");
        check(5, |body| body[0] = 9, "message 9 was never sent");
        check(5, |body| body.truncate(7), "a body without its number");
    }

    #[test]
    fn a_message_as_it_was_sent_has_its_number() {
        let messages = Messages::new(9, 100, 7);
        let body = messages.body(5);
        assert_eq!(messages.verify(Some(messages.key(5)), &body).unwrap(), 5);
        assert_eq!(messages.verify(None, &body).unwrap(), 5);
    }
}
