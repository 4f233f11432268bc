//! Workers with an inbox as processes, killed again and again: every message has its effect once.
//! The same workers without an inbox, killed the same way, have some twice.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hapax_client::{Client, Delivery, Failure, Worker};
use hapax_transactions::sqlite::Database;
use hapax_transactions::{Dialect, InTransaction};
use rustix::process::set_parent_process_death_signal;
use serde_json::{Value, json};

use crate::process::{RULES, key, put, stats, until_it_is};
use crate::{broker_in, hapax};
use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, Postgres, Signal, pause, printed, signal, suspend, until};

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
    fn start(broker: &BrokerProcess, database: &str, how: &str) -> Self {
        Self::start_at(broker, database, how, Path::new(""))
    }

    /// One with an inbox and a token.
    fn start_with(broker: &BrokerProcess, database: &str, token: &str) -> Self {
        Self::play(&json!({
            "server": broker.url(), "database": database, "how": "inbox", "gate": "",
            "token": token,
        }))
    }

    /// One that stands still in the middle of the message `key-1`, at this gate.
    fn start_at(broker: &BrokerProcess, database: &str, how: &str, gate: &Path) -> Self {
        Self::play(&json!({
            "server": broker.url(), "database": database, "how": how, "gate": gate,
        }))
    }

    fn play(part: &Value) -> Self {
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
    let shop = Shop::sqlite(1);
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
    let mut client = Client::builder(part["server"].as_str().unwrap());
    if let Some(token) = part["token"].as_str() {
        client = client.token(token);
    }
    let client = runtime.block_on(async { client.connect() });
    let worker = Worker::new(client.unwrap().queue("orders")).concurrency(4);
    let ended = match (url.strip_prefix("sqlite://"), how) {
        (Some(path), "inbox") => {
            let database = Database::open(path).unwrap();
            let handler = move |tx: &rusqlite::Transaction<'_>, message: &Delivery| {
                effect(tx, message, &gate)
            };
            let ended = InTransaction::new(worker, database, "billing").run(handler);
            runtime.block_on(ended).map_err(|error| error.to_string())
        }
        (Some(path), _) => {
            let database = Database::open(path).unwrap();
            let handler = move |message: Delivery, _context| {
                let (database, gate) = (database.clone(), gate.clone());
                let write = move || database.transaction(|tx| effect(tx, &message, &gate));
                async move { tokio::task::spawn_blocking(write).await? }
            };
            runtime.block_on(worker.run(handler)).map_err(|error| error.to_string())
        }
        (None, _) => {
            let config = url.parse().unwrap();
            let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
            let pool = deadpool_postgres::Pool::builder(manager).max_size(4).build().unwrap();
            let ended = InTransaction::new(worker, pool, "billing").run(|tx, message| {
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
    message: &Delivery,
    gate: &Path,
) -> Result<String, Failure> {
    transaction.execute("INSERT INTO effects VALUES (?1)", [message.key()])?;
    if message.key() == "key-1" && gate.is_dir() {
        std::fs::write(gate.join("reached"), "")?;
        until("the gate to open", || gate.join("open").exists().then_some(()));
    }
    Ok(format!("charged for {}", String::from_utf8_lossy(message.body())))
}

/// A broker, a database for effects, and a place for both.
struct Shop {
    broker: BrokerProcess,
    url: String,
    database: Option<Database>,
    postgres: Option<Postgres>,
    directory: tempfile::TempDir,
}

/// A database with an inbox and a place for effects, and where workers find it.
fn database(directory: &Path) -> (Database, String) {
    let path = directory.join("shop.db");
    let database = Database::open(&path).unwrap();
    for sql in [Dialect::Sqlite.inbox(), EFFECTS] {
        database.execute_batch(sql).unwrap();
    }
    (database, format!("sqlite://{}", path.display()))
}

fn number(database: &Database, sql: &str) -> i64 {
    let number =
        |it: &mut rusqlite::Connection| Ok(it.query_row(sql, [], |row| row.get(0)).unwrap());
    database.with(number).unwrap()
}

impl Shop {
    fn sqlite(partitions: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (database, url) = database(directory.path());
        let broker = open(directory.path(), partitions);
        Self { broker, url, database: Some(database), postgres: None, directory }
    }

    fn postgres(partitions: u16) -> Option<Self> {
        let postgres = Postgres::start()?;
        postgres.sql(Dialect::Postgres.inbox());
        postgres.sql(EFFECTS);
        let directory = tempfile::tempdir().unwrap();
        let (broker, url) = (open(directory.path(), partitions), postgres.url());
        Some(Self { broker, url, database: None, postgres: Some(postgres), directory })
    }

    fn number(&self, sql: &str) -> i64 {
        if let Some(postgres) = &self.postgres {
            return postgres.number(sql);
        }
        number(self.database.as_ref().unwrap(), sql)
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

fn open(directory: &Path, partitions: u16) -> BrokerProcess {
    let broker = broker_in(directory).partitions(partitions).start();
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

on_one_and_on_four!(workers_killed_again_and_again_have_every_effect_once_in_postgres);
fn workers_killed_again_and_again_have_every_effect_once_in_postgres(partitions: u16) {
    let Some(shop) = Shop::postgres(partitions) else { return };
    are_killed_again_and_again(&shop, "inbox");
    assert_eq!(shop.effects_of_different_messages(), MESSAGES as i64);
    assert_eq!(shop.effects(), MESSAGES as i64);
}

on_one_and_on_four!(workers_killed_again_and_again_have_every_effect_once_in_sqlite);
fn workers_killed_again_and_again_have_every_effect_once_in_sqlite(partitions: u16) {
    let shop = Shop::sqlite(partitions);
    are_killed_again_and_again(&shop, "inbox");
    assert_eq!(shop.effects_of_different_messages(), MESSAGES as i64);
    assert_eq!(shop.effects(), MESSAGES as i64);
}

/// The worker stands in the middle of its transaction when the broker is made to stand still; then
/// it commits, would settle, and is killed. Tells how often the message had its effect.
fn is_killed_between_commit_and_settle(partitions: u16, how: &str) -> i64 {
    let shop = Shop::sqlite(partitions);
    let gate = tempfile::tempdir().unwrap();
    shop.send(1..2);
    let mut worker = Process::start_at(&shop.broker, &shop.url, how, gate.path());
    until("the worker to be in the middle", || gate.path().join("reached").exists().then_some(()));
    assert_eq!(shop.effects(), 0);
    suspend(shop.broker.pid());
    std::fs::write(gate.path().join("open"), "").unwrap();
    until("the effect", || (shop.effects() == 1).then_some(()));
    worker.kill();
    signal(shop.broker.pid(), Signal::CONT);
    let _second = Process::start(&shop.broker, &shop.url, how);
    shop.until_done(1);
    shop.effects()
}

on_one_and_on_four!(a_worker_killed_between_commit_and_settle_has_had_its_effect_once);
fn a_worker_killed_between_commit_and_settle_has_had_its_effect_once(partitions: u16) {
    assert_eq!(is_killed_between_commit_and_settle(partitions, "inbox"), 1);
}

on_one_and_on_four!(without_an_inbox_the_same_kill_has_the_effect_twice);
fn without_an_inbox_the_same_kill_has_the_effect_twice(partitions: u16) {
    assert_eq!(
        is_killed_between_commit_and_settle(partitions, "bare"),
        2,
        "this is what the inbox is for"
    );
}

on_one_and_on_four!(a_stopped_worker_that_wakes_late_writes_nothing);
/// A worker process stopped while it has a message, and woken when another has done it.
fn a_stopped_worker_that_wakes_late_writes_nothing(partitions: u16) {
    let shop = Shop::sqlite(partitions);
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
    suspend(sleeper.pid());
    connection.execute_batch("ROLLBACK").unwrap();
    let second = Process::start(&shop.broker, &shop.url, "inbox");
    shop.until_done(2);
    assert_eq!(shop.effects(), 2);
    drop(second);
    signal(sleeper.pid(), Signal::CONT);
    // Its messages come in order and its transactions one after the other: when it has done the
    // next one, it has had its say about the one it slept over.
    shop.send(2..3);
    shop.until_done(3);
    assert_eq!((shop.effects(), shop.effects_of_different_messages()), (3, 3));
}

on_one_and_on_four!(a_worker_that_dies_before_its_commit_has_had_no_effect);
fn a_worker_that_dies_before_its_commit_has_had_no_effect(partitions: u16) {
    let shop = Shop::sqlite(partitions);
    let gate = tempfile::tempdir().unwrap();
    shop.send(1..2);
    let mut worker = Process::start_at(&shop.broker, &shop.url, "inbox", gate.path());
    until("the worker to be in the middle", || gate.path().join("reached").exists().then_some(()));
    worker.kill();
    assert_eq!((shop.effects(), shop.number("SELECT count(*) FROM hapax_inbox")), (0, 0));
    let _second = Process::start(&shop.broker, &shop.url, "inbox");
    shop.until_done(1);
    assert_eq!(shop.effects(), 1);
    let done = key(&mut shop.broker.connection(), "key-1");
    assert!(done["attempts"].as_u64() >= Some(2), "{done}");
}

on_one_and_on_four!(a_worker_stopped_in_its_transaction_past_its_lease_commits_once);
/// A worker process stopped in the middle of its transaction until its lease is over, and woken:
/// whoever commits first has the effect, and nobody after.
fn a_worker_stopped_in_its_transaction_past_its_lease_commits_once(partitions: u16) {
    let shop = Shop::sqlite(partitions);
    let gate = tempfile::tempdir().unwrap();
    shop.send(1..2);
    let sleeper = Process::start_at(&shop.broker, &shop.url, "inbox", gate.path());
    until("the worker to be in the middle", || gate.path().join("reached").exists().then_some(()));
    suspend(sleeper.pid());
    let _second = Process::start(&shop.broker, &shop.url, "inbox");
    until("the second delivery", || {
        let found = key(&mut shop.broker.connection(), "key-1");
        (found["attempts"].as_u64() >= Some(2)).then_some(())
    });
    assert_eq!(shop.effects(), 0, "the database is the sleeper's");
    signal(sleeper.pid(), Signal::CONT);
    std::fs::write(gate.path().join("open"), "").unwrap();
    shop.until_done(1);
    assert_eq!((shop.effects(), shop.number("SELECT count(*) FROM hapax_inbox")), (1, 1));
}

on_one_and_on_four!(a_broker_restored_from_a_backup_delivers_again_and_nothing_is_done_again);
fn a_broker_restored_from_a_backup_delivers_again_and_nothing_is_done_again(partitions: u16) {
    let mut shop = Shop::sqlite(partitions);
    shop.send(0..4);
    let path = |name: &str| shop.directory.path().join(name);
    let (backup, restored) = (path("backup"), path("restored"));
    let ran = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
    };
    ran(shop.broker.command(&["backup", "--online"]).arg(&backup));
    let mut worker = Process::start(&shop.broker, &shop.url, "inbox");
    shop.until_done(4);
    worker.kill();
    shop.broker.kill();
    ran(hapax(&["restore"]).arg(&backup).arg(&restored));
    shop.broker = broker_in(shop.directory.path()).data(&restored).partitions(partitions).start();
    // As an older release left them, whose fences began again below those of the rows.
    let above = "UPDATE hapax_inbox SET fence = 9223372036854775807 WHERE message_key > 'key-1'";
    shop.database.as_ref().unwrap().execute_batch(above).unwrap();
    let _second = Process::start(&shop.broker, &shop.url, "inbox");
    shop.until_done(4);
    assert_eq!((shop.effects(), shop.effects_of_different_messages()), (4, 4));
    let done = key(&mut shop.broker.connection(), "key-2");
    assert_eq!(done["result"]["body"], "charged for x", "the stored result: {done}");
}

on_one_and_on_four!(tenants_that_share_a_database_do_not_hide_each_others_messages);
fn tenants_that_share_a_database_do_not_hide_each_others_messages(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (database, url) = database(directory.path());
    let setup = broker_in(directory.path()).partitions(partitions);
    let setup = setup.arguments(&["--auth", "tokens"]);
    let tokens = ["acme", "globex"].map(|tenant| {
        let mut create =
            hapax(&["token", "create", "--tenant", tenant, "--can", "send,work,admin"]);
        let output = create.arg("--data").arg(&setup.data).output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
        (tenant, String::from_utf8(output.stdout).unwrap().trim().to_owned())
    });
    let broker = setup.start();
    let mut workers = Vec::new();
    for (tenant, token) in &tokens {
        let mut door = broker.connection().token(token);
        put(&mut door, "orders", RULES);
        door.ask(&Request::send("orders", "key-0", *tenant)).is(201);
        workers.push(Process::start_with(&broker, &url, token));
    }
    for (tenant, token) in &tokens {
        let mut door = broker.connection().token(token);
        let done = until_it_is(&mut door, "key-0", "done");
        assert_eq!(done["result"]["body"], format!("charged for {tenant}"), "{done}");
    }
    assert_eq!(number(&database, "SELECT count(*) FROM effects WHERE name = 'key-0'"), 2);
    let rows = "SELECT count(*) FROM hapax_inbox WHERE tenant IN ('acme', 'globex')
                AND queue = 'orders' AND message_key = 'key-0'";
    assert_eq!(number(&database, rows), 2, "a row for each");
}
