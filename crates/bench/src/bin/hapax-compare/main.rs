//! The same lives on Hapax, on Redis Streams and on a table of PostgreSQL: a program to compare
//! them by, not a part of what is shipped.
//!
//! A life is a send, a delivery and a settle, each confirmed after it was synced. The systems take
//! turns, because the conditions on a machine change; the result is the median of each figure and
//! its ratio to the others. docs/compare.md describes how fair the comparison is.

mod duplicates;
mod hapax;
mod install;
mod postgres;
mod redis;
mod system;
mod table;
mod takeover;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use hapax_bench::disk::{self, Probe, Syncs};
use hapax_bench::{Messages, interrupt};

use hapax::{Binary, Place};
use system::{Load, Measured, Options, Running, System};
use table::{Disk, Report, Row};

/// The most lives of the run that warms a server up.
const WARM_UP_LIVES_MAX: u64 = 100_000;

/// The disk probe before each round.
const PROBE: Probe = Probe { writes: 200, write_bytes: 64 << 10, pause: None };

/// Lives the same lives (send, deliver, settle, each confirmed after it was synced) on several
/// systems in turns, verifies every message, and prints a table with the ratios.
///
/// Redis and PostgreSQL are installed from Debian's packages where they are missing. All servers
/// run on free ports of this machine, with data of their own that is removed afterwards.
#[derive(Debug, Parser)]
#[command(name = "hapax-compare", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Lives per run.
    #[arg(long, default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    count: u64,
    /// The most messages that are sent and not yet settled; above it, producers wait for workers.
    #[arg(long, default_value_t = 32_768)]
    #[arg(value_parser = clap::value_parser!(u64).range(10_000..))]
    backlog: u64,
    /// Runs of each system, in turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Bytes of a body; may be given several times.
    #[arg(long, default_values_t = [100, 1_024])]
    #[arg(value_parser = clap::value_parser!(u32).range(8..=1_048_576))]
    size: Vec<u32>,
    /// Only this system; may be given several times. One of hapax, hapax-postgres,
    /// redis, redis-keys, postgres and postgres-keys, or the name of a binary of Hapax. Only if
    /// named: hapax-postgres-standby and hapax-postgres-snapshot.
    #[arg(long, value_name = "SYSTEM")]
    only: Vec<String>,
    /// A release binary of Hapax [default: the one beside this program]. May be given several
    /// times, with a name each: they take turns like the other systems.
    #[arg(long, value_name = "[NAME=]PATH", value_parser = Binary::parse)]
    hapax: Vec<Binary>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: Options,
}

/// What else there is to measure.
#[derive(Debug, Subcommand)]
enum What {
    Takeover(takeover::Arguments),
    Duplicates(duplicates::Arguments),
}

fn main() -> ExitCode {
    hapax_allocator::keep_freed_memory();
    let arguments = Arguments::parse();
    let measured = interrupt::on_signal().and_then(|()| match &arguments.what {
        Some(What::Takeover(takeover)) => takeover::run(takeover, &arguments.options),
        Some(What::Duplicates(duplicates)) => duplicates::run(duplicates, &arguments.options),
        None => compare(&arguments),
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("hapax-compare: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    let systems = choose(arguments)?;
    if disk::is_memory(&arguments.options.dir)? {
        note("--dir is in memory: syncing costs nothing there, so the figures mean little");
    }
    let mut report = Report { count: arguments.count, rows: Vec::new(), disk: Vec::new() };
    for &size in &arguments.size {
        let size = usize::try_from(size)?;
        report.rows.extend(systems.iter().map(|system| Row::new(system, size)));
    }
    let running = start(arguments, &systems)?;
    for round in 1..=arguments.runs {
        measure(arguments, round, &running, &mut report)?;
    }
    report.compare();
    report.print(arguments.json)?;
    Ok(())
}

/// All of them, or those that were asked for.
fn choose(arguments: &Arguments) -> Result<Vec<System>> {
    let on_disk = |binary: Binary| System::Hapax(binary, Place::Directory);
    let mut systems: Vec<System> = arguments.hapax.iter().cloned().map(on_disk).collect();
    if systems.is_empty() {
        systems.push(on_disk(Binary::beside_this()?));
    }
    systems.extend(on_postgres(arguments)?);
    systems.extend([false, true].map(|remembers_keys| System::Redis { remembers_keys }));
    systems.extend([false, true].map(|remembers_keys| System::Postgres { remembers_keys }));
    let names: Vec<&str> = systems.iter().map(System::name).collect();
    for (place, name) in names.iter().enumerate() {
        let is_new = !names.iter().take(place).any(|other| other == name);
        ensure!(is_new, "--hapax: there are two systems called {name}");
    }
    for only in &arguments.only {
        let is_known = only == hapax::NAME || names.contains(&only.as_str());
        ensure!(is_known, "--only {only}: there is {}", names.join(", "));
    }
    if !arguments.only.is_empty() {
        systems.retain(|system| {
            let is_disk = matches!(system, System::Hapax(_, Place::Directory));
            let is_meant = |only: &str| only == hapax::NAME && is_disk;
            arguments.only.iter().any(|only| only == system.name() || is_meant(only))
        });
    }
    Ok(systems)
}

/// Hapax on PostgreSQL, of every binary that was named, and its variants that were asked for.
fn on_postgres(arguments: &Arguments) -> Result<Vec<System>> {
    let is_asked = |name: &str| arguments.only.iter().any(|only| only == name);
    let mut systems = Vec::new();
    let variants = [
        (Place::Postgres, hapax::ON_POSTGRES),
        (Place::WithStandby, hapax::WITH_STANDBY),
        (Place::WithSnapshot, hapax::WITH_SNAPSHOT),
    ];
    for (place, name) in variants {
        if place != Place::Postgres && !is_asked(name) {
            continue;
        }
        let path = Binary::beside_this()?.path;
        let first = arguments.hapax.first().map_or(path, |binary| binary.path.clone());
        systems.push(System::Hapax(Binary { name: name.to_owned(), path: first }, place));
    }
    // Further binaries, such as an older one, under their own names.
    for binary in arguments.hapax.iter().skip(1) {
        let name = format!("{}-postgres", binary.name);
        if is_asked(&name) {
            let binary = Binary { name, path: binary.path.clone() };
            systems.push(System::Hapax(binary, Place::Postgres));
        }
    }
    Ok(systems)
}

/// Starts every server and warms it up, so that its files and memory are allocated.
fn start(arguments: &Arguments, systems: &[System]) -> Result<Vec<Box<dyn Running>>> {
    let mut all = Vec::new();
    for system in systems {
        note(&format!("starting {}", system.name()));
        let running = system
            .start(&arguments.options)
            .with_context(|| format!("{} did not start", system.describe()))?;
        let size = arguments.size.iter().copied().max().unwrap_or(0);
        let count = arguments.count.min(WARM_UP_LIVES_MAX);
        let messages = Messages::new(count, usize::try_from(size)?, 0);
        run(running.as_ref(), &Load { messages, backlog: arguments.backlog })
            .with_context(|| format!("{} failed", system.describe()))?;
        all.push(running);
    }
    Ok(all)
}

/// One run of each system at each size.
fn measure(
    arguments: &Arguments,
    round: u16,
    systems: &[Box<dyn Running>],
    report: &mut Report,
) -> Result<()> {
    let head = format!("round {round} of {}", arguments.runs);
    let disk = measure_disk(arguments)?;
    note(&format!(
        "{head}: the disk syncs 64 KiB in {:.2} ms, p99 {:.2} ms",
        disk.p50_ms, disk.p99_ms
    ));
    report.disk.push(disk);
    // The rows are all systems in order, once for each size.
    for (row, system) in report.rows.iter_mut().zip(systems.iter().cycle()) {
        let messages = Messages::new(arguments.count, row.size, u64::from(round));
        let load = Load { messages, backlog: arguments.backlog };
        let measured = run(system.as_ref(), &load)
            .with_context(|| format!("{} failed in round {round}", row.description))?;
        row.add(arguments.count, measured);
        note(&format!("{head}: {}", row.last()));
    }
    Ok(())
}

fn measure_disk(arguments: &Arguments) -> Result<Disk> {
    let mut syncs = Syncs::default();
    syncs.measure(&arguments.options.dir, PROBE)?;
    let percentile = |percentile: f64| syncs.percentile_ms(percentile).unwrap_or(0.0);
    Ok(Disk { p50_ms: percentile(50.0), p99_ms: percentile(99.0) })
}

/// One run. Syncs all disks first, and waits until the server is idle afterwards.
fn run(system: &dyn Running, load: &Load) -> Result<Measured> {
    rustix::fs::sync();
    let measured = system.run(load)?;
    system::wait_until_idle(system)?;
    Ok(measured)
}

/// Prints progress to standard error. Standard output is for the result.
#[expect(clippy::print_stderr, reason = "progress is for people")]
fn note(line: &str) {
    eprintln!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(place: &std::path::Path, more: &[&str]) -> Arguments {
        let place = place.to_str().unwrap();
        let own = ["hapax-compare", "--dir", place, "--batch", "50"];
        Arguments::try_parse_from(own.iter().chain(more)).unwrap()
    }

    #[test]
    fn every_peer_lives_a_small_load_and_leaves_nothing_behind() {
        if !install::has_peers() {
            println!("skipped: needs Debian's packages redis-server and postgresql");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let peers = ["redis", "redis-keys", "postgres", "postgres-keys"];
        let only: Vec<&str> = peers.iter().flat_map(|peer| ["--only", *peer]).collect();
        let arguments = arguments(place.path(), &only);
        let systems = choose(&arguments).unwrap();
        assert_eq!(systems.len(), peers.len());
        for system in systems {
            let running = system.start(&arguments.options).unwrap();
            for seed in [1, 2] {
                let messages = Messages::new(3_001, 100, seed);
                running.run(&Load { messages, backlog: 2_000 }).unwrap();
            }
        }
        assert_eq!(place.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_system_that_does_not_exist_is_named_together_with_those_that_do() {
        let arguments = arguments(std::path::Path::new("."), &["--only", "kafka"]);
        let error = choose(&arguments).err().unwrap().to_string();
        assert!(error.contains("kafka") && error.contains("postgres-keys"), "{error}");
    }

    #[test]
    fn binaries_of_hapax_take_turns_under_their_names() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let (old, new) = (format!("old={path}"), format!("new={path}"));
        let names = |more: &[&str]| -> Result<Vec<String>> {
            let arguments = arguments(std::path::Path::new("."), more);
            Ok(choose(&arguments)?.iter().map(|system| system.name().to_owned()).collect())
        };
        let both = ["--hapax", &old, "--hapax", &new];
        let names_with = |more: &[&str]| names(&[&both, more].concat()).unwrap();
        assert_eq!(names_with(&["--only", "hapax"]), ["old", "new"]);
        assert_eq!(names_with(&["--only", "new", "--only", "redis"]), ["new", "redis"]);
        assert_eq!(names_with(&[]).len(), 7);
        let asked = ["--only", "hapax-postgres", "--only", "new-postgres"];
        assert_eq!(names_with(&asked), ["hapax-postgres", "new-postgres"]);
        let redis = format!("redis={path}");
        for twice in [["--hapax", &old, "--hapax", &old], ["--hapax", &redis, "--hapax", &new]] {
            assert!(names(&twice).unwrap_err().to_string().contains("two systems"));
        }
    }
}
