//! What a node decides, step by step.

use super::*;
use crate::members::OwnerRow;

const BEAT: Duration = Duration::from_millis(500);
const LEASE: Duration = Duration::from_secs(3);

/// The rows of a database with two partitions, a clock, and one node that is looked at.
struct World {
    now: Duration,
    seen: Seen,
    state: State,
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

impl World {
    /// Node 1 is looked at; the others are there and have never beaten.
    fn of(nodes: &[(u128, &str)]) -> Self {
        let row = |(number, name): &(u128, &str)| NodeRow {
            id: id(*number),
            name: (*name).to_owned(),
            address: format!("http://node-{number}"),
            release: String::new(),
            feature: 1,
            state: Some(NodeState::Standby),
            heartbeat: 0,
            told_ms: 0,
        };
        let partition = |partition| OwnerRow { partition, epoch: 7, owner: None, intended: None };
        let seen = Seen {
            nodes: nodes.iter().map(row).collect(),
            partitions: (0..2).map(partition).collect(),
        };
        Self { now: Duration::from_secs(100), seen, state: State::new(id(1)) }
    }

    fn owned_by(mut self, owner: u128) -> Self {
        self.set_owner(Some(owner));
        self
    }

    /// It says with its heartbeats that it serves.
    fn set_owner(&mut self, owner: Option<u128>) {
        for node in &mut self.seen.nodes {
            let serves = owner.map(id) == Some(node.id);
            node.state = Some(if serves { NodeState::Serving } else { NodeState::Standby });
        }
        for partition in &mut self.seen.partitions {
            partition.owner = owner.map(id);
            partition.epoch += 1;
        }
        for node in &mut self.seen.nodes {
            let is_owner = owner.map(id) == Some(node.id);
            node.state = Some(if is_owner { NodeState::Serving } else { NodeState::Standby });
        }
    }

    /// Time passes; the nodes that are named beat, and the one that is looked at with them.
    fn beat(&mut self, alive: &[u128]) -> Vec<Act> {
        self.now += BEAT;
        for node in &mut self.seen.nodes {
            if node.id == id(1) || alive.contains(&node.id.as_u128()) {
                node.heartbeat += 1;
            }
        }
        self.state.beaten(self.now, self.now, &self.seen)
    }

    /// Time passes, and the database does not answer.
    fn miss(&mut self) -> Vec<Act> {
        self.now += BEAT;
        self.state.missed(self.now)
    }

    /// Beats until there is something to do, for at most `bound`; returns how long it took.
    fn until_act(&mut self, alive: &[u128], bound: Duration) -> Option<(Duration, Vec<Act>)> {
        let start = self.now;
        while self.now - start < bound {
            let acts = self.beat(alive);
            if !acts.is_empty() {
                return Some((self.now - start, acts));
            }
        }
        None
    }

    fn serve(&mut self) {
        let opens = self.until_act(&[], Duration::from_secs(120)).expect("it opens").1;
        assert!(matches!(opens.as_slice(), [Act::Open { .. }]), "{opens:?}");
        self.set_owner(Some(1));
        assert_eq!(self.state.opened(self.now, Ok(())), []);
    }
}

#[test]
fn a_lone_node_claims_at_once_what_nobody_owns() {
    let mut world = World::of(&[(1, "a")]);
    let (took, acts) = world.until_act(&[], LEASE).unwrap();
    assert_eq!(acts, [Act::Open { epochs: vec![7, 7] }]);
    assert!(took <= BEAT * 2, "{took:?}");
    assert_eq!(world.state.doing(), Doing::Opening);
    assert_eq!(world.beat(&[]), [], "and waits until they are open");
}

#[test]
fn a_living_owner_is_left_alone_and_a_dead_one_replaced_after_its_lease() {
    let mut world = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    assert_eq!(world.until_act(&[2], LEASE * 10), None);
    let (took, acts) = world.until_act(&[], LEASE * 2).unwrap();
    assert_eq!(acts, [Act::Open { epochs: vec![8, 8] }]);
    assert!(took >= LEASE && took <= LEASE + BEAT * 2, "{took:?}");
}

#[test]
fn an_owner_that_left_or_released_is_replaced_at_once() {
    let mut released = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    released.until_act(&[2], LEASE);
    released.set_owner(None);
    assert!(released.until_act(&[2], BEAT * 2).is_some());
    let mut left = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    left.until_act(&[2], LEASE);
    left.seen.nodes.pop();
    assert!(left.until_act(&[], BEAT * 2).is_some());
}

#[test]
fn after_an_outage_of_the_database_everybody_gets_a_whole_lease() {
    let mut world = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    world.until_act(&[2], LEASE);
    for _ in 0..60 {
        assert_eq!(world.miss(), []);
    }
    let (took, _) = world.until_act(&[], LEASE * 2).unwrap();
    assert!(took >= LEASE, "{took:?}");
}

/// Otherwise all of them would claim at once when the database is back.
#[test]
fn after_an_outage_of_the_database_standbys_take_turns_anew() {
    let mut world = World::of(&[(1, "b"), (2, "a")]);
    assert_eq!(world.beat(&[2]), []);
    for _ in 0..20 {
        assert_eq!(world.miss(), []);
    }
    let (took, _) = world.until_act(&[2], LEASE * 2).unwrap();
    assert!(took > RANK_STEP, "the first one gets a second: {took:?}");
}

#[test]
fn of_several_standbys_the_first_by_name_tries_first() {
    let mut second = World::of(&[(1, "b"), (2, "z"), (3, "a")]).owned_by(2);
    second.until_act(&[2, 3], LEASE);
    let (took, _) = second.until_act(&[3], LEASE * 3).unwrap();
    assert!(took >= LEASE + RANK_STEP, "the first one gets a second: {took:?}");
    let mut alone = World::of(&[(1, "b"), (2, "z"), (3, "a")]).owned_by(2);
    alone.until_act(&[2, 3], LEASE);
    let (took, _) = alone.until_act(&[], LEASE * 3).unwrap();
    assert!(took < LEASE + RANK_STEP, "nobody waits for one that is gone too: {took:?}");
}

/// A node that drains claims nothing, and is there until its last request is finished.
#[test]
fn nobody_waits_for_the_turn_of_a_node_that_is_stopping() {
    let mut world = World::of(&[(1, "b"), (2, "z"), (3, "a")]).owned_by(2);
    world.until_act(&[2, 3], LEASE);
    world.set_owner(None);
    world.seen.nodes[2].state = Some(NodeState::Draining);
    let (took, acts) = world.until_act(&[2, 3], LEASE).unwrap();
    assert!(matches!(acts.as_slice(), [Act::Open { .. }]), "{acts:?}");
    assert!(took < RANK_STEP, "it claims nothing: {took:?}");
}

#[test]
fn a_node_without_heartbeats_takes_itself_for_cut_off_before_others_do() {
    let mut world = World::of(&[(1, "a")]);
    world.serve();
    assert_eq!(world.beat(&[]), []);
    let beaten = world.now;
    let acts = std::iter::repeat_with(|| world.miss()).find(|acts| !acts.is_empty()).unwrap();
    assert_eq!(acts, [Act::Suspend]);
    assert!(world.now - beaten < LEASE, "{:?}", world.now - beaten);
    assert_eq!(world.miss(), [], "once");
    assert_eq!(world.beat(&[]), [Act::Resume], "its memory was kept");
    assert_eq!(world.state.doing(), Doing::Serving { is_cut_off: false });
}

#[test]
fn who_was_replaced_while_it_was_cut_off_does_not_serve_on_for_a_moment() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.serve();
    while world.miss().is_empty() {}
    world.set_owner(Some(2));
    assert_eq!(world.beat(&[2]), [Act::Close(Loss::Fenced)]);
}

#[test]
fn who_was_replaced_closes_and_claims_nothing_for_a_while_and_then_for_longer() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let start = world.now;
        world.set_owner(None);
        world.serve();
        waits.push(world.now - start);
        world.set_owner(Some(2));
        assert_eq!(world.beat(&[2]), [Act::Close(Loss::Fenced)]);
        world.state.closed(Loss::Fenced);
    }
    let expected: Vec<Duration> = [0, 5, 10, 20, 40, 60].map(Duration::from_secs).into();
    for (wait, expected) in waits.iter().zip(&expected) {
        assert!(*wait + BEAT * 2 >= *expected && *wait <= *expected + BEAT * 3, "{waits:?}");
    }
}

#[test]
fn a_map_that_was_read_before_the_claim_is_not_believed() {
    let mut world = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    let opens = world.until_act(&[], LEASE * 2).unwrap().1;
    assert!(matches!(opens.as_slice(), [Act::Open { .. }]), "{opens:?}");
    let begun = world.now;
    let before = world.seen.clone();
    world.now += BEAT;
    assert_eq!(world.state.opened(world.now, Ok(())), []);
    assert_eq!(world.state.beaten(begun, world.now, &before), []);
    assert_eq!(world.state.doing(), Doing::Serving { is_cut_off: false });
}

#[test]
fn who_loses_the_race_tries_again_when_the_winner_is_gone() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    assert!(world.until_act(&[2], LEASE).is_some());
    world.set_owner(Some(2));
    assert_eq!(world.state.opened(world.now, Err(Loss::Outrun)), []);
    assert_eq!(world.until_act(&[2], LEASE * 5), None);
    let (took, _) = world.until_act(&[], LEASE * 2).unwrap();
    assert!(took <= LEASE + BEAT * 2, "there is no penalty for it: {took:?}");
}

#[test]
fn a_failed_opening_is_tried_again_after_a_pause() {
    let mut world = World::of(&[(1, "a")]);
    assert!(world.until_act(&[], LEASE).is_some());
    assert_eq!(world.state.opened(world.now, Err(Loss::Failed)), []);
    let (took, _) = world.until_act(&[], LEASE * 5).unwrap();
    assert!(took >= Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_stopping_node_gives_everything_away_and_takes_nothing_back() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.serve();
    assert_eq!(world.state.stop(), [Act::Close(Loss::Stopped)]);
    assert_eq!(world.state.node_state(), NodeState::Draining);
    world.state.closed(Loss::Stopped);
    world.set_owner(None);
    assert_eq!(world.until_act(&[2], LEASE * 5), None);
    let mut opening = World::of(&[(1, "a")]);
    assert!(opening.until_act(&[], LEASE).is_some());
    assert_eq!(opening.state.stop(), [], "it is opened first");
    let acts = opening.state.opened(opening.now, Ok(()));
    assert_eq!(acts, [Act::Close(Loss::Stopped)]);
}

#[test]
fn a_node_whose_database_was_set_back_halts() {
    let mut world = World::of(&[(1, "a")]);
    world.serve();
    assert_eq!(world.state.lost(world.now, Loss::Regressed), [Act::Close(Loss::Regressed)]);
    world.state.closed(Loss::Regressed);
    world.set_owner(None);
    assert_eq!(world.until_act(&[], LEASE * 100), None);
    assert_eq!(world.state.doing(), Doing::Halted);
    let mut opening = World::of(&[(1, "a")]);
    assert!(opening.until_act(&[], LEASE).is_some());
    opening.state.opened(opening.now, Err(Loss::Regressed));
    assert_eq!(opening.state.doing(), Doing::Halted);
}

#[test]
fn who_gets_nothing_done_gives_up_and_not_while_the_database_stands_still() {
    let seconds = Duration::from_secs;
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.serve();
    world.until_act(&[2], seconds(60));
    assert_eq!(world.state.progress(world.now, seconds(9)), (false, vec![]));
    assert_eq!(world.state.progress(world.now, seconds(10)), (true, vec![]), "not ready");
    assert_eq!(world.state.progress(world.now, seconds(1)), (false, vec![]), "it goes on");
    for _ in 0..120 {
        world.miss();
    }
    assert_eq!(world.beat(&[2]), [Act::Resume]);
    assert_eq!(world.state.progress(world.now, seconds(60)), (false, vec![]), "the database did");
    world.until_act(&[2], seconds(30));
    let (_, acts) = world.state.progress(world.now, seconds(30));
    assert_eq!(acts, [Act::Close(Loss::Stalled)]);
    world.state.closed(Loss::Stalled);
    world.set_owner(None);
    let (took, _) = world.until_act(&[2], seconds(60)).unwrap();
    assert!(took >= seconds(4), "another node goes first: {took:?}");
}

#[test]
fn a_spare_whose_database_was_set_back_halts() {
    let mut world = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    world.until_act(&[2], LEASE);
    assert_eq!(world.state.set_back(world.now), []);
    assert_eq!(world.state.doing(), Doing::Halted);
    assert_eq!(world.until_act(&[], LEASE * 10), None, "and claims nothing");
    let mut serving = World::of(&[(1, "a")]);
    serving.serve();
    assert_eq!(serving.state.set_back(serving.now), [Act::Close(Loss::Regressed)]);
}

/// The owner may have released the partitions when it halted, or be one of the history that was
/// restored. A node that is new would go on without what is lost.
#[test]
fn while_a_halted_node_lives_nobody_claims() {
    for owner in [None, Some(3)] {
        let mut world = World::of(&[(1, "a"), (2, "b")]);
        world.set_owner(owner);
        world.seen.nodes[1].state = Some(NodeState::Halted);
        assert_eq!(world.until_act(&[2], LEASE * 10), None, "{owner:?}");
        let (took, acts) = world.until_act(&[], LEASE * 2).unwrap();
        assert!(matches!(acts.as_slice(), [Act::Open { .. }]), "{acts:?}");
        assert!(took >= LEASE, "it was stopped: {took:?}");
    }
}

#[test]
fn rows_of_nodes_that_are_long_gone_are_forgotten() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.serve();
    let acts = world.until_act(&[], Duration::from_secs(2 * 3_600)).unwrap();
    assert_eq!(acts.1, [Act::Forget(id(2), 0)]);
}

/// Two nodes claimed at once, each got a part, and both gave up: the first of them tries again.
#[test]
fn two_nodes_that_each_own_a_part_do_not_wait_for_each_other() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.seen.partitions[0].owner = Some(id(1));
    world.seen.partitions[1].owner = Some(id(2));
    let mut acts = Vec::new();
    for _ in 0..20 {
        acts.extend(world.beat(&[2]));
    }
    assert!(matches!(acts.as_slice(), [Act::Open { .. }]), "{acts:?}");
    assert_eq!(world.state.node_state(), NodeState::Serving, "so that the other leaves it alone");
    // A living owner that serves, or is about to, is left alone.
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.seen.partitions[1].owner = Some(id(2));
    world.seen.nodes[1].state = Some(NodeState::Serving);
    for _ in 0..20 {
        assert_eq!(world.beat(&[2]), []);
    }
}

/// A disk may hang while the partitions are opened: the node beats and owns all the same.
#[test]
fn a_node_that_opens_for_too_long_lets_others_try_and_has_longer_the_next_time() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    let opens = |world: &mut World| {
        let opens = world.until_act(&[2], LEASE * 2).expect("it opens").1;
        assert!(matches!(opens.as_slice(), [Act::Open { .. }]), "{opens:?}");
        world.set_owner(Some(1));
    };
    let overdue_after = |world: &mut World| {
        let start = world.now;
        while world.state.node_state() == NodeState::Serving {
            assert!(world.now - start < OPENING_MAX * 10, "the others wait for ever");
            assert_eq!(world.beat(&[2]), []);
        }
        assert_eq!(world.state.node_state(), NodeState::Standby);
        assert_eq!(world.state.doing(), Doing::Opening, "it goes on");
        world.now - start
    };
    opens(&mut world);
    // What passes while the database is away is nobody's fault.
    for _ in 0..1_000 {
        world.miss();
        assert_eq!(world.state.node_state(), NodeState::Serving);
    }
    assert!(overdue_after(&mut world) >= OPENING_MAX);
    assert_eq!(world.state.opened(world.now, Err(Loss::Outrun)), []);
    world.set_owner(None);
    opens(&mut world);
    assert!(overdue_after(&mut world) >= OPENING_MAX * 2, "it may only be slow");
    assert_eq!(world.state.opened(world.now, Ok(())), []);
    assert_eq!(world.state.node_state(), NodeState::Serving);
}

/// To the others it is an owner that has given up.
#[test]
fn an_owner_that_beats_as_a_standby_is_replaced() {
    let mut world = World::of(&[(1, "a"), (2, "b")]).owned_by(2);
    world.seen.nodes[1].state = Some(NodeState::Standby);
    let (took, acts) = world.until_act(&[2], LEASE * 3).unwrap();
    assert!(matches!(acts.as_slice(), [Act::Open { .. }]), "{acts:?}");
    assert!(took >= LEASE, "it may be about to say that it serves: {took:?}");
}
