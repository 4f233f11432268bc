//! The same lives on fjall, an LSM, used directly. Four operations a life: accept (the key is
//! looked up and written), enqueue, lease, finish. Synced as often as our batches.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use hapax_bench::{Messages, cpu};

use crate::rig::{Shape, messages};

pub(crate) struct Peer {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

/// How the operations are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One by one.
    Single,
    /// As many as a batch has lives in one write batch.
    Batched,
}

pub(crate) fn run(directory: &Path, shape: Shape, form: Form) -> Result<Peer> {
    let path = directory.join(format!("fjall-{form:?}"));
    let database = Database::builder(path).open()?;
    let mut lives = Lives {
        keys: database.keyspace("keys", KeyspaceCreateOptions::default)?,
        messages: database.keyspace("messages", KeyspaceCreateOptions::default)?,
        database,
        form,
        made: messages(shape.body_bytes),
        result: vec![b'r'; shape.result_bytes],
    };
    let before = cpu::of_this_process();
    let start = Instant::now();
    let mut next = 0;
    while next < shape.lives {
        let end = (next + u64::from(shape.batch)).min(shape.lives);
        lives.live(next..end)?;
        next = end;
    }
    Ok(Peer { wall: start.elapsed(), cpu: cpu::of_this_process().saturating_sub(before) })
}

struct Lives {
    database: Database,
    keys: Keyspace,
    messages: Keyspace,
    form: Form,
    made: Messages,
    result: Vec<u8>,
}

impl Lives {
    fn live(&mut self, numbers: Range<u64>) -> Result<()> {
        let (mut keys, mut messages) = (Vec::new(), Vec::new());
        for number in numbers.clone() {
            let key = self.made.key(number).to_string();
            ensure!(self.keys.get(&key)?.is_none(), "a new key is new");
            keys.push((key, Some(number.to_be_bytes().to_vec())));
            messages.push((number.to_be_bytes(), Some(self.made.body(number))));
        }
        self.write(keys, messages)?;
        let mut messages = Vec::new();
        for number in numbers.clone() {
            let body = self.messages.get(number.to_be_bytes())?;
            let body = body.context("what was sent is there")?;
            messages.push((number.to_be_bytes(), Some([&b"leased"[..], &body].concat())));
        }
        self.write(Vec::new(), messages)?;
        let (mut keys, mut messages) = (Vec::new(), Vec::new());
        for number in numbers {
            let record = [&number.to_be_bytes()[..], &self.result].concat();
            keys.push((self.made.key(number).to_string(), Some(record)));
            messages.push((number.to_be_bytes(), None));
        }
        self.write(keys, messages)
    }

    fn write(&mut self, keys: Vec<Row<String>>, messages: Vec<Row<[u8; 8]>>) -> Result<()> {
        match self.form {
            Form::Batched => {
                let mut batch = self.database.batch();
                for (key, value) in keys {
                    batch.insert(&self.keys, key, value.unwrap_or_default());
                }
                for (key, value) in messages {
                    match value {
                        Some(value) => batch.insert(&self.messages, key, value),
                        None => batch.remove(&self.messages, key),
                    }
                }
                batch.commit()?;
            }
            Form::Single => {
                for (key, value) in keys {
                    self.keys.insert(key, value.unwrap_or_default())?;
                }
                for (key, value) in messages {
                    match value {
                        Some(value) => self.messages.insert(key, value)?,
                        None => self.messages.remove(key)?,
                    }
                }
            }
        }
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}

/// A key and its value; `None` to delete it.
type Row<K> = (K, Option<Vec<u8>>);
