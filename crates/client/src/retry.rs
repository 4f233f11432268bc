//! Retries: which errors are retried, how long to pause, and when to stop.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// A retry loop with backoff.
///
/// [Retryable](Error::is_retryable) errors are retried, others are not. Pauses double up to a
/// bound, from 20 ms to 5 s unless [`Retry::pauses`] changes that. Each is drawn at random from the
/// upper half of its bound, so that many clients that lost one broker do not reconnect at the same
/// moment, and is never shorter than the broker asks for. If a pause would end after the time
/// limit, the error is returned at once.
///
/// ```no_run
/// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_client::Error> {
/// use std::time::Duration;
/// use hapax_client::{Message, Retry};
///
/// let lemons = Message::new("three lemons").key("order-42");
/// Retry::within(Duration::from_secs(3_600)).run(|| orders.send(lemons.clone())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Retry {
    /// The time limit; `None` for no limit.
    patience: Option<Duration>,
    since: Instant,
    first: Duration,
    longest: Duration,
    /// Upper bound of the next pause.
    bound: Duration,
}

impl Retry {
    /// Retries without a time limit.
    pub fn forever() -> Self {
        Self { patience: None, since: Instant::now(), first: FIRST, longest: LONGEST, bound: FIRST }
    }

    /// Retries for at most this long from now.
    pub fn within(patience: Duration) -> Self {
        Self { patience: Some(patience), ..Self::forever() }
    }

    pub(crate) fn until(end: Instant) -> Self {
        Self::within(end.saturating_duration_since(Instant::now()))
    }

    /// Sets the first and the longest pause. If they are equal, the pause is constant.
    pub fn pauses(self, first: Duration, longest: Duration) -> Self {
        Self { first, longest, bound: first, ..self }
    }

    /// Resets the backoff and the time limit after a success.
    pub fn reset(&mut self) {
        self.since = Instant::now();
        self.bound = self.first;
    }

    /// Calls until there is an answer, or an error that is not retried.
    pub async fn run<T, F>(&mut self, mut call: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            match call().await {
                Err(error) => self.after(error).await?,
                answered => return answered,
            }
        }
    }

    /// Waits before the next try. If there will be none, returns the error at once.
    pub async fn after(&mut self, error: Error) -> Result<(), Error> {
        let is_pausing = error.is_retryable() && self.pause(error.retry_after()).await;
        if is_pausing { Ok(()) } else { Err(error) }
    }

    /// Waits before the next try, for at least as long as the broker asked for. Returns `false` at
    /// once if the time limit would pass before.
    pub async fn pause(&mut self, asked: Option<Duration>) -> bool {
        let pause = self.next_pause(asked);
        let has_time = self.has_time(self.since.elapsed().saturating_add(pause));
        if has_time {
            tokio::time::sleep(pause).await;
        }
        has_time
    }

    /// The length of the next pause, for callers that wait for something else meanwhile.
    pub fn next_pause(&mut self, asked: Option<Duration>) -> Duration {
        let pause = self.bound.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.bound = self.bound.saturating_mul(2).min(self.longest);
        asked.map_or(pause, |asked| asked.max(pause))
    }

    /// Whether a caller that makes its own pauses should continue after this error.
    pub(crate) fn goes_on_after(&self, error: &Error) -> bool {
        let pause = error.retry_after().unwrap_or_default();
        error.is_retryable() && self.has_time(self.since.elapsed().saturating_add(pause))
    }

    /// Whether there is time left after this much has passed.
    fn has_time(&self, passed: Duration) -> bool {
        self.patience.is_none_or(|patience| passed < patience)
    }
}

/// The moment `after` another. One that is too far away for the clock is a year away.
pub(crate) fn moment(start: Instant, after: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);
    start.checked_add(after).unwrap_or(start + YEAR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Refusal;
    use hapax_wire::Code;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn refused(code: Code, retry_after: Option<Duration>) -> Error {
        Error::Refused(Box::new(Refusal { code, detail: String::new(), retry_after, first: None }))
    }

    /// Runs something that is always refused, and counts the calls.
    async fn calls(retry: &mut Retry, code: Code, asked: Option<Duration>) -> u32 {
        let mut count = 0;
        let ended: Result<(), Error> = retry
            .run(|| {
                count += 1;
                std::future::ready(Err(refused(code, asked)))
            })
            .await;
        assert_eq!(ended.unwrap_err().code(), code);
        count
    }

    #[test]
    fn pauses_grow_to_a_bound_and_start_over() {
        let mut retry = Retry::forever();
        assert!(retry.next_pause(None) <= FIRST);
        for _ in 0..20 {
            assert!(retry.next_pause(None) <= LONGEST);
        }
        assert!(retry.next_pause(None) >= LONGEST / 2);
        retry.reset();
        assert!(retry.next_pause(None) <= FIRST);
    }

    #[test]
    fn a_pause_is_as_long_as_the_broker_asks_for() {
        let mut retry = Retry::within(HOUR);
        assert_eq!(retry.next_pause(Some(LONGEST * 3)), LONGEST * 3);
        assert!(retry.next_pause(Some(Duration::ZERO)) >= FIRST / 2);
    }

    #[tokio::test]
    async fn what_a_retry_does_not_help_is_tried_once() {
        assert_eq!(calls(&mut Retry::forever(), Code::Invalid, None).await, 1);
    }

    #[tokio::test]
    async fn a_pause_past_the_end_of_its_time_is_not_begun() {
        assert_eq!(calls(&mut Retry::within(HOUR), Code::RateLimited, Some(HOUR)).await, 1);
        assert_eq!(calls(&mut Retry::within(Duration::ZERO), Code::Unavailable, None).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_success_the_time_begins_anew() {
        let mut retry = Retry::within(HOUR);
        assert!(retry.pause(None).await);
        tokio::time::advance(HOUR).await;
        assert!(!retry.pause(None).await);
        retry.reset();
        assert!(retry.pause(None).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_the_broker_asks_for_passes_before_the_next_try() {
        let start = Instant::now();
        let mut tries = Vec::new();
        let mut retry = Retry::within(HOUR);
        let asked = Some(Duration::from_secs(60));
        let ended: Result<(), Error> = retry
            .run(|| {
                tries.push(start.elapsed().as_secs());
                std::future::ready(Err(refused(Code::RateLimited, asked)))
            })
            .await;
        assert!(ended.is_err());
        let expected: Vec<u64> = (0..60).map(|minute| minute * 60).collect();
        assert_eq!(tries, expected, "every minute, and none at the end of the hour");
    }

    #[test]
    fn tries_end_with_the_time() {
        let mut retry = Retry::within(HOUR);
        let (mut passed, mut tries) = (Duration::ZERO, 0);
        while retry.has_time(passed) {
            passed += retry.next_pause(None);
            tries += 1;
        }
        assert!(tries >= HOUR.as_secs() / LONGEST.as_secs() && passed < HOUR + LONGEST, "{tries}");
    }

    #[tokio::test]
    async fn an_answer_ends_the_tries() {
        let mut answers = vec![Ok(7), Err(refused(Code::Unavailable, None))];
        let mut retry = Retry::forever().pauses(Duration::ZERO, Duration::ZERO);
        let answered = retry.run(|| std::future::ready(answers.pop().unwrap_or(Ok(0)))).await;
        assert_eq!(answered.unwrap(), 7);
    }

    #[tokio::test]
    async fn times_without_an_end_are_none() {
        let now = Instant::now();
        assert!(moment(now, Duration::MAX) > now + HOUR);
        assert_eq!(moment(now, HOUR), now + HOUR);
        let mut retry = Retry::within(HOUR).pauses(Duration::MAX, Duration::MAX);
        assert!(!retry.pause(None).await && !retry.pause(Some(Duration::MAX)).await);
    }

    #[test]
    fn others_go_on_while_there_is_time() {
        let (away, busy) = (refused(Code::Unavailable, None), Some(HOUR));
        assert!(Retry::within(HOUR).goes_on_after(&away));
        assert!(!Retry::within(HOUR).goes_on_after(&refused(Code::Invalid, None)));
        assert!(!Retry::within(HOUR).goes_on_after(&refused(Code::RateLimited, busy)));
        assert!(!Retry::within(Duration::ZERO).goes_on_after(&away));
        assert!(Retry::forever().goes_on_after(&refused(Code::RateLimited, busy)));
    }
}
