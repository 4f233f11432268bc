//! Trying again: the one place that says what is worth it, how long to pause, and when to stop.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// Tries something again while that may help.
///
/// Errors of the broker that are [retryable](Error::is_retryable) are worth another try, others are
/// not. Pauses double up to a bound, from 20 ms to 5 s unless [`Retry::pauses`] changes that. Each
/// is drawn at random from the upper half of its bound, so that many clients that lost one broker
/// do not come back at the same moment, and is never shorter than the broker asks for. Nothing is
/// tried after the end of the time that it was given: where a pause would last longer, the error is
/// returned at once.
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
    /// Without one it never ends.
    patience: Option<Duration>,
    since: Instant,
    first: Duration,
    longest: Duration,
    /// Upper bound of the next pause.
    bound: Duration,
}

impl Retry {
    /// Tries for as long as it helps.
    pub fn forever() -> Self {
        Self { patience: None, since: Instant::now(), first: FIRST, longest: LONGEST, bound: FIRST }
    }

    /// Tries for this long, from now on.
    pub fn within(patience: Duration) -> Self {
        Self { patience: Some(patience), ..Self::forever() }
    }

    pub(crate) fn until(end: Instant) -> Self {
        Self::within(end.saturating_duration_since(Instant::now()))
    }

    /// Sets the first and the longest pause. The same twice is a steady one.
    pub fn pauses(self, first: Duration, longest: Duration) -> Self {
        Self { first, longest, bound: first, ..self }
    }

    /// Starts over: it worked, and the next failure is a new one.
    pub fn reset(&mut self) {
        self.since = Instant::now();
        self.bound = self.first;
    }

    /// Calls until there is an answer, or an error that is not worth another try.
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

    /// Waits before the next try. Where there is none, returns the error at once.
    pub async fn after(&mut self, error: Error) -> Result<(), Error> {
        let is_pausing = error.is_retryable() && self.pause(error.retry_after()).await;
        if is_pausing { Ok(()) } else { Err(error) }
    }

    /// Waits before the next try, for at least as long as the broker asked for. Returns `false`
    /// at once where its time would be over by then.
    pub async fn pause(&mut self, asked: Option<Duration>) -> bool {
        let pause = self.next_pause(asked);
        let has_time = self.has_time(self.since.elapsed() + pause);
        if has_time {
            tokio::time::sleep(pause).await;
        }
        has_time
    }

    /// How long to wait before the next try, for those who wait for something else meanwhile.
    pub fn next_pause(&mut self, asked: Option<Duration>) -> Duration {
        let pause = self.bound.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.bound = (self.bound * 2).min(self.longest);
        asked.map_or(pause, |asked| asked.max(pause))
    }

    /// Whether something else that pauses by itself should go on after this error.
    pub(crate) fn goes_on_after(&self, error: &Error) -> bool {
        let pause = error.retry_after().unwrap_or_default();
        error.is_retryable() && self.has_time(self.since.elapsed() + pause)
    }

    /// Whether it may still try when this much of its time has passed.
    fn has_time(&self, passed: Duration) -> bool {
        self.patience.is_none_or(|patience| passed < patience)
    }
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
