//! The machine against a naive model, over random sequences of commands.
//!
//! The model is a list of messages and a map of keys, searched from end to end for every question.
//! After every command the machine's answer must be the model's, whatever was forgotten, written,
//! read back or replayed in between.
//!
//! `HAPAX_MODEL_CASES` runs more cases than the usual ones, `HAPAX_MODEL_SEED` other ones.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test: what fails here fails it"
)]

mod support;

mod model {
    pub(crate) mod follow;
    pub(crate) mod found;
    pub(crate) mod keys;
    pub(crate) mod operate;
    pub(crate) mod ops;
    pub(crate) mod run;
    pub(crate) mod state;
    pub(crate) mod work;
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_core::Bounds;
use model::ops::{Case, case};
use model::run::{Dying, Runner};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

const CASES: u32 = 1_000;

#[test]
fn the_machine_answers_as_the_model_does() {
    check(Dying::Once, 1);
}

#[test]
fn a_decision_applied_twice_is_applied_once() {
    check(Dying::Twice, 2);
}

#[test]
fn what_random_cases_found_stays_fixed() {
    for (name, ops) in model::found::cases() {
        let few = Bounds { job_step: 2, refill: 2, ..Bounds::default() };
        for (bounds, dying) in [(few, Dying::Once), (Bounds::default(), Dying::Twice)] {
            let is_first = dying == Dying::Once;
            let case = Case { bounds, is_first, ops: ops.clone() };
            if let Err((trace, reason)) = run(&case, dying) {
                panic!("{name}, {dying:?}:\n{trace}{reason}\n");
            }
        }
    }
}

fn check(dying: Dying, stream: u8) {
    let cases = setting("HAPAX_MODEL_CASES").map_or(CASES, |cases| cases as u32);
    let seed = setting("HAPAX_MODEL_SEED").unwrap_or(0);
    let mut bytes = [stream; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config =
        Config { cases, max_shrink_iters: 20_000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    silence_panics();
    let result = runner.run(&case(), |case| match run(&case, dying) {
        Ok(()) => Ok(()),
        Err((_, reason)) => Err(TestCaseError::fail(reason)),
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(_, mut case)) => {
            leave_out(&mut case, dying);
            let (trace, reason) = run(&case, dying).expect_err("it failed before");
            let Case { bounds, is_first, .. } = case;
            panic!("seed {seed}, {bounds:?}, data of 0.1: {is_first}:\n{trace}{reason}\n");
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// Leaves out every step without which the case still fails.
fn leave_out(case: &mut Case, dying: Dying) {
    for _ in 0..4 {
        for number in (0..case.ops.len()).rev() {
            let op = case.ops.remove(number);
            if run(case, dying).is_ok() {
                case.ops.insert(number, op);
            }
        }
    }
}

/// The trace up to the first difference, and the difference.
fn run(case: &Case, dying: Dying) -> Result<(), (String, String)> {
    let mut runner = Runner::new(case.bounds, case.is_first, dying);
    for number in 0..=case.ops.len() {
        let step = catch_unwind(AssertUnwindSafe(|| match case.ops.get(number) {
            Some(op) => runner.step(number, op),
            None => runner.finale(),
        }));
        match step {
            Ok(Ok(())) => {}
            Ok(Err(differs)) => return Err((runner.trace, differs)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()));
                let text = text.unwrap_or_else(|| "it panicked".into());
                return Err((runner.trace, format!("panic: {text} {}", place_of_panic())));
            }
        }
    }
    Ok(())
}

thread_local! {
    static PLACE: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// While a case shrinks, a panic is an answer like any other; only the last one is printed.
fn silence_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let is_ours = place.contains("tests/model.rs");
            PLACE.with_borrow_mut(|kept| *kept = place);
            if is_ours {
                before(info);
            }
        }));
    });
}

fn place_of_panic() -> String {
    PLACE.with_borrow(|place| format!("at {place}"))
}

#[expect(clippy::disallowed_methods, reason = "how long a test runs is the caller's choice")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
