//! The disk store on the simulated disk: crashes, kills, failing and lying devices, full disks and
//! damage, thousands of short runs each. A failing run prints its seed; run it again alone with
//! `HAPAX_SEED=<seed> cargo test -p hapax-sim --test store <name>`.

mod model;
mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_sim::SimDisk;
use hapax_sim::volume::Trigger;
use hapax_store::Room;

use model::{Verdict, ensure};
use rig::{Allowed, End, Progress, Rig};

/// Runs a scenario for many seeds and reports those that fail; then `proof` says whether all of
/// them together really did and suffered what they are about. `HAPAX_SEED` runs one seed alone and
/// `HAPAX_SEEDS` another number of them, both without the proof.
fn for_seeds(
    count: u64,
    scenario: impl Fn(u64) -> Verdict<Summary>,
    proof: impl Fn(&Summary) -> bool,
) {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    if let Some(seed) = number("HAPAX_SEED") {
        let ended = scenario(seed);
        assert!(ended.is_ok(), "seed {seed}: {ended:?}");
        return;
    }
    let wanted = number("HAPAX_SEEDS");
    let mut all = Summary::default();
    let mut failures = Vec::new();
    for seed in 0..wanted.unwrap_or(count) {
        match catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            Ok(Ok(summary)) => all.add(summary),
            Ok(Err(problem)) => failures.push(format!("seed {seed}: {problem}")),
            Err(_) => failures.push(format!("seed {seed}: a panic, told above")),
        }
    }
    let failed = failures.len();
    failures.truncate(5);
    assert!(failed == 0, "{failed} seeds failed, the first being\n{}", failures.join("\n"));
    assert!(wanted.is_some() || proof(&all), "too little happened: {all:?}");
}

/// What all runs of a scenario did and suffered together.
#[derive(Clone, Copy, Debug, Default)]
struct Summary {
    progress: Progress,
    crashes: u64,
    kills: u64,
    sectors_lost: u64,
    writes_torn: u64,
    names_lost: u64,
    errors: u64,
    without_room: u64,
    damaged: u64,
}

impl Summary {
    fn of(rig: &Rig) -> Self {
        let counters = rig.disk.counters();
        Self {
            progress: rig.progress,
            crashes: counters.crashes,
            kills: counters.kills,
            sectors_lost: counters.sectors_lost,
            writes_torn: counters.writes_torn,
            names_lost: counters.names_lost,
            errors: counters.sync_errors
                + counters.write_errors
                + counters.read_errors
                + counters.names_errors,
            without_room: counters.writes_without_room,
            damaged: counters.bits_flipped + counters.writes_misdirected,
        }
    }

    fn add(&mut self, other: Self) {
        self.progress.add(other.progress);
        self.crashes += other.crashes;
        self.kills += other.kills;
        self.sectors_lost += other.sectors_lost;
        self.writes_torn += other.writes_torn;
        self.names_lost += other.names_lost;
        self.errors += other.errors;
        self.without_room += other.without_room;
        self.damaged += other.damaged;
    }
}

/// Several lives, each ended in another way, and a last one that must find everything.
fn lives(rig: &mut Rig, set_faults: impl Fn(&mut Rig)) -> Verdict {
    for _ in 0..rig.random.between(1, 5) {
        set_faults(rig);
        let steps = rig.random.between(1, 150);
        let mut end = rig.open()?;
        if end == End::Alive {
            end = rig.live(steps)?;
        }
        if end == End::Alive {
            match rig.random.below(8) {
                0 => end = rig.close()?,
                1 | 2 => end = rig.kill(),
                _ => end = rig.crash(),
            }
        }
        if end != End::Closed && rig.random.one_in(2) {
            // After a kill or a stop the power may go too, before anybody recovers.
            rig.disk.crash();
        }
    }
    rig.disk.heal();
    ensure!(rig.open()? == End::Alive, "the last open failed");
    ensure!(rig.settle()? == End::Alive, "the last life failed");
    let (acknowledged, last) = (rig.model.acknowledged, rig.model.last());
    ensure!(acknowledged == last, "settled at batch {acknowledged} of {last}");
    ensure!(rig.model.started.is_none(), "a checkpoint never ends");
    ensure!(rig.check_everything()? == End::Alive, "the last check failed");
    ensure!(rig.close()? == End::Closed, "the last close failed");
    Ok(())
}

/// The power goes, or the process is killed, at some operation.
fn interrupt(rig: &mut Rig) {
    let count = rig.random.between(1, 120);
    let trigger = if rig.random.share(3, 4) { Trigger::nth(count) } else { Trigger::never() };
    let power = rig.random.share(3, 4);
    rig.disk.faults(|faults| {
        faults.power_cut = if power { trigger.clone() } else { Trigger::never() };
        faults.kill = if power { Trigger::never() } else { trigger };
    });
}

fn crash_scenario(seed: u64) -> Verdict<Summary> {
    let mut rig = Rig::new(seed);
    lives(&mut rig, interrupt)?;
    Ok(Summary::of(&rig))
}

#[test]
fn what_was_acknowledged_survives_crashes_and_kills_at_any_point() {
    for_seeds(3000, crash_scenario, |all| {
        let done = all.progress;
        all.crashes > 5000
            && all.kills > 1000
            && all.sectors_lost > 3000
            && all.writes_torn > 200
            && all.names_lost > 1000
            && done.acknowledged > 50_000
            && done.checkpoints > 5000
            && done.merge_steps > 20_000
            && done.buckets_dropped > 1000
    });
}

/// One life with the power cut at the `cut`-th operation, and the next one. `None` where the life
/// was over before.
fn cut_scenario(seed: u64, cut: u64) -> Verdict<Option<Summary>> {
    let mut rig = Rig::new(seed);
    rig.disk.faults(|faults| faults.power_cut = Trigger::nth(cut));
    let mut end = rig.open()?;
    if end == End::Alive {
        end = rig.live(120)?;
    }
    if end == End::Alive {
        end = rig.settle()?;
    }
    if end == End::Alive {
        end = rig.close()?;
    }
    rig.disk.heal();
    ensure!(rig.open()? == End::Alive, "not opened");
    ensure!(rig.settle()? == End::Alive, "not settled");
    ensure!(rig.check_everything()? == End::Alive, "not checked");
    Ok((end == End::Crashed).then(|| Summary::of(&rig)))
}

#[test]
fn a_short_life_survives_a_power_cut_at_every_single_operation() {
    let scenario = |seed| {
        let mut all = Summary::default();
        for cut in 1.. {
            match cut_scenario(seed, cut).map_err(|problem| format!("cut {cut}: {problem}"))? {
                Some(summary) => all.add(summary),
                None => break,
            }
        }
        Ok(all)
    };
    for_seeds(10, scenario, |all| all.crashes > 1000);
}

fn errors(rig: &mut Rig) {
    rig.allowed = Allowed { io_errors: true, ..Allowed::default() };
    rig.disk.faults(|faults| {
        faults.sync_error = Trigger::one_in(60);
        faults.write_error = Trigger::one_in(100);
        faults.names_error = Trigger::one_in(60);
        faults.read_error = Trigger::one_in(300);
    });
}

fn error_scenario(seed: u64) -> Verdict<Summary> {
    let mut rig = Rig::new(seed);
    for _ in 0..3 {
        errors(&mut rig);
        if rig.open()? == End::Alive && rig.live(100)? == End::Alive {
            rig.kill();
        }
        // The power goes as well, so that the cache cannot show what the device lost.
        rig.disk.crash();
    }
    rig.disk.heal();
    lives(&mut rig, |_| {})?;
    Ok(Summary::of(&rig))
}

#[test]
fn after_an_io_error_the_store_stops_and_recovers_what_was_acknowledged() {
    for_seeds(1000, error_scenario, |all| {
        let done = all.progress;
        all.errors > 1000 && done.stopped_by_errors > 1000 && done.acknowledged > 50_000
    });
}

fn restart_scenario(seed: u64) -> Verdict<Summary> {
    let mut rig = Rig::new(seed);
    errors(&mut rig);
    if rig.open()? == End::Alive && rig.live(100)? == End::Alive {
        rig.kill();
    }
    // The process is started again on the same machine, answers from what it read, and only then
    // does the power go.
    rig.disk.heal();
    ensure!(rig.open()? == End::Alive, "not opened after the error");
    rig.crash();
    lives(&mut rig, |_| {})?;
    Ok(Summary::of(&rig))
}

#[test]
fn a_restart_after_a_failed_sync_does_not_trust_the_page_cache() {
    for_seeds(1000, restart_scenario, |all| {
        all.errors > 500 && all.progress.stopped_by_errors > 500
    });
}

fn full_disk_scenario(seed: u64) -> Verdict<Summary> {
    let mut rig = Rig::new(seed);
    rig.allowed = Allowed { claim_without_room: true, ..Allowed::default() };
    ensure!(rig.open()? == End::Alive, "not opened");
    rig.live(60)?;
    for _ in 0..3 {
        let room = rig.random.below(80 << 10);
        rig.disk.set_capacity(rig.disk.used_bytes() + room);
        ensure!(rig.live(100)? == End::Alive, "a full disk ended the store");
        let mut end = End::Alive;
        if rig.random.one_in(3) {
            rig.crash();
            end = rig.open()?;
        }
        rig.disk.set_capacity(1 << 30);
        if end == End::Refused {
            ensure!(rig.open()? == End::Alive, "not opened with room again");
        }
        ensure!(rig.settle()? == End::Alive, "the store did not survive");
        ensure!(rig.room() == Room::Free, "there is room again");
        let (acknowledged, last) = (rig.model.acknowledged, rig.model.last());
        ensure!(acknowledged == last, "settled at batch {acknowledged} of {last}");
        ensure!(rig.model.started.is_none(), "a checkpoint never ends");
        ensure!(rig.check_everything()? == End::Alive, "not checked");
    }
    rig.crash();
    lives(&mut rig, |_| {})?;
    Ok(Summary::of(&rig))
}

#[test]
fn a_full_disk_refuses_growth_and_recovers_when_there_is_room() {
    for_seeds(700, full_disk_scenario, |all| {
        all.without_room > 5000 && all.progress.low > 10_000 && all.progress.checkpoints > 5000
    });
}

/// After a clean close, with one bit inverted: all is found as it was, or the store refuses.
fn flip_scenario(seed: u64) -> Verdict<Summary> {
    let mut rig = Rig::new(seed);
    ensure!(rig.open()? == End::Alive, "not opened");
    ensure!(rig.live(200)? == End::Alive, "not alive");
    ensure!(rig.close()? == End::Closed, "not closed");
    let flip = rig.disk.flip_any_bit("*");
    let before = contents(&rig.disk);
    rig.allowed = Allowed { damage: true, ..Allowed::default() };
    let at = |problem| format!("{problem}, after {flip:?}");
    if rig.open().map_err(at)? == End::Refused {
        // What a crash or a close left of an unfinished run belongs to nobody and may be removed.
        let after = contents(&rig.disk);
        let same = before.iter().all(|file| after.contains(file) || file.0.starts_with("run-"));
        let opened = rig.progress.lives > 1;
        ensure!(opened || same, "a store that refused to open changed its files, after {flip:?}");
    } else if rig.settle().map_err(at)? == End::Alive
        && rig.check_everything().map_err(at)? == End::Alive
    {
        rig.close()?;
    }
    Ok(Summary::of(&rig))
}

fn contents(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.names().into_iter();
    names.map(|name| (name.clone(), disk.contents(&name).unwrap_or_default())).collect()
}

#[test]
fn a_flipped_bit_is_refused_or_harmless_but_never_believed() {
    for_seeds(1200, flip_scenario, |all| {
        all.damaged > 1000 && all.progress.refused_for_damage > 300
    });
}

fn misdirection_scenario(seed: u64) -> Verdict<Summary> {
    let mut rig = Rig::new(seed);
    rig.allowed = Allowed { damage: true, ..Allowed::default() };
    ensure!(rig.open()? == End::Alive, "not opened");
    let nth = rig.random.between(1, 80);
    rig.disk.faults(|faults| faults.misdirected_write = Trigger::nth(nth));
    // A store that notices meanwhile stops. The seal of a close proves what was written before
    // it; without one, a last write that went astray looks like one that a power cut tore.
    let lived = rig.live(150)?;
    rig.disk.heal();
    if lived == End::Alive && rig.close()? == End::Closed && rig.open()? == End::Alive {
        rig.settle()?;
        rig.check_everything()?;
    }
    Ok(Summary::of(&rig))
}

#[test]
fn a_misdirected_write_is_refused_or_harmless_but_never_believed() {
    for_seeds(1000, misdirection_scenario, |all| {
        all.damaged > 200 && all.progress.refused_for_damage > 100
    });
}

#[test]
fn one_seed_is_one_run_byte_for_byte() {
    let trace = |seed| {
        let mut rig = Rig::new(seed);
        rig.disk.record(100_000);
        lives(&mut rig, interrupt).unwrap();
        rig.disk.trace()
    };
    for seed in 0..20 {
        let (one, two) = (trace(seed), trace(seed));
        let differing = one.lines.iter().zip(&two.lines).find(|(one, two)| one != two);
        assert_eq!(differing, None, "seed {seed}");
        assert_eq!((one.count, one.checksum), (two.count, two.checksum), "seed {seed}");
    }
}

#[test]
fn the_checks_notice_a_disk_that_lies_about_syncs() {
    for files in ["journal-*", "run-*", "MANIFEST*", "*"] {
        let lie = |rig: &mut Rig| {
            interrupt(rig);
            rig.disk.faults(|faults| {
                faults.lying_sync = match files {
                    "*" => Trigger::one_in(1),
                    files => Trigger::one_in(1).on(files),
                }
            });
        };
        let noticed = (0..300).filter(|seed| lives(&mut Rig::new(*seed), lie).is_err()).count();
        assert!(noticed > 30, "lies about {files} were noticed by {noticed} of 300 seeds");
    }
}
