//! One partition with its store, its workers and its clocks, as a process on a machine that fails.
//!
//! A [`World`] executes requests and keeps those that were not answered yet. It neither draws the
//! requests nor checks the answers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use hapax_core::{Answer, Command, Effect, InFlight, Outcome, Place, Stamp, Time};
use hapax_partition::{Clock, Error, Partition, Ticket};
use hapax_store::Store;
use hapax_store::disk::{self, DiskStore, Workers};
use hapax_store::memory::{self, MemoryStore};

use crate::op::Op;
use crate::planted::{Bug, Shared, SimStore};
use crate::scene::{Item, Scene};
use crate::{Random, SimDisk};

/// The process, its machine and its disk.
#[derive(Debug)]
pub struct World {
    pub disk: SimDisk,
    ground: Ground,
    scene: Scene,
    bug: Option<Bug>,
    owner: Option<Owner>,
    /// An owner that was replaced and does not know it yet.
    zombie: Option<Owner>,
    /// Requests that will not be answered.
    left: Vec<Submitted>,
    /// The last process claimed its store.
    claimed: bool,
    clocks: Clocks,
    submitted: u64,
    /// The disk is a copy that was not opened yet.
    is_copy: bool,
    /// The time that the last batch was submitted at.
    stamped: Time,
}

#[derive(Debug)]
enum Ground {
    Disk,
    Memory { store: MemoryStore, shared: Arc<Mutex<Shared>> },
}

/// One process.
#[derive(Debug)]
struct Owner {
    partition: Partition<SimStore>,
    workers: Option<Workers>,
    clock: Clock,
    pending: BTreeMap<Ticket, Submitted>,
    /// Answers of a planted bug.
    early: VecDeque<(Time, Op, Outcome)>,
}

/// A batch in flight.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub at: Time,
    pub ops: Vec<Op>,
    /// Number of batches submitted before it.
    serial: u64,
    /// It was reported to the checker as lost.
    lost: bool,
}

/// A batch that was answered.
#[derive(Debug)]
pub struct AnsweredBatch {
    pub at: Time,
    /// Number of batches submitted before it.
    pub serial: u64,
    pub answers: Vec<(Op, Outcome)>,
    pub effects: Vec<Effect>,
    /// By an owner that was replaced.
    pub zombie: bool,
}

/// What the clocks of the machine show.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    pub wall_ms: u64,
    pub monotonic_us: u64,
}

/// Which worker is stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Flusher,
    Keeper,
    Checkpointer,
    Merger,
}

impl World {
    pub fn new(scene: Scene, random: &mut Random, memory: bool, bug: Option<Bug>) -> Self {
        let ground = match memory {
            true => Ground::Memory { store: MemoryStore::default(), shared: Arc::default() },
            false => Ground::Disk,
        };
        Self {
            disk: SimDisk::new(random.bits()),
            ground,
            scene,
            bug,
            owner: None,
            zombie: None,
            left: Vec::new(),
            claimed: false,
            clocks: Clocks { wall_ms: 1_700_000_000_000, monotonic_us: 1 },
            submitted: 0,
            is_copy: false,
            stamped: Time(0),
        }
    }

    /// Starts a process and lets it recover.
    ///
    /// Batches without decisions leave no time in the journal. So the clock is ignored if it was
    /// set back behind a time that was only `seen` in such a batch: no process could know.
    pub fn open(&mut self, seen: Time) -> Result<(), Error> {
        self.claimed = false;
        let options = self.scene.partition;
        let (store, workers) = match &self.ground {
            Ground::Disk => {
                let volume = self.disk.mount();
                let mut options = self.scene.store.clone();
                options.lineage = self.is_copy.then_some(0);
                let (store, workers) = DiskStore::open(volume, options, Arc::new(|| {}))?;
                (SimStore::disk(store, self.scene.partition.partition, self.bug), Some(workers))
            }
            Ground::Memory { store, shared } => {
                store.set_faults(memory::Faults {
                    held: true,
                    asked: true,
                    unaware: true,
                    keeps_deleted: true,
                    ..memory::Faults::default()
                });
                let (another, shared) = (store.another(), Arc::clone(shared));
                (SimStore::memory(another, options.partition, self.bug, shared), None)
            }
        };
        self.claimed = true;
        let partition = Partition::open(store, options)?;
        self.is_copy = false;
        let journal = partition.now();
        if journal < seen {
            self.clocks.wall_ms = self.clocks.wall_ms.max(seen.0);
        }
        let wall = Time(self.clocks.wall_ms);
        let clock = Clock::start(journal, wall, self.clocks.monotonic_us);
        let (pending, early) = (BTreeMap::new(), VecDeque::new());
        self.owner = Some(Owner { partition, workers, clock, pending, early });
        Ok(())
    }

    /// Whether the store is on the disk, and not in memory.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.ground, Ground::Disk)
    }

    pub fn is_open(&self) -> bool {
        self.owner.is_some()
    }

    /// Whether the last process claimed its store, which writes to it.
    pub fn has_claimed(&self) -> bool {
        self.claimed
    }

    pub fn is_busy(&self) -> bool {
        self.owner.as_ref().is_none_or(|owner| owner.partition.is_busy())
    }

    pub fn is_checkpointing(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.partition.is_checkpointing())
    }

    pub fn is_waiting(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.partition.is_waiting())
    }

    pub fn has_zombie(&self) -> bool {
        self.zombie.is_some()
    }

    /// The partition's time of the last batch.
    pub fn now(&self) -> Time {
        self.owner.as_ref().map_or(Time(self.clocks.wall_ms), |owner| owner.partition.now())
    }

    pub fn next_deadline(&self) -> Option<Time> {
        self.owner.as_ref()?.partition.next_deadline()
    }

    /// The queue that an effect refers to, by its index in the scene, and its ready messages.
    pub fn woken(&self, id: hapax_core::QueueId) -> Option<(usize, u64)> {
        let machine = self.owner.as_ref()?.partition.machine();
        let name = machine.queue_name(id)?;
        let queue = self.scene.queues.iter().position(|spec| spec.name == *name)?;
        Some((queue, machine.ready(id)))
    }

    /// Whether the current process granted the lease.
    pub fn gave(&self, fence: hapax_core::Fence) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|owner| owner.partition.gave(fence))
    }

    /// Asserts the invariants of the state, and that memory is bounded.
    pub fn check_invariants(&mut self, evicts: bool) {
        if let Some(owner) = &mut self.owner {
            owner.partition.machine().check_invariants();
            if evicts {
                owner.partition.check_memory();
            }
        }
    }

    /// The source for a copy; none if the store is not on the disk.
    pub fn source(&self) -> Option<disk::Source> {
        self.owner.as_ref()?.partition.store().source()
    }

    /// Replaces the disk. The process on the old one is gone.
    pub fn replace_disk(&mut self, disk: SimDisk) {
        assert!(self.owner.is_none(), "the process ends first");
        self.disk = disk;
        self.is_copy = true;
    }

    /// Unanswered requests.
    pub fn pending(&self) -> Vec<Submitted> {
        self.owner.iter().flat_map(|owner| owner.pending.values().cloned()).collect()
    }

    /// Emits that have not reached their queues.
    pub fn relays(&self) -> usize {
        self.owner.as_ref().map_or(0, |owner| owner.partition.machine().relays().count())
    }

    /// The time that the last batch was submitted at. It may be decided later, but at that time.
    pub fn stamped(&self) -> Time {
        self.stamped
    }

    /// Number of batches submitted.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    pub fn clocks(&self) -> Clocks {
        self.clocks
    }

    /// How far the wall clock is from the partition's time, if that is too much.
    pub fn alarm(&self) -> Option<i64> {
        self.owner.as_ref()?.clock.alarm()
    }

    pub fn pass(&mut self, ms: u64) {
        self.clocks.wall_ms += ms;
        self.clocks.monotonic_us += ms * 1_000;
    }

    /// Sets the wall clock.
    pub fn jump(&mut self, ms: i64) {
        self.clocks.wall_ms = self.clocks.wall_ms.saturating_add_signed(ms);
    }

    /// Submits a batch to the owner, or to the one it replaced.
    pub fn submit(
        &mut self,
        random: &mut Random,
        ops: Vec<Op>,
        items: &[Item],
        zombie: bool,
    ) -> Result<(), Error> {
        let (clocks, bug) = (self.clocks, self.bug);
        let owner = if zombie { &mut self.zombie } else { &mut self.owner };
        let Some(owner) = owner else { return Ok(()) };
        let stamp = owner.stamp(clocks, random);
        let at = stamp.at.max(owner.partition.now());
        if !zombie {
            self.stamped = at;
        }
        let ops = match bug {
            Some(Bug::KeyBeforeAppend) => owner.answer_early(at, ops, &self.scene, items),
            _ => ops,
        };
        let commands: Vec<_> = ops.iter().map(|op| op.command(&self.scene, items)).collect();
        let sent = Submitted { at, ops, serial: self.submitted, lost: false };
        self.submitted += 1;
        let ticket = owner.partition.submit(stamp, commands);
        match ticket.and_then(|ticket| owner.end_batch().map(|()| ticket)) {
            Ok(ticket) => {
                owner.pending.insert(ticket, sent);
                Ok(())
            }
            Err(error) => {
                // Half of it may have been done.
                self.left.push(sent);
                Err(error)
            }
        }
    }

    /// The next answered batch.
    pub fn poll(&mut self, zombie: bool) -> Result<Option<AnsweredBatch>, Error> {
        let owner = if zombie { &mut self.zombie } else { &mut self.owner };
        let Some(owner) = owner else { return Ok(None) };
        if let Some((at, op, outcome)) = owner.early.pop_front() {
            let (serial, answers) = (0, vec![(op, outcome)]);
            return Ok(Some(AnsweredBatch { at, serial, answers, effects: Vec::new(), zombie }));
        }
        let answered = owner.partition.poll()?;
        owner.end_batch()?;
        let Some(answered) = answered else { return Ok(None) };
        // The first batch returns relays that were in flight, and was not requested.
        let mut submitted = owner.pending.remove(&answered.ticket);
        let submitted_lost = submitted.as_ref().is_some_and(|sent| sent.lost);
        let (at, serial, ops) = match &mut submitted {
            Some(sent) => {
                let count = answered.outcomes.len();
                (sent.at, sent.serial, sent.ops.drain(..count).collect())
            }
            None => (Time(0), 0, Vec::new()),
        };
        if let Some(rest) = submitted.filter(|_| answered.more) {
            owner.pending.insert(answered.ticket, rest);
        }
        let mut ops: Vec<Op> = ops;
        if submitted_lost {
            ops.clear(); // Who asked gave up when the owner was replaced.
        }
        let answers = ops.into_iter().zip(answered.outcomes).collect();
        Ok(Some(AnsweredBatch { at, serial, answers, effects: answered.effects, zombie }))
    }

    /// One step of a worker. Returns whether it did anything.
    pub fn step(&mut self, step: Step) -> Result<bool, Error> {
        let stepped = match (&self.ground, self.owner.as_mut()) {
            (_, None) => false,
            (Ground::Memory { store, .. }, _) => {
                if step == Step::Flusher {
                    store.settle()?;
                }
                false
            }
            (Ground::Disk, Some(owner)) => match &mut owner.workers {
                None => false,
                Some(workers) => match step {
                    Step::Flusher => workers.flusher.step()?,
                    Step::Keeper => workers.keeper.step()?,
                    Step::Checkpointer => workers.checkpointer.step()?,
                    Step::Merger => workers.merger.step()?,
                },
            },
        };
        let delay = self.disk.take_delay();
        self.pass(delay);
        Ok(stepped)
    }

    pub fn checkpoint(&mut self) -> Result<(), Error> {
        match &mut self.owner {
            Some(owner) => owner.partition.checkpoint(),
            None => Ok(()),
        }
    }

    /// The last batch in the rows.
    pub fn checkpointed(&mut self) -> Option<u64> {
        self.owner.as_mut()?.partition.store_mut().checkpointed().ok()
    }

    /// Closes the process cleanly. Its unanswered requests were done; if closing fails, perhaps.
    pub fn close(&mut self) -> Result<(), Error> {
        let Some(owner) = self.owner.take() else { return Ok(()) };
        let Owner { partition, pending, .. } = owner;
        self.left.extend(pending.into_values());
        partition.close().map(drop)
    }

    /// Ends the process, killed or with its machine; returns its unanswered requests.
    pub fn end(&mut self, power: bool) -> Vec<Submitted> {
        let mut lost = self.bury();
        if let Some(owner) = self.owner.take() {
            lost.extend(owner.pending.into_values());
        }
        lost.append(&mut self.left);
        if let Ground::Memory { store, .. } = &mut self.ground {
            *store = store.crash();
        } else if self.disk.stopped().is_none() {
            if power { self.disk.crash() } else { self.disk.kill() }
        }
        lost
    }

    /// Ends the zombie; returns its unanswered requests.
    pub fn bury(&mut self) -> Vec<Submitted> {
        let Some(zombie) = self.zombie.take() else { return Vec::new() };
        zombie.pending.into_values().filter(|sent| !sent.lost).collect()
    }

    /// Another process takes over while the first one continues. Returns the unanswered requests of
    /// the first: whether they were done is decided now.
    pub fn take_over(&mut self, seen: Time) -> Result<Vec<Submitted>, Error> {
        let mut lost = self.bury();
        if let Some(mut owner) = self.owner.take() {
            for sent in owner.pending.values_mut() {
                lost.push(sent.clone());
                sent.lost = true;
            }
            owner.early.clear();
            self.zombie = Some(owner);
        }
        self.open(seen)?;
        Ok(lost)
    }
}

impl Owner {
    fn stamp(&mut self, clocks: Clocks, random: &mut Random) -> Stamp {
        let at = self.clock.now(Time(clocks.wall_ms), clocks.monotonic_us);
        Stamp { at, random: random.bits() }
    }

    /// Marks the batch appended so far as complete.
    fn end_batch(&mut self) -> Result<(), Error> {
        self.partition.store_mut().end_batch().map_err(Error::Store)
    }

    /// The planted bug: sends of staged keys are answered at once.
    fn answer_early(&mut self, at: Time, ops: Vec<Op>, scene: &Scene, items: &[Item]) -> Vec<Op> {
        let (early, later) = ops.into_iter().partition(|op| {
            let Op::Send { variant: 0, .. } = op else { return false };
            let Command::Send(send) = op.command(scene, items) else { return false };
            self.partition.store().staged(&send.digest).is_some()
        });
        let early: Vec<Op> = early;
        for op in early {
            let Command::Send(send) = op.command(scene, items) else { continue };
            let Some((id, accepted_at)) = self.partition.store().staged(&send.digest) else {
                continue;
            };
            let (place, attempts, deadline) = (Place::Ready, 0, None);
            let known = InFlight { id, accepted_at, place, attempts, deadline };
            self.early.push_back((at, op, Outcome::Sent(Answer::InFlight(known))));
        }
        later
    }
}
