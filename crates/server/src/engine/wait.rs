//! Waiting for messages, and for the end of a key. A waiter is woken and never polls. If it is
//! cancelled while messages are being leased for it, they are given back without counting as an
//! attempt.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax_core::{
    Command, Delivery, KeyName, KeyView, Outcome, Receive, Refusal, Settle, Verb, limits,
};
use hapax_partition::route::{self, LEADER};
use hapax_partition::wait::{Turn, Waiter, has_ended};
use tokio::sync::oneshot;

use super::inbox::{Ask, Outcomes, Reply};
use super::{Engine, Shared, Stopped};

/// How often a caller whose wait timed out checks whether its answer is on its way.
const GIVE_UP: Duration = Duration::from_millis(5);

impl Engine {
    /// Takes messages of a queue, waiting for the first one.
    pub async fn receive(
        &self,
        receive: Receive,
        wait: Duration,
    ) -> Result<Result<Vec<Delivery>, Refusal>, Stopped> {
        if self.is_draining() {
            return Ok(Ok(Vec::new()));
        }
        let only = self.shared.routes().of_receive(&receive);
        match only {
            Some(partition) if wait.is_zero() => self.receive_now(partition, receive).await,
            Some(partition) => self.receive_at(partition..partition + 1, receive, wait).await,
            None => self.receive_anywhere(receive, wait).await,
        }
    }

    /// Releases messages, without counting an attempt, that their caller never got.
    pub(crate) fn give_back(&self, messages: Vec<Delivery>) {
        drop(Parcel::new(&self.shared, None, messages));
    }

    async fn receive_anywhere(
        &self,
        receive: Receive,
        wait: Duration,
    ) -> Result<Result<Vec<Delivery>, Refusal>, Stopped> {
        let (count, first) = (self.partitions(), self.shared.turn());
        let (mut parcel, mut bytes) =
            (Parcel::new(&self.shared, receive.receive_id.clone(), Vec::new()), 0);
        for partition in (first..first + count).map(|partition| partition % count) {
            let max = receive.max.saturating_sub(parcel.messages.len() as u32);
            // Each partition respects the bound; together they must too.
            if max == 0 || bytes >= limits::RECEIVE_BYTES_MAX {
                break;
            }
            match self.receive_now(partition, Receive { max, ..receive.clone() }).await? {
                Ok(more) => {
                    bytes += more.iter().map(|it| it.content.size()).sum::<usize>();
                    parcel.messages.extend(more);
                }
                Err(refusal) if partition == LEADER && parcel.messages.is_empty() => {
                    return Ok(Err(refusal));
                }
                Err(_) => {} // Being created or deleted: the leader knows.
            }
        }
        if !parcel.messages.is_empty() || wait.is_zero() {
            return Ok(Ok(parcel.open()));
        }
        self.receive_at(0..count, receive, wait).await
    }

    async fn receive_now(
        &self,
        partition: usize,
        receive: Receive,
    ) -> Result<Result<Vec<Delivery>, Refusal>, Stopped> {
        let (reply, receiver) = Deliverer::new(&self.shared, &receive).reply();
        self.shared.submit(partition, vec![Command::Receive(receive)], reply);
        Ok(receiver.await.map_err(|_| Stopped::silent())??.map(Parcel::open))
    }

    /// Waits at several partitions for the first that has something.
    async fn receive_at(
        &self,
        partitions: std::ops::Range<usize>,
        receive: Receive,
        wait: Duration,
    ) -> Result<Result<Vec<Delivery>, Refusal>, Stopped> {
        let turn = Turn::default();
        let hand = Deliverer::new(&self.shared, &receive);
        let (first, receiver) = hand.clone().reply();
        let mut first = Some(first);
        for partition in partitions {
            let reply = first.take().unwrap_or_else(|| hand.again());
            let waiter = Waiter::receive(receive.clone(), turn.clone(), reply);
            self.shared.push(partition, Ask::Wait(Box::new(waiter)));
        }
        match self.until(receiver, &turn, wait).await {
            Some(received) => Ok(received??.map(Parcel::open)),
            None => Ok(Ok(Vec::new())),
        }
    }

    /// A key, as soon as its message is done, dead or parked, or the time is over.
    pub async fn look(
        &self,
        key: KeyName,
        wait: Duration,
    ) -> Result<Result<KeyView, Refusal>, Stopped> {
        let mut found = Err(Refusal::NoSuchKey);
        let partitions = self.shared.routes().of_key(&key);
        for partition in partitions {
            found = looked(self.call(partition, Command::Look(key.clone())).await?)?;
            match &found {
                Ok(view) if !has_ended(view.place) && !wait.is_zero() => {
                    return self.look_at(partition, key, wait).await;
                }
                Err(Refusal::NoSuchKey) => {}
                _ => return Ok(found),
            }
        }
        Ok(found)
    }

    async fn look_at(
        &self,
        partition: usize,
        key: KeyName,
        wait: Duration,
    ) -> Result<Result<KeyView, Refusal>, Stopped> {
        let turn = Turn::default();
        let (sender, receiver) = oneshot::channel();
        let reply: Reply = Box::new(move |outcomes: Outcomes| drop(sender.send(outcomes)));
        let waiter = Waiter::look(key.clone(), turn.clone(), reply);
        self.shared.push(partition, Ask::Wait(Box::new(waiter)));
        if let Some(outcomes) = self.until(receiver, &turn, wait).await {
            let outcome = outcomes??.pop().ok_or_else(Stopped::silent)?;
            return looked(outcome);
        }
        looked(self.call(partition, Command::Look(key)).await?)
    }

    /// The answer, or `None` after the timeout.
    async fn until<T>(
        &self,
        mut receiver: oneshot::Receiver<T>,
        turn: &Turn,
        wait: Duration,
    ) -> Option<Result<T, Stopped>> {
        let leaving = GiveUpOnDrop(turn);
        let mut left = wait;
        loop {
            match tokio::time::timeout(left, &mut receiver).await {
                Ok(outcomes) => {
                    std::mem::forget(leaving);
                    return Some(outcomes.map_err(|_| Stopped::silent()));
                }
                Err(_) if turn.give_up() => return None,
                Err(_) => left = GIVE_UP,
            }
        }
    }
}

/// Gives the turn up when the caller goes away.
struct GiveUpOnDrop<'a>(&'a Turn);

impl Drop for GiveUpOnDrop<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Messages for a waiting caller. If the caller went away they are released without counting an
/// attempt. Under a `receive_id` they stay leased: a repeated receive may hold them already.
struct Parcel {
    shared: Arc<Shared>,
    id: Option<Arc<str>>,
    messages: Vec<Delivery>,
}

impl Parcel {
    fn new(shared: &Arc<Shared>, id: Option<Arc<str>>, messages: Vec<Delivery>) -> Self {
        Self { shared: Arc::clone(shared), id, messages }
    }

    fn open(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.messages)
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if self.id.is_some() {
            return;
        }
        let messages = std::mem::take(&mut self.messages).into_iter();
        let releases = messages.map(|message| {
            let settle = Settle { lease: message.lease, verb: Verb::Release };
            (usize::from(message.id.partition()), (), Command::Settle(settle))
        });
        if releases.len() > 0 {
            for part in route::split(self.shared.partitions(), releases) {
                self.shared.submit(part.partition, part.commands, Box::new(|_| {}));
            }
        }
    }
}

type Received = Result<Result<Parcel, Refusal>, Stopped>;

/// Passes messages to a waiting caller.
#[derive(Clone)]
struct Deliverer {
    shared: Arc<Shared>,
    /// The id of the receive.
    id: Option<Arc<str>>,
    sender: Arc<Mutex<Option<oneshot::Sender<Received>>>>,
}

impl Deliverer {
    fn new(shared: &Arc<Shared>, receive: &Receive) -> Self {
        let (shared, id) = (Arc::clone(shared), receive.receive_id.clone());
        Self { shared, id, sender: Arc::default() }
    }

    fn reply(self) -> (Reply, oneshot::Receiver<Received>) {
        let (sender, receiver) = oneshot::channel();
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        (self.again(), receiver)
    }

    /// A copy for another partition. Only the holder of the turn uses it.
    fn again(&self) -> Reply {
        let hand = self.clone();
        Box::new(move |outcomes: Outcomes| hand.give(outcomes))
    }

    fn give(self, outcomes: Outcomes) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pack = |list| Parcel::new(&self.shared, self.id.clone(), list);
        let received = received(outcomes).map(|told| told.map(pack));
        if let Some(sender) = sender {
            drop(sender.send(received)); // If it does not arrive, its messages are released.
        }
    }
}

fn received(outcomes: Outcomes) -> Result<Result<Vec<Delivery>, Refusal>, Stopped> {
    match outcomes?.pop() {
        Some(Outcome::Received(messages)) => Ok(Ok(messages)),
        Some(Outcome::Refused(refusal)) => Ok(Err(refusal)),
        _ => Err(Stopped::silent()),
    }
}

fn looked(outcome: Outcome) -> Result<Result<KeyView, Refusal>, Stopped> {
    match outcome {
        Outcome::Key(view) => Ok(Ok(*view)),
        Outcome::Refused(refusal) => Ok(Err(refusal)),
        _ => Err(Stopped::silent()),
    }
}
