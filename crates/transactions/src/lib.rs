//! Inbox, outbox and relay: effects and sends in the transactions of your own database.
//!
//! A broker alone cannot make an effect happen once. A worker may die after its effect and before
//! its acknowledgement; a producer's database may commit and its send be lost. Both holes are
//! closed by one row in the user's own database, written in the user's own transaction:
//!
//! | to | use |
//! |---|---|
//! | carry out messages once, in transactions | [`InTransaction`] |
//! | the same in a loop of one's own | [`Inbox::enter`], [`Inbox::finish`] |
//! | send if and only if a transaction commits | [`outbox::send`] |
//! | move what was sent so to the broker | [`Relay`], or `hapax relay` |
//! | the same from other languages | [`Dialect`], or `hapax sql` |
//!
//! It knows SQL and the client, and nothing of the broker. What is promised, and what is not, is
//! in `docs/guides/inbox.md` and `docs/guides/outbox.md`.

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
