//! Measures the heart of Hapax: one partition, synced, in batches as a writer makes them.
//!
//! Absolute times mean little on a busy machine, so every figure stands beside a raw writer of
//! about as many bytes in as many batches, or beside the same lives on an LSM, measured in the
//! same run.
//!
//! `cargo run --release -p hapax-bench -- all` prints the tables of docs/benchmarks.md.

mod growth;
mod lives;
mod load;
mod peer;
mod raw;
mod recovery;
mod report;
mod timed;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let report = report::Report { json: arguments.json };
    let place = arguments.dir.unwrap_or_else(|| PathBuf::from("."));
    let directory = || tempfile::Builder::new().prefix(".hapax-bench-").tempdir_in(&place);
    match arguments.what {
        What::Lives(arguments) => lives::run(&arguments, directory()?.path(), &report),
        What::Growth(arguments) => growth::run(&arguments, directory()?.path(), &report),
        What::Recovery(arguments) => recovery::run(&arguments, directory()?.path(), &report),
        What::Victim(arguments) => recovery::victim(&arguments),
        What::All => {
            lives::run(&Default::default(), directory()?.path(), &report)?;
            for arguments in recovery::Arguments::ALL {
                recovery::run(&arguments, directory()?.path(), &report)?;
            }
            growth::run(&Default::default(), directory()?.path(), &report)
        }
    }
}
