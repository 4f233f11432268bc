//! A broker of the benchmark's own: another process of this program, on a free port.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Opening an empty directory takes a moment; this is for a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends and is removed with all its data when it is dropped.
#[derive(Debug)]
pub(super) struct Own {
    child: Child,
    directory: PathBuf,
    address: String,
}

impl Own {
    pub(super) async fn start(parent: &Path, partitions: u16) -> Result<Self> {
        let name = format!("hapax-bench-{}", uuid::Uuid::now_v7().simple());
        let directory = std::path::absolute(parent)?.join(name);
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("{} cannot be made", directory.display()))?;
        let spawned = Command::new(std::env::current_exe()?)
            .args(["serve", "--auth", "off", "--listen", "127.0.0.1:0", "--log", "warn"])
            .args(["--config", "off", "--partitions", &partitions.to_string()])
            .args(["--data", "data", "--port-file", "port"])
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let _ = std::fs::remove_dir_all(&directory);
                return Err(error).context("a broker cannot be started");
            }
        };
        let mut own = Self { child, directory, address: String::new() };
        own.address = own.wait().await?;
        Ok(own)
    }

    async fn wait(&mut self) -> Result<String> {
        let start = Instant::now();
        let file = self.directory.join("port");
        while start.elapsed() < PATIENCE {
            if let Ok(address) = std::fs::read_to_string(&file) {
                return Ok(address.trim().to_owned());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the broker that was started ended at once: {status}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the broker that was started does not listen");
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
