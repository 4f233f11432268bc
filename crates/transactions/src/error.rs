//! Errors of inbox, outbox and relay.

use std::time::Duration;

/// An error of an inbox, an outbox or a relay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database returned an error, which is the source, or cannot be reached.
    #[error("{what}: {}", chain(.source.as_ref()))]
    Database { what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Broker(#[from] hapax_client::Error),
    /// The inbox would delete rows before its queue forgets their keys.
    #[error(
        "the inbox {consumer} keeps its rows for {}, but the queue {queue} remembers its keys {}. \
         Keep the rows at least that long, or leave the retention out to use that of the queue",
        human(*.kept), for_long(*.needed)
    )]
    ForgetsTooEarly { consumer: String, queue: String, kept: Duration, needed: Option<Duration> },
    /// An argument or a row is not valid.
    #[error("{0}")]
    Invalid(String),
}

#[cfg(feature = "sqlite")]
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::database("the database refused")(error)
    }
}

impl Error {
    /// For `map_err`: adds what was being done. Also for your own drivers.
    pub fn database<E>(what: &'static str) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Self::Database { what, source: source.into() }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }
}

/// The text of the innermost cause: drivers themselves often say only "db error".
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}

/// "for 7 d", or "for ever".
fn for_long(duration: Option<Duration>) -> String {
    duration.map_or("for ever".to_owned(), |duration| format!("for {}", human(duration)))
}

/// A duration in its largest whole unit.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        _ if seconds.is_multiple_of(86_400) => format!("{} d", seconds / 86_400),
        172_801.. => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
        3_600.. => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        60.. => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_error_tells_the_whole_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("db error")]
        struct Outer(#[source] std::num::ParseIntError);
        let cause = "x".parse::<u32>().unwrap_err();
        let error = Error::database("the inbox cannot be entered")(Outer(cause.clone()));
        assert_eq!(error.to_string(), format!("the inbox cannot be entered: db error: {cause}"));
    }

    #[test]
    fn durations_are_told_in_large_units() {
        for (seconds, text) in [(59, "59 s"), (6_300, "1 h 45 min"), (604_800, "7 d")] {
            assert_eq!(human(Duration::from_secs(seconds)), text);
        }
        assert_eq!(human(Duration::from_secs(611_100)), "7 d 1 h");
    }
}
