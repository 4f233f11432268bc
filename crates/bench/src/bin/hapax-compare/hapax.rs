//! Hapax over its gRPC streams, with its own client: a queue with the defaults, exactly-once, its
//! keys remembered for seven days. Several binaries may be compared with each other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_bench::interrupt::unless_interrupted;
use hapax_bench::ledger::REPEATED;
use hapax_bench::server::{Directory, Server};
use hapax_bench::wire::{self, Shape};
use hapax_client::{Admin, Client, Queue};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::postgres::cluster::Cluster;
use crate::system::{Before, Load, Measured, Options, Running, Tuning};

/// The name of Hapax for `--only`, even if several binaries have their own names.
pub(crate) const NAME: &str = "hapax";

/// Its names with its data in PostgreSQL.
pub(crate) const ON_POSTGRES: &str = "hapax-postgres";
pub(crate) const WITH_STANDBY: &str = "hapax-postgres-standby";
pub(crate) const WITH_SNAPSHOT: &str = "hapax-postgres-snapshot";

/// Where the data of Hapax is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Directory,
    Postgres,
    /// A synchronous standby on the same machine.
    WithStandby,
    /// A session keeps a snapshot from before the first run, as a long pg_dump does.
    WithSnapshot,
}

impl Place {
    /// Whether that is the name of the binary beside this program.
    pub(crate) fn names(self, name: &str) -> bool {
        [NAME, ON_POSTGRES, WITH_STANDBY, WITH_SNAPSHOT].contains(&name)
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Directory => "",
            Self::Postgres => ", on PostgreSQL",
            Self::WithStandby => ", on PostgreSQL, synchronous standby",
            Self::WithSnapshot => ", on PostgreSQL, old snapshot held",
        }
    }
}

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
    /// Dropped after the server.
    databases: Vec<Cluster>,
    /// The session that keeps a snapshot.
    _snapshot: Option<tokio_postgres::Client>,
}

impl Hapax {
    pub(crate) fn start(program: &Path, place: Place, options: &Options) -> Result<Self> {
        ensure!(
            program.is_file(),
            "there is no {}: build it first with cargo build --release -p hapax, \
             or name one by --hapax",
            program.display()
        );
        let runtime = Runtime::new()?;
        let databases = match place {
            Place::Directory => Vec::new(),
            Place::Postgres | Place::WithSnapshot => vec![Cluster::start(&runtime, &options.dir)?],
            Place::WithStandby => Cluster::start_with_standby(&runtime, &options.dir)?.into(),
        };
        let mut flags: Vec<String> = Vec::new();
        if let Some(database) = databases.first() {
            flags.extend(["--store".to_owned(), database.url()]);
        }
        if let Some(partitions) = options.partitions {
            flags.extend(["--partitions".to_owned(), partitions.to_string()]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let directory = Directory::create(&options.dir, "compare")?;
        let (server, address) = Server::broker(program, directory, &flags)?;
        runtime.block_on(async { Client::connect(&address)?.ready(READY_TIMEOUT).await })?;
        let snapshot = match (place, databases.first()) {
            (Place::WithSnapshot, Some(database)) => Some(runtime.block_on(hold(database))?),
            _ => None,
        };
        let tuning = TUNING.or(options);
        Ok(Self { tuning, address, runtime, server, databases, _snapshot: snapshot })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
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
            piles_up: false,
        };
        let before = Before::now(self).await?;
        let ledger = Arc::new(load.ledger());
        wire::run(shape, &queue, &ledger, || Ok(Client::connect(&self.address)?)).await?;
        let ledger = Arc::into_inner(ledger).context("a task that did not end")?;
        let measured = before.measured(self, ledger).await?;
        verify(&admin, &client.queue(&queue), load).await?;
        Ok(measured)
    }
}

impl Running for Hapax {
    fn server(&self) -> &Server {
        &self.server
    }

    fn databases(&self) -> &[Cluster] {
        &self.databases
    }

    fn run(&self, load: &Load) -> Result<Measured> {
        self.runtime.block_on(unless_interrupted(self.live(load)))?
    }
}

/// A session that sees the tables as they are now for as long as it is open.
async fn hold(database: &Cluster) -> Result<tokio_postgres::Client> {
    let client = database.connect().await?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM hapax.partition";
    client.batch_execute(begin).await?;
    Ok(client)
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
