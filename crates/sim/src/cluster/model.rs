//! The database as a model: what every statement of `hapax-postgres` does to its tables.
//!
//! A statement is a transaction of its own, so one is executed after the other: an append that
//! locks a partition's row is before a claim of it or after it. [`Plain`] executes statements as
//! they come; the conformance suite that PostgreSQL passes is run on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use hapax_postgres::call::{Answer, Appended, Backend, Beaten, Call, End, Ends, Owner, Part, Row};
use hapax_postgres::call::{LOSS_STEP, Position, Watched, chain};
use hapax_postgres::{Failure, NodeRow, NodeState, OwnerRow, Seen, Uuid};
use hapax_store::{Epoch, LogEnd, Sequence};

use crate::planted::Bug;

/// Pieces that one statement removes.
const REMOVED: usize = 64;
/// Rows of a journal that one page has at most.
const PAGE_ROWS: usize = 4_096;

/// All tables at one moment. Cheap to copy: what did not change is shared.
#[derive(Clone, Debug)]
pub struct Tables {
    pub cluster: Uuid,
    pub lineage: Uuid,
    catalog: u64,
    partitions: Vec<Arc<Partition>>,
    nodes: Arc<BTreeMap<Uuid, NodeRow>>,
    documents: Arc<BTreeMap<String, Document>>,
}

/// Bytes and their version.
type Document = (Arc<[u8]>, u64);

/// The rows of one partition.
#[derive(Clone, Debug)]
struct Partition {
    epoch: Epoch,
    claim: Option<Uuid>,
    owner: Option<Uuid>,
    intended: Option<Uuid>,
    journal: BTreeMap<Sequence, Batch>,
    version: u64,
    through: Sequence,
    manifest: Arc<[u8]>,
    pieces: BTreeMap<(u64, u64), Arc<[u8]>>,
}

#[derive(Clone, Debug)]
struct Batch {
    epoch: Epoch,
    chain: u64,
    bytes: Arc<[u8]>,
}

impl Partition {
    fn new(cluster: Uuid, number: u16) -> Self {
        let first = Batch {
            epoch: 0,
            chain: chain(cluster, number, 0, 0, &[]),
            bytes: Arc::from(Vec::new()),
        };
        Self {
            epoch: 0,
            claim: None,
            owner: None,
            intended: None,
            journal: BTreeMap::from([(0, first)]),
            version: 0,
            through: 0,
            manifest: Arc::from(Vec::new()),
            pieces: BTreeMap::new(),
        }
    }

    fn is_owned_by(&self, owner: &Owner) -> bool {
        self.epoch == owner.epoch && self.claim == Some(owner.claim)
    }

    fn last(&self) -> LogEnd {
        let nothing = LogEnd { epoch: 0, sequence: 0, chain: 0 };
        self.journal.last_key_value().map_or(nothing, |(sequence, batch)| LogEnd {
            epoch: batch.epoch,
            sequence: *sequence,
            chain: batch.chain,
        })
    }

    fn at(&self, sequence: Sequence) -> Option<LogEnd> {
        let batch = self.journal.get(&sequence)?;
        Some(LogEnd { epoch: batch.epoch, sequence, chain: batch.chain })
    }

    fn append(&mut self, part: &Part, bug: Option<Bug>) -> Appended {
        let mut answer = Appended { owned: self.is_owned_by(&part.owner), ..Appended::default() };
        answer.owned |= bug == Some(Bug::NoClaimCheck);
        if !answer.owned {
            return answer;
        }
        let before = self.journal.get(&part.after.sequence);
        answer.follows = before.is_some_and(|batch| batch.chain == part.after.chain)
            || bug == Some(Bug::NoChainCheck);
        if !answer.follows {
            return answer;
        }
        for batch in &part.batches {
            let (sequence, epoch) = (batch.at.sequence, part.owner.epoch);
            if self.journal.contains_key(&sequence) {
                continue;
            }
            let row = Batch { epoch, chain: batch.at.chain, bytes: Arc::clone(&batch.bytes) };
            self.journal.insert(sequence, row);
            answer.inserted.push(sequence);
        }
        answer
    }

    fn page(&self, from: Sequence, bytes: u64) -> Vec<Row> {
        let mut total = 0;
        let mut rows = Vec::new();
        for (sequence, batch) in self.journal.range(from..).take(PAGE_ROWS) {
            if total >= bytes {
                break;
            }
            total += batch.bytes.len() as u64;
            let at = Position { sequence: *sequence, chain: batch.chain };
            rows.push(Row { epoch: batch.epoch, at, bytes: batch.bytes.to_vec() });
        }
        rows
    }

    fn truncate(&mut self, from: Sequence, to: Sequence) -> u64 {
        let to = to.min(self.through);
        let before = self.journal.len();
        self.journal.retain(|sequence, _| !(from..to).contains(sequence));
        (before - self.journal.len()) as u64
    }

    fn swap(&mut self, version: u64, through: Sequence, bytes: &Arc<[u8]>) {
        self.version = version + 1;
        self.through = through;
        self.manifest = Arc::clone(bytes);
    }

    fn bytes_of(&self, runs: &[u64]) -> u64 {
        let runs: BTreeSet<u64> = runs.iter().copied().collect();
        let pieces = self.pieces.iter().filter(|((run, _), _)| runs.contains(run));
        pieces.map(|(_, bytes)| bytes.len() as u64).sum()
    }

    fn remove(&mut self, run: u64, count: usize) -> u64 {
        let of_run = self.pieces.range((run, 0)..=(run, u64::MAX));
        let gone: Vec<_> = of_run.map(|(place, _)| *place).take(count).collect();
        gone.iter().for_each(|place| {
            self.pieces.remove(place);
        });
        gone.len() as u64
    }
}

impl Tables {
    pub fn new(cluster: Uuid, lineage: Uuid, partitions: u16) -> Self {
        let partition = |number| Arc::new(Partition::new(cluster, number));
        Self {
            cluster,
            lineage,
            catalog: 0,
            partitions: (0..partitions).map(partition).collect(),
            nodes: Arc::default(),
            documents: Arc::default(),
        }
    }

    /// Executes a statement as one transaction. `clock_ms` is what the database's clock shows.
    pub fn execute(&mut self, call: &Call, clock_ms: u64, bug: Option<Bug>) -> Answer {
        match call {
            Call::Append(parts) => {
                let append = |part: &Part| match self.change(part.owner.partition) {
                    Some(partition) => partition.append(part, bug),
                    None => Appended::default(),
                };
                Answer::Appended(parts.iter().map(append).collect())
            }
            Call::Ends(numbers) => Answer::Ends(self.ends(numbers)),
            Call::Claim { partition, seen, least, claim, node } => {
                Answer::Claimed(self.claim(*partition, *seen, *least, *claim, *node))
            }
            Call::Release { owner, intended } => self.changed(owner, |partition| {
                (partition.owner, partition.claim) = (None, None);
                partition.intended = *intended;
                1
            }),
            Call::Read { partition, from, bytes } => {
                Answer::Rows(self.of(*partition).map_or(Vec::new(), |it| it.page(*from, *bytes)))
            }
            Call::First { partition } => {
                let first = self.of(*partition).and_then(|it| it.journal.first_key_value());
                Answer::First(first.map(|(sequence, _)| *sequence))
            }
            Call::Truncate { partition, from, to } => {
                Answer::Changed(self.change(*partition).map_or(0, |it| it.truncate(*from, *to)))
            }
            Call::Manifest { .. }
            | Call::Swap { .. }
            | Call::Keep { .. }
            | Call::Pieces { .. }
            | Call::Fetch { .. }
            | Call::Remove { .. } => self.execute_runs(call),
            _ => self.execute_shared(call, clock_ms),
        }
    }

    fn execute_runs(&mut self, call: &Call) -> Answer {
        match call {
            Call::Manifest { partition } => {
                let it = self.of(*partition);
                let (version, through) = it.map_or((0, 0), |it| (it.version, it.through));
                let bytes = it.map_or(Vec::new(), |it| it.manifest.to_vec());
                Answer::Manifest { version, through, bytes }
            }
            Call::Swap { owner, version, through, bytes, runs, size } => {
                self.changed(owner, |partition| {
                    let goes = partition.version == *version
                        && partition.journal.contains_key(through)
                        && partition.bytes_of(runs) == *size;
                    if goes {
                        partition.swap(*version, *through, bytes);
                    }
                    u64::from(goes)
                })
            }
            Call::Keep { owner, piece } => {
                let kept = self.changed(owner, |partition| {
                    let place = (piece.run, piece.at);
                    partition.pieces.entry(place).or_insert_with(|| Arc::clone(&piece.bytes));
                    1
                });
                Answer::Owned(kept == Answer::Changed(1))
            }
            Call::Pieces { partition } => {
                let pieces = self.of(*partition).into_iter().flat_map(|it| it.pieces.iter());
                let piece =
                    |((run, at), bytes): (&(u64, u64), &Arc<[u8]>)| (*run, *at, bytes.len() as u64);
                Answer::Pieces(pieces.map(piece).collect())
            }
            Call::Fetch { partition, run, at } => {
                let piece = self.of(*partition).and_then(|it| it.pieces.get(&(*run, *at)));
                Answer::Bytes(piece.map(|bytes| bytes.to_vec()))
            }
            Call::Remove { owner, run, version } => {
                self.changed(owner, |partition| match partition.version >= *version {
                    true => partition.remove(*run, REMOVED),
                    false => 0,
                })
            }
            _ => unreachable!("the others are not of runs"),
        }
    }

    fn execute_shared(&mut self, call: &Call, clock_ms: u64) -> Answer {
        match call {
            Call::Register { cluster, .. } if *cluster != self.cluster => Answer::Changed(0),
            Call::Register { id, node, .. } => {
                let row = NodeRow {
                    id: *id,
                    name: node.name.clone(),
                    address: node.address.clone(),
                    release: node.release.clone(),
                    feature: node.feature,
                    state: Some(NodeState::Standby),
                    heartbeat: 0,
                    told_ms: 0,
                };
                let nodes = Arc::make_mut(&mut self.nodes);
                let is_new = !nodes.contains_key(id);
                nodes.entry(*id).or_insert(row);
                Answer::Changed(u64::from(is_new))
            }
            Call::Heartbeat { id, state, told_ms, known } => {
                let (catalog, lineage, watched) = (self.catalog, self.lineage, self.watched(known));
                Answer::Heartbeat(Arc::make_mut(&mut self.nodes).get_mut(id).map(|row| {
                    row.heartbeat += 1;
                    row.state = Some(*state);
                    row.told_ms = row.told_ms.max(*told_ms);
                    let (count, database_ms) = (row.heartbeat, clock_ms);
                    Beaten { count, database_ms, catalog, lineage, watched }
                }))
            }
            Call::Members => Answer::Seen(self.seen()),
            Call::Forget { id, heartbeat } => {
                let nodes = Arc::make_mut(&mut self.nodes);
                let goes =
                    nodes.get(id).is_some_and(|row| heartbeat.is_none_or(|it| it == row.heartbeat));
                if goes {
                    nodes.remove(id);
                }
                Answer::Changed(u64::from(goes))
            }
            Call::Document { name } => {
                let found = self.documents.get(name);
                let (bytes, version) = found.map_or((Vec::new(), 0), |(it, at)| (it.to_vec(), *at));
                Answer::Document(bytes, version)
            }
            Call::Replace { name, version, bytes } => {
                let documents = Arc::make_mut(&mut self.documents);
                let goes = documents.get(name).map_or(0, |(_, version)| *version) == *version;
                if goes {
                    documents.insert(name.clone(), (Arc::clone(bytes), version + 1));
                    self.catalog += 1;
                }
                Answer::Changed(u64::from(goes))
            }
            Call::AcceptLoss { lineage } => Answer::Changed(self.accept_loss(*lineage)),
            _ => unreachable!("the others are of a partition"),
        }
    }

    /// All nodes and all partitions.
    pub fn seen(&self) -> Seen {
        let mut nodes: Vec<NodeRow> = self.nodes.values().cloned().collect();
        nodes.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
        let row = |(number, it): (usize, &Arc<Partition>)| OwnerRow {
            partition: number as u16,
            epoch: it.epoch,
            owner: it.owner,
            intended: it.intended,
        };
        Seen { nodes, partitions: self.partitions.iter().enumerate().map(row).collect() }
    }

    /// Who owns a partition, and how far its journal is.
    pub fn end(&self, partition: u16) -> Option<End> {
        let it = self.of(partition)?;
        let (epoch, claim, owner, last) = (it.epoch, it.claim, it.owner, it.last());
        Some(End { partition, epoch, claim, owner, last })
    }

    /// The planted bug: deletes every run that the manifest does not list, whoever owns it.
    pub fn remove_unlisted(&mut self, partition: u16) {
        let Some(it) = self.change(partition) else { return };
        let listed = hapax_store::archive::runs_of(&it.manifest).unwrap_or_default();
        let listed = listed.iter().filter_map(|(name, _)| hapax_store::archive::run_number(name));
        let listed: BTreeSet<u64> = listed.collect();
        it.pieces.retain(|(run, _), _| listed.contains(run));
    }

    /// How far all partitions are, and what they have of the batches that are known of them.
    fn watched(&self, known: &[(u16, Sequence)]) -> Vec<Watched> {
        let watched = |(partition, it): (u16, &Arc<Partition>)| {
            let known = known.iter().find(|(number, _)| *number == partition);
            let kept = known.and_then(|(_, sequence)| it.at(*sequence));
            Some(Watched { end: self.end(partition)?, kept })
        };
        (0..).zip(&self.partitions).filter_map(watched).collect()
    }

    fn ends(&self, numbers: &[u16]) -> Ends {
        let numbers: BTreeSet<u16> = numbers.iter().copied().collect();
        let ends = numbers.into_iter().filter_map(|number| self.end(number)).collect();
        Ends { cluster: self.cluster, lineage: self.lineage, ends }
    }

    fn claim(
        &mut self,
        partition: u16,
        seen: Epoch,
        least: Epoch,
        claim: Uuid,
        node: Uuid,
    ) -> Option<Epoch> {
        let it = self.change(partition).filter(|it| it.epoch == seen)?;
        it.epoch = (seen + 1).max(least);
        (it.claim, it.owner, it.intended) = (Some(claim), Some(node), None);
        Some(it.epoch)
    }

    fn accept_loss(&mut self, lineage: Uuid) -> u64 {
        if self.lineage == lineage {
            return 0;
        }
        self.lineage = lineage;
        for partition in &mut self.partitions {
            let it = Arc::make_mut(partition);
            it.epoch += LOSS_STEP;
            (it.claim, it.owner, it.intended) = (None, None, None);
        }
        self.partitions.len() as u64
    }

    fn of(&self, partition: u16) -> Option<&Partition> {
        self.partitions.get(usize::from(partition)).map(Arc::as_ref)
    }

    fn change(&mut self, partition: u16) -> Option<&mut Partition> {
        self.partitions.get_mut(usize::from(partition)).map(Arc::make_mut)
    }

    /// A change that only the owner makes.
    fn changed(&mut self, owner: &Owner, change: impl FnOnce(&mut Partition) -> u64) -> Answer {
        let partition = self.change(owner.partition).filter(|it| it.is_owned_by(owner));
        Answer::Changed(partition.map_or(0, change))
    }
}

/// A database that never fails.
#[derive(Debug)]
pub struct Plain(Mutex<(Tables, u128)>);

impl Plain {
    pub fn new(partitions: u16) -> Self {
        let (cluster, lineage) = (Uuid::from_u128(1), Uuid::from_u128(2));
        Self(Mutex::new((Tables::new(cluster, lineage, partitions), 1 << 64)))
    }
}

impl Backend for Plain {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(state.0.execute(&call, 0, None))
    }

    fn pause(&self) {}

    fn draw(&self) -> Result<Uuid, String> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        Ok(Uuid::from_u128(state.1))
    }
}
