//! Customers: they order, lose replies, retry, and never give up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;

use crate::api::Order;
use crate::faults::{Fault, Faults};
use crate::http::{Reply, send};
use crate::services::FakeServices;

/// Pause between two tries of one customer.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub(crate) struct Customers {
    pub(crate) api: SocketAddr,
    pub(crate) run: String,
    pub(crate) faults: Faults,
    pub(crate) services: FakeServices,
    pub(crate) orders: u32,
}

impl Customers {
    /// Runs this many customers at once, until all orders are placed.
    pub(crate) async fn order_everything(self, customers: u16) -> Result<()> {
        let next = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..customers {
            let (all, next) = (self.clone(), Arc::clone(&next));
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= all.orders {
                        return Ok::<_, anyhow::Error>(());
                    }
                    all.order(Order { number, cents: 100 + u64::from(number) }).await?;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Sends an order until it is answered; more often if a fault is drawn for it.
    async fn order(&self, order: Order) -> Result<()> {
        let mut is_placed = false;
        if self.faults.has(Fault::SentTwice, order.number) {
            let (one, other) = tokio::join!(self.send(order), self.send(order));
            for reply in [one, other] {
                is_placed |= self.heard(order, reply, 1)?;
            }
        }
        if self.faults.has(Fault::ReplyLost, order.number) {
            // It is carried out, and the reply is dropped.
            while !self.send(order).await.is_ok_and(|reply| reply.status == StatusCode::CREATED) {
                tokio::time::sleep(PAUSE).await;
            }
            is_placed = false;
        }
        while !is_placed {
            is_placed = self.heard(order, self.send(order).await, 2)?;
            if !is_placed {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn send(&self, order: Order) -> Result<Reply> {
        let key = format!("\"{}/{}\"", self.run, order.number);
        let headers = [("idempotency-key", key.as_str()), ("prefer", "wait=5")];
        send(self.api, "/orders", &headers, serde_json::to_string(&order)?).await
    }

    /// Whether an answer is final. A replayed one is a duplicate that was absorbed.
    fn heard(&self, order: Order, reply: Result<Reply>, place: usize) -> Result<bool> {
        let Ok(reply) = reply else { return Ok(false) };
        let text = String::from_utf8_lossy(&reply.body);
        match reply.status {
            StatusCode::CREATED => {}
            // Another request is in progress, or the service is unavailable: retry.
            StatusCode::CONFLICT => return Ok(false),
            status if status.is_server_error() => return Ok(false),
            status => anyhow::bail!("order {}: {status} {text}", order.number),
        }
        let told: Order = serde_json::from_slice(&reply.body)?;
        ensure!(told == order, "asked for {order:?}, got {told:?}");
        if reply.headers.contains_key("idempotency-replayed") {
            self.services.ledger().absorb(place, 1);
        }
        Ok(true)
    }
}
