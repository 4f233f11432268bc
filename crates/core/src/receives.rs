//! Receives that may be repeated, with the leases of each.
//!
//! A receive is remembered as long as one of its leases holds, and for at most five minutes. Others
//! are removed as new ones come, so that there are never many more than leases.

use std::collections::BTreeMap;

use crate::command::LeaseName;
use crate::ids::Time;
use crate::key::Digest;

/// By the digest of their id.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    pub(crate) by_id: BTreeMap<Digest, Remembered>,
    pub(crate) by_end: BTreeMap<(Time, Digest), ()>,
    /// Rows that the next checkpoint deletes.
    pub(crate) gone: Vec<Digest>,
    /// Leases of all of them.
    leases: usize,
    /// How many receives the last sweep left.
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
    /// Remembers a receive, replacing an older one of that id.
    pub(crate) fn insert(&mut self, id: Digest, mut receive: Remembered) {
        if let Some(before) = self.by_id.get(&id) {
            receive.stored |= before.stored; // Its row is overwritten.
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

    /// Forgets receives without a lease that holds, if `many` were added since the last sweep.
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

    /// Estimated memory.
    pub(crate) fn bytes(&self) -> usize {
        let each = size_of::<(Digest, Remembered)>() + size_of::<(Time, Digest)>() + 32;
        self.by_id.len() * each + self.leases * size_of::<LeaseName>() + self.gone.len() * 16
    }
}
