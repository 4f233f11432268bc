//! Several nodes on one PostgreSQL, as processes: killed, paused, stopped, cut off.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod load;
mod takeover;

use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, PostgresServer, Setup, printed, until};
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
        let url = server.database("queues");
        Some(Self { directory: tempfile::tempdir().unwrap(), server, url })
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

    /// Two nodes: the first one serves.
    fn two(&self) -> (BrokerProcess, BrokerProcess) {
        let first = self.setup("a").start();
        serves(&first);
        let second = self.setup("b").start();
        names(&second, &first);
        (first, second)
    }
}

/// What `/readyz` answers, if anything.
fn ready(node: &BrokerProcess) -> Option<(u16, String)> {
    let answer = node.connection().try_ask(&Request::get("/readyz")).ok()?;
    Some((answer.status, answer.text()))
}

/// Waits until this node serves.
#[track_caller]
fn serves(node: &BrokerProcess) {
    until("the node to serve", || ready(node).is_some_and(|(status, _)| status == 200));
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
