//! A20, the second half: a backup of a broker that goes on, restored, is the broker of one moment,
//! with its keys.

use std::collections::HashMap;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::exits::contents;
use crate::machine::say;
use crate::{broker_in, hapax};
use hapax_testing::history::{Event, Operation, Sent, Settled};
use hapax_testing::http::Request;
use hapax_testing::load::{Load, QUEUE, body_of};
use hapax_testing::{Setup, printed, until};

const BACKUPS: usize = 3;
const PER_BACKUP: usize = 50;

#[test]
fn a20_a_backup_under_load_restores_to_a_prefix_with_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let broker = setup.start();
    let load = Load::start(&setup);
    let mut moments = Vec::new();
    for number in 0..BACKUPS {
        load.gets_on(PER_BACKUP);
        let target = directory.path().join(format!("backup-{number}"));
        let began = load.history.tick();
        let mut command = broker.command(&["backup", "--online"]);
        let output = command.arg(&target).output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
        moments.push((target, began, load.history.tick()));
    }
    load.gets_on(PER_BACKUP);
    let history = load.finish();
    history.is_kept();
    broker.stop();

    let operations = history.operations();
    for (number, (backup, began, ended)) in moments.into_iter().enumerate() {
        let restored = directory.path().join(format!("restored-{number}"));
        ran(hapax(&["restore"]).arg(&backup).arg(&restored));
        ran(hapax(&["check"]).arg(&restored));
        let setup = broker_in(directory.path()).data(&restored);
        let broker = setup.start();
        let keys = Keys::of(&operations);
        let found = keys.look(&setup);
        keys.check(&found, began, ended);
        let kept = found.values().filter(|found| found.is_some()).count();
        let missing = found.len() - kept;
        assert!(kept >= PER_BACKUP * 2, "only {kept} keys are in the backup");
        assert!(missing > 0, "the broker did not go on after the backup");
        broker.has_not_panicked();
        broker.stop();
        say(&format!("A20: backup {number} holds {kept} keys, {missing} came later"));
        std::fs::remove_dir_all(&restored).unwrap();
        std::fs::remove_dir_all(&backup).unwrap();
    }
}

fn ran(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
}

/// What is known of a key from its clients.
#[derive(Debug, Default)]
struct Known<'a> {
    id: Option<&'a str>,
    /// The end of the first answer that knew it, the beginning of its first send.
    answered: Option<u64>,
    sent: u64,
    /// The result that was confirmed, and when.
    done: Option<(&'a str, u64)>,
}

/// What the restored broker says of a key.
#[derive(Debug)]
struct Found {
    id: String,
    result: Option<String>,
    body: Option<String>,
}

struct Keys<'a>(HashMap<&'a str, Known<'a>>);

impl<'a> Keys<'a> {
    fn of(operations: &'a [Operation]) -> Self {
        let mut keys: HashMap<&str, Known<'_>> = HashMap::new();
        for Operation { began, ended, event, .. } in operations {
            match event {
                Event::Send { key, answer } => {
                    let known = keys
                        .entry(key)
                        .or_insert_with(|| Known { sent: *began, ..Known::default() });
                    known.sent = known.sent.min(*began);
                    let (Sent::Accepted { id } | Sent::InFlight { id } | Sent::Done { id, .. }) =
                        answer
                    else {
                        continue;
                    };
                    known.id = Some(id);
                    known.answered = Some(known.answered.unwrap_or(*ended).min(*ended));
                }
                Event::Settle { key, result, answer: Settled::Ok, .. } => {
                    let known = keys.entry(key).or_default();
                    known.done = known.done.or(Some((result, *ended)));
                }
                _ => {}
            }
        }
        Self(keys)
    }

    fn look(&self, setup: &Setup) -> HashMap<&'a str, Option<Found>> {
        let mut door = setup.connection();
        let mut found = HashMap::new();
        for key in self.0.keys() {
            let path = format!("/v1/queues/{QUEUE}/keys/{key}");
            let response = door.ask(&Request::get(&path));
            if response.status == 404 {
                response.fails(404, "no_such_key");
                found.insert(*key, None);
                continue;
            }
            let told = response.is(200);
            let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            let id = text(&told["id"]).unwrap();
            let (result, body) = (text(&told["result"]["body"]), text(&told["body"]));
            found.insert(*key, Some(Found { id, result, body }));
        }
        found
    }

    /// Nothing confirmed before the backup is missing, nothing born after it is there, and between
    /// them there is one line in time.
    fn check(&self, found: &HashMap<&str, Option<Found>>, began: u64, ended: u64) {
        let mut last_kept = 0;
        let mut first_missing = u64::MAX;
        for (key, known) in &self.0 {
            let Some(found) = &found[key] else {
                let answered = known.answered.unwrap_or(u64::MAX);
                assert!(answered > began, "{key} was confirmed before the backup: {known:?}");
                first_missing = first_missing.min(answered);
                continue;
            };
            assert!(known.sent < ended, "{key} was sent after the backup: {known:?}");
            assert!(known.id.is_none_or(|id| id == found.id), "{key}: {known:?}, {found:?}");
            last_kept = last_kept.max(known.sent);
            if let Some((result, at)) = known.done {
                let kept = found.result.as_deref();
                assert!(at > began || kept == Some(result), "{key}: {known:?}, {found:?}");
                assert!(kept.is_none_or(|kept| kept == result), "{key}: {known:?}, {found:?}");
            }
            if found.result.is_none() {
                assert_eq!(found.body.as_deref(), Some(body_of(key).as_str()), "{key}");
            }
        }
        // A prefix: no key that is missing was confirmed before one that is there was sent.
        assert!(first_missing > last_kept, "a hole at {first_missing}, kept until {last_kept}");
    }
}

on_one_and_on_four!(a20_a_restored_broker_takes_no_key_for_a_new_one);

fn a20_a_restored_broker_takes_no_key_for_a_new_one(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let done = door.ask(&Request::send("orders", "done", "x")).is(201)["id"].clone();
    let taken = door.ask(&Request::post("/v1/queues/orders/receive", &json!({}))).is(200);
    let lease = &taken["messages"][0]["lease"];
    let item = json!({ "lease": lease, "do": "done", "result": { "body": "r" } });
    door.ask(&Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }))).is(200);
    let open = door.ask(&Request::send("orders", "open", "x")).is(201)["id"].clone();
    broker.stop();

    // Of a stopped one.
    let (backup, restored) = (directory.path().join("backup"), directory.path().join("restored"));
    ran(hapax(&["backup"]).arg(&setup.data).arg(&backup));
    ran(hapax(&["restore"]).arg(&backup).arg(&restored));
    let setup = broker_in(directory.path()).partitions(partitions).data(&restored);
    let broker = setup.start();
    let mut door = broker.connection();
    let known = door.ask(&Request::send("orders", "done", "x")).is(200);
    assert_eq!((&known["id"], &known["result"]["body"]), (&done, &json!("r")));
    let known = door.ask(&Request::send("orders", "open", "x")).is(200);
    assert_eq!(known["id"], open);
    // The original may have gone on: a lease that was given before settles nothing here.
    let item = json!({ "lease": lease, "do": "done", "result": { "body": "r" } });
    let told = door.ask(&Request::post("/v1/queues/orders/settle", &json!({ "items": [item] })));
    assert_eq!(told.is(200)["answers"][0]["answer"], "lease_lost", "{}", told.text());
    until("its message", || {
        let told = door.ask(&Request::post("/v1/queues/orders/receive", &json!({}))).is(200);
        (told["messages"][0]["key"] == "open").then_some(())
    });
    broker.has_not_panicked();
}

on_one_and_on_four!(a20_an_incomplete_copy_is_not_restored);

/// What a copy that was broken off looks like: it is refused, stays as it is, and nothing is made.
fn a20_an_incomplete_copy_is_not_restored(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    door.ask(&Request::send("orders", "k", "x")).is(201);
    let inside = setup.data.join("copies");
    let told = broker.command(&["backup", "--online"]).arg(&inside).output().unwrap();
    assert!(!told.status.success() && !inside.exists(), "{}", printed(&told));
    broker.stop();
    let before = contents(&setup.data);
    let backup = directory.path().join("backup");
    ran(hapax(&["backup"]).arg(&setup.data).arg(&backup));
    assert!(before == contents(&setup.data), "a backup only reads");
    let told = hapax(&["backup"]).arg(&setup.data).arg(&inside).output().unwrap();
    assert!(!told.status.success() && !inside.exists(), "{}", printed(&told));
    for missing in ["broker.json", "secret", "partition-0000/format", "partition-0000"] {
        let (path, aside) = (backup.join(missing), directory.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        let before = contents(&backup);
        let restored = directory.path().join("restored");
        let told = hapax(&["restore"]).arg(&backup).arg(&restored).output().unwrap();
        let said = printed(&told);
        assert!(!told.status.success() && said.contains("missing"), "without {missing}: {said}");
        let told = hapax(&["check"]).arg(&backup).output().unwrap();
        assert!(!told.status.success(), "without {missing}: {}", printed(&told));
        let (code, said) =
            broker_in(directory.path()).partitions(partitions).data(&backup).refuses();
        assert!(code != 0 && said.contains(missing), "without {missing}: {said}");
        assert!(before == contents(&backup), "without {missing} something was changed");
        assert!(!restored.exists(), "without {missing} something was made");
        std::fs::rename(&aside, &path).unwrap();
    }
    let restored = directory.path().join("restored");
    ran(hapax(&["restore"]).arg(&backup).arg(&restored));
}
