//! Explains the state of a key in one sentence: what happened, what it waits for, what can be done.

use hapax_wire::proto::{Key, State};

use crate::advice::Advice;
use crate::moment::{plain, relative};
use crate::screen::{body, brief, clean};

/// The facts about a key's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) held: Held,
    /// Whether the queue deduplicates per group, so that a key is named together with its group.
    pub(crate) keys_per_group: bool,
}

/// The reason why a ready message is not delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Held {
    /// None: it waits for a worker.
    #[default]
    Free,
    /// The queue is paused.
    Paused,
    /// This message of its group goes first.
    Behind { key: String, state: State },
}

/// Returns one sentence, with the command to run next if there is one.
pub(crate) fn why(queue: &str, key: &Key, around: &Around, now_ms: u64) -> String {
    let when = |ms: u64| format!("{} ({})", plain(ms), relative(now_ms, ms));
    let deadline = key.deadline_ms.map(when);
    let mut text = match key.state() {
        State::Done => done(key, now_ms),
        State::Ready => {
            let tried = match key.attempts {
                0 => String::new(),
                many => format!(", after {}{}", attempts(many), last_error(&key.error)),
            };
            format!("{} {}{tried}", waits(queue, key, around), when(ready_since(key)))
        }
        State::Delayed if key.attempts == 0 => match deadline {
            Some(deadline) => format!("was sent with a delay and is due at {deadline}"),
            None => "was sent with a delay".to_owned(),
        },
        State::Delayed => format!(
            "failed {} so far{}; the next attempt is at {}",
            times(key.attempts),
            last_error(&key.error),
            deadline.unwrap_or_else(|| "the end of its backoff".to_owned())
        ),
        State::Leased => format!(
            "{} works on it (attempt {}); its lease ends at {} unless it is extended",
            somebody(&key.worker),
            key.attempts,
            deadline.unwrap_or_else(|| "its deadline".to_owned())
        ),
        State::Parked => format!(
            "{}. Find out whether it happened, then run: {}, or --retry",
            in_doubt(key),
            resolve(queue, &key.key, around.group_of(key)).flag("--done RESULT")
        ),
        State::Dead => format!(
            "dead after {}{}. When the cause is fixed, run: {}",
            attempts(key.attempts),
            last_error(&key.error),
            redrive(queue, &key.key, around.group_of(key))
        ),
        State::Discarded => "was discarded by an operator; its key stays remembered, so that a \
                             late retry does not run it"
            .to_owned(),
        State::Unspecified => "is in a state that this release does not know".to_owned(),
    };
    if key.state() != State::Done && key.duplicates > 0 {
        text.push_str(&format!("; {} so far, answered and not run", duplicates(key.duplicates)));
    }
    text
}

impl Around {
    /// The group that a command must give with the key.
    fn group_of<'a>(&self, key: &'a Key) -> Option<&'a str> {
        (self.keys_per_group && !key.group.is_empty()).then_some(key.group.as_str())
    }
}

/// The reason why it is unknown whether the effect of a parked message happened.
fn in_doubt(key: &Key) -> String {
    let who = somebody(&key.worker);
    let parked = key.history.iter().rposition(|event| event.event == "parked");
    let before = parked.and_then(|place| key.history.get(..place)?.last());
    match before.is_some_and(|event| event.event == "lost") {
        true => format!(
            "its effect had begun when {who} lost the lease, so it is unknown whether it happened"
        ),
        false => format!(
            "its effect had begun, and {who} does not know whether it happened{}",
            last_error(&key.error)
        ),
    }
}

/// The command that resolves a parked message, up to the decision.
pub(crate) fn resolve(queue: &str, key: &str, group: Option<&str>) -> Advice {
    Advice::new("hapax resolve", &[queue, key]).group(group)
}

/// The command that redrives a dead message.
pub(crate) fn redrive(queue: &str, key: &str, group: Option<&str>) -> Advice {
    Advice::new("hapax dead redrive", &[queue]).option("--key", key).group(group).flag("--yes")
}

/// What a ready message waits for, up to the time.
fn waits(queue: &str, waiting: &Key, around: &Around) -> String {
    let group = around.group_of(waiting);
    match &around.held {
        Held::Free => "has waited for a worker since".to_owned(),
        Held::Paused => format!(
            "its queue is paused, resume it with: {}; ready since",
            Advice::new("hapax queue resume", &[queue])
        ),
        Held::Behind { key, state } => {
            let helps = match state {
                State::Dead => {
                    format!(", until {}, or dead discard", redrive(queue, key, group))
                }
                State::Parked => {
                    let resolve = resolve(queue, key, group).flag("--done RESULT");
                    format!(", until {resolve}, or --retry")
                }
                _ => String::new(),
            };
            format!(
                "waits behind {} of its group, which is {}{helps}; ready since",
                clean(key),
                state.as_str()
            )
        }
    }
}

/// The last time at which it became ready, from its history.
fn ready_since(key: &Key) -> u64 {
    let events = ["sent", "lost", "released", "redriven", "replayed", "resolved", "freed", "rerun"];
    let times = key.history.iter().filter(|event| events.contains(&event.event.as_str()));
    times.map(|event| event.at_ms).max().unwrap_or(key.accepted_at_ms).max(key.accepted_at_ms)
}

fn done(key: &Key, now_ms: u64) -> String {
    let at = match key.finished_at_ms {
        Some(ms) => format!(" at {} ({})", plain(ms), relative(now_ms, ms)),
        None => String::new(),
    };
    let by = match key.worker.is_empty() {
        true => String::new(),
        false => format!(" by {}", clean(&key.worker)),
    };
    let tries =
        if key.attempts > 1 { format!(", at attempt {}", key.attempts) } else { String::new() };
    let again = match key.generation {
        0 => String::new(),
        replays => format!(", replayed {}", times(replays)),
    };
    let result = match &key.result {
        Some(result) => format!("its result {}", body(&result.body, 60)),
        None => "that it is done".to_owned(),
    };
    let repeated = match key.duplicates {
        0 => format!("a duplicate would be answered with {result}"),
        1 => format!("1 duplicate was answered and not run; the next one gets {result}"),
        many => format!("{many} duplicates were answered and not run; the next one gets {result}"),
    };
    let until = match key.remembered_until_ms {
        Some(ms) => format!("remembered until {} ({})", plain(ms), relative(now_ms, ms)),
        None => "remembered forever".to_owned(),
    };
    format!("done once{at}{by}{tries}{again}; {repeated}; {until}")
}

fn last_error(error: &str) -> String {
    if error.is_empty() { String::new() } else { format!(": {}", brief(error, 200)) }
}

fn somebody(worker: &str) -> String {
    if worker.is_empty() { "a worker".to_owned() } else { clean(worker) }
}

fn attempts(count: u32) -> String {
    if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn duplicates(count: u64) -> String {
    if count == 1 { "1 duplicate".to_owned() } else { format!("{count} duplicates") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_wire::proto::{self, Blob};

    const NOW: u64 = 1_700_000_000_000;

    fn key(state: State) -> Key {
        Key {
            key: "order-42".to_owned(),
            state: state.into(),
            attempts: 1,
            accepted_at_ms: NOW - 180_000,
            deadline_ms: Some(NOW + 5_000),
            worker: "billing-1".to_owned(),
            ..Key::default()
        }
    }

    #[track_caller]
    fn check(key: Key, expected: &str) {
        assert_eq!(why("orders", &key, &Around::default(), NOW), expected);
    }

    #[test]
    fn a_done_key_tells_who_did_it_and_what_duplicates_got() {
        let done = Key {
            finished_at_ms: Some(NOW - 60_000),
            remembered_until_ms: Some(NOW + 6 * 86_400_000),
            duplicates: 3,
            result: Some(Blob { body: "paid".into(), content_type: String::new() }),
            ..key(State::Done)
        };
        check(
            done,
            "done once at 2023-11-14 22:12:20.000 (1 m ago) by billing-1; 3 duplicates were \
             answered and not run; the next one gets its result paid; remembered until 2023-11-20 \
             22:13:20.000 (in 6 d)",
        );
    }

    #[test]
    fn what_is_alive_tells_what_it_waits_for() {
        check(
            Key { attempts: 0, ..key(State::Ready) },
            "has waited for a worker since 2023-11-14 22:10:20.000 (3 m ago)",
        );
        check(
            Key { duplicates: 1, ..key(State::Leased) },
            "billing-1 works on it (attempt 1); its lease ends at 2023-11-14 22:13:25.000 (in 5 \
             s) unless it is extended; 1 duplicate so far, answered and not run",
        );
        check(
            Key { attempts: 2, error: "timeout\x1b".to_owned(), ..key(State::Delayed) },
            "failed 2 times so far: timeout\\u{1b}; the next attempt is at 2023-11-14 \
             22:13:25.000 (in 5 s)",
        );
    }

    #[test]
    fn what_is_ready_and_cannot_be_taken_tells_what_is_in_its_way() {
        let ready = Key { attempts: 0, ..key(State::Ready) };
        let explained = |held| {
            let around = Around { held, keys_per_group: false };
            why("orders", &ready, &around, NOW)
        };
        assert!(
            explained(Held::Paused).starts_with("its queue is paused"),
            "{}",
            explained(Held::Paused)
        );
        let behind = |state| explained(Held::Behind { key: "order-41".to_owned(), state });
        let leased = behind(State::Leased);
        assert!(leased.starts_with("waits behind order-41 of its group, which is leased; "));
        let dead = behind(State::Dead);
        assert!(dead.contains("hapax dead redrive orders --key order-41 --yes"), "{dead}");
        assert!(behind(State::Parked).contains("hapax resolve orders order-41"));
    }

    #[test]
    fn a_message_that_became_ready_again_waits_since_then() {
        let event = |at_ms, event: &str| proto::Event {
            at_ms,
            event: event.to_owned(),
            ..proto::Event::default()
        };
        let history = vec![event(NOW - 180_000, "sent"), event(NOW - 2_000, "replayed")];
        check(
            Key { attempts: 0, history, ..key(State::Ready) },
            "has waited for a worker since 2023-11-14 22:13:18.000 (2 s ago)",
        );
    }

    #[test]
    fn what_has_ended_badly_tells_the_next_step() {
        let dead = Key { error: "no".to_owned(), ..key(State::Dead) };
        let dead = why("orders", &dead, &Around::default(), NOW);
        assert!(
            dead.starts_with("dead after 1 attempt: no. When the cause is fixed, run: "),
            "{dead}"
        );
        assert!(dead.ends_with("hapax dead redrive orders --key order-42 --yes"), "{dead}");
        let parked = why("orders", &key(State::Parked), &Around::default(), NOW);
        assert!(parked.contains("hapax resolve orders order-42 --done RESULT"), "{parked}");
    }

    #[test]
    fn a_parked_message_tells_a_lost_lease_from_a_worker_that_does_not_know() {
        let parked = |events: &[&str], error: &str| {
            let history = events.iter().map(|event| proto::Event {
                event: (*event).to_owned(),
                ..proto::Event::default()
            });
            let (history, error) = (history.collect(), error.to_owned());
            let parked = Key { history, error, ..key(State::Parked) };
            why("orders", &parked, &Around::default(), NOW)
        };
        let lost = parked(&["sent", "failed", "begun", "lost", "parked"], "of the try before");
        assert!(lost.starts_with("its effect had begun when billing-1 lost the lease, "), "{lost}");
        assert!(!lost.contains("of the try before"), "{lost}");
        let said = parked(&["sent", "lost", "begun", "failed", "parked"], "signal 9");
        let expected = "its effect had begun, and billing-1 does not know whether it happened: \
                        signal 9. Find out whether it happened, then run: ";
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn where_keys_count_per_group_a_command_names_the_group() {
        let around = Around { keys_per_group: true, ..Around::default() };
        let explained = |state, group: &str| {
            let key = Key { group: group.to_owned(), key: "a b".to_owned(), ..key(state) };
            why("orders", &key, &around, NOW)
        };
        let parked = explained(State::Parked, "eu west");
        assert!(parked.contains("hapax resolve orders 'a b' --group 'eu west' --done"), "{parked}");
        let dead = explained(State::Dead, "eu west");
        let advised = "hapax dead redrive orders --key 'a b' --group 'eu west' --yes";
        assert!(dead.ends_with(advised), "{dead}");
        let alone = explained(State::Dead, "");
        assert!(alone.ends_with("hapax dead redrive orders --key 'a b' --yes"), "{alone}");
    }

    #[test]
    fn a_key_that_begins_with_a_hyphen_is_a_key_in_every_command() {
        let explained = |state| {
            let key = Key { key: "-42".to_owned(), ..key(state) };
            why("orders", &key, &Around::default(), NOW)
        };
        let parked = explained(State::Parked);
        assert!(parked.ends_with("hapax resolve --done RESULT -- orders -42, or --retry"));
        let dead = explained(State::Dead);
        assert!(dead.ends_with("hapax dead redrive orders --key=-42 --yes"), "{dead}");
    }
}
