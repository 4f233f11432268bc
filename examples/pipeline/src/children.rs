//! Processes of this same program, each with its role: started, killed, started again.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal};

/// Ports below those that the kernel assigns to clients: a client that connects while a server is
/// down must not get the server's own port.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A process, and how it is started.
#[derive(Debug)]
struct Running {
    name: String,
    arguments: Vec<String>,
    child: Child,
    kills: usize,
}

/// All processes. Those left at the end are killed.
#[derive(Debug, Default)]
pub(crate) struct Children(Vec<Running>);

impl Children {
    /// Starts this program with these arguments.
    pub(crate) fn start(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let child = spawn(&arguments).with_context(|| format!("cannot start {name}"))?;
        self.0.push(Running { name: name.to_owned(), arguments, child, kills: 0 });
        Ok(())
    }

    /// Kills the first process that `is_meant` selects, with `kill -9`, and starts it again.
    /// Returns its name.
    pub(crate) fn kill(&mut self, is_meant: impl Fn(&str, u32) -> bool) -> Result<Option<&str>> {
        let mut all = self.0.iter_mut();
        let Some(running) = all.find(|running| is_meant(&running.name, running.child.id())) else {
            return Ok(None);
        };
        running.child.kill()?;
        running.child.wait()?;
        running.child = spawn(&running.arguments)?;
        running.kills += 1;
        Ok(Some(&running.name))
    }

    /// How often each was killed.
    pub(crate) fn kills(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|running| (running.name.as_str(), running.kills))
    }

    /// Fails if one has ended by itself.
    pub(crate) fn are_alive(&mut self) -> Result<()> {
        for running in &mut self.0 {
            if let Some(status) = running.child.try_wait()? {
                anyhow::bail!("{} has ended by itself: {status}", running.name);
            }
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for running in &mut self.0 {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

fn spawn(arguments: &[String]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command.spawn()?)
}

/// For a child: makes it end with its parent, however that ends.
pub(crate) fn end_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// An unused address, which stays the same over restarts.
pub(crate) fn free_address(random: &mut fastrand::Rng) -> Result<SocketAddr> {
    for _ in 0..1_000 {
        let address = SocketAddr::from(([127, 0, 0, 1], random.u16(PORTS)));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    anyhow::bail!("no free port was found in {PORTS:?}")
}
