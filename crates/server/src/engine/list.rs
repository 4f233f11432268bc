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

impl Engine {
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
        let room = Arc::new(AtomicUsize::new(bytes));
        let mut replies = Vec::with_capacity(self.partitions());
        self.shared.submit_routed(|routes| {
            let items = items.into_iter().enumerate().map(|(place, item)| {
                let (partition, command) = route(routes, item);
                (partition, place, command)
            });
            let start = |part: Part<usize>| {
                let (sender, receiver) = oneshot::channel();
                replies.push((part.tags, receiver));
                let (room, omitted) = (Arc::clone(&room), Vec::new());
                let reply: Reply = Box::new(Within { room, omitted, sender });
                (part.partition, part.commands, reply)
            };
            route::split(routes.partitions(), items).into_iter().map(start).collect()
        });
        let mut outcomes: Vec<Option<(Outcome, Omitted)>> = Vec::new();
        outcomes.resize_with(count, || None);
        for (places, reply) in replies {
            let (part, omitted) = reply.await.map_err(|_| Stopped::silent())??;
            for (place, told) in places.into_iter().zip(part.into_iter().zip(omitted)) {
                if let Some(slot) = outcomes.get_mut(place) {
                    *slot = Some(told);
                }
            }
        }
        outcomes.into_iter().map(|outcome| outcome.ok_or_else(Stopped::silent)).collect()
    }
}

type Told = Result<(Vec<Outcome>, Vec<Omitted>), Stopped>;

/// Keeps results as long as there is room for them.
struct Within {
    room: Arc<AtomicUsize>,
    /// Of the outcomes that were seen.
    omitted: Vec<Omitted>,
    sender: oneshot::Sender<Told>,
}

impl Replies for Within {
    fn see(&mut self, outcomes: &mut [Outcome]) {
        for outcome in outcomes.iter_mut().skip(self.omitted.len()) {
            let result = result_of(outcome);
            let kept = result.as_ref().and_then(|result| result.as_ref());
            let bytes = kept.map_or(0, |blob| blob.body.len());
            let take = |room: usize| room.checked_sub(bytes);
            let has_room = self.room.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
            let omitted = has_room.is_err();
            if omitted && let Some(result) = result {
                *result = None;
            }
            self.omitted.push(omitted);
        }
    }

    fn call(mut self: Box<Self>, outcomes: Outcomes) {
        let told = outcomes.map(|mut outcomes| {
            self.see(&mut outcomes);
            (outcomes, std::mem::take(&mut self.omitted))
        });
        drop(self.sender.send(told));
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

    #[test]
    fn results_beyond_the_room_are_taken_out_as_they_come() {
        let room = Arc::new(AtomicUsize::new(100));
        let (sender, mut receiver) = oneshot::channel();
        let mut reply = Box::new(Within { room: Arc::clone(&room), omitted: Vec::new(), sender });
        let mut outcomes = vec![done(60), done(60), done(30)];
        reply.see(&mut outcomes);
        assert_eq!(kept(&mut outcomes), [60, 0, 30]);
        // Another partition answers the same list.
        let (other, mut told) = oneshot::channel();
        let other = Box::new(Within { room, omitted: Vec::new(), sender: other });
        other.call(Ok(vec![done(20), done(10)]));
        let (mut part, omitted) = told.try_recv().unwrap().unwrap();
        assert_eq!((kept(&mut part), omitted), (vec![0, 10], vec![true, false]));
        // What was seen before is not weighed again.
        outcomes.extend([done(1), done(0), Outcome::Ok]);
        reply.call(Ok(outcomes));
        let (mut all, omitted) = receiver.try_recv().unwrap().unwrap();
        assert_eq!(kept(&mut all), [60, 0, 30, 0, 0]);
        assert_eq!(omitted, [false, true, false, true, false, false]);
    }
}
