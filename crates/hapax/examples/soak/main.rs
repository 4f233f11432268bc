//! Several nodes on a PostgreSQL that Patroni looks after, under load and under faults, for as long
//! as you like.
//!
//! ```sh
//! apt-get install postgresql patroni etcd-server python3-etcd
//! cargo build --release -p hapax
//! cargo run --release -p hapax --example soak -- --minutes 30
//! ```
//!
//! It starts etcd, two PostgreSQL servers with Patroni in synchronous mode, and three nodes (the
//! program `hapax` beside it, or `--hapax PATH`), all on this machine, with data in a temporary
//! directory. Producers and workers use the nodes over HTTP and gRPC. One fault comes after the
//! other, in an order that the seed determines; after each the load has to get on and the database
//! to be whole again. In the end everything must drain, and what clients were told is checked:
//! nothing acknowledged lost, nothing doubled, one id for each key, results kept, fences that grow.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a soak stops at surprises"
)]

mod patroni;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use hapax_testing::http::Request;
use hapax_testing::load::{Load, resend_all};
use hapax_testing::{BrokerProcess, Setup, Signal, newest_programs, pause, until, within};
use patroni::Patroni;

/// How long the load may stand still: a lost host is missed after 20 s, and then replaced.
const ON_WITHIN: Duration = Duration::from_secs(300);
/// Longer than the lease of a node, 3 s.
const PAUSED: Duration = Duration::from_secs(6);
/// Longer than Patroni needs to give up a primary without etcd, or without an answer.
const AWAY: Duration = Duration::from_secs(40);
/// Operations of each door after which the load counts as going on.
const OPERATIONS: usize = 50;

/// Runs three nodes on a PostgreSQL with Patroni under load and under faults, and checks what
/// clients were told.
#[derive(Debug, Parser)]
struct Arguments {
    /// How long faults go on.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_080))]
    minutes: u64,
    /// Determines the order of the faults [default: drawn, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Only this fault; may be given several times.
    #[arg(long, value_name = "FAULT")]
    only: Vec<Fault>,
    /// The program `hapax` [default: beside the folder of this one].
    #[arg(long)]
    hapax: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// Nothing, for a while.
    None,
    /// The serving node is killed.
    NodeKilled,
    /// The serving node is stopped in order.
    NodeStopped,
    /// The serving node is paused for longer than its lease.
    NodePaused,
    /// Two of the three nodes are killed at once, the serving one among them.
    TwoKilled,
    /// Primary and standby change their roles, as an operator asks.
    Switchover,
    /// The primary and its Patroni are killed; the standby takes over.
    PrimaryLost,
    /// The primary's host stands still; when the standby has taken over, it is killed. Without a
    /// watchdog, which Patroni asks for, a host that wakes may take the lead back, with the loss of
    /// all that was written meanwhile.
    PrimaryPaused,
    /// The standby and its Patroni are killed.
    StandbyLost,
    /// etcd stands still for so long that the primary gives up.
    EtcdPaused,
    /// The primary and the serving node are killed at the same time.
    Both,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(missing) = missing(&arguments) {
        say(&format!("soak: {missing}"));
        return ExitCode::FAILURE;
    }
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let choice: Vec<Fault> = match arguments.only.as_slice() {
        [] => Fault::value_variants().to_vec(),
        only => only.to_vec(),
    };
    say(&format!("seed {seed}; starting etcd, Patroni, PostgreSQL and three nodes"));
    let mut soak = Soak::start(&arguments);
    let mut random = fastrand::Rng::with_seed(seed);
    let start = Instant::now();
    let mut all: Vec<(Fault, Duration)> = Vec::new();
    while start.elapsed() < Duration::from_secs(arguments.minutes * 60) {
        let fault = choice[random.usize(..choice.len())];
        say(&format!("{:>6.0} s  {}", start.elapsed().as_secs_f64(), name(fault)));
        let stood = soak.strike(fault);
        let progress = soak.load.progress();
        say(&format!(
            "          went on after {:.1} s; {} sends and {} settles so far",
            stood.as_secs_f64(),
            progress.http.sent + progress.grpc.sent,
            progress.http.done + progress.grpc.done,
        ));
        all.push((fault, stood));
    }
    soak.end(&all);
    ExitCode::SUCCESS
}

/// What is not there, and how to get it.
fn missing(arguments: &Arguments) -> Option<String> {
    let found = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok()
    };
    let program = hapax(arguments);
    if !program.is_file() {
        let path = program.display();
        return Some(format!("{path} is missing: run cargo build --release -p hapax first"));
    }
    let absent = patroni::PROGRAMS.iter().filter(|(program, _)| !found(program));
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    if newest_programs().is_none() {
        packages.push("postgresql");
    }
    let wanted = packages.join(" ");
    (!packages.is_empty()).then(|| format!("as root, run apt-get install {wanted} first"))
}

/// `target/release/examples/soak` is beside `target/release/hapax`.
fn hapax(arguments: &Arguments) -> PathBuf {
    let beside = || {
        let this = std::env::current_exe().unwrap();
        this.parent().and_then(|examples| examples.parent()).unwrap().join("hapax")
    };
    arguments.hapax.clone().unwrap_or_else(beside)
}

/// Everything that runs. The nodes end before the database does.
struct Soak {
    nodes: Vec<BrokerProcess>,
    load: Load,
    patroni: Patroni,
    _directory: tempfile::TempDir,
}

impl Soak {
    fn start(arguments: &Arguments) -> Self {
        let patroni = Patroni::start();
        let url = patroni.database("queues");
        let directory = tempfile::tempdir().unwrap();
        let program = std::path::absolute(hapax(arguments)).unwrap();
        let node = |name: &str| {
            let directory = directory.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            Setup::new(program.to_str().unwrap(), &directory)
                .partitions(4)
                .arguments(&["--auth", "off", "--node-name", name])
                .variable("HAPAX_STORE", &url)
                .start()
        };
        let nodes: Vec<BrokerProcess> = ["a", "b", "c"].map(node).into();
        let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.setup.address).collect();
        let load = Load::over(&addresses);
        Self { nodes, load, patroni, _directory: directory }
    }

    /// Lets a fault happen while the load runs. Returns how long the load stood still after it.
    fn strike(&mut self, fault: Fault) -> Duration {
        self.gets_on();
        let serving = until("a node to serve", || self.nodes.iter().position(is_serving));
        let primary = until("a primary", || self.patroni.primary());
        let standby = 1 - primary;
        let struck = Instant::now();
        match fault {
            Fault::None => pause(PAUSED),
            Fault::NodeKilled => self.nodes[serving].kill(),
            Fault::NodeStopped => self.nodes[serving].signal(Signal::TERM),
            Fault::NodePaused => {
                self.nodes[serving].signal(Signal::STOP);
                pause(PAUSED);
            }
            Fault::TwoKilled => {
                self.nodes[serving].kill();
                let other = (serving + 1) % self.nodes.len();
                self.nodes[other].kill();
            }
            Fault::Switchover => self.patroni.switch_over(primary),
            Fault::PrimaryLost => self.patroni.hosts[primary].kill(),
            Fault::PrimaryPaused => {
                self.patroni.hosts[primary].signal(Signal::STOP);
                self.patroni.leads(standby);
            }
            Fault::StandbyLost => self.patroni.hosts[standby].kill(),
            Fault::EtcdPaused => {
                self.patroni.stop_etcd();
                pause(AWAY);
                self.patroni.resume_etcd();
            }
            Fault::Both => {
                self.patroni.hosts[primary].kill();
                self.nodes[serving].kill();
            }
        }
        self.gets_on();
        let stood = struck.elapsed();
        self.mend(fault, primary, serving);
        stood
    }

    /// Brings back what the fault took away.
    fn mend(&mut self, fault: Fault, primary: usize, serving: usize) {
        match fault {
            Fault::None | Fault::Switchover | Fault::EtcdPaused => {}
            Fault::NodeKilled => self.restart(serving),
            Fault::NodeStopped => {
                let status = self.nodes[serving].ends(ON_WITHIN);
                assert!(status.success(), "{status:?}");
                self.restart(serving);
            }
            Fault::NodePaused => self.nodes[serving].signal(Signal::CONT),
            Fault::TwoKilled => {
                self.restart(serving);
                self.restart((serving + 1) % self.nodes.len());
            }
            Fault::PrimaryLost => self.patroni.hosts[primary].start(),
            Fault::PrimaryPaused => {
                self.patroni.hosts[primary].kill();
                self.patroni.hosts[primary].start();
            }
            Fault::StandbyLost => self.patroni.hosts[1 - primary].start(),
            Fault::Both => {
                self.patroni.hosts[primary].start();
                self.restart(serving);
            }
        }
        self.patroni.is_whole();
        self.gets_on();
        self.nodes.iter().for_each(|node| node.has_not_panicked());
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node] = self.nodes[node].setup.start();
    }

    /// Waits until both doors have sent and settled more than before.
    #[track_caller]
    fn gets_on(&self) {
        let before = self.load.progress();
        within(ON_WITHIN, "the load to get on", || {
            let now = self.load.progress();
            [(before.http, now.http), (before.grpc, now.grpc)].iter().all(|(before, now)| {
                now.sent >= before.sent + OPERATIONS && now.done >= before.done + OPERATIONS
            })
        });
    }

    /// Lets everything drain, checks what clients were told, and prints a summary.
    fn end(self, all: &[(Fault, Duration)]) {
        let progress = self.load.progress();
        let [http, grpc] = [progress.http, progress.grpc];
        say("draining; then every key is sent again, and the history is checked");
        let history = self.load.finish();
        let serving = until("a node to serve", || self.nodes.iter().find(|node| is_serving(node)));
        resend_all(&serving.setup, &history);
        for fault in Fault::value_variants() {
            let mut stood: Vec<Duration> =
                all.iter().filter(|(other, _)| other == fault).map(|(_, stood)| *stood).collect();
            stood.sort();
            if let (Some(median), Some(longest)) = (stood.get(stood.len() / 2), stood.last()) {
                say(&format!(
                    "{:<15} {:>4} times; went on after {:.1} s (median), {:.1} s (longest)",
                    name(*fault),
                    stood.len(),
                    median.as_secs_f64(),
                    longest.as_secs_f64()
                ));
            }
        }
        say(&format!(
            "{} keys accepted, {} sends answered, {} messages done, {} answers lost; \
             nothing lost, nothing doubled, one id for each key, results kept, fences grew",
            http.accepted + grpc.accepted,
            http.sent + grpc.sent,
            http.done + grpc.done,
            http.unknown + grpc.unknown,
        ));
    }
}

fn is_serving(node: &BrokerProcess) -> bool {
    let mut door = node.connection().timeout(Duration::from_secs(2));
    door.try_ask(&Request::get("/readyz")).is_ok_and(|answer| answer.status == 200)
}

fn name(fault: Fault) -> String {
    fault.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
