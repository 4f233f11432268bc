//! Random numbers from a seed: the only source of randomness in the simulator.
//!
//! The generator is SplitMix64: one word of state, so that it is copied with a snapshot, and the
//! same on every machine and in every release. It is not cryptographically secure.

/// A stream of numbers determined by its seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound - 1`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        // Multiplying spreads the bits over the range without a division; the bias is below bound /
        // 2^64.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        assert!(first <= last, "{first} to {last} is no range");
        match (last - first).checked_add(1) {
            Some(count) => first + self.below(count),
            None => self.bits(),
        }
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// True in `share` of `whole` cases.
    pub fn share(&mut self, share: u64, whole: u64) -> bool {
        self.below(whole) < share
    }

    /// One of the items; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { items.get(self.index(items.len())) }
    }

    /// An index, chosen in proportion to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().map(|weight| u64::from(*weight)).sum());
        for (place, weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return place,
            }
        }
        unreachable!("the draw is below the sum of the weights")
    }

    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            for (to, from) in chunk.iter_mut().zip(self.bits().to_le_bytes()) {
                *to = from;
            }
        }
    }

    /// An independent stream, so that one user's draws do not affect another's.
    pub fn branch(&mut self) -> Self {
        Self::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn every_number_of_a_range_comes_and_no_other() {
        let mut random = Random::new(7);
        let mut seen = [0; 6];
        for _ in 0..600 {
            seen[random.between(10, 15) as usize - 10] += 1;
        }
        assert!(seen.iter().all(|count| (50..200).contains(count)), "{seen:?}");
        assert_eq!(random.between(9, 9), 9);
        random.between(0, u64::MAX);
    }

    #[test]
    fn weights_decide_how_often() {
        let mut random = Random::new(7);
        let mut seen = [0; 3];
        for _ in 0..1000 {
            seen[random.weighted(&[9, 0, 1])] += 1;
        }
        assert_eq!(seen[1], 0);
        assert!(seen[0] > 7 * seen[2] && seen[2] > 50, "{seen:?}");
    }

    #[test]
    fn a_branch_does_not_disturb_its_parent() {
        let (mut one, mut two) = (Random::new(3), Random::new(3));
        let mut branch = one.branch();
        two.branch();
        branch.fill(&mut [0; 100]);
        assert_eq!(one.bits(), two.bits());
    }
}
