//! Frames that were sent and not answered yet.
//!
//! Invariant: references are given out in order, so everything is found by counting. Before `base`
//! everything is answered; a frame goes when the last of its members does.

use std::collections::VecDeque;

use bytes::Bytes;

#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    /// The reference of the first of `tags`.
    base: u64,
    /// The callers' tags; `None` once answered.
    tags: VecDeque<Option<u64>>,
    open: usize,
    /// The frames, each with the reference after its last member.
    frames: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Unanswered {
    /// A reference for something that will be answered.
    pub(crate) fn add(&mut self, tag: u64) -> u64 {
        self.tags.push_back(Some(tag));
        self.open += 1;
        self.next() - 1
    }

    /// The reference that `add` gives out next.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.tags.len() as u64
    }

    /// Keeps the frame of everything added since the one before, from `first` on.
    pub(crate) fn keep(&mut self, first: u64, frame: Bytes) {
        debug_assert!(self.frames.back().is_none_or(|(end, _)| *end <= first), "in order");
        self.bytes += frame.len();
        self.frames.push_back((self.next(), frame));
    }

    /// The tag of what is answered now; `None` where it was before, or never sent.
    pub(crate) fn answer(&mut self, reference: u64) -> Option<u64> {
        let place = usize::try_from(reference.checked_sub(self.base)?).ok()?;
        let tag = self.tags.get_mut(place)?.take()?;
        self.open -= 1;
        if place == 0 {
            self.advance();
        }
        Some(tag)
    }

    fn advance(&mut self) {
        while let Some(None) = self.tags.front() {
            self.tags.pop_front();
            self.base += 1;
        }
        while let Some((end, _)) = self.frames.front()
            && *end <= self.base
            && let Some((_, frame)) = self.frames.pop_front()
        {
            self.bytes -= frame.len();
        }
    }

    /// Forgets what is not worth an answer any more.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(u64) -> bool) {
        for slot in &mut self.tags {
            if slot.is_some_and(|tag| !is_wanted(tag)) {
                *slot = None;
                self.open -= 1;
            }
        }
        self.advance();
    }

    /// Gives everything up; returns the tags.
    pub(crate) fn give_up(&mut self) -> Vec<u64> {
        let tags = self.tags.drain(..).collect::<Vec<_>>();
        self.base += tags.len() as u64;
        self.open = 0;
        self.frames.clear();
        self.bytes = 0;
        tags.into_iter().flatten().collect()
    }

    pub(crate) fn is_open(&self, reference: u64) -> bool {
        let place = reference.checked_sub(self.base).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.tags.get(place)).is_some_and(Option::is_some)
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = &Bytes> {
        self.frames.iter().map(|(_, frame)| frame)
    }

    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// The bytes of all frames that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_kept_until_its_last_member_is_answered() {
        let mut unanswered = Unanswered::default();
        let first = [unanswered.add(10), unanswered.add(11)];
        unanswered.keep(first[0], Bytes::from_static(b"ab"));
        let second = unanswered.add(12);
        unanswered.keep(second, Bytes::from_static(b"c"));
        assert_eq!((unanswered.len(), unanswered.bytes()), (3, 3));

        assert_eq!(unanswered.answer(first[1]), Some(11));
        assert_eq!(unanswered.answer(second), Some(12));
        assert_eq!(unanswered.frames().count(), 2, "the first member is open");
        assert_eq!(unanswered.answer(first[1]), None, "answered before");
        assert!(unanswered.is_open(first[0]) && !unanswered.is_open(second));
        assert_eq!(unanswered.answer(first[0]), Some(10));
        assert_eq!((unanswered.len(), unanswered.bytes()), (0, 0));
        assert_eq!(unanswered.answer(99), None, "never sent");
        assert_eq!(unanswered.add(13), 3);
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten() {
        let mut unanswered = Unanswered::default();
        for tag in [1, 2, 3] {
            let first = unanswered.add(tag);
            unanswered.keep(first, Bytes::from_static(b"x"));
        }
        unanswered.retain(|tag| tag == 2);
        assert_eq!((unanswered.len(), unanswered.bytes()), (1, 2));
        assert_eq!(unanswered.give_up(), [2]);
        assert_eq!((unanswered.len(), unanswered.bytes()), (0, 0));
        assert_eq!(unanswered.add(4), 3, "references are never given out twice");
    }
}
