//! A primary with a synchronous standby, which takes its place for good.

use std::time::Duration;

use hapax_testing::{PostgresServer, printed, until, within};

use crate::{Cluster, ends_whole, fence, hapax, is_serving, load, names, serves};

/// How long nodes may take after the database is back, on a machine that is busy.
pub(crate) const BACK_WITHIN: Duration = Duration::from_secs(30);

/// The address of a database that either of the two has.
pub(crate) fn both(one: &PostgresServer, other: &PostgresServer) -> String {
    format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/queues", one.port(), other.port())
}

/// What is visible need not be replicated: the wait for the standby is cancelled, everybody sees
/// batches that the standby does not have, and then it is promoted. That is a correct failover of
/// what was never acknowledged, and nobody may take it for a loss.
#[test]
fn a10_batches_that_were_visible_and_not_replicated_are_no_loss() {
    let Some(mut cluster) = Cluster::start() else { return };
    let mut standby = synchronous(&cluster);
    cluster.url = both(&cluster.server, &standby);
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let journal = "SELECT sum(sequence) FROM hapax.journal";
    let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    standby.stop();
    let inserts = format!("SELECT count(*) {waits} AND query LIKE '%insert into hapax.journal%'");
    until("an append to wait", || cluster.server.sql("queues", &inserts).trim() != "0");
    let before = cluster.server.sql("queues", journal);
    let beats = || {
        let asked = "SELECT sum(heartbeat) FROM hapax.node WHERE name = 'b'";
        cluster.server.sql("queues", asked).trim().parse::<u64>().unwrap()
    };
    let beaten = beats();
    until("batches that are visible, and heartbeats that see them", || {
        cluster.server.sql("queues", &format!("SELECT pg_cancel_backend(pid) {waits}"));
        cluster.server.sql("queues", journal) != before && beats() >= beaten + 4
    });
    let visible = cluster.server.sql("queues", journal);
    cluster.server.stop();
    standby.launch();
    assert_ne!(standby.sql("queues", journal), visible, "they were replicated");
    standby.promote();
    within(BACK_WITHIN, "the node to serve on the new primary", || is_serving(&first));
    names(&second, &first);
    load.gets_on(20);
    for node in [&first, &second] {
        assert!(!node.setup.log().contains("set back"), "{}", node.setup.log());
    }
    ends_whole(load, &[&first, &second]);
}

/// A standby that has everything before it is acknowledged.
pub(crate) fn synchronous(cluster: &Cluster) -> PostgresServer {
    let standby = cluster.server.standby("s1", &[]);
    cluster.server.set("synchronous_standby_names", "s1");
    until("the standby", || is_synchronous(cluster));
    standby
}

/// Whether the standby follows.
pub(crate) fn is_synchronous(cluster: &Cluster) -> bool {
    let state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    cluster.server.sql("queues", state).trim() == "1"
}

#[test]
fn a10_a_synchronous_standby_that_is_promoted_has_everything() {
    let Some(mut cluster) = Cluster::start() else { return };
    let standby = synchronous(&cluster);
    cluster.url = both(&cluster.server, &standby);
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    let before = fence(&[&first, &second]);
    load.gets_on(20);
    let owners = cluster.owners();
    cluster.server.stop();
    standby.promote();
    within(BACK_WITHIN, "a node to serve on the new primary", || {
        is_serving(&first) || is_serving(&second)
    });
    load.gets_on(20);
    let after = fence(&[&first, &second]);
    assert!(after > before, "fences grow: {before}, {after}");
    let asked = "SELECT pg_is_in_recovery(), number, epoch, owner FROM hapax.partition ORDER BY 2";
    let now = standby.sql("queues", asked);
    let expected: String = owners.lines().map(|line| format!("f|{line}\n")).collect();
    assert_eq!(now, expected, "the node that served serves on");
    assert!(!second.setup.log().contains("set back"), "{}", second.setup.log());
    // The new primary is as good as the old one: the node is killed, and the spare has it all.
    let mut first = first;
    first.kill();
    serves(&second);
    load.gets_on(20);
    let first = first.setup.start();
    names(&first, &second);
    ends_whole(load, &[&first, &second]);
}

/// The machine of the primary stands still: it takes connections, and never answers.
#[test]
fn a10_a_primary_that_stands_still_is_left_for_its_promoted_standby() {
    let Some(mut cluster) = Cluster::start() else { return };
    let standby = synchronous(&cluster);
    cluster.url = both(&cluster.server, &standby);
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    cluster.server.pause();
    standby.promote();
    load.gets_on(20);
    ends_whole(load, &[&first, &second]);
    cluster.server.resume();
}

#[test]
fn standbys_that_are_asynchronous_are_told_at_the_start_and_by_the_status() {
    let Some(cluster) = Cluster::start() else { return };
    let _standby = cluster.server.standby("s1", &[]);
    let follows = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn IS NOT NULL";
    until("the standby", || cluster.server.sql("queues", follows).trim() == "1");
    let status = || {
        let mut asked = hapax(&["cluster", "status", "-o", "json"]);
        printed(&asked.env("HAPAX_STORE", &cluster.url).output().unwrap())
    };
    let first = cluster.setup("a").start();
    serves(&first);
    assert!(first.setup.log().contains("replicate asynchronously"), "{}", first.setup.log());
    let warned = status();
    assert!(warned.contains("Set synchronous_standby_names"), "{warned}");
    assert!(warned.contains("\"warning\": \"the standbys of"), "{warned}");
    cluster.server.set("synchronous_standby_names", "s1");
    until("the standby", || is_synchronous(&cluster));
    let second = cluster.setup("b").start();
    names(&second, &first);
    assert!(!second.setup.log().contains("asynchronously"), "{}", second.setup.log());
    let warned = status();
    assert!(!warned.contains("asynchronously"), "{warned}");
}
