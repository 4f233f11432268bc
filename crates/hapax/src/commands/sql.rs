//! `hapax sql`: the tables of inbox and outbox as migrations, with their statements.

use clap::{Args, ValueEnum};
use hapax_transactions::Dialect;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) const HELP: &str = "What is printed can be run as it is, and again: it makes the \
tables that are not there. The statements that a program runs stand below, as comments.

Examples:
  hapax sql inbox --dialect postgres | psql shop
  hapax sql outbox --dialect sqlite | sqlite3 shop.db
  hapax sql results --dialect postgres
  hapax sql inbox --dialect mysql > migrations/0007-hapax-inbox.sql";

#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// What to print.
    #[arg(value_enum)]
    table: Table,
    /// For which database.
    #[arg(long, value_enum)]
    dialect: Kind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Table {
    /// What a consumer has carried out: for workers.
    Inbox,
    /// What is to be sent: for producers, and for `hapax relay`.
    Outbox,
    /// How messages ended: for `hapax relay --results`.
    Results,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Postgres,
    Sqlite,
    Mysql,
}

pub(crate) fn run(sql: &Sql) -> Result<Exit, Failure> {
    let dialect = match sql.dialect {
        Kind::Postgres => Dialect::Postgres,
        Kind::Sqlite => Dialect::Sqlite,
        Kind::Mysql => Dialect::Mysql,
    };
    let page = match sql.table {
        Table::Inbox => dialect.inbox_page(),
        Table::Outbox => dialect.outbox_page(),
        Table::Results => dialect.results().to_owned(),
    };
    Screen::plain().bytes(page.as_bytes())?;
    Ok(Exit::Ok)
}
