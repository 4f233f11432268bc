//! Empty lists for reuse. A list of thousands of commands is larger than what an allocator caches:
//! allocated each time, all of its pages would have to be cleared.

use std::sync::{Mutex, PoisonError};

/// Memory that is kept; a list that does not fit is freed.
const BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// Lists that are filled by one thread and emptied by another.
#[derive(Debug)]
pub(crate) struct Spare<T>(Mutex<Kept<T>>);

#[derive(Debug)]
struct Kept<T> {
    lists: Vec<Vec<T>>,
    bytes: usize,
}

impl<T> Spare<T> {
    /// An empty list.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = kept.lists.pop().unwrap_or_default();
        kept.bytes -= bytes_of(&list);
        list
    }

    /// Keeps a list for the next `take`; its contents are dropped.
    pub(crate) fn give(&self, mut list: Vec<T>) {
        list.clear();
        let bytes = bytes_of(&list);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > 0 && kept.bytes + bytes <= BYTES_MAX {
            kept.bytes += bytes;
            kept.lists.push(list);
        }
    }
}

fn bytes_of<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Mutex::new(Kept { lists: Vec::new(), bytes: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_taken_empty_and_with_its_memory() {
        let spare = Spare::default();
        spare.give(vec![1u64; 100]);
        let list = spare.take();
        assert!(list.is_empty() && list.capacity() >= 100);
        assert_eq!(spare.take().capacity(), 0, "there was one");
    }

    #[test]
    fn no_more_memory_is_kept_than_allowed() {
        let spare = Spare::default();
        for _ in 0..10 {
            spare.give(Vec::<u8>::with_capacity(BYTES_MAX / 4));
        }
        let kept = std::iter::from_fn(|| Some(spare.take()).filter(|list| list.capacity() > 0));
        assert_eq!(kept.count(), 4);
        spare.give(Vec::<u8>::with_capacity(BYTES_MAX / 4));
        assert!(spare.take().capacity() > 0, "what was taken makes room");
    }
}
