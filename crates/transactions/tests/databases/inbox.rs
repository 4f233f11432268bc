//! The rules of the inbox, the same for every driver.

use hapax_client::Blob;
use hapax_transactions::sqlite::Database;
use hapax_transactions::{Consumer, Entered, Inbox, Incoming, Names, Old, Page, Pool, Rows};

use crate::stage::{self, incoming};
use hapax_testing::in_time;

const RESULT: &str = "charged";

fn inbox() -> Inbox {
    Inbox::new("billing", "orders").unwrap()
}

fn done() -> Entered {
    Entered::Done(Some(Blob::new(RESULT)))
}

/// Enters, finishes where it is the first, and commits.
async fn carry_out<P: Pool>(pool: &P, inbox: &Inbox, incoming: Incoming<'_>) -> Entered {
    let mut transaction = pool.begin().await.unwrap();
    let entered = inbox.enter(&mut transaction, incoming.clone()).await.unwrap();
    if entered == Entered::First {
        inbox.finish(&mut transaction, incoming, RESULT).await.unwrap();
    }
    P::commit(transaction).await.unwrap();
    entered
}

/// What holds for every driver.
async fn keeps_the_rules<P: Pool>(pool: P) {
    let inbox = inbox();
    assert_eq!(carry_out(&pool, &inbox, incoming("a", 7)).await, Entered::First);
    // The answer to the commit was lost, or another delivery comes: the stored result.
    assert_eq!(carry_out(&pool, &inbox, incoming("a", 7)).await, done());
    assert_eq!(carry_out(&pool, &inbox, incoming("a", 8)).await, done());
    // A lower fence than the row's, as after a restore of the broker: what is done is done.
    assert_eq!(carry_out(&pool, &inbox, incoming("a", 6)).await, done());

    rolls_back(&pool, &inbox).await;
    tells_operations_apart(&pool, &inbox).await;
    waits_for_the_other(&pool, &inbox).await;
    keeps_bytes(&pool, &inbox).await;
    finishes_its_own_row(&pool, &inbox).await;
    sweeps(&pool).await;
}

async fn rolls_back<P: Pool>(pool: &P, inbox: &Inbox) {
    let mut transaction = pool.begin().await.unwrap();
    let entered = inbox.enter(&mut transaction, incoming("b", 1)).await.unwrap();
    assert_eq!(entered, Entered::First);
    P::rollback(transaction).await.unwrap();
    // Dropped in the middle, as when a worker is told to stop.
    let mut transaction = pool.begin().await.unwrap();
    inbox.enter(&mut transaction, incoming("b", 2)).await.unwrap();
    drop(transaction);
    assert_eq!(carry_out(pool, inbox, incoming("b", 3)).await, Entered::First);
}

async fn tells_operations_apart<P: Pool>(pool: &P, inbox: &Inbox) {
    assert_eq!(carry_out(pool, inbox, incoming("A", 1)).await, Entered::First, "case counts");
    assert_eq!(carry_out(pool, inbox, incoming("a ", 1)).await, Entered::First, "spaces count");
    let replayed = Incoming { generation: 1, ..incoming("a", 9) };
    assert_eq!(carry_out(pool, inbox, replayed).await, Entered::First);
    let grouped = Incoming { group: "g", ..incoming("a", 9) };
    assert_eq!(carry_out(pool, inbox, grouped).await, Entered::First);
    for other in [
        Inbox::new("audit", "orders").unwrap(),
        Inbox::new("billing", "returns").unwrap(),
        Consumer::new("billing").tenant("shop").inbox("orders").unwrap(),
    ] {
        assert_eq!(carry_out(pool, &other, incoming("a", 9)).await, Entered::First, "{other:?}");
    }
}

/// Two deliveries at once: the second ends only after the first, and finds its result.
async fn waits_for_the_other<P: Pool>(pool: &P, inbox: &Inbox) {
    let mut first = pool.begin().await.unwrap();
    assert_eq!(inbox.enter(&mut first, incoming("c", 1)).await.unwrap(), Entered::First);
    let second = {
        let (pool, inbox) = (pool.clone(), inbox.clone());
        tokio::spawn(async move { carry_out(&pool, &inbox, incoming("c", 2)).await })
    };
    inbox.finish(&mut first, incoming("c", 1), RESULT).await.unwrap();
    assert!(!second.is_finished(), "it cannot know yet");
    P::commit(first).await.unwrap();
    assert_eq!(in_time(second).await.unwrap(), done());
}

async fn keeps_bytes<P: Pool>(pool: &P, inbox: &Inbox) {
    let result = Blob::new(vec![0, 159, 255]).content_type("image/x");
    let mut transaction = pool.begin().await.unwrap();
    inbox.enter(&mut transaction, incoming("d", 1)).await.unwrap();
    inbox.finish(&mut transaction, incoming("d", 1), result.clone()).await.unwrap();
    P::commit(transaction).await.unwrap();
    let found = carry_out(pool, inbox, incoming("d", 2)).await;
    assert_eq!(found, Entered::Done(Some(result)));

    let mut transaction = pool.begin().await.unwrap();
    inbox.enter(&mut transaction, incoming("e", 1)).await.unwrap();
    P::commit(transaction).await.unwrap();
    let found = carry_out(pool, inbox, incoming("e", 2)).await;
    assert_eq!(found, Entered::Done(None), "a row without a result is done too");

    let mut transaction = pool.begin().await.unwrap();
    let strange = inbox.finish(&mut transaction, incoming("f", 1), ()).await.unwrap_err();
    assert!(
        strange.to_string().contains("in another transaction"),
        "without a result too: {strange}"
    );
    let strange = inbox.finish(&mut transaction, incoming("f", 1), RESULT).await.unwrap_err();
    assert!(strange.to_string().contains("in another transaction"), "{strange}");
    P::rollback(transaction).await.unwrap();
}

/// The row of another lease is not overwritten, whether it is newer or older.
async fn finishes_its_own_row<P: Pool>(pool: &P, inbox: &Inbox) {
    assert_eq!(carry_out(pool, inbox, incoming("g", 5)).await, Entered::First);
    for fence in [4, 6] {
        let mut transaction = pool.begin().await.unwrap();
        let finished = inbox.finish(&mut transaction, incoming("g", fence), "another").await;
        let strange = finished.unwrap_err().to_string();
        assert!(strange.contains("in another transaction"), "{fence}: {strange}");
        P::commit(transaction).await.unwrap();
        assert_eq!(carry_out(pool, inbox, incoming("g", fence)).await, done());
    }
}

/// Pages of old rows, and their deletes by name and fence.
async fn sweeps<P: Pool>(pool: &P) {
    let old = Inbox::new("sweeper", "orders").unwrap();
    for key in ["1", "2", "3"] {
        assert_eq!(carry_out(pool, &old, incoming(key, 1)).await, Entered::First);
    }
    pages(pool).await;
    assert_eq!(carry_out(pool, &old, incoming("1", 2)).await, Entered::First, "it is forgotten");
    let others = carry_out(pool, &inbox(), incoming("a", 9)).await;
    assert_eq!(others, done(), "what belongs to others stays");
}

async fn pages(rows: &impl Rows) {
    let names = Names::new("sweeper", "default", "orders");
    let young = Page::first(3_600_000, 100);
    assert_eq!(rows.old(&names, young).await.unwrap(), [], "they are young");
    // Older than a negative age is every row.
    let first = rows.old(&names, Page::first(-60_000, 2)).await.unwrap();
    let next = Page { after: first.last().unwrap().clone(), ..Page::first(-60_000, 2) };
    let second = rows.old(&names, next).await.unwrap();
    let keys: Vec<&str> = first.iter().chain(&second).map(|old| old.key.as_str()).collect();
    assert_eq!((keys, first.len()), (vec!["1", "2", "3"], 2), "oldest first, as many as it may");
    let other = Old { fence: 7, ..first.first().unwrap().clone() };
    assert_eq!(rows.delete(&names, vec![other]).await.unwrap(), 0, "another row by now");
    assert_eq!(rows.delete(&names, [first, second].concat()).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_keeps_its_rules_by_tokio_postgres() {
    let Some(postgres) = stage::postgres() else { return };
    in_time(keeps_the_rules(stage::deadpool(&postgres))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_keeps_its_rules_by_sqlx_on_postgres() {
    let Some(postgres) = stage::postgres() else { return };
    in_time(keeps_the_rules(stage::sqlx_postgres(&postgres).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_keeps_its_rules_by_sqlx_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let pool = stage::sqlx_sqlite(&stage::sqlite(directory.path())).await;
    in_time(keeps_the_rules(pool)).await;
}

#[test]
fn the_inbox_keeps_its_rules_by_rusqlite() {
    let directory = tempfile::tempdir().unwrap();
    let database = stage::sqlite(directory.path());
    let inbox = inbox();
    let carry_out = |incoming: Incoming<'_>| {
        database.transaction(|transaction| {
            let entered = inbox.enter_blocking(transaction, incoming.clone())?;
            if entered == Entered::First {
                inbox.finish_blocking(transaction, incoming, RESULT)?;
            }
            Ok::<_, hapax_transactions::Error>(entered)
        })
    };
    assert_eq!(carry_out(incoming("a", 7)).unwrap(), Entered::First);
    assert_eq!(carry_out(incoming("a", 8)).unwrap(), done());
    assert_eq!(carry_out(incoming("a", 6)).unwrap(), done());
    for fence in [6, 8] {
        let finished = database.transaction(|transaction| {
            inbox.finish_blocking(transaction, incoming("a", fence), "another")
        });
        assert!(finished.unwrap_err().to_string().contains("in another transaction"), "{fence}");
    }
    assert_eq!(carry_out(incoming("a", 8)).unwrap(), done());

    let failed = database.transaction(|transaction| {
        assert_eq!(inbox.enter_blocking(transaction, incoming("b", 1))?, Entered::First);
        Err::<(), _>(hapax_transactions::Error::from(hapax_client::Error::Invalid("no".to_owned())))
    });
    assert!(failed.is_err());
    assert_eq!(carry_out(incoming("b", 2)).unwrap(), Entered::First, "it was rolled back");
    two_threads_are_one_effect(&database);
    let outside = database.with(|connection| inbox.enter_blocking(connection, incoming("d", 1)));
    assert!(outside.unwrap_err().to_string().contains("outside of a transaction"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_a_sqlite_database_are_swept_by_rusqlite() {
    let directory = tempfile::tempdir().unwrap();
    let database = stage::sqlite(directory.path());
    let inbox = Inbox::new("sweeper", "orders").unwrap();
    for key in ["1", "2", "3"] {
        let entered =
            database.transaction(|transaction| inbox.enter_blocking(transaction, incoming(key, 1)));
        assert_eq!(entered.unwrap(), Entered::First);
    }
    in_time(pages(&database)).await;
}

/// The second has a connection of its own, as another process would.
fn two_threads_are_one_effect(database: &Database) {
    let firsts: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|fence| {
                let database = Database::open(database.path()).unwrap();
                scope.spawn(move || {
                    database.transaction(|transaction| {
                        inbox().enter_blocking(transaction, incoming("c", fence))
                    })
                })
            })
            .collect();
        let entered = threads.into_iter().map(|thread| thread.join().unwrap().unwrap());
        entered.filter(|entered| *entered == Entered::First).count()
    });
    assert_eq!(firsts, 1);
}

/// The transactions of the two crates themselves, for those who do without our pool.
#[tokio::test(flavor = "multi_thread")]
async fn the_transactions_of_tokio_postgres_and_deadpool_are_taken_as_they_are() {
    let Some(database) = stage::postgres() else { return };
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let inbox = inbox();
    let mut transaction = client.transaction().await.unwrap();
    assert_eq!(inbox.enter(&mut transaction, incoming("a", 1)).await.unwrap(), Entered::First);
    inbox.finish(&mut transaction, incoming("a", 1), RESULT).await.unwrap();
    transaction.commit().await.unwrap();

    let pool = stage::deadpool(&database);
    let mut pooled = pool.get().await.unwrap();
    let mut transaction = pooled.transaction().await.unwrap();
    assert_eq!(inbox.enter(&mut transaction, incoming("a", 2)).await.unwrap(), done());
    transaction.rollback().await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
}
