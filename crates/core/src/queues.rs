//! Queues by number and by name.
//!
//! Numbers are never reused, because rows and keys of a deleted queue may still exist. Numbers are
//! kept in pages, and a page without a queue takes no memory.
//!
//! Invariant: a page in memory has a queue in it.

use crate::command::QueueName;
use crate::decision::QueueId;
use crate::queue::Queue;

/// Numbers per page.
const PAGE: usize = 256;

type Page = Box<[Option<Box<Queue>>; PAGE]>;

#[derive(Debug, Default)]
pub(crate) struct Queues {
    pages: Vec<Option<Page>>,
    by_name: hashbrown::HashTable<(u64, QueueId)>,
    next_id: QueueId,
}

impl Queues {
    pub(crate) fn get(&self, id: QueueId) -> Option<&Queue> {
        let (page, place) = place(id);
        self.pages.get(page)?.as_ref()?.get(place)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        let (page, place) = place(id);
        self.pages.get_mut(page)?.as_mut()?.get_mut(place)?.as_deref_mut()
    }

    /// A queue by name; one that is being deleted is not found.
    pub(crate) fn named(&self, name: &QueueName) -> Option<&Queue> {
        let found = self.by_name.find(name.hash(), |(hash, id)| {
            *hash == name.hash()
                && self.get(*id).is_some_and(|queue| queue.name == *name && !queue.is_deleted())
        })?;
        self.get(found.1)
    }

    pub(crate) fn insert(&mut self, queue: Queue) {
        let (id, hash) = (queue.id, queue.name.hash());
        debug_assert!(self.get(id).is_none());
        let (page, place) = place(id);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self
            .pages
            .get_mut(page)
            .map(|page| page.get_or_insert_with(|| Box::new([const { None }; PAGE])));
        if let Some(entry) = page.and_then(|page| page.get_mut(place)) {
            *entry = Some(Box::new(queue));
        }
        self.next_id = self.next_id.max(id + 1);
        self.by_name.insert_unique(hash, (hash, id), |(hash, _)| *hash);
        debug_assert!(self.get(id).is_some(), "found by number and by name");
    }

    pub(crate) fn remove(&mut self, id: QueueId) {
        let (number, place) = place(id);
        let Some(page) = self.pages.get_mut(number) else { return };
        let queue = page.as_mut().and_then(|page| page.get_mut(place)?.take());
        let Some(queue) = queue else { return };
        if page.as_ref().is_some_and(|page| page.iter().all(Option::is_none)) {
            *page = None;
        }
        let hash = queue.name.hash();
        let entry = self.by_name.find_entry(hash, |(_, known)| *known == id);
        debug_assert!(entry.is_ok(), "found by number and by name");
        if let Ok(entry) = entry {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The number of the next queue.
    pub(crate) fn next_id(&self) -> QueueId {
        self.next_id
    }

    /// Sets the next number: numbers of deleted queues are not reused.
    pub(crate) fn set_next_id(&mut self, next_id: QueueId) {
        self.next_id = self.next_id.max(next_id);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.pages.iter().flatten().flat_map(|page| page.iter()).filter_map(Option::as_deref)
    }

    /// All queues, from a number on and then those before it.
    pub(crate) fn iter_from(&self, id: QueueId) -> impl Iterator<Item = &Queue> {
        let (page, _) = place(id);
        let from = self.pages.iter().skip(page).flatten().flat_map(|page| page.iter());
        let from = from.filter_map(Option::as_deref).filter(move |queue| queue.id >= id);
        let before = self.pages.iter().take(page + 1).flatten().flat_map(|page| page.iter());
        let before = before.filter_map(Option::as_deref).filter(move |queue| queue.id < id);
        from.chain(before)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        let pages = self.pages.iter_mut().flatten().flat_map(|page| page.iter_mut());
        pages.filter_map(Option::as_deref_mut)
    }
}

fn place(id: QueueId) -> (usize, usize) {
    (id as usize / PAGE, id as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::ids::Time;

    fn queue(id: QueueId) -> Queue {
        let name = QueueName::new("default", &format!("q{id}")).unwrap();
        Queue::new(id, name, Config::default(), Time(1), 1)
    }

    fn ids<'a>(queues: impl Iterator<Item = &'a Queue>) -> Vec<QueueId> {
        queues.map(|queue| queue.id).collect()
    }

    #[test]
    fn queues_that_are_gone_take_no_room_and_their_numbers_stay_taken() {
        let mut queues = Queues::default();
        queues.insert(queue(0));
        for _ in 0..10 * PAGE {
            let id = queues.next_id();
            queues.insert(queue(id));
            queues.remove(id);
        }
        assert_eq!((queues.len(), queues.pages.iter().flatten().count()), (1, 1));
        assert_eq!(queues.next_id() as usize, 10 * PAGE + 1);
        queues.set_next_id(5);
        assert_eq!(queues.next_id() as usize, 10 * PAGE + 1);
    }

    #[test]
    fn queues_are_visited_in_the_order_of_their_numbers_from_any_of_them() {
        let mut queues = Queues::default();
        for id in [3, 255, 256, 700] {
            queues.insert(queue(id));
        }
        assert_eq!(ids(queues.iter()), [3, 255, 256, 700]);
        assert_eq!(ids(queues.iter_from(0)), [3, 255, 256, 700]);
        assert_eq!(ids(queues.iter_from(255)), [255, 256, 700, 3]);
        assert_eq!(ids(queues.iter_from(257)), [700, 3, 255, 256]);
        assert_eq!(ids(queues.iter_from(9_999)), [3, 255, 256, 700]);
        let name = QueueName::new("default", "q700").unwrap();
        assert_eq!(queues.named(&name).map(|queue| queue.id), Some(700));
    }
}
