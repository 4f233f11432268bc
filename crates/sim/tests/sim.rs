//! A short, fixed share of what `hapax-sim` runs at length, and the proof that it can fail.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

use std::ops::Range;

use hapax_sim::broker;
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
    let tally = green(0..250, &Settings::default());
    at_least(
        &tally,
        &[
            ("answers after a fault", 20_000),
            ("accepted", 4_000),
            ("duplicates answered", 2_500),
            ("conflicts", 200),
            ("done", 3_000),
            ("redeliveries", 800),
            ("leases lost", 1_000),
            ("answers lost", 1_500),
            ("restarts", 300),
            ("checkpoints", 80),
            ("crashes", 50),
            ("kills", 150),
            ("sync errors", 15),
            ("writes without room", 10),
            ("refused for room", 100),
            ("bits flipped", 20),
            ("damage refused", 10),
            ("clock jumps", 60),
            ("takeovers", 30),
            ("zombies refused", 15),
            ("queues created", 500),
            ("queues changed", 200),
            ("queues deleted", 300),
            ("purges", 100),
            ("receivers woken", 500),
            ("messages given back", 300),
            ("backups", 40),
            ("restores", 10),
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
    assert_eq!(tally.get("sync errors") + tally.get("bits flipped"), 0);
    assert!(tally.get("crashes") <= tally.get("restores"), "a machine is lost for its copy alone");
}

#[test]
fn a_seed_runs_the_same_twice_byte_for_byte() {
    for seed in [3, 11, 17, 29, 47] {
        let settings = Settings { trace: true, ..Settings::default() };
        let (first, second) = (run(seed, &settings), run(seed, &settings));
        assert!(first.trace.len() > 300, "seed {seed} left {} lines", first.trace.len());
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
fn planted_answers_of_an_owner_that_nobody_confirmed_turn_the_suite_red() {
    turns_red(Bug::ReadsUnconfirmed, &[Kind::Takeover], 30);
}

#[test]
fn planted_scan_that_ends_silently_turns_the_suite_red() {
    turns_red(Bug::ScanCut, &[Kind::Power], 30);
}

#[test]
fn planted_key_that_the_rows_have_and_nobody_finds_turns_the_suite_red() {
    turns_red(Bug::KeyMissed, &[Kind::Power], 30);
}

#[test]
fn planted_receive_without_its_bound_turns_the_suite_red() {
    turns_red(Bug::ReceiveUnbounded, &[], 30);
}

#[test]
fn planted_first_part_that_is_not_journaled_turns_the_suite_red() {
    turns_red(Bug::FirstPartLost, &[Kind::Power], 30);
}

#[test]
fn planted_leases_that_are_not_read_back_turn_the_suite_red() {
    turns_red(Bug::LeasesCut, &[Kind::Power], 30);
}

#[test]
fn planted_idle_partition_that_leaves_a_full_disk_alone_turns_the_suite_red() {
    turns_red(Bug::NoRelief, &[Kind::Full], 40);
}

/// Plants a bug in how copies are taken: with copies all the time the checker must notice.
fn turns_copies_red(bug: Bug, seeds: u64) {
    let sound = Settings { copy_every: 60, ..settings(&[]) };
    green(0..seeds, &sound);
    let planted = Settings { bug: Some(bug), ..sound };
    let red = (0..seeds).filter(|seed| run(*seed, &planted).violation.is_some()).count();
    assert!(red > 0, "{bug:?} went unnoticed in {seeds} seeds");
}

#[test]
fn planted_copy_that_pins_the_rows_first_turns_the_suite_red() {
    turns_copies_red(Bug::RowsPinnedFirst, 30);
}

#[test]
fn planted_copy_of_segments_that_are_used_again_turns_the_suite_red() {
    turns_copies_red(Bug::SegmentsNotPinned, 110);
}

/// Runs whole brokers and expects every one of them to be green.
fn green_brokers(seeds: std::ops::Range<u64>, settings: &broker::Settings) -> Tally {
    let mut total = Tally::default();
    for seed in seeds {
        let report = broker::run(seed, settings);
        if let Some(violation) = &report.violation {
            panic!("seed {seed}: {violation}");
        }
        total.merge(&report.tally);
    }
    total
}

#[test]
fn several_partitions_lose_and_double_nothing() {
    let tally = green_brokers(0..300, &broker::Settings::default());
    at_least(
        &tally,
        &[
            ("answers", 20_000),
            ("changes done", 2_000),
            ("changes that waited for another", 300),
            ("crashes of all partitions", 1_000),
            ("crashes during a change", 50),
            ("crashes during a reconciliation", 3),
            ("reconciliations", 50),
            ("emits to another partition", 100),
            ("dead letters handed over", 20),
            ("writers that panicked", 100),
            ("waits", 500),
            ("waiters answered", 500),
            ("waiters passed over", 100),
            ("waiters that left", 500),
            ("queues that somebody waits for", 300),
            ("keys that somebody waits for", 30),
            ("copies", 50),
            ("restores", 20),
        ],
    );
}

/// Plants a bug between the partitions: the checker must notice, in seeds that are green without
/// it. A seed that is red anyway proves nothing about the bug.
fn turns_brokers_red(bug: Bug, seeds: u64) {
    turns_red_by(bug, 0..seeds, &broker::Settings::default());
}

/// The same where copies are taken and restored all the time.
fn turns_restored_brokers_red(bug: Bug, seeds: Range<u64>) {
    let default = broker::Settings::default();
    let sound = broker::Settings { steps: 1_500, crash_every: 300, copy_every: 100, ..default };
    turns_red_by(bug, seeds, &sound);
}

fn turns_red_by(bug: Bug, seeds: Range<u64>, sound: &broker::Settings) {
    let planted = broker::Settings { bug: Some(bug), ..sound.clone() };
    let is_green = |seed: &u64| broker::run(*seed, sound).violation.is_none();
    let green: Vec<u64> = seeds.clone().filter(is_green).collect();
    assert!(
        green.len() as u64 > (seeds.end - seeds.start) / 2,
        "{} of {seeds:?} are green",
        green.len()
    );
    let told = green.into_iter().filter_map(|seed| broker::run(seed, &planted).violation);
    let told: Vec<String> = told.map(|violation| violation.0).collect();
    let noticed = told.iter().filter(|text| !text.starts_with("panicked")).count();
    assert!(noticed > 0, "{bug:?} went unnoticed in {seeds:?}: {told:?}");
}

#[test]
fn planted_route_that_is_known_late_turns_the_brokers_red() {
    turns_brokers_red(Bug::SpreadLate, 60);
}

#[test]
fn planted_follower_that_is_not_told_turns_the_brokers_red() {
    turns_brokers_red(Bug::FollowerNotTold, 20);
}

#[test]
fn planted_emit_that_is_confirmed_early_turns_the_brokers_red() {
    turns_brokers_red(Bug::RelayConfirmedEarly, 200);
}

#[test]
fn planted_emit_that_is_dropped_when_its_queue_refuses_it_turns_the_brokers_red() {
    turns_brokers_red(Bug::RefusedDropped, 100);
}

#[test]
fn planted_list_that_forgets_emits_while_it_is_copied_turns_the_brokers_red() {
    turns_restored_brokers_red(Bug::ConfirmedWhileCopied, 0..120);
}

#[test]
fn planted_emits_that_leave_before_partitions_agree_turn_the_brokers_red() {
    turns_restored_brokers_red(Bug::EmitsLeaveEarly, 4_280..4_300);
}

#[test]
fn planted_leader_that_is_copied_first_turns_the_brokers_red() {
    turns_restored_brokers_red(Bug::LeaderCopiedFirst, 0..100);
}

#[test]
fn planted_fences_that_partitions_share_turn_the_brokers_red() {
    turns_brokers_red(Bug::FencesShared, 20);
}

#[test]
fn planted_batches_that_the_journal_refuses_turn_the_brokers_red() {
    turns_brokers_red(Bug::JournalTakesLess, 20);
}

#[test]
fn planted_partition_that_is_made_anew_turns_the_brokers_red() {
    turns_brokers_red(Bug::StoreMadeAnew, 20);
}

#[test]
fn k11_data_that_is_opened_with_another_recipe_is_noticed() {
    turns_brokers_red(Bug::RecipeChanged, 20);
}

#[test]
fn planted_wake_that_is_lost_turns_the_brokers_red() {
    turns_brokers_red(Bug::WakeLost, 100);
}

#[test]
fn planted_waiter_that_is_passed_over_turns_the_brokers_red() {
    turns_brokers_red(Bug::PassedOver, 200);
}

#[test]
fn planted_end_of_a_key_that_is_not_told_turns_the_brokers_red() {
    turns_brokers_red(Bug::EndLost, 500);
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
    let tally = green(2_000..2_060, &settings(&[Kind::Power]));
    at_least(
        &tally,
        &[("crashes", 100), ("sectors lost", 500), ("writes torn", 5), ("accepted", 2_000)],
    );
}

#[test]
fn a5_failed_syncs_and_writes_stop_the_partition_and_lose_nothing() {
    let tally = green(5_000..5_060, &settings(&[Kind::Io]));
    at_least(
        &tally,
        &[("sync errors", 60), ("write errors", 30), ("read errors", 30), ("done", 1_200)],
    );
}

#[test]
fn a6_a_full_disk_refuses_sends_and_settles_on() {
    let tally = green(6_000..6_060, &settings(&[Kind::Full]));
    at_least(&tally, &[("refused for room", 300), ("writes without room", 15), ("done", 1_200)]);
    at_least(&tally, &[("disks filled by sends", 15), ("disks that recovered", 15)]);
}

#[test]
fn a13_a14_a_clock_that_is_set_ends_no_key_and_no_lease_early() {
    // Every lease and every retention is checked by partition time, and partition time against
    // the monotonic clock.
    let tally = green(14_000..14_060, &settings(&[Kind::Clock, Kind::Power]));
    at_least(&tally, &[("clock jumps", 150), ("restarts", 80), ("redeliveries", 250)]);
}
