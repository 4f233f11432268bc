//! `hapax send --batch`: messages as lines of JSON, sent in batches.

use std::io::BufRead;

use hapax_wire::{Guarantee, Message};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Send, Tally, answered};
use crate::content::new_key;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Screen, progress, say};
use crate::session::Session;

/// Fewer than the broker accepts in one call, so that the progress is visible.
const MESSAGES_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 4 * 1_024 * 1_024;
const LINE_BYTES_MAX: u64 = 24 * 1_024 * 1_024;

pub(super) async fn run(session: &Session, send: &Send, screen: Screen) -> Result<Exit, Failure> {
    let bar = progress(0, "{spinner} {human_pos} messages, {rate}");
    let mut tally = Tally::default();
    let mut lines = Lines::new(std::io::stdin().lock());
    let ended = loop {
        let mut batch = match lines.batch() {
            Ok(batch) if batch.is_empty() => break Ok(()),
            Ok(batch) => batch,
            Err(wrong) => break Err(wrong),
        };
        let completed = add_keys(session, send, screen, &mut batch).await;
        let (numbers, messages): (Vec<u64>, Vec<_>) = batch.into_iter().unzip();
        let keys: Vec<String> =
            messages.iter().map(|message| message.key.clone().unwrap_or_default()).collect();
        let answers = match messages.is_empty() {
            true => Vec::new(),
            false => match session.send(&send.queue, messages, send.retry).await {
                Ok(answers) => answers,
                Err(failure) => break Err(unanswered(failure, &numbers)),
            },
        };
        bar.inc(keys.len() as u64);
        for ((number, key), answer) in numbers.iter().zip(&keys).zip(&answers) {
            if screen.is_json() {
                screen.json_line(&answered(&send.queue, key, answer))?;
            }
            bar.suspend(|| tally.count(screen, *number, key, answer));
        }
        if let Err(wrong) = completed {
            break Err(wrong);
        }
    };
    bar.finish_and_clear();
    // The answers so far are printed however it ended.
    if !screen.is_json() {
        screen.line(format_args!(
            "{} accepted, {} sent before, {} refused",
            tally.accepted, tally.duplicates, tally.refused
        ))?;
    }
    ended?;
    tally.end()
}

/// Generates the keys of lines without one. If nobody sees a key, a batch that is cut off cannot be
/// repeated, so that such a line is refused in a queue that needs keys, unless keys are asked for
/// and printed. The batch then ends before that line.
async fn add_keys(
    session: &Session,
    send: &Send,
    screen: Screen,
    batch: &mut Vec<(u64, Message)>,
) -> Result<(), Failure> {
    let without_key = batch.iter().position(|(_, message)| message.key.is_none());
    let Some(place) = without_key else { return Ok(()) };
    if !send.make_keys {
        let number = batch.get(place).map_or(0, |(number, _)| *number);
        let refused = match needs_keys(session, &send.queue).await {
            Ok(false) => None,
            Ok(true) => Some(keyless(number)),
            Err(failure) => Some(failure),
        };
        if let Some(refused) = refused {
            batch.truncate(place);
            return Err(refused);
        }
    }
    for (number, message) in batch.iter_mut().filter(|(_, message)| message.key.is_none()) {
        let key = new_key();
        match (send.make_keys, screen.is_json()) {
            (true, true) => say(serde_json::json!({ "line": number, "key": key })),
            (true, false) => say(format_args!("line {number}: the key is {key}")),
            (false, _) => {}
        }
        message.key = Some(key);
    }
    Ok(())
}

async fn needs_keys(session: &Session, queue: &str) -> Result<bool, Failure> {
    let shown = session.client.queue(queue).await?;
    Ok(shown.config()?.guarantee != Guarantee::AtLeastOnce)
}

fn keyless(number: u64) -> Failure {
    let next = format!(
        "add \"key\" to every line, so that the batch can be repeated safely, or generate and \
         print the keys with --make-keys. The lines before it were sent: continue with line \
         {number}"
    );
    Failure::usage(format!("line {number}: there is no key")).next(next)
}

/// The failure of a batch that the broker did not answer; all earlier lines have their answers.
fn unanswered(failure: Failure, numbers: &[u64]) -> Failure {
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return failure };
    let next = format!(
        "lines {first} to {last} may have been accepted or not; those before them were answered. \
         Send again from line {first} on, under the same keys"
    );
    let next = match &failure.next {
        Some(before) => format!("{before}\n{next}"),
        None => next,
    };
    failure.next(next)
}

/// The standard input, line by line.
struct Lines<R> {
    input: R,
    number: u64,
    /// The first invalid line, reported after all messages before it were returned.
    wrong: Option<Failure>,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, number: 0, wrong: None }
    }

    /// Reads the messages of one call, with their line numbers; none at the end. An invalid line is
    /// reported after all lines before it.
    fn batch(&mut self) -> Result<Vec<(u64, Message)>, Failure> {
        let mut messages = Vec::new();
        let mut bytes = 0;
        while messages.len() < MESSAGES_MAX && bytes < BATCH_BYTES_MAX && self.wrong.is_none() {
            match self.next_message() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    bytes += message.body.len();
                    messages.push((self.number, message));
                }
                Err(wrong) => self.wrong = Some(wrong),
            }
        }
        match self.wrong.take() {
            Some(wrong) if messages.is_empty() => Err(wrong),
            wrong => {
                self.wrong = wrong;
                Ok(messages)
            }
        }
    }

    fn next_message(&mut self) -> Result<Option<Message>, Failure> {
        let Some(line) = self.line()? else { return Ok(None) };
        let number = self.number;
        message(&line).map(Some).map_err(|why| {
            let next = format!(
                "every line must be one JSON document, as in hapax send --help. The lines before \
                 it were sent: correct it and continue with line {number}"
            );
            Failure::usage(format!("line {number}: {why}")).next(next)
        })
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let mut line = Vec::new();
            let mut input = std::io::Read::take(&mut self.input, LINE_BYTES_MAX);
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

/// Reads a line as the HTTP API reads a message of a batch. The body may be empty, but a line
/// without one is refused.
fn message(line: &[u8]) -> Result<Message, String> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    #[derive(Deserialize)]
    struct Given {
        body: Option<IgnoredAny>,
        body_base64: Option<IgnoredAny>,
    }
    let message: Message =
        hapax_wire::json::read(line.as_bytes()).map_err(|error| in_line(&error.to_string()))?;
    if let Ok(Given { body: None, body_base64: None }) = serde_json::from_str(line) {
        return Err("there is no body".to_owned());
    }
    Ok(message)
}

/// An error of JSON without the number of its line: a document is one line here.
fn in_line(error: &str) -> String {
    error.replace(" at line 1 column ", " at column ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_messages_and_empty_ones_are_passed_over() {
        let input =
            "{\"key\":\"a\",\"body\":\"1\"}\n\n{\"body_base64\":\"/w==\",\"group\":\"g\"}\n";
        let mut lines = Lines::new(input.as_bytes());
        let (numbers, messages): (Vec<u64>, Vec<_>) = lines.batch().unwrap().into_iter().unzip();
        assert_eq!(numbers, [1, 3]);
        assert_eq!((messages[0].key.as_deref(), &messages[0].body[..]), (Some("a"), &b"1"[..]));
        assert_eq!((messages[1].group.as_deref(), &messages[1].body[..]), (Some("g"), &[0xff][..]));
        assert_eq!(messages[1].key, None);
        assert!(lines.batch().unwrap().is_empty());
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (line, why) in [
            ("nonsense", "line 1"),
            ("nonsense", "at column"),
            ("{\"key\":\"a\"}", "no body"),
            ("{\"body\":\"\",\"fingerprnt\":\"x\"}", "unknown field"),
            ("{\"body\":\"\",\"body_base64\":\"\"}", "not both"),
            ("{\"body\":\"\",\"issued_at\":\"once\"}", "is not an RFC 3339 time"),
        ] {
            let mut lines = Lines::new(line.as_bytes());
            let failure = lines.batch().unwrap_err();
            assert!(failure.what.contains(why), "{line}: {}", failure.what);
            assert_eq!(failure.exit, Exit::Usage);
        }
    }

    #[test]
    fn a_line_that_is_not_utf_8_is_named_like_any_other_wrong_line() {
        let mut lines = Lines::new(&b"{\"key\":\"a\",\"body\":\"1\"}\n{\"body\":\"\xff\"}\n"[..]);
        assert_eq!(lines.batch().unwrap().len(), 1);
        let wrong = lines.batch().unwrap_err();
        assert_eq!((wrong.what.as_str(), wrong.exit), ("line 2: it is not UTF-8", Exit::Usage));
        assert!(wrong.next.unwrap().contains("continue with line 2"));
    }

    #[test]
    fn a_wrong_line_is_told_after_all_that_came_before_it() {
        let input = "{\"key\":\"a\",\"body\":\"1\"}\n\nnonsense\n{\"key\":\"b\",\"body\":\"2\"}\n";
        let mut lines = Lines::new(input.as_bytes());
        let batch = lines.batch().unwrap();
        assert_eq!(batch.len(), 1, "the line before it is sent");
        let wrong = lines.batch().unwrap_err();
        assert!(wrong.what.starts_with("line 3: "), "{}", wrong.what);
        assert!(wrong.next.unwrap().contains("continue with line 3"));
    }
}
