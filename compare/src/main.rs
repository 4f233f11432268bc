//! The same lives on Hapax and its peers.
mod disk;
mod install;
mod load;
mod redis;
mod report;
mod server;
mod system;

use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use load::Load;
use redis::Redis;
use report::{Report, Row, grouped};
use system::{Options, System};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The most lives of a run that only warms a server up.
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
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    count: u64,
    /// Runs of each system, in turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Bytes of a body; may be given several times.
    #[arg(long, default_values_t = [100, 1024], value_parser = clap::value_parser!(u32).range(8..=1_048_576))]
    size: Vec<u32>,
    /// Only these systems; may be given several times.
    #[arg(long, value_name = "SYSTEM")]
    only: Vec<String>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    interrupt_on_signal()?;
    let mut systems = choose(&arguments)?;
    if disk::is_memory(&arguments.options.dir)? {
        note("--dir is in memory: syncing costs nothing there, so the figures mean little");
    }
    let report = measure(&arguments, &mut systems)?;
    report.print(arguments.json)?;
    Ok(())
}

fn measure(arguments: &Arguments, systems: &mut [Box<dyn System>]) -> Result<Report> {
    let mut report = Report { count: arguments.count, rows: Vec::new(), disk: Vec::new() };
    for &size in &arguments.size {
        for system in systems.iter() {
            report.rows.push(Row {
                system: system.name(),
                description: system.describe(),
                size: usize::try_from(size)?,
                lives_per_s: Vec::new(),
                median_lives_per_s: 0.0,
                against_best_peer: None,
                is_peer: true,
            });
        }
    }
    for system in systems.iter_mut() {
        let description = system.describe();
        note(&format!("starting {}", system.name()));
        system.start().with_context(|| format!("{description} did not start"))?;
        let count = arguments.count.min(WARM_UP_LIVES_MAX);
        system.run(Load { count, size: 100, seed: 0 })?;
    }
    for round in 1..=arguments.runs {
        let syncs = disk::measure(&arguments.options.dir)?;
        note(&format!(
            "round {round} of {}: the disk syncs 64 KiB in {:.2} ms (p99 {:.2})",
            arguments.runs, syncs.p50_ms, syncs.p99_ms
        ));
        report.disk.push(syncs);
        for row in &mut report.rows {
            let Some(system) = systems.iter_mut().find(|system| system.name() == row.system) else {
                continue;
            };
            let seed = u64::from(round);
            let load = Load { count: arguments.count, size: row.size, seed };
            let took = system
                .run(load)
                .with_context(|| format!("{} failed in round {round}", system.describe()))?;
            let rate = row.add(load.count, took);
            note(&format!(
                "round {round} of {}: {:>4} bytes, {:<14} {:>9} lives/s",
                arguments.runs,
                row.size,
                row.system,
                grouped(rate)
            ));
        }
    }
    report.compare();
    Ok(report)
}

fn choose(arguments: &Arguments) -> Result<Vec<Box<dyn System>>> {
    let options = &arguments.options;
    let mut systems: Vec<Box<dyn System>> = vec![
        Box::new(Redis::new(false, options)),
        Box::new(Redis::new(true, options)),
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
