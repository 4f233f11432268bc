//! The tables and the statements as SQL, for three dialects: what `hapax sql` prints, and what the
//! drivers here run. Both use the same texts, so that other languages get what is tested.

use crate::transaction::Kind;

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    Sqlite,
    Mysql,
}

impl Dialect {
    pub const ALL: &[Self] = &[Self::Postgres, Self::Sqlite, Self::Mysql];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
            Self::Mysql => "mysql",
        }
    }

    /// The migration of the inbox.
    pub fn inbox(self) -> &'static str {
        match self {
            Self::Postgres => postgres::INBOX,
            Self::Sqlite => sqlite::INBOX,
            Self::Mysql => mysql::INBOX,
        }
    }

    /// The migration of the outbox.
    pub fn outbox(self) -> &'static str {
        match self {
            Self::Postgres => postgres::OUTBOX,
            Self::Sqlite => sqlite::OUTBOX,
            Self::Mysql => mysql::OUTBOX,
        }
    }

    /// The migration of the results table, `hapax_results`.
    pub fn results(self) -> &'static str {
        match self {
            Self::Postgres => postgres::RESULTS,
            Self::Sqlite => sqlite::RESULTS,
            Self::Mysql => mysql::RESULTS,
        }
    }

    /// The text of a statement.
    pub(crate) fn statement(self, kind: Kind) -> &'static str {
        macro_rules! of {
            ($dialect:ident) => {
                match kind {
                    Kind::Enter => $dialect::ENTER,
                    Kind::Found => $dialect::FOUND,
                    Kind::Finish => $dialect::FINISH,
                    Kind::Old => $dialect::OLD,
                    Kind::Sweep => $dialect::SWEEP,
                    Kind::Send => $dialect::SEND,
                }
            };
        }
        match self {
            Self::Postgres => of!(postgres),
            Self::Sqlite => of!(sqlite),
            Self::Mysql => of!(mysql),
        }
    }

    /// The migration of the inbox, with its statements as comments.
    pub fn inbox_page(self) -> String {
        let kinds = [Kind::Enter, Kind::Found, Kind::Finish, Kind::Old, Kind::Sweep];
        let names = match self {
            Self::Mysql => IN_ORDER,
            Self::Postgres | Self::Sqlite => PARAMETERS,
        };
        page(self.inbox(), names, &kinds.map(|kind| self.statement(kind)))
    }

    /// The migration of the outbox, with its statements as comments.
    pub fn outbox_page(self) -> String {
        let names = IN_ORDER;
        match self {
            Self::Postgres => page(self.outbox(), names, &[postgres::SEND, postgres::UNPARK]),
            Self::Sqlite => page(self.outbox(), names, &[sqlite::SEND, sqlite::UNPARK]),
            Self::Mysql => page(self.outbox(), names, &[mysql::SEND, mysql::UNPARK, mysql::RELAY]),
        }
    }
}

const IN_ORDER: &str = "-- The parameters are in the order of their columns.";

const PARAMETERS: &str = "\
-- The first seven parameters are consumer (a name of your choice), tenant, queue, key, group (''
-- where there is none), generation and fence, as the delivery has them; the eighth and ninth of the
-- finish are the result and its content type; the fourth and the following ones of \"old\" are its
-- own. A message without a key, which at-least-once queues allow, uses its id as the key here.";

/// Statements are comments, so that the output can be run as a script.
fn page(migration: &str, parameters: &str, statements: &[&str]) -> String {
    let mut page = migration.to_owned();
    page.push_str("\n-- The statements, for programs in any language.\n");
    push_commented(&mut page, parameters);
    for statement in statements {
        page.push_str("--\n");
        push_commented(&mut page, statement);
    }
    page
}

fn push_commented(page: &mut String, text: &str) {
    for line in text.lines() {
        match line.strip_prefix("--") {
            Some(comment) => page.push_str(&format!("--{comment}\n")),
            None => page.push_str(&format!("--     {line}\n").replace("--     \n", "--\n")),
        }
    }
}

macro_rules! texts {
    ($folder:literal: $($name:ident = $file:literal),+ $(,)?) => {$(
        pub(crate) const $name: &str =
            include_str!(concat!("../sql/", $folder, "/", $file, ".sql"));
    )+};
}

pub(crate) mod postgres {
    texts!("postgres":
        INBOX = "inbox", ENTER = "enter", FOUND = "found", FINISH = "finish",
        OLD = "old", SWEEP = "sweep",
        OUTBOX = "outbox", SEND = "send", UNPARK = "unpark", RESULTS = "results",
    );
}

pub(crate) mod sqlite {
    texts!("sqlite":
        INBOX = "inbox", ENTER = "enter", FOUND = "found", FINISH = "finish",
        OLD = "old", SWEEP = "sweep",
        OUTBOX = "outbox", SEND = "send", UNPARK = "unpark", RESULTS = "results",
    );
}

pub(crate) mod mysql {
    texts!("mysql":
        INBOX = "inbox", ENTER = "enter", FOUND = "found", FINISH = "finish",
        OLD = "old", SWEEP = "sweep",
        OUTBOX = "outbox", SEND = "send", UNPARK = "unpark", RESULTS = "results", RELAY = "relay",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_its_migration_and_comments() {
        for dialect in Dialect::ALL {
            for (page, migration) in
                [(dialect.inbox_page(), dialect.inbox()), (dialect.outbox_page(), dialect.outbox())]
            {
                let rest = page.strip_prefix(migration).unwrap();
                assert!(rest.lines().all(|line| line.is_empty() || line.starts_with("--")));
                assert!(rest.contains("INSERT INTO"), "{page}");
            }
        }
    }

    #[test]
    fn no_line_of_a_page_is_too_long_to_read() {
        for dialect in Dialect::ALL {
            let pages = [dialect.inbox_page(), dialect.outbox_page(), dialect.results().to_owned()];
            for line in pages.iter().flat_map(|page| page.lines()) {
                assert!(line.chars().count() <= 105, "{line}");
                assert_eq!(line.trim_end(), line);
            }
        }
    }
}
