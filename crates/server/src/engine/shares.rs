//! Whose messages go into the next batch, when there is more than one batch takes.
//!
//! Every tenant has the same share, so that a flood of one costs the others the time of a batch and
//! not that of everything before them. Within a tenant the order stays. What is small (settles,
//! receives, questions) always goes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use hapax_core::Command;

use super::inbox::Ask;

/// Messages of one batch, about, with what each costs besides its bytes.
const BATCH_BYTES: usize = 1_024 * 1_024;
const MESSAGE_BYTES: usize = 128;

#[derive(Default)]
struct Share {
    used: usize,
    /// One of its asks has to wait, and so have all behind it.
    is_full: bool,
}

/// Moves what has to wait from `asks` to `later`.
pub(super) fn share_out(asks: &mut Vec<Ask>, later: &mut Vec<Ask>) {
    debug_assert!(later.is_empty(), "who waited is asked first");
    let weights: Vec<(usize, u64)> = asks.iter().map(weigh).collect();
    if weights.iter().map(|(weight, _)| weight).sum::<usize>() <= BATCH_BYTES {
        return;
    }
    let mut shares: HashMap<u64, Share> = HashMap::new();
    for (_, tenant) in weights.iter().filter(|(weight, _)| *weight > 0) {
        shares.entry(*tenant).or_default();
    }
    let each = BATCH_BYTES / shares.len().max(1);
    let mut goes = weights.into_iter().map(|(weight, tenant)| {
        let Some(share) = shares.get_mut(&tenant).filter(|_| weight > 0) else { return true };
        share.is_full |= share.used > 0 && share.used + weight > each;
        share.used += weight;
        !share.is_full
    });
    later.extend(asks.extract_if(.., |_| !goes.next().unwrap_or(true)));
}

/// How many bytes of messages it brings, and whose they are.
fn weigh(ask: &Ask) -> (usize, u64) {
    let Ask::Commands(list, _) = ask else { return (0, 0) };
    let Some(Command::Send(first)) = list.first() else { return (0, 0) };
    let sizes = list.iter().map(|command| match command {
        Command::Send(send) => send.content.size() + MESSAGE_BYTES,
        _ => 0,
    });
    let mut hasher = DefaultHasher::new();
    first.queue.tenant.hash(&mut hasher);
    (sizes.sum(), hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{Content, QueueName, Send};

    fn sends(tenant: &str, key: &str, bytes: usize) -> Ask {
        let queue = QueueName::new(tenant, "orders").unwrap();
        let content = Content::builder(key).build(&vec![b'x'; bytes]).unwrap();
        Ask::Commands(vec![Command::Send(Send::new(queue, content))], Box::new(drop))
    }

    fn keys(asks: &[Ask]) -> Vec<&str> {
        asks.iter()
            .filter_map(|ask| match ask {
                Ask::Commands(list, _) => list.first(),
                _ => None,
            })
            .filter_map(|command| match command {
                Command::Send(send) => Some(send.content.key()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_small_load_goes_as_it_is() {
        let mut asks = vec![sends("a", "a1", 1_000), sends("b", "b1", 1_000), Ask::Drain];
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!((asks.len(), later.len()), (3, 0));
    }

    #[test]
    fn a_flood_leaves_others_their_share_and_keeps_its_own_order() {
        let mut asks: Vec<Ask> =
            (0..9).map(|n| sends("noisy", &format!("n{n}"), 200 * 1_024)).collect();
        asks.push(sends("quiet", "q0", 100));
        asks.push(Ask::Drain);
        asks.push(sends("noisy", "small", 10));
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!(keys(&asks), ["n0", "n1", "q0"]);
        assert_eq!(asks.len(), 4, "what brings no messages goes too");
        assert_eq!(keys(&later), ["n2", "n3", "n4", "n5", "n6", "n7", "n8", "small"]);
    }

    #[test]
    fn one_that_is_larger_than_a_batch_goes_alone() {
        let mut asks = vec![sends("a", "large", 4 << 20), sends("a", "next", 10)];
        let mut later = Vec::new();
        share_out(&mut asks, &mut later);
        assert_eq!((keys(&asks), keys(&later)), (vec!["large"], vec!["next"]));
    }
}
