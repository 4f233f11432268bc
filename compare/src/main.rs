//! The same lives on Hapax, on Redis Streams and on a table of PostgreSQL: a program to compare
//! them by, not a part of what is shipped.
//!
//! A life is a send, a delivery and a settle, each confirmed after it was synced. The systems take
//! turns, since the machine's mood changes; all that is kept of a figure is its median and its
//! ratio to the others. docs/compare.md tells what is fair about it and what is not.

mod cpu;
mod disk;
mod hapax;
mod install;
mod load;
mod postgres;
mod redis;
mod report;
mod server;
mod system;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use hapax::Hapax;
use load::Load;
use postgres::Postgres;
use redis::Redis;
use report::{Report, Row};
use system::{Measured, Options, System};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The most lives of the run that warms a server up.
const WARM_UP_LIVES_MAX: u64 = 100_000;

/// Lives the same lives (send, deliver, settle, each confirmed after it was synced) on several
/// systems in turns, verifies every message, and prints a table with the ratios.
///
/// Redis and PostgreSQL are installed from Debian's packages where they are missing. All servers
/// run on free ports of this machine, with data of their own that is removed afterwards.
#[derive(Debug, Parser)]
#[command(name = "hapax-compare", version)]
struct Arguments {
    /// Lives per run.
    #[arg(long, default_value_t = 300_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    count: u64,
    /// Messages that are sent and not yet settled: at so many, producers wait for workers.
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
    /// Only this system; may be given several times. One of hapax, redis, redis-keys, postgres and
    /// postgres-keys.
    #[arg(long, value_name = "SYSTEM")]
    only: Vec<String>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    match compare(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("hapax-compare: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    interrupt_on_signal()?;
    let mut systems = choose(arguments)?;
    if disk::is_memory(&arguments.options.dir)? {
        note("--dir is in memory: syncing costs nothing there, so the figures mean little");
    }
    let mut report = Report { count: arguments.count, rows: Vec::new(), disk: Vec::new() };
    for &size in &arguments.size {
        let size = usize::try_from(size)?;
        report.rows.extend(systems.iter().map(|system| Row::new(system.as_ref(), size)));
    }
    start(arguments, &mut systems)?;
    for round in 1..=arguments.runs {
        measure(arguments, round, &mut systems, &mut report)?;
    }
    report.compare();
    report.print(arguments.json)?;
    Ok(())
}

/// All of them, or those that were asked for.
fn choose(arguments: &Arguments) -> Result<Vec<Box<dyn System>>> {
    let options = &arguments.options;
    let mut systems: Vec<Box<dyn System>> = vec![
        Box::new(Hapax::new(options)),
        Box::new(Redis::new(false, options)),
        Box::new(Redis::new(true, options)),
        Box::new(Postgres::new(false, options)),
        Box::new(Postgres::new(true, options)),
    ];
    let names: Vec<&str> = systems.iter().map(|system| system.name()).collect();
    for wanted in &arguments.only {
        let is_known = names.contains(&wanted.as_str());
        ensure!(is_known, "--only {wanted}: there is {}", names.join(", "));
    }
    if !arguments.only.is_empty() {
        systems.retain(|system| arguments.only.iter().any(|name| name == system.name()));
    }
    Ok(systems)
}

/// Starts every server and warms it up, so that its files and its memory are there.
fn start(arguments: &Arguments, systems: &mut [Box<dyn System>]) -> Result<()> {
    for system in systems {
        note(&format!("starting {}", system.name()));
        let description = system.describe();
        system.start().with_context(|| format!("{description} did not start"))?;
        let size = arguments.size.iter().copied().max().unwrap_or(0);
        let count = arguments.count.min(WARM_UP_LIVES_MAX);
        let backlog = arguments.backlog;
        let load = Load { count, size: usize::try_from(size)?, seed: 0, backlog };
        run(system.as_mut(), load).with_context(|| format!("{description} failed"))?;
    }
    Ok(())
}

/// One run of each system at each size.
fn measure(
    arguments: &Arguments,
    round: u16,
    systems: &mut [Box<dyn System>],
    report: &mut Report,
) -> Result<()> {
    let head = format!("round {round} of {}", arguments.runs);
    let syncs = disk::measure(&arguments.options.dir)?;
    note(&format!(
        "{head}: the disk syncs 64 KiB in {:.2} ms, p99 {:.2} ms",
        syncs.p50_ms, syncs.p99_ms
    ));
    report.disk.push(syncs);
    for row in &mut report.rows {
        let mut matching = systems.iter_mut().filter(|system| system.name() == row.system);
        let system = matching.next().context("a row without its system")?;
        let (count, backlog) = (arguments.count, arguments.backlog);
        let load = Load { count, size: row.size, seed: u64::from(round), backlog };
        let measured = run(system.as_mut(), load)
            .with_context(|| format!("{} failed in round {round}", row.description))?;
        row.add(load.count, measured);
        note(&format!("{head}: {}", row.last()));
    }
    Ok(())
}

/// A run on a quiet machine, as far as that is in our hands.
fn run(system: &mut dyn System, load: Load) -> Result<Measured> {
    rustix::fs::sync();
    let measured = system.run(load)?;
    if let Some(process) = system.process_id() {
        cpu::wait_until_idle(process)?;
    }
    Ok(measured)
}

/// Servers and their data are removed by the one way there is, also when somebody is impatient.
fn interrupt_on_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        load::interrupt();
    });
    Ok(())
}

/// A line about what goes on. Standard output is for the result.
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
        let mut systems = choose(&arguments(place.path(), &only)).unwrap();
        assert_eq!(systems.len(), peers.len());
        for system in &mut systems {
            system.start().unwrap();
            for seed in [1, 2] {
                system.run(Load { count: 3_001, size: 100, seed, backlog: 2_000 }).unwrap();
            }
        }
        drop(systems);
        assert_eq!(place.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_system_that_does_not_exist_is_named_together_with_those_that_do() {
        let arguments = arguments(std::path::Path::new("."), &["--only", "kafka"]);
        let error = choose(&arguments).err().unwrap().to_string();
        assert!(error.contains("kafka") && error.contains("postgres-keys"), "{error}");
    }
}
