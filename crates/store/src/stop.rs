//! Stops a store permanently: after a failure that cannot be undone, every operation fails.

use std::sync::OnceLock;

use crate::{Epoch, Error, LogEnd};

/// Triggered at most once; the first cause is kept.
#[derive(Debug, Default)]
pub struct Stop {
    cause: OnceLock<Cause>,
}

#[derive(Debug)]
enum Cause {
    /// Whoever asks later has to know that the partition lives on, with another owner.
    Fenced {
        held: Epoch,
        newest: Epoch,
    },
    /// Nobody may go on with it before somebody has decided what to do.
    Regressed {
        file: String,
        had: LogEnd,
        found: LogEnd,
    },
    Unsafe {
        file: String,
        setting: String,
    },
    Failed(String),
}

impl Stop {
    pub fn check(&self) -> Result<(), Error> {
        match self.cause.get() {
            None => Ok(()),
            Some(Cause::Fenced { held, newest }) => {
                Err(Error::Fenced { held: *held, newest: *newest })
            }
            Some(Cause::Regressed { file, had, found }) => {
                Err(Error::Regressed { file: file.clone(), had: *had, found: *found })
            }
            Some(Cause::Unsafe { file, setting }) => {
                Err(Error::Unsafe { file: file.clone(), setting: setting.clone() })
            }
            Some(Cause::Failed(cause)) => Err(Error::Stopped(cause.clone())),
        }
    }

    pub fn is_thrown(&self) -> bool {
        self.cause.get().is_some()
    }

    pub fn fail(&self, cause: &str) {
        // A second cause is ignored: the store is already stopped.
        let _ = self.cause.set(Cause::Failed(cause.to_owned()));
    }

    /// The same for an error that was met.
    pub fn fail_by(&self, error: &Error) {
        let cause = match error {
            Error::Fenced { held, newest } => Cause::Fenced { held: *held, newest: *newest },
            Error::Regressed { file, had, found } => {
                Cause::Regressed { file: file.clone(), had: *had, found: *found }
            }
            Error::Unsafe { file, setting } => {
                Cause::Unsafe { file: file.clone(), setting: setting.clone() }
            }
            other => Cause::Failed(other.to_string()),
        };
        let _ = self.cause.set(cause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_fenced_stays_fenced_and_does_not_merely_stop() {
        let stop = Stop::default();
        assert!(stop.check().is_ok());
        stop.fail_by(&Error::Fenced { held: 3, newest: 4 });
        stop.fail("something later");
        let refused = stop.check();
        assert!(matches!(refused, Err(Error::Fenced { held: 3, newest: 4 })), "{refused:?}");
    }
}
