//! `hapax send --batch`: messages as lines of JSON, as many to a call as the broker takes.

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use hapax_wire::proto;
use serde::Deserialize;

use super::Tally;
use crate::content::new_key;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Screen, progress};
use crate::session::Session;
use crate::shapes;

/// Fewer than the broker takes at once, so that progress is seen.
const MESSAGES_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 4 * 1_024 * 1_024;
const LINE_BYTES_MAX: u64 = 24 * 1_024 * 1_024;

/// One line. Unknown fields are refused: a misspelled `fingerprint` would weaken the key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    body: Option<String>,
    body_base64: Option<String>,
    content_type: Option<String>,
    group: Option<String>,
    delay_ms: Option<u64>,
    ttl_ms: Option<u64>,
    fingerprint: Option<String>,
    issued_at: Option<String>,
    #[serde(default)]
    headers: HashMap<String, String>,
}

pub(super) async fn run(
    session: &Session,
    queue: &str,
    retry: Duration,
    screen: Screen,
) -> Result<Exit, Failure> {
    let bar = progress(0, "{spinner} {human_pos} messages, {rate}");
    let mut tally = Tally::default();
    let mut lines = Lines::new(std::io::stdin().lock());
    let ended = loop {
        let batch = match lines.batch() {
            Ok(batch) if batch.is_empty() => break Ok(()),
            Ok(batch) => batch,
            Err(wrong) => break Err(wrong),
        };
        let (numbers, messages): (Vec<u64>, Vec<_>) = batch.into_iter().unzip();
        let keys: Vec<String> = messages.iter().map(|message| message.key.clone()).collect();
        let answers = match session.send(queue, messages, retry).await {
            Ok(answers) => answers,
            Err(failure) => break Err(unanswered(failure, &numbers)),
        };
        bar.inc(keys.len() as u64);
        for ((number, key), answer) in numbers.iter().zip(&keys).zip(&answers) {
            if screen.is_json() {
                screen.json_line(&shapes::Answer::of(queue, key, answer))?;
            }
            bar.suspend(|| tally.count(screen, *number, key, answer));
        }
    };
    bar.finish_and_clear();
    // What was sent is told however it ended.
    if !screen.is_json() {
        screen.line(format_args!(
            "{} accepted, {} sent before, {} refused",
            tally.accepted, tally.duplicates, tally.refused
        ))?;
    }
    ended?;
    Ok(tally.exit.unwrap_or(Exit::Ok))
}

/// The broker did not answer for these lines; those before them have their answers.
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
    /// A line that is wrong, kept until what came before it was handed out.
    wrong: Option<Failure>,
}

impl<R: BufRead> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, number: 0, wrong: None }
    }

    /// As many messages as one call takes, with the numbers of their lines; none at the end. A line
    /// that is wrong is told after all that came before it.
    fn batch(&mut self) -> Result<Vec<(u64, proto::Message)>, Failure> {
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

    fn next_message(&mut self) -> Result<Option<proto::Message>, Failure> {
        let Some(line) = self.line()? else { return Ok(None) };
        let number = self.number;
        message(&line).map(Some).map_err(|why| {
            let next = format!(
                "every line is one JSON document, as in hapax send --help. The lines before it \
                 were sent: put it right and go on with line {number}"
            );
            Failure::usage(format!("line {number}: {why}")).next(next)
        })
    }

    fn line(&mut self) -> Result<Option<String>, Failure> {
        loop {
            let mut line = String::new();
            let read = std::io::Read::take(&mut self.input, LINE_BYTES_MAX).read_line(&mut line)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

fn message(line: &str) -> Result<proto::Message, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let body = match (line.body, line.body_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => {
            BASE64_STANDARD.decode(text).map_err(|error| format!("body_base64: {error}"))?
        }
        (None, None) => return Err("there is no body".to_owned()),
        (Some(_), Some(_)) => return Err("give body or body_base64, not both".to_owned()),
    };
    let issued_at_ms = line.issued_at.as_deref().map(moment::parse).transpose()?;
    Ok(proto::Message {
        r#ref: 0,
        key: line.key.unwrap_or_else(new_key),
        body: body.into(),
        content_type: line.content_type.unwrap_or_default(),
        group: line.group.unwrap_or_default(),
        headers: line.headers,
        delay_ms: line.delay_ms,
        ttl_ms: line.ttl_ms,
        fingerprint: line.fingerprint,
        issued_at_ms,
    })
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
        assert_eq!((&*messages[0].key, &messages[0].body[..]), ("a", &b"1"[..]));
        assert_eq!((&*messages[1].group, &messages[1].body[..]), ("g", &[0xff][..]));
        assert_eq!(messages[1].key.len(), 36, "a key is made where there is none");
        assert!(lines.batch().unwrap().is_empty());
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (line, why) in [
            ("nonsense", "line 1"),
            ("{\"key\":\"a\"}", "no body"),
            ("{\"body\":\"\",\"fingerprnt\":\"x\"}", "unknown field"),
            ("{\"body\":\"\",\"body_base64\":\"\"}", "not both"),
            ("{\"body\":\"\",\"issued_at\":\"once\"}", "give a time"),
        ] {
            let mut lines = Lines::new(line.as_bytes());
            let failure = lines.batch().unwrap_err();
            assert!(failure.what.contains(why), "{line}: {}", failure.what);
            assert_eq!(failure.exit, Exit::Usage);
        }
    }

    #[test]
    fn a_wrong_line_is_told_after_all_that_came_before_it() {
        let input = "{\"key\":\"a\",\"body\":\"1\"}\n\nnonsense\n{\"key\":\"b\",\"body\":\"2\"}\n";
        let mut lines = Lines::new(input.as_bytes());
        let batch = lines.batch().unwrap();
        assert_eq!(batch.len(), 1, "the line before it is sent");
        let wrong = lines.batch().unwrap_err();
        assert!(wrong.what.starts_with("line 3: "), "{}", wrong.what);
        assert!(wrong.next.unwrap().contains("go on with line 3"));
    }
}
