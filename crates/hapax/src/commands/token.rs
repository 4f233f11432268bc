//! `hapax token`: the API tokens in a broker's data directory, or in its database. A running broker
//! reloads them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use hapax_server::auth::{
    Created, Error, Listed, NewToken, Pattern, Patterns, Permissions, SharedTokens, TokenFile,
};
use hapax_server::{cluster, engine};
use hapax_wire::DEFAULT_TENANT;
use jiff::Timestamp;
use serde_json::json;

use super::serve::mistaken;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Colour, Output, Table, clean, say};
use crate::settings::{self, Home, OrOff, Store};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a token and print it. It cannot be shown again: only its hash is stored.
    #[command(after_help = "Examples:
  hapax token create --can send --queue orders
  hapax token create --tenant shop --queue 'orders.*' --can send,work,admin --name shop-backend
  hapax token create --can send,work --store postgres://hapax@db/queues
  export HAPAX_TOKEN=$(hapax token create --can send,work --expires 30d)")]
    Create(Create),
    /// List the tokens without their secrets.
    #[command(after_help = "Examples:
  hapax token ls
  hapax token ls --data data/hapax -o json")]
    Ls(List),
    /// Revoke a token. A running broker refuses it within about a second.
    #[command(after_help = "Examples:
  hapax token rm shop-backend")]
    Rm(Remove),
}

/// The options that locate the broker's data. Other settings are ignored.
#[derive(Debug, Args)]
struct Data {
    /// The settings file.
    ///
    /// If none is named, `hapax.toml` in the working directory is read if it exists.
    #[arg(long, env = "HAPAX_CONFIG", hide_env_values = true, value_name = "PATH")]
    #[arg(value_parser = settings::text::<OrOff<PathBuf>>)]
    config: Option<OrOff<PathBuf>>,
    /// The broker's data directory, by default ./hapax-data. It is created if it does not exist and
    /// was named here or in the settings file.
    #[arg(long, env = "HAPAX_DATA", hide_env_values = true, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The database of the broker, as its nodes have it, or `off`: with a store, the tokens are
    /// there, and all nodes follow them.
    #[arg(long, env = "HAPAX_STORE", hide_env_values = true, value_name = "URL")]
    #[arg(value_parser = settings::text::<OrOff<Store>>)]
    store: Option<OrOff<Store>>,
}

impl Data {
    fn tokens(&self, creates: bool) -> Result<Place, Failure> {
        let home = settings::home(self.config.as_ref(), self.data.as_deref(), self.store.as_ref());
        match home.map_err(|mistakes| mistaken(&mistakes))? {
            Home::Database(store) => match cluster::tokens(&store) {
                Ok(tokens) => Ok(Place::Database(tokens)),
                Err(error) => Err(Failure::new(Exit::Failure, error.to_string())),
            },
            Home::Directory { path, is_named } => {
                refuse_node(&path)?;
                // No broker reads the tokens of a directory that was imported.
                if let Err(error @ engine::Error::Retired(_)) = engine::Data::partition_paths(&path)
                {
                    return Err(Failure::usage(error.to_string())
                        .next("its tokens are in the database now: --store URL, or HAPAX_STORE"));
                }
                // A missing directory is created only if it was given explicitly: tokens in a
                // directory that no broker uses would be useless.
                if !path.exists() {
                    if !(creates && is_named) {
                        return Err(missing(&path));
                    }
                    say(format_args!("{} did not exist and was created", path.display()));
                }
                Ok(Place::File(TokenFile::in_directory(&path)))
            }
        }
    }
}

/// The tokens of a node are in its database: those in its directory would be of no use.
fn refuse_node(directory: &Path) -> Result<(), Failure> {
    if !engine::Data::is_of_node(directory) {
        return Ok(());
    }
    let what = format!(
        "{} is the directory of a node, whose tokens are in its database",
        directory.display()
    );
    Err(Failure::usage(what)
        .next("give the database: --store URL, HAPAX_STORE, or store in a file"))
}

/// Where tokens are kept.
enum Place {
    File(TokenFile),
    Database(SharedTokens),
}

impl Place {
    fn create(&self, new: NewToken, now: Timestamp) -> Result<Created, Error> {
        match self {
            Self::File(file) => file.create(new, now),
            Self::Database(tokens) => tokens.create(new, now),
        }
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        match self {
            Self::File(file) => file.list(),
            Self::Database(tokens) => tokens.list(),
        }
    }

    fn revoke(&self, id_or_name: &str) -> Result<Listed, Error> {
        match self {
            Self::File(file) => file.revoke(id_or_name),
            Self::Database(tokens) => tokens.revoke(id_or_name),
        }
    }

    /// The field of an answer, and its value.
    fn shown(&self) -> (&'static str, String) {
        match self {
            Self::File(file) => ("file", file.path().display().to_string()),
            Self::Database(tokens) => ("database", tokens.place().to_owned()),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The tenant (namespace of queues and keys) that the token belongs to.
    #[arg(long, default_value = DEFAULT_TENANT)]
    tenant: String,
    /// The queues that it may use: a name or a pattern such as orders.*. May be repeated.
    #[arg(long = "queue", value_name = "PATTERN", value_delimiter = ',', default_value = "*")]
    queues: Vec<Pattern>,
    /// The permissions: send, work, admin, operate, separated by commas.
    #[arg(long, value_name = "LIST", required = true)]
    can: Permissions,
    /// A name, shown by `hapax token ls`.
    #[arg(long)]
    name: Option<String>,
    /// The token expires after this time.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires: Option<Duration>,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The name or id, as shown by `hapax token ls`.
    #[arg(value_name = "NAME|ID")]
    token: String,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Create(create) => make(create),
        Command::Ls(list) => ls(list),
        Command::Rm(remove) => rm(remove),
    }
}

fn make(create: &Create) -> Result<Exit, Failure> {
    let now = Timestamp::now();
    let expires_at = create.expires.map(|span| now.checked_add(span)).transpose();
    let queues = Patterns::new(create.queues.iter().cloned())
        .map_err(|error| Failure::usage(format!("--queue: {error}")))?;
    let new = NewToken {
        name: create.name.clone(),
        tenant: create.tenant.clone(),
        queues,
        can: create.can,
        expires_at: expires_at.context("--expires is too far away")?,
    };
    let place = create.data.tokens(true)?;
    let made = place.create(new, now).map_err(failed)?;
    let (field, shown) = place.shown();
    let screen = create.output.screen();
    if screen.is_json() {
        let mut answer = json!(made.listed);
        if let Some(fields) = answer.as_object_mut() {
            fields.insert("token".to_owned(), made.token.into());
            fields.insert(field.to_owned(), shown.into());
        }
        screen.json(&answer)?;
        return Ok(Exit::Ok);
    }
    screen.line(&made.token)?;
    let listed = &made.listed;
    say(format_args!(
        "token {} of the tenant {}: can {} on {}; it cannot be shown again. It is in {shown}, \
         which a running broker reads within about a second",
        clean(listed.name.as_deref().unwrap_or(&listed.id)),
        listed.tenant,
        listed.can,
        listed.queues,
    ));
    Ok(Exit::Ok)
}

fn ls(list: &List) -> Result<Exit, Failure> {
    let screen = list.output.screen();
    let place = list.data.tokens(false)?;
    let tokens = place.list().map_err(failed)?;
    if screen.is_json() {
        screen.json(&tokens)?;
        return Ok(Exit::Ok);
    }
    if tokens.is_empty() {
        say(format_args!(
            "there are no tokens in {}; create one with: hapax token create --can send,work",
            place.shown().1
        ));
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["ID", "NAME", "TENANT", "QUEUES", "CAN", "CREATED", "EXPIRES"]);
    let now = moment::now_ms();
    let age = |at: Timestamp| moment::relative(now, at.as_millisecond().unsigned_abs());
    for token in &tokens {
        let Listed { id, name, tenant, queues, can, created_at, expires_at } = token;
        let expires = match expires_at {
            Some(at) if *at <= Timestamp::now() => {
                crate::screen::Cell::coloured(Colour::Red, format_args!("expired {}", age(*at)))
            }
            Some(at) => age(*at).into(),
            None => "never".into(),
        };
        table.row([
            id.into(),
            clean(name.as_deref().unwrap_or_default()).into(),
            tenant.into(),
            queues.into(),
            can.into(),
            age(*created_at).into(),
            expires,
        ]);
    }
    table.print(screen)?;
    Ok(Exit::Ok)
}

fn rm(remove: &Remove) -> Result<Exit, Failure> {
    let place = remove.data.tokens(false)?;
    let removed = place.revoke(&remove.token).map_err(|error| {
        let is_missing = matches!(error, Error::NoSuchToken(_));
        let failure = failed(error);
        match is_missing {
            true => failure.next(format!("hapax token ls lists those in {}", place.shown().1)),
            false => failure,
        }
    })?;
    let screen = remove.output.screen();
    let name = removed.name.as_deref().unwrap_or(&removed.id);
    match screen.is_json() {
        true => screen.json(&removed)?,
        false => screen.line(format_args!("revoked {}", clean(name)))?,
    }
    Ok(Exit::Ok)
}

fn missing(directory: &Path) -> Failure {
    let what = format!("there is no data directory {}", directory.display());
    let next = "name the broker's: --data DIR, HAPAX_DATA, or data in hapax.toml";
    Failure::new(Exit::Missing, what).next(next)
}

fn failed(error: Error) -> Failure {
    let exit = match error {
        Error::NoSuchToken(_) => Exit::Missing,
        Error::NameTaken(_) => Exit::Conflict,
        Error::InvalidName
        | Error::InvalidTenant(_)
        | Error::NoPermission
        | Error::ExpiredAlready(_) => Exit::Usage,
        _ => Exit::Failure,
    };
    Failure::new(exit, error.to_string())
}
