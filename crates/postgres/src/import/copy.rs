//! One partition of an import: written, read back, compared.

use std::collections::BTreeMap;

use hapax_store::archive::{self, Finding, Severity};
use hapax_store::{Corruption, Epoch, Sequence};
use tokio_postgres::Row;

use super::readback::Readback;
use super::{Error, Import};
use crate::call::{Position, chain};
use crate::database::draw;
use crate::error::Failure;
use crate::sql;
use crate::volume::PIECE_BYTES;

/// Batches that one statement has, in bytes and number.
const BATCHES_BYTES: usize = 1 << 20;
const BATCHES: usize = 1_000;
/// Bytes that one page of the journal has when it is read back.
const PAGE_BYTES: u64 = 4 << 20;

/// How far a partition is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The newest owner of the source.
    pub epoch: Epoch,
    /// What the partition has in the database: the next owner's epoch is above it.
    pub raised: Epoch,
    /// Whether the last owner closed the source in good order.
    pub is_closed: bool,
    /// The batch up to which the rows are complete.
    pub through: Sequence,
    pub manifest: Vec<u8>,
}

/// The run and the offset of a piece.
pub(super) type PieceAt = (u64, u64);

/// A piece that was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) bytes: u64,
    pub(super) hash: blake3::Hash,
}

/// A partition that is being copied.
#[derive(Debug)]
pub struct Copy {
    import: Import,
    number: u16,
    place: Place,
    /// The row that the first batch follows.
    base: Position,
    last: Position,
    pending: Vec<(Position, Vec<u8>)>,
    pending_bytes: usize,
    pieces: BTreeMap<PieceAt, Kept>,
}

impl Import {
    /// Begins a partition.
    pub fn partition(&self, number: u16, place: Place) -> Result<Copy, Error> {
        let base = chain(self.inner.cluster, number, place.through, 0, &[]);
        let base = Position { sequence: place.through, chain: base };
        let claim = match place.is_closed {
            true => None,
            // As if the last owner were gone without a word.
            false => Some(draw().map_err(Failure::Refused)?),
        };
        let (partition, raised) = (i32::from(number), i64::from(place.raised));
        let (epoch, through) = (i64::from(place.epoch), base.sequence.cast_signed());
        let (chain, manifest) = (base.chain.cast_signed(), place.manifest.as_slice());
        self.write(
            &sql::IMPORT_PLACE,
            &[&partition, &raised, &claim, &epoch, &through, &chain, &manifest],
        )?;
        let (pending, pieces) = (Vec::new(), BTreeMap::new());
        let import = self.clone();
        Ok(Copy { import, number, place, base, last: base, pending, pending_bytes: 0, pieces })
    }
}

impl Copy {
    /// The bytes of a run from `at` on, at most a piece, in order.
    pub fn keep(&mut self, run: u64, at: u64, bytes: &[u8]) -> Result<(), Error> {
        assert!(bytes.len() <= PIECE_BYTES && !bytes.is_empty(), "it is a piece");
        let (number, in_run, offset) =
            (i32::from(self.number), run.cast_signed(), at.cast_signed());
        self.import.write(&sql::IMPORT_PIECE, &[&number, &in_run, &offset, &bytes])?;
        let kept = Kept { bytes: bytes.len() as u64, hash: blake3::hash(bytes) };
        self.pieces.insert((run, at), kept);
        Ok(())
    }

    /// The next batch of the journal.
    pub fn append(&mut self, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        assert_eq!(sequence, self.last.sequence + 1, "batches are copied in order");
        let chain = chain(self.import.inner.cluster, self.number, sequence, self.last.chain, batch);
        self.last = Position { sequence, chain };
        self.pending.push((self.last, batch.to_vec()));
        self.pending_bytes += batch.len();
        match self.pending_bytes >= BATCHES_BYTES || self.pending.len() >= BATCHES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes the batches that were appended.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (number, epoch) = (i32::from(self.number), i64::from(self.place.epoch));
        let pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let sequences: Vec<i64> = pending.iter().map(|it| it.0.sequence.cast_signed()).collect();
        let chains: Vec<i64> = pending.iter().map(|it| it.0.chain.cast_signed()).collect();
        let batches: Vec<&[u8]> = pending.iter().map(|it| it.1.as_slice()).collect();
        let columns: super::Parameters<'_> = &[&number, &epoch, &sequences, &chains, &batches];
        self.import.write(&sql::IMPORT_BATCHES, columns)
    }

    /// Reads everything back and compares it: every piece, every block of the rows by its checksum,
    /// every batch by its chain. Calls `read(bytes)` as it goes on. Returns the last batch, the
    /// number of batches, and what the rows hold.
    pub fn verify(
        &self,
        read: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(Sequence, u64, archive::Summary), Error> {
        assert!(self.pending.is_empty(), "it was flushed");
        self.check_place()?;
        self.check_pieces()?;
        let label = format!("partition {} in {}", self.number, self.import.inner.settings.shown());
        let manifest = self.place.manifest.clone();
        let readback =
            Readback::new(self.import.clone(), self.number, label, manifest, &self.pieces);
        let mut first: Option<Finding> = None;
        let summary = archive::verify(&readback, &mut |finding| {
            if finding.severity == Severity::Damage && first.is_none() {
                first = Some(finding);
            }
        });
        readback.failed()?;
        let summary = summary?;
        if let Some(Finding { file, offset, what, .. }) = first {
            return Err(hapax_store::Error::from(Corruption { file, offset, what }).into());
        }
        readback.read_rest()?;
        read(self.pieces.values().map(|kept| kept.bytes).sum());
        let batches = self.check_journal(read)?;
        Ok((self.last.sequence, batches, summary))
    }

    fn check_place(&self) -> Result<(), Error> {
        let rows = self.import.read(&sql::IMPORT_EPOCH, &[&i32::from(self.number)])?;
        let found = rows.first().and_then(|row| {
            let number = |at| row.try_get::<_, i64>(at).ok();
            let bytes: Vec<u8> = row.try_get(4).ok()?;
            Some((number(0)?, number(1)?, number(2)?, number(3)?, bytes))
        });
        let (through, chain) = (self.base.sequence.cast_signed(), self.base.chain.cast_signed());
        let manifest = self.place.manifest.clone();
        match found == Some((i64::from(self.place.raised), 1, through, chain, manifest)) {
            true => Ok(()),
            false => Err(self.differs("its place and its manifest")),
        }
    }

    fn check_pieces(&self) -> Result<(), Error> {
        let rows = self.import.read(&sql::PIECES, &[&i32::from(self.number)])?;
        let piece = |row: &Row| {
            let number = |at| row.try_get::<_, i64>(at).ok().map(i64::cast_unsigned);
            Some(((number(0)?, number(1)?), number(2)?))
        };
        let found: Option<Vec<_>> = rows.iter().map(piece).collect();
        let kept: Vec<_> = self.pieces.iter().map(|(at, kept)| (*at, kept.bytes)).collect();
        match found == Some(kept) {
            true => Ok(()),
            false => Err(self.differs("the pieces of its runs")),
        }
    }

    /// Every row, from the one that the first batch follows.
    fn check_journal(&self, read: &mut (dyn FnMut(u64) + Send)) -> Result<u64, Error> {
        let number = i32::from(self.number);
        let (mut before, mut next) = (None::<Position>, 0_i64);
        let mut batches = 0;
        loop {
            let columns: super::Parameters<'_> = &[&number, &next, &PAGE_BYTES.cast_signed()];
            let rows = self.import.read(&sql::READ, columns)?;
            if rows.is_empty() {
                break;
            }
            for row in &rows {
                let found = journal_row(row).ok_or_else(|| self.differs("a row of its journal"))?;
                let (at, batch) = found;
                let is_right = match before {
                    None => at == self.base && batch.is_empty(),
                    Some(before) => {
                        let cluster = self.import.inner.cluster;
                        let Position { sequence, chain: found } = at;
                        sequence == before.sequence + 1
                            && chain(cluster, self.number, sequence, before.chain, &batch) == found
                    }
                };
                if !is_right {
                    return Err(self.differs(&format!("batch {} of its journal", at.sequence)));
                }
                batches += u64::from(before.is_some());
                read(batch.len() as u64);
                before = Some(at);
                next = at.sequence.cast_signed() + 1;
            }
        }
        match before == Some(self.last) {
            true => Ok(batches),
            false => Err(self.differs("the end of its journal")),
        }
    }

    fn differs(&self, what: &str) -> Error {
        Error::Differs(format!("partition {}: {what}", self.number))
    }
}

fn journal_row(row: &Row) -> Option<(Position, Vec<u8>)> {
    let number = |at| row.try_get::<_, i64>(at).ok().map(i64::cast_unsigned);
    let at = Position { sequence: number(0)?, chain: number(2)? };
    Some((at, row.try_get(3).ok()?))
}
