//! The bookkeeping of steps: which names are used, what earlier attempts saved, whether there is
//! room for an outcome.
//!
//! A step is one recovery point, `step:NAME`, of JSON. First it holds the intent: that the step has
//! begun, and under which key. Then the outcome replaces it. So every later attempt, `hapax get`
//! and workers in other languages can see what was done, what was not, and what is in doubt.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::settle::Failure;

/// The prefix of the names of the recovery points of steps.
const PREFIX: &str = "step:";
/// The broker's limits: the number of recovery points, and the bytes of their names and data.
const POINTS_MAX: usize = 64;
const POINTS_BYTES_MAX: usize = 64 * 1_024;
const NAME_BYTES_MAX: usize = 128 - PREFIX.len();
/// The free space that a step requires before it calls, because an outcome that cannot be stored
/// means a repeated call.
const ROOM_BYTES: usize = 1_024;

/// The contents of the recovery point of a step.
#[derive(Debug, Serialize, Deserialize)]
struct Point<'a> {
    #[serde(rename = "step")]
    stage: Stage,
    /// The key of the call.
    key: String,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a RawValue>,
    /// The size of an outcome that was too large to be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Begun,
    Done,
    TooLarge,
}

/// What an earlier attempt saved of a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    /// Only the intent: the call must be made again, with this key.
    Open(String),
    Done(T),
}

/// The recovery points of one message, and the steps of one attempt.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Bytes of every point with its name, including the reserve of steps in progress.
    points: HashMap<String, usize>,
    taken: HashSet<String>,
}

impl Ledger {
    pub(crate) fn new<'a>(points: impl Iterator<Item = (&'a str, &'a Bytes)>) -> Self {
        let points = points.map(|(name, data)| (name.to_owned(), name.len() + data.len()));
        Self { points: points.collect(), taken: HashSet::new() }
    }

    /// Reserves the name of a step for the rest of the attempt.
    pub(crate) fn take(&mut self, name: &str) -> Result<(), Failure> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(Failure::dead(format!(
                "a step's name must have 1 to {NAME_BYTES_MAX} bytes, this one has {}: {name}",
                name.len()
            )));
        }
        if self.taken.insert(name.to_owned()) {
            return Ok(());
        }
        Err(Failure::dead(format!(
            "the step {name} is used twice in one attempt: the second would get the first one's \
             key and outcome. Give every step of a message its own name (such as \"{name}-2\"), \
             and retry a call within its step"
        )))
    }

    /// Reserves space for the outcome of a step that is about to begin.
    pub(crate) fn reserve(&mut self, name: &str) -> Result<(), Failure> {
        let point = point_name(name);
        let is_known = self.points.contains_key(&point);
        let left = self.left(&point);
        if (is_known || self.points.len() < POINTS_MAX) && left >= point.len() + ROOM_BYTES {
            let size = point.len() + ROOM_BYTES;
            self.points.insert(point, size);
            return Ok(());
        }
        Err(Failure::dead(format!(
            "the step {name} was not begun, because its outcome could not be stored: the message \
             has {} recovery points of at most {POINTS_MAX}, and {left} of {POINTS_BYTES_MAX} \
             bytes are left. Use fewer steps, or return smaller outcomes",
            self.points.len()
        )))
    }

    /// Whether a point with this data fits.
    pub(crate) fn fits(&self, point: &str, data: &[u8]) -> bool {
        point.len() + data.len() <= self.left(point)
    }

    /// Records that a point was saved.
    pub(crate) fn saved(&mut self, point: &str, data_bytes: usize) {
        self.points.insert(point.to_owned(), point.len() + data_bytes);
    }

    /// Bytes that are left for this point, with its name.
    fn left(&self, point: &str) -> usize {
        let others = self.points.iter().filter(|(name, _)| *name != point);
        POINTS_BYTES_MAX.saturating_sub(others.map(|(_, bytes)| *bytes).sum())
    }
}

pub(crate) fn point_name(step: &str) -> String {
    format!("{PREFIX}{step}")
}

/// The recovery point of a step that is about to call with this key.
pub(crate) fn intent(key: &str) -> Bytes {
    write(Point { stage: Stage::Begun, key: key.to_owned(), outcome: None, bytes: None })
}

/// The recovery point of a step that has called, with its outcome.
pub(crate) fn outcome<T: Serialize>(step: &str, key: &str, outcome: &T) -> Result<Bytes, Failure> {
    let outcome = serde_json::value::to_raw_value(outcome).map_err(|error| {
        Failure::dead(format!("the outcome of the step {step} cannot be written as JSON: {error}"))
    })?;
    let outcome = Some(&*outcome);
    Ok(write(Point { stage: Stage::Done, key: key.to_owned(), outcome, bytes: None }))
}

/// The recovery point of a step that has called, whose outcome was too large.
pub(crate) fn too_large(key: &str, bytes: usize) -> Bytes {
    let bytes = Some(bytes);
    write(Point { stage: Stage::TooLarge, key: key.to_owned(), outcome: None, bytes })
}

pub(crate) fn too_large_failure(step: &str, key: &str, bytes: usize) -> Failure {
    Failure::dead(format!(
        "the step {step} made its call with the key {key}, but its outcome of {bytes} bytes \
         cannot be stored: the recovery points of a message have at most {POINTS_BYTES_MAX} bytes \
         in total. Return less from the step, such as an id, and redrive the message: it calls \
         again with the same key"
    ))
}

/// Reads the recovery point of a step. An outcome is valid only if `is_ours` accepts its key as one
/// of this message.
pub(crate) fn found<T: DeserializeOwned>(
    step: &str,
    data: &[u8],
    is_ours: impl Fn(&str) -> bool,
) -> Result<Found<T>, Failure> {
    let point: Point<'_> = serde_json::from_slice(data).map_err(|error| {
        Failure::new(format!(
            "the recovery point {PREFIX}{step} was not written by a step ({error}); the step was \
             not called"
        ))
    })?;
    if point.stage != Stage::Done {
        // A call may have been made with this key, so the next one must use it too.
        return Ok(Found::Open(point.key));
    }
    if !is_ours(&point.key) {
        return Err(Failure::new(format!(
            "the recovery point {PREFIX}{step} has the key {}, which belongs to another message; \
             the step was not called",
            point.key
        )));
    }
    // `()` and `None` are written as null, and read back from it.
    let text = point.outcome.map_or("null", RawValue::get);
    serde_json::from_str(text).map(Found::Done).map_err(|error| {
        Failure::new(format!(
            "the step {step} was done by an earlier attempt, but its saved outcome has another \
             type than expected: {error}. It was not called again"
        ))
    })
}

fn write(point: Point<'_>) -> Bytes {
    // A string, a number and valid JSON: this cannot fail.
    serde_json::to_vec(&point).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(sizes: &[usize]) -> Ledger {
        let points: Vec<(String, Bytes)> = sizes
            .iter()
            .enumerate()
            .map(|(n, size)| (format!("{n:04}"), vec![0; size - 4].into()))
            .collect();
        Ledger::new(points.iter().map(|(name, data)| (name.as_str(), data)))
    }

    #[test]
    fn an_outcome_reads_back_and_an_intent_leaves_the_step_open() {
        let done = outcome("charge", "k", &("receipt", 7)).unwrap();
        assert_eq!(&done[..], br#"{"step":"done","key":"k","outcome":["receipt",7]}"#);
        let read = found::<(String, u32)>("charge", &done, |key| key == "k").unwrap();
        assert_eq!(read, Found::Done(("receipt".to_owned(), 7)));
        assert_eq!(&intent("k")[..], br#"{"step":"begun","key":"k"}"#);
        let open = found::<u32>("charge", &intent("k"), |_| false).unwrap();
        assert_eq!(open, Found::Open("k".to_owned()), "the saved key, whatever ours is");
        assert_eq!(&too_large("k", 9)[..], br#"{"step":"too_large","key":"k","bytes":9}"#);
        let open = found::<u32>("charge", &too_large("k", 9), |_| true).unwrap();
        assert_eq!(open, Found::Open("k".to_owned()));
    }

    #[test]
    fn an_outcome_of_nothing_reads_back() {
        let nothing = outcome("charge", "k", &()).unwrap();
        assert_eq!(found::<()>("charge", &nothing, |_| true).unwrap(), Found::Done(()));
        let none = outcome("charge", "k", &None::<u32>).unwrap();
        assert_eq!(found::<Option<u32>>("charge", &none, |_| true).unwrap(), Found::Done(None));
    }

    #[test]
    fn what_is_no_outcome_of_this_step_is_told_and_not_taken_for_one() {
        let other = found::<u32>("charge", b"17 euro", |_| true).unwrap_err();
        assert!(other.error().contains("step:charge"), "{}", other.error());
        let done = outcome("charge", "k", &"text").unwrap();
        let changed = found::<u32>("charge", &done, |_| true).unwrap_err();
        assert!(changed.error().contains("not called again"), "{}", changed.error());
        let foreign = found::<String>("charge", &done, |key| key == "other").unwrap_err();
        assert!(foreign.error().contains("has the key k"), "{}", foreign.error());
    }

    #[test]
    fn a_name_is_taken_once_and_has_a_bound() {
        let mut ledger = ledger(&[]);
        ledger.take("charge").unwrap();
        ledger.take("ship").unwrap();
        let twice = ledger.take("charge").unwrap_err();
        assert!(twice.error().contains("charge is used twice"), "{}", twice.error());
        ledger.take(&"x".repeat(NAME_BYTES_MAX)).unwrap();
        assert!(ledger.take(&"y".repeat(NAME_BYTES_MAX + 1)).is_err());
        assert!(ledger.take("").is_err());
    }

    #[test]
    fn a_step_begins_only_where_its_outcome_has_room() {
        let taken = POINTS_BYTES_MAX - "step:a".len() - ROOM_BYTES;
        ledger(&[taken]).reserve("a").unwrap();
        let refused = ledger(&[taken + 1]).reserve("a").unwrap_err();
        assert!(refused.error().contains("not begun"), "{}", refused.error());
        let mut many = ledger(&[8; POINTS_MAX - 1]);
        many.reserve("a").unwrap();
        many.reserve("a").unwrap();
        assert!(many.reserve("b").is_err(), "one point too many");
    }

    #[test]
    fn steps_under_way_keep_their_room_from_each_other() {
        let mut ledger = ledger(&[]);
        ledger.reserve("a").unwrap();
        ledger.reserve("b").unwrap();
        let name = point_name("a");
        let most = POINTS_BYTES_MAX - name.len() - point_name("b").len() - ROOM_BYTES;
        assert!(ledger.fits(&name, &vec![0; most]));
        assert!(!ledger.fits(&name, &vec![0; most + 1]));
        ledger.saved(&point_name("b"), 10);
        assert!(ledger.fits(&name, &vec![0; most + ROOM_BYTES - 10]), "b needed less");
    }
}
