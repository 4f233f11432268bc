//! Why a database is refused, and why a call to it failed.

/// A URL that is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's URL is not usable: {0}")]
pub struct BadUrl(pub(crate) String);

/// What an operator should know of a database, although it can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// No node uses it as it is set.
    #[error(transparent)]
    Unsafe(Refused),
    #[error(
        "the standbys of {database} replicate asynchronously: if one of them takes over, what was \
         acknowledged last may be lost with the primary. Set synchronous_standby_names"
    )]
    Asynchronous { database: String },
}

/// Why a database is not used. Nothing was changed in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    #[error("{database} cannot be reached: {why}")]
    Unreachable { database: String, why: String },
    #[error(
        "{database} is not PostgreSQL but {found}: Hapax needs PostgreSQL 14 or newer, or a \
         service that is PostgreSQL"
    )]
    NotPostgres { database: String, found: String },
    #[error("{database} is PostgreSQL {found}: Hapax needs 14 or newer, upgrade the server")]
    TooOld { database: String, found: String },
    #[error(
        "{database} only takes reads (it is a standby, or default_transaction_read_only is on): \
         name the primary, or all hosts: postgres://…@first,second/…"
    )]
    ReadOnly { database: String },
    #[error(
        "{database} would lose what was acknowledged: {setting} is {value}. Set {setting} = \
         {remedy} and try again"
    )]
    Unsafe { database: String, setting: &'static str, value: String, remedy: &'static str },
    #[error("{database} does not let {user} do what is needed: {why}. As its owner: {remedy}")]
    Rights { database: String, user: String, why: String, remedy: String },
    #[error(
        "{database} has a schema named hapax that is not of this broker ({why}): use another \
         database, or remove it by hand if nobody needs it"
    )]
    Foreign { database: String, why: String },
    #[error(
        "{database} was written by a newer release (format {found}, this one knows {known}): \
         upgrade this node"
    )]
    Newer { database: String, found: i32, known: i32 },
    #[error(
        "{database} has an import of {from} that is under way or was interrupted, and is no \
         broker yet. If it was interrupted, run hapax import again: it begins anew. Or remove \
         what it left: DROP SCHEMA hapax CASCADE"
    )]
    Importing { database: String, from: String },
    #[error("{database} has an import of {from} under way: wait for its end")]
    ImportRunning { database: String, from: String },
    #[error(
        "{database} already holds a broker: import into another database, or, if nobody needs it, \
         stop its nodes and remove it: DROP SCHEMA hapax CASCADE"
    )]
    NotEmpty { database: String },
    #[error("{database} holds no broker: check the URL. A node that never had one creates it")]
    Empty { database: String },
    #[error("{database} answered with something unexpected: {why}")]
    Unexpected { database: String, why: String },
}

/// Why a call of the database failed. Every kind leaves open whether the statement took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The connection or the server is gone, or the server is no longer the primary. A new
    /// connection is made, to whichever host takes writes now.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The database has no room: disk, memory, or a limit that was configured.
    #[error("the database has no room: {0}")]
    Full(String),
    /// The server stopped waiting for its standby: what it reported may be lost with it.
    #[error("the outcome is unknown, the database warned: {0}")]
    Warned(String),
    /// The transaction was rolled back, and the same again may work.
    #[error("the database rolled back: {0}")]
    RolledBack(String),
    /// What the database keeps cannot be read: asking again does not help.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// Anything else, for a person to look at.
    #[error("the database refused: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("the database did not answer within {0:?}")]
    TimedOut(std::time::Duration),
}

impl Failure {
    /// What a SQLSTATE means here.
    pub fn of_state(state: &str, message: &str) -> Self {
        let text = format!("{message} (SQLSTATE {state})");
        match state {
            "53100" | "53200" | "53400" => Self::Full(text),
            "40001" | "40P01" => Self::RolledBack(text),
            "XX001" | "XX002" => Self::Damaged(text),
            // Too many connections; the server is starting, stopping or a standby.
            "53300" | "25006" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => {
                Self::Unreachable(text)
            }
            _ if state.starts_with("08") => Self::Unreachable(text),
            _ => Self::Refused(text),
        }
    }

    /// Whether the connection is of no more use.
    pub fn ends_connection(&self) -> bool {
        let stays = matches!(
            self,
            Self::Full(_) | Self::RolledBack(_) | Self::Damaged(_) | Self::Refused(_)
        );
        !stays
    }
}
