//! Pages of messages over all partitions, merged by age.
//!
//! A partition lists a place in the order in which it took the messages. Between partitions the
//! time of acceptance decides, and the lower partition where that is the same. A cursor has the
//! place in each partition, so that a page begins exactly behind the page before. No more than one
//! page of each partition is in memory.

use std::collections::VecDeque;
use std::fmt;

use hapax_core::{Browse, Command, KeyView, Outcome, Seq};

use super::queues::Told;
use super::{Engine, Stopped};
use crate::problem::Problem;

/// No message has as large a number.
const SEQ_MAX: Seq = 1 << 62;
/// Begins every cursor; cursors of the first release began with a number.
const VERSION: &str = "v2";

/// A page of messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub messages: Vec<KeyView>,
    pub next: Option<Cursor>,
    from: Cursor,
}

/// Where a page ended: the last message of each partition that was listed, `None` where none was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Vec<Option<Seq>>);

impl Page {
    /// Keeps the first `count` messages; the next page begins behind them.
    pub fn truncate(&mut self, count: usize) {
        if count >= self.messages.len() {
            return;
        }
        self.messages.truncate(count);
        let mut next = self.from.clone();
        for view in &self.messages {
            next.pass(view);
        }
        self.next = Some(next);
    }
}

impl Cursor {
    fn start(partitions: usize) -> Self {
        Self(vec![None; partitions])
    }

    /// Reads what `to_string` wrote, for a broker of so many partitions.
    pub fn parse(text: &str, partitions: usize) -> Result<Self, Problem> {
        Self::read(text).filter(|cursor| cursor.0.len() == partitions).ok_or_else(|| {
            let detail = "cursor is not the `next` of a page of this broker and release: begin \
                          with the first page";
            Problem::invalid(detail)
        })
    }

    /// The version, the lowest of the numbers, and what the others have above it.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        if parts.next() != Some(VERSION) {
            return None;
        }
        let lowest: Seq = parts.next()?.parse().ok()?;
        let seqs = parts.map(|part| match part {
            "" => Some(None),
            above => {
                let seq = lowest.checked_add(above.parse().ok()?);
                seq.filter(|seq| *seq < SEQ_MAX).map(Some)
            }
        });
        Some(Self(seqs.collect::<Option<_>>()?))
    }

    /// Puts the cursor behind a message.
    fn pass(&mut self, view: &KeyView) {
        let partition = usize::from(view.id.partition());
        #[expect(clippy::expect_used, reason = "a message is listed by a partition of the broker")]
        let seq = self.0.get_mut(partition).expect("the partition exists");
        assert!(*seq < Some(view.record.seq), "a partition lists its messages in order");
        *seq = Some(view.record.seq);
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lowest = self.0.iter().flatten().min().copied().unwrap_or(0);
        write!(f, "{VERSION}.{lowest}")?;
        for seq in &self.0 {
            f.write_str(".")?;
            if let Some(seq) = seq {
                write!(f, "{}", seq - lowest)?;
            }
        }
        Ok(())
    }
}

/// What a partition listed and the page has not taken yet.
struct Part {
    partition: usize,
    listed: VecDeque<KeyView>,
    /// Where the partition goes on; `None` when it has listed everything.
    rest: Option<Option<Seq>>,
}

impl Part {
    /// Takes the outcome of a [`Command::Browse`].
    fn add(&mut self, outcome: Outcome) -> Told<()> {
        match outcome {
            Outcome::Messages { messages, next } => {
                self.listed.extend(messages);
                self.rest = next.map(Some);
                Ok(Ok(()))
            }
            Outcome::Refused(refusal) => Ok(Err(refusal)),
            _ => Err(Stopped::silent()),
        }
    }
}

impl Engine {
    /// A page of the messages in a place, the oldest of all partitions first.
    pub async fn browse(&self, browse: Browse, cursor: Option<Cursor>) -> Told<Page> {
        let from = cursor.unwrap_or_else(|| Cursor::start(self.partitions()));
        assert_eq!(from.0.len(), self.partitions(), "a cursor is read for its broker");
        let limit = browse.limit;
        let mut parts = match self.first_parts(&browse, &from).await? {
            Ok(parts) => parts,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let (mut messages, mut next) = (Vec::new(), from.clone());
        while messages.len() < limit {
            for part in &mut parts {
                if let Err(refusal) = self.refill(part, &browse, limit - messages.len()).await? {
                    return Ok(Err(refusal));
                }
            }
            let heads = parts.iter_mut().filter(|part| !part.listed.is_empty());
            let age = |part: &&mut Part| part.listed.front().map(|view| view.record.accepted_at);
            let Some(view) = heads.min_by_key(age).and_then(|part| part.listed.pop_front()) else {
                break;
            };
            next.pass(&view);
            messages.push(view);
        }
        let has_more = parts.iter().any(|part| !part.listed.is_empty() || part.rest.is_some());
        Ok(Ok(Page { messages, next: has_more.then_some(next), from }))
    }

    /// Asks every partition at once for its share of a page, as if messages were spread evenly.
    async fn first_parts(&self, browse: &Browse, from: &Cursor) -> Told<Vec<Part>> {
        let limit = browse.limit.div_ceil(self.partitions());
        let ask = |(partition, cursor): (usize, &Option<Seq>)| {
            let browse = Browse { cursor: *cursor, limit, ..browse.clone() };
            self.start_call(partition, vec![Command::Browse(browse)])
        };
        let asked: Vec<_> = from.0.iter().enumerate().map(ask).collect();
        let mut parts = Vec::with_capacity(asked.len());
        for (partition, asked) in asked.into_iter().enumerate() {
            let mut outcomes = asked.await.map_err(|_| Stopped::silent())??;
            let mut part = Part { partition, listed: VecDeque::new(), rest: None };
            match part.add(outcomes.pop().ok_or_else(Stopped::silent)?)? {
                Ok(()) => parts.push(part),
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
        Ok(Ok(parts))
    }

    /// Asks a partition on until its next message is known, or that it has no more.
    async fn refill(&self, part: &mut Part, browse: &Browse, limit: usize) -> Told<()> {
        while part.listed.is_empty()
            && let Some(cursor) = part.rest
        {
            let command = Command::Browse(Browse { cursor, limit, ..browse.clone() });
            let outcome = self.call(part.partition, command).await?;
            if let Err(refusal) = part.add(outcome)? {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_another_text_does_not() {
        for seqs in [
            vec![None],
            vec![Some(0)],
            vec![Some(7), None, Some(3), Some(3)],
            vec![None, Some(SEQ_MAX - 1)],
        ] {
            let cursor = Cursor(seqs);
            let text = cursor.to_string();
            assert!(text.bytes().all(|byte| byte == b'.' || byte.is_ascii_alphanumeric()));
            assert_eq!(Cursor::parse(&text, cursor.0.len()).unwrap(), cursor);
            assert!(Cursor::parse(&text, cursor.0.len() + 1).is_err(), "of another broker");
        }
        let beyond = format!("v2.1.{}", SEQ_MAX - 1);
        for bad in ["", "v2", "v2.0", "v2..", "v2.x.0", "v2.0.x", "v3.0.0", "0-7", "0.7", &beyond] {
            assert!(Cursor::parse(bad, 1).is_err(), "{bad}");
        }
    }
}
