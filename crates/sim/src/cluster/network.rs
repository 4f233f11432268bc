//! What is between the nodes and the database, and the database as a server that fails: statements
//! on their way, replies, and states that a standby may have.

use std::collections::{BTreeMap, VecDeque};

use hapax_postgres::call::{Answer, Call};
use hapax_postgres::{Failure, Uuid};

use super::model::Tables;
use super::{Cluster, Going, SECOND_US, Settings};
use crate::Random;
use crate::planted::Bug;

/// Where a reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) machine: usize,
    /// Of the process: a later one on the machine is another.
    pub(super) process: u64,
    pub(super) port: Port,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Lane(usize),
    /// The number of the call.
    Members(u64),
    Job(u64),
}

/// What happens at some time.
#[derive(Debug)]
enum Due {
    Execute {
        call: Box<Call>,
        from: Address,
        fate: Fate,
    },
    Reply {
        to: Address,
        outcome: Result<Answer, Failure>,
        is_again: bool,
    },
    /// A job's pause is over.
    GoOn(Address),
}

/// What becomes of a statement that is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered {
        twice: bool,
    },
    /// The reply does not come, and the sender was told so or will be.
    Unanswered {
        is_told: bool,
    },
    /// The wait for the standby was cancelled: it is visible, and reported with a warning or not.
    Cancelled {
        is_warned: bool,
    },
    RolledBack,
    Full,
}

/// How often what fails, once in so many statements; 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds {
    lost: u64,
    ghost: u64,
    cancelled: u64,
    doubled: u64,
    rolled_back: u64,
    slow: u64,
    pub(super) is_full: bool,
    pub(super) crashes: bool,
    pub(super) fails_over: bool,
    pub(super) sets_back: bool,
    pub(super) pauses: bool,
    pub(super) kills: bool,
    pub(super) clocks: bool,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) tables: Tables,
    /// States since the last one that every standby has, which is the first.
    history: VecDeque<Tables>,
    due: BTreeMap<(u64, u64), Due>,
    next: u64,
    pub(super) odds: Odds,
    random: Random,
    pub(super) down_until: u64,
    pub(super) stalled_until: u64,
    pub(super) full_until: u64,
    /// What the database's clock shows is so much later than the true time.
    pub(super) clock_ms: u64,
    /// How often another server took over.
    pub(super) failovers: u64,
}

/// More unreplicated commits than this are replicated.
const HISTORY_MAX: usize = 40;

impl Network {
    pub(super) fn draw(random: &mut Random, settings: &Settings, partitions: u16) -> Self {
        let (cluster, lineage) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let tables = Tables::new(cluster, lineage, partitions);
        let mut own = random.branch();
        let mut odds = Odds::default();
        if settings.faults {
            let mut one_in = |most| if own.one_in(2) { own.between(12, most) } else { 0 };
            odds = Odds {
                lost: one_in(60),
                ghost: one_in(60),
                cancelled: one_in(40),
                doubled: one_in(40),
                rolled_back: one_in(80),
                slow: one_in(40),
                ..Odds::default()
            };
            let mut on = || own.one_in(2);
            (odds.is_full, odds.crashes, odds.fails_over) = (on() && on(), on(), on());
            (odds.pauses, odds.kills, odds.clocks, odds.sets_back) = (on(), on(), on(), on());
        }
        Self {
            history: VecDeque::from([tables.clone()]),
            tables,
            due: BTreeMap::new(),
            next: 0,
            odds,
            random: own,
            down_until: 0,
            stalled_until: 0,
            full_until: 0,
            clock_ms: 1_700_000_000_000,
            failovers: 0,
        }
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    fn push(&mut self, at: u64, due: Due) {
        self.next += 1;
        self.due.insert((at, self.next), due);
    }

    fn hit(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    /// A statement leaves.
    pub(super) fn send(&mut self, now: u64, call: Call, from: Address) {
        let odds = self.odds;
        let mut delay = self.random.between(100, 4_000);
        if self.hit(odds.slow) {
            delay += self.random.between(10_000, 4 * SECOND_US);
        }
        let call = Box::new(call);
        let is_full = self.full_until > now && self.random.one_in(2);
        let fate = if is_full && grows(&call) {
            Fate::Full
        } else if self.hit(odds.ghost) {
            // The sender gives up before it runs.
            let given_up = Err(Failure::Unreachable("the connection is gone".to_owned()));
            let at = now + delay;
            self.push(at, Due::Reply { to: from, outcome: given_up, is_again: false });
            delay += self.random.between(1_000, 15 * SECOND_US);
            Fate::Unanswered { is_told: true }
        } else if self.hit(odds.lost) {
            if self.random.one_in(2) {
                let lost = Err(Failure::Unreachable("it never left".to_owned()));
                return self
                    .push(now + delay, Due::Reply { to: from, outcome: lost, is_again: false });
            }
            Fate::Unanswered { is_told: false }
        } else if self.hit(odds.cancelled) {
            Fate::Cancelled { is_warned: self.random.one_in(2) }
        } else if self.hit(odds.rolled_back) {
            Fate::RolledBack
        } else {
            Fate::Answered { twice: self.hit(odds.doubled) }
        };
        self.push(now + delay, Due::Execute { call, from, fate });
    }

    /// A job waits a moment.
    pub(super) fn pause(&mut self, now: u64, from: Address) {
        let moment = self.random.between(20_000, 250_000);
        self.push(now + moment, Due::GoOn(from));
    }

    /// What the database's clock shows.
    pub(super) fn clock(&self, now: u64) -> u64 {
        self.clock_ms + now / 1_000
    }

    /// A commit. What is synchronous and was not cancelled is at the standby, with all before it.
    fn commit(&mut self, is_replicated: bool) {
        self.history.push_back(self.tables.clone());
        if is_replicated {
            while self.history.len() > 1 {
                self.history.pop_front();
            }
        }
        while self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
    }

    /// Whether there are commits that the standby may not have.
    pub(super) fn is_ahead(&self) -> bool {
        self.history.len() > 1
    }

    /// Another server takes over: nothing is lost that was acknowledged.
    pub(super) fn fail_over(&mut self) -> usize {
        let kept = self.random.index(self.history.len());
        let lost = self.history.len() - 1 - kept;
        self.history.truncate(kept + 1);
        if let Some(tables) = self.history.back() {
            self.tables = tables.clone();
        }
        while self.history.len() > 1 {
            self.history.pop_front();
        }
        self.failovers += 1;
        lost
    }

    /// Whatever was acknowledged since then is lost.
    pub(super) fn set_back(&mut self, tables: &Tables) {
        self.tables = tables.clone();
        self.history = VecDeque::from([tables.clone()]);
        self.failovers += 1;
        // What is on its way to or from the server that is gone does not arrive.
        let gone = || Err(Failure::Unreachable("another server took over".to_owned()));
        for due in self.due.values_mut() {
            match due {
                Due::Reply { outcome, .. } => *outcome = gone(),
                Due::Execute { from, fate, .. } => {
                    let is_again = *fate == Fate::Unanswered { is_told: true };
                    *due = Due::Reply { to: *from, outcome: gone(), is_again };
                }
                Due::GoOn(_) => {}
            }
        }
    }

    /// Nothing fails any more.
    pub(super) fn heal(&mut self) {
        self.odds = Odds::default();
        (self.down_until, self.stalled_until, self.full_until) = (0, 0, 0);
    }
}

/// Whether a statement needs room.
fn grows(call: &Call) -> bool {
    matches!(call, Call::Append(_) | Call::Keep { .. } | Call::Swap { .. })
}

/// Whether its commit waits for the standby: reads commit nothing, pieces and the rows of nodes
/// that come and go are not waited for.
fn is_synchronous(call: &Call) -> Option<bool> {
    match call {
        Call::Keep { .. } | Call::Register { .. } | Call::Forget { .. } => Some(false),
        Call::Ends(_)
        | Call::Read { .. }
        | Call::First { .. }
        | Call::Manifest { .. }
        | Call::Pieces { .. }
        | Call::Fetch { .. }
        | Call::Members
        | Call::Document { .. } => None,
        _ => Some(true),
    }
}

impl Cluster {
    /// Everything that is due.
    pub(super) fn deliver(&mut self) -> Going {
        while let Some(first) = self.network.due.first_entry() {
            if first.key().0 > self.now_us {
                return Ok(());
            }
            match first.remove() {
                Due::Execute { call, from, fate } => self.execute(call, from, fate)?,
                Due::Reply { to, outcome, is_again } => self.reply(to, outcome, is_again)?,
                Due::GoOn(to) => match self.asleep_until(to) {
                    Some(until) => self.network.push(until, Due::GoOn(to)),
                    None => self.go_on(to)?,
                },
            }
        }
        Ok(())
    }

    fn execute(&mut self, call: Box<Call>, from: Address, fate: Fate) -> Going {
        let network = &mut self.network;
        if network.down_until > self.now_us {
            let down = Err(Failure::Unreachable("the database is down".to_owned()));
            return self.answer(from, down, fate);
        }
        if network.stalled_until > self.now_us {
            let until = network.stalled_until;
            network.push(until, Due::Execute { call, from, fate });
            return Ok(());
        }
        let refused = match fate {
            Fate::RolledBack => Some(Failure::RolledBack("a deadlock".to_owned())),
            Fate::Full => Some(Failure::Full("no space left".to_owned())),
            _ => None,
        };
        if let Some(failure) = refused {
            return self.answer(from, Err(failure), fate);
        }
        let clock = network.clock(self.now_us);
        let answer = network.tables.execute(&call, clock, self.settings.bug);
        if let Some(is_synchronous) = is_synchronous(&call) {
            let is_clean = matches!(fate, Fate::Answered { .. });
            network.commit(is_synchronous && is_clean);
        }
        self.count_fate(fate);
        self.executed(&call, from, &answer)?;
        let outcome = match fate {
            Fate::Unanswered { is_told: true } => return Ok(()),
            Fate::Unanswered { is_told: false } => {
                Err(Failure::Unreachable("the reply was lost".to_owned()))
            }
            // The planted bug: what a look-up would find there counts.
            Fate::Cancelled { .. }
                if self.settings.bug == Some(Bug::FoundIsDurable)
                    && matches!(from.port, Port::Lane(_)) =>
            {
                Ok(answer)
            }
            // The warning is one of commits.
            Fate::Cancelled { is_warned: true } if is_synchronous(&call).is_some() => {
                Err(Failure::Warned("canceling wait for synchronous replication".to_owned()))
            }
            Fate::Cancelled { is_warned: false } => {
                Err(Failure::Unreachable("the connection was terminated".to_owned()))
            }
            _ => Ok(answer),
        };
        self.answer(from, outcome, fate)
    }

    fn count_fate(&mut self, fate: Fate) {
        self.tally.count(match fate {
            Fate::Answered { twice: false } => "statements",
            Fate::Answered { twice: true } => "replies doubled",
            Fate::Unanswered { is_told: false } => "replies lost",
            Fate::Unanswered { is_told: true } => "statements after their sender gave up",
            Fate::Cancelled { .. } => "waits for the standby cancelled",
            Fate::RolledBack | Fate::Full => "statements refused",
        });
    }

    fn answer(&mut self, to: Address, outcome: Result<Answer, Failure>, fate: Fate) -> Going {
        if fate == (Fate::Unanswered { is_told: true }) {
            return Ok(());
        }
        let network = &mut self.network;
        let mut at = self.now_us + network.random.between(50, 2_000);
        let slow = network.odds.slow;
        if network.hit(slow) {
            at += network.random.between(10_000, 4 * SECOND_US);
        }
        if fate == (Fate::Answered { twice: true }) {
            let again = at + network.random.between(0, SECOND_US);
            network.push(again, Due::Reply { to, outcome: outcome.clone(), is_again: true });
        }
        network.push(at, Due::Reply { to, outcome, is_again: false });
        Ok(())
    }

    fn reply(&mut self, to: Address, outcome: Result<Answer, Failure>, is_again: bool) -> Going {
        if let Some(until) = self.asleep_until(to) {
            self.network.push(until, Due::Reply { to, outcome, is_again });
            return Ok(());
        }
        match to.port {
            Port::Lane(lane) => self.lane_answered(to, lane, outcome, is_again),
            Port::Members(number) => self.member_answered(to, number, outcome),
            Port::Job(job) => match is_again {
                true => Ok(()),
                false => self.job_answered(job, outcome),
            },
        }
    }

    /// Until when the process is paused that something is for.
    fn asleep_until(&self, to: Address) -> Option<u64> {
        let process = self.machines.get(to.machine)?.process.as_ref()?;
        let is_asleep = process.serial == to.process && process.paused_until > self.now_us;
        is_asleep.then_some(process.paused_until)
    }
}
