//! Another database under the address of this one.

use hapax_testing::{PATIENCE, PostgresServer, Signal, until};

use crate::{Cluster, ends_whole, is_serving, load, names, serves};

/// Gives a database another name, under its living nodes.
fn rename(server: &PostgresServer, from: &str, to: &str) {
    server.sql("postgres", &format!("ALTER DATABASE {from} ALLOW_CONNECTIONS false"));
    let sessions = format!("FROM pg_stat_activity WHERE datname = '{from}'");
    until("the sessions to end", || {
        server.sql("postgres", &format!("SELECT pg_terminate_backend(pid) {sessions}"));
        server.sql("postgres", &format!("SELECT count(*) {sessions}")).trim() == "0"
    });
    server.sql("postgres", &format!("ALTER DATABASE {from} RENAME TO {to}"));
    server.sql("postgres", &format!("ALTER DATABASE {to} ALLOW_CONNECTIONS true"));
}

/// The nodes serve nobody from a database that is not theirs, change nothing in it, and are in the
/// way of nobody there. Back at their own they go on.
#[test]
fn another_broker_under_the_same_address_is_left_alone() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let url = cluster.server.database("other");
    let third = cluster.setup_at("c", &url).start();
    serves(&third);
    let third = third.stop();
    let asked = "SELECT number, epoch, owner, claim, (SELECT count(*) FROM hapax.node)
                 FROM hapax.partition ORDER BY number";
    let before = cluster.server.sql("other", asked);
    rename(&cluster.server, "queues", "away");
    rename(&cluster.server, "other", "queues");
    for node in [&first, &second] {
        let told = "the database of another broker";
        let refusals = || node.setup.log().matches(told).count();
        until("the node to notice it, again and again", || refusals() >= 2);
        assert!(!is_serving(node));
    }
    // The one that served knows that this database does not have what it had confirmed.
    assert!(first.setup.log().contains("was set back"), "{}", first.setup.log());
    assert_eq!(cluster.server.sql("queues", asked), before, "they are not there");
    let third = third.variable("HAPAX_STORE", &cluster.url).start();
    serves(&third);
    drop(third.stop());
    rename(&cluster.server, "queues", "other");
    rename(&cluster.server, "away", "queues");
    // One that halted goes on when somebody has looked at it.
    first.signal(Signal::TERM);
    assert!(!first.ends(PATIENCE).success(), "a halted node exits with an error");
    serves(&second);
    let first = first.setup.start();
    names(&first, &second);
    load.gets_on(20);
    ends_whole(load, &[&first, &second]);
}

/// Otherwise a URL with a mistake in it would make an empty broker, which accepts again what the
/// other one has done, and the node would forget how far its own was.
#[test]
fn a_node_that_has_a_broker_starts_with_no_other_one() {
    let Some(cluster) = Cluster::start() else { return };
    let first = cluster.setup("a").start();
    serves(&first);
    let first = first.stop();
    let empty = cluster.server.database("empty");
    let misled = first.clone().variable("HAPAX_STORE", &empty);
    let refused = |found: &str| {
        let (code, log) = misled.refuses();
        assert_eq!(code, 1, "{log}");
        assert!(log.contains(found) && log.contains("empty --data"), "{log}");
    };
    refused("holds no broker");
    let tables = "SELECT count(*) FROM pg_namespace WHERE nspname = 'hapax'";
    assert_eq!(cluster.server.sql("empty", tables).trim(), "0", "nothing was created");
    let other = cluster.setup_at("b", &empty).start();
    serves(&other);
    refused("holds the broker");
    // At its own it goes on.
    serves(&first.start());
}
