//! What clients saw, and the rules that every history keeps however the broker was treated.
//!
//! Every operation has a beginning and an end on one logical clock. One that failed or timed out
//! is indeterminate: it may have been carried out or not, and the rules allow both, and only those.
//!
//! | rule | a violation is |
//! |---|---|
//! | one id | two ids under one key, in whatever answer or delivery |
//! | accepted once | `accepted` twice, or after any answer that knew the key |
//! | finished once | two leases of one key that were both told `ok`, or two results |
//! | results kept | a result nobody stored, another one than the one confirmed, or none later on |
//! | no second effect | a delivery that was asked for after its message was confirmed as done |
//! | fences | one fence for two deliveries, or in a partition a smaller one for a later delivery |

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A point on the logical clock of a history.
pub type Tick = u64;

/// Which way an operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Door {
    Http,
    Grpc,
}

/// What a send was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Accepted {
        id: String,
    },
    /// Known, and not finished.
    InFlight {
        id: String,
    },
    Done {
        id: String,
        result: String,
    },
    /// Anything may have happened.
    Unknown,
}

/// What a `done` was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    Ok,
    /// With the winner's result, where there is one.
    LeaseLost {
        result: Option<String>,
    },
    Unknown,
}

#[derive(Clone, Debug)]
pub enum Event {
    Send { key: String, answer: Sent },
    Deliver { key: String, id: String, fence: u64 },
    Settle { key: String, fence: u64, result: String, answer: Settled },
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Operation {
    pub door: Door,
    /// Nothing of it happened before.
    pub began: Tick,
    /// Nothing of it was seen before.
    pub ended: Tick,
    pub event: Event,
}

/// How much a door got done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Sends that were told where their key is.
    pub sent: usize,
    pub accepted: usize,
    /// Messages that were confirmed as done.
    pub done: usize,
    /// Operations that nobody knows the outcome of.
    pub unknown: usize,
}

impl Count {
    fn add(&mut self, event: &Event) {
        match event {
            Event::Send { answer: Sent::Unknown, .. }
            | Event::Settle { answer: Settled::Unknown, .. } => self.unknown += 1,
            Event::Send { answer, .. } => {
                self.sent += 1;
                self.accepted += usize::from(matches!(answer, Sent::Accepted { .. }));
            }
            Event::Settle { answer: Settled::Ok, .. } => self.done += 1,
            Event::Settle { .. } | Event::Deliver { .. } => {}
        }
    }
}

/// Shared by all clients of a run.
#[derive(Debug, Default)]
pub struct History {
    clock: AtomicU64,
    operations: Mutex<Operations>,
    /// What no answer should ever be.
    oddities: Mutex<Vec<String>>,
}

/// What was noted, and how much of it each door got done.
#[derive(Debug, Default)]
struct Operations {
    all: Vec<Operation>,
    counts: [Count; 2],
}

impl History {
    pub fn tick(&self) -> Tick {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Notes an operation that ends now.
    pub fn note(&self, door: Door, began: Tick, event: Event) {
        let mut operations = self.operations.lock().unwrap();
        let ended = self.tick();
        operations.counts[door as usize].add(&event);
        operations.all.push(Operation { door, began, ended, event });
    }

    /// Notes an answer that no rule knows.
    pub fn odd(&self, what: String) {
        self.oddities.lock().unwrap().push(what);
    }

    pub fn count(&self, door: Door) -> Count {
        self.operations.lock().unwrap().counts[door as usize]
    }

    /// Every key that was sent, in no order.
    pub fn keys(&self) -> Vec<String> {
        let operations = self.operations.lock().unwrap();
        let sends = operations.all.iter().filter_map(|operation| match &operation.event {
            Event::Send { key, .. } => Some(key.as_str()),
            _ => None,
        });
        let keys: std::collections::HashSet<&str> = sends.collect();
        keys.into_iter().map(str::to_owned).collect()
    }

    /// Everything so far, for those who look closer.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().all.clone()
    }

    #[track_caller]
    pub fn is_kept(&self) {
        let mut violations = check(&self.operations.lock().unwrap().all);
        violations.extend(self.oddities.lock().unwrap().iter().cloned());
        let few: Vec<&String> = violations.iter().take(10).collect();
        assert!(violations.is_empty(), "{} violations, such as {few:#?}", violations.len());
    }
}

/// Every way in which the history breaks a rule.
pub fn check(operations: &[Operation]) -> Vec<String> {
    let mut keys: HashMap<&str, Key> = HashMap::new();
    for operation in operations {
        let (Event::Send { key, .. } | Event::Deliver { key, .. } | Event::Settle { key, .. }) =
            &operation.event;
        keys.entry(key).or_default().operations.push(operation);
    }
    let mut violations = fences(operations);
    for (name, key) in &keys {
        let found = key.one_id().into_iter().chain(key.accepted_once());
        let found = found.chain(key.finished_once()).chain(key.done_for_good());
        violations.extend(found.map(|what| format!("{name}: {what}")));
    }
    violations
}

/// The operations on one key.
#[derive(Default)]
struct Key<'a> {
    operations: Vec<&'a Operation>,
}

impl<'a> Key<'a> {
    fn sends(&self) -> impl Iterator<Item = (&'a Operation, &'a Sent)> {
        self.operations.iter().filter_map(|operation| match &operation.event {
            Event::Send { answer, .. } => Some((*operation, answer)),
            _ => None,
        })
    }

    fn settles(&self) -> impl Iterator<Item = (&'a Operation, u64, &'a str, &'a Settled)> {
        self.operations.iter().filter_map(|operation| match &operation.event {
            Event::Settle { fence, result, answer, .. } => {
                Some((*operation, *fence, result.as_str(), answer))
            }
            _ => None,
        })
    }

    fn one_id(&self) -> Option<String> {
        let mut ids = self.operations.iter().filter_map(|operation| match &operation.event {
            Event::Send { answer, .. } => match answer {
                Sent::Accepted { id } | Sent::InFlight { id } | Sent::Done { id, .. } => Some(id),
                Sent::Unknown => None,
            },
            Event::Deliver { id, .. } => Some(id),
            Event::Settle { .. } => None,
        });
        let first = ids.next()?;
        let other = ids.find(|id| *id != first)?;
        Some(format!("has two ids, {first} and {other}"))
    }

    fn accepted_once(&self) -> Option<String> {
        let mut accepted =
            self.sends().filter(|(_, answer)| matches!(answer, Sent::Accepted { .. }));
        let (first, _) = accepted.next()?;
        if accepted.next().is_some() {
            return Some("was accepted twice: the first message was lost".to_owned());
        }
        let is_known =
            |(_, answer): &(_, &Sent)| matches!(answer, Sent::InFlight { .. } | Sent::Done { .. });
        let before = self.sends().filter(is_known).any(|(known, _)| known.ended < first.began);
        before.then(|| "was known, and accepted as new later on".to_owned())
    }

    fn finished_once(&self) -> Option<String> {
        let confirmed = self.settles().filter(|(.., answer)| **answer == Settled::Ok);
        let mut confirmed = confirmed.map(|(_, fence, result, _)| (fence, result));
        let first = confirmed.next();
        if let Some(first) = first
            && let Some(second) = confirmed.find(|second| *second != first)
        {
            return Some(format!("was finished by two leases, {first:?} and {second:?}"));
        }
        let told_to_senders = self.sends().filter_map(|(_, answer)| match answer {
            Sent::Done { result, .. } => Some(result.as_str()),
            _ => None,
        });
        let told_to_workers = self.settles().filter_map(|(.., answer)| match answer {
            Settled::LeaseLost { result } => result.as_deref(),
            _ => None,
        });
        for told in told_to_senders.chain(told_to_workers) {
            if first.is_some_and(|(_, result)| result != told) {
                return Some(format!("was finished as {first:?}, and answered {told:?}"));
            }
            if !self.settles().any(|(_, _, result, _)| result == told) {
                return Some(format!("was answered {told:?}, which nobody stored"));
            }
        }
        let mut results = self.sends().filter_map(|(_, answer)| match answer {
            Sent::Done { result, .. } => Some(result),
            _ => None,
        });
        let one = results.next()?;
        let other = results.find(|result| *result != one)?;
        Some(format!("was answered {one:?} and {other:?}"))
    }

    /// Once somebody knew that it is done, nobody gets it again, and every send is told.
    fn done_for_good(&self) -> Option<String> {
        let by_settle = self.settles().filter(|(.., answer)| **answer == Settled::Ok);
        let by_send = self.sends().filter(|(_, answer)| matches!(answer, Sent::Done { .. }));
        let ends = by_settle.map(|(it, ..)| it.ended).chain(by_send.map(|(it, _)| it.ended));
        let done = ends.min()?;
        self.operations.iter().filter(|later| later.began > done).find_map(|later| {
            match &later.event {
                Event::Deliver { fence, .. } => {
                    Some(format!("was done, and delivered again with fence {fence}"))
                }
                Event::Send {
                    answer: answer @ (Sent::Accepted { .. } | Sent::InFlight { .. }),
                    ..
                } => Some(format!("was done, and is {answer:?} later on")),
                Event::Send { .. } | Event::Settle { .. } => None,
            }
        })
    }
}

/// Fences are unique in a broker, and in a partition they grow with time as far as it can be told.
fn fences(operations: &[Operation]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut seen: HashMap<u64, &str> = HashMap::new();
    let mut partitions: HashMap<&str, Vec<(Tick, Tick, u64)>> = HashMap::new();
    for operation in operations {
        let Event::Deliver { key, id, fence } = &operation.event else { continue };
        match seen.entry(*fence) {
            Entry::Occupied(before) => {
                let before = before.get();
                violations.push(format!("the fence {fence} was given to {before} and to {key}"));
            }
            Entry::Vacant(place) => {
                place.insert(key);
            }
        }
        // The partition that made an id stands in it.
        let partition = id.get(15..18).unwrap_or_default();
        let deliveries = partitions.entry(partition).or_default();
        deliveries.push((operation.began, operation.ended, *fence));
    }
    violations.extend(partitions.into_values().flat_map(growth));
    violations
}

fn growth(mut deliveries: Vec<(Tick, Tick, u64)>) -> Vec<String> {
    let mut by_end = deliveries.clone();
    by_end.sort_unstable_by_key(|(_, ended, _)| *ended);
    deliveries.sort_unstable();
    let mut violations = Vec::new();
    let mut ended = by_end.into_iter().peekable();
    let mut largest = 0;
    for (began, _, fence) in deliveries {
        while let Some((_, _, fence)) = ended.next_if(|(_, ended, _)| *ended < began) {
            largest = largest.max(fence);
        }
        if fence < largest {
            violations.push(format!("the fence {fence} was given after {largest}"));
        }
    }
    violations
}

/// The checker must be able to fail: a history in good order, and one violation of each rule.
#[cfg(test)]
mod planted {
    use super::*;

    fn send(began: Tick, answer: Sent) -> Operation {
        let event = Event::Send { key: "k".to_owned(), answer };
        Operation { door: Door::Http, began, ended: began + 1, event }
    }

    fn deliver(began: Tick, fence: u64) -> Operation {
        let event = Event::Deliver { key: "k".to_owned(), id: "1".to_owned(), fence };
        Operation { door: Door::Grpc, began, ended: began + 1, event }
    }

    fn settle(began: Tick, fence: u64, result: &str, answer: Settled) -> Operation {
        let event = Event::Settle { key: "k".to_owned(), fence, result: result.to_owned(), answer };
        Operation { door: Door::Grpc, began, ended: began + 1, event }
    }

    fn accepted() -> Sent {
        Sent::Accepted { id: "1".to_owned() }
    }

    fn in_flight(id: &str) -> Sent {
        Sent::InFlight { id: id.to_owned() }
    }

    fn done(result: &str) -> Sent {
        Sent::Done { id: "1".to_owned(), result: result.to_owned() }
    }

    fn lost(result: Option<&str>) -> Settled {
        Settled::LeaseLost { result: result.map(str::to_owned) }
    }

    /// A send whose answer was lost, a lease that was lost, a settle whose answer was lost.
    fn good() -> Vec<Operation> {
        vec![
            send(0, Sent::Unknown),
            send(10, in_flight("1")),
            deliver(20, 7),
            deliver(30, 8),
            settle(40, 7, "a", lost(None)),
            settle(50, 8, "b", Settled::Unknown),
            settle(60, 8, "b", Settled::Ok),
            settle(70, 7, "a", lost(Some("b"))),
            send(80, done("b")),
            send(90, Sent::Unknown),
        ]
    }

    #[track_caller]
    fn finds(what: &str, planted: Vec<Operation>) {
        let history: Vec<_> = good().into_iter().chain(planted).collect();
        let found = check(&history);
        assert!(found.iter().any(|violation| violation.contains(what)), "{what}: {found:?}");
    }

    #[test]
    fn a_history_in_good_order_is_let_through() {
        assert_eq!(check(&good()), Vec::<String>::new());
        // A send that overlaps the end may be told either.
        let mut overlapping = send(55, in_flight("1"));
        overlapping.ended = 85;
        let history: Vec<_> = good().into_iter().chain([overlapping]).collect();
        assert_eq!(check(&history), Vec::<String>::new());
        // An indeterminate settle may have won.
        let history = vec![
            send(0, accepted()),
            deliver(10, 1),
            settle(20, 1, "a", Settled::Unknown),
            send(30, done("a")),
        ];
        assert_eq!(check(&history), Vec::<String>::new());
    }

    #[test]
    fn a_lost_message_is_found() {
        finds("accepted as new", vec![send(100, accepted())]);
        let twice = [send(0, accepted()), send(2, accepted())];
        assert!(check(&twice).iter().any(|violation| violation.contains("accepted twice")));
    }

    #[test]
    fn a_second_id_is_found() {
        finds("two ids", vec![send(15, in_flight("2"))]);
    }

    #[test]
    fn a_second_end_and_a_changed_or_invented_or_lost_result_are_found() {
        finds("by two leases", vec![settle(100, 7, "a", Settled::Ok)]);
        finds("answered \"c\"", vec![send(100, done("c"))]);
        finds("answered \"a\"", vec![settle(100, 9, "a", lost(Some("a")))]);
        finds("later on", vec![send(100, in_flight("1"))]);
        let invented = [send(0, accepted()), send(2, done("a"))];
        assert!(check(&invented).iter().any(|violation| violation.contains("nobody stored")));
        let changed = [
            send(0, accepted()),
            deliver(2, 1),
            settle(4, 1, "a", Settled::Unknown),
            deliver(6, 2),
            settle(8, 2, "b", Settled::Unknown),
            send(10, done("a")),
            send(12, done("b")),
        ];
        assert!(check(&changed).iter().any(|violation| violation.contains("and \"b\"")));
    }

    #[test]
    fn a_second_effect_is_found() {
        finds("delivered again", vec![deliver(100, 9)]);
    }

    #[test]
    fn a_fence_that_comes_twice_or_falls_is_found() {
        finds("given to k and to k", vec![deliver(35, 8)]);
        finds("given after", vec![deliver(35, 6)]);
    }
}
