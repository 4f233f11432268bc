//! Claims while the heartbeats of the same node go on, against a database made by hand.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

use std::sync::Arc;
use std::time::Duration;

use hapax_postgres::call::{Answer, Backend, Call, End, Ends, Watched};
use hapax_postgres::{
    Claiming, Failure, Ground, Heartbeat, Lane, Note, Steps, Uuid, Witness, Witnesses,
};
use hapax_store::{Error, LogEnd, archive};

const CLUSTER: Uuid = Uuid::from_u128(1);
const LINEAGE: Uuid = Uuid::from_u128(2);

/// A machine that remembers nothing of earlier starts.
#[derive(Debug)]
struct Nothing;

impl Note for Nothing {
    fn read(&self) -> Option<String> {
        None
    }

    fn write(&self, _: &str) -> bool {
        true
    }
}

fn end(epoch: u32, sequence: u64) -> End {
    let last = LogEnd { epoch: 5, sequence, chain: sequence };
    End { partition: 0, epoch, claim: Some(Uuid::from_u128(9)), owner: None, last }
}

/// A heartbeat of this node that sees this.
fn beat(witnesses: &Witnesses, end: End) -> Option<Error> {
    let known = witnesses.known();
    let heartbeat = Heartbeat {
        count: 1,
        database_ms: 0,
        round_trip: Duration::ZERO,
        catalog: 0,
        lineage: LINEAGE,
        watched: vec![Watched { end, kept: None }],
    };
    witnesses.note(&known, &heartbeat)
}

/// Ends at `found` when it is asked; a heartbeat sees `moved` before that answer arrives.
#[derive(Debug)]
struct Moving {
    witnesses: Witnesses,
    found: End,
    moved: End,
}

impl Backend for Moving {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        match call {
            Call::Ends(_) => {
                beat(&self.witnesses, self.moved);
                let (cluster, lineage, ends) = (CLUSTER, LINEAGE, vec![self.found]);
                Ok(Answer::Ends(Ends { cluster, lineage, ends }))
            }
            Call::Read { .. } => Ok(Answer::Rows(Vec::new())),
            Call::Claim { seen, .. } => Ok(Answer::Claimed(Some(seen + 1))),
            other => panic!("{other:?}"),
        }
    }

    fn pause(&self) {}

    fn draw(&self) -> Result<Uuid, String> {
        Ok(Uuid::from_u128(7))
    }
}

fn witnesses() -> Witnesses {
    Witnesses::read((CLUSTER, LINEAGE), std::iter::once(Arc::new(Nothing) as Arc<dyn Note>))
}

fn claim(witnesses: &Witnesses, found: End, moved: End) -> Result<(), Error> {
    let backend = Arc::new(Moving { witnesses: witnesses.clone(), found, moved });
    let ground = Ground {
        backend,
        lane: Arc::new(Lane::new(CLUSTER, LINEAGE, Arc::new(|| {}))),
        cluster: CLUSTER,
        lineage: LINEAGE,
        partition: 0,
        label: "partition 0".to_owned(),
    };
    let claiming = Claiming {
        node: Uuid::from_u128(3),
        seen: Some(5),
        cache: None,
        archive: archive::Options::default(),
        close_wait: Duration::ZERO,
        steps: Arc::new(Steps::default()),
    };
    let witness: Arc<Witness> = witnesses.of(0).unwrap();
    ground.claim(&claiming, witness, &(Arc::new(|| {}) as _)).map(drop)
}

/// The owner that is replaced, or another node that claims, moves the partition while this one is
/// about to claim it. Its own heartbeats may see that first, which is no loss.
#[test]
fn a_heartbeat_that_sees_more_than_the_claim_asked_for_does_not_halt_the_node() {
    for moved in [end(5, 101), end(6, 100)] {
        let witnesses = witnesses();
        assert!(beat(&witnesses, end(5, 100)).is_none());
        let claimed = claim(&witnesses, end(5, 100), moved);
        assert!(claimed.is_ok(), "{claimed:?}");
    }
}

#[test]
fn a_database_that_ends_before_what_heartbeats_saw_is_not_claimed() {
    let witnesses = witnesses();
    assert!(beat(&witnesses, end(5, 101)).is_none());
    let refused = claim(&witnesses, end(5, 100), end(5, 100)).unwrap_err();
    assert!(matches!(refused, Error::Regressed { .. }), "{refused}");
}
