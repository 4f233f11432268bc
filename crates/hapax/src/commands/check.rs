//! `hapax check`: verifies every file of a data directory and reports what it found.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use hapax_server::engine::{self, Data};
use hapax_store::archive::Severity;
use hapax_store::{Lock, OsVolume, Volume, disk};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, Screen, count};
use crate::settings::is_database;

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The data directory of a stopped broker, or of one of its partitions.
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// The findings in one partition.
struct Found {
    directory: PathBuf,
    summary: disk::Summary,
    findings: Vec<Value>,
}

pub(crate) fn run(check: &Check) -> Result<Exit, Failure> {
    let screen = check.output.screen();
    refuse_database(&check.directory)?;
    let mut all = Vec::new();
    for directory in partitions(&check.directory)? {
        let found = one(screen, &directory)?;
        if !screen.is_json() {
            print_found(screen, &found, directory != check.directory)?;
        }
        all.push(found);
    }
    let damages: u64 = all.iter().map(|found| found.summary.damages).sum();
    if screen.is_json() {
        let partitions: Vec<Value> = all.iter().map(shape).collect();
        let summary =
            json!({ "sound": damages == 0, "damages": damages, "partitions": partitions });
        screen.json(&summary)?;
    }
    if damages > 0 {
        let what = format!("{}; nothing was changed", count(damages, "damaged place"));
        let next = "restore a backup: hapax restore BACKUP DIR";
        return Err(Failure::new(Exit::Failure, what).next(next));
    }
    if !screen.is_json() {
        screen.line(format_args!("{} is sound", check.directory.display()))?;
    }
    Ok(Exit::Ok)
}

/// Lists the partitions in a complete data directory. A directory with the marker of a store is a
/// single partition. Changes nothing, and refuses directories that are not data of a broker.
pub(super) fn partitions(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let has = |name| directory.join(name).exists();
    if !has("broker.json") && has(disk::MARKER_NAME) {
        return Ok(vec![directory.to_owned()]);
    }
    Data::partition_paths(directory).map_err(|error| match error {
        engine::Error::NoData(path) => {
            let what = format!("{} is not a data directory of a broker", path.display());
            let next = "name the directory that the broker was started with (--data)";
            Failure::new(Exit::Failure, what).next(next)
        }
        engine::Error::OfNode(path) => of_node(&path),
        other => Failure::new(Exit::Failure, other.to_string()),
    })
}

/// Refuses the directory of a node, which has nothing to check or to copy.
pub(super) fn of_node(directory: &Path) -> Failure {
    let what = format!(
        "{} is the directory of a node, whose data is in PostgreSQL: nothing is in it but a cache",
        directory.display()
    );
    let next = "the database is backed up, restored and checked with its own tools (pg_basebackup, \
                pgBackRest, WAL-G, pg_amcheck), and hapax cluster status shows its nodes";
    Failure::usage(what).next(next)
}

/// Refuses the address of a database where a directory is meant, without showing it.
pub(super) fn refuse_database(directory: &Path) -> Result<(), Failure> {
    if !is_database(directory) {
        return Ok(());
    }
    let what = "data in PostgreSQL is not a directory: the database backs it up and checks it";
    let next = "pg_basebackup, pgBackRest, WAL-G or your service make backups, pg_amcheck and data \
                checksums find damage; a node verifies every batch and every block that it reads";
    Err(Failure::usage(what).next(next))
}

fn one(screen: Screen, directory: &Path) -> Result<Found, Failure> {
    let volume = OsVolume::read_only(directory)
        .with_context(|| format!("{} cannot be read", directory.display()))?;
    let _lock = lock(directory, &volume)?;
    let mut findings = Vec::new();
    let mut printed = Ok(());
    let summary = disk::check(&volume, &mut |finding| {
        let (kind, name) = match finding.severity {
            Severity::Damage => ("DAMAGE ", "damage"),
            Severity::Derived => ("rebuilt", "derived"),
            Severity::Note => ("note   ", "note"),
        };
        let (file, offset, what) = (finding.file, finding.offset, finding.what);
        if !screen.is_json() {
            let line = screen.line(format_args!("{kind} {file} at byte {offset}: {what}"));
            printed = std::mem::replace(&mut printed, Ok(())).and(line);
        }
        let finding = json!({ "severity": name, "file": file, "offset": offset, "what": what });
        findings.push(finding);
    });
    printed?;
    let summary = summary.map_err(anyhow::Error::from)?;
    Ok(Found { directory: directory.to_owned(), summary, findings })
}

/// Locks the data while it is read: a half-finished write of a running broker would look like
/// damage.
fn lock(directory: &Path, volume: &OsVolume) -> Result<Box<dyn Lock>, Failure> {
    volume.lock("LOCK").map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let what = format!("{} is in use by a running process", directory.display());
            let next = "stop the broker, or check a copy of it: hapax backup --online TARGET";
            Failure::new(Exit::Failure, what).next(next)
        }
        _ => error.into(),
    })
}

fn print_found(screen: Screen, found: &Found, has_name: bool) -> Result<(), Failure> {
    let summary = &found.summary;
    if has_name {
        screen.line(format_args!("{}", found.directory.display()))?;
    }
    screen.line(format_args!(
        "journal  {} batches, {} bytes in {} segments, up to batch {}{}",
        summary.batches,
        summary.batch_bytes,
        summary.segments,
        summary.last,
        if summary.sealed { ", closed in good order" } else { ", not closed: a crash or a kill" },
    ))?;
    screen.line(format_args!(
        "rows     {} in {} files, {} bytes, as of batch {}",
        summary.archive.rows, summary.archive.files, summary.archive.bytes, summary.through
    ))?;
    screen.line(format_args!("epoch    {}: grows with every start", summary.epoch))?;
    Ok(())
}

fn shape(found: &Found) -> Value {
    let summary = &found.summary;
    json!({
        "directory": found.directory.display().to_string(),
        "damages": summary.damages,
        "batches": summary.batches,
        "batch_bytes": summary.batch_bytes,
        "segments": summary.segments,
        "last_batch": summary.last,
        "sealed": summary.sealed,
        "rows": summary.archive.rows,
        "files": summary.archive.files,
        "row_bytes": summary.archive.bytes,
        "owners": summary.epoch,
        "findings": found.findings,
    })
}
