//! A1 and A11: kill -9, again and again, while everybody works; and one key sent by everybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_client::{Client, Message, Outcome};
use serde_json::json;

use crate::broker_in;
use crate::machine::say;
use hapax_testing::history::{Door, Event, History, Sent};
use hapax_testing::http::Request;
use hapax_testing::load::{Load, resend_all};
use hapax_testing::{PATIENCE, Setup, pause, until};

const KILLS: usize = 50;
/// What each door gets done in every life: sends answered, and messages done.
const PER_LIFE: usize = 5;

on_one_and_on_four!(a1_fifty_kills_under_load_lose_nothing_and_double_nothing);

fn a1_fifty_kills_under_load_lose_nothing_and_double_nothing(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let load = Load::start(&setup);
    let mut cut_off = [0; 2];
    for _ in 0..KILLS {
        load.gets_on(PER_LIFE);
        // Any moment will do.
        pause(Duration::from_millis(fastrand::u64(..60)));
        for (total, now) in cut_off.iter_mut().zip(load.in_flight()) {
            *total += now;
        }
        broker.kill();
        broker = setup.start();
    }
    let progress = load.progress();
    let history = load.finish();
    // What is remembered is on disk, and not in the last life's memory.
    broker.kill();
    let broker = setup.start();
    resend_all(&setup, &history);

    assert!(cut_off.iter().all(|&count| count > 0), "nothing was under way: {cut_off:?}");
    let (http, grpc) = (progress.http, progress.grpc);
    for count in [http, grpc] {
        assert!(count.sent > KILLS * PER_LIFE && count.done > KILLS * PER_LIFE, "{count:?}");
    }
    assert!(http.unknown > 0, "no request was ever cut off: {http:?}");
    broker.has_not_panicked();
    say(&format!(
        "A1: {KILLS} kills; {} keys, {} answers and {} results kept; {} operations cut off",
        history.keys().len(),
        http.sent + grpc.sent,
        http.done + grpc.done,
        cut_off.iter().sum::<usize>() + http.unknown + grpc.unknown,
    ));
}

const AT_ONCE: usize = 1_000;
const CONNECTIONS: usize = 50;
/// On each connection, one behind the other.
const PIPELINED: usize = 10;
/// Rounds in which the kill came between the first answer and the last, and as many as it may take.
const SPLIT_ROUNDS: usize = 4;
const ROUNDS_MAX: usize = 40;

on_one_and_on_four!(a11_one_key_sent_a_thousand_times_at_once_is_one_message_over_a_crash);

fn a11_one_key_sent_a_thousand_times_at_once_is_one_message_over_a_crash(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let queue = Request::new("PUT", "/v1/queues/one").json(&json!({}));
    broker.connection().ask(&queue).is(201);
    let history = Arc::new(History::default());
    let mut split = 0;
    let mut rounds = 0;
    while split < SPLIT_ROUNDS {
        assert!(rounds < ROUNDS_MAX, "the kills never came in between: {split} of {rounds}");
        rounds += 1;
        let key = format!("key-{rounds}");
        let answered = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let (setup, key) = (setup.clone(), key.clone());
                let (history, answered) = (Arc::clone(&history), Arc::clone(&answered));
                std::thread::spawn(move || send_by_http(&setup, &key, &history, &answered))
            })
            .collect();
        let stream = {
            let (setup, key) = (setup.clone(), key.clone());
            let (history, answered) = (Arc::clone(&history), Arc::clone(&answered));
            std::thread::spawn(move || send_by_grpc(&setup, &key, &history, &answered))
        };
        let kill_after = fastrand::usize(1..AT_ONCE / 2);
        until("some answers", || (answered.load(Ordering::Relaxed) >= kill_after).then_some(()));
        broker.kill();
        let before = answered.load(Ordering::Relaxed);
        split += usize::from(before < AT_ONCE);
        broker = setup.start();
        threads.into_iter().chain([stream]).for_each(|thread| thread.join().unwrap());
        assert_eq!(answered.load(Ordering::Relaxed), AT_ONCE, "everybody is answered in the end");
    }
    history.is_kept();
    let queue = broker.connection().ask(&Request::get("/v1/queues/one")).is(200);
    assert_eq!(queue["stats"]["ready"], rounds, "one message for every key: {queue}");
    broker.has_not_panicked();
    say(&format!(
        "A11: {rounds} keys, each sent {AT_ONCE} times at once, {split} of them over a kill"
    ));
}

/// All requests at once, and those that failed again until they are answered.
fn send_by_http(setup: &Setup, key: &str, history: &History, answered: &AtomicUsize) {
    let request = Request::send("one", key, "the one body");
    let note = |began, response: Option<hapax_testing::http::Response>| {
        let answer = response.map_or(Sent::Unknown, |response| {
            let id = response.json()["id"].as_str().unwrap_or_default().to_owned();
            match response.status {
                201 => Sent::Accepted { id },
                200 => Sent::InFlight { id },
                _ => Sent::Unknown,
            }
        });
        let is_answered = answer != Sent::Unknown;
        history.note(Door::Http, began, Event::Send { key: key.to_owned(), answer });
        answered.fetch_add(usize::from(is_answered), Ordering::Relaxed);
        is_answered
    };
    let mut connection = setup.connection();
    let began = history.tick();
    for _ in 0..PIPELINED {
        let _ = connection.write(&request);
    }
    let mut left = PIPELINED;
    let mut is_whole = true;
    for _ in 0..PIPELINED {
        // What comes after a broken answer is not looked at: it would be another request's.
        let response = if is_whole { connection.read().ok() } else { None };
        is_whole &= response.is_some();
        left -= usize::from(note(began, response));
    }
    let mut connection = setup.connection();
    while left > 0 {
        let began = history.tick();
        left -= usize::from(note(began, connection.try_ask(&request).ok()));
        if left > 0 {
            pause(Duration::from_millis(5));
        }
    }
}

fn send_by_grpc(setup: &Setup, key: &str, history: &History, answered: &AtomicUsize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder(&setup.url()).timeout(PATIENCE).connect().unwrap();
        let mut left = AT_ONCE - CONNECTIONS * PIPELINED;
        let mut sender = client.queue("one").sender().window(left);
        let began = history.tick();
        for _ in 0..left {
            sender.push(Message::new("the one body").key(key), 0);
        }
        let mut answers = Vec::new();
        while left > 0 {
            sender.answers(&mut answers).await.unwrap();
            for reply in answers.drain(..) {
                let answer = match reply.answer {
                    Ok(answer) if answer.outcome == Outcome::Accepted => {
                        Sent::Accepted { id: answer.id.to_string() }
                    }
                    Ok(answer) => Sent::InFlight { id: answer.id.to_string() },
                    Err(error) => {
                        assert!(error.is_retryable(), "{error}");
                        sender.push(Message::new("the one body").key(key), 0);
                        continue;
                    }
                };
                history.note(Door::Grpc, began, Event::Send { key: key.to_owned(), answer });
                answered.fetch_add(1, Ordering::Relaxed);
                left -= 1;
            }
        }
    });
}
