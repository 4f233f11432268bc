//! Data of every recipe: its keys are known and its bodies are compared, whatever release wrote
//! them, after a restart and in a copy.
//!
//! `golden/data-0.1` is a backup that release 0.1 made of data with two partitions: the messages
//! below, `order-43` done with the result `paid`, `charge-1` claimed and done with `charged`, and
//! `held-1` leased.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::broker::{Ask, Broker, ask, text};

/// The lease of `held-1`, as 0.1 gave it.
const HELD: &str = "AQDf6muBrGeTFXNuJ-h2TZ9gBQAAAAAAAAACAAAAAAEAADmlg0n2eBXd";

const QUEUES: [(&str, &str); 5] = [
    ("orders", r#"{"retention_ms":null}"#),
    ("grouped", r#"{"retention_ms":null,"dedup_scope":"group"}"#),
    ("ordered", r#"{"retention_ms":null,"order":"group"}"#),
    ("charges", r#"{"retention_ms":null}"#),
    ("held", r#"{"retention_ms":null}"#),
];

/// What was sent, and the id that it got in the data of 0.1.
struct Known {
    queue: &'static str,
    key: &'static str,
    group: Option<&'static str>,
    own: Option<&'static str>,
    body: Vec<u8>,
    id: &'static str,
}

const LONG_KEY: &str = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\
                        kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk";

fn known() -> Vec<Known> {
    let known = |queue, key, body: &[u8], id| Known {
        queue,
        key,
        group: None,
        own: None,
        body: body.to_vec(),
        id,
    };
    let in_group = |group, known| Known { group: Some(group), ..known };
    vec![
        known("orders", "order-42", b"one book", "01a1e5db-6c56-7000-8000-000000000001"),
        known("orders", "order-43", b"two books", "01a1e5db-6820-7001-8000-000000000001"),
        known("orders", LONG_KEY, &[b'x'; 1_024], "01a1e5db-72f7-7000-8000-000000000002"),
        Known {
            own: Some("print"),
            ..known("orders", "own", b"a", "01a1e5db-7318-7000-8000-000000000003")
        },
        in_group("g", known("grouped", "a", b"one", "01a1e5db-7334-7000-8000-000000000004")),
        in_group("h", known("grouped", "a", b"two", "01a1e5db-734d-7001-8000-000000000002")),
        in_group("g", known("ordered", "o", b"first", "01a1e5db-7368-7001-8000-000000000003")),
        known("charges", "charge-1", b"19.90", "01a1e5db-7390-7001-8000-000000000004"),
        known("held", "held-1", b"b", "01a1e5db-7505-7001-8000-000000000005"),
    ]
}

impl Known {
    fn ask(&self) -> Ask {
        let what = if self.queue == "charges" { "claims" } else { "messages" };
        let mut it = ask("POST", &format!("/v1/queues/{}/{what}", self.queue))
            .header("idempotency-key", self.key);
        for (name, value) in [("hapax-group", self.group), ("hapax-fingerprint", self.own)] {
            if let Some(value) = value {
                it = it.header(name, value);
            }
        }
        it.body(self.body.clone())
    }
}

/// Every key is answered by the message that has it, and a message that differs is noticed.
async fn check(broker: &Broker, ids: &[String]) {
    for (known, id) in known().iter().zip(ids) {
        let told = broker.ask(known.ask()).await;
        assert!(told.status.is_success(), "{} {}: {}", known.queue, known.key, told.text());
        let told: Value = serde_json::from_slice(&told.body).unwrap();
        assert_eq!(text(&told, "id"), id, "the first answer: {told}");
        assert_ne!(told["answer"], "accepted", "{told}");
        match known.key {
            "order-43" => assert_eq!(told["result"]["body"], "paid", "{told}"),
            "charge-1" => assert_eq!(told["result"]["body"], "charged", "{told}"),
            _ => assert_eq!(told["answer"], "in_flight", "{told}"),
        }
        let other = match known.own {
            Some(_) => Known { own: Some("another"), ..unlike(known) },
            None => unlike(known),
        };
        let refused = broker.ask(other.ask()).await.fails(422, "conflict");
        assert_eq!(text(&refused, "id"), id, "{refused}");
        let shown = broker.ask(known_key(known)).await.is(200);
        assert_eq!(text(&shown, "id"), id, "{shown}");
    }
}

fn known_key(known: &Known) -> Ask {
    let group = known.group.map(|group| format!("?group={group}")).unwrap_or_default();
    ask("GET", &format!("/v1/queues/{}/keys/{}{group}", known.queue, known.key))
}

/// The same with another body.
fn unlike(known: &Known) -> Known {
    let mut body = known.body.clone();
    *body.last_mut().unwrap() ^= 1;
    Known { body, ..*known }
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

/// Checks it as it is, after a restart, and in a copy that a backup made, opened twice.
async fn check_through_lives(path: &Path, ids: &[String]) {
    let copy = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let broker = Broker::of(path);
        check(&broker, ids).await;
        let target = copy.path().join("copy");
        if !target.exists() {
            broker.service.engine().backup(&target, &mut |_, _| {}).unwrap();
        }
        drop(broker);
    }
    let head = |path: &Path| -> Value {
        serde_json::from_slice(&fs::read(path.join("broker.json")).unwrap()).unwrap()
    };
    for _ in 0..2 {
        let broker = Broker::of(&copy.path().join("copy"));
        check(&broker, ids).await;
        drop(broker);
    }
    let copied = head(&copy.path().join("copy"));
    assert_eq!(copied, head(path), "format and secret of fingerprints are those of the data");
    let secret = |path: &Path| fs::read(path.join("secret")).unwrap();
    assert_ne!(secret(&copy.path().join("copy")), secret(path), "that of leases is another");
}

#[tokio::test]
async fn k4_data_of_0_1_answers_its_keys_with_the_first_answer() {
    let directory = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data-0.1");
    copy_files(&golden, directory.path());
    let ids: Vec<String> = known().iter().map(|known| known.id.to_owned()).collect();
    check_through_lives(directory.path(), &ids).await;

    let broker = Broker::of(directory.path());
    let done = json!({"lease": HELD, "do": "done"});
    assert_eq!(broker.settle("held", done).await["answer"], "ok", "0.1 sealed this lease");
    let more = Known { key: "order-44", ..known().remove(0) };
    broker.ask(more.ask()).await.is(201);
    broker.ask(unlike(&more).ask()).await.fails(422, "conflict");
    drop(broker);
    let head = fs::read_to_string(directory.path().join("broker.json")).unwrap();
    assert!(head.contains("\"format\":1"), "it keeps its recipe: {head}");
}

#[tokio::test]
async fn k4_new_data_answers_its_keys_with_the_first_answer() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Broker::of(directory.path());
    for (queue, config) in QUEUES {
        broker.put(queue, config).await;
    }
    let mut ids = Vec::new();
    for known in known() {
        let told = broker.ask(known.ask()).await.is(201);
        ids.push(text(&told, "id").to_owned());
        let result = match known.key {
            "order-43" => json!({"body": "paid"}),
            "charge-1" => json!({"body": "charged"}),
            _ => continue,
        };
        // Of the two messages that are there by then, each may come first.
        let mut lease = told["lease"].clone();
        while lease.is_null() {
            let delivery = broker.receive_one(known.queue).await;
            match delivery["key"] == known.key {
                true => lease = delivery["lease"].clone(),
                false => continue,
            }
        }
        let done = json!({"lease": lease, "do": "done", "result": result});
        assert_eq!(broker.settle(known.queue, done).await["answer"], "ok");
    }
    drop(broker);
    let head = fs::read_to_string(directory.path().join("broker.json")).unwrap();
    assert!(head.contains("\"format\":2"), "{head}");
    check_through_lives(directory.path(), &ids).await;
}

#[tokio::test]
async fn k3_no_two_data_directories_share_their_secret() {
    let secret = |broker: &Broker| format!("{:?}", broker.service.recipe().own("x"));
    assert_ne!(secret(&Broker::open()), secret(&Broker::open()));
}
