//! The tokens of a running broker: a set in memory, reloaded when the file or the database changes.
//!
//! Looking up a token takes no lock and reads no file. A task compares the file's stamp once a
//! second and replaces the whole set when it changed; that of a node reads the database again when
//! a heartbeat brought another number of changes. If the tokens cannot be read, are damaged or
//! missing, the last good set stays and the error is logged. At start there is no last good set, so
//! the broker does not start.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{error, info};

use super::Principal;
use super::file::TokenFile;
use super::set::{Entry, Error};
use super::shared::SharedTokens;
use super::token::{self, Hash, Id};
use crate::stamp::Stamp;

/// About how long a created or revoked token takes to become known to the broker.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Known tokens, shared by HTTP and gRPC.
#[derive(Debug)]
pub struct Tokens {
    source: Source,
    known: ArcSwap<HashMap<Id, Known>>,
    /// Notifies of a new set.
    changed: watch::Sender<()>,
}

/// Where the tokens are, and what was read of it last, valid or not: each is read, and reported,
/// once.
#[derive(Debug)]
enum Source {
    File { file: TokenFile, tried: Mutex<Option<Stamp>> },
    Shared { tokens: SharedTokens, version: Mutex<u64> },
}

#[derive(Debug)]
struct Known {
    hash: Hash,
    expires_at: Option<Timestamp>,
    principal: Arc<Principal>,
}

impl Tokens {
    /// Reads the tokens of a data directory. No file means no tokens: nothing is permitted yet.
    pub fn open(data: &Path) -> Result<Self, Error> {
        let file = TokenFile::in_directory(data);
        let tried = Stamp::of(&file.path());
        let known = known(file.read()?);
        Ok(Self::new(Source::File { file, tried: Mutex::new(tried) }, known))
    }

    /// Reads the tokens of a broker whose data is in a database. Blocks.
    pub(crate) fn shared(tokens: SharedTokens) -> Result<Self, Error> {
        let (entries, version) = tokens.read()?;
        Ok(Self::new(Source::Shared { tokens, version: Mutex::new(version) }, known(entries)))
    }

    fn new(source: Source, known: HashMap<Id, Known>) -> Self {
        let known = ArcSwap::from_pointee(known);
        Self { source, known, changed: watch::Sender::new(()) }
    }

    /// The principal of a token; `None` if it is malformed, unknown, wrong or expired. All cases
    /// except the first take the same work.
    pub fn authenticate(&self, token: &str, now: Timestamp) -> Option<Arc<Principal>> {
        let (id, hash) = token::parse(token)?;
        let all = self.known.load();
        let found = all.get(&id);
        let is_same = hash.is(found.map_or(&Hash::NONE, |known| &known.hash));
        let known = found.filter(|known| bool::from(is_same) && known.is_valid(now))?;
        Some(Arc::clone(&known.principal))
    }

    /// Whether the principal's token is still known and unchanged.
    pub fn is_current(&self, principal: &Principal, now: Timestamp) -> bool {
        let all = self.known.load();
        let known = principal.token.and_then(|id| all.get(&id));
        known.is_some_and(|known| known.is_valid(now) && *known.principal == *principal)
    }

    /// Completes when the principal's token is no longer known, or was changed.
    pub async fn revoked(&self, principal: &Principal) {
        let mut changed = self.changed.subscribe();
        while self.is_current(principal, Timestamp::now()) {
            // Tokens also expire without a change of the file.
            let _ = tokio::time::timeout(FOLLOW_EVERY, changed.changed()).await;
        }
    }

    pub fn len(&self) -> usize {
        self.known.load().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Follows the file until the future is dropped.
    pub async fn follow(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(FOLLOW_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let tokens = Arc::clone(&self);
            // Not on the threads that serve requests.
            let checked = tokio::task::spawn_blocking(move || tokens.refresh()).await;
            if let Err(panic) = checked {
                error!(%panic, "the tokens could not be checked");
            }
        }
    }

    /// Follows the database until the future is dropped: `catalog` is what the last heartbeat
    /// brought.
    pub(crate) async fn follow_catalog(self: Arc<Self>, mut catalog: watch::Receiver<u64>) {
        while catalog.changed().await.is_ok() {
            catalog.borrow_and_update();
            loop {
                let tokens = Arc::clone(&self);
                let read = tokio::task::spawn_blocking(move || tokens.refresh_shared()).await;
                if read.unwrap_or(true) {
                    break;
                }
                tokio::time::sleep(FOLLOW_EVERY).await;
            }
        }
    }

    /// Reads the file again if it changed. Returns whether there is a new set.
    pub fn refresh(&self) -> bool {
        let Source::File { file, tried } = &self.source else { return false };
        let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
        // Before reading: what is written meanwhile gets another stamp, and is read next time.
        let stamp = Stamp::of(&file.path());
        if *tried == stamp {
            return false;
        }
        *tried = stamp;
        let path = file.path();
        if stamp.is_none() {
            error!(path = %path.display(), "the token file is gone; the loaded tokens stay valid");
            return false;
        }
        match file.read() {
            Ok(entries) => {
                self.replace(entries);
                true
            }
            Err(error) => {
                error!(%error, "the tokens cannot be reloaded; the loaded ones stay valid");
                false
            }
        }
    }

    /// Reads the database again. Returns whether there is nothing to try again.
    fn refresh_shared(&self) -> bool {
        let Source::Shared { tokens, version } = &self.source else { return true };
        let mut version = version.lock().unwrap_or_else(PoisonError::into_inner);
        match tokens.read() {
            Ok((_, found)) if found == *version => true,
            Ok((entries, found)) => {
                *version = found;
                self.replace(entries);
                true
            }
            Err(error) => {
                error!(%error, "the tokens cannot be reloaded; the loaded ones stay valid");
                !matches!(error, Error::Database(_))
            }
        }
    }

    fn replace(&self, entries: Vec<Entry>) {
        let known = known(entries);
        info!(tokens = known.len(), "the tokens were reloaded");
        self.known.store(Arc::new(known));
        self.changed.send_replace(());
    }
}

impl Known {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

fn known(entries: Vec<Entry>) -> HashMap<Id, Known> {
    let know = |entry: Entry| {
        let principal = Arc::new(Principal {
            tenant: entry.tenant.into(),
            queues: entry.queues,
            permissions: entry.can,
            token: Some(entry.id),
        });
        (entry.id, Known { hash: entry.hash, expires_at: entry.expires_at, principal })
    };
    entries.into_iter().map(know).collect()
}
