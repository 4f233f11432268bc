//! What only a settings file can say: tenants with their limits, and queues.

use hapax_core::{Config, QueueName};
use serde_json::Value;

use super::origin::Origin;
use super::values::Limits;

/// A tenant of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    pub limits: Limits,
    /// How the file names it: `tenants.shop`.
    pub(super) prefix: String,
    /// The limits that the file names.
    pub(super) said: Vec<Said>,
    pub origin: Origin,
}

/// A queue of the file, to be created or changed when the broker starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    pub name: QueueName,
    pub config: Config,
    /// How the file names it: `queues.orders`.
    pub(super) prefix: String,
    /// The fields that the file names.
    pub(super) said: Vec<Said>,
    pub origin: Origin,
}

/// One value that a file gave to a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    pub(super) field: &'static str,
    pub(super) text: String,
    pub(super) json: Value,
    pub(super) origin: Origin,
}

impl Queue {
    /// Where a field was said; of one that was not, where the queue is.
    pub(super) fn origin_of(&self, field: &str) -> &Origin {
        let said = self.said.iter().find(|said| said.field == field);
        said.map_or(&self.origin, |said| &said.origin)
    }

    pub(super) fn says(&self, field: &str) -> bool {
        self.said.iter().any(|said| said.field == field)
    }
}
