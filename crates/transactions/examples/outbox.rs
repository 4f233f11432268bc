//! The program of docs/guides/outbox.md: orders are placed in SQLite, and the messages about them
//! are sent if and only if the order is committed.
//!
//! Start a broker with `hapax dev`, then: cargo run -p hapax-transactions --example outbox
#![expect(clippy::print_stdout, reason = "it is a program that shows something")]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use hapax_client::{Admin, Client, Message};
use hapax_transactions::sqlite::Database;
use hapax_transactions::{Dialect, Relay, outbox};

const TABLES: &str = "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, lemons INTEGER)";

/// One transaction: the order, and the message about it.
fn place(database: &Database, id: &str, lemons: u32) -> Result<(), Box<dyn Error>> {
    database.transaction::<(), Box<dyn Error>>(|transaction| {
        transaction.execute("INSERT INTO orders VALUES (?1, ?2)", (id, lemons))?;
        let message = Message::new(format!("{lemons} lemons")).key(id).group("lemons");
        outbox::send_blocking(transaction, "orders", message)?;
        if lemons == 0 {
            return Err("nobody orders nothing".into());
        }
        Ok(())
    })
}

/// Runs the example; returns the number of orders, and of messages that the broker accepted.
pub(crate) async fn run(server: &str, directory: &Path) -> Result<(i64, u64), Box<dyn Error>> {
    let database = Database::open(directory.join("shop.db"))?;
    for sql in [Dialect::Sqlite.outbox(), TABLES] {
        database.execute_batch(sql)?;
    }
    let client = Client::connect(server)?;
    Admin::new(client.clone()).put_queue("orders", "{}", None).await?;
    let run = hapax_client::new_key();
    place(&database, &format!("{run}-1"), 3)?;
    let refused = place(&database, &format!("{run}-2"), 0);
    println!("an order that was rolled back: {refused:?}");
    // In other languages three columns are enough.
    let sql = "INSERT INTO hapax_outbox (queue, message_key, body) VALUES ('orders', ?1, 'limes')";
    let key = format!("{run}-3");
    database.with(|connection| Ok(connection.execute(sql, [key])?))?;

    // As a task here; `hapax relay --database sqlite://shop.db` does the same as a program.
    let address = format!("sqlite://{}", database.path().display());
    let relay = Relay::new(client, &address)?;
    let metrics = relay.metrics();
    let left = || {
        let sql = "SELECT count(*) FROM hapax_outbox";
        database.with(|connection| Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?))
    };
    let emptied = async {
        // A database that is locked is not an empty outbox.
        while !matches!(left(), Ok(0)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    relay.run_until(emptied).await?;
    let orders = database.with(|connection| {
        Ok(connection.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?)
    })?;
    println!("{orders} order is there, and the broker took {} messages", metrics.moved());
    Ok((orders, metrics.moved()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::var("HAPAX_SERVER").unwrap_or("http://127.0.0.1:4747".to_owned());
    let directory = std::env::temp_dir().join(format!("hapax-outbox-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let ran = run(&server, &directory).await;
    std::fs::remove_dir_all(&directory)?;
    ran.map(drop)
}
