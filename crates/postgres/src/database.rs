//! The database: its connections, its checks, and what all nodes share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Failure, Refused};
use crate::settings::Settings;

/// A secret that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What a new broker gets.
#[derive(Clone, Debug)]
pub struct Create {
    /// Fixed for good.
    pub partitions: u16,
    /// The secret of fingerprints, as in `broker.json`; `None` for data of release 0.1 that is
    /// imported.
    pub fingerprints: Option<Secret>,
    /// Seals leases, as the file `secret`.
    pub leases: Secret,
    /// Nodes know each other by it.
    pub links: Secret,
}

/// What all nodes of a broker share, as it was when this node connected.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Of the tables.
    pub format: i32,
    /// What every node may write.
    pub feature: i32,
    /// Drawn once.
    pub cluster: Uuid,
    /// Drawn anew when an operator accepts a loss.
    pub lineage: Uuid,
    pub partitions: u16,
    pub fingerprints: Option<Secret>,
    pub leases: Secret,
    pub links: Secret,
}

/// A database that was checked. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Database(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    shared: Shared,
}

impl Database {
    /// Connects and checks. Where the database is empty the broker is created in it, if `create` is
    /// given, and refused otherwise. Blocks.
    pub fn connect(settings: Settings, create: Option<&Create>) -> Result<Self, Refused> {
        let _ = create;
        Err(Refused::Empty { database: settings.shown().to_owned() })
    }

    pub fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// The database in messages.
    pub fn shown(&self) -> &str {
        self.0.settings.shown()
    }

    /// Asks now how far the partitions of this node are, so that an idle owner that was replaced
    /// learns of it. Returns at once.
    pub fn check_owners(&self) {}

    /// What keeps appends from being acknowledged, and since when.
    pub fn trouble(&self) -> Option<(Failure, Duration)> {
        None
    }

    /// What is kept under a name for all nodes (tokens), with its version; version 0 if nothing is.
    pub fn document(&self, name: &str, within: Duration) -> Result<(Vec<u8>, u64), Failure> {
        let _ = name;
        Err(Failure::TimedOut(within))
    }

    /// Replaces it if it has that version. False if somebody else was faster.
    pub fn replace_document(
        &self,
        name: &str,
        version: u64,
        bytes: &[u8],
        within: Duration,
    ) -> Result<bool, Failure> {
        let _ = (name, version, bytes);
        Err(Failure::TimedOut(within))
    }

    /// Goes on after a loss: draws another lineage and raises every epoch by 65,536, so that fences
    /// stay above those of the lost history. Only while no node serves.
    pub fn accept_loss(&self, within: Duration) -> Result<Uuid, Failure> {
        Err(Failure::TimedOut(within))
    }
}
