//! Finds settings that would weaken a guarantee: plain functions over the options of a broker and
//! the configuration of a queue. Settings that the broker would refuse are errors; those that it
//! accepts but that weaken a guarantee are warnings; a note only explains. A finding names its
//! field as a settings file does (`queues.orders.lease_ms`); the caller knows the line.

mod broker;
mod data;
mod finding;
mod queue;

pub use broker::{reach, spans};
pub use data::mounts;
pub use finding::{Finding, Rule, Severity};
pub use queue::queue;

use crate::options::Options;

/// Whether the field was set explicitly, as opposed to a default. Some rules depend on it.
pub type IsWritten<'a> = &'a dyn Fn(&str) -> bool;

/// All findings in the options, on a machine with these [`mounts`].
pub fn lint(options: &Options, mounts: &str, is_written: IsWritten<'_>) -> Vec<Finding> {
    let mut findings = reach(options);
    findings.extend(data::lint(&options.data, mounts, is_written));
    findings.extend(broker::followed(options));
    findings.extend(broker::tenants(options));
    for declared in &options.queues {
        findings.extend(queue(&declared.path(), &declared.config, is_written));
    }
    findings.extend(queue::upstream(&options.queues));
    findings
}
