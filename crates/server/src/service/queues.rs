//! Creates, changes, shows and purges queues.

use std::time::Duration;

use hapax_core::{Config, Configure, DedupScope, Expected, Purge, QueueName, QueueView, Refusal};
use hapax_partition::change;
use hapax_wire::Code;

use super::{Permit, Service, refused};
use crate::auth::{Action, Principal};
use crate::problem::Problem;

/// A queue with its name.
#[derive(Clone, Debug)]
pub struct Queue {
    pub name: QueueName,
    pub view: QueueView,
}

/// How long partitions have to answer a list of queues.
const LIST_WAIT: Duration = Duration::from_secs(1);

/// A list of queues.
#[derive(Clone, Debug)]
pub struct Queues {
    pub queues: Vec<Queue>,
    /// The partitions that did not answer in time: their part of the counts is missing or outdated.
    pub unanswered: Vec<u32>,
}

impl Queue {
    /// Changes with every change of the configuration. A queue that is deleted and created again
    /// has another number, so its etag never equals an earlier one.
    pub fn etag(&self) -> String {
        format!("\"{}.{}\"", self.view.number, self.view.version)
    }

    /// How long the oldest ready message has waited.
    pub fn oldest_ready_age_ms(&self) -> Option<u64> {
        self.view.oldest_ready_at.map(|at| crate::time::now().since(at))
    }
}

/// Locks that tenants share by their names.
#[derive(Debug, Default)]
pub(super) struct Creating([tokio::sync::Mutex<()>; 32]);

impl Creating {
    fn of(&self, tenant: &str) -> &tokio::sync::Mutex<()> {
        let Self([first, ..]) = self;
        let sum = tenant.bytes().fold(0_usize, |sum, byte| sum * 31 % 65_521 + usize::from(byte));
        self.0.get(sum % self.0.len()).unwrap_or(first)
    }
}

/// An operation on an existing queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Pause,
    Resume,
    Purge { keys: bool },
}

impl Service {
    /// Creates or changes a queue; returns it as this change left it, and whether it is new.
    pub async fn configure(
        &self,
        permit: &Permit,
        config: Config,
        if_version: Option<Expected>,
    ) -> Result<(Queue, bool), Problem> {
        debug_assert!(permit.action == Action::Create, "{permit:?}");
        let configure = Configure { queue: permit.queue.clone(), config, if_version };
        let is_limited = self.0.tenants.limits(&permit.queue.tenant).max_queues.is_some();
        let told = match is_limited {
            true => self.configure_counted(permit, configure).await?,
            false => self.engine().configure(configure).await?,
        };
        let (view, created) = told?;
        Ok((Queue { name: permit.queue.clone(), view }, created))
    }

    /// Creates or changes a queue of a tenant with a limited number: the count stays valid until
    /// the queue exists, even if the caller goes away.
    async fn configure_counted(
        &self,
        permit: &Permit,
        configure: Configure,
    ) -> Result<Result<(QueueView, bool), Refusal>, Problem> {
        let (service, permit) = (self.clone(), permit.clone());
        let counted = tokio::spawn(async move {
            let _one = service.0.creating.of(&permit.queue.tenant).lock().await;
            service.check_count(&permit).await?;
            Ok(service.engine().configure(configure).await?)
        });
        counted.await.map_err(|_| Problem::unanswered())?
    }

    /// Whether the tenant may have one more queue.
    async fn check_count(&self, permit: &Permit) -> Result<(), Problem> {
        let tenant = &permit.queue.tenant;
        let queues = self.engine().queue_names(tenant).await?;
        if queues.contains(&permit.queue) {
            return Ok(());
        }
        let may = self.0.tenants.may_create_queue(tenant, queues.len() as u64);
        may.map_err(|max| {
            let detail = format!("the tenant has {max} queues, which is its max_queues");
            Problem::new(Code::OverQuota, detail)
        })
    }

    pub async fn show(&self, permit: &Permit) -> Result<Queue, Problem> {
        let told = self.engine().show(&permit.queue).await?;
        let view = told.map_err(|refusal| refused(permit, refusal))?;
        Ok(Queue { name: permit.queue.clone(), view })
    }

    /// Whether the queue deduplicates per group: its keys belong to their groups.
    pub async fn is_per_group(&self, permit: &Permit) -> Result<bool, Problem> {
        let told = self.engine().dedup_scope(&permit.queue).await?;
        told.map(|scope| scope == DedupScope::Group).map_err(|refusal| refused(permit, refusal))
    }

    /// The queues of the caller's tenant that its token may see.
    pub async fn list(&self, principal: &Principal) -> Result<Queues, Problem> {
        let survey = self.engine().queues(principal.tenant(), LIST_WAIT).await?;
        let unanswered = survey.unanswered().map(|partition| partition as u32).collect();
        let seen = survey.queues.into_iter().filter(|(name, _)| principal.sees(&name.queue));
        Ok(Queues { queues: seen.map(|(name, view)| Queue { name, view }).collect(), unanswered })
    }

    /// Deletes a queue, with its messages and keys, if it is as expected.
    pub async fn delete(
        &self,
        permit: &Permit,
        if_version: Option<Expected>,
    ) -> Result<(), Problem> {
        debug_assert!(permit.action == Action::Admin, "{permit:?}");
        let deleted = self.engine().delete_if(&permit.queue, if_version).await?;
        deleted.map_err(|refusal| refused(permit, refusal))?;
        self.0.metrics.forget(&permit.queue);
        Ok(())
    }

    pub async fn change(&self, permit: &Permit, change: Change) -> Result<(), Problem> {
        debug_assert!(permit.action == Action::Admin, "{permit:?}");
        let queue = permit.queue.clone();
        let change = match change {
            Change::Pause => change::Change::Pause(queue),
            Change::Resume => change::Change::Resume(queue),
            Change::Purge { keys } => change::Change::Purge(Purge { queue, keys }),
        };
        let changed = self.engine().change(change).await?;
        changed.map(drop).map_err(|refusal| refused(permit, refusal))
    }
}

/// What the value of `If-Match` expects. Etags are compared strongly: a weak one never matches.
pub fn if_match(value: &str) -> Result<Expected, Problem> {
    if value == "*" {
        return Ok(Expected::Present);
    }
    let etag = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let parts = etag.and_then(|etag| etag.split_once('.'));
    let expected = parts.and_then(|(number, version)| {
        Some(Expected::Version { number: count(number)?, version: count(version)? })
    });
    expected.ok_or_else(|| {
        let detail = "If-Match does not match an etag of this queue: read the queue again";
        Problem { is_stale: true, ..Problem::new(Code::InvalidConfig, detail) }
    })
}

/// Parses a number in its canonical form, as an etag has it.
fn count<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_compared_as_it_is_written() {
        let expected = Expected::Version { number: 4, version: 12 };
        assert_eq!(if_match("\"4.12\"").unwrap(), expected);
        assert_eq!(if_match("*").unwrap(), Expected::Present);
        for other in ["4.12", "W/\"4.12\"", "\"+4.12\"", "\"04.12\"", "\"4.12.1\"", "\"4\"", "\"\""]
        {
            let problem = if_match(other).unwrap_err();
            assert!(problem.is_stale, "{other}: {problem:?}");
        }
    }
}
