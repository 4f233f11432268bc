//! The engine as doors use it, on one partition and on four: routing, waiting, relaying, stopping,
//! copying.
#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod engine {
    mod changes;
    mod data;
    mod limits;
    mod panics;
    mod survey;
    mod waiting;
}

use std::path::Path;
use std::time::Duration;

use hapax_core::{
    Answer, Blob, Browse, Command, Config, Configure, Content, Delivery, Emit, KeyName, Order,
    Outcome, Place, QueueName, Receive, Recipe, Redrive, Refusal, Select, SendMessage, Settle,
    Settled, Verb,
};
use hapax_partition::Partition;
use hapax_server::engine::{AnyStore, Data, Engine, Options, Stopped, To};

const LONG: Duration = Duration::from_secs(30);

fn open(path: &Path, partitions: u16) -> Engine {
    let data = Data::open(path, partitions).unwrap();
    let options = Options { partitions, memory_bytes: 64 * 1_024 * 1_024 };
    Engine::open(data, options, Box::new(|_, _| {})).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new("default", name).unwrap()
}

/// As new data hashes, with a secret that is the test's own: every data has another.
fn recipe() -> Recipe {
    Recipe::second(&[7; 32])
}

fn message(queue_name: &str, key: &str, body: &str) -> SendMessage {
    let content = Content::builder(key).build(body.as_bytes()).unwrap();
    SendMessage::new(&recipe(), queue(queue_name), content)
}

fn receive(queue_name: &str, max: u32) -> Receive {
    Receive {
        queue: queue(queue_name),
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    }
}

async fn create(engine: &Engine, name: &str, config: Config) {
    let configure = Configure { queue: queue(name), config, if_version: None };
    assert!(engine.configure(configure).await.unwrap().unwrap().1);
}

async fn done(engine: &Engine, message: &Delivery, emits: Vec<Emit>) -> Settled {
    let result = Some(Blob { content_type: None, body: "ok".into() });
    let settle = Settle { lease: message.lease, verb: Verb::Done { result, emits } };
    engine.settle(vec![(message.id.partition(), settle)]).await.unwrap().remove(0)
}

/// Lists of one kind, as the service makes them.
trait Lists {
    async fn send(&self, sends: Vec<SendMessage>) -> Result<Vec<Answer>, Stopped>;
    async fn settle(&self, settles: Vec<(u16, Settle)>) -> Result<Vec<Settled>, Stopped>;
}

impl Lists for Engine {
    async fn send(&self, sends: Vec<SendMessage>) -> Result<Vec<Answer>, Stopped> {
        let sends = sends.into_iter().map(Command::Send);
        let outcomes = self.ask(sends.collect(), To::Key).await?.into_iter();
        Ok(outcomes
            .map(|it| if let Outcome::Sent(answer) = it { answer } else { panic!() })
            .collect())
    }

    async fn settle(&self, settles: Vec<(u16, Settle)>) -> Result<Vec<Settled>, Stopped> {
        let (partitions, settles): (Vec<u16>, Vec<Command>) =
            settles.into_iter().map(|(partition, it)| (partition, Command::Settle(it))).unzip();
        let outcomes = self.ask(settles, To::Partitions(partitions)).await?.into_iter();
        Ok(outcomes.map(|it| if let Outcome::Settled(it) = it { it } else { panic!() }).collect())
    }
}

/// Runs a scene on one partition and on four.
fn on_one_and_on_four<F: Future<Output = ()>>(scene: impl Fn(Engine, std::path::PathBuf) -> F) {
    for partitions in [1, 4] {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let engine = open(directory.path(), partitions);
        runtime.block_on(scene(engine.clone(), directory.path().to_owned()));
        engine.stop();
    }
}

#[test]
fn every_message_is_received_once_wherever_it_lives() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        let sends = (0..200).map(|n| message("orders", &format!("k{n}"), "b")).collect();
        let answers = engine.send(sends).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Accepted { .. })));
        let again = engine.send(vec![message("orders", "k7", "b")]).await.unwrap();
        assert!(matches!(again[0], Answer::InFlight(_)));
        let mut keys = Vec::new();
        while keys.len() < 200 {
            let messages = engine.receive(receive("orders", 30), LONG).await.unwrap().unwrap();
            assert!(!messages.is_empty());
            for message in messages {
                assert!(matches!(done(&engine, &message, vec![]).await, Settled::Ok { .. }));
                keys.push(message.key());
            }
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 200);
        let view = engine.show(&queue("orders")).await.unwrap().unwrap();
        assert_eq!((view.stats.ready, view.stats.done_total, view.stats.keys), (0, 200, 200));
    });
}

#[test]
fn who_waits_is_woken_by_a_send_and_who_gives_up_takes_nothing() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        let none = engine.receive(receive("orders", 1), Duration::from_millis(20)).await.unwrap();
        assert_eq!(none.unwrap(), []);
        // Dropped while it waits: what comes later is for somebody else.
        let gone = engine.receive(receive("orders", 1), LONG);
        assert!(tokio::time::timeout(Duration::from_millis(20), gone).await.is_err());
        let mut waiting = Vec::new();
        for _ in 0..5 {
            let engine = engine.clone();
            waiting.push(tokio::spawn(async move {
                engine.receive(receive("orders", 1), LONG).await.unwrap().unwrap().remove(0).key()
            }));
        }
        for n in 0..5 {
            engine.send(vec![message("orders", &format!("k{n}"), "b")]).await.unwrap();
        }
        let mut keys = Vec::new();
        for waiter in waiting {
            keys.push(waiter.await.unwrap());
        }
        keys.sort();
        assert_eq!(keys, ["k0", "k1", "k2", "k3", "k4"]);
    });
}

#[test]
fn a_look_waits_for_the_end_of_its_key() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        engine.send(vec![message("orders", "k", "b")]).await.unwrap();
        let key = KeyName { queue: queue("orders"), key: "k".into(), group: None };
        let early = engine.look(key.clone(), Duration::from_millis(10)).await.unwrap().unwrap();
        assert_eq!(early.place, Place::Ready);
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.look(key, LONG).await.unwrap().unwrap() }
        });
        let messages = engine.receive(receive("orders", 1), LONG).await.unwrap().unwrap();
        done(&engine, &messages[0], vec![]).await;
        let view = waiting.await.unwrap();
        assert_eq!(view.place, Place::Done);
        assert_eq!(view.record.result.unwrap().body, "ok");
    });
}

#[test]
fn l3_emits_reach_their_queues_once_also_in_other_partitions() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        create(&engine, "emails", Config::default()).await;
        let sends = (0..40).map(|n| message("orders", &format!("k{n}"), "b")).collect();
        engine.send(sends).await.unwrap();
        let mut left = 40;
        while left > 0 {
            let messages = engine.receive(receive("orders", 40), LONG).await.unwrap().unwrap();
            for message in &messages {
                let content = Content::builder("").build(message.key().as_bytes()).unwrap();
                let emit = Emit::new(queue("emails"), "receipt", content);
                let settled = done(&engine, message, vec![emit.clone()]).await;
                assert!(matches!(settled, Settled::Ok { .. }));
                assert_eq!(done(&engine, message, vec![emit]).await, settled, "settled again");
            }
            left -= messages.len();
        }
        let mut bodies = Vec::new();
        while bodies.len() < 40 {
            let messages = engine.receive(receive("emails", 40), LONG).await.unwrap().unwrap();
            for message in messages {
                bodies.push(String::from_utf8(message.content.body().to_vec()).unwrap());
            }
        }
        bodies.sort();
        bodies.dedup();
        assert_eq!(bodies.len(), 40);
    });
}

#[test]
fn l6_a_grouped_queue_keeps_its_order_over_all_partitions() {
    on_one_and_on_four(|engine, _| async move {
        let config = Config { order: Order::Group, ..Config::default() };
        create(&engine, "orders", config).await;
        let send = |n: u32| {
            let key = format!("k{n}");
            let content = Content::builder(&key).group(Some("g")).build(b"").unwrap();
            SendMessage::new(&recipe(), queue("orders"), content)
        };
        engine.send((0..10).map(send).collect()).await.unwrap();
        for n in 0..10 {
            let messages = engine.receive(receive("orders", 5), LONG).await.unwrap().unwrap();
            assert_eq!(messages.len(), 1, "one unfinished at a time");
            assert_eq!(messages[0].key(), format!("k{n}"));
            done(&engine, &messages[0], vec![]).await;
        }
    });
}

#[test]
fn pages_redrives_and_listings_put_partitions_together() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config { max_attempts: 1, ..Config::default() }).await;
        create(&engine, "a-second", Config::default()).await;
        for n in 0..50 {
            engine.send(vec![message("orders", &format!("k{n}"), "b")]).await.unwrap();
        }
        let mut left = 50;
        while left > 0 {
            let messages = engine.receive(receive("orders", 50), LONG).await.unwrap().unwrap();
            left -= messages.len();
            let fail = |message: Delivery| {
                let verb = Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: false };
                (message.id.partition(), Settle { lease: message.lease, verb })
            };
            engine.settle(messages.into_iter().map(fail).collect()).await.unwrap();
        }
        let browse = Browse { queue: queue("orders"), place: Place::Dead, cursor: None, limit: 15 };
        let (mut listed, mut cursor) = (Vec::new(), None);
        loop {
            let mut page = engine.browse(browse.clone(), cursor).await.unwrap().unwrap();
            assert!(page.messages.len() == 15 || page.next.is_none(), "a page is full");
            page.truncate(11);
            listed.extend(page.messages);
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let ages: Vec<_> = listed.iter().map(|view| view.record.accepted_at).collect();
        assert!(ages.is_sorted(), "the oldest first, wherever it lives: {ages:?}");
        let mut keys: Vec<_> = listed.into_iter().filter_map(|view| view.key).collect();
        assert_eq!(keys.len(), 50, "none is listed twice");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 50);
        let redrive = Redrive {
            queue: queue("orders"),
            id: "r1".into(),
            select: Select::All,
            dry_run: false,
            per_s: None,
        };
        let mut progress = engine.redrive(redrive.clone()).await.unwrap().unwrap();
        while !progress.done {
            progress = engine.redrive_progress(&queue("orders"), "r1").await.unwrap().unwrap();
        }
        assert_eq!((progress.matched, progress.moved), (50, 50));
        assert_eq!(engine.redrive(redrive).await.unwrap().unwrap().moved, 50, "nothing twice");
        let names: Vec<String> = engine
            .queues("default", LONG)
            .await
            .unwrap()
            .queues
            .iter()
            .map(|(name, view)| format!("{} {}", name.queue, view.stats.ready))
            .collect();
        assert_eq!(names, ["a-second 0", "orders 50"]);
        assert_eq!(engine.queues("other", LONG).await.unwrap().queues.len(), 0);
    });
}

#[test]
fn a20_a_stop_loses_nothing_and_a_copy_made_meanwhile_restores() {
    for partitions in [1, 4] {
        let directory = tempfile::tempdir().unwrap();
        let copy = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let engine = open(directory.path(), partitions);
        runtime.block_on(async {
            create(&engine, "orders", Config::default()).await;
            let sends = (0..100).map(|n| message("orders", &format!("k{n}"), "b")).collect();
            engine.send(sends).await.unwrap();
            let waits = engine.clone();
            let waiting =
                tokio::spawn(async move { waits.receive(receive("empty", 1), LONG).await });
            engine.backup(copy.path(), &mut |_, _| {}).unwrap();
            engine.drain();
            assert_eq!(waiting.await.unwrap().unwrap().unwrap_or_default(), []);
            assert_eq!(engine.receive(receive("orders", 1), LONG).await.unwrap().unwrap(), []);
        });
        engine.stop();
        let refused = runtime.block_on(engine.send(vec![message("orders", "late", "b")]));
        assert!(refused.is_err());
        for path in [directory.path(), copy.path()] {
            let engine = open(path, 1);
            assert_eq!(engine.partitions(), usize::from(partitions), "data keeps its number");
            runtime.block_on(async {
                let view = engine.show(&queue("orders")).await.unwrap().unwrap();
                assert_eq!(view.stats.ready, 100, "{}", path.display());
                let again = engine.send(vec![message("orders", "k5", "b")]).await.unwrap();
                assert!(matches!(again[0], Answer::InFlight(_)));
            });
            engine.stop();
        }
    }
}

#[test]
fn a_change_of_a_queue_that_was_broken_off_is_put_right_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), 3);
    runtime.block_on(async {
        create(&engine, "gone", Config::default()).await;
        // As a crash leaves it: the leader knows, and the others do not.
        let config = Config { lease_ms: 5_000, ..Config::default() };
        let configure = Configure { queue: queue("half"), config, if_version: None };
        engine.call(0, Command::Configure(Box::new(configure))).await.unwrap();
        engine.call(0, Command::Delete(queue("gone"))).await.unwrap();
    });
    engine.stop();
    let engine = open(directory.path(), 3);
    runtime.block_on(async {
        let view = engine.show(&queue("half")).await.unwrap().unwrap();
        assert_eq!(view.config.lease_ms, 5_000);
        assert!(engine.show(&queue("gone")).await.unwrap().is_err());
        let sends = (0..30).map(|n| message("half", &format!("k{n}"), "b")).collect();
        let answers = engine.send(sends).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Accepted { .. })));
    });
    engine.stop();
}

#[test]
fn a20_data_of_a_newer_release_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path(), 1).stop();
    let head = directory.path().join("broker.json");
    std::fs::write(&head, "{\"format\":99,\"partitions\":1}").unwrap();
    let refused = Data::open(directory.path(), 1).unwrap_err().to_string();
    assert!(refused.contains("newer release"), "{refused}");
    assert_eq!(std::fs::read_to_string(&head).unwrap(), "{\"format\":99,\"partitions\":1}");
    std::fs::remove_file(&head).unwrap();
    let refused = Data::open(directory.path(), 1).unwrap_err().to_string();
    assert!(refused.contains("missing"), "never an empty broker: {refused}");
}

#[test]
fn l3_an_emit_that_its_queue_refuses_for_good_is_dead_there() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        create(&engine, "emails", Config::default()).await;
        engine.send(vec![message("emails", "taken", "first")]).await.unwrap();
        engine
            .send((0..8).map(|n| message("orders", &format!("k{n}"), "b")).collect())
            .await
            .unwrap();
        let mut left = 8;
        while left > 0 {
            for message in engine.receive(receive("orders", 8), LONG).await.unwrap().unwrap() {
                let body = format!("of {}", message.key());
                let content = Content::builder("taken").build(body.as_bytes()).unwrap();
                let emit = Emit::new(queue("emails"), "receipt", content);
                assert!(matches!(done(&engine, &message, vec![emit]).await, Settled::Ok { .. }));
                left -= 1;
            }
        }
        let mut dead = Vec::new();
        while dead.len() < 8 {
            let place = Place::Dead;
            let browse = Browse { queue: queue("emails"), place, cursor: None, limit: 100 };
            dead = engine.browse(browse, None).await.unwrap().unwrap().messages;
        }
        let mut bodies: Vec<&[u8]> =
            dead.iter().filter_map(|view| Some(view.content.as_ref()?.body())).collect();
        bodies.sort_unstable();
        bodies.dedup();
        assert_eq!(bodies.len(), 8, "each of them is there");
        for view in &dead {
            let why = view.record.error.as_deref().unwrap_or_default();
            assert!(why.contains("another message has its key"), "{why}");
            let name =
                KeyName { queue: queue("emails"), key: view.key.clone().unwrap(), group: None };
            let found = engine.look(name, Duration::ZERO).await.unwrap().unwrap();
            assert_eq!(found.place, Place::Dead, "found by its key, wherever it is");
        }
        for partition in 0..engine.partitions() {
            let waiting = |it: &Partition<AnyStore>| it.machine().relays().count();
            while engine.inspect(partition, waiting).await.unwrap() > 0 {}
        }
        let stats = engine.show(&queue("emails")).await.unwrap().unwrap().stats;
        assert_eq!((stats.ready, stats.dead, stats.sent_total), (1, 8, 9), "and once");
    });
}

#[test]
fn l1_no_two_leases_of_a_broker_have_the_same_fence() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        let sends = (0..200).map(|n| message("orders", &format!("k{n}"), "b")).collect();
        engine.send(sends).await.unwrap();
        let mut fences = std::collections::BTreeSet::new();
        let mut left = 200;
        while left > 0 {
            let messages = engine.receive(receive("orders", 37), LONG).await.unwrap().unwrap();
            left -= messages.len();
            for message in messages {
                assert!(fences.insert(message.lease.fence), "{:?}", message.lease);
            }
        }
    });
}

#[test]
fn l5_a_redrive_by_keys_names_the_keys_that_no_partition_has_among_its_dead() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config { max_attempts: 1, ..Config::default() }).await;
        let sends = (0..10).map(|n| message("orders", &format!("k{n}"), "b")).collect();
        engine.send(sends).await.unwrap();
        let mut left = 10;
        while left > 0 {
            let messages = engine.receive(receive("orders", 10), LONG).await.unwrap().unwrap();
            left -= messages.len();
            let fail = |message: Delivery| {
                let verb = Verb::Fail { error: "no".to_owned(), delay_ms: None, dead: true };
                (message.id.partition(), Settle { lease: message.lease, verb })
            };
            engine.settle(messages.into_iter().map(fail).collect()).await.unwrap();
        }
        let keys: Vec<_> = (5..15).map(|n| format!("k{n}").into()).collect();
        let redrive = Redrive {
            queue: queue("orders"),
            id: "r1".into(),
            select: Select::Keys { keys, group: None },
            dry_run: false,
            per_s: None,
        };
        let mut view = engine.redrive(redrive).await.unwrap().unwrap();
        let over = async {
            while !view.done {
                view = engine.redrive_progress(&queue("orders"), "r1").await.unwrap().unwrap();
            }
        };
        tokio::time::timeout(LONG, over).await.unwrap();
        view.missing.sort();
        let missing: Vec<&str> = view.missing.iter().map(|key| &**key).collect();
        assert_eq!(missing, ["k10", "k11", "k12", "k13", "k14"]);
        assert_eq!((view.matched, view.moved, view.total), (5, 5, Some(10)));
    });
}

#[test]
fn l5_a_redrive_that_one_partition_refuses_starts_in_none() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        let redrive = |id: &str, per_s| Redrive {
            queue: queue("orders"),
            id: id.into(),
            select: Select::All,
            dry_run: false,
            per_s,
        };
        // The last partition alone knows the id, as where the others have forgotten it.
        let last = engine.partitions() - 1;
        let first = Command::Redrive(redrive("r1", Some(7)));
        engine.call(last, first).await.unwrap();
        let refused = engine.redrive(redrive("r1", None)).await.unwrap();
        assert_eq!(refused, Err(Refusal::OtherRedrive));
        for partition in 0..last {
            let (queue, id) = (queue("orders"), "r1".into());
            let asked = engine.call(partition, Command::RedriveProgress { queue, id });
            assert_eq!(asked.await.unwrap(), Outcome::Refused(Refusal::NoSuchKey), "{partition}");
        }
        // Of several at once under one id, one is started, in every partition.
        let all = [1, 2, 3, 4].map(|share| engine.redrive(redrive("r2", Some(share * 40))));
        let [a, b, c, d] = all;
        let (a, b, c, d) = tokio::join!(a, b, c, d);
        let told = [a, b, c, d].map(Result::unwrap);
        assert_eq!(told.iter().filter(|told| told.is_ok()).count(), 1, "{told:?}");
        engine.redrive_progress(&queue("orders"), "r2").await.unwrap().unwrap();
    });
}

#[test]
fn l5_a_redrive_that_is_cancelled_while_it_starts_is_cancelled_in_every_partition() {
    on_one_and_on_four(|engine, _| async move {
        create(&engine, "orders", Config::default()).await;
        let (queue, id) = (queue("orders"), "r1");
        let select = Select::All;
        let redrive =
            Redrive { queue: queue.clone(), id: id.into(), select, dry_run: false, per_s: None };
        let (started, cancelled) =
            tokio::join!(engine.redrive(redrive), engine.cancel_redrive(&queue, id));
        assert!(started.unwrap().is_ok());
        let cancelled = cancelled.unwrap();
        assert!(cancelled.is_ok(), "it was asked for after the redrive: {cancelled:?}");
    });
}
