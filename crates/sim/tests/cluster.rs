//! Nodes of a cluster on a model of PostgreSQL: a short, fixed share of what
//! `hapax-sim --cluster` runs at length, and the proof that it can fail.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_postgres::call::{Answer, Backend, Call};
use hapax_postgres::{Claiming, Failure, Ground, Lane, Uuid};
use hapax_sim::cluster::model::{Plain, Tables};
use hapax_sim::cluster::{Settings, run};
use hapax_sim::faults::Tally;
use hapax_sim::planted::Bug;
use hapax_store::{Error, Store, archive};

/// Runs the seeds and expects every one of them to be green.
fn green(seeds: Range<u64>, settings: &Settings) -> Tally {
    let mut total = Tally::default();
    for seed in seeds {
        let report = run(seed, settings);
        if let Some(violation) = &report.violation {
            panic!("seed {seed}: {violation}");
        }
        total.merge(&report.tally);
    }
    total
}

/// Proves that a run was not empty: each of these happened at least so often.
fn at_least(tally: &Tally, wanted: &[(&str, u64)]) {
    for (what, least) in wanted {
        let count = tally.get(what);
        assert!(count >= *least, "{what}: {count}, less than {least}\n{:?}", tally.entries());
    }
}

#[test]
fn the_model_keeps_what_the_statements_promise() {
    hapax_postgres::conformance::run(&Plain::new(4));
}

#[test]
fn nodes_that_fail_on_a_database_that_fails_lose_and_double_nothing() {
    let tally = green(0..60, &Settings::default());
    at_least(
        &tally,
        &[
            ("answers", 10_000),
            ("accepted", 2_000),
            ("duplicates answered", 500),
            ("done", 1_500),
            ("answers lost", 300),
            ("takeovers", 150),
            ("pauses", 100),
            ("kills", 50),
            ("crashes of the database", 80),
            ("stalls of the database", 80),
            ("fail-overs", 80),
            ("unreplicated commits lost", 20),
            ("databases set back", 5),
            ("regressions noticed", 3),
            ("losses accepted", 3),
            ("replies lost", 150),
            ("replies doubled", 200),
            ("statements after their sender gave up", 200),
            ("waits for the standby cancelled", 300),
            ("manifests replaced", 500),
        ],
    );
}

#[test]
fn without_faults_everything_drains() {
    let settings = Settings { faults: false, ..Settings::default() };
    let tally = green(0..20, &settings);
    at_least(&tally, &[("done", 300), ("manifests replaced", 100)]);
    assert_eq!(tally.get("replies lost") + tally.get("fail-overs"), 0);
}

#[test]
fn a_seed_runs_the_same_twice_byte_for_byte() {
    for seed in [3, 11, 17, 29] {
        let settings = Settings { trace: true, ..Settings::default() };
        let (first, second) = (run(seed, &settings), run(seed, &settings));
        assert!(first.trace.len() > 100, "seed {seed} left {} lines", first.trace.len());
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.tally, second.tally, "seed {seed}");
    }
}

/// Plants a bug: within the seeds, which are green without it, the checks must notice.
fn turns_red(bug: Bug, seeds: Range<u64>) {
    let sound = Settings::default();
    let planted = Settings { bug: Some(bug), ..sound.clone() };
    for seed in seeds.clone() {
        let Some(violation) = run(seed, &planted).violation else { continue };
        // A panic would be red as well, but it is the checks that are on trial.
        if violation.0.starts_with("panicked") || run(seed, &sound).violation.is_some() {
            continue;
        }
        return;
    }
    panic!("{bug:?} went unnoticed in {seeds:?}");
}

#[test]
fn planted_append_that_checks_no_claim_turns_the_cluster_red() {
    turns_red(Bug::NoClaimCheck, 0..100);
}

#[test]
fn planted_append_that_checks_no_chain_turns_the_cluster_red() {
    turns_red(Bug::NoChainCheck, 0..150);
}

#[test]
fn planted_look_up_that_counts_as_durable_turns_the_cluster_red() {
    turns_red(Bug::FoundIsDurable, 0..150);
}

#[test]
fn planted_reads_without_confirm_turn_the_cluster_red() {
    turns_red(Bug::ReadsUnconfirmed, 0..100);
}

#[test]
fn planted_heartbeats_judged_by_the_databases_clock_turn_the_cluster_red() {
    turns_red(Bug::DatabaseClock, 0..1_000);
}

#[test]
fn planted_leftovers_removed_before_the_claim_turn_the_cluster_red() {
    turns_red(Bug::LeftoversBeforeClaim, 0..300);
}

#[test]
fn planted_ack_before_the_database_turns_the_cluster_red() {
    turns_red(Bug::AckBeforeSync, 0..60);
}

/// A node that was paused after its claim meets the manifest of its successor.
#[test]
fn who_is_replaced_while_it_opens_is_fenced_and_does_not_panic() {
    let database: Arc<dyn Backend> = Arc::new(Plain::new(1));
    let (cluster, lineage) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let claim = || {
        let lane = Arc::new(Lane::stepped(cluster, lineage, Arc::new(|| false)));
        let (backend, label) = (Arc::clone(&database), "partition 0".to_owned());
        let ground = Ground { backend, lane, cluster, lineage, partition: 0, label };
        let claiming = Claiming {
            node: Uuid::from_u128(3),
            seen: None,
            cache: None,
            archive: archive::Options { reserve_bytes: 0, ..archive::Options::default() },
            close_wait: Duration::ZERO,
            steps: Arc::default(),
        };
        // A witness that is written nowhere.
        ground.claim(&claiming, Arc::default(), &(Arc::new(|| {}) as _)).unwrap()
    };
    let slow = claim();
    let mut successor = claim().stepped().unwrap();
    assert_eq!(successor.store.claim().unwrap().epoch, 2);
    let mut slow = slow.stepped().unwrap();
    let refused = slow.store.claim();
    assert!(matches!(refused, Err(Error::Fenced { held: 1, newest: 2 })), "{refused:?}");
}

/// A database that fails over once, to a state from before a claim whose outcome is unknown.
#[derive(Debug)]
struct FailsOver(Mutex<Replicated>);

#[derive(Debug)]
struct Replicated {
    tables: Tables,
    drawn: u128,
    /// What the standby has, once there is a claim that it does not have.
    standby: Option<Tables>,
    failovers: u32,
}

impl Backend for FailsOver {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        let mut state = self.0.lock().unwrap();
        let is_again = matches!(&call, Call::Claim { seen, .. } if *seen > 0);
        if is_again && state.failovers == 0 {
            state.standby = Some(state.tables.clone());
            state.tables.execute(&call, 0, None);
            return Err(Failure::Warned("canceling wait for synchronous replication".to_owned()));
        }
        if !matches!(call, Call::Ends(_))
            && let Some(standby) = state.standby.take()
        {
            (state.tables, state.failovers) = (standby, 1);
        }
        Ok(state.tables.execute(&call, 0, None))
    }

    fn pause(&self) {}

    fn draw(&self) -> Result<Uuid, String> {
        let mut state = self.0.lock().unwrap();
        state.drawn += 1;
        Ok(Uuid::from_u128(state.drawn << 64))
    }
}

/// The owner sees its claim in the database, which may lose it with the server: nobody replaced it.
#[test]
fn an_owner_whose_next_claim_is_lost_with_the_server_claims_again() {
    let (cluster, lineage) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let tables = Tables::new(cluster, lineage, 1);
    let state = Replicated { tables, drawn: 0, standby: None, failovers: 0 };
    let database = Arc::new(FailsOver(Mutex::new(state)));
    let backend: Arc<dyn Backend> = Arc::clone(&database) as _;
    let lane = Arc::new(Lane::stepped(cluster, lineage, Arc::new(|| false)));
    let send = || {
        while let Some(call) = lane.next_call() {
            lane.answered(backend.call(call));
        }
    };
    let ground = Ground {
        backend: Arc::clone(&backend),
        lane: Arc::clone(&lane),
        cluster,
        lineage,
        partition: 0,
        label: "partition 0".to_owned(),
    };
    let claiming = Claiming {
        node: Uuid::from_u128(3),
        seen: None,
        cache: None,
        archive: archive::Options { reserve_bytes: 0, ..archive::Options::default() },
        close_wait: Duration::ZERO,
        steps: Arc::default(),
    };
    let claimed = ground.claim(&claiming, Arc::default(), &(Arc::new(|| {}) as _)).unwrap();
    let mut store = claimed.stepped().unwrap().store;
    let epoch = store.claim().unwrap().epoch;
    store.append(epoch, 1, b"batch").unwrap();
    send();
    assert_eq!(store.durable().unwrap(), 1);
    let next = store.claim().unwrap().epoch;
    assert!(next > epoch);
    assert_eq!(database.0.lock().unwrap().failovers, 1, "the claim was lost");
    store.append(next, 2, b"batch").unwrap();
    send();
    assert_eq!(store.durable().unwrap(), 2);
}
