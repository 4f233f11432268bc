//! The data directory: what should be there and is not is refused, and copies are lineages of
//! their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hapax_core::{Blob, Config, Configure, Content, Emit, SendMessage, Settle, Settled, Verb};
use hapax_partition::Partition;
use hapax_partition::route::Routes;
use hapax_postgres::Uuid;
use hapax_server::engine::{AnyStore, Data, Engine, Error, Options};

use crate::{LONG, Lists, create, done, message, open, queue, receive, recipe};

const OPTIONS: Options = Options { partitions: 1, memory_bytes: 64 * 1_024 * 1_024 };

/// Every file and directory with its length.
fn contents(path: &Path) -> BTreeMap<PathBuf, u64> {
    let mut all = BTreeMap::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            all.insert(entry.path(), metadata.len());
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    all
}

/// Data with messages in every partition.
fn filled(path: &Path, partitions: u16) {
    let engine = open(path, partitions);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        create(&engine, "orders", Config::default()).await;
        let sends = (0..40).map(|n| message("orders", &format!("k{n}"), "b")).collect();
        engine.send(sends).await.unwrap();
    });
    engine.stop();
}

#[track_caller]
fn refused(path: &Path, names: &Path) {
    let before = contents(path);
    let error = Data::open(path, 1).unwrap_err().to_string();
    assert!(error.contains(&names.display().to_string()), "{error}");
    assert!(error.contains("othing was changed") || error.contains("Nothing"), "{error}");
    assert_eq!(contents(path), before, "refusing changed something");
}

#[test]
fn d4_what_is_missing_is_refused_by_name_and_never_made_anew() {
    for partitions in [1u16, 4] {
        let last = format!("partition-{:04}", partitions - 1);
        let cases: [(&str, &[&str]); 6] = [
            (&last, &[&last]),
            ("partition-0000", &["partition-0000"]),
            ("secret", &["secret"]),
            ("broker.json", &["broker.json"]),
            ("broker.json", &["broker.json", "partition-0000"]),
            ("partition-0000/format", &["partition-0000/format"]),
        ];
        for (named, removed) in cases {
            let directory = tempfile::tempdir().unwrap();
            filled(directory.path(), partitions);
            for name in removed {
                let path = directory.path().join(name);
                let gone = directory.path().join("..").join(format!("gone-{}", fastrand::u64(..)));
                fs::rename(&path, &gone).unwrap();
                if gone.is_dir() { fs::remove_dir_all(&gone) } else { fs::remove_file(&gone) }
                    .unwrap();
            }
            refused(directory.path(), &directory.path().join(named));
        }
    }
}

#[test]
fn d4_an_emptied_partition_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 2);
    let partition = directory.path().join("partition-0001");
    fs::remove_dir_all(&partition).unwrap();
    fs::create_dir(&partition).unwrap();
    refused(directory.path(), &partition);
}

#[test]
fn a_broker_started_one_level_too_deep_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path(), 1);
    let deep = directory.path().join("partition-0000");
    refused(&deep, &deep);
    assert!(matches!(Data::open(&deep, 1), Err(Error::OnePartition(_))));
}

#[test]
fn a_node_that_lost_its_store_is_not_an_empty_broker() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let broker = Uuid::from_u128(7);
    assert_eq!(Data::broker_of_node(&path).unwrap(), None);
    Data::of_node(&path, broker).unwrap();
    assert_eq!(Data::broker_of_node(&path).unwrap(), Some(broker));
    Data::refuse_data(&path).unwrap();
    let refused = Data::open(&path, 1).unwrap_err();
    assert!(matches!(refused, Error::OfNode(_)), "{refused}");
    assert!(refused.to_string().contains("HAPAX_STORE"), "{refused}");
    let left: Vec<_> =
        std::fs::read_dir(&path).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["node"], "nothing was changed");
    Data::of_node(&path, broker).unwrap();
    // A file that says nothing is not taken for that of a node that has no broker yet.
    let whole = std::fs::read(path.join("node")).unwrap();
    for length in 0..whole.len() {
        std::fs::write(path.join("node"), &whole[..length]).unwrap();
        let refused = Data::broker_of_node(&path).unwrap_err();
        assert!(matches!(refused, Error::Damaged(..)), "cut at {length}: {refused}");
    }
}

#[test]
fn a_creation_that_was_broken_off_is_completed() {
    let directory = tempfile::tempdir().unwrap();
    // As a crash leaves it: the head says that the rest may be missing.
    drop(Data::open(directory.path(), 3).unwrap());
    let head = fs::read_to_string(directory.path().join("broker.json")).unwrap();
    assert!(head.contains("creating"), "{head}");
    let engine = open(directory.path(), 3);
    engine.stop();
    let head = fs::read_to_string(directory.path().join("broker.json")).unwrap();
    assert!(!head.contains("state"), "nothing is missing any more: {head}");
    open(directory.path(), 1).stop();
}

#[test]
fn a_head_that_lost_or_changed_the_secret_of_fingerprints_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path(), 1).stop();
    let file = directory.path().join("broker.json");
    let right = fs::read_to_string(&file).unwrap();
    let head: serde_json::Value = serde_json::from_str(&right).unwrap();
    let secret = head["fingerprint_secret"].as_str().unwrap().to_owned();
    assert_eq!((head["format"].as_u64(), secret.len()), (Some(2), 64));
    let first = if secret.starts_with('0') { "1" } else { "0" };
    let field = format!("\"fingerprint_secret\":\"{secret}\",");
    let wrong = [
        right.replace(&field, ""),
        right.replace(&field, "").replace("\"format\":2", "\"format\":1"),
        right.replace("\"format\":2", "\"format\":1"),
        right.replace("\"format\":2", "\"format\":0"),
        right.replace(&secret, &format!("{first}{}", &secret[1..])),
        right.replace(&secret, &secret[2..]),
        right.replace(&secret, ""),
    ];
    for wrong in wrong {
        assert_ne!(wrong, right);
        fs::write(&file, &wrong).unwrap();
        let refused = Data::open(directory.path(), 1).unwrap_err();
        assert!(matches!(refused, Error::Damaged(..)), "{wrong}: {refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), wrong, "it is left alone");
    }
    fs::write(&file, &right).unwrap();
    open(directory.path(), 1).stop();
    assert_eq!(fs::read_to_string(&file).unwrap(), right);
}

#[test]
fn a_copy_into_the_data_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path(), 1);
    let target = directory.path().join("partition-0000/../copies/today");
    let refused = engine.backup(&target, &mut |_, _| {}).unwrap_err();
    assert!(matches!(refused, Error::Inside { .. }), "{refused}");
    assert!(!directory.path().join("copies").exists());
    engine.stop();
}

#[test]
fn a_copy_made_while_queues_change_and_emits_arrive_is_of_one_moment_and_stops_neither() {
    let (directory, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(directory.path(), 4);
    let engine = open(directory.path(), 1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut round = 0;
    // On the copying thread: whatever happens here, happens while the copy is under way.
    let mut progress = |_: u64, _: u64| {
        runtime.block_on(async {
            create(&engine, &format!("new{round}"), Config::default()).await;
            let config = Config { max_attempts: 3 + round, ..Config::default() };
            let changed = Configure { queue: queue("orders"), config, if_version: None };
            engine.configure(changed).await.unwrap().unwrap();
            let parent = take(&engine).await;
            let content = || Content::builder("").build(b"b").unwrap();
            let emit = |n: u64| Emit::new(queue("new0"), &n.to_string(), content());
            let emits = (0..8).map(emit).collect();
            assert!(matches!(done(&engine, &parent, emits).await, Settled::Ok { .. }));
            while waiting_emits(&engine).await > 0 {
                tokio::task::yield_now().await;
            }
        });
        round += 1;
    };
    engine.backup(copy.path(), &mut progress).unwrap();
    assert!(round >= 4, "every partition has something to copy");
    engine.stop();

    let engine = open(copy.path(), 1);
    runtime.block_on(async {
        let queues = engine.survey(crate::LONG).await.queues;
        let names: Vec<_> = queues.iter().map(|(name, _)| &*name.queue).collect();
        assert_eq!(names, ["orders"], "nothing that came later");
        let view = &queues[0].1;
        assert_eq!((view.stats.ready, &view.config), (40, &Config::default()));
    });
    engine.stop();
}

async fn waiting_emits(engine: &Engine) -> usize {
    let mut all = 0;
    for partition in 0..engine.partitions() {
        let count = |partition: &Partition<AnyStore>| partition.machine().relays().count();
        all += engine.inspect(partition, count).await.unwrap();
    }
    all
}

#[test]
fn a_leader_that_was_set_back_is_refused_also_where_something_is_due_in_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 0..3 {
        let (directory, older) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let engine = open(directory.path(), 2);
        runtime.block_on(async {
            create(&engine, "old", Config::default()).await;
            let later =
                |n| SendMessage { delay_ms: Some(1), ..message("old", &format!("k{n}"), "b") };
            engine.send((0..20).map(later).collect()).await.unwrap();
        });
        // A crash, so that what is due is still to come in the copy.
        let leader = directory.path().join("partition-0000");
        copy_files(&leader, older.path());
        engine.stop();
        filled(directory.path(), 2);
        fs::remove_dir_all(&leader).unwrap();
        copy_files(older.path(), &leader);
        let follower = directory.path().join("partition-0001");
        let before = contents(&follower);
        for again in 0..2 {
            let data = Data::open(directory.path(), 1).unwrap();
            let opened = Engine::open(data, OPTIONS, Box::new(|_, _| {}));
            let why = opened.map(|engine| engine.stop());
            assert!(matches!(why, Err(Error::LeaderBehind { .. })), "{round} {again}: {why:?}");
        }
        assert!(contents(&follower).len() >= before.len(), "nothing was taken from it");
    }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.metadata().unwrap().is_dir() {
            true => copy_files(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn a_copy_that_cannot_be_opened_whole_is_not_worn_out_by_trying() {
    let (directory, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(directory.path(), 2);
    let engine = open(directory.path(), 1);
    engine.backup(copy.path(), &mut |_, _| {}).unwrap();
    engine.stop();
    let marker = copy.path().join("partition-0001/format");
    let right = fs::read(&marker).unwrap();
    fs::write(&marker, b"not a marker").unwrap();
    // It tells who owned the partition last.
    let manifest = || fs::read(copy.path().join("partition-0000/MANIFEST")).unwrap();
    let before = manifest();
    for _ in 0..3 {
        let data = Data::open(copy.path(), 1).unwrap();
        let opened = Engine::open(data, OPTIONS, Box::new(|_, _| {}));
        assert!(matches!(opened.map(|engine| engine.stop()), Err(Error::Store { .. })));
        assert!(manifest() == before, "no owner was written down");
    }
    fs::write(&marker, right).unwrap();
    open(copy.path(), 1).stop();
    assert!(manifest() != before);
}

async fn take(engine: &Engine) -> hapax_core::Delivery {
    engine.receive(receive("orders", 1), LONG).await.unwrap().unwrap().remove(0)
}

async fn settle(engine: &Engine, delivery: &hapax_core::Delivery, result: &str) -> Settled {
    let result = Some(Blob { content_type: None, body: result.to_owned().into() });
    let verb = Verb::Done { result, emits: vec![] };
    let settle = Settle { lease: delivery.lease, verb };
    engine.settle(vec![(delivery.id.partition(), settle)]).await.unwrap().remove(0)
}

#[test]
fn a_restored_copy_gives_higher_fences_and_old_leases_settle_nothing() {
    for partitions in [1, 4] {
        let (directory, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let engine = open(directory.path(), partitions);
        runtime.block_on(async {
            create(&engine, "orders", Config { lease_ms: 600_000, ..Config::default() }).await;
            engine.send(vec![message("orders", "k", "b")]).await.unwrap();
        });
        engine.backup(copy.path(), &mut |_, _| {}).unwrap();
        engine.stop();
        // The original goes on for some lives, and then it is lost.
        for _ in 0..3 {
            open(directory.path(), 1).stop();
        }
        let engine = open(directory.path(), 1);
        let (before, secret) = (runtime.block_on(take(&engine)), *engine.data().secret());
        engine.stop();

        let engine = open(copy.path(), 1);
        assert_ne!(*engine.data().secret(), secret, "no lease from before opens");
        let after = runtime.block_on(async {
            let after = take(&engine).await;
            assert!(after.lease.fence > before.lease.fence, "{after:?} {before:?}");
            let old = settle(&engine, &before, "of the worker from before").await;
            assert!(matches!(old, Settled::LeaseLost { .. }), "{old:?}");
            after
        });
        let secret = *engine.data().secret();
        engine.stop();
        // A copy that was opened is data like any other.
        let engine = open(copy.path(), 1);
        assert_eq!(*engine.data().secret(), secret);
        runtime.block_on(async {
            let settled = settle(&engine, &after, "of the new worker").await;
            assert!(matches!(settled, Settled::Ok { .. }), "{settled:?}");
            create(&engine, "more", Config::default()).await;
            engine.send(vec![message("more", "k", "b")]).await.unwrap();
            let next = engine.receive(receive("more", 1), LONG).await.unwrap().unwrap();
            assert_eq!(next[0].lease.fence.epoch(), after.lease.fence.epoch() + 1);
            let view = engine.show(&queue("orders")).await.unwrap().unwrap();
            assert_eq!(view.stats.done_total, 1);
        });
        engine.stop();
    }
}

/// A key of a queue that is spread by keys, in this one of two partitions.
fn key_in(partition: usize, name: &str) -> String {
    let mut routes = Routes::new(2, recipe());
    routes.enter(&queue(name), &Config::default());
    let is_there = |key: &String| {
        let send = message(name, key, "");
        routes.of_new(&send.queue, send.digest, &send.content, || 0) == partition
    };
    (0..).map(|n| format!("key-{n}")).find(is_there).unwrap()
}

#[test]
fn l3_an_emit_waits_for_a_partition_that_still_has_the_deleted_queue_of_that_name() {
    let (directory, before) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let restored = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = open(directory.path(), 2);
    runtime.block_on(async {
        create(&engine, "orders", Config::default()).await;
        create(&engine, "emails", Config::default()).await;
    });
    engine.stop();
    copy_files(&directory.path().join("partition-0001"), before.path());

    let engine = open(directory.path(), 2);
    runtime.block_on(async {
        engine.delete(&queue("emails")).await.unwrap().unwrap();
        create(&engine, "emails", Config::default()).await;
        engine.send(vec![message("orders", &key_in(0, "orders"), "b")]).await.unwrap();
        let parent = take(&engine).await;
        // The partition of the emit is busy with something else, so that it does not arrive.
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let busy = engine.inspect(1, move |_| wait.recv());
        let copied = async {
            let content = Content::builder(&key_in(1, "emails")).build(b"emitted").unwrap();
            done(&engine, &parent, vec![Emit::new(queue("emails"), "n", content)]).await;
            copy_files(directory.path(), restored.path());
            go_on.send(()).unwrap();
        };
        tokio::join!(busy, copied).0.unwrap().unwrap();
    });
    engine.stop();
    // Of the other partition there is a copy from before, as where partitions are copied in turn.
    let follower = restored.path().join("partition-0001");
    fs::remove_dir_all(&follower).unwrap();
    copy_files(before.path(), &follower);
    let engine = open(restored.path(), 2);
    runtime.block_on(async {
        let received = engine.receive(receive("emails", 10), LONG).await.unwrap().unwrap();
        let bodies: Vec<_> = received.iter().map(|it| it.content.body()).collect();
        assert_eq!(bodies, [b"emitted"]);
    });
    engine.stop();
}

#[test]
fn data_is_made_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new").join("data");
    filled(&path, 2);
    for made in [path.clone(), path.join("partition-0000"), path.join("partition-0001")] {
        let mode = fs::metadata(&made).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", made.display());
    }
}
