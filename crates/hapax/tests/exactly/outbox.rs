//! `hapax relay` and `hapax sql` as processes: killed again and again, anywhere, nothing is lost,
//! nothing is doubled, and groups keep their order. Without keys the same scene sends twice.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use hapax_transactions::sqlite::Database;
use hapax_transactions::{Dialect, outbox};
use serde_json::{Value, json};

use crate::process::{put, stats};
use crate::{broker_in, hapax};
use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, Postgres, Signal, pause, signal, until};

/// Rows of a run, and groups they belong to.
const ROWS: usize = 600;
const GROUPS: usize = 5;
const KILLS: usize = 25;

/// A producer's database, as its own program uses it.
enum Shop {
    Postgres(Postgres),
    Sqlite(Database),
}

impl Shop {
    /// Made by what `hapax sql` prints.
    fn open(postgres: Option<Postgres>, directory: &Path) -> Self {
        let page = |dialect: &str, table: &str| {
            let output = hapax(&["sql", table, "--dialect", dialect]).output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        };
        match postgres {
            Some(postgres) => {
                postgres.sql(&page("postgres", "outbox"));
                postgres.sql(&page("postgres", "results"));
                Self::Postgres(postgres)
            }
            None => {
                let database = Database::open(directory.join("shop.db")).unwrap();
                for table in ["outbox", "results"] {
                    let sql = page("sqlite", table);
                    database.execute_batch(&sql).unwrap();
                }
                Self::Sqlite(database)
            }
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Postgres(postgres) => postgres.url(),
            Self::Sqlite(database) => format!("sqlite://{}", database.path().display()),
        }
    }

    fn run(&self, sql: &str) {
        match self {
            Self::Postgres(postgres) => drop(postgres.sql(sql)),
            Self::Sqlite(database) => {
                database.execute_batch(sql).unwrap();
            }
        }
    }

    fn number(&self, sql: &str) -> i64 {
        match self {
            Self::Postgres(postgres) => postgres.number(sql),
            Self::Sqlite(database) => {
                database.with(|it| Ok(it.query_row(sql, [], |row| row.get(0)).unwrap())).unwrap()
            }
        }
    }

    /// Rows of all groups in turns, some at a time, as transactions do.
    fn send(&self, rows: std::ops::Range<usize>) {
        let rows: Vec<String> = rows
            .map(|row| format!("('orders', 'key-{row}', 'group-{}', '{row}')", row % GROUPS))
            .collect();
        self.run(&format!(
            "INSERT INTO hapax_outbox (queue, message_key, message_group, body) VALUES {}",
            rows.join(", ")
        ));
    }

    fn left(&self) -> i64 {
        self.number("SELECT count(*) FROM hapax_outbox")
    }
}

/// A relay that is not needed any more at the end of the test.
struct Relay(Child);

impl Relay {
    fn start(broker: &BrokerProcess, shop: &Shop, arguments: &[&str]) -> Self {
        let mut command = broker.command(&["relay", "--log", "warn"]);
        command.args(arguments).env("HAPAX_DATABASE", shop.url());
        Self(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// With no time for last words.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes everything that is in the queue, in its order, and settles it.
fn drain(broker: &BrokerProcess) -> Vec<Value> {
    let mut door = broker.connection();
    let mut taken = Vec::new();
    loop {
        let receive = json!({ "max": 100, "wait_ms": 0, "lease_ms": 600_000 });
        let got = door.ask(&Request::post("/v1/queues/orders/receive", &receive)).is(200);
        let messages = got["messages"].as_array().unwrap().clone();
        if messages.is_empty() {
            return taken;
        }
        let items: Vec<Value> =
            messages.iter().map(|it| json!({ "lease": it["lease"], "do": "done" })).collect();
        let settle = json!({ "items": items });
        door.ask(&Request::post("/v1/queues/orders/settle", &settle)).is(200);
        taken.extend(messages);
    }
}

fn is_killed_again_and_again(partitions: u16, postgres: Option<Postgres>) {
    let directory = tempfile::tempdir().unwrap();
    let shop = Shop::open(postgres, directory.path());
    let broker = broker_in(directory.path()).partitions(partitions).start();
    put(&mut broker.connection(), "orders", r#"{"order":"group"}"#);
    let mut sent = 0;
    for kill in 0..KILLS {
        let until_row = ROWS * (kill + 1) / KILLS;
        shop.send(sent..until_row);
        sent = until_row;
        let before = shop.left();
        let mut relay = Relay::start(&broker, &shop, &["--poll", "20ms"]);
        // Some of them are killed before they have begun, some in the middle, some when idle.
        if kill % 3 != 0 {
            until("the relay to move something", || (shop.left() < before).then_some(()));
        }
        pause(Duration::from_micros(fastrand::u64(..20_000)));
        relay.kill();
    }
    let relay = Relay::start(&broker, &shop, &[]);
    until("the outbox to be empty", || (shop.left() == 0).then_some(()));
    drop(relay);
    all_came_once_and_in_order(&broker);
}

#[track_caller]
fn all_came_once_and_in_order(broker: &BrokerProcess) {
    let messages = drain(broker);
    assert_eq!(messages.len(), ROWS, "nothing is lost, and nothing is doubled");
    let mut last: HashMap<String, usize> = HashMap::new();
    for message in &messages {
        let number: usize = message["body"].as_str().unwrap().parse().unwrap();
        assert_eq!(message["key"], format!("key-{number}"));
        let group = message["group"].as_str().unwrap().to_owned();
        let before = last.insert(group.clone(), number);
        assert!(before.is_none_or(|before| before < number), "{group}: {before:?}, {number}");
    }
    let stats = stats(&mut broker.connection(), "orders");
    assert_eq!(stats["keys"], ROWS, "a key each: {stats}");
}

on_one_and_on_four!(
    a_relay_killed_again_and_again_loses_nothing_doubles_nothing_and_keeps_groups_in_order
);
fn a_relay_killed_again_and_again_loses_nothing_doubles_nothing_and_keeps_groups_in_order(
    partitions: u16,
) {
    let Some(postgres) = Postgres::start() else { return };
    is_killed_again_and_again(partitions, Some(postgres));
}

on_one_and_on_four!(with_sqlite_a_relay_killed_again_and_again_loses_and_doubles_nothing);
fn with_sqlite_a_relay_killed_again_and_again_loses_and_doubles_nothing(partitions: u16) {
    is_killed_again_and_again(partitions, None);
}

/// Kills a relay exactly between the broker's confirmation and the DELETE: the rows are locked, so
/// that it stands there.
fn is_killed_before_it_deletes(partitions: u16, key_of_second_relay: &str) -> Option<(Value, i64)> {
    let shop = Postgres::start()?;
    let directory = tempfile::tempdir().unwrap();
    let shop = Shop::open(Some(shop), directory.path());
    let Shop::Postgres(postgres) = &shop else { return None };
    let broker = broker_in(directory.path()).partitions(partitions).start();
    put(&mut broker.connection(), "orders", "{}");
    shop.run("INSERT INTO hapax_outbox (queue, message_key, body) VALUES ('orders', 'k', 'x')");
    let url = postgres.url();
    let (locked, release) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let holder = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let lock = "BEGIN; SELECT FROM hapax_outbox FOR UPDATE";
            client.batch_execute(lock).await.unwrap();
            locked.0.send(()).unwrap();
            tokio::task::spawn_blocking(move || release.1.recv()).await.unwrap().unwrap();
            client.batch_execute("ROLLBACK").await.unwrap();
        });
    });
    locked.1.recv().unwrap();
    let mut relay = Relay::start(&broker, &shop, &[]);
    until("the relay to stand before its DELETE", || (postgres.blocked() == 1).then_some(()));
    relay.kill();
    release.0.send(()).unwrap();
    holder.join().unwrap();
    // What its server process still held is let go of.
    until("the row", || (postgres.blocked() == 0).then_some(()));
    assert_eq!(shop.left(), 1, "confirmed, and not deleted");
    shop.run(&format!("UPDATE hapax_outbox SET message_key = '{key_of_second_relay}'"));
    let _relay = Relay::start(&broker, &shop, &[]);
    until("the outbox to be empty", || (shop.left() == 0).then_some(()));
    let stats = stats(&mut broker.connection(), "orders");
    Some((stats, drain(&broker).len() as i64))
}

on_one_and_on_four!(a_relay_killed_between_confirmation_and_delete_sends_again_under_the_same_key);
fn a_relay_killed_between_confirmation_and_delete_sends_again_under_the_same_key(partitions: u16) {
    let Some((stats, messages)) = is_killed_before_it_deletes(partitions, "k") else { return };
    assert_eq!(messages, 1);
    assert_eq!(stats["duplicate_total"], 1, "it was sent twice, and is there once: {stats}");
}

on_one_and_on_four!(with_a_fresh_key_per_try_the_same_kill_sends_twice);
/// The counterpart: a relay that makes a key per try, as one without an outbox row would.
fn with_a_fresh_key_per_try_the_same_kill_sends_twice(partitions: u16) {
    let Some((_, messages)) = is_killed_before_it_deletes(partitions, "another") else { return };
    assert_eq!(messages, 2, "this is what the key in the row is for");
}

on_one_and_on_four!(a_relay_tells_its_metrics_and_ends_in_good_order_when_it_is_told_to);
fn a_relay_tells_its_metrics_and_ends_in_good_order_when_it_is_told_to(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let shop = Shop::open(None, directory.path());
    let broker = broker_in(directory.path()).partitions(partitions).start();
    put(&mut broker.connection(), "orders", "{}");
    shop.send(0..10);
    shop.run("INSERT INTO hapax_outbox (queue, message_key, body) VALUES ('nowhere', 'k', 'x')");
    let arguments = ["--metrics", "127.0.0.1:0", "--tries", "1"];
    let mut relay = Relay::start(&broker, &shop, &arguments);
    let mut lines = BufReader::new(relay.0.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        Some(
            line.unwrap()
                .split_once("metrics at http://")?
                .1
                .trim_end_matches("/metrics")
                .to_owned(),
        )
    });
    let address = address.unwrap();
    let text = until("everything to be moved", || {
        let text = get(&address, "/metrics");
        (text.contains("hapax_relay_moved_total 10\n") && text.contains("hapax_relay_parked 1\n"))
            .then_some(text)
    });
    for line in ["hapax_relay_active 1", "hapax_relay_pending 0", "hapax_relay_parked_total 1"] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    assert!(text.contains("hapax_relay_lag_seconds 0\n"), "{text}");
    signal(relay.0.id(), Signal::TERM);
    let ended = until("the relay's end", || relay.0.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

on_one_and_on_four!(results_flow_back_over_a_kill);
fn results_flow_back_over_a_kill(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let shop = Shop::open(None, directory.path());
    let broker = broker_in(directory.path()).partitions(partitions).start();
    put(&mut broker.connection(), "orders", "{}");
    shop.send(0..20);
    let mut relay = Relay::start(&broker, &shop, &["--results", "hapax_results"]);
    until("the outbox to be empty", || (shop.left() == 0).then_some(()));
    relay.kill();
    assert_eq!(drain(&broker).len(), 20);
    let done = "SELECT count(*) FROM hapax_results WHERE state = 'done'";
    assert_eq!(shop.number(done), 0, "nobody was there to write it");
    let _relay = Relay::start(&broker, &shop, &["--results", "hapax_results"]);
    until("the results", || (shop.number(done) == 20).then_some(()));
}

#[test]
fn a_relay_says_what_is_wrong_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("empty.db");
    Database::open(&path).unwrap();
    let refused = |database: &str| {
        let output = hapax(&["relay", "--database", database]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, told) = refused(&format!("sqlite://{}", path.display()));
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("hapax sql outbox --dialect sqlite"), "{told}");
    let (code, told) = refused("mysql://shop@127.0.0.1/shop");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("postgres://USER@HOST/NAME"), "{told}");
    let (code, told) = refused("postgres://shop:secret@127.0.0.1:1/shop");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("check --database") && !told.contains("secret"), "{told}");
}

#[test]
fn the_printed_tables_are_those_of_the_library_and_can_be_made_twice() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path().join("shop.db")).unwrap();
    for (name, page) in [
        ("inbox", Dialect::Sqlite.inbox_page()),
        ("outbox", Dialect::Sqlite.outbox_page()),
        ("results", Dialect::Sqlite.results().to_owned()),
    ] {
        let output = hapax(&["sql", name, "--dialect", "sqlite"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), page);
        for _ in 0..2 {
            database.execute_batch(&page).unwrap();
        }
        let mysql = hapax(&["sql", name, "--dialect", "mysql"]).output().unwrap();
        assert!(String::from_utf8(mysql.stdout).unwrap().contains("ENGINE = InnoDB"));
    }
    let key = database.transaction(|tx| outbox::send_blocking(tx, "orders", "lemons"));
    assert_eq!(key.unwrap().len(), 36);
    let Some(postgres) = Postgres::start() else { return };
    for page in [Dialect::Postgres.inbox_page(), Dialect::Postgres.outbox_page()] {
        postgres.sql(&page);
        postgres.sql(&page);
    }
}
