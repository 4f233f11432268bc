//! Dispatches commands to the partitions and joins their outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hapax_core::{Answer, Blob, Command, Outcome, Settled};
use hapax_partition::route::{self, Part, Routes};
use tokio::sync::mpsc;

use super::inbox::{Outcomes, Replies, Reply};
use super::{Engine, Stopped};

/// Whether the result of an answer was left out because it did not fit.
pub type Omitted = bool;

/// Memory for results that a caller has not taken yet.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
    free: AtomicUsize,
    /// Whether one result fits whatever its size, if there is no other.
    takes_one: bool,
}

impl Room {
    /// A budget for the results of one list.
    pub fn of_list(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, free: AtomicUsize::new(bytes), takes_one: false })
    }

    /// A budget for the results of a stream, which is returned as they are read.
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

    /// Returns the bytes of a result that was read.
    pub fn give_back(&self, bytes: usize) {
        let more = |free: usize| Some(free.saturating_add(bytes).min(self.bytes));
        if bytes > 0 {
            let _ = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        }
    }
}

/// Outcomes of a list of commands, and the indexes of those whose results were left out.
#[derive(Clone, Debug)]
pub struct Listed {
    pub outcomes: Vec<Outcome>,
    pub omitted: Vec<usize>,
}

/// Commands, each with its caller's tag.
#[derive(Debug)]
pub struct List<T> {
    pub tags: Vec<T>,
    pub commands: Vec<Command>,
}

impl<T> List<T> {
    pub fn push(&mut self, tag: T, command: Command) {
        self.tags.push(tag);
        self.commands.push(command);
    }

    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { tags: Vec::new(), commands: Vec::new() }
    }
}

/// The partitions of the commands of a list.
#[derive(Clone, Debug)]
pub enum To {
    /// The partition of the message in each command.
    Key,
    /// One for each command.
    Partitions(Vec<u16>),
}

impl Engine {
    /// Sends commands to their partitions; the only way to do so. Splits a list, and submits the
    /// parts before the routes can change. `reply` is called once for each part, on its writer's
    /// thread, when it is durable or the partition failed, with the tags of its commands. It must
    /// not block.
    pub fn dispatch<T: Send + 'static>(
        &self,
        list: List<T>,
        to: &To,
        room: &Arc<Room>,
        reply: impl Fn(Vec<T>, Result<Listed, Stopped>) + Clone + Send + 'static,
    ) {
        if list.is_empty() {
            return;
        }
        self.shared.submit_routed(|routes| {
            let start = |Part { partition, tags, commands }| {
                let reply = reply.clone();
                (partition, commands, Within::boxed(room, move |listed| reply(tags, listed)))
            };
            if routes.partitions() == 1 {
                let List { tags, commands } = list; // The list as it is.
                return vec![start(Part { partition: route::LEADER, tags, commands })];
            }
            self.split(list, to, routes).into_iter().map(start).collect()
        });
    }

    fn split<T>(&self, list: List<T>, to: &To, routes: &Routes) -> Vec<Part<T>> {
        assert_eq!(list.tags.len(), list.commands.len(), "a caller knows each command by a tag");
        let mut commands = list.commands;
        let places: Vec<usize> = match to {
            To::Partitions(partitions) => partitions.iter().copied().map(usize::from).collect(),
            To::Key => commands.iter().map(|command| self.place(command, routes)).collect(),
        };
        assert_eq!(places.len(), commands.len(), "every command has a partition");
        let items = places.into_iter().zip(list.tags).zip(commands.drain(..));
        let items = items.map(|((partition, tag), command)| (partition, tag, command));
        let parts = route::split(routes.partitions(), items);
        self.shared.spare.commands.give(commands);
        parts
    }

    fn place(&self, command: &Command, routes: &Routes) -> usize {
        let turn = || self.shared.turn();
        match command {
            Command::Send(it) => routes.of_new(&it.queue, it.digest, &it.content, turn),
            Command::Claim(it) => routes.of_new(&it.queue, it.digest, &it.content, turn),
            other => unreachable!("{other:?} brings no message"),
        }
    }

    /// An empty list for commands; a writer returns it when they are decided.
    pub fn empty_list<T>(&self) -> List<T> {
        List { tags: Vec::new(), commands: self.shared.spare.commands.take() }
    }

    /// Takes back the memory of outcomes that were read.
    pub fn reuse(&self, outcomes: Vec<Outcome>) {
        self.shared.spare.outcomes.give(outcomes);
    }

    /// Commands to their partitions; the outcomes are in the order of the commands.
    pub async fn ask(&self, commands: Vec<Command>, to: To) -> Result<Vec<Outcome>, Stopped> {
        let count = commands.len();
        let list = List { tags: (0..count).collect(), commands };
        let outcomes = gather(count, |parts| {
            let reply = move |places, outcomes| drop(parts.send((places, outcomes)));
            self.dispatch(list, &to, &Room::of_list(usize::MAX), reply);
        });
        Ok(outcomes.await?.into_iter().map(|(outcome, _)| outcome).collect())
    }
}

/// Takes the parts of a list's outcomes, each with their indexes in the list.
pub(crate) type Parts<E> = mpsc::UnboundedSender<(Vec<usize>, Result<Listed, E>)>;

/// Starts something that is answered in parts, and puts the outcomes in order.
pub(crate) async fn gather<E: From<Stopped>>(
    count: usize,
    start: impl FnOnce(Parts<E>),
) -> Result<Vec<(Outcome, Omitted)>, E> {
    let (sender, mut parts) = mpsc::unbounded_channel();
    start(sender);
    let mut answers: Vec<Option<(Outcome, Omitted)>> = Vec::new();
    answers.resize_with(count, || None);
    while let Some((places, part)) = parts.recv().await {
        let part = part?;
        let mut omitted = part.omitted.into_iter().peekable();
        for (index, (place, answer)) in places.into_iter().zip(part.outcomes).enumerate() {
            let is_omitted = omitted.next_if_eq(&index).is_some();
            if let Some(slot) = answers.get_mut(place) {
                *slot = Some((answer, is_omitted));
            }
        }
    }
    answers.into_iter().map(|answer| answer.ok_or_else(|| Stopped::silent().into())).collect()
}

/// Keeps results as long as they fit, and passes on the outcomes.
pub(super) struct Within<F> {
    room: Arc<Room>,
    /// Number of outcomes seen.
    seen: usize,
    omitted: Vec<usize>,
    reply: F,
}

impl<F: FnOnce(Result<Listed, Stopped>) + Send + 'static> Within<F> {
    pub(super) fn boxed(room: &Arc<Room>, reply: F) -> Reply {
        Box::new(Self { room: Arc::clone(room), seen: 0, omitted: Vec::new(), reply })
    }
}

impl<F: FnOnce(Result<Listed, Stopped>) + Send> Replies for Within<F> {
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
        let listed = outcomes.map(|mut outcomes| {
            self.see(&mut outcomes);
            Listed { outcomes, omitted: std::mem::take(&mut self.omitted) }
        });
        (self.reply)(listed);
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

    type Collected = Arc<std::sync::Mutex<Option<Listed>>>;

    fn within(room: &Arc<Room>) -> (Reply, Collected) {
        let told = Collected::default();
        let keep = Arc::clone(&told);
        (Within::boxed(room, move |listed| *keep.lock().unwrap() = Some(listed.unwrap())), told)
    }

    fn taken(told: &Collected) -> (Vec<usize>, Vec<usize>) {
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
        // Outcomes seen before are not counted again.
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
