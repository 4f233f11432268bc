//! Several nodes on one PostgreSQL, as processes: killed, paused, stopped, cut off.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod clocks;
mod database;
mod elsewhere;
mod imports;
mod network;
mod pooler;
mod set_back;
mod standby;
mod takeover;
mod tokens;
mod versions;
mod watch;

use std::net::SocketAddr;
use std::time::Duration;

use hapax_client::{Claim, Client};
use hapax_testing::http::Request;
use hapax_testing::load::{Load, QUEUE, resend_all};
use hapax_testing::{BrokerProcess, PATIENCE, PostgresServer, Setup, in_time, printed, until};
use tempfile::TempDir;

the_program!();

/// A database, and the directories of its nodes.
struct Cluster {
    directory: TempDir,
    server: PostgresServer,
    url: String,
}

impl Cluster {
    /// `None` if PostgreSQL is not installed, which is printed.
    fn start() -> Option<Self> {
        let server = PostgresServer::start(&[])?;
        Some(Self::on(server))
    }

    fn on(server: PostgresServer) -> Self {
        let url = server.database("queues");
        Self { directory: tempfile::tempdir().unwrap(), server, url }
    }

    fn setup(&self, name: &str) -> Setup {
        self.setup_at(name, &self.url)
    }

    fn setup_at(&self, name: &str, url: &str) -> Setup {
        let directory = self.directory.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        broker_in(&directory)
            .partitions(2)
            .arguments(&["--auth", "off", "--node-name", name])
            .variable("HAPAX_STORE", url)
    }

    /// Owners and epochs of the partitions.
    fn owners(&self) -> String {
        self.server
            .sql("queues", "SELECT number, epoch, owner FROM hapax.partition ORDER BY number")
    }

    /// Waits until a node has beaten so often. After three times it knows what was there before:
    /// the second heartbeat was begun later, and was answered before the third.
    fn has_beaten(&self, name: &str, times: u64) {
        // It may have rows of earlier starts.
        let asked = format!("SELECT sum(heartbeat) FROM hapax.node WHERE name = '{name}'");
        let beats = || self.server.sql("queues", &asked).trim().parse::<u64>().unwrap();
        let before = beats();
        until("heartbeats", || beats() >= before + times);
    }

    /// Waits until a spare has seen another node beat.
    fn has_watched(&self, spare: &str, other: &str) {
        self.has_beaten(spare, 3);
        self.has_beaten(other, 1);
        self.has_beaten(spare, 3);
    }

    /// Two nodes: the first one serves.
    fn two(&self) -> (BrokerProcess, BrokerProcess) {
        let first = self.setup("a").start();
        serves(&first);
        let second = self.setup("b").start();
        names(&second, &first);
        (first, second)
    }
}

/// A load over these nodes.
fn load(nodes: &[&BrokerProcess]) -> Load {
    let nodes: Vec<SocketAddr> = nodes.iter().map(|node| node.setup.address).collect();
    Load::over(&nodes)
}

/// Lets the load drain, and checks what it was told: nothing lost, nothing doubled, one id for each
/// key, results kept, fences that grow. Then sends every key again to the node that serves.
#[track_caller]
fn ends_whole(load: Load, nodes: &[&BrokerProcess]) {
    let progress = load.progress();
    for count in [progress.http, progress.grpc] {
        assert!(count.sent > 20 && count.done > 20, "the load was empty: {progress:?}");
    }
    let history = load.finish();
    let serving = until("a node to serve", || nodes.iter().find(|node| is_serving(node)));
    resend_all(&serving.setup, &history);
    nodes.iter().for_each(|node| node.has_not_panicked());
}

/// Claims a key that nobody holds any more, and returns the fence.
fn fence(nodes: &[&BrokerProcess]) -> u64 {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder(&urls.join(",")).timeout(PATIENCE).connect().unwrap();
        let queue = client.queue(QUEUE);
        let claim =
            queue.claim("fenced").lease(Duration::from_secs(1)).wait(Duration::from_secs(60));
        match in_time(claim.take()).await.unwrap() {
            Claim::Fresh(held) => {
                let fence = held.fence();
                in_time(held.release()).await.unwrap();
                fence
            }
            other => panic!("{other:?}"),
        }
    })
}

/// What `/readyz` answers, if anything.
fn ready(node: &BrokerProcess) -> Option<(u16, String)> {
    let answer = node.connection().try_ask(&Request::get("/readyz")).ok()?;
    Some((answer.status, answer.text()))
}

fn is_serving(node: &BrokerProcess) -> bool {
    ready(node).is_some_and(|(status, _)| status == 200)
}

/// Waits until this node serves.
#[track_caller]
fn serves(node: &BrokerProcess) {
    until("the node to serve", || is_serving(node));
}

/// Waits until this node says so of itself.
#[track_caller]
fn says(node: &BrokerProcess, what: &str) -> String {
    until(what, || {
        ready(node).filter(|(status, text)| *status == 503 && text.contains(what)).map(|it| it.1)
    })
}

/// Waits until a node that does not serve names the one that does.
#[track_caller]
fn names(node: &BrokerProcess, serving: &BrokerProcess) {
    let named = format!("\"serving\":\"{}\"", serving.url());
    until("the node to name the other", || {
        ready(node).is_some_and(|(status, text)| status == 503 && text.contains(&named))
    });
}

#[test]
fn the_status_of_a_cluster_comes_from_its_database() {
    let Some(cluster) = Cluster::start() else { return };
    let (_first, _second) = cluster.two();
    let status = hapax(&["cluster", "status"]).env("HAPAX_STORE", &cluster.url).output().unwrap();
    assert!(status.status.success(), "{}", printed(&status));
    let shown = printed(&status);
    let of = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(of("a ").contains("serving") && of("a ").contains("yes"), "{shown}");
    assert!(of("b ").contains("standby") && of("b ").contains("yes"), "{shown}");
    let loss =
        hapax(&["cluster", "accept-loss", "--yes"]).env("HAPAX_STORE", &cluster.url).output();
    let loss = loss.unwrap();
    assert!(!loss.status.success(), "{}", printed(&loss));
    assert!(printed(&loss).contains("stop all nodes first"), "{}", printed(&loss));
    // It only reads: what keeps nodes from going on does not keep it from showing them.
    cluster.server.set("fsync", "off");
    let status = hapax(&["cluster", "status"]).env("HAPAX_STORE", &cluster.url).output().unwrap();
    let shown = printed(&status);
    assert!(status.status.success() && shown.contains("fsync is off"), "{shown}");
    assert!(shown.contains("\na ") && shown.contains("\nb "), "{shown}");
}

#[test]
fn a_cluster_in_which_nobody_beats_is_told_as_such() {
    let Some(cluster) = Cluster::start() else { return };
    let mut node = cluster.setup("a").start();
    serves(&node);
    node.kill();
    let asked = |arguments: &[&str]| {
        let asked = hapax(arguments).env("HAPAX_STORE", &cluster.url).output().unwrap();
        assert!(asked.status.success(), "{}", printed(&asked));
        printed(&asked)
    };
    let shown = asked(&["cluster", "status"]);
    assert!(shown.contains("no node beats") && shown.contains("synchronous standby"), "{shown}");
    let shown = asked(&["cluster", "accept-loss"]);
    assert!(shown.contains("if one of them was further") && shown.contains("nothing to accept"));
    // That it was accepted can be seen until nodes have gone on.
    assert!(!shown.contains("was accepted"), "{shown}");
    asked(&["cluster", "accept-loss", "--yes"]);
    let shown = asked(&["cluster", "accept-loss"]);
    assert!(
        shown.contains("a loss was accepted") && !shown.contains("nothing was changed"),
        "{shown}"
    );
    // The row of a node that was killed is not shown beside that of its next start.
    let node = node.setup.start();
    serves(&node);
    let shown = asked(&["cluster", "status"]);
    let rows: Vec<&str> = shown.lines().filter(|line| line.starts_with("a ")).collect();
    assert!(rows.len() == 1 && rows[0].contains("serving"), "{shown}");
}

#[test]
fn backups_and_checks_are_the_databases() {
    let Some(cluster) = Cluster::start() else { return };
    let node = cluster.setup("a").start();
    serves(&node);
    let target = cluster.directory.path().join("backup");
    let target = target.to_str().unwrap();
    for arguments in [
        &["backup", "--online", target, "--server", &node.url()][..],
        &["backup", &cluster.url, target],
        &["check", &cluster.url],
    ] {
        let refused = hapax(arguments).output().unwrap();
        assert!(!refused.status.success(), "{arguments:?}");
        let printed = printed(&refused);
        assert!(printed.contains("PostgreSQL"), "{printed}");
        assert!(printed.contains("pg_basebackup") && !printed.contains("try again"), "{printed}");
    }
    assert!(!std::path::Path::new(target).exists());
}
