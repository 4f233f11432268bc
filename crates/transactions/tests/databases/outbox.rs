//! The outbox, the same for every driver: a message is there if and only if its transaction
//! commits.

use std::time::{Duration, UNIX_EPOCH};

use hapax_client::Message;
use hapax_transactions::{Pool, outbox};

use crate::stage;
use hapax_testing::in_time;

fn message() -> Message {
    Message::new(vec![0, 159, 255])
        .key("order-42")
        .group("customer-7")
        .content_type("image/x")
        .header("trace", "a\"b")
        .delay(Duration::from_secs(1))
        .ttl(Duration::from_secs(60))
        .fingerprint("print")
        .issued_at(UNIX_EPOCH + Duration::from_millis(1_500))
}

/// One committed with everything a message may have, one rolled back, one with nothing but a body.
async fn sends<P: Pool>(pool: P) {
    let mut transaction = pool.begin().await.unwrap();
    let key = outbox::send(&mut transaction, "orders", message()).await.unwrap();
    assert_eq!(key, "order-42");
    P::commit(transaction).await.unwrap();

    let mut transaction = pool.begin().await.unwrap();
    outbox::send(&mut transaction, "orders", Message::new("x").key("never")).await.unwrap();
    P::rollback(transaction).await.unwrap();

    let mut transaction = pool.begin().await.unwrap();
    let made = outbox::send(&mut transaction, "orders", "bare").await.unwrap();
    assert_eq!(made.len(), 36, "a key is made: {made}");
    P::commit(transaction).await.unwrap();
}

const POSTGRES: &str = "SELECT concat_ws('|', queue, message_key, message_group,
    encode(body, 'hex'), content_type, headers, delay_ms, ttl_ms, fingerprint,
    extract(epoch FROM issued_at)::numeric(9, 3), tries) FROM hapax_outbox ORDER BY id";

const WHOLE: &str =
    r#"orders|order-42|customer-7|009fff|image/x|{"trace": "a\"b"}|1000|60000|print|1.500|0"#;

#[track_caller]
fn check_postgres(postgres: &hapax_testing::Postgres) {
    let told = postgres.sql(POSTGRES);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert_eq!(lines.first(), Some(&WHOLE));
    assert!(lines.last().is_some_and(|line| line.contains("|62617265|")), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_with_its_transaction_by_tokio_postgres() {
    let Some(postgres) = stage::postgres() else { return };
    in_time(sends(stage::deadpool(&postgres))).await;
    check_postgres(&postgres);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_with_its_transaction_by_sqlx_on_postgres() {
    let Some(postgres) = stage::postgres() else { return };
    in_time(sends(stage::sqlx_postgres(&postgres).await)).await;
    check_postgres(&postgres);
}

const SQLITE: &str = r#"SELECT count(*) FROM hapax_outbox WHERE (queue, message_key, message_group,
    hex(body), content_type, headers, delay_ms, ttl_ms, fingerprint, issued_at_ms, tries) =
    ('orders', 'order-42', 'customer-7', '009FFF', 'image/x', '{"trace":"a\"b"}', 1000, 60000,
     'print', 1500, 0)"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_with_its_transaction_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let database = stage::sqlite(directory.path());
    in_time(sends(stage::sqlx_sqlite(&database).await)).await;
    assert_eq!(stage::number(&database, "SELECT count(*) FROM hapax_outbox"), 2);
    assert_eq!(stage::number(&database, SQLITE), 1);
    database
        .transaction(|transaction| outbox::send_blocking(transaction, "orders", message()))
        .unwrap();
    assert_eq!(stage::number(&database, SQLITE), 2, "rusqlite writes the same row");
}

/// What the guide says to those without our library.
#[tokio::test]
async fn three_columns_are_enough_for_plain_sql() {
    let directory = tempfile::tempdir().unwrap();
    let database = stage::sqlite(directory.path());
    let sql = "INSERT INTO hapax_outbox (queue, message_key, body) VALUES ('orders', 'k', 'b')";
    database.with(|connection| Ok(connection.execute(sql, []).unwrap())).unwrap();
    let without_key = "INSERT INTO hapax_outbox (queue, message_key, body) VALUES ('q', '', 'b')";
    let refused = database.with(|connection| Ok(connection.execute(without_key, []).is_err()));
    assert!(refused.unwrap(), "an empty key is refused by the table");
    let Some(postgres) = stage::postgres() else { return };
    postgres.sql(sql);
    let told = postgres.sql("SELECT message_group, tries, headers FROM hapax_outbox");
    assert_eq!(told.trim(), "|0|{}");
}
