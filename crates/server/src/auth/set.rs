//! A list of tokens as it is written, in a file or in a database: hashes, with a checksum over all
//! of them. What may be added to it, and what is shown of it.

use std::io;
use std::path::PathBuf;

use hapax_core::QueueName;
use hapax_core::limits::TENANT_BYTES_MAX;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::token::{self, Hash, Id};
use super::{Patterns, Permissions};
use crate::whole;

const FORMAT: u32 = 1;
const NAME_CHARS_MAX: usize = 80;
/// Each costs the broker about 300 bytes.
const TOKENS_MAX: usize = 100_000;

/// The properties of a new token.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// A unique name for people. `None`: the token is named by its id.
    pub name: Option<String>,
    pub tenant: String,
    pub queues: Patterns,
    pub can: Permissions,
    pub expires_at: Option<Timestamp>,
}

/// A token that was just created. Its text cannot be shown again.
#[derive(Clone)]
pub struct Created {
    pub token: String,
    pub listed: Listed,
}

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub id: String,
    pub name: Option<String>,
    pub tenant: String,
    pub queues: Patterns,
    pub can: Permissions,
    #[serde(serialize_with = "rfc3339::write")]
    pub created_at: Timestamp,
    #[serde(serialize_with = "rfc3339::write_option")]
    pub expires_at: Option<Timestamp>,
}

/// Why tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{place} is damaged: {why}. Restore it from a backup, or move it away and make new tokens"
    )]
    Damaged { place: String, why: String },
    #[error(
        "{place} has format {format}, and this program knows formats up to {FORMAT}: \
         use a newer release of hapax"
    )]
    Newer { place: String, format: u32 },
    #[error("the tokens cannot be read or changed: {0}")]
    Database(hapax_postgres::Failure),
    #[error(
        "it is not known whether the tokens were changed: {0}. See `hapax token ls` when the \
         database answers"
    )]
    Unknown(hapax_postgres::Failure),
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    #[error("a token named {0:?} exists already: choose another name, or remove it first")]
    NameTaken(String),
    #[error("a token's name has 1 to {NAME_CHARS_MAX} printable characters")]
    InvalidName,
    #[error(
        "{0:?} is not a valid tenant name: use 1 to {TENANT_BYTES_MAX} characters of A-Z a-z 0-9 \
         . _ -"
    )]
    InvalidTenant(String),
    #[error("a token needs at least one permission, such as --can send,work")]
    NoPermission,
    #[error("the token would have expired already at {0}")]
    ExpiredAlready(Timestamp),
    #[error(
        "there are already {TOKENS_MAX} tokens, which is the maximum: remove some with `hapax \
             token rm`"
    )]
    TooMany,
    #[error("there is no token with the name or id {0:?}: see `hapax token ls`")]
    NoSuchToken(String),
}

/// The list as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    format: u32,
    /// A flipped bit must not grant a token anything.
    checksum: String,
    tokens: Vec<Entry>,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// A token as it is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub(super) id: Id,
    name: Option<String>,
    pub(super) tenant: String,
    pub(super) queues: Patterns,
    pub(super) can: Permissions,
    pub(super) hash: Hash,
    #[serde(with = "rfc3339")]
    created_at: Timestamp,
    #[serde(serialize_with = "rfc3339::write_option", deserialize_with = "rfc3339::read_option")]
    pub(super) expires_at: Option<Timestamp>,
}

/// Reads a list; `place` is where it was found, for messages.
pub(super) fn parse(bytes: &[u8], place: &str) -> Result<Vec<Entry>, Error> {
    let damaged = |why: String| Error::Damaged { place: place.to_owned(), why };
    let read_json = |error: serde_json::Error| damaged(error.to_string());
    // The format first: a newer one may differ in everything else.
    let Format { format } = serde_json::from_slice(bytes).map_err(read_json)?;
    if format > FORMAT {
        return Err(Error::Newer { place: place.to_owned(), format });
    }
    let contents: Contents = serde_json::from_slice(bytes).map_err(read_json)?;
    if contents.checksum != checksum(&contents.tokens).map_err(read_json)? {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    let mut ids: Vec<String> = contents.tokens.iter().map(|entry| entry.id.into()).collect();
    ids.sort_unstable();
    if !ids.is_sorted_by(|one, next| one < next) {
        return Err(damaged("two tokens have the same id".to_owned()));
    }
    if let Some(entry) = contents.tokens.iter().find(|entry| !is_tenant(&entry.tenant)) {
        return Err(damaged(format!("{:?} is not a valid tenant name", entry.tenant)));
    }
    Ok(contents.tokens)
}

/// The bytes of a list.
pub(super) fn encode(tokens: Vec<Entry>) -> serde_json::Result<Vec<u8>> {
    let checksum = checksum(&tokens)?;
    let mut bytes = serde_json::to_vec_pretty(&Contents { format: FORMAT, checksum, tokens })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// A token that was drawn and is in no list yet.
pub(super) struct Drawn {
    pub(super) token: String,
    pub(super) entry: Entry,
}

/// Draws a token with these properties.
pub(super) fn draw(new: NewToken, now: Timestamp) -> Result<Drawn, Error> {
    new.check(now)?;
    let (token, id, hash) = token::make().map_err(Error::Random)?;
    let entry = Entry {
        id,
        name: new.name,
        tenant: new.tenant,
        queues: new.queues,
        can: new.can,
        hash,
        created_at: now,
        expires_at: new.expires_at,
    };
    Ok(Drawn { token, entry })
}

/// Adds a token. One that is there already was added by an earlier try.
pub(super) fn add(entries: &mut Vec<Entry>, entry: &Entry) -> Result<(), Error> {
    if let Some(known) = entries.iter().find(|known| known.id == entry.id) {
        let is_same = bool::from(entry.hash.is(&known.hash));
        return if is_same { Ok(()) } else { Err(Error::NameTaken(entry.id.to_string())) };
    }
    if entries.len() >= TOKENS_MAX {
        return Err(Error::TooMany);
    }
    if let Some(name) = &entry.name
        && entries.iter().any(|known| known.is_called(name))
    {
        return Err(Error::NameTaken(name.clone()));
    }
    entries.push(entry.clone());
    Ok(())
}

/// Removes the token of this id or name.
pub(super) fn remove(entries: &mut Vec<Entry>, id_or_name: &str) -> Result<Listed, Error> {
    let place = entries.iter().position(|entry| entry.is_called(id_or_name));
    let place = place.ok_or_else(|| Error::NoSuchToken(id_or_name.to_owned()))?;
    Ok(entries.remove(place).listed())
}

fn checksum(tokens: &[Entry]) -> serde_json::Result<String> {
    Ok(whole::checksum(&serde_json::to_vec(tokens)?))
}

/// The rules for names are the core's.
fn is_tenant(name: &str) -> bool {
    QueueName::new(name, "any").is_ok()
}

impl NewToken {
    fn check(&self, now: Timestamp) -> Result<(), Error> {
        if let Some(name) = &self.name {
            let is_printable = !name.chars().any(char::is_control) && name.trim() == name;
            if !(1..=NAME_CHARS_MAX).contains(&name.chars().count()) || !is_printable {
                return Err(Error::InvalidName);
            }
        }
        if !is_tenant(&self.tenant) {
            return Err(Error::InvalidTenant(self.tenant.clone()));
        }
        if self.can.is_empty() {
            return Err(Error::NoPermission);
        }
        match self.expires_at {
            Some(at) if at <= now => Err(Error::ExpiredAlready(at)),
            _ => Ok(()),
        }
    }
}

impl Entry {
    fn is_called(&self, id_or_name: &str) -> bool {
        self.name.as_deref() == Some(id_or_name) || self.id.to_string() == id_or_name
    }

    pub(super) fn listed(&self) -> Listed {
        Listed {
            id: self.id.to_string(),
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            queues: self.queues.clone(),
            can: self.can,
            created_at: self.created_at,
            expires_at: self.expires_at,
        }
    }
}

/// The text of a token is only for standard output, never for a log.
impl std::fmt::Debug for Created {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Created").field("listed", &self.listed).finish_non_exhaustive()
    }
}

/// Times as they stand in the file.
mod rfc3339 {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn write<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{at:.3}"))
    }

    pub(super) fn write_option<S: Serializer>(
        at: &Option<Timestamp>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        at.map(|at| format!("{at:.3}")).serialize(to)
    }

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        write(at, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }

    pub(super) fn read_option<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}
