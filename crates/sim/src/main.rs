//! `hapax-sim`: runs seeds on all cores and reports the results.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks by printing")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Parser;
use hapax_sim::faults::{Choice, Tally};
use hapax_sim::run::{Report, Settings, run};
use hapax_sim::{broker, cluster};
use indicatif::{ProgressBar, ProgressStyle};

/// Simulates a partition of Hapax on a disk that fails.
#[derive(Debug, Parser)]
#[command(name = "hapax-sim", version)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Run this seed alone.
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of each run, before it is drained.
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// all, power, io, full, rot, clock, takeover or none.
    #[arg(long, default_value = "all", value_parser = parse_faults)]
    faults: Choice,
    /// Run whole brokers: several partitions with the engine's routing, changes and relays.
    #[arg(long)]
    broker: bool,
    /// Run nodes of a cluster on a model of PostgreSQL, with the store that ships.
    #[arg(long, conflicts_with = "broker")]
    cluster: bool,
    /// Go on after a seed that fails, and list all that do.
    #[arg(long)]
    keep_going: bool,
    /// Print everything that happened (with --seed).
    #[arg(long)]
    trace: bool,
}

fn parse_faults(text: &str) -> Result<Choice, String> {
    Choice::parse(text)
        .ok_or_else(|| "one of all, power, io, full, rot, clock, takeover, none".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = Settings {
        steps: arguments.steps,
        faults: arguments.faults.clone(),
        trace: arguments.trace && arguments.seed.is_some(),
        ..Settings::default()
    };
    match arguments.seed {
        Some(seed) => run_one(seed, &settings, &arguments),
        None => {
            // A panic of the code under test is reported as a violation, with its seed.
            std::panic::set_hook(Box::new(|_| {}));
            run_many(&settings, &arguments)
        }
    }
}

fn run_one(seed: u64, settings: &Settings, arguments: &Arguments) -> ExitCode {
    let report = run_seed(seed, settings, arguments);
    for line in &report.trace {
        println!("{line}");
    }
    if let Some(failure) = told(&report, arguments) {
        eprintln!("{failure}");
        return ExitCode::FAILURE;
    }
    print_tally(&report.tally);
    println!("seed {seed}: nothing lost, nothing doubled");
    ExitCode::SUCCESS
}

fn run_seed(seed: u64, settings: &Settings, arguments: &Arguments) -> Report {
    let crashes = arguments.faults != Choice::These(Vec::new());
    if arguments.cluster {
        let (steps, trace, bug) = (settings.steps, settings.trace, settings.bug);
        return cluster::run(seed, &cluster::Settings { steps, faults: crashes, bug, trace });
    }
    if !arguments.broker {
        return run(seed, settings);
    }
    let default = broker::Settings::default();
    let settings = broker::Settings {
        steps: settings.steps,
        crash_every: if crashes { default.crash_every } else { 0 },
        trace: settings.trace,
        ..default
    };
    broker::run(seed, &settings)
}

fn run_many(settings: &Settings, arguments: &Arguments) -> ExitCode {
    let bar = ProgressBar::new(arguments.seeds);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta}")
    {
        bar.set_style(style);
    }
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new((Tally::default(), Vec::<Report>::new(), 0));
    let begun = Instant::now();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= arguments.seeds {
                return;
            }
            let report = run_seed(arguments.start + place, settings, arguments);
            bar.inc(1);
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.0.merge(&report.tally);
            total.2 += 1;
            if report.violation.is_some() {
                failed.store(!arguments.keep_going, Ordering::Relaxed);
                total.1.push(report);
            }
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    bar.finish_and_clear();
    let (tally, mut failures, done) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    print_tally(&tally);
    let per_second = done as f64 / begun.elapsed().as_secs_f64();
    println!("{done} seeds, {per_second:.0} seeds per second");
    failures.sort_by_key(|report| report.seed);
    for failure in failures.iter().filter_map(|report| told(report, arguments)) {
        eprintln!("{failure}");
    }
    if !failures.is_empty() {
        eprintln!("\n{} of {done} seeds failed", failures.len());
        return ExitCode::FAILURE;
    }
    println!("nothing lost, nothing doubled");
    ExitCode::SUCCESS
}

/// The violation, and the command that replays it.
fn told(report: &Report, arguments: &Arguments) -> Option<String> {
    let violation = report.violation.as_ref()?;
    let mut command = format!("cargo run --release -p hapax-sim -- --seed {} --trace", report.seed);
    if arguments.broker {
        command += " --broker";
    }
    if arguments.cluster {
        command += " --cluster";
    }
    if arguments.steps != Settings::default().steps {
        command += &format!(" --steps {}", arguments.steps);
    }
    if arguments.faults != Choice::Drawn {
        command += &format!(" --faults {}", arguments.faults);
    }
    Some(format!("\nseed {} failed: {violation}\n\nreplay it: {command}", report.seed))
}

fn print_tally(tally: &Tally) {
    for (what, count) in tally.entries() {
        println!("{count:>14}  {what}");
    }
}
