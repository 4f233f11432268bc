//! The broker as a process: started on its own port, killed, stopped, watched, started again.
//!
//! A [`Setup`] defines how it is started and stays the same over restarts, so that clients find it
//! again; a [`BrokerProcess`] is one running process, which ends when the test returns or panics.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

use crate::http::Connection;
use crate::ports::free_address;
use crate::wait::{PATIENCE, until, within};

/// Returns a command for a program, without the settings of this machine.
pub fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    clean(&mut command);
    command
}

fn clean(command: &mut Command) {
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAPAX_") {
            command.env_remove(name);
        }
    }
}

/// Returns everything that a command printed.
pub fn printed(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Sends a signal to a process.
pub fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(process, signal).unwrap();
}

/// Suspends a process until `Signal::CONT`. Returns when all of its threads have stopped: until
/// then one of them may still take a lock, or answer.
pub fn suspend(process: u32) {
    signal(process, Signal::STOP);
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    until("a process to stop", || {
        std::fs::read_dir(format!("/proc/{process}/task")).unwrap().all(is_stopped)
    });
}

/// How a broker is started.
#[derive(Clone, Debug)]
pub struct Setup {
    binary: String,
    directory: PathBuf,
    /// Removes the directory when the last copy of the setup is dropped.
    _temporary: Option<Arc<TempDir>>,
    pub data: PathBuf,
    pub address: SocketAddr,
    partitions: u16,
    wrapper: Vec<String>,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Setup {
    /// The binary is the test's `env!("CARGO_BIN_EXE_hapax")`; data, log and port file are in
    /// this directory, in which it runs.
    pub fn new(binary: &str, directory: &Path) -> Self {
        Self {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            _temporary: None,
            data: directory.join("data"),
            address: free_address(),
            partitions: 1,
            wrapper: Vec::new(),
            arguments: vec!["--auth".into(), "off".into()],
            variables: Vec::new(),
        }
    }

    /// In this directory, which is removed when neither setup nor broker is left.
    pub fn temporary(binary: &str, directory: TempDir) -> Self {
        let setup = Self::new(binary, directory.path());
        Self { _temporary: Some(Arc::new(directory)), ..setup }
    }

    pub fn data(mut self, data: &Path) -> Self {
        self.data = data.to_owned();
        self
    }

    /// For data that is created by the first start.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions;
        self
    }

    /// Instead of `--auth off`.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self
    }

    /// The program that runs the broker, with its own arguments.
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The directory of the broker, which is its working directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn connection(&self) -> Connection {
        Connection::new(self.address)
    }

    /// Everything that was logged, in all runs.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Starts it and waits until it listens.
    #[track_caller]
    pub fn start(&self) -> BrokerProcess {
        self.try_start().unwrap_or_else(|log| panic!("the broker ended:\n{}", tail(&log)))
    }

    /// Starts a broker that should refuse to start; returns its exit code and its log.
    #[track_caller]
    pub fn refuses(&self) -> (i32, String) {
        let before = self.log().len();
        let mut broker = self.spawn();
        let status = until("the broker to refuse", || {
            assert!(!self.port_file().exists(), "the broker serves, and should not");
            broker.child.try_wait().unwrap()
        });
        (status.code().unwrap_or(-1), self.log().split_off(before))
    }

    /// Starts it and waits until it listens, or has ended: then returns what it logged.
    #[track_caller]
    pub fn try_start(&self) -> Result<BrokerProcess, String> {
        let before = self.log().len();
        let mut broker = self.spawn();
        let is_up = until("the broker to listen", || match broker.child.try_wait().unwrap() {
            Some(_) => Some(false),
            None => self.port_file().exists().then_some(true),
        });
        if is_up { Ok(broker) } else { Err(self.log().split_off(before)) }
    }

    fn spawn(&self) -> BrokerProcess {
        let _ = std::fs::remove_file(self.port_file());
        let mut words = self.wrapper.iter().chain([&self.binary]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).current_dir(&self.directory);
        clean(&mut command);
        let log = self.directory.join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        command
            .args(["serve", "--log-format", "text"])
            .args(["--partitions", &self.partitions.to_string()])
            .args(["--listen", &self.address.to_string()])
            .arg("--data")
            .arg(&self.data)
            .arg("--port-file")
            .arg(self.port_file())
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        BrokerProcess { child: command.spawn().unwrap(), setup: self.clone() }
    }

    fn port_file(&self) -> PathBuf {
        self.directory.join("port")
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// One running broker process.
#[derive(Debug)]
pub struct BrokerProcess {
    child: Child,
    pub setup: Setup,
}

impl BrokerProcess {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connection(&self) -> Connection {
        self.setup.connection()
    }

    pub fn url(&self) -> String {
        self.setup.url()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, name: Signal) {
        signal(self.pid(), name);
    }

    /// Waits until it has ended by itself, for at most `bound`.
    #[track_caller]
    pub fn ends(&mut self, bound: Duration) -> ExitStatus {
        within(bound, "the broker's end", || self.child.try_wait().unwrap())
    }

    /// Stops it cleanly.
    #[track_caller]
    pub fn stop(mut self) -> Setup {
        self.signal(Signal::TERM);
        let status = self.ends(PATIENCE);
        assert!(status.success(), "{status:?}\n{}", tail(&self.setup.log()));
        self.has_not_panicked();
        self.setup.clone()
    }

    #[track_caller]
    pub fn is_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the broker ended: {ended:?}\n{}", tail(&self.setup.log()));
    }

    #[track_caller]
    pub fn has_not_panicked(&self) {
        let log = self.setup.log();
        assert!(!log.contains("panicked"), "{}", tail(&log));
    }

    /// Returns a command of the program that talks to this broker, in the broker's directory.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&self.setup.binary);
        command.args(arguments).current_dir(self.setup.path()).env("HAPAX_SERVER", self.url());
        command
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let last = format!("the broker's last words:\n{}\n", tail(&self.setup.log()));
            let _ = std::io::stderr().write_all(last.as_bytes());
        }
    }
}
