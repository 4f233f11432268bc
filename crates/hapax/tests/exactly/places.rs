//! The five places where duplicates are born (docs/guarantees.md). Each has a test that injects
//! the duplicate there and counts one effect, and one without the protection that counts two.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use hapax_client::{Answer, Client, Failure, Message};
use hapax_transactions::Dialect;
use hapax_transactions::sqlite::Database;
use serde_json::json;

use crate::gateway::Gateway;
use crate::process::{LASTING, Process, orders_and_gateway, put, stats, until_it_is};
use hapax_testing::http::Request;
use hapax_testing::{PATIENCE, until};

/// Waits until so many messages were worked on, and tells how many charges that made.
#[track_caller]
fn charges_of(broker: &hapax_testing::BrokerProcess, gateway: &Gateway, done: u64) -> usize {
    let mut door = broker.connection();
    until("the work to be done", || {
        (stats(&mut door, "orders")["done_total"] == done).then_some(())
    });
    gateway.charges()
}

// Place 1: the application retries a send.

on_one_and_on_four!(place_1_an_application_that_retries_a_send_under_its_key_has_one_effect);
fn place_1_an_application_that_retries_a_send_under_its_key_has_one_effect(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let _worker = Process::charge(&broker, &gateway, "bare");
    let mut door = broker.connection();
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    let again = door.ask(&Request::send("orders", "order-1", "x"));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    until_it_is(&mut door, "order-1", "done");
    door.ask(&Request::send("orders", "order-1", "x")).is(200);
    assert_eq!(charges_of(&broker, &gateway, 1), 1);
    assert_eq!(stats(&mut door, "orders")["duplicate_total"], 2, "born, and absorbed");
}

on_one_and_on_four!(place_1_a_fresh_key_for_every_try_has_two_effects);
fn place_1_a_fresh_key_for_every_try_has_two_effects(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let _worker = Process::charge(&broker, &gateway, "bare");
    for key in ["order-1, try 1", "order-1, try 2"] {
        broker.connection().ask(&Request::send("orders", key, "x")).is(201);
    }
    assert_eq!(charges_of(&broker, &gateway, 2), 2);
}

// Places 2 and 3: the reply to the producer is lost, on its way or with the broker.

/// A way to a broker on which no answer comes back, until it is mended.
struct OneWay {
    address: SocketAddr,
    is_mended: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl OneWay {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_mended, streams) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let way = Self { address, is_mended, streams };
        let (is_mended, streams) = (Arc::clone(&way.is_mended), Arc::clone(&way.streams));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
                let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                streams.lock().unwrap().extend(ends);
                let (there, back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || copy(there, far, &AtomicBool::new(true)));
                let is_mended = Arc::clone(&is_mended);
                std::thread::spawn(move || copy(back, near, &is_mended));
            }
        });
        way
    }

    /// Breaks what there is; over new connections answers come back.
    fn mend(&self) {
        self.is_mended.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Passes bytes on, or loses them.
fn copy(mut from: TcpStream, mut to: TcpStream, passes: &AtomicBool) {
    let mut buffer = [0; 16 * 1_024];
    // What was lost once is lost for good: half an answer is none.
    let passes = passes.load(Ordering::SeqCst);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if passes && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The client sends one message on a way without answers, and does not give up.
fn send(way: &OneWay) -> JoinHandle<Answer> {
    let url = format!("http://{}", way.address);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::builder(&url).timeout(PATIENCE).connect().unwrap();
            client.queue("orders").send(Message::new("x").key("order-1")).await.unwrap()
        })
    })
}

on_one_and_on_four!(place_2_a_lost_reply_is_asked_for_again_under_the_key_and_has_one_effect);
fn place_2_a_lost_reply_is_asked_for_again_under_the_key_and_has_one_effect(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let _worker = Process::charge(&broker, &gateway, "bare");
    let way = OneWay::to(broker.setup.address);
    let sending = send(&way);
    assert_eq!(charges_of(&broker, &gateway, 1), 1, "done, and its sender does not know");
    assert!(!sending.is_finished());
    way.mend();
    let answer = sending.join().unwrap();
    let result = answer.result().and_then(|result| result.text()).unwrap();
    assert!(result.ends_with("attempt 1"), "the first one's result: {answer:?}");
    assert_eq!(charges_of(&broker, &gateway, 1), 1);
    let duplicates = &stats(&mut broker.connection(), "orders")["duplicate_total"];
    assert!(duplicates.as_u64() >= Some(1), "born, and absorbed: {duplicates}");
}

on_one_and_on_four!(place_2_a_lost_reply_without_a_key_has_two_effects);
fn place_2_a_lost_reply_without_a_key_has_two_effects(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let rules = r#"{"guarantee":"at-least-once","lease_ms":6000}"#;
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, rules);
    let _worker = Process::charge(&broker, &gateway, "bare");
    let keyless = Request::new("POST", "/v1/queues/orders/messages").body("x");
    let mut lossy = broker.connection();
    lossy.write(&keyless).unwrap();
    assert_eq!(charges_of(&broker, &gateway, 1), 1);
    drop(lossy); // With the answer in it, unread.
    broker.connection().ask(&keyless).is(201);
    assert_eq!(charges_of(&broker, &gateway, 2), 2);
}

on_one_and_on_four!(
    place_3_a_broker_killed_before_its_reply_still_knows_the_key_and_has_one_effect
);
fn place_3_a_broker_killed_before_its_reply_still_knows_the_key_and_has_one_effect(
    partitions: u16,
) {
    let directory = tempfile::tempdir().unwrap();
    let (mut broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let _worker = Process::charge(&broker, &gateway, "bare");
    let way = OneWay::to(broker.setup.address);
    let sending = send(&way);
    assert_eq!(charges_of(&broker, &gateway, 1), 1);
    broker.kill();
    let broker = broker.setup.start();
    way.mend();
    let answer = sending.join().unwrap();
    let result = answer.result().and_then(|result| result.text()).unwrap();
    assert!(result.ends_with("attempt 1"), "the first one's result: {answer:?}");
    assert_eq!(charges_of(&broker, &gateway, 1), 1);
}

on_one_and_on_four!(place_3_a_broker_that_loses_its_keys_in_a_crash_has_two_effects);
fn place_3_a_broker_that_loses_its_keys_in_a_crash_has_two_effects(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (mut broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let mut worker = Process::charge(&broker, &gateway, "bare");
    let way = OneWay::to(broker.setup.address);
    let sending = send(&way);
    assert_eq!(charges_of(&broker, &gateway, 1), 1);
    worker.kill();
    broker.kill();
    // As one that kept its keys in memory would come back: without them.
    let broker = broker.setup.clone().data(&directory.path().join("nothing")).start();
    put(&mut broker.connection(), "orders", LASTING);
    let _worker = Process::charge(&broker, &gateway, "bare");
    way.mend();
    sending.join().unwrap();
    assert_eq!(charges_of(&broker, &gateway, 1), 2, "it knew nothing of the first");
}

// Place 4: the worker dies after the effect, before its ack.

/// A worker is killed after its effect, and another one gets the message.
fn effects_of_a_worker_killed_after_the_first(
    partitions: u16,
    how: &str,
    place: &str,
) -> (usize, usize) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let mut door = broker.connection();
    gateway.stop_callers(place);
    let mut first = Process::charge(&broker, &gateway, how);
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    gateway.wait_for_a_stopped_caller();
    assert_eq!(gateway.charges(), 1);
    first.kill();
    gateway.let_callers_pass();
    let _second = Process::charge(&broker, &gateway, how);
    let done = until_it_is(&mut door, "order-1", "done");
    assert_eq!(done["attempts"], 2, "{done}");
    (gateway.charges(), gateway.calls())
}

on_one_and_on_four!(place_4_a_worker_killed_after_its_effect_has_one_under_a_derived_key);
fn place_4_a_worker_killed_after_its_effect_has_one_under_a_derived_key(partitions: u16) {
    let effects = effects_of_a_worker_killed_after_the_first(partitions, "step", "within the step");
    assert_eq!(effects, (1, 2), "asked for twice, done once");
}

on_one_and_on_four!(place_4_a_worker_killed_after_its_effect_has_two_without_a_key);
fn place_4_a_worker_killed_after_its_effect_has_two_without_a_key(partitions: u16) {
    let effects =
        effects_of_a_worker_killed_after_the_first(partitions, "bare", "after the effect");
    assert_eq!(effects, (2, 2));
}

// Place 5: the worker's database commits, and its acknowledgement is lost.

/// A worker is killed after its commit, and another one gets the message. How many payments are
/// there, and what is the result?
fn payments_of_a_worker_killed_after_its_commit(partitions: u16, how: &str) -> (i64, String) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let path = directory.path().join("payments.db");
    let database = Database::open(&path).unwrap();
    let made = database.transaction::<_, Failure>(|transaction| {
        transaction.execute_batch(Dialect::Sqlite.inbox())?;
        Ok(transaction.execute_batch("CREATE TABLE payments (word TEXT NOT NULL)")?)
    });
    made.unwrap();
    let part = json!({
        "part": "pay", "server": broker.url(), "gateway": gateway.path(), "database": path,
        "how": how,
    });
    let mut door = broker.connection();
    gateway.stop_callers("after the commit");
    let mut first = Process::start(&part);
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    gateway.wait_for_a_stopped_caller();
    first.kill();
    gateway.let_callers_pass();
    let _second = Process::start(&part);
    let done = until_it_is(&mut door, "order-1", "done");
    assert_eq!(done["attempts"], 2, "{done}");
    let count = database.transaction::<i64, Failure>(|transaction| {
        Ok(transaction.query_row("SELECT COUNT(*) FROM payments", (), |row| row.get(0))?)
    });
    (count.unwrap(), done["result"]["body"].as_str().unwrap().to_owned())
}

on_one_and_on_four!(place_5_a_commit_whose_acknowledgement_is_lost_is_found_by_its_row);
fn place_5_a_commit_whose_acknowledgement_is_lost_is_found_by_its_row(partitions: u16) {
    let (payments, result) = payments_of_a_worker_killed_after_its_commit(partitions, "inbox");
    assert_eq!((payments, result.as_str()), (1, "paid at attempt 1"));
}

on_one_and_on_four!(place_5_a_commit_without_a_row_for_its_message_is_done_twice);
fn place_5_a_commit_without_a_row_for_its_message_is_done_twice(partitions: u16) {
    let (payments, result) = payments_of_a_worker_killed_after_its_commit(partitions, "bare");
    assert_eq!((payments, result.as_str()), (2, "paid at attempt 2"));
}
