//! A6: the disk is full, and then it is not.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use hapax_client::{Admin, Client, Code};
use hapax_wire::proto;
use serde_json::{Value, json};

use crate::broker_in;
use crate::machine::{Mount, say, skip};
use hapax_testing::http::{Connection, Request, Response};
use hapax_testing::{until, within};

const ROW: &str = "A6, a full disk";
/// The free space below which the broker takes no more, and two segments for every journal.
const FREE_MEBIBYTES: u32 = 384;
const SEGMENTS_MEBIBYTES: u32 = 128;
const MESSAGES: usize = 40;

on_one_and_on_four!(a6_a_full_disk_refuses_sends_and_finishes_work_and_recovers_by_itself);

fn a6_a_full_disk_refuses_sends_and_finishes_work_and_recovers_by_itself(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let mebibytes = FREE_MEBIBYTES + SEGMENTS_MEBIBYTES * u32::from(partitions);
    let disk = match Mount::memory(&directory.path().join("disk"), mebibytes) {
        Ok(disk) => disk,
        Err(why) => return skip(ROW, &why),
    };
    let setup = broker_in(directory.path()).partitions(partitions).data(&disk.path().join("data"));
    let mut broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let mut ids = Vec::new();
    for number in 0..MESSAGES {
        ids.push(accepted(&mut door, &format!("before-{number}")));
    }

    let filler = disk.path().join("filler");
    fill(&filler);
    let refusal = refused(&mut door);
    let problem = refusal.fails(507, "store_full");
    assert_eq!(problem["retryable"], true, "{problem}");
    assert!(refusal.header("retry-after").is_some(), "{refusal:?}");
    assert_eq!(by_grpc(&setup.url()), Code::StoreFull);
    until("the log to say so", || setup.log().contains("the disk is almost full").then_some(()));

    // A crash does not make it worse: a full disk can be opened.
    broker.kill();
    broker = setup.start();
    let mut door = broker.connection();
    let done = work_off(&mut door);
    assert!(done >= MESSAGES, "{done} of {MESSAGES} were finished on a full disk");
    let known = door.ask(&Request::send("orders", "before-0", "x")).is(200);
    assert_eq!((&known["answer"], &known["id"]), (&json!("done"), &json!(ids[0])));
    // A checkpoint may have given a segment of the journal back in between.
    let rest = disk.path().join("rest");
    fill(&rest);
    refused(&mut door).fails(507, "store_full");

    std::fs::remove_file(&filler).unwrap();
    std::fs::remove_file(&rest).unwrap();
    let freed = Instant::now();
    within(Duration::from_secs(60), "sends to be taken again", || {
        let response = door.ask(&Request::send("orders", "after", "x"));
        (response.status == 201).then_some(())
    });
    let took = freed.elapsed();
    broker.kill();
    broker = setup.start();
    let mut door = broker.connection();
    for (number, id) in ids.iter().enumerate() {
        let known = door.ask(&Request::send("orders", &format!("before-{number}"), "x")).is(200);
        assert_eq!((&known["answer"], &known["id"]), (&json!("done"), &json!(id)));
        assert_eq!(known["result"]["body"], "done on a full disk");
    }
    broker.has_not_panicked();
    say(&format!("A6: {done} messages finished on a full disk; sends again after {took:.1?}"));
}

/// What the disk holds beside the segments of every journal and the free space of the broker.
const MEBIBYTES: u32 = 96;
const BODY_BYTES: usize = 64 * 1_024;

on_one_and_on_four!(a6_a_disk_that_the_broker_filled_recovers_without_a_restart);

fn a6_a_disk_that_the_broker_filled_recovers_without_a_restart(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let mebibytes = 256 + MEBIBYTES + SEGMENTS_MEBIBYTES * u32::from(partitions);
    let disk = match Mount::memory(&directory.path().join("disk"), mebibytes) {
        Ok(disk) => disk,
        Err(why) => return skip(ROW, &why),
    };
    let setup = broker_in(directory.path()).partitions(partitions).data(&disk.path().join("data"));
    let mut broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let mut ids: Vec<(String, String)> = Vec::new();
    let mut slowest = Duration::ZERO;
    for round in 0..3 {
        let sent = send_until_refused(&mut door, round);
        assert!(sent.len() * BODY_BYTES > 16 << 20, "round {round}: {} messages", sent.len());
        if round == 2 {
            // A broker that filled its disk can be started on it.
            broker.kill();
            broker = setup.start();
            door = broker.connection();
        }
        let done = work_off(&mut door);
        assert!(done >= sent.len(), "{done} of {} were finished", sent.len());
        ids.extend(sent);
        let finished = Instant::now();
        for number in 0..4 * usize::from(partitions) {
            within(Duration::from_secs(60), "sends to be taken again", || {
                let key = format!("again-{round}-{number}");
                let status = door.ask(&Request::send("orders", &key, "x")).status;
                assert!([201, 200, 507].contains(&status), "{status}");
                (status != 507).then_some(())
            });
        }
        slowest = slowest.max(finished.elapsed());
        assert_eq!(work_off(&mut door), 4 * usize::from(partitions));
    }
    for (key, id) in ids.iter().step_by(37) {
        let known = door.ask(&Request::send("orders", key, body())).is(200);
        assert_eq!((&known["answer"], &known["id"]), (&json!("done"), &json!(id)));
    }
    broker.has_not_panicked();
    say(&format!("A6: {} messages in three rounds; sends again after {slowest:.1?}", ids.len()));
}

fn body() -> Vec<u8> {
    vec![b'x'; BODY_BYTES]
}

/// Sends until every partition refuses; the keys and ids of what was accepted.
fn send_until_refused(door: &mut Connection, round: usize) -> Vec<(String, String)> {
    let (mut sent, mut refused) = (Vec::new(), 0);
    for number in 0.. {
        let key = format!("{round}-{number}");
        let response = door.ask(&Request::send("orders", &key, body()));
        match response.status {
            201 => {
                refused = 0;
                sent.push((key, response.json()["id"].as_str().unwrap().to_owned()));
            }
            507 if refused == 64 => break,
            507 => refused += 1,
            status => panic!("{status}: {}", response.text()),
        }
    }
    sent
}

fn accepted(door: &mut Connection, key: &str) -> String {
    let told = door.ask(&Request::send("orders", key, "x")).is(201);
    told["id"].as_str().unwrap().to_owned()
}

/// Sends until one is not taken: the broker looks at its disk from time to time.
fn refused(door: &mut Connection) -> Response {
    until("a send to be refused", || {
        let response = door.ask(&Request::send("orders", &format!("k{}", fastrand::u64(..)), "x"));
        (response.status != 201).then_some(response)
    })
}

/// Writes until there is no room for another byte.
fn fill(path: &std::path::Path) {
    let mut file = File::create(path).unwrap();
    let mut size = 1 << 20;
    while size > 0 {
        if file.write_all(&vec![b'x'; size]).is_err() {
            size /= 16;
        }
    }
}

fn by_grpc(url: &str) -> Code {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let admin = Admin::new(Client::connect(url).unwrap());
        // Every partition looks at its disk by itself.
        let problem = loop {
            let key = format!("by-grpc-{}", fastrand::u64(..));
            let message = proto::Message { key: Some(key), ..Default::default() };
            let answer = admin.send_batch("orders", vec![message]).await.unwrap().pop().unwrap();
            if let Some(problem) = answer.problem {
                break problem;
            }
        };
        assert!(problem.retryable && problem.retry_after_ms.is_some(), "{problem:?}");
        Code::parse(&problem.code).unwrap()
    })
}

/// Takes and finishes messages until there are none.
fn work_off(door: &mut Connection) -> usize {
    let mut done = 0;
    loop {
        let receive = json!({ "max": 10 });
        let told = door.ask(&Request::post("/v1/queues/orders/receive", &receive)).is(200);
        let messages = told["messages"].as_array().unwrap();
        if messages.is_empty() {
            return done;
        }
        let result = json!({ "body": "done on a full disk" });
        let item =
            |message: &Value| json!({ "lease": message["lease"], "do": "done", "result": result });
        let items: Vec<Value> = messages.iter().map(item).collect();
        let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": items }));
        let told = door.ask(&settle).is(200);
        for answer in told["answers"].as_array().unwrap() {
            assert_eq!(answer["answer"], "ok", "{answer}");
        }
        done += messages.len();
    }
}
