//! The medium: durable data, and pending changes.
//!
//! A file has two states: `view`, what programs read (the page cache), and `durable`, what is on
//! the medium. The difference are the pending changes of the file, sector by sector, in the order
//! in which they were made. A sync applies all of them to the medium; a power cut applies any
//! subset. Names work the same way, except that they are applied in order, as in a journaling file
//! system.
//!
//! Invariants:
//! - `view` is `durable` plus every pending change, except after a failed sync;
//! - changes of length survive in order, sectors independently of them and of each other: this is
//!   worse than any one file system, and covers what each of them may do;
//! - a file exists while it has a name, in the view or on the medium, or an open handle.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::sparse::{Sparse, UNIT};
use crate::Random;

/// The unit that the device writes atomically.
pub(super) const SECTOR: usize = 512;

pub(super) type FileId = u64;

/// Which pending changes a power cut leaves on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    Nothing,
    Everything,
    /// Each sector by itself, this many times of 16; changes of length and name in order up to
    /// some point.
    Share(u64),
    /// Everything up to some point in the order of writing, over all files and names.
    Prefix,
}

impl Survival {
    /// Draws a kind rather than one coin per sector: with many sectors pending, fair coins would
    /// hardly ever keep all but one, and these are the cases that find bugs.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 | 3 => Self::Prefix,
            4 => Self::Share(1),
            5 => Self::Share(15),
            _ => Self::Share(8),
        }
    }
}

/// What happened to pending changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) sectors_kept: u64,
    pub(super) sectors_lost: u64,
    /// Writes of which one part was kept and another lost.
    pub(super) writes_torn: u64,
    /// Writes that were kept although an earlier one to the same file was lost.
    pub(super) writes_reordered: u64,
    pub(super) lengths_lost: u64,
    pub(super) names_lost: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Medium {
    files: BTreeMap<FileId, Inode>,
    names: BTreeMap<String, FileId>,
    durable_names: BTreeMap<String, FileId>,
    pending_names: Vec<(u64, NameChange)>,
    next_file: FileId,
    /// Numbers the pending changes of all files and names, in the order they were made.
    next_change: u64,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    view: Sparse,
    durable: Sparse,
    pending: Vec<Pending>,
    handles: u64,
}

#[derive(Clone, Debug)]
struct Pending {
    number: u64,
    /// The number of the first change of the same call.
    call: u64,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    /// The whole sector as it was after the write: the cache writes back sectors, not bytes.
    Sector {
        index: u64,
        bytes: Arc<[u8; SECTOR]>,
    },
    Length(u64),
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(String, FileId),
    Rename(String, String),
    Remove(String),
}

impl Medium {
    pub(super) fn find(&self, name: &str) -> io::Result<FileId> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (&str, FileId)> {
        self.names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<FileId> {
        if self.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = self.next_file;
        self.next_file += 1;
        self.files.insert(id, Inode::default());
        self.change_names(NameChange::Create(name.to_owned(), id));
        Ok(id)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.find(from)?;
        self.change_names(NameChange::Rename(from.to_owned(), to.to_owned()));
        self.forget_unreachable();
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.find(name)?;
        self.change_names(NameChange::Remove(name.to_owned()));
        self.forget_unreachable();
        Ok(())
    }

    pub(super) fn sync_names(&mut self) {
        self.settle_names(&Verdict::Share(16), &mut Random::new(0));
        assert_eq!(self.names, self.durable_names, "all changes together make the names there are");
        self.forget_unreachable();
    }

    pub(super) fn opened(&mut self, id: FileId) {
        if let Some(inode) = self.files.get_mut(&id) {
            inode.handles += 1;
        }
    }

    pub(super) fn closed(&mut self, id: FileId) {
        if let Some(inode) = self.files.get_mut(&id) {
            inode.handles -= 1;
        }
        self.forget_unreachable();
    }

    /// Closes all handles: no process is left.
    pub(super) fn close_all(&mut self) {
        for inode in self.files.values_mut() {
            inode.handles = 0;
        }
        self.forget_unreachable();
    }

    pub(super) fn len(&self, id: FileId) -> io::Result<u64> {
        Ok(self.inode(id)?.view.len())
    }

    pub(super) fn read(&self, id: FileId, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let view = &self.inode(id)?.view;
        if offset.saturating_add(buffer.len() as u64) > view.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        view.read(offset, buffer);
        Ok(())
    }

    pub(super) fn write(&mut self, id: FileId, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut number = self.next_change;
        let inode = self.inode_mut(id)?;
        inode.write(bytes, offset, &mut number);
        self.next_change = number;
        Ok(())
    }

    pub(super) fn set_len(&mut self, id: FileId, len: u64) -> io::Result<()> {
        let mut number = self.next_change;
        let inode = self.inode_mut(id)?;
        inode.view.set_len(len);
        inode.push(Change::Length(len), number, &mut number);
        self.next_change = number;
        Ok(())
    }

    pub(super) fn sync(&mut self, id: FileId) -> io::Result<()> {
        self.inode_mut(id)?.settle(&Verdict::Share(16), &mut Random::new(0));
        Ok(())
    }

    /// Fails a sync: some of the pending sectors reached the medium, and the cache considers all of
    /// them clean, so that no later sync writes them. If the cache drops them, the next read
    /// returns what is on the medium.
    pub(super) fn fail_sync(&mut self, id: FileId, random: &mut Random) -> io::Result<Losses> {
        let evict = random.one_in(2);
        let inode = self.inode_mut(id)?;
        let losses = inode.settle(&Verdict::Share(8), random);
        if evict {
            inode.view = inode.durable.clone();
        }
        Ok(losses)
    }

    /// Cuts and restores the power.
    pub(super) fn crash(&mut self, survival: Survival, random: &mut Random) -> Losses {
        let verdict = self.verdict(survival, random);
        let mut losses = self.settle_names(&verdict, random);
        for inode in self.files.values_mut() {
            losses.add(inode.settle(&verdict, random));
            inode.view = inode.durable.clone();
        }
        self.names = self.durable_names.clone();
        self.close_all();
        losses
    }

    /// Changes bytes at rest: on the medium, in the cache and in pending changes.
    pub(super) fn overwrite(&mut self, id: FileId, bytes: &[u8], offset: u64) -> io::Result<()> {
        let inode = self.inode_mut(id)?;
        inode.view.put(offset, bytes);
        inode.durable.put(offset, bytes);
        inode.view.trim();
        inode.durable.trim();
        for pending in &mut inode.pending {
            if let Change::Sector { index, bytes: sector } = &mut pending.change {
                let sector: &mut [u8; SECTOR] = Arc::make_mut(sector);
                let places = (*index * SECTOR as u64..).zip(sector);
                for (at, byte) in places.skip_while(|(at, _)| *at < offset) {
                    if let Some(new) = bytes.get((at - offset) as usize) {
                        *byte = *new;
                    }
                }
            }
        }
        Ok(())
    }

    /// Cuts a file at rest.
    pub(super) fn cut(&mut self, id: FileId, len: u64) -> io::Result<()> {
        let inode = self.inode_mut(id)?;
        inode.settle(&Verdict::Share(16), &mut Random::new(0));
        inode.view.set_len(len);
        inode.durable.set_len(len);
        Ok(())
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let named: BTreeSet<FileId> = self.names.values().copied().collect();
        let in_use = self.files.iter().filter(|(id, file)| file.handles > 0 || named.contains(id));
        in_use.map(|(_, file)| file.view.allocated_units()).sum::<u64>() * UNIT as u64
    }

    /// Bytes of a write that fit into `free` bytes.
    pub(super) fn fitting(&self, id: FileId, len: usize, offset: u64, free: u64) -> usize {
        let Ok(inode) = self.inode(id) else { return 0 };
        inode.view.fitting(offset, len, free / UNIT as u64)
    }

    fn inode(&self, id: FileId) -> io::Result<&Inode> {
        self.files.get(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn inode_mut(&mut self, id: FileId) -> io::Result<&mut Inode> {
        self.files.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push((self.next_change, change));
        self.next_change += 1;
    }

    fn settle_names(&mut self, verdict: &Verdict, random: &mut Random) -> Losses {
        let pending = std::mem::take(&mut self.pending_names);
        let kept = verdict.kept_in_order(pending.iter().map(|(number, _)| *number), random);
        for (_, change) in pending.iter().take(kept) {
            change.apply(&mut self.durable_names);
        }
        Losses { names_lost: (pending.len() - kept) as u64, ..Losses::default() }
    }

    fn forget_unreachable(&mut self) {
        let mut named: BTreeSet<FileId> = self.names.values().copied().collect();
        named.extend(self.durable_names.values());
        // A file that was created and renamed or removed since is named only by its creation.
        named.extend(self.pending_names.iter().filter_map(|(_, change)| match change {
            NameChange::Create(_, id) => Some(*id),
            NameChange::Rename(..) | NameChange::Remove(_) => None,
        }));
        self.files.retain(|id, inode| inode.handles > 0 || named.contains(id));
    }

    fn verdict(&self, survival: Survival, random: &mut Random) -> Verdict {
        match survival {
            Survival::Nothing => Verdict::Share(0),
            Survival::Everything => Verdict::Share(16),
            Survival::Share(share) => Verdict::Share(share),
            Survival::Prefix => {
                let files = self.files.values().flat_map(|inode| &inode.pending);
                let mut numbers: Vec<u64> = files.map(|pending| pending.number).collect();
                numbers.extend(self.pending_names.iter().map(|(number, _)| *number));
                Verdict::Before(random.pick(&numbers).copied().unwrap_or_default())
            }
        }
    }
}

impl Inode {
    fn write(&mut self, bytes: &[u8], offset: u64, number: &mut u64) {
        let call = *number;
        let end = offset + bytes.len() as u64;
        self.view.put(offset, bytes);
        if end > self.view.len() {
            self.view.grow(end);
            self.push(Change::Length(end), call, number);
        }
        for index in offset / SECTOR as u64..end.div_ceil(SECTOR as u64) {
            let mut sector = [0; SECTOR];
            self.view.read(index * SECTOR as u64, &mut sector);
            self.push(Change::Sector { index, bytes: Arc::new(sector) }, call, number);
        }
    }

    fn push(&mut self, change: Change, call: u64, number: &mut u64) {
        self.pending.push(Pending { number: *number, call, change });
        *number += 1;
    }

    /// Applies the pending changes that the verdict keeps to the medium.
    fn settle(&mut self, verdict: &Verdict, random: &mut Random) -> Losses {
        let pending = std::mem::take(&mut self.pending);
        let is_length = |pending: &&Pending| matches!(pending.change, Change::Length(_));
        let lengths = pending.iter().filter(is_length).map(|pending| pending.number);
        let lengths_kept = verdict.kept_in_order(lengths.clone(), random);
        let mut lengths_left = lengths_kept;
        let mut tally = Tally::default();
        for pending in &pending {
            match &pending.change {
                Change::Length(len) if lengths_left > 0 => {
                    lengths_left -= 1;
                    if *len < self.durable.len() {
                        self.durable.set_len(*len);
                    } else {
                        self.durable.grow(*len);
                    }
                }
                Change::Length(_) => {}
                Change::Sector { index, bytes } => {
                    let kept = verdict.keeps(pending.number, random);
                    tally.count(pending.call, kept);
                    if kept {
                        self.durable.put(*index * SECTOR as u64, bytes.as_slice());
                    }
                }
            }
        }
        self.durable.trim();
        Losses { lengths_lost: (lengths.count() - lengths_kept) as u64, ..tally.finish() }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            Self::Create(name, id) => {
                names.insert(name.clone(), *id);
            }
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

/// Decides change by change.
enum Verdict {
    Share(u64),
    Before(u64),
}

impl Verdict {
    fn keeps(&self, number: u64, random: &mut Random) -> bool {
        match self {
            Self::Share(0) => false,
            Self::Share(16..) => true,
            Self::Share(share) => random.share(*share, 16),
            Self::Before(cut) => number < *cut,
        }
    }

    /// The number of changes kept, if none is kept without those before it.
    fn kept_in_order(
        &self,
        numbers: impl Iterator<Item = u64> + Clone,
        random: &mut Random,
    ) -> usize {
        match self {
            Self::Share(0) => 0,
            Self::Share(16..) => numbers.count(),
            Self::Share(_) => random.index(numbers.count() + 1),
            Self::Before(cut) => numbers.take_while(|number| number < cut).count(),
        }
    }
}

/// Counts what happens to the writes of one file.
#[derive(Default)]
struct Tally {
    losses: Losses,
    call: Option<u64>,
    kept: u64,
    lost: u64,
    lost_earlier: bool,
}

impl Tally {
    fn count(&mut self, call: u64, kept: bool) {
        if self.call != Some(call) {
            self.end_call();
            self.call = Some(call);
        }
        if kept {
            self.kept += 1;
        } else {
            self.lost += 1;
        }
    }

    fn end_call(&mut self) {
        self.losses.sectors_kept += self.kept;
        self.losses.sectors_lost += self.lost;
        self.losses.writes_torn += u64::from(self.kept > 0 && self.lost > 0);
        self.losses.writes_reordered += u64::from(self.kept > 0 && self.lost_earlier);
        self.lost_earlier |= self.lost > 0;
        (self.kept, self.lost) = (0, 0);
    }

    fn finish(mut self) -> Losses {
        self.end_call();
        self.losses
    }
}

impl Losses {
    pub(super) fn add(&mut self, other: Self) {
        self.sectors_kept += other.sectors_kept;
        self.sectors_lost += other.sectors_lost;
        self.writes_torn += other.writes_torn;
        self.writes_reordered += other.writes_reordered;
        self.lengths_lost += other.lengths_lost;
        self.names_lost += other.names_lost;
    }
}
