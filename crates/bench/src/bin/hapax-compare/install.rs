//! Finds the servers of Debian's packages, and installs those packages that are missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Where Debian keeps a folder for every version of PostgreSQL.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

pub(crate) fn redis_server() -> Result<PathBuf> {
    find_or_install("redis-server", || on_path("redis-server"))
}

/// The folder of the newest PostgreSQL's programs.
pub(crate) fn postgres_programs() -> Result<PathBuf> {
    find_or_install("postgresql", newest_postgres)
}

/// Whether both servers are already installed.
#[cfg(test)]
pub(crate) fn has_peers() -> bool {
    on_path("redis-server").is_some() && newest_postgres().is_some()
}

/// The program of that name in one of the folders of `PATH`, or where Debian puts it.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn newest_postgres() -> Option<PathBuf> {
    let version = |folder: &Path| folder.file_name()?.to_str()?.parse::<u32>().ok();
    fs::read_dir(POSTGRES_VERSIONS)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| {
            ["initdb", "postgres"].iter().all(|file| folder.join("bin").join(file).is_file())
        })
        .max_by_key(|folder| version(folder))
        .map(|folder| folder.join("bin"))
}

fn find_or_install(package: &str, find: impl Fn() -> Option<PathBuf>) -> Result<PathBuf> {
    if let Some(found) = find() {
        return Ok(found);
    }
    install(package).with_context(|| {
        format!("{package} is missing: install Debian's package, or leave it out with --only")
    })?;
    find().with_context(|| format!("{package} was installed but its server is nowhere to be found"))
}

#[expect(clippy::print_stderr, reason = "installing takes a while, and changes the machine")]
fn install(package: &str) -> Result<()> {
    ensure!(on_path("apt-get").is_some(), "there is no apt-get here");
    eprintln!("{package} is missing: installing it with apt-get");
    apt_get(&["update", "-qq"])?;
    apt_get(&["install", "-y", "-qq", "--no-install-recommends", package])
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = if is_root() {
        Command::new("env")
    } else if on_path("sudo").is_some() {
        // Without -n it might ask for a password, which is what somebody at a terminal wants.
        let mut command = Command::new("sudo");
        command.arg("env");
        command
    } else {
        bail!("apt-get needs root, and there is no sudo");
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments);
    // Standard output is for the table.
    let status = command.stdout(Stdio::null()).status().context("apt-get could not be started")?;
    ensure!(status.success(), "apt-get {} failed ({status})", arguments.join(" "));
    Ok(())
}
