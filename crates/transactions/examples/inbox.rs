//! The program of docs/guides/inbox.md: a worker takes 17 euro from an account and dies before it
//! can settle, and the money is taken once.
//!
//! Start a broker with `hapax dev`, then: cargo run -p hapax-transactions --example inbox
#![expect(clippy::print_stdout, reason = "it is a program that shows something")]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use hapax_client::{Admin, Batch, Client, Delivery, Failure, Message, Worker};
use hapax_transactions::sqlite::Database;
use hapax_transactions::{Dialect, Entered, InTransaction, Inbox};

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, euro INTEGER NOT NULL);
INSERT OR REPLACE INTO accounts VALUES ('ada', 100);";

/// The effect, written only in the given transaction.
fn charge(
    transaction: &rusqlite::Transaction<'_>,
    message: &Delivery,
) -> Result<&'static str, Failure> {
    let name = message.text().unwrap_or_default();
    transaction.execute("UPDATE accounts SET euro = euro - 17 WHERE name = ?1", [name])?;
    Ok("17 euro taken")
}

/// Runs the example; returns the balance, and the result that the broker has.
pub(crate) async fn run(server: &str, directory: &Path) -> Result<(i64, String), Box<dyn Error>> {
    let database = Database::open(directory.join("bank.db"))?;
    for sql in [Dialect::Sqlite.inbox(), TABLES] {
        database.execute_batch(sql)?;
    }
    let client = Client::connect(server)?;
    Admin::new(client.clone()).put_queue("charges", r#"{"lease_ms":1000}"#, None).await?;
    let charges = client.queue("charges");
    let key = hapax_client::new_key();
    charges.send(Message::new("ada").key(&key)).await?;

    // A worker with its own loop takes the message, commits, and dies without settling.
    let delivery = take(&charges).await?;
    let inbox = Inbox::new("bank", "charges")?;
    let committed = database.transaction::<(), Failure>(|transaction| {
        if inbox.enter_blocking(transaction, &delivery)? == Entered::First {
            let result = charge(transaction, &delivery)?;
            inbox.finish_blocking(transaction, &delivery, result)?;
        }
        Ok(())
    });
    committed.map_err(|failure| failure.error().to_owned())?;
    println!("the first worker has committed, and dies before it settles");

    // The next one gets the message when the lease has expired, finds the row, and settles with the
    // result that the first one stored.
    let worker = Worker::new(charges.clone());
    let ended = charges.send_and_wait(Message::new("ada").key(&key), Duration::from_secs(60));
    let answer = tokio::select! {
        ended = InTransaction::new(worker, database.clone(), "bank").run(charge) => {
            ended?;
            return Err("the worker ended".into());
        }
        answer = ended => answer?,
    };
    let euro = database.with(|connection| {
        Ok(connection.query_row("SELECT euro FROM accounts", [], |row| row.get(0))?)
    })?;
    let result = answer.result().and_then(|result| result.text()).unwrap_or_default().to_owned();
    println!("{result}: {euro} of 100 euro are left");
    Ok((euro, result))
}

async fn take(queue: &hapax_client::Queue) -> Result<Delivery, Box<dyn Error>> {
    let mut work = queue.work().open();
    work.credit(1);
    let mut batch = Batch::default();
    loop {
        work.next(&mut batch).await?;
        if let Some(delivery) = batch.deliveries.pop() {
            return Ok(delivery);
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::var("HAPAX_SERVER").unwrap_or("http://127.0.0.1:4747".to_owned());
    let directory = std::env::temp_dir().join(format!("hapax-inbox-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let ran = run(&server, &directory).await;
    std::fs::remove_dir_all(&directory)?;
    ran.map(drop)
}
