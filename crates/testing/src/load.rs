//! Producers and workers through both doors at once, who do not give up: what fails is tried again
//! under the same key or the same lease, and everything they see goes into a [`History`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use hapax_client::{Answer, Batch, Client, Done, Message, Outcome, Settle};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::history::{Count, Door, Event, History, Sent, Settled, Tick};
use crate::http::{Connection, Request, Response};
use crate::process::Setup;
use crate::wait::{PATIENCE, pause, until};

pub const QUEUE: &str = "orders";
/// Leases end soon, so that what a crash left with nobody comes back soon; attempts do not end.
const RULES: &str = r#"{"lease_ms":1500,"max_attempts":100000,"backoff_min_ms":0,
                        "backoff_max_ms":50}"#;
/// Messages on their way at once through the gRPC door.
const WINDOW: usize = 24;
const CREDIT: u32 = 64;
/// One send in so many repeats an earlier key.
const REPEAT: usize = 6;
const PRODUCERS: usize = 2;
const WORKERS: usize = 2;
/// Between two sends of one producer: load, not flood, so that the history stays small.
const PACE: Duration = Duration::from_millis(2);
const RETRY: Duration = Duration::from_millis(5);
/// How long one of several nodes may take to answer before another one is asked.
const PAUSED: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Producing,
    Draining,
    Over,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    pub history: Arc<History>,
    stage: watch::Sender<Stage>,
    shared: Arc<Shared>,
    producers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    nodes: Vec<SocketAddr>,
    history: Arc<History>,
    stage: watch::Receiver<Stage>,
    known: Mutex<Vec<String>>,
    in_flight: [AtomicUsize; 2],
}

impl Load {
    /// Makes the queue, and begins.
    pub fn start(setup: &Setup) -> Self {
        Self::over(&[setup.address])
    }

    /// The same over several nodes, one of which serves.
    pub fn over(nodes: &[SocketAddr]) -> Self {
        let made = Request::new("PUT", &format!("/v1/queues/{QUEUE}"))
            .header("content-type", "application/json")
            .body(RULES);
        let mut door = Ways::to(nodes);
        until("the queue", || door.try_ask(&made).is_ok_and(|answer| answer.status < 300));
        let history = Arc::new(History::default());
        // Nothing real is at tick 0: it stands for "from the beginning on".
        history.tick();
        let (stage, receiver) = watch::channel(Stage::Producing);
        let shared = Arc::new(Shared {
            nodes: nodes.to_vec(),
            history: Arc::clone(&history),
            stage: receiver,
            known: Mutex::default(),
            in_flight: Default::default(),
        });
        let spawn = |work: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || work(&shared))
        };
        let producers = (0..PRODUCERS).map(|_| spawn(produce)).collect();
        let workers = (0..WORKERS).map(|_| spawn(work)).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(stream_sends(Arc::clone(&shared)));
        runtime.spawn(stream_work(Arc::clone(&shared)));
        Self { history, stage, shared, producers, workers, runtime: Some(runtime) }
    }

    pub fn progress(&self) -> Progress {
        Progress { http: self.history.count(Door::Http), grpc: self.history.count(Door::Grpc) }
    }

    /// Waits until both doors have done so much more than before, sent and settled.
    #[track_caller]
    pub fn gets_on(&self, operations: usize) {
        let before = self.progress();
        until("both doors to get on", || {
            let now = self.progress();
            let more = |now: Count, before: Count| {
                now.sent >= before.sent + operations && now.done >= before.done + operations
            };
            (more(now.http, before.http) && more(now.grpc, before.grpc)).then_some(())
        });
    }

    /// Operations of each door that have no answer yet.
    pub fn in_flight(&self) -> [usize; 2] {
        [0, 1].map(|door| self.shared.in_flight[door].load(Ordering::Relaxed))
    }

    /// No more new messages; waits until those there are are done, and ends.
    #[track_caller]
    pub fn finish(mut self) -> Arc<History> {
        self.stage.send_replace(Stage::Draining);
        self.producers.drain(..).for_each(|producer| producer.join().unwrap());
        let mut door = Ways::to(&self.shared.nodes);
        until("everything to drain", || {
            let show = door.try_ask(&Request::get(&format!("/v1/queues/{QUEUE}"))).ok()?;
            if is_retryable(&show) {
                return None;
            }
            let stats = show.is(200)["stats"].clone();
            let left = ["ready", "delayed", "leased"].map(|place| stats[place].as_u64().unwrap());
            let is_sent = self.shared.in_flight[1].load(Ordering::Relaxed) == 0;
            (is_sent && left == [0, 0, 0]).then_some(())
        });
        self.stage.send_replace(Stage::Over);
        self.workers.drain(..).for_each(|worker| worker.join().unwrap());
        self.runtime.take().unwrap().shutdown_timeout(PATIENCE);
        Arc::clone(&self.history)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Over);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub http: Count,
    pub grpc: Count,
}

/// Sends every key of the history again, through both doors: all are done, and none is new.
#[track_caller]
pub fn resend_all(setup: &Setup, history: &History) {
    let keys = history.keys();
    let mut connection = setup.connection();
    for some in keys.chunks(500) {
        let message = |key: &String| json!({ "key": key, "body": body_of(key) });
        let messages: Vec<Value> = some.iter().map(message).collect();
        let path = format!("/v1/queues/{QUEUE}/batch");
        let began = history.tick();
        let told = connection.ask(&Request::post(&path, &json!({ "messages": messages }))).is(200);
        for (key, answer) in some.iter().zip(told["answers"].as_array().unwrap()) {
            assert_eq!(answer["answer"], "done", "{answer}");
            note_send(history, Door::Http, began, key, sent(answer).unwrap());
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&setup.url()).unwrap();
        let messages = keys.iter().map(|key| Message::new(body_of(key)).key(key.clone()));
        let began = history.tick();
        let answers = client.queue(QUEUE).send_all(messages).await.unwrap();
        for (key, answer) in keys.iter().zip(answers) {
            let answer = answer.unwrap();
            assert!(answer.has_ended(), "{key}: {answer:?}");
            note_send(history, Door::Grpc, began, key, told(&answer));
        }
    });
    history.is_kept();
}

/// What was sent under a key, and so what must be delivered.
pub fn body_of(key: &str) -> String {
    format!("the body of {key}, which nobody may change")
}

fn result_of(key: &str, fence: u64) -> String {
    format!("{key} under {fence}")
}

fn note_send(history: &History, door: Door, began: Tick, key: &str, answer: Sent) {
    history.note(door, began, Event::Send { key: key.to_owned(), answer });
}

impl Shared {
    fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// A new key, or one that somebody sent before.
    fn next_key(&self, door: Door) -> String {
        let mut known = self.known.lock().unwrap();
        if !known.is_empty() && fastrand::usize(..REPEAT) == 0 {
            return known[fastrand::usize(..known.len())].clone();
        }
        let key = format!("{door:?}-{}", known.len());
        known.push(key.clone());
        key
    }

    fn note_delivery(&self, door: Door, began: Tick, delivery: Delivered) {
        let Delivered { key, id, fence, body } = delivery;
        if body != body_of(&key) {
            self.history.odd(format!("{key} was delivered with the body {body:?}"));
        }
        self.history.note(door, began, Event::Deliver { key, id, fence });
    }

    /// The addresses, as a client takes them.
    fn urls(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().map(|node| format!("http://{node}")).collect();
        urls.join(",")
    }

    fn ask(&self, door: &mut Ways, request: &Request) -> std::io::Result<Response> {
        self.in_flight[0].fetch_add(1, Ordering::Relaxed);
        let asked = door.try_ask(request);
        self.in_flight[0].fetch_sub(1, Ordering::Relaxed);
        asked
    }
}

/// Connections to all nodes: after a failure the next one is asked.
struct Ways {
    connections: Vec<Connection>,
    at: usize,
}

impl Ways {
    fn to(nodes: &[SocketAddr]) -> Self {
        // A node that is paused takes connections and answers nothing.
        let patient = |node: &SocketAddr| match nodes.len() {
            1 => Connection::new(*node),
            _ => Connection::new(*node).timeout(PAUSED),
        };
        Self { connections: nodes.iter().map(patient).collect(), at: 0 }
    }

    fn try_ask(&mut self, request: &Request) -> std::io::Result<Response> {
        let asked = self.connections[self.at].try_ask(request);
        if !asked.as_ref().is_ok_and(|answer| answer.status != 503) {
            self.at = (self.at + 1) % self.connections.len();
        }
        asked
    }
}

struct Delivered {
    key: String,
    id: String,
    fence: u64,
    body: String,
}

// Through the HTTP door.

fn produce(shared: &Shared) {
    let mut connection = Ways::to(&shared.nodes);
    while shared.stage() == Stage::Producing {
        let key = shared.next_key(Door::Http);
        while send(shared, &mut connection, &key) == Sent::Unknown && shared.stage() != Stage::Over
        {
            pause(RETRY);
        }
        pause(PACE);
    }
}

fn send(shared: &Shared, connection: &mut Ways, key: &str) -> Sent {
    let began = shared.history.tick();
    let asked = shared.ask(connection, &Request::send(QUEUE, key, body_of(key)));
    let answer = match asked {
        Ok(response) if matches!(response.status, 200 | 201) => sent(&response.json()),
        Ok(response) if is_retryable(&response) => Ok(Sent::Unknown),
        Ok(response) => Err(format!("{} {}", response.status, response.text())),
        Err(_) => Ok(Sent::Unknown),
    };
    let answer = answer.unwrap_or_else(|what| {
        shared.history.odd(format!("{key} was answered {what}"));
        Sent::Unknown
    });
    note_send(&shared.history, Door::Http, began, key, answer.clone());
    answer
}

fn is_retryable(response: &Response) -> bool {
    matches!(response.status, 429 | 503 | 507)
}

/// The answer to a send, in JSON.
fn sent(answer: &Value) -> Result<Sent, String> {
    let id = answer["id"].as_str().unwrap_or_default().to_owned();
    match answer["answer"].as_str() {
        Some("accepted") => Ok(Sent::Accepted { id }),
        Some("in_flight") => Ok(Sent::InFlight { id }),
        Some("done") => {
            let result = answer["result"]["body"].as_str().unwrap_or_default().to_owned();
            Ok(Sent::Done { id, result })
        }
        _ => Err(answer.to_string()),
    }
}

fn work(shared: &Shared) {
    let mut connection = Ways::to(&shared.nodes);
    let receive = json!({ "max": 10, "wait_ms": 200, "worker": "by-http" });
    let receive = Request::post(&format!("/v1/queues/{QUEUE}/receive"), &receive);
    while shared.stage() != Stage::Over {
        let began = shared.history.tick();
        let messages = match shared.ask(&mut connection, &receive) {
            Ok(response) if response.status == 200 => response.json()["messages"].clone(),
            Ok(response) if is_retryable(&response) => Value::Null,
            Ok(response) => {
                shared.history.odd(format!("a receive was answered {}", response.text()));
                Value::Null
            }
            Err(_) => Value::Null,
        };
        let Some(messages) = messages.as_array().filter(|messages| !messages.is_empty()) else {
            pause(RETRY);
            continue;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut open = Vec::new();
        for message in messages {
            let (key, fence) = (text(&message["key"]), text(&message["fence"]).parse().unwrap());
            let (id, body) = (text(&message["id"]), text(&message["body"]));
            let delivered = Delivered { key: key.clone(), id, fence, body };
            shared.note_delivery(Door::Http, began, delivered);
            open.push((key, fence, text(&message["lease"])));
        }
        settle(shared, &mut connection, open);
    }
}

/// Settles until everything is answered.
fn settle(shared: &Shared, connection: &mut Ways, mut open: Vec<(String, u64, String)>) {
    while !open.is_empty() && shared.stage() != Stage::Over {
        let items: Vec<Value> = open
            .iter()
            .map(|(key, fence, lease)| {
                let result = json!({ "body": result_of(key, *fence) });
                json!({ "lease": lease, "do": "done", "result": result })
            })
            .collect();
        let request = json!({ "items": items });
        let request = Request::post(&format!("/v1/queues/{QUEUE}/settle"), &request);
        let began = shared.history.tick();
        let told = match shared.ask(connection, &request) {
            Ok(response) if response.status == 200 => response.json()["answers"].clone(),
            _ => Value::Null,
        };
        let told = told.as_array().cloned().unwrap_or_default();
        let mut answers = told.iter().map(settled).chain(std::iter::repeat(Settled::Unknown));
        open.retain(|(key, fence, _)| {
            let answer = answers.next().unwrap_or(Settled::Unknown);
            let is_unknown = answer == Settled::Unknown;
            note_settle(&shared.history, Door::Http, began, key, *fence, answer);
            is_unknown
        });
        if !open.is_empty() {
            pause(RETRY);
        }
    }
}

fn settled(answer: &Value) -> Settled {
    match answer["answer"].as_str() {
        Some("ok") => Settled::Ok,
        Some("lease_lost") => {
            Settled::LeaseLost { result: answer["result"]["body"].as_str().map(str::to_owned) }
        }
        _ => Settled::Unknown,
    }
}

fn note_settle(history: &History, door: Door, began: Tick, key: &str, fence: u64, answer: Settled) {
    let (key, result) = (key.to_owned(), result_of(key, fence));
    history.note(door, began, Event::Settle { key, fence, result, answer });
}

// Through the gRPC door, whose client connects again by itself.

async fn stream_sends(shared: Arc<Shared>) {
    let client = Client::builder(&shared.urls()).timeout(PATIENCE);
    let mut sender = client.connect().unwrap().queue(QUEUE).sender().window(WINDOW);
    let mut pending: HashMap<u64, (String, Tick)> = HashMap::new();
    let mut again: Vec<String> = Vec::new();
    let mut answers = Vec::new();
    let mut tag = 0;
    while shared.stage() == Stage::Producing || !pending.is_empty() || !again.is_empty() {
        while sender.room() > 0 {
            let is_producing = shared.stage() == Stage::Producing;
            let next = again.pop();
            let next = next.or_else(|| is_producing.then(|| shared.next_key(Door::Grpc)));
            let Some(key) = next else { break };
            tag += 1;
            sender.push(Message::new(body_of(&key)).key(key.clone()), tag);
            pending.insert(tag, (key, shared.history.tick()));
        }
        shared.in_flight[1].store(sender.unanswered(), Ordering::Relaxed);
        if let Err(error) = sender.answers(&mut answers).await {
            shared.history.odd(format!("the stream of sends ended: {error}"));
            break;
        }
        for answered in answers.drain(..) {
            let Some((key, began)) = pending.remove(&answered.tag) else { continue };
            let answer = match &answered.answer {
                Ok(answer) => told(answer),
                Err(error) => {
                    if !error.is_retryable() {
                        shared.history.odd(format!("{key} was answered {error}"));
                    }
                    again.push(key.clone());
                    Sent::Unknown
                }
            };
            note_send(&shared.history, Door::Grpc, began, &key, answer);
        }
        tokio::time::sleep(PACE).await;
    }
    shared.in_flight[1].store(0, Ordering::Relaxed);
}

fn told(answer: &Answer) -> Sent {
    let id = answer.id.to_string();
    match &answer.outcome {
        Outcome::Accepted => Sent::Accepted { id },
        Outcome::Done { result, .. } => {
            let result = result.as_ref().and_then(|result| result.text()).unwrap_or_default();
            Sent::Done { id, result: result.to_owned() }
        }
        _ => Sent::InFlight { id },
    }
}

async fn stream_work(shared: Arc<Shared>) {
    let client = Client::builder(&shared.urls()).timeout(PATIENCE);
    let queue = client.connect().unwrap().queue(QUEUE);
    let mut work = queue.work().worker("by-grpc").open();
    let mut open: HashMap<u64, (String, Tick)> = HashMap::new();
    let mut batch = Batch::default();
    let mut stage = shared.stage.clone();
    work.credit(CREDIT);
    loop {
        tokio::select! {
            next = work.next(&mut batch) => if let Err(error) = next {
                shared.history.odd(format!("the stream of work ended: {error}"));
                break;
            },
            _ = stage.wait_for(|stage| *stage == Stage::Over) => break,
        }
        for delivery in batch.deliveries.drain(..) {
            let (key, fence) = (delivery.key().to_owned(), delivery.fence());
            let body = delivery.text().unwrap_or_default().to_owned();
            let id = delivery.id().to_string();
            // When it was granted nobody knows: the stream was asked long ago.
            shared.note_delivery(Door::Grpc, 0, Delivered { key: key.clone(), id, fence, body });
            let done = Done::new().result(result_of(&key, fence));
            open.insert(fence, (key, shared.history.tick()));
            work.settle(delivery.lease(), Settle::Done(done), fence);
        }
        for answered in batch.settled.drain(..) {
            let Some((key, began)) = open.remove(&answered.tag) else { continue };
            let answer = match answered.answer {
                Ok(hapax_client::Settled::LeaseLost { result, .. }) => {
                    let text = result.as_ref().and_then(|result| result.text());
                    Settled::LeaseLost { result: text.map(str::to_owned) }
                }
                Ok(_) => Settled::Ok,
                Err(error) => {
                    if !error.is_retryable() {
                        shared.history.odd(format!("a settle of {key} was answered {error}"));
                    }
                    Settled::Unknown
                }
            };
            note_settle(&shared.history, Door::Grpc, began, &key, answered.tag, answer);
            work.credit(1);
        }
    }
    for (fence, (key, began)) in open {
        note_settle(&shared.history, Door::Grpc, began, &key, fence, Settled::Unknown);
    }
}
