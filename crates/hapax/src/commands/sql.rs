//! `hapax sql`: the inbox and outbox tables as migrations, with their statements.

use clap::{Args, ValueEnum};
use hapax_transactions::Dialect;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::Screen;

pub(crate) const HELP: &str = "The output can be run as it is, also repeatedly: it creates the \
tables that do not exist. The statements that a program runs follow as comments.

Examples:
  hapax sql inbox --dialect postgres | psql shop
  hapax sql outbox --dialect sqlite | sqlite3 shop.db
  hapax sql results --dialect postgres
  hapax sql inbox --dialect mysql > migrations/0007-hapax-inbox.sql";

#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// The table to print.
    #[arg(value_enum)]
    table: Table,
    /// The database's SQL dialect.
    #[arg(long, value_enum)]
    dialect: Kind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Table {
    /// The operations that a consumer has carried out. Used by workers.
    Inbox,
    /// The messages to send. Used by producers and by `hapax relay`.
    Outbox,
    /// The outcomes of messages. Used by `hapax relay --results`.
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
