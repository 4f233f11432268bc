//! What a node of a cluster does, as a function of what it saw and of its own clock: no input, no
//! output, no waiting. Whoever runs a node carries out the [`Act`]s and reports back.
//!
//! ```text
//!              nobody serves               opened
//!   Standby ──────────────────▶ Opening ───────────▶ Serving ◀──────────┐ a heartbeat
//!      ▲                           │ failed             │ no heartbeat   │
//!      ├───────────────────────────┘                    ▼ for 2.5 s      │
//!      └────── closed ──────── Closing ◀─────────── Serving, cut off ────┘
//!                                        fenced, or nothing gets done
//!   Halted: when the database lost what it had confirmed. Only a restart leaves it.
//! ```
//!
//! Who is gone is judged by [`Judge`]: by the own monotonic clock alone, over the time in which the
//! own heartbeats succeeded. The judgement decides who *tries*; who owns a partition is decided by
//! the database alone.

#[cfg(test)]
mod tests;

use std::time::Duration;

use hapax_store::{Epoch, Error};
use uuid::Uuid;

use crate::judge::{Judge, Timings};
use crate::members::{NodeRow, NodeState, Seen};

/// How much later each node tries than the one before it, in the order of their names.
const RANK_STEP: Duration = Duration::from_secs(1);
/// A node that gets nothing done for this long is not ready.
const STALLED: Duration = Duration::from_secs(10);
/// After this it gives up, so that others may try.
const STALLED_MAX: Duration = Duration::from_secs(20);
/// A node that opens for this long lets others try, and for twice as long the next time: where all
/// need that long, one of them gets it.
const OPENING_MAX: Duration = Duration::from_secs(120);
/// How long a node has to serve until its next penalty is the first one again.
const GOOD_AFTER: Duration = Duration::from_secs(300);

/// What a node has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
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
pub enum Doing {
    Standby,
    Opening,
    Serving { is_cut_off: bool },
    Closing,
    Halted,
}

/// Why a node does not serve any more, or not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The node is stopped.
    Stopped,
    /// Another node was first: nothing went wrong.
    Outrun,
    /// Another node took over from this one.
    Fenced,
    /// Something failed, and may succeed later.
    Failed,
    /// It beats and owns, and gets nothing done.
    Stalled,
    /// The database lost what it had confirmed: only an operator can decide.
    Regressed,
}

impl Loss {
    /// What it means that a partition could not be opened.
    pub fn of_opening(error: &Error) -> Self {
        match error {
            // Another node was first, or the database went away: that is no fault of this one.
            Error::Fenced { .. } | Error::Unreachable { .. } => Self::Outrun,
            Error::Regressed { .. } => Self::Regressed,
            _ => Self::Failed,
        }
    }
}

/// See the module's documentation. Times are those of the node's own monotonic clock.
#[derive(Debug)]
pub struct State {
    me: Uuid,
    judge: Judge,
    doing: Doing,
    /// Since when nobody serves, as far as this node can judge.
    vacant_since: Option<Duration>,
    /// When it began to serve: what was read before shows earlier owners.
    served_since: Duration,
    opening_since: Duration,
    /// How long it may open. It is not stopped then: others may claim.
    opening_max: Duration,
    is_overdue: bool,
    is_stopping: bool,
}

impl State {
    pub fn new(me: Uuid) -> Self {
        Self {
            me,
            judge: Judge::new(me, Timings::default()),
            doing: Doing::Standby,
            vacant_since: None,
            served_since: Duration::ZERO,
            opening_since: Duration::ZERO,
            opening_max: OPENING_MAX,
            is_overdue: false,
            is_stopping: false,
        }
    }

    pub fn doing(&self) -> Doing {
        self.doing
    }

    /// What the node says of itself with its heartbeats.
    pub fn node_state(&self) -> NodeState {
        match self.doing {
            _ if self.is_stopping => NodeState::Draining,
            Doing::Halted => NodeState::Halted,
            // A node that opens is about to serve: an owner that is a standby has given up.
            Doing::Opening if self.is_overdue => NodeState::Standby,
            Doing::Serving { .. } | Doing::Opening => NodeState::Serving,
            Doing::Standby | Doing::Closing => NodeState::Standby,
        }
    }

    /// The node has another id: its row was deleted while it was away.
    pub fn renamed(&mut self, me: Uuid) {
        self.me = me;
        self.judge = Judge::new(me, Timings::default());
    }

    /// A heartbeat succeeded, which was begun at `begun`, and this was read after it.
    pub fn beaten(&mut self, begun: Duration, now: Duration, seen: &Seen) -> Vec<Act> {
        self.judge.beat(begun);
        self.judge.note(now, seen);
        self.check_opening(now);
        let mut acts = Vec::new();
        let was_cut_off = self.doing == (Doing::Serving { is_cut_off: true });
        if was_cut_off {
            self.doing = Doing::Serving { is_cut_off: false };
        }
        match self.serving(now, seen) {
            Some(_) => self.vacant_since = None,
            None => self.vacant_since = Some(self.vacant_since.unwrap_or(now)),
        }
        match self.doing {
            Doing::Serving { .. } => {
                acts.extend(self.look_after(begun, now, seen));
                // One that was replaced meanwhile does not serve on.
                acts.extend((was_cut_off && acts.is_empty()).then_some(Act::Resume));
            }
            Doing::Standby => acts.extend(self.claim(now, seen)),
            Doing::Opening | Doing::Closing | Doing::Halted => {}
        }
        let forgotten = self.judge.judge(now).forgotten.into_iter();
        acts.extend(forgotten.map(|(id, heartbeat)| Act::Forget(id, heartbeat)));
        acts
    }

    /// A heartbeat failed.
    pub fn missed(&mut self, now: Duration) -> Vec<Act> {
        self.judge.missed();
        self.vacant_since = None;
        self.tick(now)
    }

    /// Time passed.
    pub fn tick(&mut self, now: Duration) -> Vec<Act> {
        if self.judge.judge(now).cut_off && self.doing == (Doing::Serving { is_cut_off: false }) {
            self.doing = Doing::Serving { is_cut_off: true };
            return vec![Act::Suspend];
        }
        Vec::new()
    }

    /// Whether its heartbeats have stayed away for so long that others take it for gone, and that
    /// it knows nothing of them.
    pub fn is_cut_off(&self, now: Duration) -> bool {
        self.judge.judge(now).cut_off
    }

    /// Whether it could take over now.
    pub fn may_claim(&self, now: Duration) -> bool {
        self.judge.judge(now).may_claim && !self.is_stopping
    }

    /// Something may hang while it opens, such as a local disk. Only the time in which its own
    /// heartbeats succeeded counts.
    fn check_opening(&mut self, now: Duration) {
        let took = now.saturating_sub(self.opening_since).min(self.judge.good_for(now));
        self.is_overdue |= self.doing == Doing::Opening && took >= self.opening_max;
    }

    /// The node that serves: a living one that owns a partition and is no standby. Two that claim
    /// at once may each get a part, and give up.
    pub fn serving<'a>(&self, now: Duration, seen: &'a Seen) -> Option<&'a NodeRow> {
        let gone = self.judge.judge(now).gone;
        let owners = seen.partitions.iter().filter_map(|partition| partition.owner);
        let mut rows = owners.filter_map(|owner| seen.nodes.iter().find(|node| node.id == owner));
        let is_serving = matches!(self.doing, Doing::Serving { .. });
        rows.find(|node| match node.id == self.me {
            true => is_serving,
            false => !gone.contains(&node.id) && node.state != Some(NodeState::Standby),
        })
    }

    /// Another living node that has halted. It remembers more than the database has, whoever owns
    /// the partitions now: nobody claims before an operator has decided.
    pub fn halted<'a>(&self, now: Duration, seen: &'a Seen) -> Option<&'a NodeRow> {
        let gone = self.judge.judge(now).gone;
        let mut others = seen.nodes.iter().filter(|node| node.id != self.me);
        others.find(|node| node.state == Some(NodeState::Halted) && !gone.contains(&node.id))
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
                && !matches!(node.state, Some(NodeState::Draining | NodeState::Halted))
                && is_alive(node)
        });
        let rank = u32::try_from(before.count()).unwrap_or(u32::MAX);
        // A living node that owns a part may be about to say that it serves.
        let mut owners = seen.partitions.iter().filter_map(|partition| partition.owner);
        let is_living = |owner: Uuid| seen.nodes.iter().any(|it| it.id == owner && is_alive(it));
        let is_held = owners.any(|owner| owner != self.me && is_living(owner));
        let grace = if is_held { Timings::default().lease } else { Duration::ZERO };
        let turn = grace.saturating_add(RANK_STEP.saturating_mul(rank));
        let is_my_turn = now >= self.vacant_since?.saturating_add(turn);
        let is_free = self.halted(now, seen).is_none() && !self.is_stopping;
        if !(judgement.may_claim && is_my_turn && is_free) {
            return None;
        }
        self.doing = Doing::Opening;
        (self.opening_since, self.is_overdue) = (now, false);
        self.vacant_since = None;
        let epochs = seen.partitions.iter().map(|partition| partition.epoch).collect();
        Some(Act::Open { epochs })
    }

    /// The partitions were opened, or why not: whoever fails has closed what it had.
    pub fn opened(&mut self, now: Duration, opened: Result<(), Loss>) -> Vec<Act> {
        debug_assert_eq!(self.doing, Doing::Opening, "it was told to open");
        match opened {
            Ok(()) => {
                self.doing = Doing::Serving { is_cut_off: false };
                self.served_since = now;
                self.opening_max = OPENING_MAX;
                if self.is_stopping { self.close(Loss::Stopped) } else { Vec::new() }
            }
            Err(loss) => {
                self.doing = Doing::Standby;
                if self.is_overdue {
                    self.opening_max = self.opening_max.saturating_mul(2);
                }
                self.suffer(now, loss);
                Vec::new()
            }
        }
    }

    /// The partitions ended by themselves.
    pub fn lost(&mut self, now: Duration, loss: Loss) -> Vec<Act> {
        match self.doing {
            Doing::Serving { .. } => {
                self.suffer(now, loss);
                self.close(loss)
            }
            Doing::Standby | Doing::Opening | Doing::Closing | Doing::Halted => Vec::new(),
        }
    }

    /// The database ends before what this machine knows of it. A node that opens or closes is told
    /// so again with the next heartbeat.
    pub fn set_back(&mut self, now: Duration) -> Vec<Act> {
        match self.doing {
            Doing::Standby => {
                self.doing = Doing::Halted;
                Vec::new()
            }
            Doing::Serving { .. } => self.lost(now, Loss::Regressed),
            Doing::Opening | Doing::Closing | Doing::Halted => Vec::new(),
        }
    }

    /// Some partition has got nothing done for that long. Returns whether the node is not ready
    /// therefore. Only the time in which its own heartbeats succeeded counts: while the database
    /// stands still nobody gets anything done, and nobody could do better.
    pub fn progress(&mut self, now: Duration, stalled: Duration) -> (bool, Vec<Act>) {
        let stalled = stalled.min(self.judge.good_for(now));
        if self.doing != (Doing::Serving { is_cut_off: false }) || stalled < STALLED {
            return (false, Vec::new());
        }
        if stalled < STALLED_MAX {
            return (true, Vec::new());
        }
        self.suffer(now, Loss::Stalled);
        (true, self.close(Loss::Stalled))
    }

    /// The partitions are closed.
    pub fn closed(&mut self, loss: Loss) {
        self.doing = match loss {
            Loss::Regressed => Doing::Halted,
            Loss::Stopped | Loss::Outrun | Loss::Fenced | Loss::Failed | Loss::Stalled => {
                Doing::Standby
            }
        };
    }

    /// The node is to stop. It claims nothing any more, also not what it releases.
    pub fn stop(&mut self) -> Vec<Act> {
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
            Loss::Fenced | Loss::Failed | Loss::Stalled => self.judge.fenced(now),
            Loss::Regressed => self.doing = Doing::Halted,
        }
    }
}
