//! What stays in an inbox, and for how long: rows of messages that can still come, and results that
//! their queue takes.

use std::sync::Arc;
use std::time::Duration;

use hapax_client::{Failure, Settle, Worker};
use hapax_transactions::{Consumer, Entered, InTransaction, Inbox, Pool};
use hapax_wire::proto::redrive_request::Select;
use hapax_wire::proto::{RedriveKeys, RedriveRequest, State};

use crate::messages::{AGAIN_AT_ONCE, HASTY, send, take};
use crate::stage;
use crate::workers::{EFFECT, effects, follow_up, until_effects};
use hapax_testing::{Postgres, TestQueue, eventually, in_time};

/// Rows older than any retention, as after a month in which no worker ran.
fn a_month_passes(postgres: &Postgres) {
    postgres.sql("UPDATE hapax_inbox SET entered_at = entered_at - interval '30 days'");
}

fn rows(postgres: &Postgres) -> i64 {
    postgres.number("SELECT count(*) FROM hapax_inbox")
}

on_each!(a_row_outlives_its_retention_while_its_message_can_come, flavor = "multi_thread");
/// A worker that has committed and dies before it settles, and is dead for longer than rows are
/// kept: its message waits, and so does its row.
async fn a_row_outlives_its_retention_while_its_message_can_come(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let pool = stage::deadpool(&postgres);
    let link = Arc::new(broker.link().await);
    let client = link.client();
    let lost = tokio::spawn(
        InTransaction::new(Worker::new(client.queue("orders")), pool.clone(), "billing").run({
            let link = Arc::clone(&link);
            move |tx, message| {
                let link = Arc::clone(&link);
                Box::pin(async move {
                    tx.execute(EFFECT, &[&message.key()]).await?;
                    link.close();
                    Ok::<_, Failure>("charged by the first")
                })
            }
        }),
    );
    send(&broker, "order-1").await;
    until_effects(&postgres, 1).await;
    lost.abort();
    a_month_passes(&postgres);
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    let orders = broker.queue();
    assert_eq!(inbox.sweep(&pool, &orders).await.unwrap(), 0, "the message still waits");
    assert_eq!(rows(&postgres), 1);

    let second = follow_up(&broker, pool.clone());
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged by the first");
    assert_eq!(effects(&postgres), 1);
    assert_eq!(inbox.sweep(&pool, &orders).await.unwrap(), 1, "it has ended, and is old");
    second.abort();
    broker.stop().await;
}

on_each!(
    a_row_outlives_the_retention_of_its_queue_by_the_clock_while_its_message_waits,
    flavor = "multi_thread"
);
/// The same by the clock, for a queue that remembers for two seconds: its message waits for longer
/// than that, as the queue is paused.
async fn a_row_outlives_the_retention_of_its_queue_by_the_clock_while_its_message_waits(
    partitions: u16,
) {
    let Some(postgres) = stage::postgres() else { return };
    let rules = r#"{"retention_ms":2000,"retry_horizon_ms":1000,"lease_ms":1000,
        "backoff_min_ms":0,"backoff_max_ms":50}"#;
    let broker = TestQueue::open(partitions, "orders", rules).await;
    let pool = stage::deadpool(&postgres);
    send(&broker, "order-1").await;
    let taken = take(&broker).await;
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    broker.admin.pause_queue("orders").await.unwrap();
    committed_by_hand(&pool, &inbox, taken.key()).await;
    drop(taken);
    let old = "SELECT count(*) FROM hapax_inbox WHERE entered_at < now() - interval '3 seconds'";
    eventually("the row to be old", async || postgres.number(old) == 1).await;
    assert_eq!(inbox.sweep(&pool, &broker.queue()).await.unwrap(), 0, "the message still waits");
    let worker = follow_up(&broker, pool.clone());
    broker.admin.resume_queue("orders").await.unwrap();
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged", "the stored result");
    assert_eq!(effects(&postgres), 0, "nothing is done again");
    worker.abort();
    broker.stop().await;
}

/// Enters and finishes a message by hand, as a worker does that dies before it settles.
async fn committed_by_hand(pool: &deadpool_postgres::Pool, inbox: &Inbox, key: &str) {
    let mut transaction = pool.begin().await.unwrap();
    let incoming = stage::incoming(key, 1);
    assert_eq!(inbox.enter(&mut transaction, incoming.clone()).await.unwrap(), Entered::First);
    inbox.finish(&mut transaction, incoming, "charged").await.unwrap();
    <deadpool_postgres::Pool as Pool>::commit(transaction).await.unwrap();
}

on_each!(a_sweep_asks_the_broker_about_every_key, flavor = "multi_thread");
/// Every state that a key can be in: its row goes when the message cannot come any more.
async fn a_sweep_asks_the_broker_about_every_key(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let pool = stage::deadpool(&postgres);
    let orders = broker.queue();
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    let settle = |delivery: hapax_client::Delivery, settle: Settle| {
        let mut work = broker.queue().work().open();
        async move {
            work.settle(delivery.lease(), settle, 0);
            let mut batch = hapax_client::Batch::default();
            while batch.settled.is_empty() {
                in_time(work.next(&mut batch)).await.unwrap();
            }
        }
    };
    for key in ["done", "dead", "discarded"] {
        send(&broker, key).await;
        let delivery = take(&broker).await;
        assert_eq!(delivery.key(), key);
        let how = if key == "done" { Settle::done() } else { Settle::Fail(Failure::dead("no")) };
        settle(delivery, how).await;
    }
    broker.admin.discard_key(broker.named("discarded")).await.unwrap();
    send(&broker, "leased").await;
    let _leased = take(&broker).await;
    send(&broker, "ready").await;
    let all = ["done", "dead", "discarded", "leased", "ready", "forgotten"];
    for key in all {
        committed_by_hand(&pool, &inbox, key).await;
    }
    assert_eq!(inbox.sweep(&pool, &orders).await.unwrap(), 0, "they are young");
    a_month_passes(&postgres);
    let unknown = Inbox::new("billing", "orders").unwrap();
    assert_eq!(unknown.sweep(&pool, &orders).await.unwrap(), 0, "whose rows are they?");
    assert_eq!(inbox.sweep(&pool, &orders).await.unwrap(), 3);
    let left =
        postgres.sql("SELECT string_agg(message_key, ' ' ORDER BY message_key) FROM hapax_inbox");
    assert_eq!(left.trim(), "dead leased ready");

    // Redriven after a month, it is done with the stored result, and not done again.
    redrive(&broker, "dead").await;
    let worker = follow_up(&broker, pool.clone());
    let key = in_time(broker.ended("dead")).await;
    assert_eq!(key.result.unwrap().body, "charged");
    in_time(broker.ended("ready")).await;
    assert_eq!(effects(&postgres), 0);
    worker.abort();
    broker.stop().await;
}

on_each!(nothing_is_swept_while_the_broker_is_away, flavor = "multi_thread");
/// A broker that cannot be asked answers nothing, so nothing is swept.
async fn nothing_is_swept_while_the_broker_is_away(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let database = stage::sqlite(broker.path());
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    let entered = database.transaction(|transaction| {
        inbox.enter_blocking(transaction, stage::incoming("a", 1))?;
        inbox.finish_blocking(transaction, stage::incoming("a", 1), ())
    });
    entered.unwrap();
    database.execute_batch("UPDATE hapax_inbox SET entered_at_ms = 0").unwrap();
    let link = broker.link().await;
    let client = link.client();
    let orders = client.queue("orders");
    link.close();
    assert!(in_time(inbox.sweep(&database, &orders)).await.is_err());
    assert_eq!(stage::number(&database, "SELECT count(*) FROM hapax_inbox"), 1);
    assert_eq!(inbox.sweep(&database, &broker.queue()).await.unwrap(), 1);
    broker.stop().await;
}

on_each!(the_row_of_an_id_is_swept_when_its_queue_is_empty, flavor = "multi_thread");
/// The broker cannot be asked about a message without a key, whose row has its id.
async fn the_row_of_an_id_is_swept_when_its_queue_is_empty(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", r#"{"guarantee":"at-least-once"}"#).await;
    let database = stage::sqlite(broker.path());
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    let incoming = || stage::incoming("01a1de2f-3f24-7000-8000-000000000001", 1);
    let entered = database.transaction(|transaction| {
        inbox.enter_blocking(transaction, incoming())?;
        inbox.finish_blocking(transaction, incoming(), ())
    });
    entered.unwrap();
    database.execute_batch("UPDATE hapax_inbox SET entered_at_ms = 0").unwrap();
    send(&broker, "other").await;
    let orders = broker.queue();
    assert_eq!(inbox.sweep(&database, &orders).await.unwrap(), 0, "it may be the other one");
    broker.admin.purge_queue("orders", true).await.unwrap();
    let swept = async || inbox.sweep(&database, &orders).await.unwrap() == 1;
    eventually("the row to be swept", swept).await;
    broker.stop().await;
}

on_each!(a_handler_that_panics_is_rolled_back, flavor = "multi_thread");
/// A handler that panics has written nothing.
async fn a_handler_that_panics_is_rolled_back(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let pool = stage::deadpool(&postgres);
    let worker = tokio::spawn(
        InTransaction::new(Worker::new(broker.queue()), pool, "billing").run(|tx, message| {
            Box::pin(async move {
                tx.execute(EFFECT, &[&message.key()]).await?;
                assert!(message.attempt() > 1, "the first attempt goes wrong");
                Ok::<_, Failure>(())
            })
        }),
    );
    send(&broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!((key.state(), key.attempts), (State::Done, 2));
    assert_eq!((effects(&postgres), rows(&postgres)), (1, 1));
    worker.abort();
    broker.stop().await;
}

on_each!(a_result_that_is_too_large_is_noticed_before_the_commit, flavor = "multi_thread");
/// A result that the queue does not take is noticed while the effect can be rolled back, so that a
/// mended handler can carry the message out after a redrive.
async fn a_result_that_is_too_large_is_noticed_before_the_commit(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", r#"{"max_body_bytes":1000}"#).await;
    let pool = stage::deadpool(&postgres);
    let run = |bytes: usize| {
        let worker = Worker::new(broker.queue());
        tokio::spawn(InTransaction::new(worker, pool.clone(), "billing").run(move |tx, message| {
            Box::pin(async move {
                tx.execute(EFFECT, &[&message.key()]).await?;
                Ok::<_, Failure>("x".repeat(bytes))
            })
        }))
    };
    send(&broker, "order-1").await;
    let worker = run(2_000);
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.state(), State::Dead);
    assert!(key.error.contains("2000 bytes") && key.error.contains("allows 1000"), "{}", key.error);
    assert_eq!((key.attempts, effects(&postgres), rows(&postgres)), (1, 0, 0));
    // Rules are asked for again before a result is refused.
    broker.admin.put_queue("orders", r#"{"max_body_bytes":3000}"#, None).await.unwrap();
    send(&broker, "order-2").await;
    assert_eq!(in_time(broker.ended("order-2")).await.state(), State::Done);
    worker.abort();

    broker.admin.put_queue("orders", r#"{"max_body_bytes":1000}"#, None).await.unwrap();
    redrive(&broker, "order-1").await;
    let worker = run(10);
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.state(), State::Done);
    assert_eq!(effects(&postgres), 2);
    worker.abort();
    broker.stop().await;
}

async fn redrive(broker: &TestQueue, key: &str) {
    let request = RedriveRequest {
        queue: "orders".to_owned(),
        id: key.to_owned(),
        select: Some(Select::Keys(RedriveKeys { keys: vec![key.to_owned()], group: None })),
        ..Default::default()
    };
    broker.admin.redrive(request).await.unwrap();
    eventually("the redrive", async || {
        broker.admin.key(broker.named(key), Duration::ZERO).await.unwrap().state() != State::Dead
    })
    .await;
}

on_each!(
    a_stored_result_that_the_queue_refuses_does_not_keep_a_message_from_being_done,
    flavor = "multi_thread"
);
/// A row of an earlier release may have a result that the queue refuses: the message is done all
/// the same.
async fn a_stored_result_that_the_queue_refuses_does_not_keep_a_message_from_being_done(
    partitions: u16,
) {
    let broker = TestQueue::open(partitions, "orders", r#"{"max_body_bytes":1000}"#).await;
    let database = stage::sqlite(broker.path());
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    let large = hapax_client::Blob::new("x".repeat(2_000));
    let entered = database.transaction(|transaction| {
        inbox.enter_blocking(transaction, stage::incoming("order-1", 1))?;
        inbox.finish_blocking(transaction, stage::incoming("order-1", 1), large)
    });
    entered.unwrap();
    send(&broker, "order-1").await;
    let worker = tokio::spawn(
        InTransaction::new(Worker::new(broker.queue()), database, "billing")
            .run(|_tx, _message| -> Result<(), Failure> { panic!("it is done") }),
    );
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.state(), State::Done);
    assert_eq!((key.attempts, key.result), (1, None));
    worker.abort();
    broker.stop().await;
}

on_each!(a_result_that_was_stored_as_text_is_read, flavor = "multi_thread");
/// SQLite keeps what it is given: a program in another language may store its result as text.
async fn a_result_that_was_stored_as_text_is_read(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let database = stage::sqlite(broker.path());
    for (key, result, kind) in [
        ("text", "'charged'", "'text/plain'"),
        ("number", "17", "NULL"),
        ("typed", "X'63'", "X'612f62'"),
    ] {
        let row = format!(
            "INSERT INTO hapax_inbox (consumer, tenant, queue, message_key, message_group,
             generation, fence, result, result_type)
             VALUES ('billing', 'default', 'orders', '{key}', '', 0, 1, {result}, {kind})"
        );
        database.execute_batch(&row).unwrap();
        send(&broker, key).await;
    }
    let blocking = tokio::spawn(
        InTransaction::new(Worker::new(broker.queue()), database.clone(), "billing")
            .run(|_tx, _message| -> Result<(), Failure> { panic!("it is done") }),
    );
    let text = in_time(broker.ended("text")).await.result.unwrap();
    assert_eq!((&text.body[..], &*text.content_type), (&b"charged"[..], "text/plain"));
    assert_eq!(in_time(broker.ended("number")).await.result.unwrap().body, "17");
    let typed = in_time(broker.ended("typed")).await.result.unwrap();
    assert_eq!((&typed.body[..], &*typed.content_type), (&b"c"[..], "a/b"));
    blocking.abort();
    let pool = stage::sqlx_sqlite(&database).await;
    let inbox = Consumer::new("billing").tenant("default").inbox("orders").unwrap();
    let mut transaction = Pool::begin(&pool).await.unwrap();
    let entered = inbox.enter(&mut transaction, stage::incoming("text", 2)).await.unwrap();
    let stored = hapax_client::Blob::new("charged").content_type("text/plain");
    assert_eq!(entered, Entered::Done(Some(stored)), "by the other driver too");
    drop(transaction);
    broker.stop().await;
}

on_each!(an_inbox_of_another_tenant_than_the_worker_is_refused, flavor = "multi_thread");
/// The deliveries say whose they are: an inbox of another tenant takes none, and its worker stops.
async fn an_inbox_of_another_tenant_than_the_worker_is_refused(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", "{}").await;
    let database = stage::sqlite(broker.path());
    send(&broker, "order-1").await;
    let started = InTransaction::new(
        Worker::new(broker.queue()),
        database.clone(),
        Consumer::new("billing").tenant("acme"),
    )
    .run(|tx, message| {
        tx.execute("INSERT INTO effects VALUES (?1)", [message.key()])?;
        Ok::<_, Failure>(())
    });
    let error = in_time(started).await.unwrap_err().to_string();
    assert!(error.contains("acme") && error.contains("default"), "{error}");
    let pool = stage::sqlx_sqlite(&database).await;
    let started = InTransaction::new(
        Worker::new(broker.queue()),
        pool,
        Consumer::new("billing").tenant("acme"),
    )
    .run(|_tx, _message| Box::pin(async { Ok::<_, Failure>(()) }));
    assert!(in_time(started).await.is_err());
    assert_eq!(stage::number(&database, "SELECT count(*) FROM effects"), 0);

    let worker = tokio::spawn(
        InTransaction::new(Worker::new(broker.queue()), database.clone(), "billing")
            .run(|_tx, _message| Ok::<_, Failure>(())),
    );
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.state(), State::Done);
    let of_default = "SELECT count(*) FROM hapax_inbox WHERE tenant = 'default'";
    assert_eq!(stage::number(&database, of_default), 1, "as the delivery says");
    worker.abort();
    broker.stop().await;
}
