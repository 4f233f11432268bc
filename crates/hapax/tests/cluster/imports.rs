//! A broker on disk moves into PostgreSQL, and everything that it knew is asked again there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use hapax_testing::http::{Connection, Request};
use hapax_testing::{PostgresServer, Proxy, Setup, Signal, printed, signal, suspend, until};
use serde_json::{Value, json};

use crate::{Cluster, broker_in, hapax, is_serving};

/// Bodies of this size fill the memory of a broker: it has rows on disk, in several pieces.
const BODY_BYTES: usize = 4 << 10;
const BACKLOG: usize = 6_000;
/// The lease of `held-1`, as 0.1 gave it: `golden/data-0.1` is described in the server's tests of
/// recipes.
const HELD: &str = "AQDf6muBrGeTFXNuJ-h2TZ9gBQAAAAAAAAACAAAAAAEAADmlg0n2eBXd";

/// A database, and beside it a broker on disk that is to move there.
struct Move {
    cluster: Cluster,
    source: PathBuf,
}

impl Move {
    fn start() -> Option<Self> {
        let cluster = Cluster::start()?;
        let source = cluster.directory.path().join("disk");
        std::fs::create_dir(&source).unwrap();
        Some(Self { cluster, source })
    }

    /// The broker on disk.
    fn disk(&self) -> Setup {
        let memory = ["--memory-bytes", "16MiB"];
        let arguments = [&["--auth", "tokens"][..], &memory].concat();
        broker_in(&self.source).partitions(3).arguments(&arguments)
    }

    fn data(&self) -> PathBuf {
        self.source.join("data")
    }

    /// A node on the database.
    fn node(&self) -> Setup {
        self.cluster.setup("node").arguments(&["--auth", "tokens", "--node-name", "node"])
    }

    fn import(&self, from: &Path, more: &[&str]) -> Command {
        let mut command = hapax(&["import"]);
        command.arg(from).args(more).env("HAPAX_STORE", &self.cluster.url);
        command
    }

    fn token(&self) -> String {
        let created = hapax(&["token", "create", "--can", "send,work,admin", "--data"])
            .arg(self.data())
            .output()
            .unwrap();
        String::from_utf8(created.stdout).unwrap().trim().to_owned()
    }

    /// A backlog that is larger than the memory, in rows of several pieces, and a tail.
    fn fill(&self) -> String {
        let token = self.token();
        let mut broker = self.disk().start();
        let mut door = broker.connection().token(&token);
        put(&mut door, "backlog", &json!({}));
        fill(&mut door);
        broker.kill();
        token
    }

    fn sql(&self, sql: &str) -> String {
        self.cluster.server.sql("queues", sql).trim().to_owned()
    }

    /// The same while the tables may not be there.
    fn try_sql(&self, sql: &str) -> Option<String> {
        let output = Command::new("psql").args(["-XqtA", "-c", sql, &self.cluster.url]).output();
        let output = output.unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }

    fn has_schema(&self) -> bool {
        self.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'hapax'") != "0"
    }
}

fn put(door: &mut Connection, queue: &str, rules: &Value) {
    door.ask(&Request::new("PUT", &format!("/v1/queues/{queue}")).json(rules)).is(201);
}

fn fill(door: &mut Connection) {
    for start in (0..BACKLOG).step_by(500) {
        let message = |number: usize| {
            // Nothing that could be compressed, and each of another key.
            let body = format!("{number:x}").repeat(BODY_BYTES);
            json!({ "key": format!("backlog-{number}"), "body": &body[..BODY_BYTES] })
        };
        let messages: Vec<Value> = (start..start + 500).map(message).collect();
        let batch = Request::post("/v1/queues/backlog/batch", &json!({ "messages": messages }));
        let answers = door.ask(&batch).is(200);
        let answers = answers["answers"].as_array().unwrap().clone();
        assert!(answers.iter().all(|answer| answer["answer"] == "accepted"), "{}", answers[0]);
    }
}

#[track_caller]
fn works(output: &Output) -> String {
    assert!(output.status.success(), "{}", printed(output));
    printed(output)
}

#[track_caller]
fn refused(output: &Output, code: i32, words: &[&str]) {
    let printed = printed(output);
    assert_eq!(output.status.code(), Some(code), "{printed}");
    for word in words {
        assert!(printed.contains(word), "{word}: {printed}");
    }
}

/// Every file of a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => drop(all.insert(path.clone(), std::fs::read(path).unwrap())),
        }
    }
    all
}

fn copy_files(from: &Path, to: &Path) {
    for (path, bytes) in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

fn receive(door: &mut Connection, queue: &str) -> Value {
    let path = format!("/v1/queues/{queue}/receive");
    let asked = json!({ "max": 1, "wait_ms": 20_000, "lease_ms": 3_600_000, "worker": "w" });
    let told = door.ask(&Request::post(&path, &asked)).is(200);
    told["messages"][0].clone()
}

#[track_caller]
fn settle(door: &mut Connection, queue: &str, item: &Value) {
    let path = format!("/v1/queues/{queue}/settle");
    let told = door.ask(&Request::post(&path, &json!({ "items": [item] }))).is(200);
    assert_eq!(told["answers"][0]["answer"], "ok", "{item}: {told}");
}

fn claim(key: &str) -> Request {
    Request::new("POST", "/v1/queues/charges/claims")
        .header("idempotency-key", key)
        .header("hapax-claim-id", &format!("id-of-{key}"))
        .header("hapax-lease-ms", "3600000")
        .body("19.90")
}

/// The leases that are held.
struct World {
    order: Value,
    letter: Value,
    claimed: Value,
}

/// Messages in every state that there is.
fn populate(door: &mut Connection) -> World {
    put(door, "orders", &json!({ "retention_ms": null }));
    put(door, "charges", &json!({ "on_lost": "park" }));
    put(door, "letters", &json!({ "order": "group", "max_attempts": 5 }));
    put(door, "next", &json!({}));
    put(door, "delays", &json!({}));
    let mut send = |queue, key, headers: &[(&str, &str)]| {
        let mut request = Request::send(queue, key, format!("body of {key}"));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        door.ask(&request).is(201);
    };
    for key in ["done", "emits", "dead", "leased", "ready"] {
        send("orders", key, &[]);
    }
    send("charges", "parked", &[]);
    send("letters", "first", &[("hapax-group", "g")]);
    send("letters", "second", &[("hapax-group", "g")]);
    send("delays", "later", &[("hapax-delay-ms", "3600000")]);
    send("delays", "soon", &[("hapax-delay-ms", "100")]);
    let mut leases = BTreeMap::new();
    for _ in 0..5 {
        let message = receive(door, "orders");
        leases.insert(message["key"].as_str().unwrap().to_owned(), message["lease"].clone());
    }
    let emit = json!({ "queue": "next", "key": "emitted", "body": "from emits" });
    for (key, mut item) in [
        ("done", json!({ "do": "done", "result": { "body": "paid" } })),
        ("emits", json!({ "do": "done", "emit": [emit] })),
        ("dead", json!({ "do": "fail", "error": "no such thing", "dead": true })),
        ("ready", json!({ "do": "release" })),
    ] {
        item["lease"] = leases[key].clone();
        settle(door, "orders", &item);
    }
    let parked = receive(door, "charges")["lease"].clone();
    settle(door, "charges", &json!({ "lease": parked, "do": "begin" }));
    settle(door, "charges", &json!({ "lease": parked, "do": "park", "error": "who knows" }));
    let letter = receive(door, "letters")["lease"].clone();
    settle(door, "letters", &json!({ "lease": letter, "do": "save", "name": "a", "body": "b" }));
    let claimed = door.ask(&claim("held")).is(201);
    let charged = door.ask(&claim("charged")).is(201)["lease"].clone();
    let done = json!({ "lease": charged, "do": "done", "result": { "body": "charged" } });
    settle(door, "charges", &done);
    until("the emit", || door.ask(&Request::get("/v1/queues/next/keys/emitted")).status == 200);
    World { order: leases["leased"].clone(), letter, claimed }
}

const KEYS: [(&str, &str); 12] = [
    ("orders", "done"),
    ("orders", "emits"),
    ("orders", "dead"),
    ("orders", "leased"),
    ("orders", "ready"),
    ("charges", "parked"),
    ("charges", "held"),
    ("charges", "charged"),
    ("letters", "first"),
    ("letters", "second"),
    ("delays", "later"),
    ("next", "emitted"),
];

/// What a broker says of everything, without what changes with time.
fn told(door: &mut Connection) -> Vec<(String, Value)> {
    let mut paths = Vec::new();
    for (queue, key) in KEYS {
        paths.push(format!("/v1/queues/{queue}/keys/{key}"));
    }
    for number in (0..BACKLOG).step_by(97) {
        paths.push(format!("/v1/queues/backlog/keys/backlog-{number}"));
    }
    for queue in ["orders", "charges", "letters", "next", "delays", "backlog"] {
        paths.push(format!("/v1/queues/{queue}"));
        for state in ["ready", "leased", "parked", "dead"] {
            if queue != "delays" {
                paths.push(format!("/v1/queues/{queue}/messages?state={state}&limit=1000"));
            }
        }
    }
    let mut answers = Vec::new();
    for path in paths {
        let answer = door.ask(&Request::get(&path));
        let mut value = answer.json();
        if let Some(fields) = value.as_object_mut() {
            for field in ["request_id", "instance", "next"] {
                fields.remove(field);
            }
            if let Some(stats) = fields.get_mut("stats").and_then(Value::as_object_mut) {
                stats.retain(|name, _| !name.contains("age") && !name.contains("per_s"));
            }
            if path.ends_with("/delays") {
                // One of them became ready meanwhile.
                fields.remove("stats");
            }
        }
        answers.push((format!("{path} {}", answer.status), value));
    }
    answers
}

#[test]
fn everything_that_a_broker_on_disk_knew_is_known_after_its_import() {
    let Some(moved) = Move::start() else { return };
    let token = moved.token();
    let mut broker = moved.disk().start();
    let mut door = broker.connection().token(&token);
    put(&mut door, "backlog", &json!({}));
    fill(&mut door);
    let world = populate(&mut door);
    let fence: u64 = world.claimed["fence"].as_str().unwrap().parse().unwrap();
    // A running broker is not imported.
    let output = moved.import(&moved.data(), &[]).output().unwrap();
    refused(&output, 1, &["in use by a running process", "stop the broker"]);
    assert!(!moved.has_schema(), "nothing was created");
    // Killed, started again, killed: it has a tail, which nobody closed.
    broker.kill();
    let mut broker = moved.disk().start();
    let mut door = broker.connection().token(&token);
    for number in 0..20 {
        door.ask(&Request::send("next", &format!("last-{number}"), "in the tail")).is(201);
    }
    let before = told(&mut door);
    broker.kill();
    let source = files(&moved.data());

    let output = moved.import(&moved.data(), &["-o", "json"]).output().unwrap();
    let printed = works(&output);
    assert!(printed.contains("do not start a broker on"), "{printed}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["tokens"], &report["retired"]), (&json!(1), &json!(false)), "{report}");
    let partitions = report["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 3);
    for it in partitions {
        assert!(it["row_bytes"].as_u64().unwrap() > 2 << 20, "several pieces: {report}");
    }
    assert!(partitions.iter().any(|it| it["batches"] != 0), "a tail: {report}");
    assert_eq!(files(&moved.data()), source, "the source is as it was");
    let closed = "SELECT count(*) FROM hapax.partition WHERE claim IS NULL";
    assert_eq!(moved.sql(closed), "0", "nobody closed it");

    let node = moved.node().start();
    until("the node to serve", || is_serving(&node));
    let mut door = node.connection().token(&token);
    for (before, after) in before.iter().zip(told(&mut door)) {
        assert_eq!(*before, after);
    }
    goes_on(&mut door, &world, fence);
    node.stop();
}

/// The keys are known, the leases settle, and what waited goes on.
fn goes_on(door: &mut Connection, world: &World, fence: u64) {
    for number in (0..BACKLOG).step_by(61) {
        let body = format!("{number:x}").repeat(BODY_BYTES);
        let again = Request::send("backlog", &format!("backlog-{number}"), &body[..BODY_BYTES]);
        assert_eq!(door.ask(&again).is(200)["answer"], "in_flight");
        let other = Request::send("backlog", &format!("backlog-{number}"), "another body");
        door.ask(&other).fails(422, "conflict");
    }
    let done = door.ask(&Request::send("orders", "done", "body of done")).is(200);
    assert_eq!(done["result"]["body"], "paid", "{done}");
    settle(door, "orders", &json!({ "lease": world.order, "do": "done" }));
    let held = door.ask(&claim("held")).is(201);
    assert_eq!(held["lease"], world.claimed["lease"], "the same claim");
    let charged = door.ask(&claim("charged")).is(200);
    assert_eq!(charged["result"]["body"], "charged", "{charged}");
    let item = json!({ "lease": held["lease"], "do": "done", "result": { "body": "late" } });
    settle(door, "charges", &item);
    settle(door, "letters", &json!({ "lease": world.letter, "do": "done" }));
    let second = receive(door, "letters");
    assert_eq!(second["key"], "second", "its group goes on: {second}");
    let next: u64 = second["fence"].as_str().unwrap().parse().unwrap();
    assert!(next > fence, "fences grow: {fence}, {next}");
    assert_eq!(receive(door, "delays")["key"], "soon");
    let resolve =
        Request::post("/v1/queues/charges/keys/parked/resolve", &json!({ "do": "retry" }));
    door.ask(&resolve).is(200);
    let redrive = Request::post("/v1/queues/orders/redrive", &json!({ "all": true }));
    assert_eq!(door.ask(&redrive).is(200)["moved"], 1);
    door.ask(&Request::send("orders", "new", "another one")).is(201);
}

#[test]
fn data_of_0_1_keeps_its_recipe_and_its_leases() {
    let Some(moved) = Move::start() else { return };
    golden(&moved);
    works(&moved.import(&moved.data(), &["--retire"]).output().unwrap());
    let secret = "SELECT count(*) FROM hapax.cluster WHERE fingerprints IS NULL";
    assert_eq!(moved.sql(secret), "1", "its recipe has no secret");
    let closed = "SELECT count(*) FROM hapax.partition WHERE claim IS NULL AND owner IS NULL";
    assert_eq!(moved.sql(closed), "2", "it was closed in good order");
    let (_, log) = broker_in(&moved.source).refuses();
    assert!(log.contains("was imported into a database"), "{log}");

    let node = moved.cluster.setup("node").start();
    until("the node to serve", || is_serving(&node));
    let mut door = node.connection();
    for (queue, key, body, id, result) in [
        ("orders", "order-42", "one book", "01a1e5db-6c56-7000-8000-000000000001", None),
        ("orders", "order-43", "two books", "01a1e5db-6820-7001-8000-000000000001", Some("paid")),
        ("held", "held-1", "b", "01a1e5db-7505-7001-8000-000000000005", None),
    ] {
        let again = door.ask(&Request::send(queue, key, body)).is(200);
        assert_eq!(again["id"], id, "{again}");
        assert_eq!(again["result"]["body"].as_str(), result, "{again}");
        door.ask(&Request::send(queue, key, "another")).fails(422, "conflict");
    }
    settle(&mut door, "held", &json!({ "lease": HELD, "do": "done" }));
    node.stop();
}

#[test]
fn damage_is_refused_by_file_and_offset_and_leaves_nothing() {
    let Some(moved) = Move::start() else { return };
    moved.fill();
    let data = files(&moved.data());
    // In runs every sector: which bytes of which run are read depends on merges.
    for (start, at, step) in [("run-", 100, 512), ("MANIFEST", 40, 1 << 20), ("secret", 3, 99)] {
        let is_named = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with(start);
        let named: Vec<_> = data.iter().filter(|(path, _)| is_named(path)).collect();
        for (path, bytes) in &named {
            let mut damaged = bytes.to_vec();
            (at..bytes.len()).step_by(step).for_each(|at| damaged[at] ^= 1);
            std::fs::write(path, &damaged).unwrap();
        }
        let output = moved.import(&moved.data(), &[]).output().unwrap();
        refused(&output, 1, &["damaged"]);
        let printed = printed(&output);
        let is_told = named.iter().any(|(path, _)| printed.contains(path.to_str().unwrap()));
        assert!(is_told, "{printed}");
        if start != "secret" {
            refused(&output, 1, &["at byte"]);
        }
        assert!(!moved.has_schema(), "nothing was created");
        named.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    }
    works(&moved.import(&moved.data(), &[]).output().unwrap());
}

#[test]
fn a_target_that_is_not_empty_and_a_wrong_url_are_refused() {
    let Some(moved) = Move::start() else { return };
    golden(&moved);
    let node = moved.cluster.setup("node").start();
    until("the node to serve", || is_serving(&node));
    node.connection().ask(&Request::new("PUT", "/v1/queues/mine").json(&json!({}))).is(201);
    let refuse = || {
        let output = moved.import(&moved.data(), &[]).output().unwrap();
        refused(&output, 2, &["already holds a broker", "DROP SCHEMA hapax CASCADE"]);
        refused(&output, 2, &["do not drop anything", "rename broker.json"]);
    };
    refuse();
    let setup = node.stop();
    refuse();
    let node = setup.start();
    until("the node to serve", || is_serving(&node));
    node.connection().ask(&Request::get("/v1/queues/mine")).is(200);

    let mut command = hapax(&["import", "data", "--store", "postgres://me:secret@host"]);
    let output = command.output().unwrap();
    refused(&output, 2, &["--store", "no database"]);
    assert!(!printed(&output).contains("secret"), "{}", printed(&output));
    let output = moved.import(&moved.source, &[]).output().unwrap();
    refused(&output, 1, &["not the data directory of a broker", "--data"]);
}

/// Lets the database do this with every row that is inserted into a table of an import.
fn meddle(server: &PostgresServer, table: &str, code: &str) {
    server.sql(
        "queues",
        &format!(
            "CREATE OR REPLACE FUNCTION public.meddle() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN {code} RETURN NEW; END $$;
             CREATE OR REPLACE FUNCTION public.watch() RETURNS event_trigger LANGUAGE plpgsql AS
               $$ BEGIN IF to_regclass('hapax.{table}') IS NOT NULL AND NOT EXISTS
                 (SELECT 1 FROM pg_trigger WHERE tgname = 'meddle') THEN
                 CREATE TRIGGER meddle BEFORE INSERT ON hapax.{table}
                   FOR EACH ROW EXECUTE FUNCTION public.meddle();
               END IF; END $$;
             CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
               EXECUTE FUNCTION public.watch()"
        ),
    );
}

fn meddle_no_more(server: &PostgresServer) {
    server.sql("queues", "DROP EVENT TRIGGER watch");
}

/// An import that copies, slowly.
fn copying(moved: &Move, from: &Path) -> Child {
    meddle(&moved.cluster.server, "chunk", "PERFORM pg_sleep(1);");
    let mut command = moved.import(from, &[]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let copies = format!(
        "SELECT (SELECT count(*) FROM hapax.chunk) >= 2 AND EXISTS (SELECT 1 FROM hapax.document
           WHERE name = 'import' AND encode(bytes, 'escape') LIKE '%{}')",
        from.display()
    );
    until("the import to copy", || moved.try_sql(&copies).as_deref() == Some("t"));
    meddle_no_more(&moved.cluster.server);
    child
}

#[track_caller]
fn is_no_broker(moved: &Move) {
    let (code, log) = moved.cluster.setup("early").refuses();
    assert_ne!(code, 0);
    assert!(log.contains("interrupted") && log.contains("hapax import"), "{log}");
    std::fs::remove_dir_all(moved.cluster.directory.path().join("early")).unwrap();
    for arguments in [&["cluster", "status"][..], &["token", "ls"]] {
        let mut command = hapax(arguments);
        let output = command.env("HAPAX_STORE", &moved.cluster.url).output().unwrap();
        refused(&output, 1, &["interrupted", "hapax import"]);
    }
}

#[track_caller]
fn is_whole(moved: &Move, token: &str) {
    let node = moved.node().start();
    until("the node to serve", || is_serving(&node));
    let mut door = node.connection().token(token);
    let stats = door.ask(&Request::get("/v1/queues/backlog")).is(200);
    assert_eq!(stats["stats"]["ready"], BACKLOG, "{stats}");
    node.stop();
}

#[test]
fn an_interrupted_import_is_no_broker_and_the_next_one_begins_anew() {
    let Some(moved) = Move::start() else { return };
    let token = moved.fill();
    let mut first = copying(&moved, &moved.data());
    // Another one does not disturb it.
    let copy = moved.cluster.directory.path().join("copy");
    copy_files(&moved.data(), &copy);
    let output = moved.import(&copy, &[]).output().unwrap();
    refused(&output, 2, &["under way", "wait for its end"]);
    is_no_broker(&moved);
    first.kill().unwrap();
    first.wait().unwrap();
    is_no_broker(&moved);
    works(&moved.import(&moved.data(), &[]).output().unwrap());
    is_whole(&moved, &token);
}

#[test]
fn a_paused_import_is_replaced_and_does_nothing_when_it_wakes() {
    let Some(moved) = Move::start() else { return };
    let token = moved.fill();
    let first = copying(&moved, &moved.data());
    suspend(first.id());
    let copy = moved.cluster.directory.path().join("copy");
    copy_files(&moved.data(), &copy);
    let second = copying(&moved, &copy);
    signal(first.id(), Signal::CONT);
    let late = first.wait_with_output().unwrap();
    refused(&late, 1, &["another import into the same database took the place of this one"]);
    works(&second.wait_with_output().unwrap());
    is_whole(&moved, &token);
}

#[test]
fn an_import_goes_on_after_a_crash_of_the_database() {
    let Some(mut moved) = Move::start() else { return };
    let token = moved.fill();
    let import = copying(&moved, &moved.data());
    moved.cluster.server.stop();
    moved.cluster.server.launch();
    works(&import.wait_with_output().unwrap());
    is_whole(&moved, &token);
}

/// The directory with data of 0.1, which is small.
fn golden(moved: &Move) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/tests/golden/data-0.1");
    copy_files(&golden, &moved.data());
}

/// The same with a journal that nobody closed, and a token.
fn golden_with_a_tail(moved: &Move) {
    golden(moved);
    let mut broker = broker_in(&moved.source).start();
    let mut door = broker.connection();
    for number in 0..20 {
        door.ask(&Request::send("orders", &format!("last-{number}"), "in the tail")).is(201);
    }
    broker.kill();
    drop(moved.token());
}

#[test]
fn a_damaged_journal_is_refused_by_file_and_offset_and_leaves_nothing() {
    let Some(moved) = Move::start() else { return };
    golden_with_a_tail(&moved);
    let mut refusals = 0;
    for (path, bytes) in files(&moved.data()) {
        let tail = b"in the tail";
        let Some(at) = bytes.windows(tail.len()).position(|it| it == tail) else { continue };
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let output = moved.import(&moved.data(), &[]).output().unwrap();
        refused(&output, 1, &[path.to_str().unwrap(), "is damaged at byte"]);
        assert!(!moved.has_schema(), "nothing was created");
        std::fs::write(&path, &bytes).unwrap();
        refusals += 1;
    }
    assert_eq!(refusals, 2, "each partition has a tail");
    works(&moved.import(&moved.data(), &[]).output().unwrap());
}

#[test]
fn a_row_that_is_not_what_was_written_is_noticed() {
    let Some(moved) = Move::start() else { return };
    golden_with_a_tail(&moved);
    let flip = |column: &str, at: u32| {
        format!("NEW.{column} = set_byte(NEW.{column}, {at}, get_byte(NEW.{column}, {at}) # 1);")
    };
    for (table, code) in [
        // A byte of a block, of what is behind the blocks, of a batch, of a manifest, of a token.
        ("chunk", flip("bytes", 100)),
        ("chunk", "NEW.bytes = NEW.bytes || 'x';".to_owned()),
        ("chunk", "IF NEW.partition = 1 THEN RETURN NULL; END IF;".to_owned()),
        ("journal", format!("IF length(NEW.batch) > 9 THEN {} END IF;", flip("batch", 9))),
        ("journal", "IF NEW.sequence % 2 = 0 THEN RETURN NULL; END IF;".to_owned()),
        ("manifest", flip("bytes", 30)),
        ("partition", "NEW.epoch = 7;".to_owned()),
        ("document", format!("IF NEW.name = 'tokens' THEN {} END IF;", flip("bytes", 9))),
    ] {
        meddle(&moved.cluster.server, table, &code);
        let output = moved.import(&moved.data(), &[]).output().unwrap();
        refused(&output, 1, &["differs from what was written", "Nothing is left of it"]);
        assert!(!moved.has_schema(), "{table}: {code}");
        meddle_no_more(&moved.cluster.server);
    }
    works(&moved.import(&moved.data(), &[]).output().unwrap());
}

#[test]
fn a_reply_lost_at_any_statement_of_an_import_changes_nothing() {
    let Some(moved) = Move::start() else { return };
    golden_with_a_tail(&moved);
    let proxy = Proxy::to(moved.cluster.server.port());
    let far = format!("postgres://postgres@127.0.0.1:{}/queues", proxy.port);
    let imported = |url: &str| {
        let output = moved.import(&moved.data(), &[]).env("HAPAX_STORE", url).output().unwrap();
        works(&output);
        let whole = moved.sql(
            "SELECT (SELECT count(*) FROM hapax.cluster), (SELECT sum(length(bytes)) FROM
               hapax.chunk), (SELECT count(*) FROM hapax.journal), (SELECT count(*) FROM
               hapax.manifest), (SELECT string_agg(name, ',') FROM hapax.document)",
        );
        moved.sql("DROP SCHEMA hapax CASCADE");
        whole
    };
    let expected = imported(&moved.cluster.url);
    assert!(expected.starts_with("1|") && expected.ends_with("|tokens"), "{expected}");
    for lost in 0..200 {
        proxy.lose_reply_after(lost);
        assert_eq!(imported(&far), expected, "reply {lost}");
        if proxy.is_armed() {
            assert!(lost > 15, "an import has more statements than {lost}");
            return;
        }
    }
    panic!("an import has more statements than were tried");
}

/// The original may go on beside a copy: what it leased is not valid there.
#[test]
fn a_backup_is_imported_as_a_copy() {
    let Some(moved) = Move::start() else { return };
    golden(&moved);
    let backup = moved.cluster.directory.path().join("backup");
    works(&hapax(&["backup"]).arg(moved.data()).arg(&backup).output().unwrap());
    refused(&moved.import(&backup, &["--retire"]).output().unwrap(), 2, &["is a backup"]);
    assert!(!moved.has_schema(), "nothing was created");
    let printed = works(&moved.import(&backup, &[]).output().unwrap());
    assert!(printed.contains("leases of the original are not valid"), "{printed}");
    let node = moved.cluster.setup("node").start();
    until("the node to serve", || is_serving(&node));
    let mut door = node.connection();
    let item = json!({ "items": [{ "lease": HELD, "do": "done" }] });
    let told = door.ask(&Request::post("/v1/queues/held/settle", &item)).is(200);
    assert_eq!(told["answers"][0]["answer"], "lease_lost", "{told}");
    let again = door.ask(&Request::send("orders", "order-43", "two books")).is(200);
    assert_eq!(again["result"]["body"], "paid", "{again}");
    node.stop();
}
