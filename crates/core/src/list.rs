//! A list in chunks of equal size: growing moves nothing, and clearing keeps the memory.

#[derive(Debug)]
pub(crate) struct List<T> {
    /// All chunks before the last item's are full.
    pieces: Vec<Vec<T>>,
    len: usize,
}

/// Items of a chunk.
const PIECE: usize = 4_096;

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }
}

impl<T> List<T> {
    pub(crate) fn push(&mut self, item: T) {
        let number = self.len / PIECE;
        if number == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        if let Some(piece) = self.pieces.get_mut(number) {
            debug_assert_eq!(piece.len(), self.len % PIECE);
            piece.push(item);
        }
        self.len += 1;
        debug_assert!(self.pieces.get(number).is_some_and(|piece| piece.len() <= PIECE));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, place: usize) -> Option<&T> {
        self.pieces.get(place / PIECE)?.get(place % PIECE)
    }

    /// Takes all items out, keeping all memory.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.len = 0;
        self.pieces.iter_mut().flat_map(|piece| piece.drain(..))
    }

    /// Drops all items, keeping memory for `items`.
    pub(crate) fn clear(&mut self, items: usize) {
        self.pieces.truncate(items.div_ceil(PIECE));
        self.pieces.iter_mut().for_each(Vec::clear);
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_what_was_pushed_in_order_and_again_after_it_was_cleared() {
        let mut list = List::default();
        for most in [3 * PIECE + 5, 10, 0, PIECE, PIECE + 1] {
            (0..most).for_each(|item| list.push(item));
            assert!(list.iter().copied().eq(0..most));
            assert_eq!(list.len(), most);
            assert!((0..most).all(|place| list.get(place) == Some(&place)));
            assert_eq!(list.get(most), None);
            if most % 2 == 1 {
                assert!(list.drain().eq(0..most) && list.len() == 0);
            }
            list.clear(PIECE);
            assert!(list.len() == 0 && list.iter().next().is_none() && list.pieces.len() <= 1);
        }
    }
}
