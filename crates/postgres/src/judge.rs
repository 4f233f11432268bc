//! Who of the other nodes is gone, and whether this one may claim what they owned.
//!
//! Judged from heartbeats that this node read and by its own monotonic clock, which the caller
//! passes as the time since some moment; a clock that goes on while the machine is suspended
//! (`CLOCK_BOOTTIME`) is right. No I/O, no wall clock. A wrong judgement costs a takeover, never
//! data: only the database fences.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::members::{NodeState, Seen};

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// A node beats and reads this often.
    pub heartbeat: Duration,
    /// A node whose heartbeat did not change for this long is gone.
    pub lease: Duration,
    /// A node claims only if its own last heartbeat is younger than this.
    pub fresh: Duration,
    /// A node whose last heartbeat is older than `lease` less this takes itself for cut off.
    pub margin: Duration,
    /// After it was fenced against its will a node claims nothing for this long, then twice that.
    pub penalty: Duration,
    pub penalty_max: Duration,
    /// Rows of nodes gone for this long are deleted.
    pub forget: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            lease: Duration::from_secs(3),
            fresh: Duration::from_secs(1),
            margin: Duration::from_millis(500),
            penalty: Duration::from_secs(5),
            penalty_max: Duration::from_secs(60),
            forget: Duration::from_secs(3600),
        }
    }
}

/// What a node knows of the others' heartbeats.
#[derive(Clone, Debug)]
pub struct Judge {
    id: Uuid,
    timings: Timings,
    /// The heartbeat that was read last of each node, and when it was seen first.
    peers: BTreeMap<Uuid, (u64, Duration)>,
    /// Since when this node's own heartbeats have succeeded without a gap.
    good_since: Option<Duration>,
    last_good: Option<Duration>,
    /// No claims before, and the pause that follows the next fencing.
    held_off: Duration,
    penalty: Duration,
    is_draining: bool,
}

/// What follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Nodes that are gone: what they own may be claimed.
    pub gone: Vec<Uuid>,
    /// Nodes gone for so long that their rows may be deleted, with the heartbeat they had.
    pub forgotten: Vec<(Uuid, u64)>,
    /// Whether this node may claim now.
    pub may_claim: bool,
    /// Whether this node has to take itself for gone: the others do, or will soon.
    pub cut_off: bool,
}

impl Judge {
    pub fn new(id: Uuid, timings: Timings) -> Self {
        Self {
            id,
            timings,
            peers: BTreeMap::new(),
            good_since: None,
            last_good: None,
            held_off: Duration::ZERO,
            penalty: timings.penalty,
            is_draining: false,
        }
    }

    /// This node's heartbeat succeeded, begun at `begun`: what it proves is as old as that.
    pub fn beat(&mut self, begun: Duration) {
        let is_gap = |last: Duration| begun.saturating_sub(last) >= self.timings.fresh;
        if self.good_since.is_none() || self.last_good.is_none_or(is_gap) {
            self.good_since = Some(begun);
        }
        self.last_good = Some(begun);
    }

    /// This node's heartbeat failed.
    pub fn missed(&mut self) {
        self.good_since = None;
    }

    /// For how long this node's own heartbeats have succeeded without a gap.
    pub fn good_for(&self, now: Duration) -> Duration {
        self.good_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// The rows as they were read, at `now`.
    pub fn note(&mut self, now: Duration, seen: &Seen) {
        self.peers.retain(|id, _| seen.nodes.iter().any(|node| node.id == *id));
        for node in seen.nodes.iter().filter(|node| node.id != self.id) {
            let known = self.peers.entry(node.id).or_insert((node.heartbeat, now));
            if known.0 != node.heartbeat {
                *known = (node.heartbeat, now);
            }
        }
        let own = seen.nodes.iter().find(|node| node.id == self.id);
        self.is_draining = own.is_some_and(|own| own.state == Some(NodeState::Draining));
    }

    /// This node lost a partition that it had not given away.
    pub fn fenced(&mut self, now: Duration) {
        self.held_off = now + self.penalty;
        self.penalty = (self.penalty * 2).min(self.timings.penalty_max);
    }

    /// This node serves well: the next fencing is the first again.
    pub fn forgive(&mut self) {
        self.penalty = self.timings.penalty;
    }

    pub fn judge(&self, now: Duration) -> Judgement {
        let age = self.last_good.map(|last| now.saturating_sub(last));
        let is_fresh = age.is_some_and(|age| age < self.timings.fresh);
        let alone_for = self.timings.lease.saturating_sub(self.timings.margin);
        let mut judgement = Judgement {
            may_claim: is_fresh && now >= self.held_off && !self.is_draining,
            cut_off: age.is_none_or(|age| age >= alone_for),
            ..Judgement::default()
        };
        // Silence counts only while this node would have heard: after an outage of the database
        // everybody gets a whole lease.
        let (Some(good_since), true) = (self.good_since, is_fresh) else { return judgement };
        for (id, (heartbeat, since)) in &self.peers {
            let silent = now.saturating_sub(good_since.max(*since));
            if silent >= self.timings.lease {
                judgement.gone.push(*id);
            }
            if silent >= self.timings.forget {
                judgement.forgotten.push((*id, *heartbeat));
            }
        }
        judgement
    }
}
