//! Workers as processes of their own, to be killed: this program started once more, with a part
//! to play.
//!
//! Whatever ends a test ends its processes; a process whose test was killed ends with it.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hapax_client::{Blob, Client, Context, Delivery, Done, Emit, Failure, Message, Queue, Worker};
use hapax_transactions::sqlite::Database;
use hapax_transactions::{Entered, Inbox};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

use crate::broker_in;
use crate::gateway::Gateway;
use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, until};

/// The variable that tells a process its part.
const PART: &str = "EXACTLY_PART";
/// The test that plays it.
const STAGE: &str = "process::a_worker_process_works_until_it_is_killed";

/// A process that is not needed any more at the end of the test.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(part: &Value) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", STAGE, "--nocapture"]).env(PART, part.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// A worker of the queue `orders` that charges under the step's key ("step"), without a key
    /// ("bare"), or without a key and with a word before ("begin").
    pub(crate) fn charge(broker: &BrokerProcess, gateway: &Gateway, how: &str) -> Self {
        Self::start(&json!({
            "part": "charge", "server": broker.url(), "gateway": gateway.path(), "how": how,
        }))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// With no time for last words.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Leases end soon, and attempts never.
pub(crate) const RULES: &str = r#"{"lease_ms":1000,"max_attempts":100000,
                                   "backoff_min_ms":0,"backoff_max_ms":50}"#;

/// The same where every delivery counts: a machine that stalls loses no lease of a living worker.
pub(crate) const LASTING: &str = r#"{"lease_ms":6000,"max_attempts":100000,
                                     "backoff_min_ms":0,"backoff_max_ms":50}"#;

/// A broker of so many partitions with the queue `orders` of these rules, and a gateway.
pub(crate) fn orders_and_gateway(
    directory: &std::path::Path,
    partitions: u16,
    rules: &str,
) -> (BrokerProcess, Gateway) {
    let broker = broker_in(directory).partitions(partitions).start();
    put(&mut broker.connection(), "orders", rules);
    (broker, Gateway::new(&directory.join("gateway")))
}

pub(crate) fn put(door: &mut Connection, queue: &str, rules: &str) {
    let rules: Value = serde_json::from_str(rules).unwrap();
    door.ask(&Request::new("PUT", &format!("/v1/queues/{queue}")).json(&rules)).is(201);
}

pub(crate) fn key(door: &mut Connection, key: &str) -> Value {
    door.ask(&Request::get(&format!("/v1/queues/orders/keys/{key}"))).is(200)
}

pub(crate) fn stats(door: &mut Connection, queue: &str) -> Value {
    door.ask(&Request::get(&format!("/v1/queues/{queue}"))).is(200)["stats"].clone()
}

/// Waits until the message of a key is in this place.
#[track_caller]
pub(crate) fn until_it_is(door: &mut Connection, name: &str, state: &str) -> Value {
    until(&format!("{name} to be {state}"), || {
        let found = key(door, name);
        (found["state"] == state).then_some(found)
    })
}

#[test]
fn a_worker_process_works_until_it_is_killed() {
    if let Ok(part) = std::env::var(PART) {
        return play(&serde_json::from_str(&part).unwrap());
    }
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), 1, LASTING);
    let mut door = broker.connection();
    let mut process = Process::charge(&broker, &gateway, "bare");
    door.ask(&Request::send("orders", "a", "x")).is(201);
    until_it_is(&mut door, "a", "done");
    process.kill();
    door.ask(&Request::send("orders", "b", "x")).is(201);
    let nothing = json!({ "max": 1, "wait_ms": 0, "lease_ms": 600_000 });
    let taken = door.ask(&Request::post("/v1/queues/orders/receive", &nothing)).is(200);
    assert_eq!(taken["messages"][0]["key"], "b", "nobody else is there: {taken}");
    assert_eq!((gateway.charges(), gateway.calls()), (1, 1));
}

/// What a process does until it is killed.
fn play(part: &Value) {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let text = |name: &str| part[name].as_str().unwrap_or_default().to_owned();
    runtime.block_on(async {
        let client = Client::connect(&text("server")).unwrap();
        let ended = match part["part"].as_str() {
            Some("charge") => {
                let (gateway, how) = (Gateway::new(text("gateway").as_ref()), text("how"));
                let worker = Worker::new(client.queue("orders")).concurrency(4);
                let handler =
                    move |message, context| charge(gateway.clone(), how.clone(), message, context);
                worker.run(handler).await
            }
            Some("pass-on") => {
                let gateway = Gateway::new(text("gateway").as_ref());
                let (next, how) = (client.queue(text("to")), text("how"));
                let worker = Worker::new(client.queue(text("from"))).concurrency(4);
                let handler =
                    move |message, _| pass_on(gateway.clone(), next.clone(), how.clone(), message);
                worker.run(handler).await
            }
            Some("pay") => {
                let (gateway, how) = (Gateway::new(text("gateway").as_ref()), text("how"));
                let database = Database::open(text("database")).unwrap();
                let worker = Worker::new(client.queue("orders")).concurrency(4);
                let handler =
                    move |message, _| pay(database.clone(), gateway.clone(), how.clone(), message);
                worker.run(handler).await
            }
            other => panic!("there is no part {other:?}"),
        };
        ended.unwrap();
    });
}

async fn charge(
    gateway: Gateway,
    how: String,
    message: Delivery,
    context: Context,
) -> Result<Done, Failure> {
    if how == "step" {
        let at = gateway.clone();
        let call = |key: String| async move {
            let receipt = at.charge(Some(&key));
            at.pass("within the step").await;
            Ok::<_, Failure>(receipt)
        };
        let receipt = context.step("charge", call).await?;
        gateway.pass("after the step").await;
        return Ok(Done::new().result(receipt));
    }
    if how == "begin" {
        context.begin().await?;
        gateway.pass("before the effect").await;
    }
    let receipt = gateway.charge(None);
    gateway.pass("after the effect").await;
    Ok(Done::new().result(format!("{receipt}, attempt {}", message.attempt())))
}

/// Writes a payment down in a transaction: with the row of an inbox, or without.
async fn pay(
    database: Database,
    gateway: Gateway,
    how: String,
    message: Delivery,
) -> Result<Done, Failure> {
    let writing = move || {
        let inbox = Inbox::new("payments", "orders")?;
        database.transaction::<Option<Blob>, Failure>(|transaction| {
            if how == "inbox" {
                match inbox.enter_blocking(transaction, &message)? {
                    Entered::First => {}
                    Entered::Done(result) => return Ok(result),
                }
            }
            let paid = format!("paid at attempt {}", message.attempt());
            transaction.execute("INSERT INTO payments (word) VALUES (?1)", [&paid])?;
            if how == "inbox" {
                inbox.finish_blocking(transaction, &message, paid.clone())?;
            }
            Ok(Some(Blob::new(paid)))
        })
    };
    let result = tokio::task::spawn_blocking(writing).await??;
    gateway.pass("after the commit").await;
    Ok(result.into())
}

/// One more than came in: as an emit of the `done`, or by a send before it, with a fresh key.
async fn pass_on(
    gateway: Gateway,
    next: Queue,
    how: String,
    message: Delivery,
) -> Result<Done, Failure> {
    let mut body: Value = message.parse_json()?;
    let hops = body["hops"].as_u64().unwrap_or_default();
    body["hops"] = json!(hops + 1);
    // Work takes time, and a kill should find some under way.
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
    let message = Message::json(&body)?;
    if how == "emit" {
        return Ok(Done::new().emit(Emit::new(next.name(), "next", message)));
    }
    next.send(message).await?;
    gateway.pass("before the done").await;
    Ok(Done::new())
}
