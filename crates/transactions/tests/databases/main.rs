//! Inbox, outbox and relay on a real PostgreSQL and on SQLite, with every driver; and the
//! statements for MySQL as they are printed.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod guides;
mod inbox;
mod lasting;
mod messages;
mod mysql;
mod outbox;
mod relay;
mod stage;
mod workers;
