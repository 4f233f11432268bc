//! How far a partition was when this machine last saw it, in a small file beside the cache.
//!
//! A database that was set back does not know it. Nodes that lived through it do, and nodes that
//! were restarted meanwhile have this file. It is not synced: an old value is true, too.

use std::fs;
use std::path::PathBuf;

use hapax_store::LogEnd;
use uuid::Uuid;

#[derive(Debug, Default)]
pub(crate) struct Witness {
    path: Option<PathBuf>,
    /// Cluster and lineage: another one says nothing about this.
    of: (Uuid, Uuid),
    last: Option<LogEnd>,
    is_written: bool,
}

impl Witness {
    pub(crate) fn read(path: PathBuf, cluster: Uuid, lineage: Uuid) -> Self {
        let of = (cluster, lineage);
        let last = fs::read_to_string(&path).ok().and_then(|text| parse(&text, of));
        Self { path: Some(path), of, last, is_written: true }
    }

    pub(crate) fn last(&self) -> Option<LogEnd> {
        self.last
    }

    pub(crate) fn note(&mut self, last: LogEnd) {
        if self.last != Some(last) {
            self.last = Some(last);
            self.is_written = false;
        }
    }

    /// Writes it, if it changed. A failure costs the file's use and nothing else.
    pub(crate) fn write(&mut self) {
        let (Some(path), Some(last), false) = (&self.path, self.last, self.is_written) else {
            return;
        };
        let LogEnd { epoch, sequence, chain } = last;
        let text = format!("{} {} {epoch} {sequence} {chain}\n", self.of.0, self.of.1);
        let temporary = path.with_extension("tmp");
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
        self.is_written = written.is_ok();
    }
}

fn parse(text: &str, of: (Uuid, Uuid)) -> Option<LogEnd> {
    let mut words = text.split_whitespace();
    let found = (Uuid::parse_str(words.next()?).ok()?, Uuid::parse_str(words.next()?).ok()?);
    let epoch = words.next()?.parse().ok()?;
    let sequence = words.next()?.parse().ok()?;
    let chain = words.next()?.parse().ok()?;
    (found == of).then_some(LogEnd { epoch, sequence, chain })
}
