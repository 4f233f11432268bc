//! Changes of queues over several partitions, with senders, other changes and callers that go away.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::{
    Answer, Command, Config, Configure, Content, DedupScope, Order, Outcome, SendMessage,
};
use hapax_partition::change::Change;
use hapax_server::engine::Engine;
use hapax_testing::eventually;

use crate::{Lists, create, message, open, queue, recipe};

const PARTITIONS: u16 = 4;

fn configure(name: &str, config: Config) -> Configure {
    Configure { queue: queue(name), config, if_version: None }
}

fn grouped(name: &str, key: &str) -> SendMessage {
    let content = Content::builder(key).group(Some("g")).build(b"b").unwrap();
    SendMessage::new(&recipe(), queue(name), content)
}

/// What each partition says about a queue: its rules, or that there is none.
async fn known(engine: &Engine, name: &str) -> Vec<Option<(Config, bool, u64)>> {
    let mut all = Vec::new();
    for partition in 0..engine.partitions() {
        let shown = engine.call(partition, Command::Show(queue(name))).await.unwrap();
        all.push(match shown {
            Outcome::Queue(view) => Some((view.config, view.paused, view.stats.ready)),
            Outcome::Refused(_) => None,
            other => panic!("{other:?}"),
        });
    }
    all
}

#[track_caller]
fn agree(known: &[Option<(Config, bool, u64)>]) {
    assert!(do_agree(known), "{known:?}");
}

fn do_agree(known: &[Option<(Config, bool, u64)>]) -> bool {
    let rules = |known: &Option<(Config, bool, u64)>| {
        known.as_ref().map(|(config, paused, _)| (config.clone(), *paused))
    };
    let first = known.first().map(rules);
    known.iter().all(|other| Some(rules(other)) == first)
}

#[test]
fn k1_keys_sent_while_their_queue_is_made_are_accepted_once() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), PARTITIONS);
    runtime.block_on(async {
        for round in 0..20 {
            let name = format!("q{round}");
            let config = match round % 2 {
                0 => Config { dedup_scope: DedupScope::Group, ..Config::default() },
                _ => Config { order: Order::Group, ..Config::default() },
            };
            let made = Arc::new(AtomicBool::new(false));
            let accepted = Arc::new(AtomicUsize::new(0));
            let mut senders = Vec::new();
            for sender in 0..8 {
                let (engine, name) = (engine.clone(), name.clone());
                let (made, accepted) = (Arc::clone(&made), Arc::clone(&accepted));
                senders.push(tokio::spawn(async move {
                    // Until the queue is there, and once more: the retry of a lost answer.
                    loop {
                        let is_last = made.load(Ordering::SeqCst);
                        for n in 0..4 {
                            let key = format!("k{}", sender * 4 + n);
                            let answers = engine.send(vec![grouped(&name, &key)]).await.unwrap();
                            if matches!(answers[0], Answer::Accepted { .. }) {
                                accepted.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        if is_last {
                            return;
                        }
                    }
                }));
            }
            engine.configure(configure(&name, config)).await.unwrap().unwrap();
            made.store(true, Ordering::SeqCst);
            for sender in senders {
                sender.await.unwrap();
            }
            assert_eq!(accepted.load(Ordering::SeqCst), 32, "round {round}");
            let known = known(&engine, &name).await;
            let holders = known.iter().flatten().filter(|(_, _, ready)| *ready > 0).count();
            assert_eq!(holders, 1, "a group is in one partition: {known:?}");
        }
    });
    engine.stop();
}

#[test]
fn a_caller_who_goes_away_leaves_no_half_queue() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), PARTITIONS);
    runtime.block_on(async {
        for round in 0..40u64 {
            let name = format!("q{round}");
            let config = Config { order: Order::Group, ..Config::default() };
            let change = engine.configure(configure(&name, config));
            // Gone after so long, wherever the change is by then.
            let _ = tokio::time::timeout(Duration::from_micros(round * 60), change).await;
            // Changes of a queue wait for each other; which of the two is first nobody knows.
            let _ = engine.change(Change::Resume(queue(&name))).await.unwrap();
            let before = eventually("the change to be carried out", async || {
                let known = known(&engine, &name).await;
                do_agree(&known).then_some(known)
            })
            .await;
            if before[0].is_none() {
                continue;
            }
            let sends = (0..8).map(|n| grouped(&name, &format!("k{n}"))).collect();
            let answers = engine.send(sends).await.unwrap();
            assert!(answers.iter().all(|answer| matches!(answer, Answer::Accepted { .. })));
            let known = known(&engine, &name).await;
            let holders = known.iter().flatten().filter(|(_, _, ready)| *ready > 0).count();
            assert_eq!(holders, 1, "order=group is kept in one partition: {known:?}");
            let gone = queue(&name);
            let delete = engine.delete(&gone);
            let _ = tokio::time::timeout(Duration::from_micros(round * 60), delete).await;
            let _ = engine.change(Change::Resume(queue(&name))).await.unwrap();
            agree(&self::known(&engine, &name).await);
        }
    });
    engine.stop();
}

#[test]
fn of_changes_at_once_each_is_answered_with_what_it_made() {
    const CHANGES: u64 = 64;
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), PARTITIONS);
    runtime.block_on(async {
        create(&engine, "q", Config::default()).await;
        let changes: Vec<_> = (0..CHANGES)
            .map(|change| {
                let config = Config { lease_ms: 5_000 + change, ..Config::default() };
                let (engine, wanted) = (engine.clone(), configure("q", config));
                tokio::spawn(async move { engine.configure(wanted).await.unwrap().unwrap() })
            })
            .collect();
        let mut versions = BTreeSet::new();
        for (change, answer) in (0..CHANGES).zip(changes) {
            let (view, created) = answer.await.unwrap();
            assert_eq!((view.config.lease_ms, created), (5_000 + change, false));
            assert!(versions.insert(view.version), "version {} twice", view.version);
        }
    });
    engine.stop();
}

#[test]
fn changes_at_once_leave_one_queue_and_lose_no_confirmed_message() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), PARTITIONS);
    let kept = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        for round in 0..30 {
            let name = format!("q{round}");
            create(&engine, &name, Config::default()).await;
            let two = |lease_ms| configure(&name, Config { lease_ms, ..Config::default() });
            let (name_of_queue, deletes) = (queue(&name), round % 2 == 0);
            let delete = async {
                if deletes {
                    let _ = engine.delete(&name_of_queue).await.unwrap();
                }
            };
            let (one, other, ()) =
                tokio::join!(engine.configure(two(5_000)), engine.configure(two(7_000)), delete);
            one.unwrap().unwrap();
            other.unwrap().unwrap();
            let before = known(&engine, &name).await;
            agree(&before);
            if before[0].is_none() {
                continue;
            }
            let sends = (0..20).map(|n| message(&name, &format!("k{n}"), "b")).collect();
            let answers = engine.send(sends).await.unwrap();
            assert!(answers.iter().all(|answer| matches!(answer, Answer::Accepted { .. })));
            kept.lock().unwrap().push(name);
        }
    });
    engine.stop();
    let engine = open(directory.path(), PARTITIONS);
    runtime.block_on(async {
        let kept = kept.lock().unwrap().clone();
        assert!(kept.len() >= 15, "{kept:?}");
        for name in kept {
            let view = engine.show(&queue(&name)).await.unwrap().unwrap();
            assert_eq!(view.stats.ready, 20, "{name}");
        }
    });
    engine.stop();
}
