//! A broker of its own for every test, and the commands that are run against it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hapax_testing::{BrokerProcess, Setup, program};
use serde_json::Value;
use tempfile::TempDir;

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Printed {
    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The program in a directory.
pub(crate) fn hapax(directory: &Path) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_hapax"));
    command.current_dir(directory);
    command
}

/// A broker in a temporary directory, in which its commands run.
pub(crate) struct Broker {
    process: BrokerProcess,
    pub(crate) url: String,
}

impl Broker {
    pub(crate) fn start() -> Self {
        Self::start_of(1)
    }

    /// With so many partitions.
    pub(crate) fn start_of(partitions: u16) -> Self {
        Self::start_as(setup(tempfile::tempdir().unwrap()).partitions(partitions))
    }

    pub(crate) fn start_in(directory: TempDir, arguments: &[&str]) -> Self {
        Self::start_as(setup(directory).arguments(arguments))
    }

    fn start_as(setup: Setup) -> Self {
        Self { url: setup.url(), process: setup.start() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.process.setup.path().to_owned()
    }

    /// A command that talks to this broker.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.process.command(arguments)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Printed {
        Printed::of(&self.command(arguments).output().unwrap())
    }

    /// Runs it with something on its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Printed {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input).unwrap();
        drop(stdin);
        Printed::of(&child.wait_with_output().unwrap())
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

    /// Stops it in good order; what is left of it keeps its directory.
    pub(crate) fn stop(self) -> Setup {
        self.process.stop()
    }
}

fn setup(directory: TempDir) -> Setup {
    Setup::temporary(env!("CARGO_BIN_EXE_hapax"), directory)
}
