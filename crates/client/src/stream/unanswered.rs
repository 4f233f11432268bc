//! Frames that were sent and have not been answered.
//!
//! Invariant: references are consecutive, so members are found by index. Everything before `base`
//! is answered or late; a frame is dropped when all its members are answered.
//!
//! Most members are answered in about the order in which they were sent. One that waits at the
//! broker for long is moved aside as *late* ([`Unanswered::set_aside`]), with a frame of what is
//! open in its own, so that it does not keep everything behind it.

use std::collections::{BTreeMap, VecDeque};

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
    /// The tags of open members before `base`.
    late: BTreeMap<u64, u64>,
    /// Their frames, by the reference after the last member.
    late_frames: BTreeMap<u64, Bytes>,
    /// The bytes of all frames.
    bytes: usize,
    /// The memory of answered frames, for the next ones.
    spare: Vec<Vec<u8>>,
}

const SPARE_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 64 * 1_024;
/// Members are set aside when at least as many were sent since the oldest open one, and few of
/// these are open.
const SPARSE_MIN: usize = 1_024;
const SPARSE_PART: usize = 8;

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

    /// Stores the frame of everything added since the previous one, from `first` on.
    pub(crate) fn keep(&mut self, first: u64, frame: Bytes) {
        debug_assert!(self.frames.back().is_none_or(|(end, _)| *end <= first), "in order");
        self.bytes += frame.len();
        self.frames.push_back((self.next(), frame));
    }

    /// Marks a member as answered and returns its tag; `None` if it was answered before, or never
    /// sent.
    pub(crate) fn answer(&mut self, reference: u64) -> Option<u64> {
        if reference < self.base {
            return self.answer_late(reference);
        }
        let place = usize::try_from(reference.checked_sub(self.base)?).ok()?;
        let tag = self.tags.get_mut(place)?.take()?;
        self.open -= 1;
        if place == 0 {
            self.advance();
        }
        Some(tag)
    }

    fn answer_late(&mut self, reference: u64) -> Option<u64> {
        let tag = self.late.remove(&reference)?;
        self.open -= 1;
        self.drop_late_frame(reference);
        Some(tag)
    }

    /// Drops the frame of a late member, if it was the last open one in it.
    fn drop_late_frame(&mut self, reference: u64) {
        let Some((end, _)) = self.late_frames.range(reference + 1..).next() else { return };
        let end = *end;
        let before = self.late_frames.range(..end).next_back();
        let first = before.map_or(0, |(end_before, _)| *end_before);
        if self.late.range(first..end).next().is_none()
            && let Some(frame) = self.late_frames.remove(&end)
        {
            self.bytes -= frame.len();
        }
    }

    /// Moves open members aside if almost everything that was sent after the oldest one is
    /// answered. `again` is a frame without its answered members. To be called when no frame is
    /// being filled.
    pub(crate) fn set_aside(
        &mut self,
        again: impl Fn(&Bytes, &dyn Fn(u64) -> bool) -> Option<Bytes>,
    ) {
        let listed = self.open - self.late.len();
        if self.tags.len() < SPARSE_MIN || listed * SPARSE_PART > self.tags.len() {
            return;
        }
        for (reference, tag) in (self.base..).zip(self.tags.drain(..)) {
            if let Some(tag) = tag {
                self.late.insert(reference, tag);
            }
            self.base = reference + 1;
        }
        for (end, frame) in self.frames.drain(..) {
            self.bytes -= frame.len();
            if let Some(frame) = again(&frame, &|reference| self.late.contains_key(&reference)) {
                self.bytes += frame.len();
                self.late_frames.insert(end, frame);
            }
        }
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
            if self.spare.len() < SPARE_MAX && frame.len() <= SPARE_BYTES_MAX && frame.is_unique() {
                self.spare.push(frame.into());
            }
        }
    }

    /// An empty frame, which reuses the memory of an answered one if there is any.
    pub(crate) fn empty_frame(&mut self) -> Vec<u8> {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame
    }

    /// Drops members whose answer nobody waits for.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(u64) -> bool) {
        for slot in &mut self.tags {
            if slot.is_some_and(|tag| !is_wanted(tag)) {
                *slot = None;
                self.open -= 1;
            }
        }
        self.advance();
        let unwanted = self.late.iter().filter(|(_, tag)| !is_wanted(**tag));
        for reference in unwanted.map(|(reference, _)| *reference).collect::<Vec<_>>() {
            self.answer_late(reference);
        }
    }

    /// Drops everything and returns the tags.
    pub(crate) fn give_up(&mut self) -> Vec<u64> {
        let tags = self.tags.drain(..).collect::<Vec<_>>();
        let late = std::mem::take(&mut self.late).into_values();
        self.base += tags.len() as u64;
        self.open = 0;
        self.frames.clear();
        self.late_frames.clear();
        self.bytes = 0;
        late.chain(tags.into_iter().flatten()).collect()
    }

    pub(crate) fn is_open(&self, reference: u64) -> bool {
        if reference < self.base {
            return self.late.contains_key(&reference);
        }
        let place = reference.checked_sub(self.base).and_then(|place| usize::try_from(place).ok());
        place.and_then(|place| self.tags.get(place)).is_some_and(Option::is_some)
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = &Bytes> {
        self.late_frames.values().chain(self.frames.iter().map(|(_, frame)| frame))
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
    fn the_memory_of_a_frame_is_used_again_when_nobody_else_has_it() {
        let mut unanswered = Unanswered::default();
        for is_shared in [true, false] {
            let first = unanswered.add(1);
            let frame = Bytes::from(vec![7; 1_000]);
            let other = is_shared.then(|| frame.clone());
            unanswered.keep(first, frame);
            unanswered.answer(first);
            let empty = unanswered.empty_frame();
            assert_eq!((empty.len(), empty.capacity() >= 1_000), (0, !is_shared));
            drop(other);
        }
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
    /// A frame of these references, one byte each.
    fn frame(references: std::ops::Range<u64>) -> Bytes {
        references.map(|reference| (reference % 251) as u8).collect()
    }

    #[test]
    fn a_member_that_waits_for_long_does_not_keep_what_is_behind_it() {
        let mut unanswered = Unanswered::default();
        let again = |frame: &Bytes, is_open: &dyn Fn(u64) -> bool| {
            // Frames begin at multiples of ten.
            let first = (0..).step_by(10).find(|first| frame[0] == (first % 251) as u8)?;
            let open: Vec<u8> = (first..first + 10)
                .filter(|reference| is_open(*reference))
                .map(|reference| (reference % 251) as u8)
                .collect();
            (!open.is_empty()).then(|| open.into())
        };
        let waits = |reference: u64| reference == 3 || reference == 5 || reference == 700;
        for first in (0..20_000).step_by(10) {
            for reference in first..first + 10 {
                assert_eq!(unanswered.add(reference * 2), reference);
            }
            unanswered.keep(first, frame(first..first + 10));
            for reference in (first..first + 10).rev().filter(|reference| !waits(*reference)) {
                assert_eq!(unanswered.answer(reference), Some(reference * 2));
            }
            unanswered.set_aside(again);
            assert!(unanswered.tags.len() < SPARSE_MIN + 10, "{}", unanswered.tags.len());
            assert!(unanswered.bytes() < SPARSE_MIN + 20, "{}", unanswered.bytes());
        }
        assert_eq!((unanswered.len(), unanswered.late.len()), (3, 3));
        assert!(unanswered.is_open(3) && unanswered.is_open(700) && !unanswered.is_open(4));
        let frames: Vec<u8> = unanswered.frames().take(2).flatten().copied().collect();
        assert_eq!(frames, [3, 5, (700 % 251) as u8], "what is open of their frames");

        assert_eq!(unanswered.answer(3), Some(6));
        assert_eq!(unanswered.answer(3), None, "answered before");
        assert_eq!(unanswered.frames().next().unwrap().len(), 2, "it has another");
        unanswered.retain(|tag| tag != 10);
        assert_eq!((unanswered.len(), unanswered.late_frames.len()), (1, 1));
        assert_eq!(unanswered.give_up(), [1_400]);
        assert_eq!((unanswered.len(), unanswered.bytes(), unanswered.frames().count()), (0, 0, 0));
        assert_eq!(unanswered.add(1), 20_000, "references are never given out twice");
    }

    #[test]
    fn members_in_order_are_never_set_aside() {
        let mut unanswered = Unanswered::default();
        for reference in 0..10_000 {
            unanswered.add(reference);
            unanswered.keep(reference, Bytes::from_static(b"x"));
        }
        for reference in 0..9_999 {
            unanswered.answer(reference);
            unanswered.set_aside(|_, _| unreachable!("most are open, or few are listed"));
        }
    }
}
