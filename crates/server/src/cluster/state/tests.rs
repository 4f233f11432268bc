//! What a node decides, step by step.

use hapax_postgres::OwnerRow;

use super::*;

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

    fn set_owner(&mut self, owner: Option<u128>) {
        for partition in &mut self.seen.partitions {
            partition.owner = owner.map(id);
            partition.epoch += 1;
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
fn rows_of_nodes_that_are_long_gone_are_forgotten() {
    let mut world = World::of(&[(1, "a"), (2, "b")]);
    world.serve();
    let acts = world.until_act(&[], Duration::from_secs(2 * 3_600)).unwrap();
    assert_eq!(acts.1, [Act::Forget(id(2), 0)]);
}
