//! A17: tenants who take whatever they can get, and one who wants its turn, in a broker that may
//! not use more than 512 MiB.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hapax_client::{Batch, Client, Message};
use serde_json::json;

use crate::machine::{Cap, memory_bytes, say, skip};
use crate::{broker_in, hapax};
use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, PATIENCE, Setup, pause, printed, until};

const CAP_BYTES: u64 = 512 << 20;
const BODY_BYTES: usize = 64 * 1_024;
/// What the noisy tenant gets in before the flood is over: more than the broker's memory.
const FLOOD_BYTES: u64 = 320 << 20;
const FLOODERS: usize = 4;
const STALLED: usize = 8;
/// The quiet tenant's sends, before the flood and during it.
const QUIET: usize = 100;
const CAPPED_PER_S: u32 = 5;
/// The quiet tenant's slow sends during the flood take at most so many times what they took before
/// it, and what the machine itself cost meanwhile. It is 2 where the machine is quiet; a broker in
/// which one tenant stops another is at a hundred.
const TIMES_MAX: f64 = 20.0;
/// For heads and caches. A checkpoint of large bodies may need as much again, twice.
const MEMORY: &str = "128MiB";

#[test]
fn a17_a_flood_and_stalled_streams_stay_within_the_memory_and_leave_others_their_turn() {
    let directory = tempfile::tempdir().unwrap();
    let cap = Cap::new(CAP_BYTES);
    if let Err(why) = &cap {
        skip("A17, the memory cap (its own memory is watched instead)", why);
    }
    let config = directory.path().join("hapax.toml");
    let text = format!("[tenants.capped]\nsends_per_s = {CAPPED_PER_S}\n");
    std::fs::write(&config, text).unwrap();
    let mut setup = broker_in(directory.path())
        .arguments(&["--config", &config.display().to_string(), "--auth", "tokens"])
        .variable("HAPAX_MEMORY_BYTES", MEMORY);
    let [noisy, capped, quiet] =
        ["noisy", "capped", "quiet"].map(|tenant| token(&setup.data, tenant));
    if let Ok(cap) = &cap {
        setup = setup.under(&cap.wrapper().each_ref().map(String::as_str));
    }
    let mut broker = setup.start();
    for token in [&noisy, &capped, &quiet] {
        let queue = Request::new("PUT", "/v1/queues/orders").json(&json!({}));
        setup.connection().token(token).ask(&queue).is(201);
    }
    let (before, idle) = quiet_sends(&setup, &quiet, "before");

    let flood = Flood::default();
    let during = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&flood);
        for number in 0..FLOODERS {
            let (setup, noisy, flood) = (&setup, &noisy, &flood);
            scope.spawn(move || {
                give_way();
                flood.by_http(setup, noisy, number);
            });
        }
        scope.spawn(|| {
            give_way();
            flood.by_grpc(&setup, &noisy);
        });
        scope.spawn(|| flood.capped(&setup, &capped));
        scope.spawn(|| flood.stall_streams(&setup, &noisy));
        scope.spawn(|| flood.stall_readers(&setup, &noisy));
        until("the flood to begin", || (flood.bytes() > 16 << 20).then_some(()));
        let during = quiet_sends(&setup, &quiet, "during");
        // A page about the broker does not wait for the partition that it shows.
        let metrics = setup.connection().token(&quiet).ask(&Request::get("/metrics")).text();
        assert!(metrics.contains("hapax_partition_answered{"), "{metrics}");
        until("the flood to be large", || {
            broker.is_alive();
            let is_over = flood.bytes() > FLOOD_BYTES;
            let is_refused = flood.limited.load(Ordering::Relaxed) > 0;
            (is_over && is_refused).then_some(())
        });
        during
    });

    broker.is_alive();
    let peak = memory_bytes(&broker, "VmHWM:");
    assert!(peak < CAP_BYTES, "{} MiB", peak >> 20);
    let mut used = format!("{} MiB of its own at most", peak >> 20);
    if let Ok(cap) = &cap {
        assert_eq!(cap.killed(), 0, "the kernel had to kill");
        used += &format!(", {} MiB with its caches", cap.peak_bytes().unwrap_or(0) >> 20);
    }
    assert_eq!(flood.strange.lock().unwrap().as_slice(), [] as [String; 0]);
    drains(&setup, &noisy, &broker);
    broker.has_not_panicked();
    let (during, busy) = during;
    let (p99_before, p99_during) = (p99(before), p99(during));
    let machine = p99(busy).saturating_sub(p99(idle));
    let times = p99_during.as_secs_f64() / (p99_before + machine).as_secs_f64();
    say(&format!(
        "A17: {} MiB in {} sends, {} refused; {used}; the quiet tenant's p99 {p99_before:.1?} \
         before, {p99_during:.1?} during, of which the machine {machine:.1?}: {times:.1} times",
        flood.bytes() >> 20,
        flood.sends.load(Ordering::Relaxed),
        flood.limited.load(Ordering::Relaxed) + flood.pushed_back.load(Ordering::Relaxed),
    ));
    assert!(times <= TIMES_MAX, "one tenant holds up another: {times:.1} times");
}

fn token(data: &Path, tenant: &str) -> String {
    let arguments = ["token", "create", "--can", "send,work,admin", "--tenant", tenant, "--data"];
    let output = hapax(&arguments).arg(data).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The flood is to be the broker's work, not the scheduler's: whoever makes it takes the processor
/// time that the broker leaves.
fn give_way() {
    rustix::process::nice(19).unwrap();
}

/// Every one of these succeeds. How long each took; and how long the port alone took beside it,
/// which no partition and no disk is asked for.
fn quiet_sends(setup: &Setup, token: &str, name: &str) -> (Vec<Duration>, Vec<Duration>) {
    let mut door = setup.connection().token(token);
    let (mut took, mut port) = (Vec::new(), Vec::new());
    for number in 0..QUIET {
        let request = Request::send("orders", &format!("{name}-{number}"), "a small body");
        let began = Instant::now();
        let response = door.ask(&request);
        took.push(began.elapsed());
        response.is(201);
        let began = Instant::now();
        let response = door.ask(&Request::get("/livez"));
        port.push(began.elapsed());
        assert_eq!(response.status, 200);
        pause(Duration::from_millis(5));
    }
    (took, port)
}

fn p99(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() * 99 / 100 - 1]
}

/// Afterwards everything is given back: connections end, and what was sent can be dropped.
fn drains(setup: &Setup, noisy: &str, broker: &BrokerProcess) {
    let mut door = setup.connection().token(noisy);
    until("the noisy queue to be empty and its connections to be closed", || {
        // Again and again: what a worker held when its stream ended comes back.
        door.ask(&Request::post("/v1/queues/orders/purge", &json!({}))).is(200);
        let stats = door.ask(&Request::get("/v1/queues/orders")).is(200)["stats"].clone();
        let left = ["ready", "delayed", "leased"].map(|place| stats[place].as_u64().unwrap());
        let metrics = door.ask(&Request::get("/metrics")).text();
        let open = metrics.lines().find_map(|line| line.strip_prefix("hapax_connections_open "));
        let open: f64 = open.unwrap().parse().unwrap();
        (left == [0, 0, 0] && open <= 3.0).then_some(())
    });
    door.ask(&Request::send("orders", "after", "x")).is(201);
    assert!(memory_bytes(broker, "VmRSS:") < CAP_BYTES);
}

#[derive(Debug, Default)]
struct Flood {
    is_over: AtomicBool,
    sends: AtomicU64,
    /// 429 to the tenant with a rate.
    limited: AtomicUsize,
    /// Anything retryable to the one without.
    pushed_back: AtomicUsize,
    strange: std::sync::Mutex<Vec<String>>,
}

/// However the test ends, the flood does.
struct StopOnDrop<'a>(&'a Flood);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Flood {
    fn bytes(&self) -> u64 {
        self.sends.load(Ordering::Relaxed) * BODY_BYTES as u64
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn strange(&self, what: String) {
        self.strange.lock().unwrap().push(what);
    }

    fn by_http(&self, setup: &Setup, token: &str, number: usize) {
        let mut door = setup.connection().token(token);
        for count in 0.. {
            if self.is_over() {
                return;
            }
            let key = format!("http-{number}-{count}");
            match door.try_ask(&Request::send("orders", &key, vec![b'x'; BODY_BYTES])) {
                Ok(response) if response.status == 201 => {
                    self.sends.fetch_add(1, Ordering::Relaxed);
                }
                Ok(response) if matches!(response.status, 429 | 503 | 507) => {
                    self.pushed_back.fetch_add(1, Ordering::Relaxed);
                    pause(Duration::from_millis(10));
                }
                Ok(response) => self.strange(format!("a flooder got {}", response.text())),
                // A broker may hang up on a flood.
                Err(_) => {
                    self.pushed_back.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn by_grpc(&self, setup: &Setup, token: &str) {
        on_a_runtime(async {
            let client = Client::builder(&setup.url()).token(token).timeout(PATIENCE);
            let mut sender = client.connect().unwrap().queue("orders").sender().window(128);
            let (mut next, mut answers) = (0, Vec::new());
            while !self.is_over() {
                while sender.room() > 0 {
                    next += 1;
                    let message = Message::new(vec![b'x'; BODY_BYTES]).key(format!("grpc-{next}"));
                    sender.push(message, next);
                }
                if let Err(error) = sender.answers(&mut answers).await {
                    self.strange(format!("the flooding stream ended: {error}"));
                    return;
                }
                for answered in answers.drain(..) {
                    match answered.answer {
                        Ok(_) => self.sends.fetch_add(1, Ordering::Relaxed) as usize,
                        Err(error) if error.is_retryable() => {
                            self.pushed_back.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(error) => return self.strange(format!("a flooder got {error}")),
                    };
                }
            }
        });
    }

    /// More than its rate allows.
    fn capped(&self, setup: &Setup, token: &str) {
        let mut door = setup.connection().token(token);
        for count in 0.. {
            if self.is_over() {
                return;
            }
            match door.try_ask(&Request::send("orders", &format!("{count}"), "x")) {
                Ok(response) if response.status == 201 => {}
                Ok(response) if response.status == 429 => {
                    response.fails(429, "rate_limited");
                    assert!(response.header("retry-after").is_some(), "{response:?}");
                    self.limited.fetch_add(1, Ordering::Relaxed);
                    pause(Duration::from_millis(5));
                }
                other => self.strange(format!("the capped tenant got {other:?}")),
            }
        }
    }

    /// Workers that ask for everything and take nothing.
    fn stall_streams(&self, setup: &Setup, token: &str) {
        on_a_runtime(async {
            let mut stalled = Vec::new();
            for _ in 0..STALLED {
                let client = Client::builder(&setup.url()).token(token).timeout(PATIENCE);
                let mut work = client.connect().unwrap().queue("orders").work().open();
                work.credit(100_000);
                let mut batch = Batch::default();
                // The first messages tell that the others are on their way.
                if let Err(error) = work.next(&mut batch).await {
                    return self.strange(format!("a stream of work ended: {error}"));
                }
                stalled.push((work, batch));
            }
            while !self.is_over() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// Readers that ask for long pages and read none.
    fn stall_readers(&self, setup: &Setup, token: &str) {
        let page = Request::get("/v1/queues/orders/messages?state=ready&limit=100");
        let mut stalled: Vec<Connection> = Vec::new();
        for _ in 0..STALLED {
            let mut door = setup.connection().token(token);
            for _ in 0..4 {
                let _ = door.write(&page);
            }
            stalled.push(door);
        }
        while !self.is_over() {
            pause(Duration::from_millis(20));
        }
    }
}

fn on_a_runtime(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}
