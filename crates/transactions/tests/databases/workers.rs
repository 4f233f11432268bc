//! Workers with an inbox, against a broker: what is delivered twice is done once; and the same
//! scenes without an inbox, where it is done twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_client::{Failure, Settle, Settled, Worker};
use hapax_transactions::{Consumer, Entered, InTransaction, Inbox, Pool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::Notify;

use crate::messages::{AGAIN_AT_ONCE, HASTY, send, take};
use crate::stage;
use hapax_testing::{Link, Postgres, TestQueue, eventually, in_time};

pub(crate) const EFFECT: &str = "INSERT INTO effects VALUES ($1)";

pub(crate) fn effects(postgres: &Postgres) -> i64 {
    postgres.number("SELECT count(*) FROM effects")
}

/// A worker that is always there, once the scene is over, and ends with the test.
pub(crate) fn follow_up(
    broker: &TestQueue,
    pool: deadpool_postgres::Pool,
) -> tokio::task::JoinHandle<()> {
    let worker = Worker::new(broker.queue());
    tokio::spawn(async move {
        let ended = InTransaction::new(worker, pool, "billing").run(|tx, message| {
            Box::pin(async move {
                tx.execute(EFFECT, &[&message.key()]).await?;
                Ok::<_, Failure>("charged by the second")
            })
        });
        ended.await.unwrap();
    })
}

on_each!(
    a_handler_in_a_transaction_settles_with_its_result_and_rolls_back_its_errors,
    flavor = "multi_thread"
);
async fn a_handler_in_a_transaction_settles_with_its_result_and_rolls_back_its_errors(
    partitions: u16,
) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let pool = stage::sqlx_postgres(&postgres).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let worker = InTransaction::new(Worker::new(broker.queue()), pool, "billing").run({
        move |tx, message| {
            let tries = Arc::clone(&counted);
            Box::pin(async move {
                sqlx::query(EFFECT).bind(message.key().to_owned()).execute(&mut **tx).await?;
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    return Err(Failure::new("not yet"));
                }
                Ok("charged")
            })
        }
    });
    let worker = tokio::spawn(worker);
    send(&broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged");
    assert_eq!((key.attempts, tries.load(Ordering::Relaxed)), (2, 2));
    assert_eq!(effects(&postgres), 1, "the first attempt was rolled back");
    worker.abort();
    broker.stop().await;
}

/// A handler that takes a unique violation for "it is there already" and goes on. PostgreSQL has
/// given the transaction up by then, and answers its `COMMIT` with a rollback and no error.
async fn a_swallowed_error_is_no_commit<P: Pool>(
    broker: &TestQueue,
    postgres: &Postgres,
    pool: P,
    handler: impl for<'a> Fn(
        &'a mut P::Transaction,
        bool,
    ) -> hapax_transactions::BoxFuture<'a, Result<(), Failure>>
    + Send
    + Sync
    + 'static,
) {
    let handler = Arc::new(handler);
    let worker = InTransaction::new(Worker::new(broker.queue()), pool, "billing").run({
        move |tx, message| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler(tx, message.attempt() == 1).await })
        }
    });
    let worker = tokio::spawn(worker);
    send(broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.state(), hapax_wire::proto::State::Done);
    assert_eq!(effects(postgres), 1, "a message that is done has had its effect");
    assert_eq!(key.attempts, 2, "the attempt that was rolled back has failed");
    assert_eq!(postgres.number("SELECT count(*) FROM hapax_inbox"), 1);
    worker.abort();
}

const UNIQUE: &str =
    "CREATE TABLE accounts (name text PRIMARY KEY); INSERT INTO accounts VALUES ('a')";

on_each!(a_swallowed_error_is_no_commit_by_tokio_postgres, flavor = "multi_thread");
async fn a_swallowed_error_is_no_commit_by_tokio_postgres(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    postgres.sql(UNIQUE);
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let pool = stage::deadpool(&postgres);
    a_swallowed_error_is_no_commit(&broker, &postgres, pool, |tx, is_first| {
        Box::pin(async move {
            tx.execute(EFFECT, &[&"order-1"]).await?;
            if is_first {
                let ignored = tx.execute("INSERT INTO accounts VALUES ('a')", &[]).await;
                assert!(ignored.is_err());
            }
            Ok(())
        })
    })
    .await;
    broker.stop().await;
}

on_each!(a_swallowed_error_is_no_commit_by_sqlx_on_postgres, flavor = "multi_thread");
async fn a_swallowed_error_is_no_commit_by_sqlx_on_postgres(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    postgres.sql(UNIQUE);
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let pool = stage::sqlx_postgres(&postgres).await;
    a_swallowed_error_is_no_commit(&broker, &postgres, pool, |tx, is_first| {
        Box::pin(async move {
            sqlx::query(EFFECT).bind("order-1").execute(&mut **tx).await?;
            if is_first {
                let insert = sqlx::query("INSERT INTO accounts VALUES ('a')");
                assert!(insert.execute(&mut **tx).await.is_err());
            }
            Ok(())
        })
    })
    .await;
    broker.stop().await;
}

const OR_ROLLBACK: &str = "INSERT OR ROLLBACK INTO accounts VALUES ('a')";

on_each!(a_rollback_that_a_handler_swallows_is_no_commit_by_rusqlite, flavor = "multi_thread");
/// SQLite rolls back at once where it is told so, and would commit every statement after that on
/// its own.
async fn a_rollback_that_a_handler_swallows_is_no_commit_by_rusqlite(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let database = stage::sqlite(broker.path());
    database.execute_batch(UNIQUE).unwrap();
    let worker = InTransaction::new(Worker::new(broker.queue()), database.clone(), "billing").run(
        |tx, message| {
            if message.attempt() == 1 {
                assert!(tx.execute(OR_ROLLBACK, []).is_err());
                let after = tx.execute("INSERT INTO effects VALUES (?1)", [message.key()]);
                assert!(after.is_err(), "what follows is not committed on its own");
            } else {
                tx.execute("INSERT INTO effects VALUES (?1)", [message.key()])?;
            }
            Ok::<_, Failure>(())
        },
    );
    let worker = tokio::spawn(worker);
    send(&broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!((key.state(), key.attempts), (hapax_wire::proto::State::Done, 2));
    assert_eq!(stage::number(&database, "SELECT count(*) FROM effects"), 1);
    assert_eq!(stage::number(&database, "SELECT count(*) FROM hapax_inbox"), 1);
    worker.abort();
    broker.stop().await;
}

on_each!(
    a_rollback_that_a_handler_swallows_is_no_commit_by_sqlx_on_sqlite,
    flavor = "multi_thread"
);
async fn a_rollback_that_a_handler_swallows_is_no_commit_by_sqlx_on_sqlite(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let database = stage::sqlite(broker.path());
    database.execute_batch(UNIQUE).unwrap();
    let pool = stage::sqlx_sqlite(&database).await;
    let worker =
        InTransaction::new(Worker::new(broker.queue()), pool, "billing").run(|tx, message| {
            Box::pin(async move {
                let insert = sqlx::query("INSERT INTO effects VALUES (?1)");
                insert.bind(message.key().to_owned()).execute(&mut **tx).await?;
                if message.attempt() == 1 {
                    assert!(sqlx::query(OR_ROLLBACK).execute(&mut **tx).await.is_err());
                }
                Ok::<_, Failure>(())
            })
        });
    let worker = tokio::spawn(worker);
    send(&broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!((key.state(), key.attempts), (hapax_wire::proto::State::Done, 2));
    assert_eq!(stage::number(&database, "SELECT count(*) FROM effects"), 1);
    worker.abort();
    broker.stop().await;
}

on_each!(a_worker_lost_between_commit_and_settle_has_had_its_effect_once, flavor = "multi_thread");
/// Place 4: the worker dies after its effect and before its ack.
async fn a_worker_lost_between_commit_and_settle_has_had_its_effect_once(partitions: u16) {
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
                    // From here on nothing that this worker says arrives.
                    link.close();
                    Ok::<_, Failure>("charged by the first")
                })
            }
        }),
    );
    send(&broker, "order-1").await;
    until_effects(&postgres, 1).await;
    let second = follow_up(&broker, pool);
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged by the first", "the stored result");
    assert_eq!(effects(&postgres), 1);
    lost.abort();
    second.abort();
    broker.stop().await;
}

on_each!(
    without_an_inbox_a_worker_lost_between_commit_and_settle_has_its_effect_twice,
    flavor = "multi_thread"
);
/// The same scene by a worker that commits its effect and has no inbox.
async fn without_an_inbox_a_worker_lost_between_commit_and_settle_has_its_effect_twice(
    partitions: u16,
) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let pool = stage::deadpool(&postgres);
    let link = Arc::new(broker.link().await);
    let client = link.client();
    let handler = |pool: deadpool_postgres::Pool, link: Option<Arc<Link>>| {
        move |message: hapax_client::Delivery, _context| {
            let (pool, link) = (pool.clone(), link.clone());
            async move {
                pool.get().await?.execute(EFFECT, &[&message.key()]).await?;
                if let Some(link) = link {
                    link.close();
                }
                Ok::<_, Failure>("charged")
            }
        }
    };
    let first = Worker::new(client.queue("orders"));
    let lost = tokio::spawn(first.run(handler(pool.clone(), Some(link))));
    send(&broker, "order-1").await;
    until_effects(&postgres, 1).await;
    let second = tokio::spawn(Worker::new(broker.queue()).run(handler(pool, None)));
    in_time(broker.ended("order-1")).await;
    assert_eq!(effects(&postgres), 2, "this is what the inbox is for");
    lost.abort();
    second.abort();
    broker.stop().await;
}

pub(crate) async fn until_effects(postgres: &Postgres, count: i64) {
    eventually("the effect", async || effects(postgres) == count).await;
}

on_each!(two_deliveries_at_once_are_one_effect, flavor = "multi_thread");
/// Two deliveries of one message at once: the first is in the middle of its transaction when its
/// lease is lost and the second begins.
async fn two_deliveries_at_once_are_one_effect(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let pool = stage::deadpool(&postgres);
    let link = Arc::new(broker.link().await);
    let client = link.client();
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = tokio::spawn(
        InTransaction::new(Worker::new(client.queue("orders")), pool.clone(), "billing").run({
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            move |tx, message| {
                let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
                Box::pin(async move {
                    tx.execute(EFFECT, &[&message.key()]).await?;
                    begun.notify_one();
                    go_on.notified().await;
                    Ok::<_, Failure>("charged by the first")
                })
            }
        }),
    );
    send(&broker, "order-1").await;
    in_time(begun.notified()).await;
    link.close();
    let second = follow_up(&broker, pool);
    // The second stands before the unique key.
    eventually("the second delivery", async || postgres.blocked() == 1).await;
    assert_eq!(effects(&postgres), 0);
    go_on.notify_one();
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged by the first");
    assert_eq!(effects(&postgres), 1);
    slow.abort();
    second.abort();
    broker.stop().await;
}

on_each!(a_paused_worker_that_wakes_late_writes_nothing, flavor = "multi_thread");
/// A worker that sleeps through the loss of its lease, and wakes when the message is done.
async fn a_paused_worker_that_wakes_late_writes_nothing(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let pool = stage::deadpool(&postgres);
    send(&broker, "order-1").await;
    let late = take(&broker).await;
    let second = follow_up(&broker, pool.clone());
    in_time(broker.ended("order-1")).await;

    let inbox = Inbox::new("billing", "orders").unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let entered = inbox.enter(&mut transaction, &late).await.unwrap();
    let theirs = hapax_client::Blob::new("charged by the second");
    assert_eq!(entered, Entered::Done(Some(theirs)), "it is done, and there is nothing to write");
    <deadpool_postgres::Pool as Pool>::rollback(transaction).await.unwrap();
    assert_eq!(effects(&postgres), 1);
    let mut work = broker.queue().work().open();
    work.settle(late.lease(), Settle::done(), 0);
    let mut batch = hapax_client::Batch::default();
    while batch.settled.is_empty() {
        in_time(work.next(&mut batch)).await.unwrap();
    }
    let answer = batch.settled.remove(0).answer.unwrap();
    assert!(matches!(answer, Settled::LeaseLost { .. }), "{answer:?}");
    second.abort();
    broker.stop().await;
}

on_each!(
    a_lost_answer_to_the_commit_is_looked_up_and_not_taken_for_a_failure,
    flavor = "multi_thread"
);
/// Place 5: the database commits, and its answer is lost.
async fn a_lost_answer_to_the_commit_is_looked_up_and_not_taken_for_a_failure(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let address = forgetful(&postgres, true).await;
    let config = format!("postgres://postgres@{address}/{}", postgres.name());
    let manager = deadpool_postgres::Manager::new(config.parse().unwrap(), tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).build().unwrap();
    let second = follow_up(&broker, pool);
    send(&broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged by the second");
    assert_eq!(key.attempts, 1, "the attempt that committed is the one that settles");
    assert_eq!(effects(&postgres), 1);
    second.abort();
    broker.stop().await;
}

on_each!(a_commit_that_never_reached_the_database_is_a_failed_attempt, flavor = "multi_thread");
/// The other half of it: the answer is as lost, and the database knows of no commit.
async fn a_commit_that_never_reached_the_database_is_a_failed_attempt(partitions: u16) {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(partitions, "orders", AGAIN_AT_ONCE).await;
    let address = forgetful(&postgres, false).await;
    let config = format!("postgres://postgres@{address}/{}", postgres.name());
    let manager = deadpool_postgres::Manager::new(config.parse().unwrap(), tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).build().unwrap();
    let second = follow_up(&broker, pool);
    send(&broker, "order-1").await;
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged by the second");
    assert_eq!(key.attempts, 2, "the first one has failed");
    assert_eq!(effects(&postgres), 1);
    second.abort();
    broker.stop().await;
}

/// Passes bytes on to PostgreSQL, and hangs up where it would answer to the first COMMIT, or
/// where that would reach it.
async fn forgetful(postgres: &Postgres, reaches: bool) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = postgres.socket();
    let is_first = Arc::new(std::sync::atomic::AtomicBool::new(true));
    tokio::spawn(async move {
        loop {
            let Ok((near, _)) = listener.accept().await else { return };
            let far = UnixStream::connect(&socket).await.unwrap();
            let is_first = Arc::clone(&is_first);
            tokio::spawn(async move {
                let ((mut from, mut back), (mut answers, mut to)) =
                    (near.into_split(), far.into_split());
                let asked = Arc::new(Notify::new());
                let forget = Arc::clone(&asked);
                let there = async move {
                    let mut bytes = vec![0; 65_536];
                    while let Ok(count @ 1..) = from.read(&mut bytes).await {
                        let said = bytes.get(..count).unwrap_or_default();
                        let commits = said.windows(7).any(|part| part == b"COMMIT\0");
                        if commits && is_first.swap(false, Ordering::Relaxed) {
                            if !reaches {
                                return;
                            }
                            // Said only when nobody listens for the answer any more.
                            forget.notify_one();
                        }
                        to.write_all(said).await.unwrap();
                    }
                };
                let here = async move {
                    tokio::select! {
                        biased;
                        () = asked.notified() => {
                            // The answer comes here, and goes no further.
                            let _ = answers.read_u8().await;
                        }
                        _ = tokio::io::copy(&mut answers, &mut back) => {}
                    }
                };
                tokio::select! { () = there => {} () = here => {} }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_that_forgets_before_its_queue_is_refused_at_the_start() {
    let Some(postgres) = stage::postgres() else { return };
    let broker = TestQueue::open(1, "orders", "{}").await;
    let pool = stage::deadpool(&postgres);
    let short = Consumer::new("billing").retention(Duration::from_secs(3_600));
    let started = InTransaction::new(Worker::new(broker.queue()), pool, short)
        .run(|_tx, _message| Box::pin(async { Ok::<_, Failure>(()) }));
    let error = in_time(started).await.unwrap_err().to_string();
    assert!(error.contains("keeps its rows for 1 h 0 min"), "{error}");
    assert!(error.contains("7 d"), "{error}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_told_at_the_start() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let path = broker.path().join("empty.db");
    let database = hapax_transactions::sqlite::Database::open(path).unwrap();
    let started = InTransaction::new(Worker::new(broker.queue()), database, "billing")
        .run(|_tx, _message| Ok::<_, Failure>(()));
    let error = in_time(started).await.unwrap_err().to_string();
    assert!(error.contains("hapax_inbox"), "{error}");
    broker.stop().await;
}

on_each!(with_sqlite_a_lost_settle_is_one_effect_too, flavor = "multi_thread");
/// The same with SQLite: the first worker is lost between commit and settle.
async fn with_sqlite_a_lost_settle_is_one_effect_too(partitions: u16) {
    let broker = TestQueue::open(partitions, "orders", HASTY).await;
    let database = stage::sqlite(broker.path());
    let link = Arc::new(broker.link().await);
    let client = link.client();
    let lost = InTransaction::new(Worker::new(client.queue("orders")), database.clone(), "billing")
        .run(move |tx, message| {
            tx.execute("INSERT INTO effects VALUES (?1)", [message.key()])?;
            link.close();
            Ok::<_, Failure>("charged by the first")
        });
    let lost = tokio::spawn(lost);
    send(&broker, "order-1").await;
    let count = || async { stage::number(&database, "SELECT count(*) FROM effects") == 1 };
    eventually("the effect", count).await;
    let pool = stage::sqlx_sqlite(&database).await;
    let second = tokio::spawn(
        InTransaction::new(Worker::new(broker.queue()), pool, "billing").run(|tx, message| {
            Box::pin(async move {
                let key = message.key().to_owned();
                sqlx::query("INSERT INTO effects VALUES (?1)").bind(key).execute(&mut **tx).await?;
                Ok::<_, Failure>("charged by the second")
            })
        }),
    );
    let key = in_time(broker.ended("order-1")).await;
    assert_eq!(key.result.unwrap().body, "charged by the first");
    assert_eq!(stage::number(&database, "SELECT count(*) FROM effects"), 1);
    lost.abort();
    second.abort();
    broker.stop().await;
}
