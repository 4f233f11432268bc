//! Measures one partition of Hapax, synced, with batches like those of a writer.
//!
//! Absolute times mean little on a busy machine, so every figure is compared with a raw writer of
//! about as many bytes in as many batches, or with the same lives on an LSM, measured in the same
//! run.
//!
//! `cargo run --release -p hapax-bench -- all` prints the tables of docs/benchmarks.md.

mod growth;
mod lives;
mod peer;
mod recovery;
mod rig;
mod timed;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use hapax_bench::report;
use hapax_bench::server::Directory;
use serde::Serialize;

/// Measures one partition of Hapax.
#[derive(Debug, Parser)]
#[command(name = "hapax-bench", version, about)]
struct Arguments {
    /// Print one JSON object per measurement instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// Where to put the data. It is removed afterwards. [default: a temporary directory here]
    #[arg(long, global = true)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Whole lives per second and their CPU, beside a raw writer and fjall; deduplication's cost.
    Lives(lives::Arguments),
    /// One continuous load of many keys: rate, memory, disk, stalls, look-ups.
    Growth(growth::Arguments),
    /// Kill -9 with unfinished messages, and open again.
    Recovery(recovery::Arguments),
    /// All of them, with their defaults.
    All,
    /// The process that `recovery` kills.
    #[command(hide = true)]
    Victim(recovery::Victim),
}

/// What `all` runs: recovery with nothing done, and with much.
const ALL: [&[&str]; 4] =
    [&["lives"], &["recovery"], &["recovery", "--done", "300000"], &["growth"]];

fn main() -> anyhow::Result<()> {
    hapax_allocator::keep_freed_memory();
    let arguments = Arguments::parse();
    let report = Report { json: arguments.json };
    let place = arguments.dir.unwrap_or_else(|| PathBuf::from("."));
    measure(&arguments.what, &place, &report)
}

fn measure(what: &What, place: &Path, report: &Report) -> anyhow::Result<()> {
    let directory = || Directory::create(place, "bench");
    match what {
        What::Lives(arguments) => lives::run(arguments, directory()?.path(), report),
        What::Growth(arguments) => growth::run(arguments, directory()?.path(), report),
        What::Recovery(arguments) => recovery::run(arguments, directory()?.path(), report),
        What::Victim(arguments) => recovery::victim(arguments),
        What::All => ALL.iter().try_for_each(|words| {
            let one = Arguments::try_parse_from([&["hapax-bench"], *words].concat())?;
            measure(&one.what, place, report)
        }),
    }
}

/// Prints measurements: a table for people, JSON for programs.
#[derive(Clone, Copy, Debug)]
struct Report {
    json: bool,
}

impl Report {
    /// One measurement: its name, its fields as JSON, its lines for people.
    #[expect(clippy::print_stdout, reason = "the program's output")]
    fn print(&self, name: &str, fields: &impl Serialize, lines: &[[String; 2]]) {
        if self.json {
            let fields = serde_json::to_value(fields).unwrap_or_default();
            println!("{}", serde_json::json!({ "measurement": name, "values": fields }));
            return;
        }
        println!("\n{name}");
        for line in report::table(lines, 2) {
            println!("  {line}");
        }
    }
}

fn line(label: &str, value: impl Into<String>) -> [String; 2] {
    [label.to_owned(), value.into()]
}
