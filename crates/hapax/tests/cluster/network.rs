//! The network between a node and its database loses what is sent, in one direction or in both, and
//! the replies of single statements.

use std::time::Duration;

use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, Link, Proxy, pause, until};
use tokio::runtime::Runtime;

use crate::watch::{metrics, value};
use crate::{Cluster, ends_whole, load, names, says, serves};

/// Far longer than the lease, and far shorter than what a client would wait.
const ERROR_WITHIN: Duration = Duration::from_secs(30);

/// A node whose way to the database is cut under load, by `lose`, and healed when another node has
/// taken over.
fn cut_off(lose: impl Fn(&Link)) {
    let Some(cluster) = Cluster::start() else { return };
    let network = Runtime::new().unwrap();
    let link = network.block_on(Link::to(([127, 0, 0, 1], cluster.server.port()).into()));
    let (_, address) = link.url.split_once("://").unwrap();
    let far = format!("postgres://postgres@{address}/queues");
    let first = cluster.setup_at("a", &far).start();
    serves(&first);
    let second = cluster.setup("b").start();
    names(&second, &first);
    let load = load(&[&first, &second]);
    let queue = Request::new("PUT", "/v1/queues/letters");
    first.connection().ask(&queue.header("content-type", "application/json").body("{}")).is(201);
    load.gets_on(20);
    lose(&link);
    // A request that the node has when it loses the database gets an error, and no silence.
    let mut door = first.connection().timeout(ERROR_WITHIN);
    let sent = Request::send("letters", "cut-off", "lemons");
    door.ask(&sent).fails(503, "unavailable");
    says(&first, "cut off");
    serves(&second);
    load.gets_on(20);
    let id = second.connection().ask(&sent).json()["id"].clone();
    link.cut();
    link.restore();
    names(&first, &second);
    let again = second.connection().ask(&sent).is(200);
    assert_eq!(again["id"], id);
    load.gets_on(20);
    ends_whole(load, &[&first, &second]);
}

#[test]
fn a8_a_node_that_is_cut_off_in_both_directions_is_replaced() {
    cut_off(|link| {
        link.lose_requests();
        link.lose_answers();
    });
}

#[test]
fn a8_a_node_whose_statements_are_lost_is_replaced() {
    cut_off(Link::lose_requests);
}

/// What it appended last is in the database, and it does not know.
#[test]
fn a8_a_node_that_hears_no_answers_is_replaced() {
    cut_off(Link::lose_answers);
}

/// Nodes `a`, whose way to the database goes over the link, and `b`; `a` serves. Heartbeats get
/// through whatever the link does.
fn over_a_link(cluster: &Cluster, network: &Runtime) -> (Link, BrokerProcess, BrokerProcess) {
    let database = ([127, 0, 0, 1], cluster.server.port()).into();
    let link = network.block_on(Link::exempting(database, b"hapax heartbeats"));
    let (_, address) = link.url.split_once("://").unwrap();
    let far = format!("postgres://postgres@{address}/queues");
    let first = cluster.setup_at("a", &far).start();
    serves(&first);
    let second = cluster.setup("b").start();
    names(&second, &first);
    (link, first, second)
}

/// Connections that are open and dead: the node that beats over another one gives their statements
/// up, looks for what became of them, and serves on.
#[test]
fn statements_on_dead_connections_are_given_up_while_the_node_beats() {
    let Some(cluster) = Cluster::start() else { return };
    let network = Runtime::new().unwrap();
    let (link, first, second) = over_a_link(&cluster, &network);
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let owners = cluster.owners();
    for _ in 0..2 {
        link.stop_old();
        load.gets_on(30);
    }
    assert_eq!(cluster.owners(), owners, "nobody took over");
    let log = first.setup.log();
    assert!(log.contains("did not answer within"), "{log}");
    assert!(!log.contains("cut off"), "{log}");
    ends_whole(load, &[&first, &second]);
}

/// New connections are dead, too: the node owns and beats, and can do nothing. It says so, gives
/// up, and another one serves.
#[test]
fn a_node_that_owns_and_gets_nothing_done_gives_up() {
    let Some(cluster) = Cluster::start() else { return };
    let network = Runtime::new().unwrap();
    let (link, first, second) = over_a_link(&cluster, &network);
    let load = load(&[&first, &second]);
    load.gets_on(20);
    link.stop_old();
    link.stop_new();
    says(&first, "gets nothing done");
    serves(&second);
    load.gets_on(20);
    says(&first, "it got nothing done although the database answers");
    link.restore();
    link.cut();
    names(&first, &second);
    load.gets_on(20);
    ends_whole(load, &[&first, &second]);
}

#[test]
fn a9_lost_replies_to_fifty_statements_change_no_answer() {
    let Some(cluster) = Cluster::start() else { return };
    let proxy = Proxy::to(cluster.server.port());
    let far = format!("postgres://postgres@127.0.0.1:{}/queues", proxy.port);
    let first = cluster.setup_at("a", &far).start();
    serves(&first);
    let second = cluster.setup("b").start();
    names(&second, &first);
    let load = load(&[&first, &second]);
    load.gets_on(10);
    for _ in 0..50 {
        proxy.lose_reply_after(i64::from(fastrand::u8(..4)));
        until("the loss", || !proxy.is_armed());
        // Not all at once: what follows a loss is the look for the outcome.
        pause(Duration::from_millis(fastrand::u64(..40)));
    }
    load.gets_on(20);
    let appends = value(&metrics(&first), "hapax_appends_failed_total");
    // The others were look-ups, heartbeats and what nodes read.
    assert!(appends >= 5.0, "only {appends} replies to appends were lost");
    ends_whole(load, &[&first, &second]);
}
