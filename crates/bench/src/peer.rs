//! The same lives on fjall, an LSM, used directly: look the key up and write key and message;
//! lease; settle. One batch and one sync for as many lives as a batch of ours has.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use rustix::time::ClockId;

use crate::load::{Shape, cpu, key};

pub(crate) struct Peer {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

pub(crate) fn run(directory: &Path, shape: Shape) -> Result<Peer> {
    let database = Database::builder(directory.join("fjall")).open()?;
    let keys = database.keyspace("keys", KeyspaceCreateOptions::default)?;
    let messages = database.keyspace("messages", KeyspaceCreateOptions::default)?;
    let body = vec![b'b'; shape.body_bytes];
    let result = vec![b'r'; shape.result_bytes];
    let before = cpu(ClockId::ProcessCPUTime);
    let start = Instant::now();
    let mut next = 0;
    while next < shape.lives {
        let end = (next + u64::from(shape.batch)).min(shape.lives);
        let mut batch = database.batch();
        for number in next..end {
            let key = key(number);
            ensure!(keys.get(&key)?.is_none(), "a new key is new");
            batch.insert(&keys, &key, number.to_be_bytes());
            batch.insert(&messages, number.to_be_bytes(), &body);
        }
        batch.commit()?;
        database.persist(PersistMode::SyncData)?;
        let mut batch = database.batch();
        for number in next..end {
            let held = messages.get(number.to_be_bytes())?;
            ensure!(held.is_some(), "what was sent is there");
            batch.insert(&messages, number.to_be_bytes(), [&b"leased"[..], &body].concat());
        }
        batch.commit()?;
        database.persist(PersistMode::SyncData)?;
        let mut batch = database.batch();
        for number in next..end {
            batch.remove(&messages, number.to_be_bytes());
            batch.insert(&keys, key(number), [&number.to_be_bytes()[..], &result].concat());
        }
        batch.commit()?;
        database.persist(PersistMode::SyncData)?;
        next = end;
    }
    Ok(Peer { wall: start.elapsed(), cpu: cpu(ClockId::ProcessCPUTime).saturating_sub(before) })
}
