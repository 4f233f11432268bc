//! The rules for a queue's configuration. The retention need not cover the attempts of a message:
//! its key is known as long as the message is unfinished, and the retention counts from its end. It
//! must cover late retries of callers, and of the workers of other queues that send to this one.

use hapax_core::{Config, DedupScope, Guarantee, OnDead, OnGroupDead, OnLost, Order, UndatedKeys};

use super::{Finding, IsWritten, Rule};
use crate::options::Queue;
use crate::time::show_ms;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;
/// Below this a lease may be lost by an ordinary stall.
const LEASE_MS_FAIR: u64 = 1_000;
/// The number of attempts from which a message is practically never dead.
const ATTEMPTS_ENDLESS: u32 = 1_000;

/// Findings in a configuration. `path` is that of its table, empty if the configuration stands
/// alone.
pub fn queue(path: &str, config: &Config, is_written: IsWritten<'_>) -> Vec<Finding> {
    let mut found = Found { path, findings: Vec::new() };
    found.guarantee(config);
    found.memory(config);
    found.dead(config);
    // At-most-once messages are done when delivered: there is no lease to lose and no second
    // attempt.
    if config.guarantee != Guarantee::AtMostOnce {
        found.leases(config);
        if config.on_lost == OnLost::Redeliver && is_written(&found.field("on_lost")) {
            found.redeliver();
        }
        found.attempts(config);
    }
    found.ages(config);
    found.findings
}

/// A worker that sends to another queue itself sends again with every attempt of its message. The
/// other queue's retry horizon has to cover that; emits are covered by the broker's relay.
pub(super) fn upstream(queues: &[Queue]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in queues {
        let horizon = queue.config.retry_horizon_ms;
        let others = queues
            .iter()
            .filter(|other| other.name != queue.name && other.name.tenant == queue.name.tenant);
        let longest = others.max_by_key(|other| longest_life_ms(&other.config));
        let Some(other) = longest else { continue };
        let life = longest_life_ms(&other.config);
        if queue.config.retention_ms.is_none() || life <= horizon {
            continue;
        }
        let mut found = Found { path: &queue.path(), findings: Vec::new() };
        found.find(
            Rule::UpstreamRetries,
            "retry_horizon_ms",
            format!(
                "messages of {} are tried for up to {}, longer than the retry horizon of {} here: \
                 if its workers send to this queue by themselves, a late attempt may meet a \
                 forgotten key",
                other.path(),
                show_ms(life),
                show_ms(horizon)
            ),
            format!(
                "Raise retry_horizon_ms to {life} and retention_ms to at least twice that, or let \
                 the workers emit"
            ),
        );
        findings.append(&mut found.findings);
    }
    findings
}

struct Found<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Found<'_> {
    fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn find(&mut self, rule: Rule, field: &str, why: String, fix: impl Into<String>) {
        self.findings.push(Finding { rule, field: self.field(field), why, fix: fix.into() });
    }

    fn guarantee(&mut self, config: &Config) {
        match config.guarantee {
            Guarantee::ExactlyOnce => {}
            Guarantee::AtLeastOnce => self.find(
                Rule::AtLeastOnce,
                "guarantee",
                "keys are optional: a retried send without one is processed twice".to_owned(),
                "Use \"exactly-once\", which refuses sends without a key",
            ),
            Guarantee::AtMostOnce => self.find(
                Rule::AtMostOnce,
                "guarantee",
                "a message is done when it is delivered: it is lost if the connection breaks or \
                 the worker crashes"
                    .to_owned(),
                "Use \"exactly-once\", with on_lost = \"park\" where work cannot be repeated",
            ),
        }
        match (config.dedup_scope, config.order) {
            (DedupScope::Queue, _) => {}
            (DedupScope::Group, Order::None) => self.find(
                Rule::GroupScopeUnordered,
                "dedup_scope",
                "a key is unique only in its group, and groups have no other meaning without \
                 order: a retry with another group is processed again"
                    .to_owned(),
                "Use dedup_scope = \"queue\", or order = \"group\" if you need order",
            ),
            (DedupScope::Group, Order::Group) => self.find(
                Rule::GroupScope,
                "dedup_scope",
                "a key is unique only in its group: the same key in two groups is two operations"
                    .to_owned(),
                "Make sure that a retry always has the same group",
            ),
        }
        if config.order == Order::Group && config.on_group_dead == OnGroupDead::Continue {
            self.find(
                Rule::GroupGap,
                "on_group_dead",
                "when a message is dead, later messages of its group are delivered without it"
                    .to_owned(),
                "Use \"park\" if they must not be",
            );
        }
    }

    fn memory(&mut self, config: &Config) {
        let Some(retention) = config.retention_ms else {
            return self.find(
                Rule::Forever,
                "retention_ms",
                "no key is ever forgotten: every one costs about 70 bytes of disk for good"
                    .to_owned(),
                "Watch the disk, or give a number of milliseconds",
            );
        };
        if retention < DAY_MS && config.undated_keys == UndatedKeys::Accept {
            self.find(
                Rule::ShortMemory,
                "retention_ms",
                format!(
                    "keys are forgotten after {}, and after that keys without a date look new: a \
                     retry on the next day is processed again",
                    show_ms(retention)
                ),
                "Raise retention_ms, or set undated_keys = \"refuse\" and send UUIDv7 or ULID keys",
            );
        }
        if config.retry_horizon_ms < MINUTE_MS {
            self.find(
                Rule::ShortHorizon,
                "retry_horizon_ms",
                format!(
                    "it means that nobody retries later than {} after the end of a message, and \
                     the retention is checked against it; most clients retry for minutes",
                    show_ms(config.retry_horizon_ms)
                ),
                "Set it to the longest time for which callers, proxies and upstream jobs retry",
            );
        }
    }

    fn dead(&mut self, config: &Config) {
        match config.on_dead {
            OnDead::Pin => {}
            OnDead::Rerun => self.find(
                Rule::DeadRerun,
                "on_dead",
                "a send under the key of a dead message tries it again, with all attempts"
                    .to_owned(),
                "Use \"pin\" if an operator should look at it first",
            ),
            OnDead::Release => self.find(
                Rule::DeadRelease,
                "on_dead",
                "a send under the key of a dead message is a new message and runs again, although \
                 the dead one may have had its effect"
                    .to_owned(),
                "Use \"pin\", and redrive or forget by hand; or \"rerun\", which keeps the message",
            ),
        }
    }

    fn leases(&mut self, config: &Config) {
        if config.lease_ms < LEASE_MS_FAIR {
            self.find(
                Rule::ShortLease,
                "lease_ms",
                format!(
                    "a lease of {} is lost by any short pause, and the message is then processed \
                     twice at the same time; only the settle of the first worker is refused",
                    show_ms(config.lease_ms)
                ),
                "Use 1000 or more: workers extend their leases, and a crashed worker is noticed \
                 soon enough",
            );
        }
    }

    fn redeliver(&mut self) {
        self.find(
            Rule::Redeliver,
            "on_lost",
            "a message whose worker has called begin is delivered again if the lease is lost"
                .to_owned(),
            "This is right if effects are in the worker's own transaction or use a key; use \
             \"park\" if they cannot be repeated",
        );
    }

    fn attempts(&mut self, config: &Config) {
        let waits = longest_waits_ms(config);
        if config.max_attempts == 1 {
            let parks = if config.on_lost == OnLost::Park { ", unless it had begun" } else { "" };
            self.find(
                Rule::SingleAttempt,
                "max_attempts",
                format!("a message is dead after one failure or one restart of its worker{parks}"),
                "Allow at least 2, so that one lost lease does not make it dead",
            );
        } else if waits < MINUTE_MS {
            self.find(
                Rule::FastAttempts,
                "max_attempts",
                format!(
                    "the waits of {} attempts are at most {} in total: after a longer outage \
                     every message is dead",
                    config.max_attempts,
                    show_ms(waits)
                ),
                "Raise backoff_max_ms or max_attempts",
            );
        }
        if config.max_attempts >= ATTEMPTS_ENDLESS {
            self.find(
                Rule::EndlessAttempts,
                "max_attempts",
                format!("a message that can never succeed is tried {} times", config.max_attempts),
                "Lower it, so that such messages become dead and are noticed",
            );
        }
    }

    fn ages(&mut self, config: &Config) {
        let Some(ttl) = config.ttl_ms else { return };
        if ttl <= config.delay_ms {
            return self.find(
                Rule::NeverDelivered,
                "ttl_ms",
                format!(
                    "messages have a ttl of {} and a delay of {}: they are dead before they can \
                     be delivered",
                    show_ms(ttl),
                    show_ms(config.delay_ms)
                ),
                "Raise ttl_ms above delay_ms",
            );
        }
        let needed = config.delay_ms.saturating_add(longest_waits_ms(config));
        if ttl < needed && config.guarantee != Guarantee::AtMostOnce {
            self.find(
                Rule::TtlBeforeAttempts,
                "ttl_ms",
                format!(
                    "messages have a ttl of {}, but {} attempts may need {}: some are dead before \
                     their last attempt",
                    show_ms(ttl),
                    config.max_attempts,
                    show_ms(needed)
                ),
                format!("Raise ttl_ms to {needed}, or lower max_attempts or backoff_max_ms"),
            );
        }
    }
}

/// How long a message may be tried: its delay, the longest waits, and a lease each that is lost at
/// its deadline. Workers may extend leases, so it can be even longer.
fn longest_life_ms(config: &Config) -> u64 {
    let leases = config.lease_ms.saturating_mul(config.max_attempts.into());
    let life = config.delay_ms.saturating_add(longest_waits_ms(config)).saturating_add(leases);
    match (config.guarantee, config.ttl_ms) {
        (Guarantee::AtMostOnce, _) => 0,
        (_, Some(ttl)) => life.min(ttl.saturating_add(config.lease_ms)),
        (_, None) => life,
    }
}

/// The waits between all attempts, each at its longest: they double up to their bound.
fn longest_waits_ms(config: &Config) -> u64 {
    let mut total: u64 = 0;
    let mut wait = config.backoff_min_ms.max(1);
    let mut left = u64::from(config.max_attempts.saturating_sub(1));
    while left > 0 && wait < config.backoff_max_ms {
        total = total.saturating_add(wait);
        wait = wait.saturating_mul(2);
        left -= 1;
    }
    total.saturating_add(left.saturating_mul(config.backoff_max_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound() {
        let waits = |max_attempts, backoff_min_ms, backoff_max_ms| {
            longest_waits_ms(&Config {
                max_attempts,
                backoff_min_ms,
                backoff_max_ms,
                ..Config::default()
            })
        };
        assert_eq!(waits(1, 1_000, 600_000), 0);
        assert_eq!(waits(2, 1_000, 600_000), 1_000);
        assert_eq!(waits(10, 1_000, 600_000), 511_000);
        assert_eq!(waits(12, 1_000, 600_000), 511_000 + 512_000 + 600_000);
        assert_eq!(waits(4, 1_000, 1_000), 3_000);
        assert_eq!(waits(4, 0, 0), 0);
        assert_eq!(waits(1_000_000, 0, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_life_ends_with_its_time_to_live() {
        let config = Config { ttl_ms: Some(60_000), ..Config::default() };
        assert_eq!(longest_life_ms(&config), 90_000);
        let config = Config { ttl_ms: None, ..config };
        assert_eq!(longest_life_ms(&config), 511_000 + 300_000);
    }
}
