//! What an inbox and an outbox need of a transaction, whoever's driver it is.
//!
//! Few statements, no rules: what follows from their answers is decided in [`inbox`](crate::inbox).
//! The user begins and ends the transaction; nothing here does.

use std::future::Future;

use hapax_client::Blob;

use crate::error::Error;
use crate::inbox::{Found, Names, Old, Page, Row};
use crate::outbox::Entry;

/// An open transaction of an asynchronous driver: those of tokio-postgres, deadpool-postgres and
/// sqlx, and a connection on which one was begun by hand.
///
/// Its methods are for [`Inbox`](crate::Inbox) and [`outbox`](crate::outbox); call those.
pub trait Transaction: Send {
    /// Inserts the row. Waits for another transaction that has inserted it and is still open.
    /// `false` where it is there already.
    fn insert(&mut self, row: &Row<'_>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// The row that is there, if it still is.
    fn find(&mut self, row: &Row<'_>) -> impl Future<Output = Result<Option<Found>, Error>> + Send;

    /// Stores the result, or that there is none, in the row of this fence. `false` where there is
    /// no such row. Runs its statement in either case: a transaction that the database has given
    /// up refuses it.
    fn store(
        &mut self,
        row: &Row<'_>,
        result: Option<&Blob>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// A page of old rows.
    fn old(
        &mut self,
        names: &Names,
        page: &Page,
    ) -> impl Future<Output = Result<Vec<Old>, Error>> + Send;

    /// Deletes the row of this fence. `false` where there is no such row.
    fn delete(&mut self, row: &Row<'_>) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Puts a message into the outbox.
    fn append(&mut self, entry: &Entry<'_>) -> impl Future<Output = Result<(), Error>> + Send;
}

/// An open transaction of a driver that blocks: that of rusqlite, or a connection on which one was
/// begun by hand.
pub trait BlockingTransaction {
    /// See [`Transaction::insert`].
    fn insert(&self, row: &Row<'_>) -> Result<bool, Error>;

    /// See [`Transaction::find`].
    fn find(&self, row: &Row<'_>) -> Result<Option<Found>, Error>;

    /// See [`Transaction::store`].
    fn store(&self, row: &Row<'_>, result: Option<&Blob>) -> Result<bool, Error>;

    /// See [`Transaction::old`].
    fn old(&self, names: &Names, page: &Page) -> Result<Vec<Old>, Error>;

    /// See [`Transaction::delete`].
    fn delete(&self, row: &Row<'_>) -> Result<bool, Error>;

    /// See [`Transaction::append`].
    fn append(&self, entry: &Entry<'_>) -> Result<(), Error>;
}
