//! The serving node goes in every way there is, under load, and another one takes over.

use std::time::Duration;

use hapax_testing::http::Request;
use hapax_testing::{Signal, pause, suspend, until};

use crate::{Cluster, ends_whole, fence, is_serving, load, names, says, serves};

/// How long a node may be silent.
const LEASE: Duration = Duration::from_secs(3);

#[test]
fn a_killed_node_is_replaced_and_nothing_is_lost() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut first, second) = cluster.two();
    let nodes = [&first, &second];
    let load = load(&nodes);
    let before = fence(&nodes);
    load.gets_on(20);
    first.kill();
    serves(&second);
    load.gets_on(20);
    let after = fence(&[&second]);
    assert!(after > before, "fences grow: {before}, {after}");
    // It comes back as a spare.
    let first = first.setup.start();
    names(&first, &second);
    ends_whole(load, &[&first, &second]);
}

#[test]
fn a_stopped_node_hands_over() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let owners = "SELECT count(*) FROM hapax.node";
    let first = first.stop();
    assert_eq!(cluster.server.sql("queues", owners).trim(), "1", "it has left");
    serves(&second);
    load.gets_on(20);
    let first = first.start();
    names(&first, &second);
    ends_whole(load, &[&first, &second]);
    second.stop();
    serves(&first);
    first.stop();
}

#[test]
fn a7_a_paused_node_is_replaced_and_what_it_says_late_is_refused() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let queue = Request::new("PUT", "/v1/queues/letters");
    first.connection().ask(&queue.header("content-type", "application/json").body("{}")).is(201);
    let send = |key| Request::send("letters", key, "lemons");
    let mut doors = [(); 3].map(|()| first.connection());
    doors[0].ask(&send("known")).is(201);
    doors[1].ask(&Request::get("/readyz"));
    doors[2].ask(&Request::get("/readyz"));
    suspend(first.pid());
    // Requests that it gets before it is replaced, and reads after it: a duplicate, a new message
    // and a look.
    let look = Request::get("/v1/queues/letters/keys/known");
    let asked = [send("known"), send("late"), look.clone()];
    let mut asked = doors.into_iter().zip(asked);
    let late = [(); 3].map(|()| {
        let (mut door, request) = asked.next().unwrap();
        std::thread::spawn(move || door.try_ask(&request))
    });
    serves(&second);
    load.gets_on(20);
    // Its successor knows more than it does.
    let discarded = Request::new("POST", "/v1/queues/letters/keys/known/discard");
    second.connection().ask(&discarded).is(200);
    first.signal(Signal::CONT);
    for answer in late {
        if let Ok(answer) = answer.join().unwrap() {
            answer.fails(503, "unavailable");
        }
    }
    names(&first, &second);
    let late = second.connection().ask(&Request::get("/v1/queues/letters/keys/late"));
    late.fails(404, "no_such_key");
    ends_whole(load, &[&first, &second]);
}

#[test]
fn a10_a_crash_of_the_database_is_ridden_out() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    for _ in 0..2 {
        load.gets_on(20);
        cluster.server.stop();
        says(&first, "cut off");
        cluster.server.launch();
        load.gets_on(20);
    }
    ends_whole(load, &[&first, &second]);
}

/// H6: everybody is cut off for longer than the lease, and nobody is taken for gone.
#[test]
fn h6_a_database_that_stands_still_for_longer_than_the_lease_changes_no_owner() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let before = cluster.owners();
    for _ in 0..2 {
        cluster.server.pause();
        says(&first, "cut off");
        pause(LEASE);
        cluster.server.resume();
        serves(&first);
        load.gets_on(20);
        assert_eq!(cluster.owners(), before, "nobody took over");
    }
    ends_whole(load, &[&first, &second]);
}

#[test]
fn three_nodes_survive_five_kills_and_then_two_at_once() {
    let Some(cluster) = Cluster::start() else { return };
    let mut nodes = ["a", "b", "c"].map(|name| cluster.setup(name).start());
    until("a node to serve", || nodes.iter().any(is_serving));
    let load = load(&nodes.each_ref());
    for _ in 0..5 {
        load.gets_on(10);
        let at = until("a node to serve", || nodes.iter().position(is_serving));
        nodes[at].kill();
        load.gets_on(10);
        nodes[at] = nodes[at].setup.start();
    }
    load.gets_on(10);
    let at = until("a node to serve", || nodes.iter().position(is_serving));
    for gone in [at, (at + 1) % 3] {
        nodes[gone].kill();
    }
    serves(&nodes[(at + 2) % 3]);
    load.gets_on(10);
    let epochs = "SELECT min(epoch) FROM hapax.partition";
    let epochs: u64 = cluster.server.sql("queues", epochs).trim().parse().unwrap();
    assert!(epochs >= 7, "it was taken over six times: {epochs}");
    ends_whole(load, &[&nodes[(at + 2) % 3]]);
}
