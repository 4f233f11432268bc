//! A server process with its own directory; both are removed when this is dropped.
//!
//! Services of the system are not read, changed or stopped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;

/// Longest wait for a server to answer, or to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two attempts meanwhile.
const INTERVAL: Duration = Duration::from_millis(20);

/// A new directory, removed with all it contains when this is dropped.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Creates a new directory in `parent`, which need not exist.
    pub fn create(parent: &Path, name: &str) -> Result<Self> {
        let name = format!(".hapax-{name}-{}", uuid::Uuid::now_v7().simple());
        let path = std::path::absolute(parent)?.join(name);
        fs::create_dir_all(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self(path))
    }

    /// An absolute path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // An error cannot be handled here.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A port that nobody listened on a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    /// The signal that ends it at once; its data is not needed any more.
    stop: Signal,
    log: PathBuf,
    /// Dropped after the process has ended.
    directory: Directory,
}

impl Server {
    pub fn start(
        name: &'static str,
        mut command: Command,
        stop: Signal,
        directory: Directory,
    ) -> Result<Self> {
        let log = directory.path().join("log");
        let output = fs::File::create(&log)?;
        // Its own process group, so that an interrupt at the terminal only reaches this program,
        // which then stops its servers in order.
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{name} could not be started"))?;
        Ok(Self { name, child, stop, log, directory })
    }

    /// Starts a broker of Hapax on a free port, and returns its address. It gets neither the
    /// caller's environment settings nor a settings file of the working directory.
    pub fn broker(program: &Path, directory: Directory, flags: &[&str]) -> Result<(Self, String)> {
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--auth", "off"])
            .args(["--data", "data", "--port-file", "port"])
            .args(if flags.contains(&"--log") { &[][..] } else { &["--log", "warn"] })
            .args(flags)
            .current_dir(directory.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HAPAX_") {
                command.env_remove(name);
            }
        }
        let port_file = directory.path().join("port");
        let mut server = Self::start("hapax", command, Signal::KILL, directory)?;
        let address = server.wait_for(|| Ok(fs::read_to_string(&port_file)?))?;
        Ok((server, format!("http://{}", address.trim())))
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Asks until there is an answer. Fails if the process ends or takes too long.
    pub fn wait_for<T>(&mut self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            interrupt::check()?;
            let refusal = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}):\n{}", self.name, self.end_of_log());
            }
            if start.elapsed() > TIMEOUT {
                let log = self.end_of_log();
                return Err(refusal.context(format!("{} does not answer:\n{log}", self.name)));
            }
            thread::sleep(INTERVAL);
        }
    }

    pub fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, self.stop);
        }
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > TIMEOUT {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            thread::sleep(INTERVAL);
        }
    }
}
