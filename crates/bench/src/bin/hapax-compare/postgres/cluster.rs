//! Starts a separate PostgreSQL: initdb, settings, the user it runs as.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use hapax_bench::server::{Directory, Server, free_port};
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::install;

/// The user of Debian's package, and the name of the database and of its owner.
const USER: &str = "postgres";

/// Settings that must have their defaults, checked when the server runs.
const DURABLE: [(&str, &str); 3] =
    [("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on")];

/// Settings that help: enough memory, no checkpoint in the middle of a run, preallocated log files,
/// an early vacuum, nothing for replicas.
const HELPFUL: [(&str, &str); 10] = [
    ("shared_buffers", "1GB"),
    ("wal_buffers", "64MB"),
    ("max_wal_size", "32GB"),
    ("min_wal_size", "4GB"),
    ("checkpoint_timeout", "1d"),
    ("autovacuum_naptime", "1s"),
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("jit", "off"),
    ("max_connections", "600"),
];

/// A server with an empty database, and its port.
pub(super) fn start(runtime: &Runtime, place: &Path) -> Result<(Server, u16)> {
    let programs = install::postgres_programs()?;
    let directory = Directory::create(place, "compare")?;
    let data = directory.path().canonicalize()?.join("data");
    initialise(&programs, directory.path(), &data)?;
    let port = free_port()?;
    let command = command(&programs, &data, port)?;
    // QUIT is its immediate shutdown, which ends all its processes.
    let mut server = Server::start("postgres", command, Signal::QUIT, directory)?;
    let client = server.wait_for(|| runtime.block_on(connect(port)))?;
    runtime.block_on(demand_durability(&client, &data))?;
    Ok((server, port))
}

pub(super) async fn connect(port: u16) -> Result<Client> {
    let address = format!("host=127.0.0.1 port={port} user={USER} dbname={USER}");
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
    // Its error is returned to the caller that waits for an answer.
    tokio::spawn(connection);
    Ok(client)
}

fn initialise(programs: &Path, directory: &Path, data: &Path) -> Result<()> {
    if install::is_root() {
        let status = Command::new("chown").arg(USER).arg(directory).status()?;
        ensure!(status.success(), "{} could not be given to {USER}", directory.display());
    }
    let output = as_user(&programs.join("initdb"))?
        .arg("--pgdata")
        .arg(data)
        .args(["--username", USER, "--auth", "trust", "--no-locale", "--encoding", "UTF8"])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        output.status.success(),
        "initdb failed; if the user {USER} cannot reach {}, choose another place by --dir:\n{}",
        data.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn command(programs: &Path, data: &Path, port: u16) -> Result<Command> {
    let mut command = as_user(&programs.join("postgres"))?;
    command.arg("-D").arg(data).current_dir("/");
    let port = port.to_string();
    let own = [
        ("listen_addresses", "127.0.0.1"),
        ("port", port.as_str()),
        ("unix_socket_directories", ""),
    ];
    for (name, value) in own.into_iter().chain(DURABLE).chain(HELPFUL) {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    Ok(command)
}

/// PostgreSQL refuses to run as root; Debian's package comes with a user for it.
fn as_user(program: &Path) -> Result<Command> {
    if !install::is_root() {
        return Ok(Command::new(program));
    }
    let change = install::on_path("setpriv").context("setpriv of util-linux is missing")?;
    let mut command = Command::new(change);
    command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program);
    Ok(command)
}

/// Checks the settings, and that it is this server and not one that took the port in between.
async fn demand_durability(client: &Client, data: &Path) -> Result<()> {
    let data = data.to_str().context("a path that is not UTF-8")?;
    for (setting, wanted) in DURABLE.into_iter().chain([("data_directory", data)]) {
        let row = client.query_one(&format!("SHOW {setting}"), &[]).await?;
        let found: &str = row.try_get(0)?;
        ensure!(found == wanted, "PostgreSQL runs with {setting} {found}, not {wanted}");
    }
    Ok(())
}
