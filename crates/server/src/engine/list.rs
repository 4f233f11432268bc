//! Lists of commands, for several partitions at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hapax_core::{Answer, Blob, Command, Outcome, Settled};
use hapax_partition::route::{self, Part, Routes};
use tokio::sync::oneshot;

use super::inbox::{Outcomes, Replies, Reply};
use super::{Engine, Stopped};

/// Whether the result of an answer was left out, since there was no room for it.
pub type Omitted = bool;

/// Memory for results that a caller has not taken yet.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
    free: AtomicUsize,
    /// One result has room whatever its size, where there is no other.
    takes_one: bool,
}

impl Room {
    /// For the results of one list.
    fn of_list(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, free: AtomicUsize::new(bytes), takes_one: false })
    }

    /// For the results of a stream, which gives room back as they leave.
    pub fn of_stream(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, free: AtomicUsize::new(bytes), takes_one: true })
    }

    fn take(&self, bytes: usize) -> bool {
        let rest = |free: usize| match free.checked_sub(bytes) {
            None if self.takes_one && free == self.bytes => Some(0),
            rest => rest,
        };
        bytes == 0 || self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest).is_ok()
    }

    /// A result of so many bytes has left.
    pub fn give_back(&self, bytes: usize) {
        let more = |free: usize| Some(free.saturating_add(bytes).min(self.bytes));
        if bytes > 0 {
            let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        }
    }
}

/// Outcomes of one list, and the places of those whose results were left out.
#[derive(Debug)]
pub struct Kept {
    pub outcomes: Vec<Outcome>,
    pub omitted: Vec<usize>,
}

impl Engine {
    /// Hands commands to a partition, as [`Engine::submit`] does, with the results that have room.
    pub fn submit_within(
        &self,
        partition: usize,
        commands: Vec<Command>,
        room: &Arc<Room>,
        reply: impl FnOnce(Result<Kept, Stopped>) + Send + 'static,
    ) {
        self.shared.submit(partition, commands, Within::boxed(room, reply));
    }

    /// Sends messages, each to its partition, with the results that have room. `reply` is called
    /// once for each part of them, with what the caller knows them by, as in [`Engine::submit`].
    pub fn submit_sends<T: Send + 'static>(
        &self,
        sends: Vec<(T, hapax_core::Send)>,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Kept, Stopped>) + Clone + Send + 'static,
    ) {
        self.shared.submit_routed(|routes| {
            let items = sends.into_iter().map(|(tag, send)| {
                let partition = routes.of_send(&send, || self.shared.turn());
                (partition, tag, Command::Send(send))
            });
            let start = |Part { partition, tags, commands }| {
                let reply = reply.clone();
                (partition, commands, Within::boxed(room, move |kept| reply(tags, kept)))
            };
            route::split(routes.partitions(), items).into_iter().map(start).collect()
        });
    }

    /// Commands to several partitions at once; the outcomes are in the order of the commands.
    pub(super) async fn call_each<T>(
        &self,
        items: Vec<T>,
        route: impl Fn(&Routes, T) -> (usize, Command),
    ) -> Result<Vec<Outcome>, Stopped> {
        let told = self.call_within(usize::MAX, items, route).await?;
        Ok(told.into_iter().map(|(outcome, _)| outcome).collect())
    }

    /// The same, with the results that have room together. They are taken out as they come from
    /// the partitions, which tell large answers in parts: all of them are never in memory at once.
    pub(super) async fn call_within<T>(
        &self,
        bytes: usize,
        items: Vec<T>,
        route: impl Fn(&Routes, T) -> (usize, Command),
    ) -> Result<Vec<(Outcome, Omitted)>, Stopped> {
        let count = items.len();
        let room = Room::of_list(bytes);
        let mut replies = Vec::with_capacity(self.partitions());
        self.shared.submit_routed(|routes| {
            let items = items.into_iter().enumerate().map(|(place, item)| {
                let (partition, command) = route(routes, item);
                (partition, place, command)
            });
            let start = |part: Part<usize>| {
                let (sender, receiver) = oneshot::channel();
                replies.push((part.tags, receiver));
                let reply = Within::boxed(&room, move |kept| drop(sender.send(kept)));
                (part.partition, part.commands, reply)
            };
            route::split(routes.partitions(), items).into_iter().map(start).collect()
        });
        let mut outcomes: Vec<Option<(Outcome, Omitted)>> = Vec::new();
        outcomes.resize_with(count, || None);
        for (places, reply) in replies {
            let part = reply.await.map_err(|_| Stopped::silent())??;
            let mut omitted = part.omitted.into_iter().peekable();
            for (index, (place, outcome)) in places.into_iter().zip(part.outcomes).enumerate() {
                let is_omitted = omitted.next_if_eq(&index).is_some();
                if let Some(slot) = outcomes.get_mut(place) {
                    *slot = Some((outcome, is_omitted));
                }
            }
        }
        outcomes.into_iter().map(|outcome| outcome.ok_or_else(Stopped::silent)).collect()
    }
}

/// Keeps results as long as there is room for them, and hands over the outcomes.
pub(super) struct Within<F> {
    room: Arc<Room>,
    /// How many outcomes were seen.
    seen: usize,
    omitted: Vec<usize>,
    reply: F,
}

impl<F: FnOnce(Result<Kept, Stopped>) + Send + 'static> Within<F> {
    pub(super) fn boxed(room: &Arc<Room>, reply: F) -> Reply {
        Box::new(Self { room: Arc::clone(room), seen: 0, omitted: Vec::new(), reply })
    }
}

impl<F: FnOnce(Result<Kept, Stopped>) + Send> Replies for Within<F> {
    fn see(&mut self, outcomes: &mut [Outcome]) {
        for (place, outcome) in outcomes.iter_mut().enumerate().skip(self.seen) {
            let Some(result) = result_of(outcome) else { continue };
            let bytes = result.as_ref().map_or(0, |blob| blob.body.len());
            if !self.room.take(bytes) {
                *result = None;
                self.omitted.push(place);
            }
        }
        self.seen = outcomes.len();
    }

    fn call(mut self: Box<Self>, outcomes: Outcomes) {
        let kept = outcomes.map(|mut outcomes| {
            self.see(&mut outcomes);
            Kept { outcomes, omitted: std::mem::take(&mut self.omitted) }
        });
        (self.reply)(kept);
    }
}

/// The result that an answer carries.
fn result_of(outcome: &mut Outcome) -> Option<&mut Option<Blob>> {
    match outcome {
        Outcome::Sent(Answer::Done(finished)) | Outcome::Claimed(Answer::Done(finished)) => {
            Some(&mut finished.result)
        }
        Outcome::Settled(Settled::LeaseLost { result, .. }) => Some(result),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{Finished, MessageId, Time};

    fn done(bytes: usize) -> Outcome {
        let result = Blob { content_type: None, body: vec![b'x'; bytes].into() };
        let (id, at) = (MessageId::new(Time(1), 0, 1), Time(1));
        Outcome::Sent(Answer::Done(Box::new(Finished {
            id,
            accepted_at: at,
            finished_at: at,
            remembered_until: at,
            attempts: 1,
            result: Some(result),
        })))
    }

    fn kept(outcomes: &mut [Outcome]) -> Vec<usize> {
        let results = outcomes.iter_mut().filter_map(result_of);
        results.map(|it| it.as_ref().map_or(0, |blob| blob.body.len())).collect()
    }

    type Told = Arc<std::sync::Mutex<Option<Kept>>>;

    fn within(room: &Arc<Room>) -> (Reply, Told) {
        let told = Told::default();
        let keep = Arc::clone(&told);
        (Within::boxed(room, move |kept| *keep.lock().unwrap() = Some(kept.unwrap())), told)
    }

    fn taken(told: &Told) -> (Vec<usize>, Vec<usize>) {
        let mut told = told.lock().unwrap().take().unwrap();
        (kept(&mut told.outcomes), told.omitted)
    }

    #[test]
    fn results_beyond_the_room_are_taken_out_as_they_come() {
        let room = Room::of_list(100);
        let (mut reply, told) = within(&room);
        let mut outcomes = vec![done(60), done(60), done(30)];
        reply.see(&mut outcomes);
        assert_eq!(kept(&mut outcomes), [60, 0, 30]);
        // Another partition answers the same list.
        let (other, others) = within(&room);
        other.call(Ok(vec![done(20), done(10)]));
        assert_eq!(taken(&others), (vec![0, 10], vec![0]));
        // What was seen before is not weighed again.
        outcomes.extend([done(1), done(0), Outcome::Ok]);
        reply.call(Ok(outcomes));
        assert_eq!(taken(&told), (vec![60, 0, 30, 0, 0], vec![1, 3]));
    }

    #[test]
    fn a_result_larger_than_the_room_is_kept_where_it_is_the_only_one() {
        let room = Room::of_stream(100);
        let (reply, told) = within(&room);
        reply.call(Ok(vec![done(500), done(1)]));
        assert_eq!(taken(&told), (vec![500, 0], vec![1]));
        room.give_back(500);
        let (reply, told) = within(&room);
        reply.call(Ok(vec![done(1), done(500), done(99)]));
        assert_eq!(taken(&told), (vec![1, 0, 99], vec![1]));
    }
}
