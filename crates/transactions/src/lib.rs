//! Inbox, outbox and relay: effects and sends in the transactions of your own database.
//!
//! A broker alone cannot make an effect happen once. A worker may die after its effect and before
//! its acknowledgement. A producer's database may commit and its send may be lost. In both cases
//! the solution is one row in the user's own database, written in the user's own transaction:
//!
//! | to | use |
//! |---|---|
//! | process messages once, in transactions | [`InTransaction`] |
//! | the same in a loop of your own | [`Inbox::enter`], [`Inbox::finish`] |
//! | send if and only if a transaction commits | [`outbox::send`] |
//! | send the rows to the broker | [`Relay`], or `hapax relay` |
//! | the same from other languages | [`Dialect`], or `hapax sql` |
//!
//! The crate uses SQL and the client, and depends on nothing of the broker. `docs/guides/inbox.md`
//! and `docs/guides/outbox.md` describe the guarantees and their limits.

mod error;
pub mod inbox;
pub mod outbox;
#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
mod over_sqlx;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod relay;
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod transaction;
mod worker;

pub use error::Error;
pub use inbox::{Consumer, Entered, Finished, Inbox, Incoming, Names, Old, Page, Rows};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use relay::Relay;
pub use sql::Dialect;
pub use transaction::{Statement, Transaction, Value};
pub use worker::{BoxFuture, InTransaction, Pool};
