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
    let bar = progress(0, "{spinner} {human_pos} messages, {per_sec}");
    let mut tally = Tally::default();
    let mut number = 0;
    let mut lines = Lines { input: std::io::stdin().lock(), number: 0 };
    loop {
        let messages = lines.batch()?;
        if messages.is_empty() {
            break;
        }
        let keys: Vec<String> = messages.iter().map(|message| message.key.clone()).collect();
        let answers = session.send(queue, messages, retry).await?;
        bar.inc(keys.len() as u64);
        for (key, answer) in keys.iter().zip(&answers) {
            number += 1;
            if screen.is_json() {
                screen.json_line(&shapes::Answer::of(queue, key, answer))?;
            }
            bar.suspend(|| tally.count(number, key, answer));
        }
    }
    bar.finish_and_clear();
    if !screen.is_json() {
        screen.line(format_args!(
            "{} accepted, {} sent before, {} refused",
            tally.accepted, tally.duplicates, tally.refused
        ))?;
    }
    Ok(tally.exit.unwrap_or(Exit::Ok))
}

/// The standard input, line by line.
struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// As many messages as one call takes; none at the end.
    fn batch(&mut self) -> Result<Vec<proto::Message>, Failure> {
        let mut messages = Vec::new();
        let mut bytes = 0;
        while messages.len() < MESSAGES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(line) = self.line()? else { break };
            let message = message(&line).map_err(|why| {
                let next = "every line is one JSON document, as in hapax send --help; what came \
                            before it was sent, and can be sent again";
                Failure::usage(format!("line {}: {why}", self.number)).next(next)
            })?;
            bytes += message.body.len();
            messages.push(message);
        }
        Ok(messages)
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
        let mut lines = Lines { input: input.as_bytes(), number: 0 };
        let messages = lines.batch().unwrap();
        assert_eq!(messages.len(), 2);
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
            let mut lines = Lines { input: line.as_bytes(), number: 0 };
            let failure = lines.batch().unwrap_err();
            assert!(failure.what.contains(why), "{line}: {}", failure.what);
            assert_eq!(failure.exit, Exit::Usage);
        }
    }
}
