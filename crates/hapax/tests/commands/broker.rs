//! A broker of its own for every test, and the commands that are run against it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Far longer than anything here takes, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Told {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The program in a directory, with nothing of the machine's settings around it.
pub(crate) fn hapax(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.current_dir(directory).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAPAX_") {
            command.env_remove(name);
        }
    }
    command
}

/// Waits until there is something.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A broker in a temporary directory, on a free port. It ends with the test.
pub(crate) struct Broker {
    child: Child,
    directory: TempDir,
    pub(crate) url: String,
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::start_with(&["--auth", "off"])
    }

    /// With so many partitions.
    pub(crate) fn start_of(partitions: u16) -> Self {
        Self::start_with(&["--auth", "off", "--partitions", &partitions.to_string()])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn start_in(directory: TempDir, arguments: &[&str]) -> Self {
        let child = hapax(directory.path())
            .args(["serve", "--listen", "127.0.0.1:0", "--data", "data", "--port-file", "port"])
            .args(["--log", "warn"])
            .args(arguments)
            .spawn()
            .unwrap();
        let mut broker = Self { child, directory, url: String::new() };
        let port = until("the broker's port", || {
            assert!(broker.child.try_wait().unwrap().is_none(), "the broker ended");
            std::fs::read_to_string(broker.path().join("port")).ok()
        });
        broker.url = format!("http://{}", port.trim());
        broker
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// A command that talks to this broker.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = hapax(self.directory.path());
        command.args(arguments).env("HAPAX_SERVER", &self.url);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Told {
        Told::of(&self.command(arguments).output().unwrap())
    }

    /// Runs it with something on its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Told {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input).unwrap();
        drop(stdin);
        Told::of(&child.wait_with_output().unwrap())
    }

    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let told = self.run(arguments);
        assert_eq!(told.code, Some(0), "{arguments:?}: {told:#?}");
        told.out
    }

    /// Fails with this code; what it says on the standard error.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let told = self.run(arguments);
        assert_eq!(told.code, Some(code), "{arguments:?}: {told:#?}");
        told.err
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
        serde_json::from_str(&self.ok(&arguments)).unwrap()
    }

    /// Takes one message by hand and gives it back as failed for good.
    pub(crate) fn kill_message(&self, queue: &str, error: &str) {
        let received = self.json(&["receive", queue, "--wait", "30s"]);
        let lease = received["lease"].as_str().unwrap();
        self.ok(&["settle", "fail", queue, lease, "--error", error, "--dead"]);
    }

    /// Stops it in good order and gives back its directory.
    pub(crate) fn stop(mut self) -> (i32, PathBuf, StoppedBroker) {
        signal(&self.child, "TERM");
        let status = self.child.wait().unwrap();
        let path = self.path();
        (status.code().unwrap(), path, StoppedBroker(self))
    }
}

/// Keeps the directory of a broker that has ended.
pub(crate) struct StoppedBroker(#[expect(dead_code, reason = "held for its lifetime")] Broker);

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by its name.
pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
    assert!(status.success());
}
