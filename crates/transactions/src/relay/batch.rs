//! Sends one batch of rows to the broker.
//!
//! Queues are sent to concurrently, each over a pipelined sender. Rows without a group are all in
//! flight at once; of a group one row is, and the next is sent when it is confirmed. The rows
//! behind a refused one are not sent with this batch.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures_util::future::join_all;
use hapax_client::{Answered, Client, Error, Sender};

use super::Stop;
use super::source::{RETRY_MAX, Refused, Row};

/// The most queues with an open connection.
const SENDERS_MAX: usize = 32;
/// How long a stop waits for answers.
const DRAIN: Duration = Duration::from_secs(10);
/// The shortest pause for a queue that is full or rate-limited.
const HOLD: Duration = Duration::from_secs(1);
/// The first pause between two tries of a refused row; it doubles with every try, to the longest.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The outcome of a batch. Rows that are in none of the lists were not sent or not answered, and
/// are still in the table.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) confirmed: Vec<Row>,
    /// The number of duplicates among them.
    pub(super) duplicates: u64,
    pub(super) refused: Vec<Refused>,
    /// Queues that are full or rate-limited, and when to try again.
    pub(super) held: HashMap<String, Duration>,
    /// A permanent error, such as an invalid token.
    pub(super) fatal: Option<Error>,
}

/// The connections to the queues.
#[derive(Debug)]
pub(super) struct Senders {
    client: Client,
    open: HashMap<String, Sender>,
}

impl Senders {
    pub(super) fn new(client: Client) -> Self {
        Self { client, open: HashMap::new() }
    }

    /// Sends rows, and waits until each is answered, however long the broker cannot be reached.
    /// After a stop it waits only for a while.
    pub(super) async fn send(&mut self, rows: Vec<Row>, tries: u32, stop: &Stop) -> Outcome {
        let mut queues: HashMap<String, Vec<Row>> = HashMap::new();
        for row in rows {
            queues.entry(row.name.queue.clone()).or_default().push(row);
        }
        let mut parts: Vec<Part> = queues
            .into_iter()
            .map(|(queue, rows)| Part::new(self.take(&queue), queue, rows, tries))
            .collect();
        tokio::select! {
            _ = join_all(parts.iter_mut().map(Part::send)) => {}
            () = give_up(stop) => tracing::warn!("stopping without the answers of the broker"),
        }
        let mut outcome = Outcome::default();
        for mut part in parts {
            outcome.confirmed.append(&mut part.outcome.confirmed);
            outcome.duplicates += part.outcome.duplicates;
            outcome.refused.append(&mut part.outcome.refused);
            outcome.held.extend(part.outcome.held);
            outcome.fatal = outcome.fatal.or(part.outcome.fatal);
            if part.sender.unanswered() == 0 && self.open.len() < SENDERS_MAX {
                self.open.insert(part.queue, part.sender);
            }
        }
        outcome
    }

    fn take(&mut self, queue: &str) -> Sender {
        self.open.remove(queue).unwrap_or_else(|| self.client.queue(queue).sender())
    }
}

async fn give_up(stop: &Stop) {
    stop.heard().await;
    tokio::time::sleep(DRAIN).await;
}

/// The rows of one queue.
struct Part {
    queue: String,
    sender: Sender,
    tries: u32,
    rows: Vec<Option<Row>>,
    /// Indexes of rows that may be pushed, in order.
    ready: VecDeque<usize>,
    /// Indexes of rows that wait for the row of their group in flight.
    behind: HashMap<String, VecDeque<usize>>,
    outcome: Outcome,
}

impl Part {
    fn new(sender: Sender, queue: String, rows: Vec<Row>, tries: u32) -> Self {
        let mut ready = VecDeque::new();
        let mut behind: HashMap<String, VecDeque<usize>> = HashMap::new();
        for (place, row) in rows.iter().enumerate() {
            if row.name.group.is_empty() {
                ready.push_back(place);
            } else if let Some(followers) = behind.get_mut(&row.name.group) {
                followers.push_back(place);
            } else {
                behind.insert(row.name.group.clone(), VecDeque::new());
                ready.push_back(place);
            }
        }
        let rows = rows.into_iter().map(Some).collect();
        Self { queue, sender, tries, rows, ready, behind, outcome: Outcome::default() }
    }

    /// Cancel-safe: the answers so far are in the outcome.
    async fn send(&mut self) {
        let mut answers = Vec::new();
        loop {
            self.push();
            if self.sender.unanswered() == 0 {
                return;
            }
            match self.sender.answers(&mut answers).await {
                Ok(()) => answers.drain(..).for_each(|answered| self.take(answered)),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "cannot reach the broker; retrying");
                }
                Err(error) => {
                    self.outcome.fatal = Some(error);
                    return;
                }
            }
        }
    }

    /// Pushes rows, unless the queue is full or rate-limited.
    fn push(&mut self) {
        while self.outcome.held.is_empty()
            && self.sender.room() > 0
            && let Some(place) = self.ready.pop_front()
        {
            if let Some(Some(row)) = self.rows.get(place) {
                self.sender.push(row.message(), place as u64);
            }
        }
    }

    fn take(&mut self, answered: Answered) {
        let place = usize::try_from(answered.tag).unwrap_or(usize::MAX);
        let Some(row) = self.rows.get_mut(place).and_then(Option::take) else { return };
        match answered.answer {
            Ok(answer) => {
                self.outcome.duplicates += u64::from(!answer.is_new());
                if let Some(followers) = self.behind.get_mut(&row.name.group) {
                    self.ready.extend(followers.pop_front());
                }
                self.outcome.confirmed.push(row);
            }
            Err(error) if error.is_retryable() => {
                let pause = error.retry_after().unwrap_or(HOLD).clamp(HOLD, RETRY_MAX);
                let held = self.outcome.held.entry(self.queue.clone()).or_default();
                *held = pause.max(*held);
            }
            Err(error) => self.outcome.refused.push(refused(&row, self.tries, &error)),
        }
    }
}

fn refused(row: &Row, tries_max: u32, error: &Error) -> Refused {
    let tries = row.tries.saturating_add(1);
    let pause = RETRY_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(RETRY_MAX);
    let retry_in = (tries < tries_max).then_some(pause);
    match retry_in {
        Some(pause) => tracing::warn!(
            id = row.id, queue = row.name.queue, tries, retry_in_ms = pause.as_millis() as u64,
            %error, "a row was refused"
        ),
        None => tracing::error!(
            id = row.id, queue = row.name.queue, tries, %error,
            "a row was refused too often and is parked"
        ),
    }
    Refused { id: row.id, tries, error: error.to_string(), retry_in }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_row_is_tried_later_and_later_and_then_parked() {
        let error = Error::Invalid("no".to_owned());
        let after = |tries| {
            let row = Row { tries, ..Row::default() };
            refused(&row, 4, &error).retry_in.map(|pause| pause.as_secs())
        };
        assert_eq!([0, 1, 2, 3].map(after), [Some(1), Some(2), Some(4), None]);
        let patient = refused(&Row { tries: 50, ..Row::default() }, 1_000, &error);
        assert_eq!((patient.retry_in, patient.tries), (Some(RETRY_MAX), 51));
    }
}
