//! `hapax backup` and `hapax restore`: verified copies of a data directory, of a stopped broker or
//! of a running one.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use hapax_server::engine::{self, Data};
use hapax_store::disk::{self, DiskStore};
use hapax_store::{OsVolume, Volume};
use serde_json::{Value, json};

use super::check::{of_node, partitions, refuse_database};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, Screen, count, progress};
use crate::session::{Connection, Session};

const BAR: &str = "{bar:40} {bytes}/{total_bytes}, {eta} left";

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The data directory and the target; with --online only the target. The target must be empty
    /// or not exist.
    #[arg(value_name = "DIR", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// Let the running broker write the copy, on its own machine, while it keeps working.
    #[arg(long)]
    online: bool,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup. It is not changed.
    backup: PathBuf,
    /// The new data directory, which must be empty or not exist.
    directory: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn backup(backup: &Backup) -> Result<Exit, Failure> {
    let screen = backup.output.screen();
    backup.paths.iter().try_for_each(|path| refuse_database(path))?;
    match (backup.online, backup.paths.as_slice()) {
        (true, [target]) => {
            backup.connection.open(async |session| online(session, screen, target).await).await
        }
        (true, _) => Err(Failure::usage("with --online, give only the target")
            .next("the broker knows where its data is: hapax backup --online TARGET")),
        (false, [directory, target]) => {
            refuse_node(directory)?;
            copy(screen, directory, target)
                .with_context(|| format!("{} was not backed up", directory.display()))
                .map_err(failed)?;
            Ok(Exit::Ok)
        }
        (false, _) => Err(Failure::usage("give the directory and the target").next(
            "hapax backup DIR TARGET copies what no broker has open; of a running one: \
             hapax backup --online TARGET",
        )),
    }
}

pub(crate) fn restore(restore: &Restore) -> Result<Exit, Failure> {
    refuse_database(&restore.backup)?;
    refuse_database(&restore.directory)?;
    refuse_node(&restore.backup)?;
    copy(restore.output.screen(), &restore.backup, &restore.directory)
        .with_context(|| format!("{} was not restored", restore.directory.display()))
        .map_err(failed)?;
    Ok(Exit::Ok)
}

fn refuse_node(directory: &Path) -> Result<(), Failure> {
    if Data::is_of_node(directory) { Err(of_node(directory)) } else { Ok(()) }
}

async fn online(session: &Session, screen: Screen, target: &Path) -> Result<Exit, Failure> {
    // The broker has a working directory of its own.
    let target = std::path::absolute(target)?;
    let path = target.to_str().ok_or_else(|| Failure::usage("the target's name is not UTF-8"))?;
    let mut backup = session.client.backup(path).await.map_err(unfinished)?;
    let bar = progress(0, BAR);
    let mut bytes = 0;
    let mut is_done = false;
    while let Some(report) = backup.progress().await.map_err(unfinished)? {
        bar.set_length(report.total_bytes);
        bar.set_position(report.bytes);
        bytes = report.bytes;
        is_done |= report.done;
    }
    bar.finish_and_clear();
    if !is_done {
        let what = "the broker stopped before the end: the copy is incomplete and must not be used";
        return Err(Failure::new(Exit::Failure, what));
    }
    match screen.is_json() {
        true => screen.json(&json!({ "target": path, "bytes": bytes, "verified": true }))?,
        false => screen.line(format_args!("{path} holds {bytes} bytes, verified"))?,
    }
    Ok(Exit::Ok)
}

/// The failure of a copy that the broker writes. A retry helps only after space was freed.
fn unfinished(error: hapax_client::Error) -> Failure {
    let is_full = error.code() == hapax_wire::Code::StoreFull;
    let failure = Failure::from(error);
    match is_full {
        true => failure.next(
            "make room on the disk of the target, remove what was copied, and \
                              repeat the backup",
        ),
        false => failure,
    }
}

/// Restores by making another copy, in the same way as a backup. The source is only read.
fn copy(screen: Screen, from: &Path, to: &Path) -> Result<()> {
    let parts = partitions(from).map_err(|failure| anyhow::anyhow!(failure.what))?;
    Data::refuse_target_inside(from, to)?;
    if !is_empty(to)? {
        return Err(Full(to.to_owned()).into());
    }
    // Before anything is created.
    for part in &parts {
        if is_locked(part)? {
            return Err(InUse(from.to_owned()).into());
        }
    }
    let mut copied = Vec::new();
    if parts == [from] {
        copied.push(copy_partition(screen, from, to)?);
    } else {
        hapax_store::create_private_directory(to)?;
        for part in &parts {
            let name = part.file_name().context("a partition has a name")?;
            copied.push(copy_partition(screen, part, &to.join(name))?);
        }
        Data::copy_head(from, to)?;
    }
    if screen.is_json() {
        let target = to.display().to_string();
        screen.json(&json!({ "target": target, "verified": true, "partitions": copied }))?;
    } else if parts != [from] {
        screen.line(format_args!(
            "{} holds {}, with the broker's {}: keep it as safe as the data",
            to.display(),
            count(parts.len() as u64, "partition"),
            if has_tokens(to) { "secret and tokens" } else { "secret" }
        ))?;
    }
    Ok(())
}

/// The target of a copy is not empty.
#[derive(Debug)]
struct Full(PathBuf);

impl std::error::Error for Full {}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not empty", self.0.display())
    }
}

/// A running process has the data of a copy open.
#[derive(Debug)]
struct InUse(PathBuf);

impl std::error::Error for InUse {}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is in use by a running process", self.0.display())
    }
}

fn is_locked(partition: &Path) -> Result<bool> {
    let volume = OsVolume::read_only(partition)
        .with_context(|| format!("{} cannot be read", partition.display()))?;
    match volume.lock("LOCK") {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The failure of a copy. A target that cannot be used is an error of the command, as it is for an
/// online backup.
fn failed(error: anyhow::Error) -> Failure {
    let is_inside = matches!(error.downcast_ref(), Some(engine::Error::Inside { .. }));
    let is_full = error.downcast_ref::<Full>().is_some();
    let is_in_use = error.downcast_ref::<InUse>().is_some();
    let failure = Failure::from(error);
    if is_in_use {
        let next = "let the running broker write the copy: hapax backup --online TARGET";
        return failure.next(next);
    }
    match is_inside || is_full {
        true => Failure { exit: Exit::Usage, ..failure }
            .next("name a target outside of the data that is empty or does not exist"),
        false => failure,
    }
}

fn has_tokens(directory: &Path) -> bool {
    directory.join("tokens.json").exists()
}

fn is_empty(directory: &Path) -> io::Result<bool> {
    match fs::read_dir(directory) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Copies one partition, reports it, and returns what `-o json` prints of it.
fn copy_partition(screen: Screen, from: &Path, to: &Path) -> Result<Value> {
    let volume =
        OsVolume::read_only(from).with_context(|| format!("{} cannot be read", from.display()))?;
    let options = disk::Options { must_exist: true, ..disk::Options::default() };
    // The workers would write: they are never started.
    let (store, _workers) = DiskStore::open(Arc::new(volume), options, Arc::new(|| {}))?;
    let target = OsVolume::create(to)?;
    let bar = progress(0, BAR);
    let summary = disk::backup(&store.source(), &target, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let report = json!({
        "directory": to.display().to_string(),
        "last_batch": summary.last,
        "rows": summary.archive.rows,
        "batches": summary.batches,
    });
    if screen.is_json() {
        return Ok(report);
    }
    if summary.last == 0 {
        screen.line(format_args!("{} is empty: nothing was ever written to it", to.display()))?;
    } else {
        screen.line(format_args!(
            "{} holds everything up to batch {}: {} rows and {} batches, verified",
            to.display(),
            summary.last,
            summary.archive.rows,
            summary.batches
        ))?;
    }
    Ok(report)
}
