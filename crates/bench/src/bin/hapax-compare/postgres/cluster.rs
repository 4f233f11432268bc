//! A separate PostgreSQL: initdb or a copy of another, settings, the user it runs as, and what a
//! run cost it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_bench::cpu;
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

/// What a server with a standby needs in addition; the later setting counts.
const REPLICATED: [(&str, &str); 2] = [("wal_level", "replica"), ("max_wal_senders", "4")];

/// The name of a standby, how often it is looked for, and how long between.
const STANDBY: &str = "standby";
const STANDBY_TRIES: u32 = 600;
const STANDBY_PAUSE: Duration = Duration::from_millis(50);

/// A server of its own.
#[derive(Debug)]
pub(crate) struct Cluster {
    server: Server,
    port: u16,
    programs: PathBuf,
}

impl Cluster {
    /// With an empty database.
    pub(crate) fn start(runtime: &Runtime, place: &Path) -> Result<Self> {
        Self::create(runtime, place, &[])
    }

    /// With a synchronous standby, which comes second.
    pub(crate) fn start_with_standby(runtime: &Runtime, place: &Path) -> Result<[Self; 2]> {
        let primary = Self::create(runtime, place, &REPLICATED)?;
        let (directory, data) = prepare(place)?;
        let from =
            format!("host=127.0.0.1 port={} user={USER} application_name={STANDBY}", primary.port);
        let mut copy = as_user(&primary.programs.join("pg_basebackup"))?;
        copy.args(["-R", "-X", "stream", "-c", "fast", "-d", &from, "-D"]).arg(&data);
        succeed(copy, &data)?;
        let programs = primary.programs.clone();
        let standby = Self::serve(runtime, programs, directory, &data, &REPLICATED)?;
        runtime.block_on(primary.wait_for_standby())?;
        Ok([primary, standby])
    }

    fn create(runtime: &Runtime, place: &Path, more: &[(&str, &str)]) -> Result<Self> {
        let programs = install::postgres_programs()?;
        let (directory, data) = prepare(place)?;
        let mut command = as_user(&programs.join("initdb"))?;
        command.arg("--pgdata").arg(&data);
        command.args(["--username", USER, "--auth", "trust", "--no-locale", "--encoding", "UTF8"]);
        succeed(command, &data)?;
        Self::serve(runtime, programs, directory, &data, more)
    }

    fn serve(
        runtime: &Runtime,
        programs: PathBuf,
        directory: Directory,
        data: &Path,
        more: &[(&str, &str)],
    ) -> Result<Self> {
        let port = free_port()?;
        let command = command(&programs, data, port, more)?;
        // QUIT is its immediate shutdown, which ends all its processes.
        let mut server = Server::start("postgres", command, Signal::QUIT, directory)?;
        let client = server.wait_for(|| runtime.block_on(connect(port)))?;
        runtime.block_on(demand_durability(&client, data))?;
        Ok(Self { server, port, programs })
    }

    /// Commits wait for the standby from now on.
    async fn wait_for_standby(&self) -> Result<()> {
        let client = self.connect().await?;
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'");
        client.batch_execute(&set).await?;
        client.batch_execute("SELECT pg_reload_conf()").await?;
        let asked = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        for _ in 0..STANDBY_TRIES {
            if client.query_one(asked, &[]).await?.try_get::<_, i64>(0)? == 1 {
                return Ok(());
            }
            tokio::time::sleep(STANDBY_PAUSE).await;
        }
        anyhow::bail!("the standby does not follow:\n{}", self.server.end_of_log())
    }

    pub(crate) async fn connect(&self) -> Result<Client> {
        connect(self.port).await
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{USER}", self.port)
    }

    /// CPU time of all its processes.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu::of_family(self.server.process_id())
    }

    /// Bytes of its log since it was created.
    pub(crate) async fn wal_bytes(&self) -> Result<u64> {
        let asked = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
        let bytes: i64 = self.connect().await?.query_one(asked, &[]).await?.try_get(0)?;
        Ok(u64::try_from(bytes)?)
    }
}

async fn connect(port: u16) -> Result<Client> {
    let address = format!("host=127.0.0.1 port={port} user={USER} dbname={USER}");
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
    // Its error is returned to the caller that waits for an answer.
    tokio::spawn(connection);
    Ok(client)
}

/// A directory that PostgreSQL's user can write to, and where its data will be.
fn prepare(place: &Path) -> Result<(Directory, PathBuf)> {
    let directory = Directory::create(place, "compare")?;
    if install::is_root() {
        let path = directory.path();
        let status = Command::new("chown").arg(USER).arg(path).status()?;
        ensure!(status.success(), "{} could not be given to {USER}", path.display());
    }
    let data = directory.path().canonicalize()?.join("data");
    Ok((directory, data))
}

fn succeed(mut command: Command, data: &Path) -> Result<()> {
    let output = command.current_dir("/").stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{command:?} failed; if the user {USER} cannot reach {}, choose another by --dir:\n{}",
        data.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn command(programs: &Path, data: &Path, port: u16, more: &[(&str, &str)]) -> Result<Command> {
    let mut command = as_user(&programs.join("postgres"))?;
    command.arg("-D").arg(data).current_dir("/");
    let port = port.to_string();
    let own = [
        ("listen_addresses", "127.0.0.1"),
        ("port", port.as_str()),
        ("unix_socket_directories", ""),
    ];
    let more = more.iter().copied();
    for (name, value) in own.into_iter().chain(DURABLE).chain(HELPFUL).chain(more) {
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
