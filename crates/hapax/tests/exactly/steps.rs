//! Steps and intents of worker processes that are killed, and what an operator sees and does.

use std::time::Duration;

use hapax_client::derive;
use serde_json::Value;

use crate::process::{LASTING, Process, key, orders_and_gateway, until_it_is};
use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, Signal, pause, printed, signal, suspend, until};

fn hapax(broker: &BrokerProcess, arguments: &[&str]) -> String {
    let output = broker.command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", printed(&output));
    printed(&output)
}

on_one_and_on_four!(
    a_worker_killed_within_a_step_charges_nothing_twice_and_leaves_its_intent_to_be_seen
);
fn a_worker_killed_within_a_step_charges_nothing_twice_and_leaves_its_intent_to_be_seen(
    partitions: u16,
) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let mut door = broker.connection();
    gateway.stop_callers("within the step");
    let mut first = Process::charge(&broker, &gateway, "step");
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    gateway.wait_for_a_stopped_caller();
    first.kill();
    let seen = hapax(&broker, &["get", "orders", "order-1"]);
    let derived = derive("orders", "", "order-1", 0, "charge");
    assert!(seen.contains("step:charge") && seen.contains("begun"), "{seen}");
    assert!(seen.contains(&derived), "the key to ask the gateway about: {seen}");

    gateway.let_callers_pass();
    let _second = Process::charge(&broker, &gateway, "step");
    let done = until_it_is(&mut door, "order-1", "done");
    assert_eq!(done["result"]["body"], format!("receipt {derived}"), "{done}");
    assert_eq!((gateway.charges(), gateway.calls()), (1, 2), "asked twice, charged once");
}

on_one_and_on_four!(a_worker_killed_after_a_step_is_followed_by_one_that_does_not_call);
fn a_worker_killed_after_a_step_is_followed_by_one_that_does_not_call(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, LASTING);
    let mut door = broker.connection();
    gateway.stop_callers("after the step");
    let mut first = Process::charge(&broker, &gateway, "step");
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    gateway.wait_for_a_stopped_caller();
    first.kill();
    let point = key(&mut door, "order-1")["recovery_points"]["step:charge"].clone();
    let point: Value = serde_json::from_str(point["body"].as_str().unwrap()).unwrap();
    assert_eq!(point["step"], "done", "{point}");

    gateway.let_callers_pass();
    let _second = Process::charge(&broker, &gateway, "step");
    let done = until_it_is(&mut door, "order-1", "done");
    assert_eq!(done["attempts"], 2, "{done}");
    assert_eq!(done["result"]["body"], point["outcome"], "the outcome that was saved: {done}");
    assert_eq!((gateway.charges(), gateway.calls()), (1, 1), "not even asked");
}

const PARKS: &str = r#"{"on_lost":"park","lease_ms":5000,"backoff_min_ms":0,"backoff_max_ms":50}"#;

on_one_and_on_four!(an_effect_in_doubt_is_parked_until_an_operator_resolves_it);
fn an_effect_in_doubt_is_parked_until_an_operator_resolves_it(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, PARKS);
    let mut door = broker.connection();
    // One dies after its effect, the other before; the broker cannot tell them apart.
    for (order, place) in [("order-1", "after the effect"), ("order-2", "before the effect")] {
        gateway.stop_callers(place);
        let mut worker = Process::charge(&broker, &gateway, "begin");
        door.ask(&Request::send("orders", order, "x")).is(201);
        gateway.wait_for_a_stopped_caller();
        worker.kill();
        gateway.let_callers_pass();
        until_it_is(&mut door, order, "parked");
    }
    assert_eq!(gateway.charges(), 1);

    let _worker = Process::charge(&broker, &gateway, "begin");
    door.ask(&Request::send("orders", "order-3", "x")).is(201);
    until_it_is(&mut door, "order-3", "done");
    for order in ["order-1", "order-2"] {
        assert_eq!(key(&mut door, order)["state"], "parked", "not for any worker");
        let told = hapax(&broker, &["get", "orders", order]);
        assert!(told.contains("it is unknown whether it happened"), "{told}");
        assert!(told.contains(&format!("hapax resolve orders {order} --done")), "{told}");
    }

    hapax(&broker, &["resolve", "orders", "order-1", "--done", "charged, says the bank"]);
    hapax(&broker, &["resolve", "orders", "order-2", "--retry"]);
    let first = until_it_is(&mut door, "order-1", "done");
    assert_eq!(first["result"]["body"], "charged, says the bank", "{first}");
    until("the retried one", || (key(&mut door, "order-2")["state"] == "done").then_some(()));
    assert_eq!(gateway.charges(), 3, "one for each order");
    let again = door.ask(&Request::send("orders", "order-1", "x")).is(200);
    assert_eq!(again["result"]["body"], "charged, says the bank", "{again}");
}

on_one_and_on_four!(a_worker_that_stalls_in_doubt_and_finishes_after_all_makes_it_done);
/// A worker that stands still after its effect, for longer than its lease, and then goes on.
fn a_worker_that_stalls_in_doubt_and_finishes_after_all_makes_it_done(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, PARKS);
    let mut door = broker.connection();
    gateway.stop_callers("after the effect");
    let worker = Process::charge(&broker, &gateway, "begin");
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    gateway.wait_for_a_stopped_caller();
    suspend(worker.pid());
    until_it_is(&mut door, "order-1", "parked");
    gateway.let_callers_go_on();
    signal(worker.pid(), Signal::CONT);
    let done = until_it_is(&mut door, "order-1", "done");
    assert!(done["result"]["body"].as_str().unwrap().ends_with("attempt 1"), "{done}");
    assert_eq!(gateway.charges(), 1);
}

on_one_and_on_four!(a_worker_whose_broker_stalls_in_doubt_finishes_after_all);
/// The same with a broker that stands still, and the worker behind it at work all the time.
fn a_worker_whose_broker_stalls_in_doubt_finishes_after_all(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (broker, gateway) = orders_and_gateway(directory.path(), partitions, PARKS);
    let mut door = broker.connection();
    gateway.stop_callers("after the effect");
    let _worker = Process::charge(&broker, &gateway, "begin");
    door.ask(&Request::send("orders", "order-1", "x")).is(201);
    gateway.wait_for_a_stopped_caller();
    suspend(broker.pid());
    pause(Duration::from_secs(6)); // For longer than the lease.
    signal(broker.pid(), Signal::CONT);
    // Whether the broker or the worker is the first to move, nobody else gets the message.
    until("the lease to end, or to be extended", || {
        let found = key(&mut door, "order-1");
        (found["state"] == "parked" || found["state"] == "leased").then_some(())
    });
    gateway.let_callers_go_on();
    let done = until_it_is(&mut door, "order-1", "done");
    assert_eq!(done["attempts"], 1, "{done}");
    assert_eq!(gateway.charges(), 1);
}
