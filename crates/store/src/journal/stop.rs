//! The one-way switch of a store: once something failed that cannot be undone, everything fails.

use std::sync::OnceLock;

use crate::Error;

/// Thrown at most once; the first cause stays.
#[derive(Debug, Default)]
pub struct Stop {
    cause: OnceLock<String>,
}

impl Stop {
    pub fn check(&self) -> Result<(), Error> {
        match self.cause.get() {
            Some(cause) => Err(Error::Stopped(cause.clone())),
            None => Ok(()),
        }
    }

    pub fn is_thrown(&self) -> bool {
        self.cause.get().is_some()
    }

    pub fn fail(&self, cause: &str) {
        // Whoever comes second meets a store that is already stopped.
        let _ = self.cause.set(cause.to_owned());
    }
}
