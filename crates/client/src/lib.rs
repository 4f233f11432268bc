//! The Rust client of Hapax: send, work, claim.
//!
//! Under one key an operation is accepted once, finished once and answered once; every retry gets
//! the first answer. The client makes retrying easy: [`Queue::send`] repeats a message under its
//! key until it is answered, streams send again what had no answer when a connection broke, and
//! leases outlive connections. `docs/guarantees.md` describes the guarantees and their limits.
//!
//! | to | use |
//! |---|---|
//! | send | [`Queue::send`], [`Queue::send_all`] |
//! | send, and wait for the result | [`Queue::send_and_wait`] |
//! | send as fast as the broker takes it | [`Sender`] |
//! | work on messages | [`Worker`] |
//! | call other services from a handler, once | [`Context::step`] |
//! | work without a future per message | [`Work`] |
//! | do something once in this process | [`Queue::claim`] |
//! | manage queues and keys | [`Admin`] |
//!
//! ```no_run
//! use hapax_client::{Client, Failure, Message, Worker};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), hapax_client::Error> {
//! let orders = Client::connect("http://127.0.0.1:4747")?.queue("orders");
//!
//! let worker = Worker::new(orders.clone()).run(|message, _context| async move {
//!     Ok::<_, Failure>(format!("shipped {}", message.text().unwrap_or_default()))
//! });
//! tokio::spawn(worker);
//!
//! let lemons = Message::new("three lemons").key("order-42");
//! let answer = orders.send_and_wait(lemons, Duration::from_secs(10)).await?;
//! assert_eq!(answer.result().and_then(|result| result.text()), Some("shipped three lemons"));
//! # Ok(())
//! # }
//! ```

mod admin;
mod answer;
mod claim;
mod client;
mod delivery;
mod derive;
mod error;
mod lane;
mod message;
mod nodes;
mod queue;
mod retry;
mod sender;
mod settle;
mod step;
mod stream;
mod work;
mod worker;

pub use admin::{Admin, Backup};
pub use answer::{Answer, Outcome};
pub use claim::{Claim, ClaimRequest, Held};
pub use client::{Builder, Client};
pub use delivery::{Delivery, Lease};
pub use derive::derive;
pub use error::{Error, First, Refusal};
pub use hapax_wire::{Blob, Code, Id, State};
pub use message::{Message, new_key};
pub use queue::Queue;
pub use retry::Retry;
pub use sender::{Answered, Sender};
pub use settle::{Done, Emit, Failure, Settle, Settled};
pub use work::{Answered as SettleAnswered, Batch, Work, WorkBuilder};
pub use worker::{Context, Event, Worker};
