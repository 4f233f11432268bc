//! A5, and the half of A11 that a kill cannot show: a sync that fails is no sync, and nothing is
//! told before its sync is over. strace stands between the broker and the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hapax_client::{Client, Message, Outcome};
use serde_json::json;

use crate::broker_in;
use crate::machine::{run, say, skip, tool};
use hapax_testing::http::Request;
use hapax_testing::{PATIENCE, Setup, pause};

/// Syncs of one thread before the fault: more than any thread but the journal's own gets to.
const SYNCS_BEFORE: usize = 80;
const CLIENTS: usize = 4;

/// A broker whose syncs are watched, and tampered with.
fn watched(directory: &Path, fault: &str) -> Result<Setup, String> {
    let strace = tool("strace").ok_or("strace is not installed")?;
    let strace = strace.display().to_string();
    let inject = format!("inject=fdatasync:{fault}");
    let fixed = ["-f", "-qq", "--seccomp-bpf", "-e", "trace=fdatasync,fsync", "-e", &inject];
    let probe = [&fixed[..], &["-o", "/dev/null", "true"]].concat();
    run("strace", &probe)?;
    let trace = directory.join("trace").display().to_string();
    // -D: the broker is our child, and strace its companion. -ff: a file for each thread.
    let own = [&strace, "-D", "-ff", "-ttt", "-y", "-o", &trace];
    Ok(broker_in(directory).under(&[&own[..], &fixed[..]].concat()))
}

/// A sync as strace saw it.
#[derive(Debug)]
struct Sync {
    began_s: f64,
    file: PathBuf,
    is_injected: bool,
    has_failed: bool,
}

fn syncs(directory: &Path) -> Vec<Sync> {
    let mut syncs = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("trace.") {
            continue;
        }
        for line in fs::read_to_string(entry.path()).unwrap().lines() {
            let (Some((time, call)), Some((_, result))) =
                (line.split_once(' '), line.rsplit_once(" = "))
            else {
                continue;
            };
            let file = call.split(['<', '>']).nth(1).unwrap_or_default();
            syncs.push(Sync {
                began_s: time.parse().unwrap_or_default(),
                file: PathBuf::from(file),
                is_injected: result.contains("INJECTED"),
                has_failed: result.starts_with("-1"),
            });
        }
    }
    syncs.sort_by(|one, other| one.began_s.total_cmp(&other.began_s));
    syncs
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A send that was answered, by the wall clock.
#[derive(Debug)]
struct Answered {
    key: String,
    id: String,
    began_s: f64,
}

#[test]
fn a5_after_a_failed_sync_nothing_is_confirmed_and_a_restart_recovers() {
    const ROW: &str = "A5, a sync that fails";
    let directory = tempfile::tempdir().unwrap();
    let setup = match watched(directory.path(), &format!("error=EIO:when={SYNCS_BEFORE}")) {
        Ok(setup) => setup,
        Err(why) => return skip(ROW, &why),
    };
    let mut broker = setup.start();
    broker.connection().ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let is_over = AtomicBool::new(false);
    let (status, answered) = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (setup, is_over) = (&setup, &is_over);
                scope.spawn(move || send_until(setup, number, is_over))
            })
            .collect();
        let stream = scope.spawn(|| stream_until(&setup, &is_over));
        let status = broker.ends(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
        let answered = senders.into_iter().chain([stream]);
        let answered: Vec<Answered> = answered.flat_map(|thread| thread.join().unwrap()).collect();
        (status, answered)
    });
    assert!(!status.success(), "the broker ended as if all were well");
    assert!(setup.log().contains("sync"), "the log says why:\n{}", setup.log());
    let syncs = syncs(directory.path());
    let failed = syncs.iter().find(|sync| sync.is_injected).expect("the fault was not injected");
    let name = failed.file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(failed.has_failed && name.starts_with("journal-"), "{failed:?}");
    let again = |sync: &&Sync| sync.began_s > failed.began_s && sync.file == failed.file;
    assert_eq!(syncs.iter().find(again).map(|sync| sync.began_s), None, "it was tried again");
    // What came after the failed sync had begun was in no sync at all.
    let late: Vec<&Answered> =
        answered.iter().filter(|answer| answer.began_s > failed.began_s).collect();
    assert!(late.is_empty(), "confirmed without a sync: {late:?}");
    assert!(answered.len() > SYNCS_BEFORE, "only {} sends before the fault", answered.len());

    let setup = broker_in(directory.path());
    let broker = setup.start();
    let mut door = broker.connection();
    for Answered { key, id, .. } in &answered {
        let told = door.ask(&Request::send("orders", key, "x")).is(200);
        assert_eq!(told["id"], json!(id), "{told}");
    }
    broker.has_not_panicked();
    say(&format!(
        "A5: one sync failed; {} answers before it hold, none came after",
        answered.len()
    ));
}

/// Sends one message after the other; those that were answered.
fn send_until(setup: &Setup, number: usize, is_over: &AtomicBool) -> Vec<Answered> {
    let mut door = setup.connection();
    let mut answered = Vec::new();
    for count in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("http-{number}-{count}");
        let began_s = now_s();
        let Ok(response) = door.try_ask(&Request::send("orders", &key, "x")) else {
            pause(Duration::from_millis(5));
            continue;
        };
        if response.status == 201 {
            let id = response.json()["id"].as_str().unwrap().to_owned();
            answered.push(Answered { key, id, began_s });
        }
    }
    answered
}

fn stream_until(setup: &Setup, is_over: &AtomicBool) -> Vec<Answered> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let patience = Duration::from_millis(500);
        let client = Client::builder(&setup.url()).timeout(patience).connect().unwrap();
        let queue = client.queue("orders");
        let mut answered = Vec::new();
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            count += 1;
            let key = format!("grpc-{count}");
            let began_s = now_s();
            if let Ok(answer) = queue.send(Message::new("x").key(key.clone())).await
                && answer.outcome == Outcome::Accepted
            {
                answered.push(Answered { key, id: answer.id.to_string(), began_s });
            }
        }
        answered
    })
}

/// How long every sync takes, once it is slow. strace is not exact to the last millisecond.
const SLOW: Duration = Duration::from_millis(120);
const AT_LEAST: Duration = Duration::from_millis(100);
const PAIRS: usize = 8;

#[test]
fn a11_no_answer_not_even_a_duplicates_comes_before_the_first_is_synced() {
    const ROW: &str = "A11, a slow sync";
    let directory = tempfile::tempdir().unwrap();
    // Every one, since strace counts those of each thread by itself, and both the writer and the
    // thread of the journal sync.
    let fault = format!("delay_enter={}", SLOW.as_micros());
    let setup = match watched(directory.path(), &fault) {
        Ok(setup) => setup,
        Err(why) => return skip(ROW, &why),
    };
    let broker = setup.start();
    let mut door = broker.connection();
    let wait = json!({ "lease_ms": 600_000 });
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&wait)).is(201);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let queue = runtime.block_on(async { Client::connect(&setup.url()).unwrap().queue("orders") });
    let mut shortest = Duration::MAX;
    for pair in 0..PAIRS {
        let key = format!("pair-{pair}");
        // Nobody knew the key before: whichever send the scheduler lets go first, its sync cannot
        // be over sooner than this, and neither answer may come before it.
        let began = Instant::now();
        let ((first, first_took), (second, second_took)) = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let response = door.ask(&Request::send("orders", &key, "x"));
                (response, began.elapsed())
            });
            let second = runtime.block_on(queue.send(Message::new("x").key(key.clone()))).unwrap();
            let second_took = began.elapsed();
            (first.join().unwrap(), (second, second_took))
        });
        // One of them is the first, the other its duplicate.
        let first = first.is(if second.is_new() { 200 } else { 201 });
        assert_eq!(first["id"], second.id.to_string(), "one key, one id");
        for took in [first_took, second_took] {
            assert!(took >= AT_LEAST, "answered after {took:?}, before a sync could be over");
            shortest = shortest.min(took);
        }
    }
    let told = door.ask(&Request::post("/v1/queues/orders/receive", &json!({}))).is(200);
    let lease = &told["messages"][0]["lease"];
    let item = json!({ "lease": lease, "do": "done", "result": { "body": "r" } });
    let began = Instant::now();
    let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }));
    assert_eq!(door.ask(&settle).is(200)["answers"][0]["answer"], "ok");
    assert!(began.elapsed() >= AT_LEAST, "settled after {:?}, before a sync", began.elapsed());
    broker.has_not_panicked();
    say(&format!(
        "A11: syncs of {SLOW:?}; {PAIRS} sends and {PAIRS} duplicates, the fastest answer after \
         {shortest:?}"
    ));
}
