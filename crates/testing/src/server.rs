//! PostgreSQL servers of a test's own: durable, over TCP, with standbys, to be stopped and
//! promoted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::ports::free_address;
use crate::postgres::{USER, as_user, is_root, newest_programs, skip, spawn};
use crate::wait::until;

const SETTINGS: [&str; 4] = [
    "listen_addresses=127.0.0.1",
    "shared_buffers=16MB",
    "max_connections=60",
    "wal_level=replica",
];

/// A server in a temporary directory. It ends when it is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    running: Option<(Pid, JoinHandle<()>)>,
    directory: TempDir,
    programs: PathBuf,
    port: u16,
    settings: Vec<String>,
    /// Of its environment.
    variables: Vec<(String, String)>,
}

impl PostgresServer {
    /// `None` if PostgreSQL is not installed, which is printed.
    pub fn start(settings: &[&str]) -> Option<Self> {
        let Some(programs) = newest_programs() else {
            skip("PostgreSQL", "postgresql");
            return None;
        };
        Some(Self::start_from(programs, settings))
    }

    /// One whose programs are in this directory.
    pub fn start_from(programs: PathBuf, settings: &[&str]) -> Self {
        let server = Self::prepare(programs, settings);
        server.run(
            "initdb",
            &["--username", USER, "--auth", "trust", "--no-locale", "--encoding", "UTF8"],
            &["--no-sync", "--no-instructions"],
        );
        server.started()
    }

    /// A standby of this server, which follows it under that name.
    pub fn standby(&self, name: &str, settings: &[&str]) -> Self {
        let standby = Self::prepare(self.programs.clone(), settings);
        let from = format!("{} application_name={name}", self.connection());
        let how = ["-R", "-X", "stream", "-c", "fast", "-d", &from];
        standby.run("pg_basebackup", &how, &["--no-sync"]);
        standby.started()
    }

    /// Makes a base backup.
    pub fn back_up(&self) {
        let how = ["-X", "stream", "-c", "fast", "-d", &self.connection()];
        self.run_in(&self.backup(), "pg_basebackup", &how, &["--no-sync"]);
    }

    /// Puts the base backup into the place of its data, and starts it again.
    pub fn restore(&mut self) {
        self.stop();
        std::fs::remove_dir_all(self.data()).unwrap();
        std::fs::rename(self.backup(), self.data()).unwrap();
        self.launch();
    }

    fn backup(&self) -> PathBuf {
        self.directory.path().join("backup")
    }

    fn connection(&self) -> String {
        format!("host=127.0.0.1 port={} user={USER}", self.port)
    }

    fn prepare(programs: PathBuf, settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        if is_root() {
            let given = Command::new("chown").arg(USER).arg(directory.path()).status().unwrap();
            assert!(given.success());
        }
        let settings = SETTINGS.iter().chain(settings).map(|it| (*it).to_owned()).collect();
        let port = free_address().port();
        let variables = Vec::new();
        Self { running: None, directory, programs, port, settings, variables }
    }

    fn run(&self, program: &str, first: &[&str], then: &[&str]) {
        self.run_in(&self.data(), program, first, then);
    }

    fn run_in(&self, data: &Path, program: &str, first: &[&str], then: &[&str]) {
        let mut command = as_user(&self.programs.join(program));
        command.arg("-D").arg(data).args(first).args(then).current_dir("/");
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {told}");
    }

    fn started(mut self) -> Self {
        self.launch();
        self
    }

    /// Starts it again after [`Self::stop`].
    pub fn launch(&mut self) {
        // Set after the user is changed: what is preloaded keeps files of its own.
        let mut command = as_user(Path::new("env"));
        command.args(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(self.programs.join("postgres"));
        command.arg("-D").arg(self.data()).arg("-k").arg(self.directory.path()).current_dir("/");
        command.arg("-p").arg(self.port.to_string());
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running = Some(spawn(command));
        until("PostgreSQL to answer", || {
            let log = || std::fs::read_to_string(self.directory.path().join("log"));
            let is_over = self.running.as_ref().is_none_or(|(_, ended)| ended.is_finished());
            assert!(!is_over, "PostgreSQL ended:\n{}", log().unwrap_or_default());
            self.psql(USER, "SELECT 1").output().unwrap().status.success()
        });
    }

    /// Sets a variable of its environment for the next [`Self::launch`].
    pub fn variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Ends it at once, as a crash does.
    pub fn stop(&mut self) {
        self.resume();
        if let Some((process, ended)) = self.running.take() {
            let _ = kill_process(process, Signal::QUIT);
            let _ = ended.join();
        }
    }

    /// Stops all of its processes (SIGSTOP): connections stay, and nothing is answered.
    pub fn pause(&self) {
        let Some((server, _)) = &self.running else { return };
        // The first one first, so that it starts no more.
        kill_process(*server, Signal::STOP).unwrap();
        for child in self.children() {
            let _ = kill_process(child, Signal::STOP);
        }
    }

    /// Lets them go on.
    pub fn resume(&self) {
        let Some((server, _)) = &self.running else { return };
        for child in self.children() {
            let _ = kill_process(child, Signal::CONT);
        }
        let _ = kill_process(*server, Signal::CONT);
    }

    fn children(&self) -> Vec<Pid> {
        self.running.as_ref().map(|(server, _)| children(*server)).unwrap_or_default()
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        self.run("pg_ctl", &["promote", "-w"], &[]);
    }

    /// Reads its settings anew.
    pub fn set(&self, setting: &str, value: &str) {
        self.sql(USER, &format!("ALTER SYSTEM SET {setting} = '{value}'"));
        self.sql(USER, "SELECT pg_reload_conf()");
        let asked = format!("SHOW {setting}");
        until("the setting", || self.sql(USER, &asked).trim() == value);
    }

    /// A program that runs as the server's user and ends with the returned guard.
    pub fn beside(&self, program: &Path, arguments: &[&str]) -> Beside {
        let mut command = as_user(program);
        command.args(arguments).current_dir("/").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Beside(Some(spawn(command)))
    }

    /// Writes a file that the server's user alone may read.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        if is_root() {
            assert!(Command::new("chown").arg(USER).arg(&path).status().unwrap().success());
        }
        path
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A directory that the server may read.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates a database, and returns its address.
    pub fn database(&self, name: &str) -> String {
        self.sql(USER, &format!("CREATE DATABASE {name}"));
        self.url(name)
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs SQL and returns its output, one row per line, unformatted.
    #[track_caller]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let output = self.psql(database, sql).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn psql(&self, database: &str, sql: &str) -> Command {
        let mut command = Command::new("psql");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, "-XqtA"]);
        command.args(["-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql]).stdin(Stdio::null());
        command
    }
}

/// A program beside a server. It ends when this is dropped.
#[derive(Debug)]
pub struct Beside(Option<(Pid, JoinHandle<()>)>);

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some((process, ended)) = self.0.take() {
            let _ = kill_process(process, Signal::KILL);
            let _ = ended.join();
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The processes that a process started.
pub fn children(parent: Pid) -> Vec<Pid> {
    let is_child = |stat: &str| {
        let rest = stat.rsplit_once(") ")?.1;
        Some(rest.split(' ').nth(1)?.parse() == Ok(parent.as_raw_nonzero().get()))
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let children = processes.filter(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        is_child(&stat) == Some(true)
    });
    let pid =
        |process: std::fs::DirEntry| Pid::from_raw(process.file_name().to_str()?.parse().ok()?);
    children.filter_map(pid).collect()
}
