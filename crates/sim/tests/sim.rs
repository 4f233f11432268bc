//! A short, fixed share of what `hapax-sim` runs at length, and the proof that it can fail.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

use hapax_sim::faults::{Choice, Kind, Tally};
use hapax_sim::planted::Bug;
use hapax_sim::run::{Report, Settings, run};

fn settings(kinds: &[Kind]) -> Settings {
    Settings { faults: Choice::These(kinds.to_vec()), ..Settings::default() }
}

/// Runs the seeds and expects every one of them to be green.
fn green(seeds: std::ops::Range<u64>, settings: &Settings) -> Tally {
    let mut total = Tally::default();
    for seed in seeds {
        let report = run(seed, settings);
        if let Some(violation) = &report.violation {
            panic!("seed {seed} with {:?}: {violation}", report.kinds);
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
fn all_faults_at_once_lose_and_double_nothing() {
    let tally = green(0..1_000, &Settings::default());
    at_least(
        &tally,
        &[
            ("answers after a fault", 100_000),
            ("accepted", 20_000),
            ("duplicates answered", 15_000),
            ("conflicts", 1_500),
            ("done", 15_000),
            ("redeliveries", 5_000),
            ("leases lost", 8_000),
            ("answers lost", 10_000),
            ("restarts", 1_500),
            ("checkpoints", 400),
            ("steps of merges", 200),
            ("crashes", 300),
            ("kills", 800),
            ("sync errors", 100),
            ("write errors", 50),
            ("writes torn", 50),
            ("writes reordered", 200),
            ("writes without room", 100),
            ("refused for room", 1_000),
            ("bits flipped", 150),
            ("damage refused", 80),
            ("clock jumps", 400),
            ("takeovers", 200),
            ("zombies refused", 100),
        ],
    );
}

/// A spare segment whose zeros landed elsewhere, on a disk that is full when it is used: the
/// error is the full disk's, and names no damage.
#[test]
fn seed_50113828_a_misdirected_fill_on_a_full_disk_is_explained() {
    let tally = green(50_113_828..50_113_829, &Settings::default());
    at_least(&tally, &[("answers after a fault", 1)]);
}

#[test]
fn without_faults_everything_drains() {
    let tally = green(0..100, &settings(&[]));
    at_least(&tally, &[("answers", 50_000), ("done", 5_000), ("checkpoints", 100)]);
    assert_eq!(tally.get("crashes") + tally.get("sync errors") + tally.get("bits flipped"), 0);
}

#[test]
fn a_seed_runs_the_same_twice_byte_for_byte() {
    for seed in [3, 11, 17, 29, 47] {
        let settings = Settings { trace: true, ..Settings::default() };
        let (first, second) = (run(seed, &settings), run(seed, &settings));
        assert!(first.trace.len() > 500, "seed {seed} left {} lines", first.trace.len());
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.tally, second.tally, "seed {seed}");
    }
}

/// Plants a bug: within the seeds the checker must notice, without it they must be green.
fn turns_red(bug: Bug, kinds: &[Kind], seeds: u64) {
    let sound = settings(kinds);
    green(0..seeds, &sound);
    let planted = Settings { bug: Some(bug), ..sound };
    let red: Vec<Report> =
        (0..seeds).map(|seed| run(seed, &planted)).filter(|r| r.violation.is_some()).collect();
    let told = red.iter().map(|report| report.violation.as_ref().unwrap().to_string());
    // A panic would be red as well, but it is the checker that is on trial.
    let told: Vec<String> = told.filter(|text| !text.starts_with("panicked")).collect();
    assert!(!told.is_empty(), "{bug:?} went unnoticed in {seeds} seeds ({} red)", red.len());
}

#[test]
fn planted_ack_before_fsync_turns_the_suite_red() {
    turns_red(Bug::AckBeforeSync, &[Kind::Power], 30);
}

#[test]
fn planted_key_remembered_before_the_append_turns_the_suite_red() {
    turns_red(Bug::KeyBeforeAppend, &[Kind::Power], 30);
}

#[test]
fn planted_missing_epoch_check_turns_the_suite_red() {
    turns_red(Bug::NoEpochCheck, &[Kind::Takeover], 30);
}

#[test]
fn a1_fifty_kills_under_load_lose_nothing() {
    let kills = Settings { steps: 4_000, fault_every: 20, ..settings(&[Kind::Power]) };
    let tally = green(1_000..1_008, &kills);
    at_least(&tally, &[("kills", 8 * 50), ("answers after a fault", 8 * 1_500)]);
    for seed in 1_000..1_008 {
        assert!(run(seed, &kills).tally.get("restarts") >= 50, "seed {seed}");
    }
}

#[test]
fn a2_power_cuts_lose_unsynced_bytes_and_nothing_acknowledged() {
    let tally = green(2_000..2_150, &settings(&[Kind::Power]));
    at_least(
        &tally,
        &[("crashes", 300), ("sectors lost", 2_000), ("writes torn", 20), ("accepted", 8_000)],
    );
}

#[test]
fn a5_failed_syncs_and_writes_stop_the_partition_and_lose_nothing() {
    let tally = green(5_000..5_150, &settings(&[Kind::Io]));
    at_least(
        &tally,
        &[("sync errors", 200), ("write errors", 100), ("read errors", 100), ("done", 4_000)],
    );
}

#[test]
fn a6_a_full_disk_refuses_sends_and_settles_on() {
    let tally = green(6_000..6_100, &settings(&[Kind::Full]));
    at_least(&tally, &[("refused for room", 1_000), ("writes without room", 50), ("done", 3_000)]);
}

#[test]
fn a13_a14_a_clock_that_is_set_ends_no_key_and_no_lease_early() {
    // Every lease and every retention is checked by partition time, and partition time against
    // the monotonic clock.
    let tally = green(14_000..14_100, &settings(&[Kind::Clock, Kind::Power]));
    at_least(&tally, &[("clock jumps", 400), ("restarts", 200), ("redeliveries", 1_000)]);
}
