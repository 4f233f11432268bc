//! A separate PostgreSQL for tests, in a temporary directory, behind a socket: a PostgreSQL that
//! runs on this machine is not touched.
//!
//! Concurrent tests share it, each with its own database; it ends with the last of them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::until;

/// The user of Debian's package, and the name of the owner of everything.
pub(crate) const USER: &str = "postgres";
/// Its data is discarded: nothing has to be durable.
const SETTINGS: [&str; 5] = [
    "listen_addresses=",
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=200",
];

static RUNNING: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct Cluster {
    process: Pid,
    ended: Option<JoinHandle<()>>,
    directory: TempDir,
}

/// An empty database, removed with its cluster.
#[derive(Clone, Debug)]
pub struct Postgres {
    name: String,
    cluster: Arc<Cluster>,
}

impl Postgres {
    /// `None` if PostgreSQL is not installed, which is printed.
    pub fn start() -> Option<Self> {
        let cluster = Cluster::shared()?;
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        cluster.run(&["-d", USER, "-c", &format!("CREATE DATABASE {name}")]);
        Some(Self { name, cluster })
    }

    /// Its address for programs.
    pub fn url(&self) -> String {
        let place = self.cluster.directory.path().display().to_string().replace('/', "%2F");
        format!("postgres://{USER}@{place}/{}", self.name)
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.cluster.directory.path().join(".s.PGSQL.5432")
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs SQL and returns its output, one row per line, unformatted.
    pub fn sql(&self, sql: &str) -> String {
        self.cluster.run(&["-d", &self.name, "-c", sql])
    }

    pub fn number(&self, sql: &str) -> i64 {
        let told = self.sql(sql);
        told.trim().parse().unwrap_or_else(|_| panic!("{sql}: {told}"))
    }

    /// Number of statements that wait for a lock in this database.
    pub fn blocked(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM pg_stat_activity
             WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
    }
}

impl Cluster {
    fn shared() -> Option<Arc<Self>> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = running.upgrade() {
            return Some(cluster);
        }
        let Some(programs) = newest_programs() else {
            skip("PostgreSQL", "postgresql");
            return None;
        };
        let cluster = Arc::new(Self::start(&programs));
        *running = Arc::downgrade(&cluster);
        Some(cluster)
    }

    fn start(programs: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        if is_root() {
            let given = Command::new("chown").arg(USER).arg(directory.path()).status().unwrap();
            assert!(given.success());
        }
        let data = directory.path().join("data");
        let made = as_user(&programs.join("initdb"))
            .arg("--pgdata")
            .arg(&data)
            .args(["--username", USER, "--auth", "trust", "--no-locale", "--encoding", "UTF8"])
            .args(["--no-sync", "--no-instructions"])
            .current_dir("/")
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut command = as_user(&programs.join("postgres"));
        command.arg("-D").arg(&data).arg("-k").arg(directory.path()).current_dir("/");
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let (process, ended) = spawn(command);
        let cluster = Self { process, ended: Some(ended), directory };
        cluster.wait();
        cluster
    }

    fn wait(&self) {
        until("PostgreSQL to answer", || {
            let log = || std::fs::read_to_string(self.directory.path().join("log"));
            let is_over = self.ended.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!is_over, "PostgreSQL ended:\n{}", log().unwrap_or_default());
            self.psql(&["-d", USER, "-c", "SELECT 1"]).output().unwrap().status.success()
        });
    }

    fn psql(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("psql");
        command.arg("-h").arg(self.directory.path()).args(["-U", USER, "-XqtA"]);
        command.args(["-v", "ON_ERROR_STOP=1"]).args(arguments).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.psql(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its immediate shutdown, which ends all its processes.
        let _ = kill_process(self.process, Signal::QUIT);
        if let Some(ended) = self.ended.take() {
            let _ = ended.join();
        }
    }
}

/// Prints a skipped test past the captured output; panics if nothing may be skipped.
pub fn skip(what: &str, packages: &str) {
    let is_fatal = std::env::var_os("HAPAX_FAULTS").is_some_and(|value| value == "all");
    assert!(!is_fatal, "{what} is not here");
    let line = format!("SKIPPED what needs {what}: as root, apt-get install {packages}\n");
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// Starts it from a thread that lives as long as it does: if the tests are killed it is killed too,
/// by the parent-death signal, and the parent is a thread.
pub fn spawn(mut command: Command) -> (Pid, JoinHandle<()>) {
    let (told, pid) = mpsc::channel();
    let ended = std::thread::spawn(move || {
        let mut child = command.spawn().unwrap();
        told.send(child.id()).unwrap();
        let _ = child.wait();
    });
    let pid = i32::try_from(pid.recv().unwrap()).unwrap();
    (Pid::from_raw(pid).unwrap(), ended)
}

/// PostgreSQL refuses to run as root; Debian's package comes with a user for it.
pub fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if is_root() {
        command.args(["--reuid", USER, "--regid", USER, "--init-groups"]);
    }
    command.arg("--").arg(program);
    command
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Directories with programs of other releases, from `HAPAX_POSTGRES`, which has one or several,
/// separated by colons: `./test` sets it. Prints what is skipped if there are none.
pub fn other_programs() -> Vec<PathBuf> {
    let all = std::env::var_os("HAPAX_POSTGRES").unwrap_or_default();
    let all: Vec<PathBuf> =
        std::env::split_paths(&all).filter(|it| it.join("initdb").is_file()).collect();
    if all.is_empty() {
        let line = "SKIPPED other releases of PostgreSQL: HAPAX_POSTGRES names no programs\n";
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
    all
}

/// Where Debian keeps a folder for every version.
pub fn newest_programs() -> Option<PathBuf> {
    let version = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let folders = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    folders
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|folder| {
            ["initdb", "postgres"].iter().all(|it| folder.join("bin").join(it).is_file())
        })
        .max_by_key(version)
        .map(|folder| folder.join("bin"))
}
