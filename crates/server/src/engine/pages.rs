//! Pages of messages over all partitions, merged by age.
//!
//! A partition lists a place in the order in which it accepted the messages. Between partitions the
//! time of acceptance decides, then the lower partition number. A cursor has the position in each
//! partition, so that a page begins exactly after the previous one. It grows with the partitions:
//! 1,000 always fit, and 4,096 if the numbers of their messages are within 60 million of each
//! other. No more than one page of each partition is in memory.

use std::collections::VecDeque;
use std::fmt;

use hapax_core::{Browse, Command, KeyView, Outcome, Seq};
use hapax_wire::Code;

use super::queues::Decided;
use super::{Engine, Stopped};
use crate::problem::Problem;

/// Larger than any message number.
const SEQ_MAX: Seq = 1 << 62;
/// A cursor is sent back in the head of a request, which has 32 KiB in total.
const CURSOR_BYTES_MAX: usize = 28 * 1_024;
/// The base of the digits in a cursor.
const RADIX: u32 = 36;
/// Begins every cursor; cursors of the first release began with a number.
const VERSION: &str = "v2";

/// A page of messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub messages: Vec<KeyView>,
    pub next: Option<Cursor>,
    from: Cursor,
}

/// The end of a page: the last listed message of each partition, `None` if none was.
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

    /// Refuses a page whose cursor would be too large to send back.
    pub(crate) fn check_next(&self) -> Result<(), Problem> {
        let Some(bytes) = self.next.as_ref().map(|next| next.to_string().len()) else {
            return Ok(());
        };
        if bytes <= CURSOR_BYTES_MAX {
            return Ok(());
        }
        let detail = format!(
            "the cursor of the next page would have {bytes} bytes, at most {CURSOR_BYTES_MAX} are \
             allowed, because the broker has so many partitions: ask for larger pages, or get \
             messages by their keys"
        );
        Err(Problem::new(Code::TooLarge, detail))
    }
}

impl Cursor {
    fn start(partitions: usize) -> Self {
        Self(vec![None; partitions])
    }

    /// Parses the output of `to_string`, for a broker with this number of partitions.
    pub fn parse(text: &str, partitions: usize) -> Result<Self, Problem> {
        if text.len() > CURSOR_BYTES_MAX {
            let detail = format!("cursor: it must have at most {CURSOR_BYTES_MAX} bytes");
            return Err(Problem::invalid(detail));
        }
        Self::read(text).filter(|cursor| cursor.0.len() == partitions).ok_or_else(|| {
            let detail = "cursor is not a `next` value of this broker and release: start with the \
                          first page";
            Problem::invalid(detail)
        })
    }

    /// Format: the version, the lowest number, and the differences of the others to it.
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        if parts.next() != Some(VERSION) {
            return None;
        }
        let lowest = number(parts.next()?)?;
        let seqs = parts.map(|part| match part {
            "" => Some(None),
            above => {
                let seq = lowest.checked_add(number(above)?);
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
        write!(f, "{VERSION}.{}", digits(lowest))?;
        for seq in &self.0 {
            f.write_str(".")?;
            if let Some(seq) = seq {
                f.write_str(&digits(seq - lowest))?;
            }
        }
        Ok(())
    }
}

fn number(digits: &str) -> Option<Seq> {
    let is_plain = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
    digits.bytes().all(is_plain).then(|| Seq::from_str_radix(digits, RADIX).ok())?
}

fn digits(mut number: Seq) -> String {
    let mut digits = Vec::with_capacity(4);
    loop {
        let digit = char::from_digit((number % Seq::from(RADIX)) as u32, RADIX);
        digits.extend(digit);
        number /= Seq::from(RADIX);
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// What a partition listed and the page has not taken yet.
struct Part {
    partition: usize,
    listed: VecDeque<KeyView>,
    /// The next position in the partition; `None` when everything is listed.
    rest: Option<Option<Seq>>,
}

impl Part {
    /// Takes the outcome of a [`Command::Browse`].
    fn add(&mut self, outcome: Outcome) -> Decided<()> {
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
    pub async fn browse(&self, browse: Browse, cursor: Option<Cursor>) -> Decided<Page> {
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
    async fn first_parts(&self, browse: &Browse, from: &Cursor) -> Decided<Vec<Part>> {
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

    /// Asks a partition until its next message is known, or that it has no more.
    async fn refill(&self, part: &mut Part, browse: &Browse, limit: usize) -> Decided<()> {
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
        let beyond = format!("v2.1.{}", digits(SEQ_MAX - 1));
        for bad in ["v2.0.+1", "v2.0.A", "v2.0.-1"] {
            assert!(Cursor::parse(bad, 1).is_err(), "{bad}");
        }
        for bad in ["", "v2", "v2.0", "v2..", "v2.!.0", "v2.0.!", "v3.0.0", "0-7", "0.7", &beyond] {
            assert!(Cursor::parse(bad, 1).is_err(), "{bad}");
        }
    }

    fn page(seqs: Vec<Option<Seq>>) -> Page {
        let next = Some(Cursor(seqs.clone()));
        Page { messages: Vec::new(), next, from: Cursor(seqs) }
    }

    #[test]
    fn a_cursor_of_a_thousand_partitions_always_fits_into_a_request() {
        let far = (0..1_000).map(|partition| Some(if partition == 0 { 0 } else { SEQ_MAX - 1 }));
        let page = page(far.collect());
        page.check_next().unwrap();
        let next = page.next.unwrap();
        assert_eq!(Cursor::parse(&next.to_string(), 1_000).unwrap(), next);
    }

    #[test]
    fn a_cursor_of_all_partitions_fits_where_they_are_near_and_else_is_refused() {
        let most = u64::from(hapax_core::limits::PARTITIONS_MAX);
        let apart = |by: u64| page((0..most).map(|it| Some(it.min(1) * by + (1 << 40))).collect());
        apart(60_000_000).check_next().unwrap();
        let problem = apart(1 << 60).check_next().unwrap_err();
        assert_eq!(problem.code, Code::TooLarge, "{problem:?}");
        let long = apart(1 << 60).next.unwrap().to_string();
        let long = format!("{long}{long}");
        let problem = Cursor::parse(&long, usize::from(hapax_core::limits::PARTITIONS_MAX));
        assert!(problem.unwrap_err().detail.contains("at most"), "and not read");
    }
}
