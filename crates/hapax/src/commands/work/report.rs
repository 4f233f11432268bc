//! The line that is printed for every message once the broker has confirmed its outcome.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hapax_client::{Delivery, Error, Event, Lease, Settle, Settled, State};
use serde_json::json;

use super::process::Ended;
use crate::screen::{Colour, Screen, brief, clean, say};
use crate::{duration, moment};

/// The longest part of an error that a line shows.
const ERROR_MAX: usize = 200;

/// Prints the outcomes of messages, and whether the broker can be reached.
pub(super) struct Report {
    screen: Screen,
    is_quiet: bool,
    /// Commands that have ended, whose outcome the broker has not confirmed yet.
    unconfirmed: Mutex<HashMap<Lease, Line>>,
}

/// The outcome of a message before the broker has confirmed it.
struct Line {
    key: String,
    id: String,
    attempt: u32,
    took: Duration,
    /// The word for a failed attempt.
    failed: &'static str,
    detail: String,
}

impl Report {
    pub(super) fn new(screen: Screen, is_quiet: bool) -> Self {
        Self { screen, is_quiet, unconfirmed: Mutex::default() }
    }

    /// Records the end of a command; its line is printed when the broker answers.
    pub(super) fn ended(&self, delivery: &Delivery, ended: &Ended, took: Duration) {
        if self.is_quiet {
            return;
        }
        let (failed, detail) = match ended {
            Ended::Done(output) => ("failed", crate::screen::body(output, 60)),
            Ended::RetryLater(error) => ("not now", brief(error, ERROR_MAX)),
            Ended::Failed(error) | Ended::InDoubt(error) | Ended::TooMuch(error) => {
                ("failed", brief(error, ERROR_MAX))
            }
            Ended::Lost => ("failed", String::new()),
        };
        let line = Line {
            key: delivery.key().to_owned(),
            id: delivery.id().to_string(),
            attempt: delivery.attempt(),
            took,
            failed,
            detail,
        };
        self.lines().insert(delivery.lease(), line);
    }

    /// Handles an event of the worker.
    pub(super) fn hear(&self, event: Event<'_>) {
        match event {
            Event::Settled { lease, settle, answer } => {
                if let Some(line) = self.take(lease) {
                    self.confirmed(&line, settle, answer);
                }
            }
            Event::Lost { lease } => {
                if let Some(line) = self.take(lease) {
                    self.show(&line, "lost", Colour::Yellow, "its lease ended first");
                }
            }
            Event::Away(error) => {
                say(format_args!("{error}; retrying"));
            }
            Event::Back => say("the broker can be reached again"),
            _ => {}
        }
    }

    /// Prints the messages that the broker never confirmed: their outcome is unknown.
    pub(super) fn end(&self) {
        let lines = std::mem::take(&mut *self.lines());
        for line in lines.values() {
            let detail = "the broker did not confirm the outcome";
            self.show(line, "unknown", Colour::Red, detail);
        }
    }

    fn confirmed(&self, line: &Line, settle: &Settle, answer: &Result<Settled, Error>) {
        let error = match settle {
            Settle::Fail(failure) => brief(failure.error(), ERROR_MAX),
            _ => line.detail.clone(),
        };
        let (name, colour, detail) = match answer {
            Ok(Settled::Ok { state, .. }) => match state {
                State::Done => ("done", Colour::Green, line.detail.clone()),
                State::Dead | State::Discarded => ("dead", Colour::Red, error),
                State::Parked => ("parked", Colour::Red, error),
                _ if line.failed == "not now" => ("not now", Colour::Yellow, error),
                _ => (line.failed, Colour::Red, error),
            },
            Ok(_) => ("lost", Colour::Yellow, "another worker has it now".to_owned()),
            Err(refused) => ("unknown", Colour::Red, brief(&refused.to_string(), ERROR_MAX)),
        };
        self.show(line, name, colour, &detail);
    }

    /// Prints one line. A closed output does not stop the work.
    fn show(&self, line: &Line, name: &str, colour: Colour, detail: &str) {
        let took_ms = duration::milliseconds(line.took);
        let screen = self.screen;
        let _ = match screen.is_json() {
            true => screen.json_line(&json!({
                "at": moment::rfc3339(moment::now_ms()),
                "key": line.key,
                "id": line.id,
                "attempt": line.attempt,
                "ended": name.replace(' ', "_"),
                "detail": detail,
                "took_ms": took_ms,
            })),
            false => screen.line(format_args!(
                "{}  {}  {}  attempt {}, {}  {detail}",
                screen.paint(Colour::Dim, moment::of_day(moment::now_ms())),
                screen.paint(colour, format_args!("{name:<7}")),
                clean(&line.key),
                line.attempt,
                duration::short(took_ms),
            )),
        };
    }

    fn take(&self, lease: &Lease) -> Option<Line> {
        self.lines().remove(lease)
    }

    /// Ignores lock poisoning: every change is one call.
    fn lines(&self) -> std::sync::MutexGuard<'_, HashMap<Lease, Line>> {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
