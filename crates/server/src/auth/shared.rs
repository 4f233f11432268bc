//! The tokens of a broker whose data is in a database: one document there, which all nodes follow.
//! A change replaces it if nobody else did meanwhile, and begins anew otherwise. The document is
//! what the file is for a broker on disk: only hashes, with a checksum.

use std::path::Path;
use std::time::Duration;

use hapax_postgres::{Database, Failure};
use jiff::Timestamp;
use tracing::{info, warn};

use super::file::TokenFile;
use super::set::{self, Created, Entry, Error, Listed, NewToken};

/// The name of the document.
pub(crate) const DOCUMENT: &str = "tokens";
/// How long one statement may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How often a change begins anew: each time somebody else changed the tokens, or the database did
/// not answer.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// The tokens in a database.
#[derive(Clone, Debug)]
pub struct SharedTokens {
    database: Database,
}

impl SharedTokens {
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Where they are, for messages.
    pub fn place(&self) -> &str {
        self.database.shown()
    }

    /// Creates a token. Blocks, as all of this.
    pub fn create(&self, new: NewToken, now: Timestamp) -> Result<Created, Error> {
        let drawn = set::draw(new, now)?;
        self.change(|entries| set::add(entries, &drawn.entry))?;
        Ok(Created { token: drawn.token, listed: drawn.entry.listed() })
    }

    /// All tokens, the oldest first.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.read()?.0.iter().map(Entry::listed).collect())
    }

    /// Removes the token of this id or name.
    pub fn revoke(&self, id_or_name: &str) -> Result<Listed, Error> {
        let mut removed = None;
        self.change(|entries| remove_once(entries, id_or_name, &mut removed))?;
        removed.ok_or_else(|| Error::NoSuchToken(id_or_name.to_owned()))
    }

    /// Takes the tokens of a file in a node's own directory, if the database never had any: they
    /// were made before it had one. Otherwise the file is not used, which is logged.
    pub(crate) fn adopt_file(&self, data: &Path) -> Result<(), Error> {
        let file = TokenFile::in_directory(data);
        let Some((bytes, tokens @ 1..)) = file.contents()? else { return Ok(()) };
        let path = file.path();
        let is_first = self.read()?.1 == 0;
        let replaced = || self.database.replace_document(DOCUMENT, 0, &bytes, WITHIN);
        if is_first && replaced().map_err(Error::Database)? {
            info!(
                path = %path.display(), tokens,
                "the tokens of this file are in the database now, and the file is not used any \
                 more: remove it"
            );
        } else {
            warn!(
                path = %path.display(),
                "this file is not used: the tokens of this broker are in its database. Remove it; \
                 `hapax token create --store URL` makes a token for all nodes"
            );
        }
        Ok(())
    }

    /// The tokens, and the version of the document; 0 if there never was any.
    pub(super) fn read(&self) -> Result<(Vec<Entry>, u64), Error> {
        let read = self.database.document(DOCUMENT, WITHIN).map_err(Error::Database)?;
        let (bytes, version) = read;
        match version {
            0 => Ok((Vec::new(), 0)),
            _ => Ok((set::parse(&bytes, &format!("the tokens in {}", self.place()))?, version)),
        }
    }

    fn change(
        &self,
        mut change: impl FnMut(&mut Vec<Entry>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut unknown: Option<Failure> = None;
        for _ in 0..TRIES {
            let (mut entries, version) = match (self.read(), &unknown) {
                (Err(Error::Database(_)), Some(_)) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                (read, _) => read?,
            };
            change(&mut entries)?;
            let bytes = set::encode(entries).map_err(|error| {
                Error::Database(Failure::Refused(format!("they cannot be written: {error}")))
            })?;
            match self.database.replace_document(DOCUMENT, version, &bytes, WITHIN) {
                Ok(true) => return Ok(()),
                // Somebody else was faster, or an earlier try.
                Ok(false) => {}
                // It may take effect, or have done so: what is there then tells.
                Err(failure) => unknown = Some(failure),
            }
            std::thread::sleep(PAUSE);
        }
        let busy = || Failure::Refused("others change them all the time".to_owned());
        Err(unknown.map_or_else(|| Error::Database(busy()), Error::Unknown))
    }
}

/// Removes the token of this id or name, or that which an earlier try removed.
fn remove_once(
    entries: &mut Vec<Entry>,
    id_or_name: &str,
    removed: &mut Option<Listed>,
) -> Result<(), Error> {
    // By then there may be another one of the same name.
    let id = removed.as_ref().map_or(id_or_name, |listed| &listed.id);
    match set::remove(entries, id) {
        Ok(listed) => {
            *removed = Some(listed);
            Ok(())
        }
        // An earlier try has removed it, whose answer was lost.
        Err(Error::NoSuchToken(_)) if removed.is_some() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Patterns, Permissions};

    fn add(entries: &mut Vec<Entry>, name: &str) -> String {
        let new = NewToken {
            name: Some(name.to_owned()),
            tenant: "default".to_owned(),
            queues: Patterns::everything(),
            can: Permissions::ALL,
            expires_at: None,
        };
        let drawn = set::draw(new, Timestamp::now()).unwrap();
        set::add(entries, &drawn.entry).unwrap();
        drawn.entry.id.to_string()
    }

    fn ids(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(|entry| entry.id.to_string()).collect()
    }

    #[test]
    fn a_revocation_that_is_tried_again_removes_one_token() {
        let (mut entries, mut removed) = (Vec::new(), None);
        let (other, first) = (add(&mut entries, "other"), add(&mut entries, "ci"));
        let before = entries.clone();
        remove_once(&mut entries, "ci", &mut removed).unwrap();
        assert_eq!(ids(&entries), [other.as_str()]);
        // Its answer was lost, and it had taken effect.
        remove_once(&mut entries, "ci", &mut removed).unwrap();
        assert_eq!(ids(&entries), [other.as_str()]);
        // Somebody has made another one of that name since.
        let second = add(&mut entries, "ci");
        remove_once(&mut entries, "ci", &mut removed).unwrap();
        assert_eq!(ids(&entries), [other.as_str(), second.as_str()]);
        assert_eq!(removed.as_ref().unwrap().id, first);
        // It had not taken effect.
        let mut entries = before;
        remove_once(&mut entries, "ci", &mut removed).unwrap();
        assert_eq!(ids(&entries), [other.as_str()]);
        let missing = remove_once(&mut entries, "ci", &mut None).unwrap_err();
        assert!(matches!(missing, Error::NoSuchToken(_)), "{missing}");
    }
}
