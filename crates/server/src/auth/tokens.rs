//! The tokens of a running broker: a set in memory, reloaded when the file changes.
//!
//! Looking up a token takes no lock and reads no file. A task compares the file's stamp once a
//! second and replaces the whole set when it changed. If the file cannot be read, is damaged or
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

use super::file::{Entry, Error, TokenFile};
use super::token::{self, Hash, Id};
use super::{Principal, file};
use crate::stamp::Stamp;

/// About how long a created or revoked token takes to become known to the broker.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Known tokens, shared by HTTP and gRPC.
#[derive(Debug)]
pub struct Tokens {
    file: TokenFile,
    /// The stamp of the file that was read last, valid or not: each is read, and reported, once.
    tried: Mutex<Option<Stamp>>,
    known: ArcSwap<HashMap<Id, Known>>,
    /// Notifies of a new set.
    changed: watch::Sender<()>,
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
        Ok(Self {
            file,
            tried: Mutex::new(tried),
            known: ArcSwap::from_pointee(known),
            changed: watch::Sender::new(()),
        })
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

    /// Reads the file again if it changed. Returns whether there is a new set.
    pub fn refresh(&self) -> bool {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        // Before reading: what is written meanwhile gets another stamp, and is read next time.
        let stamp = Stamp::of(&self.file.path());
        if *tried == stamp {
            return false;
        }
        *tried = stamp;
        let path = self.file.path();
        if stamp.is_none() {
            error!(path = %path.display(), "the token file is gone; the loaded tokens stay valid");
            return false;
        }
        match self.file.read() {
            Ok(entries) => {
                let known = known(entries);
                info!(tokens = known.len(), "the tokens were reloaded");
                self.known.store(Arc::new(known));
                self.changed.send_replace(());
                true
            }
            Err(error) => {
                error!(%error, "the tokens cannot be reloaded; the loaded ones stay valid");
                false
            }
        }
    }
}

impl Known {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

fn known(entries: Vec<Entry>) -> HashMap<Id, Known> {
    let know = |entry: file::Entry| {
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
