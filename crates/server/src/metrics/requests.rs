//! The most recent request ids and their keys, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use hapax_core::QueueName;

/// The number of requests that are remembered.
const REQUESTS_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Hash of queue and request id, to the hash of the key.
    keys: HashMap<u64, u64>,
    order: VecDeque<u64>,
    state: RandomState,
}

impl Requests {
    /// Whether the request came before, under another key.
    pub(super) fn is_other_key(&mut self, queue: &QueueName, request_id: &str, key: &str) -> bool {
        let request = self.state.hash_one((queue, request_id));
        let key = self.state.hash_one(key);
        match self.keys.get(&request) {
            Some(known) => *known != key,
            None => {
                if self.order.len() >= REQUESTS_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.keys.remove(&oldest);
                }
                self.keys.insert(request, key);
                self.order.push_back(request);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_under_two_keys_is_noticed_and_memory_is_bounded() {
        let queue = QueueName::new("default", "orders").unwrap();
        let mut requests = Requests::default();
        assert!(!requests.is_other_key(&queue, "r1", "a"));
        assert!(!requests.is_other_key(&queue, "r1", "a"), "a retry under its key is fine");
        assert!(requests.is_other_key(&queue, "r1", "b"));
        for number in 0..REQUESTS_MAX * 2 {
            requests.is_other_key(&queue, &number.to_string(), "k");
        }
        assert!(requests.keys.len() <= REQUESTS_MAX && requests.order.len() <= REQUESTS_MAX);
        assert!(!requests.is_other_key(&queue, "r1", "b"), "forgotten by now");
    }
}
