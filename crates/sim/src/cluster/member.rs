//! Heartbeats, and what a node reads of the others: the thread that beats, in steps.

use std::time::Duration;

use hapax_postgres::call::{Answer, Call};
use hapax_postgres::judge::Timings;
use hapax_postgres::node::State;
use hapax_postgres::{Failure, Heartbeat, Node, NodeState, Uuid};
use hapax_store::LogEnd;

use super::network::{Address, Port};
use super::{Cluster, Going, SECOND_US, wrong};

/// How long one statement may take.
const WITHIN_US: u64 = SECOND_US;
/// A node that beat so lately is not gone for anybody.
const LATELY_US: u64 = 3 * SECOND_US / 2;

/// What is on its way.
#[derive(Debug, Default)]
pub(super) struct Member {
    doing: Option<(Doing, u64, u64)>,
    /// What was known of the partitions when the heartbeat began.
    known: Vec<(u16, LogEnd)>,
    next_at: u64,
    begun: Duration,
    told_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Registering(Uuid),
    Beating,
    Reading,
}

impl Cluster {
    pub(super) fn turn_member(&mut self, at: usize) -> Going {
        let now = self.now_us;
        let (time, _) = self.own_time(at);
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return Ok(());
        };
        if let Some((_, _, since)) = process.member.doing
            && since + WITHIN_US <= now
        {
            return self.missed(at);
        }
        let acts = process.state.as_mut().map_or(Vec::new(), |state| state.tick(time));
        let process = &mut self.machines.get_mut(at).and_then(|it| it.process.as_mut());
        if let Some(process) = process
            && process.member.doing.is_none()
            && process.member.next_at <= now
        {
            process.member.begun = time;
            process.member.next_at = now + SECOND_US / 2;
            let (id, told_ms) = (process.id, process.member.told_ms);
            match &process.state {
                None => self.ask_member(at, Doing::Registering(id), self.registration(at, id)),
                Some(state) => {
                    let state = state.node_state();
                    process.member.known = process.witnesses.known();
                    let known = process.member.known.iter();
                    let known = known.map(|(partition, end)| (*partition, end.sequence)).collect();
                    let call = Call::Heartbeat { id, state, told_ms, known };
                    self.ask_member(at, Doing::Beating, call);
                }
            }
        }
        self.act(at, acts)
    }

    fn registration(&self, at: usize, id: Uuid) -> Call {
        let machine = self.machines.get(at);
        let name = machine.map_or(0, |machine| machine.name);
        let process = machine.and_then(|machine| machine.process.as_ref());
        let cluster = process.map_or(Uuid::nil(), |process| process.cluster);
        let node = Node {
            name: format!("node-{name}"),
            address: format!("http://node-{name}"),
            release: "0".to_owned(),
            feature: 1,
        };
        Call::Register { cluster, id, node }
    }

    fn ask_member(&mut self, at: usize, doing: Doing, call: Call) {
        let (now, number) = (self.now_us, self.serial());
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return;
        };
        process.member.doing = Some((doing, number, now));
        let (serial, port) = (process.serial, Port::Members(number));
        self.network.send(now, call, Address { machine: at, process: serial, port });
    }

    fn missed(&mut self, at: usize) -> Going {
        let (time, _) = self.own_time(at);
        let Some(process) = self.machines.get_mut(at).and_then(|it| it.process.as_mut()) else {
            return Ok(());
        };
        process.member.doing = None;
        let acts = process.state.as_mut().map_or(Vec::new(), |state| state.missed(time));
        self.tally.count("heartbeats missed");
        self.act(at, acts)
    }

    pub(super) fn member_answered(
        &mut self,
        to: Address,
        number: u64,
        outcome: Result<Answer, Failure>,
    ) -> Going {
        let at = to.machine;
        let Some(process) = self.process(to) else { return Ok(()) };
        let Some((doing, waited, _)) = process.member.doing else { return Ok(()) };
        if waited != number {
            return Ok(());
        }
        let Ok(answer) = outcome else { return self.missed(at) };
        match (doing, answer) {
            (Doing::Registering(id), Answer::Changed(_)) => {
                process.member.doing = None;
                process.id = id;
                process.member.next_at = 0;
                match &mut process.state {
                    Some(state) => state.renamed(id),
                    None => process.state = Some(State::new(id)),
                }
                Ok(())
            }
            (Doing::Beating, Answer::Heartbeat(Some(beaten))) => {
                let (now, monotonic) = self.own_time(at);
                let mut acts = Vec::new();
                if let Some(process) = self.process(to) {
                    process.wall = (beaten.database_ms, monotonic);
                    let heartbeat = Heartbeat::of(beaten, Duration::ZERO);
                    let set_back = process.witnesses.note(&process.member.known, &heartbeat);
                    process.witnesses.write();
                    if let (Some(_), Some(state)) = (set_back, &mut process.state) {
                        acts = state.set_back(now);
                    }
                }
                self.ask_member(at, Doing::Reading, Call::Members);
                self.act(at, acts)
            }
            (Doing::Beating, Answer::Heartbeat(None)) => {
                // Its row is gone: another id.
                let id = self.draw_id();
                let call = self.registration(at, id);
                self.ask_member(at, Doing::Registering(id), call);
                Ok(())
            }
            (Doing::Reading, Answer::Seen(seen)) => {
                let (now, _) = self.own_time(at);
                let Some(process) = self.process(to) else { return Ok(()) };
                process.member.doing = None;
                let begun = process.member.begun;
                let state = process.state.as_mut();
                let acts = state.map_or(Vec::new(), |state| state.beaten(begun, now, &seen));
                process.seen = seen;
                self.act(at, acts)
            }
            (doing, answer) => wrong(format!("{doing:?} was answered with {answer:?}")),
        }
    }

    /// A claim is judged by heartbeats: nobody is replaced who beats.
    pub(super) fn check_claim(&mut self, at: usize) -> Going {
        let Some(process) = self.machines.get(at).and_then(|it| it.process.as_ref()) else {
            return Ok(());
        };
        for row in &process.seen.partitions {
            let Some(owner) = row.owner.filter(|owner| *owner != process.id) else { continue };
            let row = process.seen.nodes.iter().find(|node| node.id == owner);
            // Two that claim at once may each get a part, and give up.
            let is_known = row.is_some_and(|row| row.state != Some(NodeState::Standby));
            // By the time of what it read: a node may beat while that is on its way.
            let (read_at, beats) = &process.read;
            let is_alive = beats.get(&owner).is_some_and(|beat| beat + LATELY_US > *read_at);
            if is_known && is_alive && self.living().contains(&owner) {
                let lease = Timings::default().lease;
                return wrong(format!("a node was replaced that beat within {lease:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn forget_node(&mut self, at: usize, id: Uuid, heartbeat: u64) {
        let number = self.serial();
        let Some(process) = self.machines.get(at).and_then(|it| it.process.as_ref()) else {
            return;
        };
        let (process, port) = (process.serial, Port::Members(number));
        let call = Call::Forget { id, heartbeat: Some(heartbeat) };
        self.network.send(self.now_us, call, Address { machine: at, process, port });
    }

    /// The process has closed everything and ends.
    pub(super) fn leave(&mut self, at: usize) {
        let number = self.serial();
        let starts_at = self.now_us + self.random.between(SECOND_US / 4, 4 * SECOND_US);
        let Some(machine) = self.machines.get_mut(at) else { return };
        let Some(process) = machine.process.take() else { return };
        machine.starts_at = starts_at;
        let call = Call::Forget { id: process.id, heartbeat: None };
        let port = Port::Members(number);
        let from = Address { machine: at, process: process.serial, port };
        self.network.send(self.now_us, call, from);
        self.note(|| format!("{at} left"));
    }

    /// Whether a node has halted.
    pub(super) fn is_halted(&self, at: usize) -> bool {
        let process = self.machines.get(at).and_then(|it| it.process.as_ref());
        let state = process.and_then(|process| process.state.as_ref());
        state.is_some_and(|state| state.doing() == hapax_postgres::node::Doing::Halted)
    }
}
