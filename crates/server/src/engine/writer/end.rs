//! The end of a writer, and who learns of it.

use std::sync::atomic::Ordering;

use super::{Shared, Stopped};

/// Why a writer ended.
pub(super) enum End {
    Stopped,
    /// Another owner has the partition. The broker goes on with the others.
    Fenced(String),
    /// The store lost what it had confirmed.
    Regressed(String),
    Failed(String),
}

impl End {
    pub(super) fn of(error: &hapax_partition::Error) -> Self {
        match error {
            hapax_partition::Error::Store(hapax_store::Error::Fenced { .. }) => {
                Self::Fenced(error.to_string())
            }
            hapax_partition::Error::Store(hapax_store::Error::Regressed { .. }) => {
                Self::Regressed(error.to_string())
            }
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl Shared {
    /// Takes note that a writer ended, and returns what is answered from here on.
    pub(super) fn writer_ended(&self, partition: usize, end: End) -> Stopped {
        let why = |error: &str| Stopped(format!("partition {partition}: {error}").into());
        match end {
            End::Stopped => Stopped("the broker is stopping".into()),
            End::Fenced(error) => {
                tracing::warn!(partition, error, "the partition has another owner");
                let why = why(&error);
                self.fenced.send_modify(|fenced| fenced.push((partition, why.clone())));
                why
            }
            End::Regressed(error) => {
                self.is_regressed.store(true, Ordering::SeqCst);
                // It names the partition.
                self.failed(partition, Stopped(error.into()))
            }
            End::Failed(error) => self.failed(partition, why(&error)),
        }
    }

    fn failed(&self, partition: usize, why: Stopped) -> Stopped {
        tracing::error!(partition, %why, "the partition has stopped");
        self.failed.send_replace(Some(why.clone()));
        why
    }
}
