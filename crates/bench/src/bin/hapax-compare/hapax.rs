//! Hapax over its gRPC streams, with its own client: a queue with the defaults, exactly-once, its
//! keys remembered for seven days. Several binaries may be compared with each other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_bench::cpu::Times;
use hapax_bench::interrupt::unless_interrupted;
use hapax_bench::ledger::REPEATED;
use hapax_bench::server::{Directory, Server};
use hapax_bench::wire::{self, Shape};
use hapax_client::{Admin, Client, Queue};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::system::{Load, Measured, Options, Running, Tuning};

/// The name of Hapax for `--only`, even if several binaries have their own names.
pub(crate) const NAME: &str = "hapax";

/// Timeout for the broker to answer.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A sender pushes a batch when its window has room for it. The window, and the credits of a
/// worker, are as many batches as the pipeline says.
const TUNING: Tuning = Tuning { producers: 2, workers: 2, batch: 1_024, pipeline: 4 };

/// A binary of Hapax and its name in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Binary {
    /// `NAME=PATH`, or a path alone.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (name, path),
            _ => (NAME, text),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !name.is_empty() && name.bytes().all(is_plain);
        ensure!(is_name, "a name has letters, digits, '-', '.' and '_' only");
        ensure!(Path::new(path).is_file(), "there is no {path}");
        Ok(Self { name: name.to_owned(), path: std::path::absolute(path)? })
    }

    /// The binary that was built together with this one. Checked only when it is started: it may
    /// not be needed.
    pub(crate) fn beside_this() -> Result<Self> {
        let path = std::env::current_exe()?.with_file_name("hapax");
        Ok(Self { name: NAME.to_owned(), path })
    }
}

#[derive(Debug)]
pub(crate) struct Hapax {
    tuning: Tuning,
    address: String,
    runtime: Runtime,
    server: Server,
}

impl Hapax {
    pub(crate) fn start(program: &Path, options: &Options) -> Result<Self> {
        ensure!(
            program.is_file(),
            "there is no {}: build it first with cargo build --release -p hapax, \
             or name one by --hapax",
            program.display()
        );
        let directory = Directory::create(&options.dir, "compare")?;
        let (server, address) = Server::broker(program, directory, &[])?;
        let runtime = Runtime::new()?;
        runtime.block_on(async { Client::connect(&address)?.ready(READY_TIMEOUT).await })?;
        Ok(Self { tuning: TUNING.or(options), address, runtime, server })
    }

    async fn live(&self, load: &Load) -> Result<Measured> {
        let client = Client::connect(&self.address)?;
        let admin = Admin::new(client.clone());
        let queue = format!("run-{}", Uuid::now_v7().simple());
        admin.put_queue(&queue, "{}", None).await?;
        let batch = usize::from(self.tuning.batch);
        let shape = Shape {
            producers: self.tuning.producers.into(),
            workers: self.tuning.workers.into(),
            window: batch * usize::from(self.tuning.pipeline),
            batch,
            has_keys: true,
            rate: None,
        };
        let before = Times::now(Some(self.server.process_id()));
        let ledger = Arc::new(load.ledger());
        wire::run(shape, &queue, &ledger, || Ok(Client::connect(&self.address)?)).await?;
        let ledger = Arc::into_inner(ledger).context("a task that did not end")?;
        let measured = Measured::since(before, &self.server, ledger)?;
        verify(&admin, &client.queue(&queue), load).await?;
        Ok(measured)
    }
}

impl Running for Hapax {
    fn server(&self) -> &Server {
        &self.server
    }

    fn run(&self, load: &Load) -> Result<Measured> {
        self.runtime.block_on(unless_interrupted(self.live(load)))?
    }
}

/// Nothing is left, and keys that were sent are known.
async fn verify(admin: &Admin, queue: &Queue, load: &Load) -> Result<()> {
    let count = load.messages.count();
    let repeated = (0..count.min(REPEATED)).map(|number| {
        let key = load.messages.key(number);
        wire::message(&load.messages, number).key(key.to_string())
    });
    let mut accepted = 0;
    for answer in queue.send_all(repeated).await? {
        accepted += u64::from(answer?.is_new());
    }
    ensure!(accepted == 0, "{accepted} repeated keys were accepted again");
    let stats = admin.queue(queue.name()).await?.stats.context("a queue without figures")?;
    let left = stats.ready + stats.delayed + stats.leased + stats.parked + stats.dead;
    ensure!(left == 0, "{left} messages are left in the queue");
    ensure!(stats.keys == count, "Hapax has {} keys, not {count}", stats.keys);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_is_a_path_or_a_name_with_a_path() {
        let file = tempfile::Builder::new().suffix("=new").tempfile().unwrap();
        let path = file.path().to_str().unwrap();
        let name = |text: &str| Binary::parse(text).map(|binary| binary.name);
        assert_eq!(name(path).unwrap(), "hapax");
        assert_eq!(name(&format!("old={path}")).unwrap(), "old");
        assert_eq!(Binary::parse(&format!("old={path}")).unwrap().path, file.path());
        assert!(name(&format!("={path}")).is_err());
        assert!(name(&format!("o d={path}")).is_err());
        assert!(name("old=/nowhere/hapax").unwrap_err().to_string().contains("/nowhere/hapax"));
    }
}
