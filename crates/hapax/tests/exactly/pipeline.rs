//! Consume, transform, produce: three queues, and a broker and workers that are killed again and
//! again. A `done` and what it emits are one, so the end has one output for every input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_client::{Client, Message};
use serde_json::{Value, json};

use crate::broker_in;
use crate::gateway::Gateway;
use crate::process::{Process, RULES, put, stats};
use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, PATIENCE, pause, until};

const QUEUES: [&str; 3] = ["first", "second", "third"];
const INPUTS: u64 = 400;
const KILLS: u64 = 24;

/// The broker, and two workers for each of the two ways on.
struct Chain {
    broker: BrokerProcess,
    workers: Vec<(usize, Process)>,
    gateway: Gateway,
}

impl Chain {
    fn start(directory: &std::path::Path, partitions: u16) -> Self {
        let broker = broker_in(directory).partitions(partitions).start();
        for queue in QUEUES {
            put(&mut broker.connection(), queue, RULES);
        }
        let gateway = Gateway::new(&directory.join("gateway"));
        let mut chain = Self { broker, workers: Vec::new(), gateway };
        for stage in [0, 0, 1, 1] {
            chain.workers.push((stage, chain.worker(stage, "emit")));
        }
        chain
    }

    fn worker(&self, stage: usize, how: &str) -> Process {
        Process::start(&json!({
            "part": "pass-on", "server": self.broker.url(), "gateway": self.gateway.path(),
            "from": QUEUES[stage], "to": QUEUES[stage + 1], "how": how,
        }))
    }

    /// Kills the broker, or one of the workers, and starts it again.
    fn kill(&mut self, victim: usize) {
        match self.workers.get_mut(victim) {
            Some((stage, process)) => {
                process.kill();
                let stage = *stage;
                self.workers[victim].1 = self.worker(stage, "emit");
            }
            None => {
                self.broker.kill();
                self.broker = self.broker.setup.start();
            }
        }
    }

    fn count(&self, queue: &str, what: &str) -> u64 {
        stats(&mut self.broker.connection(), queue)[what].as_u64().unwrap()
    }
}

/// Everything that came out, by the input it came from.
fn outputs(door: &mut Connection) -> BTreeMap<u64, Vec<Value>> {
    let mut outputs: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    loop {
        let some = json!({ "max": 1_000, "wait_ms": 0, "lease_ms": 600_000 });
        let some = door.ask(&Request::post("/v1/queues/third/receive", &some)).is(200);
        let some = some["messages"].as_array().unwrap().clone();
        if some.is_empty() {
            return outputs;
        }
        for message in some {
            let body: Value = serde_json::from_str(message["body"].as_str().unwrap()).unwrap();
            outputs.entry(body["input"].as_u64().unwrap()).or_default().push(body);
        }
    }
}

/// Sends the inputs that may be sent, some of them twice, and does not give up.
fn produce(url: String, allowed: Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::builder(&url).timeout(PATIENCE).connect().unwrap();
            for input in 0..INPUTS {
                while allowed.load(Ordering::Relaxed) <= input {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                let body = json!({ "input": input, "hops": 0 });
                for _ in 0..=input % 3 / 2 {
                    let message = Message::json(&body).unwrap().key(format!("input-{input}"));
                    client.queue("first").send(message).await.unwrap();
                }
            }
        });
    })
}

on_one_and_on_four!(three_queues_under_kills_of_broker_and_workers_give_one_output_per_input);
fn three_queues_under_kills_of_broker_and_workers_give_one_output_per_input(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = Chain::start(directory.path(), partitions);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let allowed = Arc::new(AtomicU64::new(0));
    let producer = produce(chain.broker.url(), Arc::clone(&allowed));
    let mut killed = [0; 2];
    for kill in 0..KILLS {
        // Something came through since the last kill, and not everything before the last one.
        let share = |part: u64| INPUTS * part / (KILLS + 1);
        allowed.store(share(kill + 1), Ordering::Relaxed);
        until("outputs", || (chain.count("third", "sent_total") > share(kill)).then_some(()));
        pause(Duration::from_millis(random.u64(..20)));
        let victim = random.usize(..chain.workers.len() * 2);
        killed[usize::from(victim < chain.workers.len())] += 1;
        chain.kill(victim);
    }
    allowed.store(INPUTS, Ordering::Relaxed);
    producer.join().unwrap();
    for queue in QUEUES.iter().take(2) {
        until("everything to be passed on", || {
            (chain.count(queue, "done_total") == INPUTS).then_some(())
        });
    }
    until("the last outputs", || (chain.count("third", "sent_total") >= INPUTS).then_some(()));

    let outputs = outputs(&mut chain.broker.connection());
    let told = format!("seed {seed}");
    assert_eq!(outputs.len() as u64, INPUTS, "an output for every input, {told}");
    for (input, bodies) in &outputs {
        assert_eq!(bodies[..], [json!({ "input": input, "hops": 2 })], "{told}");
    }
    assert_eq!(chain.count("third", "sent_total"), INPUTS, "{told}");
    assert!(killed.iter().all(|&count| count > 0), "{killed:?}, {told}");
    let lost: u64 = QUEUES.iter().map(|queue| chain.count(queue, "lease_lost_total")).sum();
    assert!(lost > 0, "no kill found work under way, {told}");
    chain.broker.has_not_panicked();
}

on_one_and_on_four!(a_send_before_the_done_instead_of_an_emit_doubles_the_output);
fn a_send_before_the_done_instead_of_an_emit_doubles_the_output(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let mut chain = Chain::start(directory.path(), partitions);
    chain.workers.clear();
    let mut door = chain.broker.connection();
    chain.gateway.stop_callers("before the done");
    let mut first = chain.worker(1, "send");
    door.ask(&Request::send("second", "a", r#"{"input":7,"hops":1}"#)).is(201);
    chain.gateway.wait_for_a_stopped_caller();
    first.kill();
    chain.gateway.let_callers_pass();
    let _second = chain.worker(1, "send");
    until("the redelivery", || (chain.count("second", "done_total") == 1).then_some(()));
    assert_eq!(outputs(&mut door)[&7].len(), 2, "this is what an emit is for");
}
