//! When a merge whose inputs are larger than the free space may be tried: its output is assumed to
//! be smaller.
//!
//! One that turned out too large is not tried again before some more runs were written, twice as
//! many each time, or before there is more space. Without the latter a partition that writes
//! nothing would never try again, and keep dead rows on a disk that is full.

use super::bounds::GUESS_RUNS_MAX;

#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// The run from which the next one is allowed, and by how many it was postponed.
    from_run: u64,
    postponed: u64,
    /// The space that was too little.
    room: u64,
}

impl Guesses {
    /// Whether one is allowed with so much room for its output.
    pub(super) fn may(&self, next_run: u64, room: u64) -> bool {
        next_run >= self.from_run || room > self.room + self.room / 8
    }

    /// An output was as small as assumed.
    pub(super) fn was_right(&mut self) {
        *self = Self::default();
    }

    /// An output did not fit into so much room.
    pub(super) fn was_wrong(&mut self, next_run: u64, room: u64) {
        let postponed = (2 * self.postponed).clamp(1, GUESS_RUNS_MAX);
        // Room that comes and goes is not more than there was.
        let room = if next_run >= self.from_run { room } else { room.max(self.room) };
        *self = Self { from_run: next_run + postponed, postponed, room };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_that_was_wrong_is_postponed_until_there_are_more_runs_or_more_room() {
        let mut guesses = Guesses::default();
        assert!(guesses.may(0, 0));
        guesses.was_wrong(10, 800);
        assert!(!guesses.may(10, 900) && guesses.may(11, 0));
        assert!(guesses.may(10, 901), "the partition may be idle");
        guesses.was_wrong(10, 901);
        assert!(!guesses.may(11, 901) && guesses.may(12, 0), "twice as long");
        assert!(!guesses.may(10, 1_013) && guesses.may(10, 1_014));
        guesses.was_wrong(12, 500);
        assert!(!guesses.may(15, 562) && guesses.may(15, 563), "the others have grown meanwhile");
        guesses.was_right();
        assert!(guesses.may(0, 0));
    }
}
