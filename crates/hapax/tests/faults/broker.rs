//! The broker as a process: started on a port of its own, killed, stopped, watched, started again.
//!
//! A [`Setup`] says how it is started and stays the same from life to life, so that its clients
//! find it again; a [`Broker`] is one life. Whatever ends a test ends its brokers.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::http::Connection;

/// Far longer than anything here takes, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Ports below those that the kernel gives to clients: a client that dials while the broker is
/// away must not be given the broker's own port.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Waits until there is something.
#[track_caller]
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look)
}

/// Waits until there is something, for no longer than this.
#[track_caller]
pub(crate) fn within<T>(bound: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < bound, "waited {:?} in vain for {what}", start.elapsed());
        pause(Duration::from_millis(2));
    }
}

/// Lets time go by where nothing depends on how much.
pub(crate) fn pause(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// The program, with nothing of the machine's settings around it.
pub(crate) fn hapax(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.args(arguments);
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

/// What a command said, all of it.
pub(crate) fn words(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// How a broker is started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) data: PathBuf,
    log: PathBuf,
    port_file: PathBuf,
    pub(crate) address: SocketAddr,
    wrapper: Vec<String>,
    partitions: u16,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Setup {
    /// With data, log and port in this directory.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            data: directory.join("data"),
            log: directory.join("log"),
            port_file: directory.join("port"),
            address: free_address(),
            wrapper: Vec::new(),
            partitions: 1,
            arguments: vec!["--auth".into(), "off".into()],
            variables: Vec::new(),
        }
    }

    pub(crate) fn data(mut self, data: &Path) -> Self {
        self.data = data.to_owned();
        self
    }

    /// Instead of `--auth off`.
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self
    }

    /// Instead of one.
    pub(crate) fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions;
        self
    }

    /// The program that runs the broker, with its own arguments.
    pub(crate) fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.address)
    }

    /// Everything that was logged, in all lives.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Starts it and waits until it listens.
    #[track_caller]
    pub(crate) fn start(&self) -> Broker {
        let mut broker = self.spawn();
        until("the broker to listen", || {
            let ended = broker.child.try_wait().unwrap();
            assert!(ended.is_none(), "the broker ended: {ended:?}\n{}", self.log_tail());
            self.port_file.exists().then_some(())
        });
        broker
    }

    /// Starts it where it should refuse to: its exit code, and what it said in this life.
    #[track_caller]
    pub(crate) fn refuses(&self) -> (i32, String) {
        let before = self.log().len();
        let mut broker = self.spawn();
        let status = until("the broker to refuse", || {
            assert!(!self.port_file.exists(), "the broker serves, and should not");
            broker.child.try_wait().unwrap()
        });
        (status.code().unwrap_or(-1), self.log().split_off(before))
    }

    /// Starts it and waits until it listens, or has ended.
    pub(crate) fn try_start(&self) -> Result<Broker, String> {
        let before = self.log().len();
        let mut broker = self.spawn();
        let is_up =
            until("the broker to listen or to end", || match broker.child.try_wait().unwrap() {
                Some(_) => Some(false),
                None => self.port_file.exists().then_some(true),
            });
        if is_up { Ok(broker) } else { Err(self.log().split_off(before)) }
    }

    fn spawn(&self) -> Broker {
        let _ = std::fs::remove_file(&self.port_file);
        let binary = env!("CARGO_BIN_EXE_hapax").to_owned();
        let mut words = self.wrapper.iter().chain([&binary]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        clean(&mut command);
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        command
            .args(["serve", "--log-format", "text"])
            .args(["--partitions", &self.partitions.to_string()])
            .args(["--listen", &self.address.to_string()])
            .arg("--data")
            .arg(&self.data)
            .arg("--port-file")
            .arg(&self.port_file)
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Broker { child: command.spawn().unwrap(), setup: self.clone() }
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// One life of a broker.
#[derive(Debug)]
pub(crate) struct Broker {
    child: Child,
    pub(crate) setup: Setup,
}

impl Broker {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connection(&self) -> Connection {
        self.setup.connection()
    }

    pub(crate) fn url(&self) -> String {
        self.setup.url()
    }

    /// Kills it, with no time for last words.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, and no more.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its own end, for no longer than this.
    #[track_caller]
    pub(crate) fn ends(&mut self, bound: Duration) -> ExitStatus {
        within(bound, "the broker's end", || self.child.try_wait().unwrap())
    }

    /// Stops it in good order.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ends(PATIENCE);
        assert!(status.success(), "{status:?}\n{}", self.setup.log_tail());
        self.has_not_panicked();
    }

    #[track_caller]
    pub(crate) fn is_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the broker ended: {ended:?}\n{}", self.setup.log_tail());
    }

    #[track_caller]
    pub(crate) fn has_not_panicked(&self) {
        let log = self.setup.log();
        assert!(!log.contains("panicked"), "{}", self.setup.log_tail());
    }

    /// A line of what the kernel says of it, in bytes: `VmRSS:`, or `VmHWM:` for the most it was.
    pub(crate) fn memory_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kib: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        kib * 1_024
    }

    /// From here on the most it was is counted anew.
    pub(crate) fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    /// Runs a command against it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = hapax(arguments);
        command.env("HAPAX_SERVER", self.url());
        command
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let tail = format!("the broker's last words:\n{}\n", self.setup.log_tail());
            let _ = std::io::stderr().write_all(tail.as_bytes());
        }
    }
}

/// An address that nobody uses, and that nobody is given by chance.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    let start = (std::process::id() % u32::from(count)) as u16;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (start.wrapping_mul(13).wrapping_add(step)) % count;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
