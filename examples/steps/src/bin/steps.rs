//! A worker that charges a card and sends a mail, each once, however often it is tried. The program
//! of docs/guides/steps.md; it needs a broker: `hapax dev`.
#![expect(clippy::print_stdout, reason = "a program speaks by printing")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hapax_client::{Admin, Client, Context, Delivery, Done, Failure, Message, Worker, new_key};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    card: String,
    cents: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Receipt {
    number: u64,
    cents: u64,
}

async fn handle(bank: Bank, message: Delivery, context: Context) -> Result<Done, Failure> {
    let order: Order = message.parse_json()?;
    let receipt = context.step("charge", |key| bank.charge(key, order.cents)).await?;
    context.step("mail", |key| mail(key, message.attempt(), receipt.clone())).await?;
    Ok(Done::new().result(format!("receipt {}", receipt.number)))
}

/// A bank that takes idempotency keys, as most do, and whose first answer gets lost.
#[derive(Clone, Debug, Default)]
struct Bank(Arc<Mutex<Ledger>>);

#[derive(Debug, Default)]
struct Ledger {
    calls: u32,
    receipts: HashMap<String, Receipt>,
}

impl Bank {
    async fn charge(self, key: String, cents: u64) -> Result<Receipt, Failure> {
        let mut ledger = self.ledger();
        ledger.calls += 1;
        let number = 1_000 + ledger.receipts.len() as u64;
        let receipt = ledger.receipts.entry(key).or_insert(Receipt { number, cents }).clone();
        if ledger.calls == 1 {
            return Err(Failure::new("no answer from the bank")); // Which has charged the card.
        }
        Ok(receipt)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mail server that is busy at first.
async fn mail(key: String, attempt: u32, receipt: Receipt) -> Result<(), Failure> {
    if attempt < 3 {
        return Err(Failure::new("the mail server is busy"));
    }
    println!("mail {key}: your card was charged {} cents", receipt.cents);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = std::env::var("HAPAX_SERVER").unwrap_or("http://127.0.0.1:4747".to_owned());
    let client = Client::connect(&server)?;
    let rules = r#"{"backoff_min_ms":10,"backoff_max_ms":50}"#;
    let admin = Admin::new(client.clone());
    let made = admin.put_queue("example-orders", rules, None).await;
    made.context("is there a broker? Start one with `hapax dev`")?;

    let (bank, orders) = (Bank::default(), client.queue("example-orders"));
    let at_work = bank.clone();
    let worker = Worker::new(orders.clone());
    tokio::spawn(worker.run(move |message, context| handle(at_work.clone(), message, context)));

    let order = Order { card: "4242".to_owned(), cents: 1_700 };
    let message = Message::json(&order)?.key(new_key());
    let answer = orders.send_and_wait(message, Duration::from_secs(60)).await?;
    let result = answer.result().and_then(|result| result.text()).unwrap_or_default();
    let ledger = bank.ledger();
    let charges = ledger.receipts.len();
    println!("{result}: {} calls to the bank, {charges} charge", ledger.calls);
    ensure!((ledger.calls, charges) == (2, 1), "not charged exactly once");
    Ok(())
}
