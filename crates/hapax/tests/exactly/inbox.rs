//! Workers with an inbox as processes, killed again and again: every message has its effect once.
//! The same workers without an inbox, killed the same way, have some twice.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hapax_client::{Client, Delivery, Failure, Worker};
use hapax_transactions::sqlite::Database;
use hapax_transactions::{Dialect, RunInBlockingTransaction, RunInTransaction};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::{Value, json};

use crate::broker::{Broker, Setup, pause, until};
use crate::cluster::Postgres;
use crate::http::Request;
use crate::process::{RULES, put, stats};

/// The variable that tells a process its part, and the test that plays it.
const PART: &str = "EXACTLY_INBOX_PART";
const STAGE: &str = "inbox::a_worker_with_an_inbox_works_until_it_is_killed";

const MESSAGES: usize = 200;
const KILLS: usize = 15;
const EFFECTS: &str = "CREATE TABLE effects (name text NOT NULL)";

/// A process that is not needed any more at the end of the test.
struct Process(Child);

impl Process {
    /// A worker of `orders` with an inbox in this database, or without one.
    fn start(broker: &Broker, database: &str, how: &str) -> Self {
        Self::start_at(broker, database, how, Path::new(""))
    }

    /// One that stands still in the middle of the message `key-1`, at this gate.
    fn start_at(broker: &Broker, database: &str, how: &str, gate: &Path) -> Self {
        let part = json!({
            "server": broker.url(), "database": database, "how": how, "gate": gate,
        });
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", STAGE, "--nocapture"]).env(PART, part.to_string());
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// With no time for last words.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_worker_with_an_inbox_works_until_it_is_killed() {
    if let Ok(part) = std::env::var(PART) {
        return play(&serde_json::from_str(&part).unwrap());
    }
    let shop = Shop::sqlite();
    let mut worker = Process::start(&shop.broker, &shop.url, "inbox");
    shop.send(0..1);
    shop.until_done(1);
    worker.kill();
    assert_eq!((shop.effects(), shop.effects_of_different_messages()), (1, 1));
}

/// What a process does until it is killed.
fn play(part: &Value) {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (url, how) = (part["database"].as_str().unwrap(), part["how"].as_str().unwrap());
    let gate = PathBuf::from(part["gate"].as_str().unwrap());
    let client = runtime.block_on(async { Client::connect(part["server"].as_str().unwrap()) });
    let worker = Worker::new(client.unwrap().queue("orders")).concurrency(4);
    let ended = match (url.strip_prefix("sqlite://"), how) {
        (Some(path), "inbox") => {
            let database = Database::open(path).unwrap();
            let handler = move |tx: &rusqlite::Transaction<'_>, message: &Delivery| {
                effect(tx, message.key(), &gate)
            };
            let ended = worker.run_in_blocking_transaction(database, "billing", handler);
            runtime.block_on(ended).map_err(|error| error.to_string())
        }
        (Some(path), _) => {
            let database = Database::open(path).unwrap();
            let handler = move |message: Delivery, _context| {
                let (database, gate) = (database.clone(), gate.clone());
                let write = move || database.transaction(|tx| effect(tx, message.key(), &gate));
                async move { tokio::task::spawn_blocking(write).await? }
            };
            runtime.block_on(worker.run(handler)).map_err(|error| error.to_string())
        }
        (None, _) => {
            let config = url.parse().unwrap();
            let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
            let pool = deadpool_postgres::Pool::builder(manager).max_size(4).build().unwrap();
            let ended = worker.run_in_transaction(pool, "billing", |tx, message| {
                Box::pin(async move {
                    tx.execute("INSERT INTO effects VALUES ($1)", &[&message.key()]).await?;
                    Ok::<_, Failure>("charged")
                })
            });
            runtime.block_on(ended).map_err(|error| error.to_string())
        }
    };
    ended.unwrap();
}

/// What a message is to do once.
fn effect(
    transaction: &rusqlite::Transaction<'_>,
    key: &str,
    gate: &Path,
) -> Result<&'static str, Failure> {
    transaction.execute("INSERT INTO effects VALUES (?1)", [key])?;
    if key == "key-1" && gate.is_dir() {
        std::fs::write(gate.join("reached"), "")?;
        until("the gate to open", || gate.join("open").exists().then_some(()));
    }
    Ok("charged")
}

/// A broker, a database for effects, and a place for both.
struct Shop {
    broker: Broker,
    url: String,
    database: Option<Database>,
    postgres: Option<Postgres>,
    _directory: tempfile::TempDir,
}

impl Shop {
    fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let database = Database::open(&path).unwrap();
        for sql in [Dialect::Sqlite.inbox(), EFFECTS] {
            database.execute_batch(sql).unwrap();
        }
        let url = format!("sqlite://{}", path.display());
        let broker = open(directory.path());
        Self { broker, url, database: Some(database), postgres: None, _directory: directory }
    }

    fn postgres() -> Option<Self> {
        let postgres = Postgres::start()?;
        postgres.sql(Dialect::Postgres.inbox());
        postgres.sql(EFFECTS);
        let directory = tempfile::tempdir().unwrap();
        let (broker, url) = (open(directory.path()), postgres.url());
        Some(Self { broker, url, database: None, postgres: Some(postgres), _directory: directory })
    }

    fn number(&self, sql: &str) -> i64 {
        if let Some(postgres) = &self.postgres {
            return postgres.number(sql);
        }
        let number =
            |it: &mut rusqlite::Connection| Ok(it.query_row(sql, [], |row| row.get(0)).unwrap());
        self.database.as_ref().unwrap().with(number).unwrap()
    }

    fn effects(&self) -> i64 {
        self.number("SELECT count(*) FROM effects")
    }

    fn effects_of_different_messages(&self) -> i64 {
        self.number("SELECT count(DISTINCT name) FROM effects")
    }

    fn send(&self, keys: std::ops::Range<usize>) {
        let mut door = self.broker.connection();
        for key in keys {
            door.ask(&Request::send("orders", &format!("key-{key}"), "x")).is(201);
        }
    }

    fn done(&self) -> u64 {
        stats(&mut self.broker.connection(), "orders")["done_total"].as_u64().unwrap()
    }

    #[track_caller]
    fn until_done(&self, count: u64) {
        until("the work to be done", || (self.done() >= count).then_some(()));
    }
}

fn open(directory: &Path) -> Broker {
    let broker = Setup::new(directory).start();
    put(&mut broker.connection(), "orders", RULES);
    broker
}

/// Workers come and are killed while there is work, two at a time.
fn are_killed_again_and_again(shop: &Shop, how: &str) {
    let mut workers: Vec<Process> = Vec::new();
    let mut sent = 0;
    for kill in 0..KILLS {
        let until_message = MESSAGES * (kill + 1) / KILLS;
        let before = shop.done();
        shop.send(sent..until_message);
        sent = until_message;
        workers.push(Process::start(&shop.broker, &shop.url, how));
        until("some work", || (shop.done() > before).then_some(()));
        pause(Duration::from_micros(fastrand::u64(..30_000)));
        if workers.len() > 1 {
            workers.remove(0).kill();
        }
    }
    shop.until_done(MESSAGES as u64);
}

#[test]
fn workers_killed_again_and_again_have_every_effect_once_in_postgres() {
    let Some(shop) = Shop::postgres() else { return };
    are_killed_again_and_again(&shop, "inbox");
    assert_eq!(shop.effects_of_different_messages(), MESSAGES as i64);
    assert_eq!(shop.effects(), MESSAGES as i64);
}

#[test]
fn workers_killed_again_and_again_have_every_effect_once_in_sqlite() {
    let shop = Shop::sqlite();
    are_killed_again_and_again(&shop, "inbox");
    assert_eq!(shop.effects_of_different_messages(), MESSAGES as i64);
    assert_eq!(shop.effects(), MESSAGES as i64);
}

/// Stops a process, and waits until all of its threads stand still: until then one of them may
/// still take a lock, or answer.
fn stop(process: u32) {
    signal(process, Signal::STOP);
    let stands_still = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    until("a process to stand still", || {
        let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        threads.all(stands_still).then_some(())
    });
}

fn wake(process: u32) {
    signal(process, Signal::CONT);
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(process, signal).unwrap();
}

/// The worker stands in the middle of its transaction when the broker is made to stand still; then
/// it commits, would settle, and is killed. Tells how often the message had its effect.
fn is_killed_between_commit_and_settle(how: &str) -> i64 {
    let shop = Shop::sqlite();
    let gate = tempfile::tempdir().unwrap();
    shop.send(1..2);
    let mut worker = Process::start_at(&shop.broker, &shop.url, how, gate.path());
    until("the worker to be in the middle", || gate.path().join("reached").exists().then_some(()));
    assert_eq!(shop.effects(), 0);
    stop(shop.broker.pid());
    std::fs::write(gate.path().join("open"), "").unwrap();
    until("the effect", || (shop.effects() == 1).then_some(()));
    worker.kill();
    wake(shop.broker.pid());
    let _second = Process::start(&shop.broker, &shop.url, how);
    shop.until_done(1);
    shop.effects()
}

#[test]
fn a_worker_killed_between_commit_and_settle_has_had_its_effect_once() {
    assert_eq!(is_killed_between_commit_and_settle("inbox"), 1);
}

#[test]
fn without_an_inbox_the_same_kill_has_the_effect_twice() {
    assert_eq!(is_killed_between_commit_and_settle("bare"), 2, "this is what the inbox is for");
}

/// A worker process stopped while it has a message, and woken when another has done it.
#[test]
fn a_stopped_worker_that_wakes_late_writes_nothing() {
    let shop = Shop::sqlite();
    let sleeper = Process::start(&shop.broker, &shop.url, "inbox");
    shop.send(0..1);
    shop.until_done(1);
    // It waits for the database with its next message, or has not even read it.
    let connection = rusqlite::Connection::open(shop.database.as_ref().unwrap().path()).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    shop.send(1..2);
    until("the message to be taken", || {
        (stats(&mut shop.broker.connection(), "orders")["leased"] == 1).then_some(())
    });
    stop(sleeper.pid());
    connection.execute_batch("ROLLBACK").unwrap();
    let second = Process::start(&shop.broker, &shop.url, "inbox");
    shop.until_done(2);
    assert_eq!(shop.effects(), 2);
    drop(second);
    wake(sleeper.pid());
    // Its messages come in order and its transactions one after the other: when it has done the
    // next one, it has had its say about the one it slept over.
    shop.send(2..3);
    shop.until_done(3);
    assert_eq!((shop.effects(), shop.effects_of_different_messages()), (3, 3));
}
