//! Receives that may be repeated: which leases each of them got.
//!
//! One is remembered as long as a lease of it holds, and five minutes at most. Those without a
//! lease that holds are swept as others come, so that there are never many more of them than leases.

use std::collections::BTreeMap;

use crate::command::LeaseName;
use crate::ids::Time;
use crate::key::Digest;

/// By the digest of their id.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    pub(crate) by_id: BTreeMap<Digest, Remembered>,
    pub(crate) by_end: BTreeMap<(Time, Digest), ()>,
    /// Rows that go with the next checkpoint.
    pub(crate) gone: Vec<Digest>,
    /// Leases of all of them.
    leases: usize,
    /// How many the last sweep left.
    swept: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) until: Time,
    pub(crate) leases: Vec<LeaseName>,
    pub(crate) dirty: bool,
    pub(crate) stored: bool,
}

impl Receives {
    /// Remembers a receive, in place of an older one of that id.
    pub(crate) fn insert(&mut self, id: Digest, mut receive: Remembered) {
        if let Some(before) = self.by_id.get(&id) {
            receive.stored |= before.stored; // Its row is written over.
            self.leases -= before.leases.len();
            self.by_end.remove(&(before.until, id));
        }
        self.leases += receive.leases.len();
        self.by_end.insert((receive.until, id), ());
        self.by_id.insert(id, receive);
        debug_assert_eq!(self.by_id.len(), self.by_end.len(), "found by id and by end");
    }

    pub(crate) fn remove(&mut self, id: &Digest) {
        let Some(receive) = self.by_id.remove(id) else { return };
        self.leases -= receive.leases.len();
        self.by_end.remove(&(receive.until, *id));
        if receive.stored {
            self.gone.push(*id);
        }
        debug_assert_eq!(self.by_id.len(), self.by_end.len(), "found by id and by end");
    }

    /// Forgets those without a lease that holds, where `many` have come since the last time.
    pub(crate) fn sweep(&mut self, many: usize, holds: impl Fn(&LeaseName) -> bool) {
        if self.by_id.len() <= self.swept.saturating_mul(2).max(many) {
            return;
        }
        let is_over = |receive: &Remembered| !receive.leases.iter().any(&holds);
        let over = self.by_id.iter().filter(|(_, receive)| is_over(receive));
        let over: Vec<Digest> = over.map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.remove(id));
        self.swept = self.by_id.len();
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// About how much memory they take.
    pub(crate) fn bytes(&self) -> usize {
        let each = size_of::<(Digest, Remembered)>() + size_of::<(Time, Digest)>() + 32;
        self.by_id.len() * each + self.leases * size_of::<LeaseName>() + self.gone.len() * 16
    }
}
