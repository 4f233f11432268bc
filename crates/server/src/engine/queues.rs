//! What concerns a queue as a whole: every partition knows it, and the first one leads.
//!
//! A change is decided by partition 0 and then told to the others; a crash in between is put right
//! at the next start, when the others are told again what they missed.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hapax_core::{
    Browse, Claim, Command, Configure, KeyView, Outcome, QueueName, QueueView, Redrive,
    RedriveView, Refusal, Seq, Stats,
};
use hapax_partition::Partition;
use hapax_store::OsVolume;
use hapax_store::disk::{self, DiskStore};
use tokio::sync::oneshot;

use super::inbox::{Ask, Seen};
use super::{Answer, Engine, Error, PoisonError, Spread, Stopped, sent};
use crate::problem::Problem;

/// What a partition refused, or what went wrong with it.
pub type Told<T> = Result<Result<T, Refusal>, Stopped>;

/// A page of messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub messages: Vec<KeyView>,
    pub next: Option<Cursor>,
}

/// Where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub partition: u16,
    pub seq: Option<Seq>,
}

impl Cursor {
    /// Reads what `to_string` wrote.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = || Problem::invalid("the cursor is not one that a page before gave");
        let (partition, seq) = text.split_once('-').ok_or_else(wrong)?;
        let partition = partition.parse().map_err(|_| wrong())?;
        let seq = match seq {
            "" => None,
            seq => Some(seq.parse().map_err(|_| wrong())?),
        };
        Ok(Self { partition, seq })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.partition)?;
        self.seq.map_or(Ok(()), |seq| write!(f, "{seq}"))
    }
}

impl Engine {
    /// Creates or changes a queue: its new version, and whether it is new.
    pub async fn configure(&self, configure: Configure) -> Told<(u64, bool)> {
        let (queue, spread) = (configure.queue.clone(), Spread::of(&configure.config));
        let first = self.call(0, Command::Configure(configure.clone())).await?;
        let (version, created) = match first {
            Outcome::Configured { version, created } => (version, created),
            Outcome::Refused(refusal) => return Ok(Err(refusal)),
            _ => return Err(Stopped::silent()),
        };
        for partition in 1..self.partitions() {
            let configure = Configure { if_version: None, ..configure.clone() };
            self.call(partition, Command::Configure(configure)).await?;
        }
        self.shared.spread.write().unwrap_or_else(PoisonError::into_inner).insert(queue, spread);
        Ok(Ok((version, created)))
    }

    /// Drops a queue with its messages and keys.
    pub async fn delete(&self, queue: &QueueName) -> Told<()> {
        // The leader last: a delete that was broken off is not half done at the next start.
        let mut told = Ok(());
        for partition in (0..self.partitions()).rev() {
            told = refused(self.call(partition, Command::Delete(queue.clone())).await?);
        }
        if told.is_ok() {
            self.shared.spread.write().unwrap_or_else(PoisonError::into_inner).remove(queue);
        }
        Ok(told)
    }

    /// Pauses, resumes or purges: the same in every partition.
    pub async fn change(&self, command: Command) -> Told<()> {
        let outcomes = self.call_all(command).await?;
        Ok(outcomes.into_iter().try_for_each(refused))
    }

    /// A queue, its partitions put together.
    pub async fn show(&self, queue: &QueueName) -> Told<QueueView> {
        let mut whole: Option<QueueView> = None;
        for outcome in self.call_all(Command::Show(queue.clone())).await? {
            match outcome {
                Outcome::Queue(view) => match &mut whole {
                    Some(whole) => add(whole, &view),
                    None => whole = Some(*view),
                },
                Outcome::Refused(refusal) => return Ok(Err(refusal)),
                _ => return Err(Stopped::silent()),
            }
        }
        Ok(whole.ok_or(Refusal::NoSuchQueue))
    }

    /// Every queue, or those of a tenant, in the order of their names.
    pub async fn queues(
        &self,
        tenant: Option<&str>,
    ) -> Result<Vec<(QueueName, QueueView)>, Stopped> {
        let mut all: Vec<(QueueName, QueueView)> = Vec::new();
        for partition in 0..self.partitions() {
            let tenant = tenant.map(str::to_owned);
            let list = self.inspect(partition, move |partition| list(partition, tenant)).await?;
            for (name, view) in list {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, whole)) => add(whole, &view),
                    None if partition == 0 => all.push((name, view)),
                    None => {} // The leader has dropped it.
                }
            }
        }
        all.sort_by(|(a, _), (b, _)| (&a.tenant, &a.queue).cmp(&(&b.tenant, &b.queue)));
        Ok(all)
    }

    /// Looks into a partition, on its writer's thread; what was seen leaves when it is durable.
    pub async fn inspect<T: Send + 'static>(
        &self,
        partition: usize,
        look: impl FnOnce(&Partition<DiskStore>) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (sender, receiver) = oneshot::channel();
        let inspect = move |partition: &Partition<DiskStore>| -> Seen {
            let seen = look(partition);
            Box::new(move || drop(sender.send(seen)))
        };
        self.shared.push(partition, Ask::Inspect(Box::new(inspect)));
        receiver.await.map_err(|_| Stopped::silent())
    }

    /// Takes a key for a caller who does the work itself.
    pub async fn claim(&self, claim: Claim) -> Result<Answer, Stopped> {
        let (key, group) = (claim.content.key(), claim.content.group());
        let partition = self.shared.place(&claim.queue, key, group).unwrap_or(0);
        sent(self.call(partition, Command::Claim(claim)).await?)
    }

    /// A page of the messages in a place, one partition after the other.
    pub async fn browse(&self, mut browse: Browse, cursor: Option<Cursor>) -> Told<Page> {
        let mut messages = Vec::new();
        let limit = browse.limit;
        let mut at = cursor.unwrap_or(Cursor { partition: 0, seq: None });
        while usize::from(at.partition) < self.partitions() {
            browse.limit = limit - messages.len();
            browse.cursor = at.seq;
            let command = Command::Browse(browse.clone());
            let next = match self.call(at.partition.into(), command).await? {
                Outcome::Messages { messages: more, next } => {
                    messages.extend(more);
                    next
                }
                Outcome::Refused(refusal) => return Ok(Err(refusal)),
                _ => return Err(Stopped::silent()),
            };
            at = match next {
                Some(seq) => Cursor { seq: Some(seq), ..at },
                None => Cursor { partition: at.partition + 1, seq: None },
            };
            if messages.len() >= limit {
                let more = usize::from(at.partition) < self.partitions();
                return Ok(Ok(Page { messages, next: more.then_some(at) }));
            }
        }
        Ok(Ok(Page { messages, next: None }))
    }

    /// Starts a redrive, or tells how far the one of that id has come.
    pub async fn redrive(&self, mut redrive: Redrive) -> Told<RedriveView> {
        let partitions = self.partitions() as u32;
        redrive.per_s = redrive.per_s.map(|per_s| per_s.div_ceil(partitions));
        self.progress(Command::Redrive(redrive)).await
    }

    pub async fn redrive_progress(&self, queue: &QueueName, id: &str) -> Told<RedriveView> {
        let (queue, id) = (queue.clone(), id.into());
        self.progress(Command::RedriveProgress { queue, id }).await
    }

    pub async fn cancel_redrive(&self, queue: &QueueName, id: &str) -> Told<RedriveView> {
        let (queue, id) = (queue.clone(), id.into());
        self.progress(Command::CancelRedrive { queue, id }).await
    }

    async fn progress(&self, command: Command) -> Told<RedriveView> {
        let mut whole: Option<RedriveView> = None;
        for outcome in self.call_all(command).await? {
            match (outcome, &mut whole) {
                (Outcome::Redrive(view), Some(whole)) => whole.merge(&view),
                (Outcome::Redrive(view), None) => whole = Some(view),
                (Outcome::Refused(refusal), _) => return Ok(Err(refusal)),
                _ => return Err(Stopped::silent()),
            }
        }
        Ok(whole.ok_or(Refusal::NoSuchKey))
    }

    /// Copies everything to a directory that is empty or does not exist, while the broker goes
    /// on. Calls `progress(bytes done, bytes in all)`. Blocks.
    pub fn backup(&self, target: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        // While it goes on no partition forgets an emit: the copy of the one that emitted has it
        // in its list, or the copy of the other has it as a message, or both, and its key makes
        // that one.
        let _one = self.shared.backups.lock().unwrap_or_else(PoisonError::into_inner);
        let _held = Held::new(&self.shared);
        let mut before = 0;
        for (number, source) in self.shared.sources.iter().enumerate() {
            let path = super::data::partition_path(target, number as u16);
            let volume =
                OsVolume::create(&path).map_err(|error| Error::io("create", &path, error))?;
            let mut last = 0;
            disk::backup(source, &volume, &mut |done, total| {
                last = total;
                progress(before + done, before + total);
            })
            .map_err(|error| Error::Store { path: path.clone(), error })?;
            before += last;
        }
        self.shared.data.copy_head(target)
    }

    /// Tells partitions what they missed when a change of a queue was broken off.
    pub(super) fn reconcile(&self) -> Result<(), Stopped> {
        if self.partitions() == 1 {
            return Ok(());
        }
        let lead = self.inspect_now(0)?;
        for partition in 1..self.partitions() {
            let known = self.inspect_now(partition)?;
            let (mut commands, mut left) = (Vec::new(), known.clone());
            for (queue, view) in &lead {
                left.retain(|(name, _)| name != queue);
                let same = known.iter().find(|(name, _)| name == queue).map(|(_, view)| view);
                if same.is_none_or(|same| same.config != view.config) {
                    let (queue, config) = (queue.clone(), view.config.clone());
                    commands.push(Command::Configure(Configure {
                        queue,
                        config,
                        if_version: None,
                    }));
                }
                if same.is_some_and(|same| same.paused) != view.paused {
                    let name = queue.clone();
                    let pause = Command::Pause(name.clone());
                    commands.push(if view.paused { pause } else { Command::Resume(name) });
                }
            }
            commands.extend(left.into_iter().map(|(name, _)| Command::Delete(name)));
            let (sender, receiver) = std::sync::mpsc::channel();
            self.submit(partition, commands, move |outcomes| drop(sender.send(outcomes)));
            receiver.recv().map_err(|_| Stopped::silent())??;
        }
        Ok(())
    }

    fn inspect_now(&self, partition: usize) -> Result<Vec<(QueueName, QueueView)>, Stopped> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let inspect = move |partition: &Partition<DiskStore>| -> Seen {
            let seen = list(partition, None);
            Box::new(move || drop(sender.send(seen)))
        };
        self.shared.push(partition, Ask::Inspect(Box::new(inspect)));
        receiver.recv().map_err(|_| Stopped::silent())
    }
}

/// While it lives, what arrived is not told to the partition that emitted it.
struct Held(Arc<super::Shared>);

impl Held {
    fn new(shared: &Arc<super::Shared>) -> Self {
        shared.relayed.hold();
        Self(Arc::clone(shared))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (partition, commands) in self.0.relayed.let_go() {
            self.0.submit(partition, commands, Box::new(|_| {}));
        }
    }
}

fn list(partition: &Partition<DiskStore>, tenant: Option<String>) -> Vec<(QueueName, QueueView)> {
    let queues = partition.machine().queues();
    let wanted = queues.filter(|(name, _)| tenant.as_deref().is_none_or(|t| *name.tenant == *t));
    wanted.map(|(name, view)| (name.clone(), view)).collect()
}

fn refused(outcome: Outcome) -> Result<(), Refusal> {
    match outcome {
        Outcome::Refused(refusal) => Err(refusal),
        _ => Ok(()),
    }
}

fn add(whole: &mut QueueView, part: &QueueView) {
    let (sum, more) = (&mut whole.stats, &part.stats);
    let Stats {
        ready,
        delayed,
        leased,
        parked,
        dead,
        keys,
        bytes,
        sent_total,
        duplicate_total,
        done_total,
        failed_total,
        lease_lost_total,
    } = more;
    for (sum, more) in [
        (&mut sum.ready, ready),
        (&mut sum.delayed, delayed),
        (&mut sum.leased, leased),
        (&mut sum.parked, parked),
        (&mut sum.dead, dead),
        (&mut sum.keys, keys),
        (&mut sum.bytes, bytes),
        (&mut sum.sent_total, sent_total),
        (&mut sum.duplicate_total, duplicate_total),
        (&mut sum.done_total, done_total),
        (&mut sum.failed_total, failed_total),
        (&mut sum.lease_lost_total, lease_lost_total),
    ] {
        *sum += more;
    }
    let oldest = [whole.oldest_ready_at, part.oldest_ready_at].into_iter().flatten().min();
    whole.oldest_ready_at = oldest;
}
