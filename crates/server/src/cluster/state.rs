//! What a node of a cluster does, as a function of what it saw and of its own clock: no input, no
//! output, no waiting. The task around it ([`super::Node`]) carries out the [`Act`]s and reports
//! back.
//!
//! ```text
//!              nobody serves               opened
//!   Standby ──────────────────▶ Opening ───────────▶ Serving ◀──────────┐ a heartbeat
//!      ▲                           │ failed             │ no heartbeat   │
//!      ├───────────────────────────┘                    ▼ for 2.5 s      │
//!      └────── closed ──────── Closing ◀─────────── Serving, cut off ────┘
//!                                        fenced
//!   Halted: when the database lost what it had confirmed. Only a restart leaves it.
//! ```
//!
//! Who is gone is judged by [`Judge`]: by the own monotonic clock alone, over the time in which the
//! own heartbeats succeeded. The judgement decides who *tries*; who owns a partition is decided by
//! the database alone.

use std::time::Duration;

use hapax_postgres::judge::{Judge, Timings};
use hapax_postgres::{NodeRow, NodeState, Seen, Uuid};
use hapax_store::Epoch;

/// How much later each node tries than the one before it, in the order of their names.
const RANK_STEP: Duration = Duration::from_secs(1);
/// How long a node has to serve until its next penalty is the first one again.
const GOOD_AFTER: Duration = Duration::from_secs(300);

/// What the task has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Claim every partition at the epoch that was seen, and open it. Report with
    /// [`State::opened`].
    Open { epochs: Vec<Epoch> },
    /// End the partitions, and release those that are still owned. Report with [`State::closed`].
    Close(Loss),
    /// Answer those who wait that the outcome is not known, and refuse others.
    Suspend,
    /// Serve again.
    Resume,
    /// Delete the row of a node that is gone for long.
    Forget(Uuid, u64),
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Standby,
    Opening,
    Serving { is_cut_off: bool },
    Closing,
    Halted,
}

/// Why a node does not serve any more, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The node is stopped.
    Stopped,
    /// Another node was first: nothing went wrong.
    Outrun,
    /// Another node took over from this one.
    Fenced,
    /// Something failed, and may succeed later.
    Failed,
    /// The database lost what it had confirmed: only an operator can decide.
    Regressed,
}

/// See the module's documentation. Times are those of the node's own monotonic clock.
#[derive(Debug)]
pub(super) struct State {
    me: Uuid,
    judge: Judge,
    doing: Doing,
    /// Since when nobody serves, as far as this node can judge.
    vacant_since: Option<Duration>,
    /// When it began to serve: what was read before shows earlier owners.
    served_since: Duration,
    is_stopping: bool,
}

impl State {
    pub(super) fn new(me: Uuid) -> Self {
        Self {
            me,
            judge: Judge::new(me, Timings::default()),
            doing: Doing::Standby,
            vacant_since: None,
            served_since: Duration::ZERO,
            is_stopping: false,
        }
    }

    pub(super) fn doing(&self) -> Doing {
        self.doing
    }

    /// What the node says of itself with its heartbeats.
    pub(super) fn node_state(&self) -> NodeState {
        match self.doing {
            _ if self.is_stopping => NodeState::Draining,
            Doing::Halted => NodeState::Draining,
            Doing::Serving { .. } => NodeState::Serving,
            Doing::Standby | Doing::Opening | Doing::Closing => NodeState::Standby,
        }
    }

    /// The node has another id: its row was deleted while it was away.
    pub(super) fn renamed(&mut self, me: Uuid) {
        self.me = me;
        self.judge = Judge::new(me, Timings::default());
    }

    /// A heartbeat succeeded, which was begun at `begun`, and this was read after it.
    pub(super) fn beaten(&mut self, begun: Duration, now: Duration, seen: &Seen) -> Vec<Act> {
        self.judge.beat(begun);
        self.judge.note(now, seen);
        let mut acts = Vec::new();
        if self.doing == (Doing::Serving { is_cut_off: true }) {
            self.doing = Doing::Serving { is_cut_off: false };
            acts.push(Act::Resume);
        }
        match self.serving(now, seen) {
            Some(_) => self.vacant_since = None,
            None => self.vacant_since = Some(self.vacant_since.unwrap_or(now)),
        }
        match self.doing {
            Doing::Serving { .. } => acts.extend(self.look_after(begun, now, seen)),
            Doing::Standby => acts.extend(self.claim(now, seen)),
            Doing::Opening | Doing::Closing | Doing::Halted => {}
        }
        let forgotten = self.judge.judge(now).forgotten.into_iter();
        acts.extend(forgotten.map(|(id, heartbeat)| Act::Forget(id, heartbeat)));
        acts
    }

    /// A heartbeat failed.
    pub(super) fn missed(&mut self, now: Duration) -> Vec<Act> {
        self.judge.missed();
        self.vacant_since = None;
        self.tick(now)
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<Act> {
        if self.judge.judge(now).cut_off && self.doing == (Doing::Serving { is_cut_off: false }) {
            self.doing = Doing::Serving { is_cut_off: true };
            return vec![Act::Suspend];
        }
        Vec::new()
    }

    /// The node that serves: a living one that owns a partition.
    pub(super) fn serving<'a>(&self, now: Duration, seen: &'a Seen) -> Option<&'a NodeRow> {
        let gone = self.judge.judge(now).gone;
        let owners = seen.partitions.iter().filter_map(|partition| partition.owner);
        let mut rows = owners.filter_map(|owner| seen.nodes.iter().find(|node| node.id == owner));
        let is_serving = matches!(self.doing, Doing::Serving { .. });
        rows.find(|node| match node.id == self.me {
            true => is_serving,
            false => !gone.contains(&node.id),
        })
    }

    fn look_after(&mut self, begun: Duration, now: Duration, seen: &Seen) -> Vec<Act> {
        if now.saturating_sub(self.served_since) >= GOOD_AFTER {
            self.judge.forgive();
        }
        let is_anothers = |owner: Uuid| owner != self.me;
        let mut owners = seen.partitions.iter().filter_map(|partition| partition.owner);
        if begun > self.served_since && owners.any(is_anothers) {
            return self.lost(now, Loss::Fenced);
        }
        Vec::new()
    }

    fn claim(&mut self, now: Duration, seen: &Seen) -> Option<Act> {
        let judgement = self.judge.judge(now);
        let is_alive = |node: &NodeRow| !judgement.gone.contains(&node.id);
        let mine = seen.nodes.iter().find(|node| node.id == self.me)?;
        let before = seen.nodes.iter().filter(|node| {
            (&node.name, node.id) < (&mine.name, mine.id)
                && node.state != Some(NodeState::Draining)
                && is_alive(node)
        });
        let rank = u32::try_from(before.count()).unwrap_or(u32::MAX);
        let is_my_turn = now >= self.vacant_since?.saturating_add(RANK_STEP.saturating_mul(rank));
        if !(judgement.may_claim && is_my_turn && !self.is_stopping) {
            return None;
        }
        self.doing = Doing::Opening;
        self.vacant_since = None;
        let epochs = seen.partitions.iter().map(|partition| partition.epoch).collect();
        Some(Act::Open { epochs })
    }

    /// The partitions were opened, or why not: whoever fails has closed what it had.
    pub(super) fn opened(&mut self, now: Duration, opened: Result<(), Loss>) -> Vec<Act> {
        debug_assert_eq!(self.doing, Doing::Opening, "it was told to open");
        match opened {
            Ok(()) => {
                self.doing = Doing::Serving { is_cut_off: false };
                self.served_since = now;
                if self.is_stopping { self.close(Loss::Stopped) } else { Vec::new() }
            }
            Err(loss) => {
                self.doing = Doing::Standby;
                self.suffer(now, loss);
                Vec::new()
            }
        }
    }

    /// The partitions ended by themselves.
    pub(super) fn lost(&mut self, now: Duration, loss: Loss) -> Vec<Act> {
        match self.doing {
            Doing::Serving { .. } => {
                self.suffer(now, loss);
                self.close(loss)
            }
            Doing::Standby | Doing::Opening | Doing::Closing | Doing::Halted => Vec::new(),
        }
    }

    /// The partitions are closed.
    pub(super) fn closed(&mut self, loss: Loss) {
        self.doing = match loss {
            Loss::Regressed => Doing::Halted,
            Loss::Stopped | Loss::Outrun | Loss::Fenced | Loss::Failed => Doing::Standby,
        };
    }

    /// The node is to stop. It claims nothing any more, also not what it releases.
    pub(super) fn stop(&mut self) -> Vec<Act> {
        self.is_stopping = true;
        match self.doing {
            Doing::Serving { .. } => self.close(Loss::Stopped),
            Doing::Standby | Doing::Opening | Doing::Closing | Doing::Halted => Vec::new(),
        }
    }

    fn close(&mut self, loss: Loss) -> Vec<Act> {
        self.doing = Doing::Closing;
        vec![Act::Close(loss)]
    }

    fn suffer(&mut self, now: Duration, loss: Loss) {
        match loss {
            Loss::Stopped | Loss::Outrun => {}
            Loss::Fenced | Loss::Failed => self.judge.fenced(now),
            Loss::Regressed => self.doing = Doing::Halted,
        }
    }
}

#[cfg(test)]
mod tests;
