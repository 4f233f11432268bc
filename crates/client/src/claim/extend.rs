//! Extends the leases of claims that are held for long. Most claims end long before that, so a
//! claim has no task of its own at first: it is an entry in a list that one task of the client
//! watches, which starts the claim's own task when its lease must be extended for the first time.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::error::Error;
use crate::retry::moment;
use crate::settle::Settled;

/// A claim is extended after this part of its lease.
const EXTEND_AT: f64 = 0.4;
/// The shortest time between two extensions, however short the lease.
const EXTEND_MIN: Duration = Duration::from_millis(20);

/// The time between two extensions of a lease of this length.
pub(super) fn pause(length: Duration) -> Duration {
    length.mul_f64(EXTEND_AT).max(EXTEND_MIN)
}

/// Extends a lease that began at `since`, until it is lost, or ends because the broker cannot be
/// reached. `ask` extends by a length, and may fail after the client's timeout.
pub(super) async fn extend<F: Future<Output = Result<Settled, Error>>>(
    ask: impl Fn(Duration) -> F,
    since: Instant,
    length: Duration,
    wanted: watch::Receiver<Instant>,
    lost: watch::Sender<bool>,
) {
    let usual = pause(length);
    let (mut until, mut next) = (moment(since, length), moment(since, usual));
    loop {
        tokio::time::sleep_until(next).await;
        // Counted from before the call, so that the local deadline is not later than the broker's.
        let asked = Instant::now();
        let length = length.max(wanted.borrow().saturating_duration_since(asked));
        let extended = ask(length);
        let end = until.max(*wanted.borrow());
        let pause = match tokio::time::timeout_at(end, extended).await {
            Ok(Ok(Settled::Ok { .. })) => {
                until = moment(asked, length);
                usual
            }
            Ok(Ok(Settled::LeaseLost { .. })) => break,
            // After another usual pause the lease may be over.
            Ok(Err(error)) if error.is_retryable() && Instant::now() < end => EXTEND_MIN,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a claim could not be extended");
                break;
            }
            Err(_) => break,
        };
        next = moment(Instant::now(), pause);
    }
    lost.send_replace(true);
}

type Extension = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The extensions of a client's claims.
#[derive(Clone, Default)]
pub(super) struct Extensions(Arc<Shared>);

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    /// Notified of an extension that is due before the task wakes up.
    earlier: Notify,
}

#[derive(Default)]
struct List {
    /// Those that are not due yet, by their times and numbers, each with its caller's runtime.
    waiting: BTreeMap<(Instant, u64), (Extension, Handle)>,
    running: HashMap<u64, AbortHandle>,
    next: u64,
    /// When the task wakes up; `None` if there is no task.
    wakes: Option<Instant>,
}

impl Extensions {
    /// Runs an extension from `due` on, until what is returned is dropped.
    pub(super) fn add(
        &self,
        due: Instant,
        extension: impl Future<Output = ()> + Send + 'static,
    ) -> Extending {
        let mut list = self.0.lock();
        let key = (due, list.next);
        list.next += 1;
        list.waiting.insert(key, (Box::pin(extension), Handle::current()));
        let wakes = list.wakes;
        let is_earliest = wakes.is_none_or(|wakes| due < wakes);
        list.wakes = if is_earliest { Some(due) } else { wakes };
        drop(list);
        match wakes {
            // Not under the lock, which it takes at once if this runtime is ending.
            None => {
                let watch = Watch { list: Arc::clone(&self.0), has_ended: false };
                tokio::spawn(watch.run());
            }
            Some(_) if is_earliest => self.0.earlier.notify_one(),
            Some(_) => {}
        }
        Extending { list: Arc::clone(&self.0), key }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what is due. Returns when the next one is; without any there is no task any more.
    fn start_due(&self) -> Option<Instant> {
        let mut list = self.lock();
        let now = Instant::now();
        while let Some(first) = list.waiting.first_entry().filter(|it| it.key().0 <= now) {
            let ((_, number), (extension, runtime)) = first.remove_entry();
            let task = runtime.spawn(extension);
            list.running.insert(number, task.abort_handle());
        }
        list.wakes = list.waiting.first_key_value().map(|((due, _), _)| *due);
        list.wakes
    }
}

/// The task that waits for the next extension.
struct Watch {
    list: Arc<Shared>,
    has_ended: bool,
}

impl Watch {
    async fn run(mut self) {
        while let Some(due) = self.list.start_due() {
            let _ = tokio::time::timeout_at(due, self.list.earlier.notified()).await;
        }
        self.has_ended = true;
    }
}

impl Drop for Watch {
    /// If its runtime has ended, those of other runtimes wait for themselves.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut list = self.list.lock();
        list.wakes = None;
        for ((_, number), (extension, runtime)) in std::mem::take(&mut list.waiting) {
            let task = runtime.spawn(extension);
            list.running.insert(number, task.abort_handle());
        }
    }
}

/// An extension; it ends when this is dropped.
pub(super) struct Extending {
    list: Arc<Shared>,
    key: (Instant, u64),
}

impl Drop for Extending {
    fn drop(&mut self) {
        let mut list = self.list.lock();
        let waiting = list.waiting.remove(&self.key);
        let running = list.running.remove(&self.key.1);
        drop(list);
        drop(waiting);
        if let Some(running) = running {
            running.abort();
        }
    }
}

impl std::fmt::Debug for Extensions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extensions").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Extending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extending").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(30);

    /// Extends while each try has one of these outcomes, after so many seconds, and none after
    /// them. Returns after how many seconds each try was made, and the lease was lost.
    async fn tries(outcomes: &[(u64, bool)]) -> (Vec<u64>, u64) {
        let start = Instant::now();
        let made = Mutex::new(Vec::new());
        let ask = |_| {
            let mut made = made.lock().unwrap();
            made.push(start.elapsed().as_secs());
            let outcome = outcomes.get(made.len() - 1).copied();
            async move {
                let Some((after, is_ok)) = outcome else { return std::future::pending().await };
                let after = Duration::from_secs(after);
                tokio::time::sleep(after).await;
                let settled = Settled::Ok { state: crate::State::Leased, deadline: None };
                if is_ok { Ok(settled) } else { Err(Error::TimedOut(after)) }
            }
        };
        let wanted = watch::Sender::new(start);
        extend(ask, start, LENGTH, wanted.subscribe(), watch::Sender::new(false)).await;
        (made.into_inner().unwrap(), start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_extended_well_before_its_end() {
        assert_eq!(tries(&[(0, true), (0, true)]).await, (vec![12, 24, 36], 54));
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_that_fails_is_tried_again_while_the_lease_lasts() {
        assert_eq!(tries(&[(10, false), (1, true)]).await, (vec![12, 22, 35], 52));
        assert_eq!(tries(&[(10, false), (7, false)]).await, (vec![12, 22, 29], 30));
    }

    /// Adds an extension that notes, when it runs, after how many seconds that is.
    fn add(list: &Extensions, due: u64, ran: &watch::Sender<Vec<u64>>) -> Extending {
        let (start, ran) = (Instant::now(), ran.clone());
        list.add(start + Duration::from_secs(due), async move {
            ran.send_modify(|ran| ran.push(start.elapsed().as_secs()));
            std::future::pending().await
        })
    }

    async fn after(seconds: u64, ran: &watch::Sender<Vec<u64>>) -> Vec<u64> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        ran.borrow().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_runs_when_it_is_due_and_ends_with_its_claim() {
        let (list, ran) = (Extensions::default(), watch::Sender::new(Vec::new()));
        let late = add(&list, 40, &ran);
        assert_eq!(after(1, &ran).await, [0; 0], "the task waits for that one");
        let early = add(&list, 12, &ran);
        drop(add(&list, 5, &ran));
        assert_eq!(after(11, &ran).await, [0; 0], "the dropped one never does");
        assert_eq!(after(5, &ran).await, [12]);
        let running = ran.sender_count();
        drop(early);
        assert_eq!(after(1, &ran).await, [12]);
        assert_eq!(ran.sender_count(), running - 1, "its task has ended");
        assert_eq!(after(30, &ran).await, [12, 40]);
        drop(late);
        assert!(list.0.lock().wakes.is_none() && list.0.lock().running.is_empty());
        // The task has ended, and there is another one for the next claim.
        let _next = add(&list, 12, &ran);
        assert_eq!(after(13, &ran).await, [12, 40, 12]);
    }

    #[test]
    fn the_end_of_a_runtime_stops_no_extension_of_another() {
        let (list, (ran, started)) = (Extensions::default(), std::sync::mpsc::channel());
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let soon = Duration::from_millis(300);
        let add = |wait: Duration, ran: std::sync::mpsc::Sender<()>| {
            let due = Instant::now() + wait;
            list.add(due, async move {
                tokio::time::sleep_until(due).await;
                let _ = ran.send(());
            })
        };
        let _of_first = first.block_on(async { add(soon * 1_000, ran.clone()) });
        let _of_second = second.block_on(async { add(soon * 2, ran) });
        drop(first);
        started.recv_timeout(Duration::from_secs(60)).expect("the task of the first is gone");
    }
    #[test]
    fn a_claim_in_a_runtime_that_has_ended_is_added_all_the_same() {
        let (list, (added, is_added)) = (Extensions::default(), std::sync::mpsc::channel());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let ended = runtime.handle().clone();
        drop(runtime);
        // On a thread of its own, for if it hangs.
        std::thread::spawn(move || {
            let _in_it = ended.enter();
            drop(list.add(Instant::now(), std::future::pending()));
            assert!(list.0.lock().waiting.is_empty() && list.0.lock().wakes.is_none());
            added.send(()).unwrap();
        });
        is_added.recv_timeout(Duration::from_secs(60)).expect("it waits for itself");
    }
}
