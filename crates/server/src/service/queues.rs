//! Creates, changes, shows and purges queues.

use std::time::Duration;

use hapax_core::{Config, Configure, DedupScope, Expected, Purge, QueueName, QueueView};
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
    /// The partitions that did not answer in time: their part of the figures is missing or old.
    pub unanswered: Vec<u32>,
}

impl Queue {
    /// Changes with every change of the configuration. A queue that is created again under its
    /// name has another number, and so never an etag of the one before.
    pub fn etag(&self) -> String {
        format!("\"{}.{}\"", self.view.number, self.view.version)
    }

    /// How long the oldest ready message has waited.
    pub fn oldest_ready_age_ms(&self) -> Option<u64> {
        self.view.oldest_ready_at.map(|at| crate::time::now().since(at))
    }
}

/// What may be done to a queue as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Pause,
    Resume,
    Purge { keys: bool },
}

impl Service {
    /// Creates or changes a queue; tells whether it is new.
    pub async fn configure(
        &self,
        permit: &Permit,
        config: Config,
        if_version: Option<Expected>,
    ) -> Result<(Queue, bool), Problem> {
        debug_assert!(permit.action == Action::Create, "{permit:?}");
        self.check_count(permit).await?;
        let configure = Configure { queue: permit.queue.clone(), config, if_version };
        let told = self.engine().configure(configure).await?;
        let (_, created) = told?;
        Ok((self.show(permit).await?, created))
    }

    /// Whether the tenant may have one more queue.
    async fn check_count(&self, permit: &Permit) -> Result<(), Problem> {
        let tenant = &permit.queue.tenant;
        if self.0.tenants.limits(tenant).max_queues.is_none() {
            return Ok(());
        }
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
        let (number, version) = (number.parse().ok()?, version.parse().ok()?);
        Some(Expected::Version { number, version })
    });
    expected.ok_or_else(|| {
        let detail = "If-Match does not match an etag of this queue: read the queue again";
        Problem { is_stale: true, ..Problem::new(Code::InvalidConfig, detail) }
    })
}
