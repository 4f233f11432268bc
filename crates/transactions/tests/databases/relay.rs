//! The relay as a task: what it moves, in what order, what it parks, what it writes back.

use std::time::Duration;

use hapax_client::{Failure, Worker};
use hapax_transactions::Relay;
use hapax_transactions::sqlite::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::stage;
use hapax_testing::{Postgres, TestQueue, eventually, in_time};

/// An outbox that a test looks into, whatever database it is in.
enum Outbox {
    Postgres(Postgres),
    Sqlite(Database),
}

impl Outbox {
    /// Both kinds, where both can be had.
    fn of_every_kind(broker: &TestQueue) -> Vec<Self> {
        let sqlite = Self::Sqlite(stage::sqlite(broker.path()));
        let postgres = stage::postgres().map(Self::Postgres);
        postgres.into_iter().chain([sqlite]).collect()
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
            Self::Sqlite(database) => stage::number(database, sql),
        }
    }

    fn send(&self, queue: &str, group: &str, key: &str) {
        self.run(&format!(
            "INSERT INTO hapax_outbox (queue, message_key, message_group, body)
             VALUES ('{queue}', '{key}', '{group}', 'body of {key}')"
        ));
    }

    fn left(&self) -> i64 {
        self.number("SELECT count(*) FROM hapax_outbox")
    }

    async fn until_left(&self, rows: i64) {
        eventually("the outbox", async || self.left() == rows).await;
    }
}

/// A relay that is told to stop at the end of its test.
struct Running(oneshot::Sender<()>, JoinHandle<Result<(), hapax_transactions::Error>>);

impl Running {
    fn start(relay: Relay) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self(stop, tokio::spawn(relay.run_until(async { drop(stopped.await) })))
    }

    async fn stop(self) {
        let _ = self.0.send(());
        in_time(self.1).await.unwrap().unwrap();
    }
}

on_each!(
    rows_are_moved_when_they_are_written_and_deleted_when_they_are_confirmed,
    flavor = "multi_thread"
);
async fn rows_are_moved_when_they_are_written_and_deleted_when_they_are_confirmed(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"order":"group"}"#).await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        // It would be an hour until the next look: rows are told of.
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = relay.poll(Duration::from_secs(3_600));
        let metrics = relay.metrics();
        let relay = Running::start(relay);
        eventually("the lock", async || metrics.is_active()).await;
        for number in 0..40 {
            outbox.send("orders", &format!("g{}", number % 3), &format!("key-{number}"));
        }
        outbox.until_left(0).await;
        assert_eq!((metrics.moved(), metrics.duplicates()), (40, 0));
        relay.stop().await;

        let ready = hapax_wire::proto::State::Ready;
        let page = broker.admin.browse("orders", ready, 1_000, "").await.unwrap();
        assert_eq!(page.messages.len(), 40);
        let mut last = std::collections::HashMap::new();
        for message in page.messages {
            let number: u32 = message.key.trim_start_matches("key-").parse().unwrap();
            let before = last.insert(message.group.clone(), number);
            assert!(before.is_none_or(|before| before < number), "{}: {number}", message.group);
        }
    }
    broker.stop().await;
}

on_each!(a_poison_row_is_parked_after_its_tries_and_its_group_goes_on, flavor = "multi_thread");
/// A row that no retry helps holds back its group, and no other, until it is parked.
async fn a_poison_row_is_parked_after_its_tries_and_its_group_goes_on(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"max_body_bytes":100}"#).await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        let poison = "x".repeat(200);
        outbox.send("orders", "a", "a1");
        outbox.run(&format!(
            "INSERT INTO hapax_outbox (queue, message_key, message_group, body)
             VALUES ('orders', 'a2', 'a', '{poison}')"
        ));
        outbox.send("orders", "a", "a3");
        outbox.send("orders", "b", "b1");
        outbox.send("orders", "", "alone");
        outbox.send("nowhere", "", "lost");
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay.tries(4).poll(Duration::from_secs(3_600)));
        // While it is tried again others have gone, and its follower has not.
        let waiting = "SELECT count(*) FROM hapax_outbox WHERE message_key IN ('a2', 'a3', 'lost')
                       AND 3 = (SELECT count(*) FROM hapax_outbox)";
        eventually("the others to be gone", async || outbox.number(waiting) == 3).await;
        // Then it is parked, and the group goes on.
        outbox.until_left(2).await;
        relay.stop().await;
        let parked = "SELECT count(*) FROM hapax_outbox WHERE tries = 4 AND error LIKE";
        assert_eq!(outbox.number(&format!("{parked} 'too_large%'")), 1);
        assert_eq!(outbox.number(&format!("{parked} 'no_such_queue%'")), 1);
        assert_eq!(broker.stats().await.ready, 4);

        // What the page of SQL says about parked rows.
        broker.admin.put_queue("nowhere", "{}", None).await.unwrap();
        let at = if matches!(outbox, Outbox::Postgres(_)) { "" } else { "_ms" };
        outbox.run(&format!(
            "UPDATE hapax_outbox SET parked_at{at} = NULL, retry_at{at} = NULL, tries = 0,
             error = NULL WHERE message_key = 'lost'"
        ));
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay);
        outbox.until_left(1).await;
        relay.stop().await;
        broker.admin.delete_queue("nowhere").await.unwrap();
    }
    broker.stop().await;
}

on_each!(a_row_that_was_refused_before_the_clock_was_set_back_is_due, flavor = "multi_thread");
async fn a_row_that_was_refused_before_the_clock_was_set_back_is_due(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        for key in ["refused", "behind"] {
            outbox.send("orders", "g", key);
        }
        let later = match &outbox {
            Outbox::Postgres(_) => "retry_at = now() + interval '3 hours'",
            Outbox::Sqlite(_) => "retry_at_ms = created_at_ms + 3 * 3600 * 1000",
        };
        outbox.run(&format!("UPDATE hapax_outbox SET {later} WHERE message_key = 'refused'"));
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay);
        outbox.until_left(0).await;
        relay.stop().await;
        assert_eq!(broker.stats().await.ready, 2);
    }
    broker.stop().await;
}

/// Tables as release 0.1 made them: without the checks of types.
fn without_checks(outbox: &Outbox) {
    match outbox {
        Outbox::Postgres(_) => outbox.run(
            "ALTER TABLE hapax_outbox DROP CONSTRAINT hapax_outbox_issued_at_check;
             ALTER TABLE hapax_outbox DROP CONSTRAINT hapax_outbox_created_at_check",
        ),
        Outbox::Sqlite(_) => outbox.run(
            "DROP TABLE hapax_outbox;
             CREATE TABLE hapax_outbox (
                 id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL,
                 message_key TEXT NOT NULL, message_group TEXT NOT NULL DEFAULT '',
                 body BLOB NOT NULL, content_type TEXT NOT NULL DEFAULT '',
                 headers TEXT NOT NULL DEFAULT '{}', delay_ms INTEGER, ttl_ms INTEGER,
                 fingerprint TEXT, issued_at_ms INTEGER,
                 created_at_ms INTEGER NOT NULL
                     DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
                 tries INTEGER NOT NULL DEFAULT 0, retry_at_ms INTEGER, error TEXT,
                 parked_at_ms INTEGER)",
        ),
    }
}

/// Rows that no relay can read as a message, each with a part of the reason.
fn unreadable(outbox: &Outbox) -> Vec<(&'static str, &'static str)> {
    match outbox {
        Outbox::Postgres(_) => vec![
            ("message_key, issued_at) VALUES ('forever', 'infinity'", "issued_at is infinite"),
            ("message_key, created_at) VALUES ('never', '-infinity'", "created_at is infinite"),
        ],
        Outbox::Sqlite(_) => vec![
            ("message_key) VALUES (X'6b6579'", "message_key is of the type Blob"),
            ("message_key) VALUES (CAST(X'6bff' AS TEXT)", "message_key is not UTF-8"),
            ("message_key, delay_ms) VALUES ('half', 1.5", "delay_ms is of the type Real"),
            ("message_key, ttl_ms) VALUES ('long', 'soon'", "ttl_ms is of the type Text"),
            ("message_key, issued_at_ms) VALUES ('born', 'today'", "issued_at_ms"),
            ("message_key, created_at_ms) VALUES ('made', 1.5", "created_at_ms"),
            ("message_key, headers) VALUES ('list', '[]'", "headers is not a JSON object"),
            ("message_key, fingerprint) VALUES ('print', X'00'", "fingerprint"),
        ],
    }
}

/// The columns and values of a bad row, with what every row has.
fn insert_of(row: &str) -> String {
    let row = row.replace(") VALUES (", ", queue, message_group, body) VALUES (");
    format!("INSERT INTO hapax_outbox ({row}, 'orders', 'g', '')")
}

on_each!(a_row_that_cannot_be_read_is_parked_and_the_others_flow, flavor = "multi_thread");
/// A row that is no message is parked with its reason, and harms itself alone.
async fn a_row_that_cannot_be_read_is_parked_and_the_others_flow(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        without_checks(&outbox);
        let bad = unreadable(&outbox);
        let count = bad.len() as i64;
        outbox.send("orders", "g", "first");
        for (row, _) in &bad {
            outbox.run(&insert_of(row));
        }
        outbox.send("orders", "g", "second");
        outbox.send("orders", "", "alone");
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let metrics = relay.metrics();
        let relay = Running::start(relay);
        outbox.until_left(count).await;
        assert_eq!(broker.stats().await.ready, 3, "their group goes on without them");
        assert_eq!(metrics.moved(), 3);
        let at = if matches!(outbox, Outbox::Postgres(_)) { "" } else { "_ms" };
        for (row, reason) in bad {
            let parked = format!(
                "SELECT count(*) FROM hapax_outbox
                 WHERE parked_at{at} IS NOT NULL AND error LIKE 'not a message: {reason}%'"
            );
            eventually(row, async || outbox.number(&parked) >= 1).await;
        }
        relay.stop().await;
    }
    broker.stop().await;
}

/// New tables refuse such rows where they are written.
#[tokio::test(flavor = "multi_thread")]
async fn new_tables_take_no_row_that_is_no_message() {
    let directory = tempfile::tempdir().unwrap();
    let outbox = Outbox::Sqlite(stage::sqlite(directory.path()));
    for (row, reason) in unreadable(&outbox) {
        let insert = insert_of(row);
        let Outbox::Sqlite(database) = &outbox else { panic!() };
        let refused = database.execute_batch(&insert);
        // Whether bytes are UTF-8 cannot be asked in SQL.
        assert_eq!(refused.is_err(), !reason.contains("UTF-8"), "{insert}");
    }
}

on_each!(a_row_larger_than_a_frame_harms_itself_alone, flavor = "multi_thread");
/// A row that fits no frame: refused like any other that is too large, while the others flow.
async fn a_row_larger_than_a_frame_harms_itself_alone(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"max_body_bytes":16777216}"#).await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        let huge = |bytes: u32| match outbox {
            Outbox::Postgres(_) => format!("convert_to(repeat('x', {bytes}), 'UTF8')"),
            Outbox::Sqlite(_) => format!("zeroblob({bytes})"),
        };
        let with_headers = "{\"h\": \"X\"}".replace('X', &"x".repeat(100_000));
        outbox.send("orders", "", "first");
        for (key, bytes, headers) in
            [("over", 17_000_000, "{}"), ("headers", 16_777_216, with_headers.as_str())]
        {
            outbox.run(&format!(
                "INSERT INTO hapax_outbox (queue, message_key, body, headers)
                 VALUES ('orders', '{key}', {}, '{headers}')",
                huge(bytes)
            ));
        }
        outbox.send("orders", "", "second");
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay.tries(1));
        outbox.until_left(2).await;
        let parked = "SELECT count(*) FROM hapax_outbox WHERE error IS NOT NULL";
        eventually("the parked rows", async || outbox.number(parked) == 2).await;
        assert_eq!(broker.stats().await.ready, 2);
        relay.stop().await;
    }
    broker.stop().await;
}

on_each!(
    a_queue_that_takes_nothing_now_costs_no_row_a_try_and_holds_up_no_other,
    flavor = "multi_thread"
);
/// A queue that is full says so for now: no row is charged with a try for it.
async fn a_queue_that_takes_nothing_now_costs_no_row_a_try_and_holds_up_no_other(partitions: u16) {
    // The bound holds for each partition, and such a queue lives in one.
    let broker =
        TestQueue::open(partitions, "orders", r#"{"max_messages":1,"order":"group"}"#).await;
    broker.admin.put_queue("others", "{}", None).await.unwrap();
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        broker.admin.purge_queue("others", true).await.unwrap();
        for key in ["a", "b", "c"] {
            outbox.send("orders", "", key);
        }
        outbox.send("others", "", "d");
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay.tries(1).poll(Duration::from_millis(50)));
        outbox.until_left(2).await;
        assert_eq!(broker.admin.queue("others").await.unwrap().stats.unwrap().ready, 1);
        let worker = tokio::spawn(
            Worker::new(broker.queue()).run(|_, _| async { Ok::<_, Failure>("done") }),
        );
        outbox.until_left(0).await;
        worker.abort();
        relay.stop().await;
    }
    broker.stop().await;
}

on_each!(one_relay_works_and_another_stands_by_until_it_is_gone, flavor = "multi_thread");
async fn one_relay_works_and_another_stands_by_until_it_is_gone(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        let first = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let second = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let (working, standing_by) = (first.metrics(), second.metrics());
        let first = Running::start(first);
        eventually("the first", async || working.is_active()).await;
        let second = Running::start(second);
        // It has counted, so it has asked for the lock.
        for key in ["a", "b"] {
            outbox.send("orders", "", key);
        }
        outbox.until_left(0).await;
        assert_eq!((working.moved(), standing_by.is_active()), (2, false));
        first.stop().await;
        eventually("the second", async || standing_by.is_active()).await;
        outbox.send("orders", "", "c");
        outbox.until_left(0).await;
        assert_eq!(standing_by.moved(), 1);
        second.stop().await;
    }
    broker.stop().await;
}

on_each!(a_row_that_becomes_visible_late_is_moved_too, flavor = "multi_thread");
/// A transaction that began first and commits last has the smaller id. To delete by "up to" would
/// lose its message.
async fn a_row_that_becomes_visible_late_is_moved_too(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let pool = stage::deadpool(&postgres);
    let outbox = Outbox::Postgres(postgres);
    let mut early = pool.get().await.unwrap();
    let early = early.transaction().await.unwrap();
    let sql = "INSERT INTO hapax_outbox (queue, message_key, body) VALUES ('orders', 'early', '')";
    early.execute(sql, &[]).await.unwrap();
    let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
    let relay = Running::start(relay);
    outbox.send("orders", "", "late");
    outbox.until_left(0).await;
    assert_eq!(broker.stats().await.ready, 1);
    early.commit().await.unwrap();
    eventually("the early row", async || broker.stats().await.ready == 2).await;
    relay.stop().await;
    broker.stop().await;
}

on_each!(the_end_of_every_message_is_written_back, flavor = "multi_thread");
/// Results flow back: done with the result, dead with the error, and what was waited for when a
/// relay was dropped is waited for by the next.
async fn the_end_of_every_message_is_written_back(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        for key in ["good", "bad", "ugly"] {
            outbox.send("orders", "", key);
        }
        let relay = || {
            let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
            relay.results("hapax_results").unwrap()
        };
        let first = tokio::spawn(relay().run());
        outbox.until_left(0).await;
        let in_state = |state: &str| {
            outbox.number(&format!("SELECT count(*) FROM hapax_results WHERE state = '{state}'"))
        };
        assert_eq!(in_state("waiting"), 3);
        first.abort();
        let worker = Worker::new(broker.queue()).run(|message, _context| async move {
            match message.key() {
                "good" => Ok("shipped"),
                key => Err(Failure::dead(format!("no {key}"))),
            }
        });
        let worker = tokio::spawn(worker);
        let second = Running::start(relay());
        eventually("the results", async || in_state("waiting") == 0).await;
        assert_eq!((in_state("done"), in_state("dead")), (1, 2));
        let good = "SELECT count(*) FROM hapax_results WHERE message_key = 'good'
                    AND result = CAST('shipped' AS KIND) AND error IS NULL";
        let kind = if matches!(outbox, Outbox::Postgres(_)) { "bytea" } else { "blob" };
        assert_eq!(outbox.number(&good.replace("KIND", kind)), 1);
        let bad = "SELECT count(*) FROM hapax_results WHERE message_key = 'bad'
                   AND error LIKE '%no bad%'";
        assert_eq!(outbox.number(bad), 1);
        second.stop().await;
        worker.abort();
    }
    broker.stop().await;
}

on_each!(an_error_with_a_nul_byte_is_written_back_too, flavor = "multi_thread");
/// An error that a database cannot store as it is is written without what it cannot store.
async fn an_error_with_a_nul_byte_is_written_back_too(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        for key in ["a", "bad", "c"] {
            outbox.send("orders", "", key);
        }
        let worker = Worker::new(broker.queue()).run(|message, _context| async move {
            match message.key() {
                "bad" => Err(Failure::dead("no\0good")),
                _ => Ok("shipped"),
            }
        });
        let worker = tokio::spawn(worker);
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay.results("hapax_results").unwrap());
        let ended = "SELECT count(*) FROM hapax_results WHERE state <> 'waiting'";
        eventually("the results", async || outbox.number(ended) == 3).await;
        let bad = "SELECT count(*) FROM hapax_results WHERE state = 'dead'
                   AND error LIKE '%no_good%'";
        assert_eq!(outbox.number(bad), 1);
        relay.stop().await;
        worker.abort();
    }
    broker.stop().await;
}

on_each!(
    a_row_older_than_the_queue_remembers_is_parked_and_not_done_again,
    flavor = "multi_thread"
);
/// Sent, forgotten by the queue, and sent again because the relay died before it could delete: the
/// row's date tells. Without it, it would be done a second time.
async fn a_row_older_than_the_queue_remembers_is_parked_and_not_done_again(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    for outbox in Outbox::of_every_kind(&broker) {
        broker.admin.purge_queue("orders", true).await.unwrap();
        let old = match outbox {
            Outbox::Postgres(_) => "created_at) VALUES ('orders', 'k', '', now() - interval '8 d')",
            Outbox::Sqlite(_) => "created_at_ms) VALUES ('orders', 'k', '', 1000)",
        };
        outbox.run(&format!("INSERT INTO hapax_outbox (queue, message_key, body, {old}"));
        let relay = Relay::new(broker.client.clone(), &outbox.url()).unwrap();
        let relay = Running::start(relay.tries(1));
        let parked = "SELECT count(*) FROM hapax_outbox WHERE error LIKE 'too_old%'";
        eventually("the parked row", async || outbox.number(parked) == 1).await;
        assert_eq!(broker.stats().await.sent_total, 0);
        relay.stop().await;
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_told_at_the_start_with_the_next_step() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let nowhere = format!("sqlite://{}", broker.path().join("nowhere.db").display());
    let relay = Relay::new(broker.client.clone(), &nowhere).unwrap();
    let error = in_time(relay.run()).await.unwrap_err().to_string();
    assert!(error.contains("no SQLite database at"), "{error}");

    let empty = broker.path().join("empty.db");
    Database::open(&empty).unwrap();
    let relay =
        Relay::new(broker.client.clone(), &format!("sqlite://{}", empty.display())).unwrap();
    let error = in_time(relay.run()).await.unwrap_err().to_string();
    assert!(error.contains("hapax sql outbox --dialect sqlite"), "{error}");

    if let Some(postgres) = Postgres::start() {
        let relay = Relay::new(broker.client.clone(), &postgres.url()).unwrap();
        let error = in_time(relay.run()).await.unwrap_err().to_string();
        assert!(error.contains("hapax sql outbox --dialect postgres"), "{error}");
    }
    let unreachable = Relay::new(broker.client.clone(), "postgres://a@127.0.0.1:1/b").unwrap();
    let error = in_time(unreachable.run()).await.unwrap_err().to_string();
    assert!(error.contains("cannot connect to PostgreSQL"), "{error}");
    broker.stop().await;
}

/// The relay speaks TLS to a server that its authority vouches for, and to no other.
#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_connection_goes_to_the_server_that_was_vouched_for() {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(1, "orders", "{}").await;
    let ours = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let others = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let port = encrypted(&postgres, &ours).await;
    let address = format!("postgres://postgres@localhost:{port}/{}", postgres.name());
    let relay = |pem: &str| {
        let relay = Relay::new(broker.client.clone(), &address).unwrap();
        relay.database_ca(pem.as_bytes()).unwrap()
    };
    let refused = in_time(relay(&others.cert.pem()).run()).await.unwrap_err().to_string();
    assert!(refused.contains("cannot connect to PostgreSQL"), "{refused}");
    let outbox = Outbox::Postgres(postgres);
    outbox.send("orders", "", "a");
    let running = Running::start(relay(&ours.cert.pem()));
    outbox.until_left(0).await;
    running.stop().await;
    let bare = format!("{address}?sslmode=require");
    let untold = Relay::new(broker.client.clone(), &bare).unwrap().run();
    let untold = in_time(untold).await.unwrap_err().to_string();
    assert!(untold.contains("--database-ca"), "{untold}");
    broker.stop().await;
}

/// PostgreSQL behind TLS: takes the request for it, shakes hands, and passes the bytes on.
async fn encrypted(postgres: &Postgres, certified: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    let key = certified.signing_key.serialize_der();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key).into();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = postgres.socket();
    tokio::spawn(async move {
        loop {
            let Ok((mut near, _)) = listener.accept().await else { return };
            let (acceptor, socket) = (acceptor.clone(), socket.clone());
            tokio::spawn(async move {
                let mut request = [0; 8];
                near.read_exact(&mut request).await.unwrap();
                assert_eq!(request, [0, 0, 0, 8, 4, 210, 22, 47], "a request for TLS");
                near.write_all(b"S").await.unwrap();
                let Ok(mut near) = acceptor.accept(near).await else { return };
                let mut far = tokio::net::UnixStream::connect(socket).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    port
}
