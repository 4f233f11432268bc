//! Who waits, who is called, and who is not.

use hapax_core::{Config, Configure, Content, KeyView, Recipe, SendMessage, Stamp, Time};
use hapax_store::memory::MemoryStore;

use super::*;
use crate::{Options, Partition};

/// The first queue of a partition.
const QUEUE: QueueId = 0;

fn queue() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn receive(queue: QueueName, max: u32) -> Receive {
    let (lease_ms, receive_id, several_per_group) = (None, None, false);
    Receive { queue, max, lease_ms, worker: "w".into(), receive_id, several_per_group }
}

/// A partition with so many ready messages under the keys 0, 1, …
fn with_ready(count: usize) -> Partition<MemoryStore> {
    let mut partition = Partition::open(MemoryStore::default(), Options::default()).unwrap();
    let (queue, config) = (queue(), Config::default());
    let configure = Configure { queue: queue.clone(), config, if_version: None };
    let mut commands = vec![Command::Configure(Box::new(configure))];
    commands.extend((0..count).map(|key| {
        let content = Content::builder(&key.to_string()).build(b"b").unwrap();
        Command::Send(SendMessage::new(&Recipe::First, queue.clone(), content))
    }));
    decide(&mut partition, commands);
    partition
}

fn decide(partition: &mut Partition<MemoryStore>, commands: Vec<Command>) -> Vec<Outcome> {
    let stamp = Stamp { at: Time(1_700_000_000_000), random: 7 };
    partition.submit(stamp, commands).unwrap();
    let answers = std::iter::from_fn(|| partition.poll().unwrap());
    answers.flat_map(|answered| answered.outcomes).collect()
}

/// A receiver waits: it came, and there was nothing.
fn come(waiters: &mut Waiters<u32>, number: u32, max: u32, turn: &Turn) {
    let waiter = Waiter::receive(receive(queue(), max), turn.clone(), number);
    let waiter = waiters.admit(waiter).expect("its turn is free");
    let served = waiters.serve(waiter, Outcome::Received(Vec::new()));
    assert!(matches!(served, Served::Waits), "{served:?}");
}

/// News: messages of the queue can be received.
fn wake(waiters: &mut Waiters<u32>, partition: &Partition<MemoryStore>) {
    waiters.wake(QUEUE, partition.machine());
}

fn called(waiters: &mut Waiters<u32>) -> Vec<u32> {
    let called = waiters.take_called();
    called.into_iter().map(|waiter| waiter.reply).collect()
}

#[test]
fn as_many_receivers_are_called_as_the_messages_are_enough_for_first_come_first() {
    let partition = with_ready(3);
    let mut waiters = Waiters::default();
    for (number, max) in [(1, 2), (2, 2), (3, 1)] {
        come(&mut waiters, number, max, &Turn::default());
    }
    waiters.wake(QUEUE + 1, partition.machine());
    assert!(!waiters.has_called(), "messages of another queue");
    wake(&mut waiters, &partition);
    assert!(waiters.has_called());
    assert_eq!(called(&mut waiters), [1, 2]);
    wake(&mut waiters, &partition);
    assert_eq!(called(&mut waiters), [3]);
    wake(&mut waiters, &partition);
    assert_eq!(called(&mut waiters), [], "nobody is left");
}

#[test]
fn nobody_is_called_for_nothing() {
    let partition = with_ready(0);
    let mut waiters = Waiters::default();
    come(&mut waiters, 1, 1, &Turn::default());
    wake(&mut waiters, &partition);
    assert!(!waiters.has_called());
}

#[test]
fn all_who_wait_for_messages_of_a_queue_are_called_when_it_is_deleted() {
    let mut partition = with_ready(0);
    let mut waiters = Waiters::default();
    for number in 1..=3 {
        come(&mut waiters, number, 1, &Turn::default());
    }
    waiters.call_again(&queue(), partition.machine());
    assert!(!waiters.has_called(), "the queue is there, and has nothing for them");
    decide(&mut partition, vec![Command::Delete(queue())]);
    waiters.call_again(&queue(), partition.machine());
    assert_eq!(called(&mut waiters), [1, 2, 3]);
}

#[test]
fn whoever_gave_up_leaves_its_place_to_the_next() {
    let partition = with_ready(1);
    let mut waiters = Waiters::default();
    let first = Turn::default();
    come(&mut waiters, 1, 1, &first);
    come(&mut waiters, 2, 1, &Turn::default());
    assert!(first.give_up());
    wake(&mut waiters, &partition);
    assert_eq!(called(&mut waiters), [2]);
}

#[test]
fn whoever_is_served_elsewhere_is_passed_over_and_called_again_where_it_got_nothing() {
    let partition = with_ready(1);
    let (mut here, mut there) = (Waiters::default(), Waiters::default());
    let (both, mine) = (Turn::default(), Turn::default());
    come(&mut here, 1, 1, &both);
    come(&mut here, 2, 1, &mine);
    let waiter = there.admit(Waiter::receive(receive(queue(), 1), both.clone(), 1)).unwrap();
    wake(&mut here, &partition);
    assert_eq!(called(&mut here), [2], "the first is being served there");
    mine.finish();
    let served = there.serve(waiter, Outcome::Received(Vec::new()));
    assert!(matches!(&served, Served::PassedOver(name) if *name == queue()), "{served:?}");
    here.call_again(&queue(), partition.machine());
    assert_eq!(called(&mut here), [1], "it kept its place");
}

#[test]
fn a_newcomer_whose_turn_is_held_elsewhere_waits() {
    let partition = with_ready(1);
    let mut waiters = Waiters::default();
    let turn = Turn::default();
    assert_eq!(turn.take(), Taken::Yes);
    let waiter = Waiter::receive(receive(queue(), 1), turn.clone(), 1);
    assert!(waiters.admit(waiter).is_none());
    assert_eq!(turn.give_back(), Given::Missed, "it came by");
    waiters.call_again(&queue(), partition.machine());
    assert_eq!(called(&mut waiters), [1]);
}

/// Messages that nobody can be handed, since their queue is paused, count as ready.
#[test]
fn partitions_that_have_nothing_for_a_receiver_do_not_call_it_in_a_circle() {
    let mut partition = with_ready(1);
    decide(&mut partition, vec![Command::Pause(queue())]);
    let mut all: Vec<Waiters<u32>> = (0..4).map(|_| Waiters::default()).collect();
    let turn = Turn::default();
    let mut serving = Vec::new();
    for (number, waiters) in all.iter_mut().enumerate() {
        let waiter = waiters.admit(Waiter::receive(receive(queue(), 1), turn.clone(), 1));
        serving.extend(waiter.map(|waiter| (number, waiter)));
    }
    let mut tried = Vec::new();
    while let Some((number, waiter)) = serving.pop() {
        tried.push(number);
        assert!(tried.len() <= all.len(), "in a circle: {tried:?}");
        let outcome = decide(&mut partition, vec![waiter.command()]).remove(0);
        let served = all[number].serve(waiter, outcome);
        if matches!(served, Served::PassedOver(_)) {
            for (other, waiters) in all.iter_mut().enumerate().filter(|(at, _)| *at != number) {
                waiters.call_again(&queue(), partition.machine());
                serving.extend(waiters.take_called().into_iter().map(|waiter| (other, waiter)));
            }
        }
    }
    assert_eq!(tried, [0, 1, 2, 3], "each was asked once");
}

fn look(partition: &mut Partition<MemoryStore>, key: &str) -> (KeyName, Box<KeyView>) {
    let key = KeyName { queue: queue(), group: None, key: key.into() };
    match decide(partition, vec![Command::Look(key.clone())]).remove(0) {
        Outcome::Key(view) => (key, view),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_looker_waits_for_the_end_of_its_key_and_of_no_other() {
    let mut partition = with_ready(2);
    let mut waiters = Waiters::default();
    let (_, other) = look(&mut partition, "1");
    let (key, view) = look(&mut partition, "0");
    let waiter = waiters.admit(Waiter::look(key.clone(), Turn::default(), 1)).unwrap();
    assert!(matches!(waiters.serve(waiter, Outcome::Key(view.clone())), Served::Waits));
    waiters.ended(&other.digest);
    assert!(!waiters.has_called());
    waiters.ended(&view.digest);
    let waiter = waiters.take_called().remove(0);
    decide(&mut partition, vec![Command::Discard(key.clone())]);
    let (_, view) = look(&mut partition, "0");
    let served = waiters.serve(waiter, Outcome::Key(view));
    assert!(matches!(served, Served::Answer(1, Outcome::Key(_))), "{served:?}");
}

#[test]
fn a_drained_partition_lets_nobody_wait() {
    let mut waiters = Waiters::default();
    let turns: Vec<Turn> = (0..3).map(|_| Turn::default()).collect();
    (1..).zip(&turns).for_each(|(number, turn)| come(&mut waiters, number, 1, turn));
    turns[1].leave();
    assert_eq!(waiters.drain(), [1, 3]);
    assert!(turns.iter().all(Turn::is_over));
    let waiter = waiters.admit(Waiter::receive(receive(queue(), 1), Turn::default(), 4)).unwrap();
    let served = waiters.serve(waiter, Outcome::Received(Vec::new()));
    assert!(matches!(served, Served::Answer(4, Outcome::Received(_))), "{served:?}");
}

#[test]
fn a_partition_that_closes_ends_every_wait() {
    let mut partition = with_ready(1);
    let mut waiters = Waiters::default();
    come(&mut waiters, 1, 1, &Turn::default());
    come(&mut waiters, 2, 1, &Turn::default());
    let (key, view) = look(&mut partition, "0");
    let waiter = waiters.admit(Waiter::look(key, Turn::default(), 3)).unwrap();
    waiters.serve(waiter, Outcome::Key(view));
    wake(&mut waiters, &partition);
    let mut ended = waiters.close();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2, 3], "also the one who was called");
}

/// Somebody waits for a queue or a key of its own.
fn wait_alone(waiters: &mut Waiters<u64>, view: &KeyView, number: u64) -> Turn {
    let turn = Turn::default();
    let queue = QueueName::new("default", &format!("q{number}")).unwrap();
    let (waiter, outcome) = match number.is_multiple_of(2) {
        true => {
            let mut digest = [0; 16];
            digest[..8].copy_from_slice(&number.to_le_bytes());
            let key = KeyName { queue, group: None, key: "k".into() };
            let view = KeyView { digest: Digest(digest), ..view.clone() };
            (Waiter::look(key, turn.clone(), number), Outcome::Key(Box::new(view)))
        }
        false => {
            let waiter = Waiter::receive(receive(queue, 1), turn.clone(), number);
            (waiter, Outcome::Received(Vec::new()))
        }
    };
    let waiter = waiters.admit(waiter).unwrap();
    waiters.serve(waiter, outcome);
    turn
}

#[test]
fn whoever_gives_up_is_removed_whatever_queue_or_key_it_waited_for() {
    let (_, view) = look(&mut with_ready(1), "0");
    let mut waiters = Waiters::default();
    let waits: Vec<Turn> = (0..100).map(|n| wait_alone(&mut waiters, &view, n)).collect();
    for number in 100..10_000 {
        wait_alone(&mut waiters, &view, number).leave();
        let count = waiters.receivers.len() + waiters.lookers.len();
        assert!(count <= 2 * (waits.len() + CAME_MIN), "{count} at {number}");
    }
    assert_eq!(waiters.close().len(), waits.len(), "who waits stays");
}
