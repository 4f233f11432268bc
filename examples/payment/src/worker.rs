//! The worker: charges an order at the gateway in a step, and records the payment with an inbox.
//!
//! If it is killed after the charge, the next attempt uses the same derived key and gets the same
//! receipt. If it is killed after the commit, the next attempt finds the row of the inbox and
//! writes nothing.

use anyhow::{Context as _, Result};
use hapax_client::{Client, Context, Delivery, Done, Failure, Worker};
use hapax_transactions::Inbox;
use serde::Deserialize;
use serde_json::json;

use crate::Settings;
use crate::api::Order;
use crate::database::{Database, Paid};
use crate::http::post;
use crate::services::{Absorbed, CHARGES, committed};

#[derive(Clone)]
struct Desk {
    settings: Settings,
    database: Database,
    inbox: Inbox,
}

pub(crate) async fn work(settings: Settings) -> Result<()> {
    let database = Database::open(&settings.database).await?;
    let orders = Client::connect(&settings.server)?.queue("orders");
    let desk = Desk { settings, database, inbox: Inbox::new("payments", "orders")? };
    let handler = move |message, context| pay(desk.clone(), message, context);
    Ok(Worker::new(orders).concurrency(4).run(handler).await?)
}

async fn pay(desk: Desk, message: Delivery, context: Context) -> Result<Done, Failure> {
    let order: Order = message.parse_json()?;
    let receipt = context.step("charge", |key| charge(&desk, key, order)).await?;
    let run = &desk.settings.run;
    let paid = desk.database.pay(run, order, &receipt, &desk.inbox, &message).await?;
    match paid {
        Paid::Now => committed(desk.settings.services, order.number).await,
        Paid::Before(result) => {
            Absorbed::ByARow.tell(desk.settings.services).await;
            return Ok(result.into());
        }
    }
    Ok(Done::new().result(receipt))
}

#[derive(Debug, Deserialize)]
struct Charged {
    receipt: String,
}

async fn charge(desk: &Desk, key: String, order: Order) -> Result<String, Failure> {
    let body = json!({ "order": order.number, "cents": order.cents }).to_string();
    let process = std::process::id().to_string();
    let headers = [("idempotency-key", key.as_str()), ("process", &process)];
    let reply = post(desk.settings.services, CHARGES, &headers, body).await?;
    let charged: Charged = serde_json::from_slice(&reply.body).context("the gateway's answer")?;
    Ok(charged.receipt)
}
