//! One server process with a directory of its own, both gone when this is dropped.
//!
//! Not the system's services: nothing of theirs is read, changed or stopped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::load::fail_if_interrupted;

/// How long a server may take until it answers, or until it is gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often it is asked meanwhile.
const INTERVAL: Duration = Duration::from_millis(20);

/// A directory for one server's data, under the one the user chose.
pub(crate) fn directory_in(place: &Path, name: &str) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&format!(".hapax-compare-{name}-"))
        .tempdir_in(place)
        .with_context(|| format!("no directory for {name} in {}", place.display()))
}

/// A port that nobody listened on a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    child: Child,
    /// What ends it at once; its data is not needed any more.
    stop: Signal,
    log: PathBuf,
    /// Held for its drop, which comes after the process is gone.
    _directory: TempDir,
}

impl Server {
    pub(crate) fn start(
        name: &'static str,
        mut command: Command,
        stop: Signal,
        directory: TempDir,
    ) -> Result<Self> {
        let log = directory.path().join("compare.log");
        let output = fs::File::create(&log)?;
        // A group of its own, so that an interrupt at the terminal reaches this program alone,
        // which then stops its servers in order.
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        Ok(Self { name, child, stop, log, _directory: directory })
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Asks until there is an answer, and fails if the process ends or takes too long.
    pub(crate) fn wait_for<T>(&mut self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            fail_if_interrupted()?;
            let refusal = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}):\n{}", self.name, self.last_words());
            }
            if begun.elapsed() > PATIENCE {
                return Err(refusal.context(format!(
                    "{} does not answer:\n{}",
                    self.name,
                    self.last_words()
                )));
            }
            thread::sleep(INTERVAL);
        }
    }

    /// The end of its log.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors are let be: there is nobody to tell, and the process may be gone already.
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, self.stop);
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            thread::sleep(INTERVAL);
        }
    }
}
