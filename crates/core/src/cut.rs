//! What changed between two checkpoints, and its copying in steps.
//!
//! A checkpoint begins with a cut: it writes everything that has changed by then, as it is at that
//! moment. Copying all of it at once would take as long as there is much of it, so it is copied in
//! steps, while it goes on changing: whoever changes or removes something that belongs to the cut
//! and is not copied yet copies it first. For that, everything that can change carries a mark.
//!
//! Invariants:
//! - what bears the number of the next cut is listed for it, once;
//! - what bears the number of the cut that is being copied is in the rest of its list;
//! - nothing else bears a number.

use crate::list::List;

/// The number of the cut that something changed before and was not copied for; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark(u32);

impl Mark {
    /// Whether the next checkpoint must write it, or the one in progress and it is not copied yet.
    pub(crate) fn is_set(self) -> bool {
        self != Self::default()
    }
}

/// Lists by `N` what changed. Copies are collected in a `C`.
#[derive(Debug)]
pub(crate) struct Cuts<N, C> {
    /// What changed since the last cut. Some of it is gone.
    changed: List<N>,
    next: Mark,
    cut: Option<Cut<N, C>>,
    /// What the last cut listed, until its checkpoint is over.
    copied: List<N>,
    /// An empty list, for reuse.
    spare: List<N>,
}

/// A cut that is being copied.
#[derive(Debug)]
struct Cut<N, C> {
    mark: Mark,
    listed: List<N>,
    /// How much of the list was looked at.
    looked: usize,
    copies: C,
}

impl<N, C> Default for Cuts<N, C> {
    fn default() -> Self {
        let (changed, copied, spare) = Default::default();
        Self { changed, next: Mark(1), cut: None, copied, spare }
    }
}

impl<N: Copy + PartialEq, C: Default> Cuts<N, C> {
    /// Lists something that changed, and was copied before if the cut has it.
    pub(crate) fn list(&mut self, mark: &mut Mark, name: N) {
        if *mark != self.next {
            debug_assert!(!mark.is_set(), "what belongs to a cut is copied before it changes");
            *mark = self.next;
            self.changed.push(name);
        }
    }

    /// How many were listed since the last cut.
    pub(crate) fn changed(&self) -> usize {
        self.changed.len()
    }

    /// Begins a cut, of everything that has changed by now. The copies will be added to `copies`.
    pub(crate) fn begin(&mut self, copies: C) {
        assert!(self.cut.is_none(), "one cut after the other");
        let spare = std::mem::take(&mut self.spare);
        let listed = std::mem::replace(&mut self.changed, spare);
        self.cut = Some(Cut { mark: self.next, listed, looked: 0, copies });
        self.next.0 += 1;
    }

    /// Whether something may have to be copied before it changes.
    #[inline]
    pub(crate) fn is_copying(&self) -> bool {
        self.cut.is_some()
    }

    /// The next of those listed, to be copied if it is still there and [`Self::copies_for`] it.
    pub(crate) fn next_listed(&mut self) -> Option<N> {
        let cut = self.cut.as_mut()?;
        let name = *cut.listed.get(cut.looked)?;
        cut.looked += 1;
        Some(name)
    }

    /// Where to put the copy of something with this mark, if it belongs to the cut and was not
    /// copied yet. The mark is removed.
    pub(crate) fn copies_for(&mut self, mark: &mut Mark) -> Option<&mut C> {
        let cut = self.cut.as_mut().filter(|cut| cut.mark == *mark)?;
        *mark = Mark::default();
        Some(&mut cut.copies)
    }

    /// Ends the cut, whose list was looked at to its end, and returns the copies.
    pub(crate) fn end(&mut self) -> C {
        let Some(cut) = self.cut.take() else { return C::default() };
        assert_eq!(cut.looked, cut.listed.len(), "everything is copied before the cut ends");
        self.copied = cut.listed;
        cut.copies
    }

    /// The checkpoint of the last cut is over.
    pub(crate) fn forget(&mut self) {
        let mut copied = std::mem::take(&mut self.copied);
        copied.clear(copied.len());
        self.spare = copied;
    }

    /// What the last cut listed, to be listed again: its checkpoint was given up.
    pub(crate) fn take_copied(&mut self) -> List<N> {
        std::mem::take(&mut self.copied)
    }

    /// Panics if something with this mark would not be written.
    pub(crate) fn check(&self, mark: Mark, name: N) {
        if mark == self.next {
            assert!(self.changed.iter().any(|listed| *listed == name), "what changed is listed");
        } else if mark.is_set() {
            let cut = self.cut.as_ref().filter(|cut| cut.mark == mark);
            let mut left = cut.into_iter().flat_map(|cut| cut.listed.iter().skip(cut.looked));
            assert!(left.any(|listed| *listed == name), "what belongs to the cut will be copied");
        }
    }
}
