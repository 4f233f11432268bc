//! Changes and shows a queue as a whole: every partition knows it, and the first one leads.
//! [`hapax_partition::change`] defines the steps of a change over all partitions, and how a change
//! that a crash interrupted is completed at the next start. Here a change gets its own task, so
//! that it ends whatever its caller does, and a lock, so that it is the only one of its queue.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use hapax_core::{
    Answer, Claim, Command, Configure, DedupScope, Expected, Outcome, QueueName, QueueView,
    Redrive, RedriveView, Refusal, Stats,
};
use hapax_partition::Partition;
use hapax_partition::change::{self, Change, Changed, Known, Running, Step, reconcile};
use hapax_partition::route::LEADER;
use hapax_store::OsVolume;
use hapax_store::disk::Moment;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::inbox::{Ask, Seen};
use super::{AnyStore, Data, Engine, Error, PoisonError, Stopped, To};

/// A result, a refusal, or the failure of a partition.
pub type Decided<T> = Result<Result<T, Refusal>, Stopped>;

type List = Vec<(QueueName, QueueView)>;

/// Queues as the partitions reported them.
#[derive(Debug, Default)]
pub struct Survey {
    pub queues: Vec<(QueueName, QueueView)>,
    /// Whether each partition answered in time.
    pub answered: Vec<bool>,
}

impl Survey {
    /// The partitions that did not answer in time.
    pub fn unanswered(&self) -> impl Iterator<Item = usize> {
        let answered = self.answered.iter().enumerate();
        answered.filter(|(_, answered)| !**answered).map(|(partition, _)| partition)
    }
}

/// The last report of a partition about its queues, and the answer it still owes.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// `None` before the first report.
    last: Option<List>,
    pending: Option<oneshot::Receiver<List>>,
}

impl Listing {
    /// The answer that the partition still owes. One that arrived meanwhile becomes its last
    /// report, which may be outdated: it has to be asked again.
    fn owed(&mut self) -> Option<oneshot::Receiver<List>> {
        let mut pending = self.pending.take()?;
        match pending.try_recv() {
            Ok(list) => {
                self.last = Some(list);
                None
            }
            Err(TryRecvError::Empty) => Some(pending),
            Err(TryRecvError::Closed) => None,
        }
    }
}

impl Engine {
    /// Creates or changes a queue: the queue as this change left it, and whether it is new.
    pub async fn configure(&self, configure: Configure) -> Decided<(QueueView, bool)> {
        let queue = configure.queue.clone();
        self.while_locked(queue.clone(), move |engine: Self| async move {
            match engine.carry_out(Change::Configure(configure)).await? {
                Ok(Changed::Configured { version, created }) => {
                    let shown = engine.show(&queue).await?;
                    assert!(shown.as_ref().is_ok_and(|view| view.version == version), "{shown:?}");
                    Ok(shown.map(|view| (view, created)))
                }
                Ok(Changed::Done) => unreachable!("a configuration is answered as one"),
                Err(refusal) => Ok(Err(refusal)),
            }
        })
        .await
    }

    /// Drops a queue with its messages and keys.
    pub async fn delete(&self, queue: &QueueName) -> Decided<()> {
        Ok(self.change(Change::Delete(queue.clone())).await?.map(drop))
    }

    /// Drops a queue if it is as expected.
    pub async fn delete_if(&self, queue: &QueueName, expected: Option<Expected>) -> Decided<()> {
        Ok(self.change_if(Change::Delete(queue.clone()), expected).await?.map(drop))
    }

    /// Changes a queue in every partition, to the end, even if the caller goes away.
    pub async fn change(&self, change: Change) -> Decided<Changed> {
        self.change_if(change, None).await
    }

    async fn change_if(&self, change: Change, expected: Option<Expected>) -> Decided<Changed> {
        self.while_locked(change.queue().clone(), move |engine: Self| async move {
            if let Some(expected) = expected
                && let Err(refusal) = engine.check_expected(change.queue(), expected).await?
            {
                return Ok(Err(refusal));
            }
            engine.carry_out(change).await
        })
        .await
    }

    /// Runs a task during which nothing else changes the queue. It ends whatever its caller does.
    async fn while_locked<T: Send + 'static, F>(
        &self,
        queue: QueueName,
        task: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Decided<T>
    where
        F: Future<Output = Decided<T>> + Send,
    {
        let engine = self.clone();
        let task = tokio::spawn(async move {
            let _one = engine.shared.change_lock(&queue).lock().await;
            task(engine.clone()).await
        });
        task.await.map_err(|_| Stopped::silent())?
    }

    /// Carries a change out in every partition. The caller holds the lock of the queue.
    async fn carry_out(&self, change: Change) -> Decided<Changed> {
        let deleted = match &change {
            Change::Delete(queue) => Some(queue.clone()),
            _ => None,
        };
        let mut running = Running::begin(change, &mut self.shared.routes_mut());
        while let Some(steps) = running.next() {
            let calls: Vec<_> = steps
                .into_iter()
                .map(|step| self.start_call(step.partition, step.commands))
                .collect();
            let mut outcomes = Vec::with_capacity(calls.len());
            for call in calls {
                outcomes.push(call.await.map_err(|_| Stopped::silent())??);
            }
            running.done(outcomes, &mut self.shared.routes_mut());
        }
        let ended = running.end();
        if let (Some(queue), Ok(_)) = (deleted, &ended) {
            self.shared.forget_reports(&queue);
            self.shared.call_everywhere(&queue);
        }
        Ok(ended)
    }

    async fn check_expected(&self, queue: &QueueName, expected: Expected) -> Decided<()> {
        match self.call(LEADER, Command::Show(queue.clone())).await? {
            Outcome::Queue(view) => Ok(expected.check(Some((view.number, view.version)))),
            Outcome::Refused(Refusal::NoSuchQueue) => Ok(expected.check(None)),
            Outcome::Refused(refusal) => Ok(Err(refusal)),
            other => unreachable!("the leader does not show a queue as {other:?}"),
        }
    }

    /// A queue, its partitions put together.
    pub async fn show(&self, queue: &QueueName) -> Decided<QueueView> {
        let mut outcomes = self.call_all(Command::Show(queue.clone())).await?.into_iter();
        let mut whole = match outcomes.next() {
            Some(Outcome::Queue(view)) => *view,
            Some(Outcome::Refused(refusal)) => return Ok(Err(refusal)),
            other => unreachable!("the leader does not show a queue as {other:?}"),
        };
        for outcome in outcomes {
            match outcome {
                Outcome::Queue(view) => add(&mut whole, &view),
                Outcome::Refused(_) => {} // Being created or deleted.
                other => unreachable!("a queue is not shown as {other:?}"),
            }
        }
        Ok(Ok(whole))
    }

    /// The deduplication scope of a queue. Cheaper than `show`: one partition knows.
    pub async fn dedup_scope(&self, queue: &QueueName) -> Decided<DedupScope> {
        match self.call(LEADER, Command::Show(queue.clone())).await? {
            Outcome::Queue(view) => Ok(Ok(view.config.dedup_scope)),
            Outcome::Refused(refusal) => Ok(Err(refusal)),
            other => unreachable!("the leader does not show a queue as {other:?}"),
        }
    }

    /// The queues of a tenant, in the order of their names: current counts from partitions that
    /// answer in time, and the last report of the others. Fails if the leader has never reported,
    /// because only it knows which queues exist.
    pub async fn queues(&self, tenant: &str, wait: Duration) -> Result<Survey, Stopped> {
        let asked: Vec<_> = (0..self.partitions())
            .map(|partition| {
                let tenant = tenant.to_owned();
                self.start_inspect(partition, move |partition| list(partition, Some(&tenant)))
            })
            .collect();
        let until = tokio::time::Instant::now() + wait;
        let mut survey = Survey::default();
        let mut lists = Vec::with_capacity(asked.len());
        for (partition, asked) in asked.into_iter().enumerate() {
            let told = tokio::time::timeout_at(until, asked).await;
            let told = told.ok().and_then(Result::ok);
            survey.answered.push(told.is_some());
            match told.or_else(|| self.last_reported(partition, tenant)) {
                Some(list) => lists.push(list),
                None if partition == LEADER => return Err(Stopped::late(partition, wait)),
                None => {}
            }
        }
        survey.queues = join(lists);
        Ok(survey)
    }

    fn last_reported(&self, partition: usize, tenant: &str) -> Option<List> {
        let mut listing = self.listing(partition);
        listing.pending = listing.owed();
        let last = listing.last.as_ref()?.iter();
        Some(last.filter(|(name, _)| *name.tenant == *tenant).cloned().collect())
    }

    /// The names of a tenant's queues.
    pub async fn queue_names(&self, tenant: &str) -> Result<Vec<QueueName>, Stopped> {
        let tenant = tenant.to_owned();
        self.inspect(LEADER, move |partition| {
            let names = partition.machine().queues().map(|(name, _)| name);
            names.filter(|name| *name.tenant == *tenant).cloned().collect()
        })
        .await
    }

    /// Every queue, as far as partitions answer in time; for the others their last report.
    pub async fn survey(&self, wait: Duration) -> Survey {
        let until = tokio::time::Instant::now() + wait;
        let asked: Vec<_> = (0..self.partitions())
            .map(|partition| {
                // A partition that has not answered yet is not asked again.
                let owed = self.listing(partition).owed();
                owed.unwrap_or_else(|| self.start_inspect(partition, |it| list(it, None)))
            })
            .collect();
        let mut survey = Survey::default();
        let mut lists = Vec::with_capacity(asked.len());
        for (partition, mut pending) in asked.into_iter().enumerate() {
            let told = tokio::time::timeout_at(until, &mut pending).await;
            let mut listing = self.listing(partition);
            match told {
                Ok(Ok(list)) => {
                    listing.last = Some(list);
                    survey.answered.push(true);
                }
                Ok(Err(_)) => survey.answered.push(false), // It stopped.
                Err(_) => {
                    listing.pending = Some(pending);
                    survey.answered.push(false);
                }
            }
            lists.push(listing.last.clone().unwrap_or_default());
        }
        survey.queues = join(lists);
        survey
    }

    fn listing(&self, partition: usize) -> MutexGuard<'_, Listing> {
        #[expect(clippy::expect_used, reason = "every partition has a listing from the start")]
        let listing = self.shared.listings.get(partition).expect("the partition exists");
        listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state of a partition on its writer's thread; the result is returned when that
    /// state is durable.
    pub async fn inspect<T: Send + 'static>(
        &self,
        partition: usize,
        look: impl FnOnce(&Partition<AnyStore>) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        self.start_inspect(partition, look).await.map_err(|_| Stopped::silent())
    }

    fn start_inspect<T: Send + 'static>(
        &self,
        partition: usize,
        look: impl FnOnce(&Partition<AnyStore>) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let inspect = move |partition: &Partition<AnyStore>| -> Seen {
            let seen = look(partition);
            Box::new(move || drop(sender.send(seen)))
        };
        self.shared.push(partition, Ask::Inspect(Box::new(inspect)));
        receiver
    }

    /// Claims a key.
    pub async fn claim(&self, claim: Claim) -> Result<Answer, Stopped> {
        match self.ask(vec![Command::Claim(Box::new(claim))], To::Key).await?.pop() {
            Some(Outcome::Claimed(answer)) => Ok(answer),
            other => unreachable!("a claim is not answered by {other:?}"),
        }
    }

    /// Starts a redrive, or returns the progress of the one with that id. Its rate is shared out
    /// between the partitions; one that has less than one a second would never end. All are asked
    /// first, and one redrive starts at a time, so that none starts what another refuses. A disk
    /// that fills up in between may still refuse it in some: repeated under its id, the redrive
    /// starts there too.
    pub async fn redrive(&self, redrive: Redrive) -> Decided<RedriveView> {
        let partitions = self.partitions() as u32;
        let part = |partition| {
            let per_s = redrive.per_s.map(|per_s| share_of(per_s, partition, partitions));
            Redrive { per_s, ..redrive.clone() }
        };
        let _one_of_queue = self.shared.change_lock(&redrive.queue).lock().await;
        let _one = self.shared.redrives.lock().await;
        if partitions > 1 {
            let checks = (0..partitions).map(|partition| Command::CheckRedrive(part(partition)));
            if let Err(refusal) = self.progress(checks).await? {
                return Ok(Err(refusal));
            }
        }
        self.progress((0..partitions).map(|partition| Command::Redrive(part(partition)))).await
    }

    pub async fn redrive_progress(&self, queue: &QueueName, id: &str) -> Decided<RedriveView> {
        let (queue, id) = (queue.clone(), id.into());
        let command = Command::RedriveProgress { queue, id };
        self.progress(vec![command; self.partitions()]).await
    }

    /// Stops a redrive. One that is being started is stopped when it has started in every
    /// partition: in between, some would not know it yet, and run it.
    pub async fn cancel_redrive(&self, queue: &QueueName, id: &str) -> Decided<RedriveView> {
        let _one = self.shared.change_lock(queue).lock().await;
        let (queue, id) = (queue.clone(), id.into());
        let command = Command::CancelRedrive { queue, id };
        self.progress(vec![command; self.partitions()]).await
    }

    /// Merges the answers of the partitions, each to its command.
    async fn progress(&self, commands: impl IntoIterator<Item = Command>) -> Decided<RedriveView> {
        let mut whole: Option<RedriveView> = None;
        for outcome in self.call_every(commands).await? {
            match (outcome, &mut whole) {
                (Outcome::Redrive(view), Some(whole)) => whole.merge(&view),
                (Outcome::Redrive(view), None) => whole = Some(*view),
                (Outcome::Refused(refusal), _) => return Ok(Err(refusal)),
                _ => return Err(Stopped::silent()),
            }
        }
        Ok(whole.ok_or(Refusal::NoSuchKey))
    }

    /// Copies everything to a directory that is empty or does not exist, while the broker runs.
    /// Calls `progress(bytes done, bytes in total)`. Blocks.
    pub fn backup(&self, target: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
        if self.shared.sources.is_empty() {
            return Err(Error::InDatabase);
        }
        Data::refuse_target_inside(self.shared.data.path(), target)?;
        let _one = self.shared.backups.lock().unwrap_or_else(PoisonError::into_inner);
        let moments = self.capture()?;
        let total = moments.values().map(Moment::bytes).sum();
        let mut before = 0;
        for (number, moment) in &moments {
            let path = super::data::partition_path(target, *number);
            let volume =
                OsVolume::create(&path).map_err(|error| Error::io("create", &path, error))?;
            moment
                .copy(&volume, &mut |done, _| progress(before + done, total))
                .map_err(|error| Error::Store { path: path.clone(), error })?;
            before += moment.bytes();
        }
        Data::copy_head(self.shared.data.path(), target)
    }

    /// Captures every partition, by number; together they are the data of one broker. The leader
    /// comes last, so that it is not behind the others. Meanwhile no partition drops an emit: the
    /// emitting one has it in its list, or the other has it as a message, or both, and its key
    /// makes it one.
    fn capture(&self) -> Result<BTreeMap<u16, Moment>, Error> {
        let _held = Held::new(&self.shared);
        let mut moments = BTreeMap::new();
        for number in change::copied(self.partitions()) {
            let Some(source) = self.shared.sources.get(number) else { continue };
            let number = number as u16;
            let moment = source.capture().map_err(|error| {
                let path = super::data::partition_path(self.shared.data.path(), number);
                Error::Store { path, error }
            })?;
            moments.insert(number, moment);
        }
        Ok(moments)
    }

    /// Completes changes of queues that a crash interrupted, given what the partitions knew at the
    /// start. Blocks.
    pub(super) fn reconcile(&self, mut known: Vec<Known>) -> Result<(), Error> {
        // What a queue of a follower is compared with: the leader may create some itself.
        let next_queue = known.first().map(|leader| leader.next_queue);
        loop {
            let steps = self.shared.data.missing_steps(&known)?;
            if steps.is_empty() {
                *self.shared.routes_mut() = change::routes(&known, *self.shared.data.recipe());
                return Ok(());
            }
            for step in steps {
                let (sender, receiver) = std::sync::mpsc::channel();
                let reply = move |outcomes| drop(sender.send(outcomes));
                self.submit(step.partition, step.commands, reply);
                let outcomes = receiver.recv().map_err(|_| Stopped::silent());
                outcomes.flatten().map_err(Error::Stopped)?;
            }
            let now = (0..self.partitions()).map(|partition| self.known(partition));
            known = now.collect::<Result<_, _>>().map_err(Error::Stopped)?;
            if let (Some(leader), Some(next_queue)) = (known.first_mut(), next_queue) {
                leader.next_queue = next_queue;
            }
        }
    }

    fn known(&self, partition: usize) -> Result<Known, Stopped> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let inspect = move |partition: &Partition<AnyStore>| -> Seen {
            let known = Known::of(partition.machine());
            Box::new(move || drop(sender.send(known)))
        };
        self.shared.push(partition, Ask::Inspect(Box::new(inspect)));
        receiver.recv().map_err(|_| Stopped::silent())
    }
}

impl Data {
    /// The remaining steps of changes that a crash interrupted.
    pub(super) fn missing_steps(&self, known: &[Known]) -> Result<Vec<Step>, Error> {
        let path = || self.path().to_owned();
        reconcile(known).map_err(|error| Error::LeaderBehind { path: path(), error })
    }
}

impl super::Shared {
    fn change_lock(&self, queue: &QueueName) -> &tokio::sync::Mutex<()> {
        let [first, ..] = queue.digest().0;
        let lock = self.changes.get(usize::from(first) % self.changes.len());
        lock.unwrap_or_else(|| unreachable!("there are as many locks as that"))
    }
}

/// While it exists, arrivals are not confirmed to the emitting partitions.
struct Held(Arc<super::Shared>);

impl Held {
    fn new(shared: &Arc<super::Shared>) -> Self {
        shared.confirmations().hold();
        Self(Arc::clone(shared))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.0.confirmations().let_go();
        for (partition, commands) in held {
            self.0.submit(partition, commands, Box::new(|_| {}));
        }
    }
}

/// A partition's part of a rate, at least one each. A rate of zero stays zero, to be refused.
fn share_of(per_s: u32, partition: u32, partitions: u32) -> u32 {
    let share = per_s / partitions + u32::from(partition < per_s % partitions);
    share.max(per_s.min(1))
}

/// Merges the partitions' lists, sorted by name.
fn join(lists: Vec<List>) -> List {
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default(); // What the leader has dropped is gone.
    all.sort_by(|(a, _), (b, _)| by_name(a).cmp(&by_name(b)));
    for (name, view) in lists.flatten() {
        let found = all.binary_search_by(|(known, _)| by_name(known).cmp(&by_name(&name)));
        if let Some((_, whole)) = found.ok().and_then(|place| all.get_mut(place)) {
            add(whole, &view);
        }
    }
    all
}

fn by_name(name: &QueueName) -> (&str, &str) {
    (&name.tenant, &name.queue)
}

fn list(partition: &Partition<AnyStore>, tenant: Option<&str>) -> List {
    let queues = partition.machine().queues();
    let wanted = queues.filter(|(name, _)| tenant.is_none_or(|tenant| *name.tenant == *tenant));
    wanted.map(|(name, view)| (name.clone(), view)).collect()
}

fn add(whole: &mut QueueView, part: &QueueView) {
    let (sum, more) = (&mut whole.stats, &part.stats);
    let Stats {
        ready,
        held,
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
        (&mut sum.held, held),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_shared_out_exactly_unless_a_partition_would_have_none() {
        let shares = |per_s| [0, 1, 2, 3].map(|partition| share_of(per_s, partition, 4));
        assert_eq!(shares(5), [2, 1, 1, 1]);
        assert_eq!(shares(8), [2, 2, 2, 2]);
        assert_eq!(shares(11), [3, 3, 3, 2]);
        assert_eq!(shares(1), [1, 1, 1, 1]);
        assert_eq!(shares(0), [0, 0, 0, 0], "refused");
        assert_eq!(shares(u32::MAX).map(u64::from).iter().sum::<u64>(), u64::from(u32::MAX));
        assert_eq!(share_of(7, 0, 1), 7);
    }
}
