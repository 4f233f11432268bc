//! Faults of nodes and of the database.

use std::collections::BTreeMap;

use hapax_core::Time;
use hapax_store::Sequence;

use super::model::Tables;
use super::owner::durable;
use super::{Cluster, Going, SECOND_US, wrong};
use crate::checker::Checker;
use crate::op::Op;

/// Within so long a node has to notice that its history was undone: an idle one looks once a
/// minute.
const NOTICED_US: u64 = 90 * SECOND_US;

/// A state of the database that a standby had, and what was known when it had it.
#[derive(Debug)]
pub(super) struct Copy {
    tables: Tables,
    checkers: Vec<Checker>,
    /// Unanswered then: each may be in it.
    perhaps: Vec<(u16, Time, Op)>,
    /// The process that served.
    server: u64,
    taken_at: u64,
}

impl Cluster {
    pub(super) fn strike(&mut self) -> Going {
        if let Some(since) = self.undone_since {
            return self.await_halt(since);
        }
        let odds = self.network.odds;
        let at = self.faults.index(self.machines.len());
        match self.faults.below(700) {
            0..16 if odds.pauses => {
                let server = self.server().filter(|_| self.faults.one_in(2));
                self.pause_process(server.map_or(at, |(at, _)| at))
            }
            16..20 if odds.kills => {
                self.kill(at);
                Ok(())
            }
            20..24 if odds.kills => self.stop_process(at),
            24..32 if odds.crashes => {
                let down = self.faults.between(SECOND_US / 10, 4 * SECOND_US);
                self.network.down_until = self.now_us + down;
                self.tally.count("crashes of the database");
                self.note(|| format!("the database crashes for {down} us"));
                Ok(())
            }
            32..40 if odds.crashes => {
                let stall = self.faults.between(SECOND_US / 10, 5 * SECOND_US);
                self.network.stalled_until = self.now_us + stall;
                self.tally.count("stalls of the database");
                Ok(())
            }
            40..200 if odds.fails_over && self.network.is_ahead() => {
                self.fail_over();
                Ok(())
            }
            40..46 if odds.fails_over => {
                self.fail_over();
                Ok(())
            }
            64..68 if odds.is_full => {
                self.network.full_until = self.now_us + self.faults.between(1, 4) * SECOND_US;
                self.sides.iter_mut().for_each(|side| side.checker.may_be_full = true);
                self.tally.count("databases filled");
                Ok(())
            }
            46..60 if odds.sets_back && self.copy.is_none() => {
                self.take_copy();
                Ok(())
            }
            60..64 if odds.sets_back => self.set_back(),
            _ => Ok(()),
        }
    }

    fn pause_process(&mut self, at: usize) -> Going {
        let until = self.now_us + self.faults.between(SECOND_US / 10, 12 * SECOND_US);
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return Ok(());
        };
        process.paused_until = process.paused_until.max(until);
        self.tally.count("pauses");
        self.note(|| format!("{at} is paused until {}", until / 1_000));
        Ok(())
    }

    fn fail_over(&mut self) {
        let lost = self.network.fail_over();
        self.network.down_until = self.now_us + self.faults.between(1, 3 * SECOND_US);
        if self.network.odds.clocks {
            // Another server, another clock.
            let hour_ms = 3_600_000;
            self.network.clock_ms += self.faults.below(2 * hour_ms);
            self.network.clock_ms -= hour_ms;
        }
        self.copy = None;
        self.tally.count("fail-overs");
        self.tally.add("unreplicated commits lost", lost as u64);
        self.note(|| format!("the database fails over, {lost} commits are gone"));
    }

    /// The process that serves all partitions, if there is one.
    fn server(&self) -> Option<(usize, u64)> {
        let count = self.sides.len();
        let machines = self.machines.iter().enumerate();
        let mut serving = machines.filter_map(|(at, machine)| {
            let process = machine.process.as_ref()?;
            let instances = process.instances.values();
            let owned = instances.filter(|it| !it.has_ended && !it.is_replaced).count();
            let is_awake = process.paused_until <= self.now_us;
            (owned == count && is_awake && process.closing.is_none())
                .then_some((at, process.serial))
        });
        serving.next()
    }

    /// How far the partitions were as the living processes know it.
    fn noted(&self) -> BTreeMap<u16, Sequence> {
        let mut noted = BTreeMap::new();
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        for (partition, last) in processes.flat_map(|process| process.witnesses.known()) {
            let known = noted.entry(partition).or_insert(last.sequence);
            *known = last.sequence.max(*known);
        }
        noted
    }

    /// A standby lags from here on.
    fn take_copy(&mut self) {
        let Some((at, server)) = self.server() else { return };
        let mut perhaps = Vec::new();
        let process = self.machines.get(at).and_then(|it| it.process.as_ref());
        for (partition, instance) in process.into_iter().flat_map(|it| &it.instances) {
            for sent in instance.submitting.iter().chain(instance.pending.values()) {
                let ops = sent.ops.iter().filter(|_| !sent.is_lost);
                perhaps.extend(ops.map(|op| (*partition, sent.at, op.clone())));
            }
        }
        let tables = self.network.tables.clone();
        let checkers = self.sides.iter().map(|side| side.checker.clone()).collect();
        self.copy = Some(Copy { tables, checkers, perhaps, server, taken_at: self.now_us });
        self.note(|| "a standby lags".to_owned());
    }

    /// The standby that lagged takes over: what was acknowledged since is lost.
    fn set_back(&mut self) -> Going {
        let Some(copy) = self.copy.take() else { return Ok(()) };
        let server = self.server();
        let is_old = copy.taken_at + 20 * SECOND_US < self.now_us;
        let Some((at, _)) = server.filter(|(_, serial)| *serial == copy.server && !is_old) else {
            return Ok(());
        };
        let (mut undone, mut is_seen) = (Vec::new(), false);
        // What heartbeats saw is lost like what was acknowledged: nodes halt by it.
        let noted = self.noted();
        let process = self.machines.get_mut(at).and_then(|it| it.process.as_mut());
        for (partition, instance) in process.into_iter().flat_map(|it| &mut it.instances) {
            let Some(reached) = instance.partition.as_mut().and_then(|it| durable(it)) else {
                return Ok(());
            };
            let Some(end) = copy.tables.end(*partition) else { return Ok(()) };
            if end.claim != instance.claim {
                return Ok(()); // A claim would be lost, too, and with it who has to notice.
            }
            let noted = noted.get(partition).copied().unwrap_or(0);
            if end.last.sequence < reached {
                undone.push(*partition);
            }
            // Its owner was not told of it yet, and may append it again: nothing is undone.
            is_seen |= (reached..noted).contains(&end.last.sequence);
        }
        self.note(|| "the standby that lagged takes over".to_owned());
        self.tally.count("databases set back");
        self.network.set_back(&copy.tables);
        if is_seen || !undone.is_empty() {
            self.undone_since = Some(self.now_us);
            self.is_undone = !undone.is_empty();
        }
        for partition in undone {
            self.note(|| format!("the history of {partition} is undone"));
            self.replace_owners(partition, None);
            let perhaps = copy.perhaps.iter().filter(|(of, ..)| *of == partition);
            let number = usize::from(partition);
            let (Some(side), Some(then)) = (self.sides.get_mut(number), copy.checkers.get(number))
            else {
                continue;
            };
            side.checker.set_back(then);
            perhaps.for_each(|(_, at, op)| side.checker.lost(0, *at, op));
            side.workload.forget_unknown(&side.checker);
            side.urgent.retain(|op| !matches!(op, Op::Settle { .. }));
        }
        Ok(())
    }

    /// The node that relied on what is lost halts; then an operator accepts the loss.
    fn await_halt(&mut self, since: u64) -> Going {
        let is_halted = (0..self.machines.len()).any(|at| self.is_halted(at));
        if !is_halted && !self.is_told_of_loss {
            return match self.now_us > since + NOTICED_US {
                true if self.is_undone => wrong("nobody noticed that the database was set back"),
                true => {
                    self.undone_since = None; // It was appended again.
                    Ok(())
                }
                false => Ok(()),
            };
        }
        self.tally.count("losses accepted");
        self.note(|| "an operator accepts the loss".to_owned());
        (0..self.machines.len()).for_each(|at| self.kill(at));
        let lineage = self.draw_id();
        let call = hapax_postgres::call::Call::AcceptLoss { lineage };
        let clock = self.network.clock(self.now_us);
        self.network.tables.execute(&call, clock, None);
        let tables = self.network.tables.clone();
        self.network.set_back(&tables);
        self.undone_since = None;
        self.is_told_of_loss = false;
        Ok(())
    }

    /// Nothing fails from here on.
    pub(super) fn heal(&mut self) -> Going {
        self.network.heal();
        self.copy = None;
        for _ in 0..20_000 {
            match self.undone_since {
                Some(since) => self.await_halt(since)?,
                None => return Ok(()),
            }
            // Their stores wake the writers.
            for partition in 0..self.sides.len() as u16 {
                for at in self.owners(partition) {
                    self.poll(at, partition)?;
                }
            }
            self.advance(20)?;
        }
        wrong("nobody noticed that the database was set back")
    }
}
