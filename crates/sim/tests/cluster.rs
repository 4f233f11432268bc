//! Nodes of a cluster on a model of PostgreSQL: a short, fixed share of what
//! `hapax-sim --cluster` runs at length, and the proof that it can fail.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_postgres::call::{Answer, Backend, Call, Owner, Piece};
use hapax_postgres::{
    Claiming, Failure, Ground, Lane, Note, PostgresLog, Uuid, Witness, Witnesses,
};
use hapax_sim::cluster::model::{Plain, Tables};
use hapax_sim::cluster::{Settings, run};
use hapax_sim::faults::Tally;
use hapax_sim::planted::Bug;
use hapax_store::joined::Joined;
use hapax_store::{Claim, Error, Store, archive};

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
fn a_node_that_takes_over_as_the_drain_begins_does_not_go_on_for_the_earlier_one() {
    green(10_617..10_618, &Settings::default());
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

/// A database in memory, with what happens before each of its calls is executed and after.
struct Meddled {
    state: Mutex<(Tables, u128)>,
    before: Before,
    after: After,
}

type Before = Box<dyn Fn(&mut Tables, &Call) + Send + Sync>;
type After = Box<dyn Fn(&Call) -> Option<Failure> + Send + Sync>;

impl std::fmt::Debug for Meddled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddled")
    }
}

impl Backend for Meddled {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (self.before)(&mut state.0, &call);
        let answer = state.0.execute(&call, 0, None);
        (self.after)(&call).map_or(Ok(answer), Err)
    }

    fn pause(&self) {}

    fn draw(&self) -> Result<Uuid, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        Ok(Uuid::from_u128(state.1 << 64))
    }
}

const CLUSTER: Uuid = Uuid::from_u128(1);
const LINEAGE: Uuid = Uuid::from_u128(2);

fn meddled(
    before: impl Fn(&mut Tables, &Call) + Send + Sync + 'static,
    after: impl Fn(&Call) -> Option<Failure> + Send + Sync + 'static,
) -> Arc<dyn Backend> {
    let state = Mutex::new((Tables::new(CLUSTER, LINEAGE, 1), 0));
    Arc::new(Meddled { state, before: Box::new(before), after: Box::new(after) })
}

/// Claims partition 0, and returns its store and its lane.
fn own(
    backend: &Arc<dyn Backend>,
    witness: Arc<Witness>,
) -> Result<(Joined<PostgresLog>, Claim, Arc<Lane>), Error> {
    let lane = Arc::new(Lane::stepped(CLUSTER, LINEAGE, Arc::new(|| false)));
    let ground = Ground {
        backend: Arc::clone(backend),
        lane: Arc::clone(&lane),
        cluster: CLUSTER,
        lineage: LINEAGE,
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
    let mut store = ground.claim(&claiming, witness, &(Arc::new(|| {}) as _))?.stepped()?.store;
    let claim = store.claim()?;
    Ok((store, claim, lane))
}

/// The owner sees its claim in the database, which may lose it with the server: nobody replaced it.
#[test]
fn an_owner_whose_next_claim_is_lost_with_the_server_claims_again() {
    let standby = Arc::new(Mutex::new((0, None::<Tables>)));
    let (lost, claimed) = (Arc::clone(&standby), Arc::clone(&standby));
    let is_again = |call: &Call| matches!(call, Call::Claim { seen, .. } if *seen > 0);
    let before = move |tables: &mut Tables, call: &Call| {
        let mut standby = lost.lock().unwrap();
        match standby.1.take() {
            None if is_again(call) && standby.0 == 0 => *standby = (1, Some(tables.clone())),
            // It fails over before anything is committed that the standby has.
            Some(before) if !matches!(call, Call::Ends(_)) => *tables = before,
            kept => standby.1 = kept,
        }
    };
    let after = move |call: &Call| {
        let is_lost = is_again(call) && claimed.lock().unwrap().1.is_some();
        is_lost.then(|| Failure::Warned("canceling wait for synchronous replication".to_owned()))
    };
    let backend = meddled(before, after);
    let (mut store, claim, lane) = own(&backend, Arc::default()).unwrap();
    let send = || {
        while let Some(call) = lane.next_call() {
            lane.answered(backend.call(call));
        }
    };
    store.append(claim.epoch, 1, b"batch").unwrap();
    send();
    assert_eq!(store.durable().unwrap(), 1);
    let next = store.claim().unwrap().epoch;
    assert!(next > claim.epoch);
    let standby = standby.lock().unwrap();
    assert!(standby.0 == 1 && standby.1.is_none(), "the claim was lost");
    drop(standby);
    store.append(next, 2, b"batch").unwrap();
    send();
    assert_eq!(store.durable().unwrap(), 2);
}

/// Epochs only grow: a partition that is free at an earlier one is from before this owner.
#[test]
fn an_owner_that_claims_again_in_a_database_that_was_set_back_says_so() {
    let is_set_back = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_set_back);
    let before = move |tables: &mut Tables, _: &Call| {
        if told.swap(false, Ordering::Relaxed) {
            *tables = Tables::new(CLUSTER, LINEAGE, 1);
        }
    };
    let backend = meddled(before, |_| None);
    let (mut store, claim, _) = own(&backend, Arc::default()).unwrap();
    is_set_back.store(true, Ordering::Relaxed);
    let refused = store.claim();
    let Err(Error::Regressed { had, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(had.epoch, claim.epoch);
}

/// A look-up of its lane may see the next claim of an owner before the owner has it.
#[test]
fn an_owner_that_claims_again_is_not_replaced_by_its_own_claim() {
    let lane = Arc::new(Mutex::new(None::<Arc<Lane>>));
    let looks = Arc::clone(&lane);
    let before = move |tables: &mut Tables, call: &Call| {
        let lane = looks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some(lane), Call::Ends(_)) = (lane, call) else { return };
        lane.look();
        while let Some(call) = lane.next_call() {
            lane.answered(Ok(tables.execute(&call, 0, None)));
        }
    };
    let claims = AtomicU32::new(0);
    let after = move |call: &Call| {
        let is_claim = matches!(call, Call::Claim { .. });
        // The first is the one that opens it.
        let is_lost = is_claim && claims.fetch_add(1, Ordering::Relaxed) == 1;
        is_lost.then(|| Failure::Unreachable("the reply was lost".to_owned()))
    };
    let backend = meddled(before, after);
    let (mut store, claim, its) = own(&backend, Arc::default()).unwrap();
    *lane.lock().unwrap() = Some(Arc::clone(&its));
    let next = store.claim().unwrap().epoch;
    assert!(next > claim.epoch);
    *lane.lock().unwrap() = None;
    store.append(next, 1, b"batch").unwrap();
    while let Some(call) = its.next_call() {
        its.answered(backend.call(call));
    }
    assert_eq!(store.durable().unwrap(), 1);
}

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

/// What is visible may be lost with its server: a node that remembered it would halt.
#[test]
fn a_claim_that_no_standby_has_is_not_remembered_and_opens_nothing() {
    let swaps = AtomicU32::new(0);
    let after = move |call: &Call| {
        let commits = match call {
            Call::Append(_) | Call::Claim { .. } => true,
            // The next ones find it, and commit nothing.
            Call::Swap { .. } => swaps.fetch_add(1, Ordering::Relaxed) == 0,
            _ => false,
        };
        commits.then(|| Failure::Warned("canceling wait for synchronous replication".to_owned()))
    };
    let backend = meddled(|_, _| {}, after);
    let notes = std::iter::once(Arc::new(Nothing) as Arc<dyn Note>);
    let witnesses = Witnesses::read((CLUSTER, LINEAGE), notes);
    let refused = own(&backend, witnesses.of(0).unwrap()).map(drop);
    assert!(matches!(refused, Err(Error::Unreachable { .. })), "{refused:?}");
    assert_eq!(witnesses.known(), []);
}

/// The partition was free when it was looked at, and not when it was claimed: its last owner gave
/// nothing up, and may have told a later time than the journal has.
#[test]
fn who_claims_after_another_was_faster_does_not_take_it_for_closed() {
    let rival = |tables: &mut Tables, call: &Call| {
        if let Call::Claim { seen: 0, .. } = call {
            let (claim, node) = (Uuid::from_u128(8), Uuid::from_u128(9));
            let faster = Call::Claim { partition: 0, seen: 0, least: 0, claim, node };
            tables.execute(&faster, 0, None);
        }
    };
    let backend = meddled(rival, |_| None);
    let (_, claim, _) = own(&backend, Arc::default()).unwrap();
    assert_eq!((claim.epoch, claim.closed), (2, false));
    // One that is free is closed.
    let backend = meddled(|_, _| {}, |_| None);
    let (_, claim, _) = own(&backend, Arc::default()).unwrap();
    assert_eq!((claim.epoch, claim.closed), (1, true));
}

/// A database that was set back may have a manifest that names the run: what is removed is removed
/// beside the manifest that does not.
#[test]
fn what_an_owner_left_over_is_removed_beside_the_manifest_that_was_read() {
    let removed = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&removed);
    let before = move |tables: &mut Tables, call: &Call| {
        let manifest = tables.execute(&Call::Manifest { partition: 0 }, 0, None);
        if let (Call::Remove { run, version, .. }, Answer::Manifest { version: there, .. }) =
            (call, manifest)
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push((*run, *version, there));
        }
    };
    let backend = meddled(before, |_| None);
    let (first, claim, _) = own(&backend, Arc::default()).unwrap();
    let Ok(Answer::Ends(ends)) = backend.call(Call::Ends(vec![0])) else { panic!("no end") };
    let id = ends.ends[0].claim.unwrap();
    let owner = Owner { partition: 0, epoch: claim.epoch, claim: id };
    let run = (u64::from(claim.epoch) << 40) | 5;
    let piece = Piece { run, at: 0, bytes: Arc::from(&b"piece"[..]) };
    assert_eq!(backend.call(Call::Keep { owner, piece }), Ok(Answer::Owned(true)));
    drop(first);
    own(&backend, Arc::default()).unwrap();
    let removed = removed.lock().unwrap();
    let (run_there, version, there) = removed[0];
    assert!(run_there == run && version == there && there > 0, "{removed:?}");
}
