//! `hapax backup` and `hapax restore`: verified copies of a data directory, of a broker that is
//! stopped or of one that goes on.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::Args;
use hapax_server::engine::Data;
use hapax_store::OsVolume;
use hapax_store::disk::{self, DiskStore};

use super::check::partitions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Screen, progress};
use crate::session::{Connection, Session};

const BAR: &str = "{bar:40} {bytes}/{total_bytes}, {eta} left";

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The directory to copy, and where to; with --online only where to. The target does not
    /// exist yet, or is empty.
    #[arg(value_name = "DIR", num_args = 1..=2, required = true)]
    paths: Vec<PathBuf>,
    /// Let a running broker write the copy, on its own machine, while it goes on.
    #[arg(long)]
    online: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup. It stays as it is.
    backup: PathBuf,
    /// Where to: a directory that does not exist yet, or is empty.
    directory: PathBuf,
}

pub(crate) async fn backup(backup: &Backup) -> Result<Exit, Failure> {
    match (backup.online, backup.paths.as_slice()) {
        (true, [target]) => {
            backup.connection.open(async |session| online(session, target).await).await
        }
        (true, _) => Err(Failure::usage("with --online give the target alone")
            .next("the broker knows where its data is: hapax backup --online TARGET")),
        (false, [directory, target]) => {
            copy(directory, target)
                .with_context(|| format!("no backup of {}", directory.display()))?;
            Ok(Exit::Ok)
        }
        (false, _) => Err(Failure::usage("give the directory and the target").next(
            "hapax backup DIR TARGET copies what no broker has open; of a running one: \
             hapax backup --online TARGET",
        )),
    }
}

pub(crate) fn restore(restore: &Restore) -> Result<Exit, Failure> {
    copy(&restore.backup, &restore.directory)
        .with_context(|| format!("{} is not restored", restore.directory.display()))?;
    Ok(Exit::Ok)
}

async fn online(session: &Session, target: &Path) -> Result<Exit, Failure> {
    // The broker has a working directory of its own.
    let target = std::path::absolute(target)?;
    let path = target.to_str().ok_or_else(|| Failure::usage("the target's name is no UTF-8"))?;
    let mut backup = session.client.backup(path).await?;
    let bar = progress(0, BAR);
    let mut bytes = 0;
    let mut is_done = false;
    while let Some(told) = backup.progress().await? {
        bar.set_length(told.total_bytes);
        bar.set_position(told.bytes);
        bytes = told.bytes;
        is_done |= told.done;
    }
    bar.finish_and_clear();
    if !is_done {
        let what = "the broker broke off; the copy is of no use";
        return Err(Failure::new(Exit::Failure, what));
    }
    Screen::plain().line(format_args!("{path} holds {bytes} bytes, verified"))?;
    Ok(Exit::Ok)
}

/// A restored directory is one more copy: what makes a backup consistent makes it usable. The
/// source is only read.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let parts = partitions(from).map_err(|failure| anyhow::anyhow!(failure.what))?;
    Data::refuse_target_inside(from, to)?;
    ensure!(is_empty(to)?, "{} is not empty", to.display());
    if parts == [from] {
        return copy_partition(from, to);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    for part in &parts {
        let name = part.file_name().context("a partition has a name")?;
        copy_partition(part, &to.join(name))?;
    }
    Data::copy_head(from, to)?;
    Screen::plain().line(format_args!(
        "{} holds all {} partitions, with the broker's secret and tokens: keep it as safe as the \
         data",
        to.display(),
        parts.len()
    ))?;
    Ok(())
}

fn is_empty(directory: &Path) -> io::Result<bool> {
    match fs::read_dir(directory) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

fn copy_partition(from: &Path, to: &Path) -> Result<()> {
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
    let screen = Screen::plain();
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
    Ok(())
}
