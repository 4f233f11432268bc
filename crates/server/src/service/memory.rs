//! Memory for requests in flight, shared between tenants.
//!
//! A request takes memory as its bytes arrive and gives it back when it is answered. A tenant may
//! hold no more than what is left free: one tenant alone gets half, two a third each, and the next
//! one always finds some. Requests of up to [`SMALL_BYTES`] have their own lane, which large ones
//! never use.
//!
//! Requests that are partly read could wait for each other for ever. So one waiting request, of the
//! tenant that holds least, may exceed its share: memory exceeds its bound by at most that one
//! request.
//!
//! Invariants: what is free and what tenants hold add up to the lane's size; a waiter is either in
//! the list of its tenant or granted, never both.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

/// Requests up to this size use the lane for small ones.
const SMALL_BYTES: usize = 64 * 1_024;
/// The lane for small requests is this part of the whole.
const SMALL_PART: usize = 8;
/// A request that asks for more than this part of its lane at once may need more than its share.
const LARGE_PART: usize = 4;

/// The memory of all requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    lanes: [Lane; 2],
    /// The tenants that hold memory or wait for it.
    tenants: HashMap<Arc<str>, Tenant>,
    waiting: usize,
    /// Numbers requests and waiters, in order of arrival.
    next: u64,
    /// The request that may exceed its tenant's share.
    exempt: Option<u64>,
}

/// Below zero while a request exceeds its share.
#[derive(Clone, Copy, Debug)]
struct Lane {
    bytes: i64,
    free: i64,
}

#[derive(Debug, Default)]
struct Tenant {
    held: Bytes,
    waiting: [VecDeque<Waiter>; 2],
}

/// Bytes of the two lanes.
type Bytes = [i64; 2];

const SMALL: usize = 0;
const LARGE: usize = 1;

#[derive(Debug)]
struct Waiter {
    /// Its position among the waiters.
    number: u64,
    request: u64,
    bytes: i64,
    /// It is partly read, or too large for any share: it may be made exempt.
    may_exceed: bool,
    granted: oneshot::Sender<Admitted>,
}

/// Memory that a request holds, given back when it is dropped.
#[derive(Debug)]
pub struct Admitted {
    memory: Memory,
    tenant: Arc<str>,
    request: u64,
    held: Bytes,
    /// More memory that was requested and not granted yet.
    waiting: Option<oneshot::Receiver<Admitted>>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let small = bytes / SMALL_PART as i64;
        let lane = |bytes| Lane { bytes, free: bytes };
        Self(Arc::new(Mutex::new(State {
            lanes: [lane(small), lane(bytes - small)],
            tenants: HashMap::new(),
            waiting: 0,
            next: 0,
            exempt: None,
        })))
    }

    /// A request that holds nothing yet.
    pub(crate) fn request(&self, tenant: &Arc<str>) -> Admitted {
        let request = self.lock().number();
        self.holding(tenant, request, [0, 0])
    }

    fn holding(&self, tenant: &Arc<str>, request: u64, held: Bytes) -> Admitted {
        let (memory, tenant) = (self.clone(), Arc::clone(tenant));
        Admitted { memory, tenant, request, held, waiting: None }
    }

    /// Grants what can be granted now. A grant that its waiter no longer takes returns itself when
    /// dropped, so nothing may be dropped while the state is locked.
    fn serve(&self) {
        let mut granted = Vec::new();
        let mut cancelled = Vec::new();
        let mut state = self.lock();
        while state.waiting > 0
            && let Some((tenant, waiter, lane)) = state.next_waiter(&mut cancelled)
        {
            let mut held = [0, 0];
            take(&mut held, lane, waiter.bytes);
            granted.push((waiter.granted, self.holding(&tenant, waiter.request, held)));
        }
        drop(state);
        drop(cancelled);
        for (waiter, admitted) in granted {
            drop(waiter.send(admitted));
        }
    }

    fn give_back(&self, tenant: &Arc<str>, request: u64, held: Bytes) {
        let mut state = self.lock();
        for (lane, bytes) in state.lanes.iter_mut().zip(held) {
            lane.free += bytes;
            debug_assert!(lane.free <= lane.bytes, "more was given back than taken");
        }
        if let Some(known) = state.tenants.get_mut(tenant) {
            for (own, bytes) in known.held.iter_mut().zip(held) {
                *own -= bytes;
                debug_assert!(*own >= 0, "a tenant gives back what it holds");
            }
            state.forget_if_idle(tenant);
        }
        if state.exempt == Some(request) {
            state.exempt = None;
        }
        let is_waited_for = state.waiting > 0;
        drop(state);
        if is_waited_for {
            self.serve();
        }
    }

    /// Whether all of it is free.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        let state = self.lock();
        let is_free = state.lanes.iter().all(|lane| lane.free == lane.bytes);
        is_free && state.waiting == 0 && state.exempt.is_none() && state.tenants.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half-way: the state is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether the tenant still holds no more than is left free when it has taken this much.
    fn fits(&self, held: Bytes, lane: usize, bytes: i64) -> bool {
        let free = self.lanes.get(lane).map_or(0, |lane| lane.free) - bytes;
        held.get(lane).copied().unwrap_or(0) + bytes <= free
    }

    /// Takes the memory at once, if no request of the tenant waits for the same lane.
    fn try_take(
        &mut self,
        tenant: &Arc<str>,
        request: u64,
        first: usize,
        bytes: i64,
    ) -> Option<usize> {
        let known = self.tenants.get(tenant);
        let held = known.map_or([0, 0], |known| known.held);
        let is_free = |lane: usize| {
            known.and_then(|known| known.waiting.get(lane)).is_none_or(VecDeque::is_empty)
                && self.fits(held, lane, bytes)
        };
        let is_exempt = self.exempt == Some(request);
        let lane = (first..=LARGE).find(|lane| is_free(*lane)).or(is_exempt.then_some(LARGE))?;
        self.hold(tenant, lane, bytes);
        Some(lane)
    }

    fn hold(&mut self, tenant: &Arc<str>, lane: usize, bytes: i64) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.free -= bytes;
        }
        if !self.tenants.contains_key(tenant) {
            self.tenants.insert(Arc::clone(tenant), Tenant::default());
        }
        if let Some(known) = self.tenants.get_mut(tenant) {
            take(&mut known.held, lane, bytes);
        }
    }

    /// Takes memory for the next waiter that can be served: the oldest that fits, or one that may
    /// exceed its share. Cancelled waiters are moved to `cancelled`.
    fn next_waiter(&mut self, cancelled: &mut Vec<Waiter>) -> Option<(Arc<str>, Waiter, usize)> {
        let mut oldest: Option<(u64, Arc<str>, usize)> = None;
        let mut exempt: Option<((i64, u64), Arc<str>, usize)> = None;
        let tenants: Vec<Arc<str>> = self.tenants.keys().cloned().collect();
        for tenant in tenants {
            for lane in [SMALL, LARGE] {
                self.skip_cancelled(&tenant, lane, cancelled);
                let Some(known) = self.tenants.get(&tenant) else { continue };
                let Some(head) = known.waiting.get(lane).and_then(VecDeque::front) else {
                    continue;
                };
                if self.fits(known.held, lane, head.bytes)
                    && oldest.as_ref().is_none_or(|(number, ..)| head.number < *number)
                {
                    oldest = Some((head.number, Arc::clone(&tenant), lane));
                }
                let rank = (known.held.iter().sum(), head.number);
                if head.may_exceed && exempt.as_ref().is_none_or(|(other, ..)| rank < *other) {
                    exempt = Some((rank, Arc::clone(&tenant), lane));
                }
            }
            self.forget_if_idle(&tenant);
        }
        let is_exempt = oldest.is_none();
        let exempt =
            exempt.filter(|_| self.exempt.is_none()).map(|(_, tenant, lane)| (tenant, lane));
        let (tenant, lane) = oldest.map(|(_, tenant, lane)| (tenant, lane)).or(exempt)?;
        let waiter = self.tenants.get_mut(&tenant)?.waiting.get_mut(lane)?.pop_front()?;
        self.waiting -= 1;
        if is_exempt {
            self.exempt = Some(waiter.request);
        }
        self.hold(&tenant, lane, waiter.bytes);
        Some((tenant, waiter, lane))
    }

    fn skip_cancelled(&mut self, tenant: &Arc<str>, lane: usize, cancelled: &mut Vec<Waiter>) {
        let known = self.tenants.get_mut(tenant);
        let Some(list) = known.and_then(|known| known.waiting.get_mut(lane)) else { return };
        while let Some(waiter) = list.pop_front_if(|waiter| waiter.granted.is_closed()) {
            cancelled.push(waiter);
            self.waiting -= 1;
        }
    }

    fn forget_if_idle(&mut self, tenant: &Arc<str>) {
        let is_idle =
            |known: &Tenant| known.held == [0, 0] && known.waiting.iter().all(VecDeque::is_empty);
        if self.tenants.get(tenant).is_some_and(is_idle) {
            self.tenants.remove(tenant);
        }
    }
}

impl Admitted {
    /// Waits for more memory.
    pub(crate) async fn take(&mut self, bytes: usize) {
        poll_fn(|context| self.poll_take(context, bytes)).await;
    }

    /// As [`Admitted::take`]: to be called with the same number of bytes until it is ready.
    pub(crate) fn poll_take(&mut self, context: &mut Context<'_>, bytes: usize) -> Poll<()> {
        if self.waiting.is_none() {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            match self.ask(bytes) {
                Some(lane) => {
                    take(&mut self.held, lane, bytes);
                    return Poll::Ready(());
                }
                None => self.memory.serve(), // It may be the one that may exceed its share.
            }
        }
        let Some(waiting) = &mut self.waiting else { return Poll::Ready(()) };
        let granted = ready!(Pin::new(waiting).poll(context));
        self.waiting = None;
        // The memory outlives its waiters: it is never dropped without an answer.
        if let Ok(mut granted) = granted {
            let held = std::mem::take(&mut granted.held);
            self.held.iter_mut().zip(held).for_each(|(own, more)| *own += more);
        }
        Poll::Ready(())
    }

    /// Takes so much more memory for something that may hold it for long, if it is there now. The
    /// tenant keeps a part of its share for requests that others wait for.
    pub(crate) fn try_take(&mut self, bytes: usize) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let first = self.first_lane(bytes);
        let mut state = self.memory.lock();
        let held = state.tenants.get(&self.tenant).map_or([0, 0], |known| known.held);
        let lane = (first..=LARGE).find(|lane| {
            let own = held.get(*lane).copied().unwrap_or(0);
            state.fits(held, *lane, bytes.saturating_add((own + bytes) / 2))
        });
        if let Some(lane) = lane {
            state.hold(&self.tenant, lane, bytes);
            take(&mut self.held, lane, bytes);
        }
        lane.is_some()
    }

    /// The lane of the request with so much more.
    fn first_lane(&self, bytes: i64) -> usize {
        let total = self.held.iter().sum::<i64>() + bytes;
        if total <= SMALL_BYTES as i64 { SMALL } else { LARGE }
    }

    /// Takes the memory at once and returns its lane, or waits for it.
    fn ask(&mut self, bytes: i64) -> Option<usize> {
        let first = self.first_lane(bytes);
        let mut state = self.memory.lock();
        let total = self.held.iter().sum::<i64>() + bytes;
        if let Some(lane) = state.try_take(&self.tenant, self.request, first, bytes) {
            return Some(lane);
        }
        let (sender, receiver) = oneshot::channel();
        let lane_bytes = state.lanes.get(first).map_or(0, |lane| lane.bytes);
        let number = state.number();
        let waiter = Waiter {
            number,
            request: self.request,
            bytes,
            may_exceed: total > bytes || bytes > lane_bytes / LARGE_PART as i64,
            granted: sender,
        };
        let known = state.tenants.entry(Arc::clone(&self.tenant)).or_default();
        if let Some(list) = known.waiting.get_mut(first) {
            list.push_back(waiter);
            state.waiting += 1;
        }
        self.waiting = Some(receiver);
        None
    }

    /// Splits off this much of it, or all there is.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let mut left = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut parted = [0, 0];
        for (own, part) in self.held.iter_mut().zip(&mut parted) {
            *part = left.min(*own);
            *own -= *part;
            left -= *part;
        }
        // The frame is whole: it cannot wait for more any more.
        let mut state = self.memory.lock();
        if state.exempt == Some(self.request) {
            state.exempt = None;
        }
        let request = state.number();
        drop(state);
        self.memory.holding(&self.tenant, request, parted)
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.held.iter().sum::<i64>() as usize
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let was_waiting = self.waiting.take().is_some();
        if self.held != [0, 0] || was_waiting {
            // Also where it only waited: others waited behind it.
            self.memory.give_back(&self.tenant, self.request, self.held);
        }
    }
}

fn take(held: &mut Bytes, lane: usize, bytes: i64) {
    if let Some(own) = held.get_mut(lane) {
        *own += bytes;
    }
}

#[cfg(test)]
mod tests;
