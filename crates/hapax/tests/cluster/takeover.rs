//! The serving node goes in every way there is, under load, and another one takes over.

use std::time::Duration;

use hapax_client::Claim;
use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, Link, Signal, in_time, suspend, until};

use crate::load::{Load, client, create, runtime};
use crate::{Cluster, names, ready, serves};

/// Claims a key that nobody holds any more, and returns the fence.
fn fence(nodes: &[&BrokerProcess]) -> u64 {
    runtime().block_on(async {
        let queue = client(nodes).queue("orders");
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

#[test]
fn a_killed_node_is_replaced_and_nothing_is_lost() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut first, second) = cluster.two();
    let nodes = [&first, &second];
    create(&nodes);
    let before = fence(&nodes);
    let load = Load::start(&nodes);
    load.goes_on(20);
    first.kill();
    serves(&second);
    load.goes_on(20);
    let after = fence(&[&second]);
    assert!(after > before, "fences grow: {before}, {after}");
    // It comes back as a spare.
    let first = first.setup.start();
    names(&first, &second);
    load.ends_whole(&[&first, &second]);
    first.has_not_panicked();
    second.has_not_panicked();
}

#[test]
fn a_stopped_node_hands_over() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    create(&[&first, &second]);
    let load = Load::start(&[&first, &second]);
    load.goes_on(20);
    let owners = "SELECT count(*) FROM hapax.node";
    let first = first.stop();
    assert_eq!(cluster.server.sql("queues", owners).trim(), "1", "it has left");
    serves(&second);
    load.goes_on(20);
    let first = first.start();
    names(&first, &second);
    load.ends_whole(&[&first, &second]);
    second.stop();
    serves(&first);
    first.stop();
}

#[test]
fn a_paused_node_is_replaced_and_what_it_says_late_is_refused() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    create(&[&first, &second]);
    let load = Load::start(&[&first, &second]);
    load.goes_on(20);
    let mut known = first.connection();
    known.ask(&Request::send("orders", "known", "lemons")).is(201);
    let mut fresh = first.connection();
    fresh.ask(&Request::get("/readyz"));
    suspend(first.pid());
    // Requests that it gets before it is replaced, and reads after it.
    let late = [(known, "known"), (fresh, "late")].map(|(mut connection, key)| {
        std::thread::spawn(move || connection.try_ask(&Request::send("orders", key, "lemons")))
    });
    serves(&second);
    load.goes_on(20);
    first.signal(Signal::CONT);
    for answer in late {
        if let Ok(answer) = answer.join().unwrap() {
            answer.fails(503, "unavailable");
        }
    }
    names(&first, &second);
    let late = second.connection().ask(&Request::get("/v1/queues/orders/keys/late"));
    late.fails(404, "no_such_key");
    let known = second.connection().ask(&Request::send("orders", "known", "lemons"));
    assert!(known.status == 200, "{}", known.text());
    drop(second.connection().ask(&Request::new("POST", "/v1/queues/orders/keys/known/discard")));
    load.ends_whole(&[&first, &second]);
    first.has_not_panicked();
}

#[test]
fn a_crash_of_the_database_is_ridden_out() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    create(&[&first, &second]);
    let load = Load::start(&[&first, &second]);
    for _ in 0..2 {
        load.goes_on(20);
        cluster.server.stop();
        until("the node to be cut off", || {
            ready(&first).is_some_and(|(status, text)| status == 503 && text.contains("cut off"))
        });
        cluster.server.launch();
        load.goes_on(20);
    }
    load.ends_whole(&[&first, &second]);
    first.has_not_panicked();
    second.has_not_panicked();
}

#[test]
fn a_node_that_is_cut_off_from_the_database_is_replaced_and_comes_back_as_a_spare() {
    let Some(cluster) = Cluster::start() else { return };
    let network = tokio::runtime::Runtime::new().unwrap();
    let link = network.block_on(Link::to(([127, 0, 0, 1], cluster.server.port()).into()));
    let (_, address) = link.url.split_once("://").unwrap();
    let far = format!("postgres://postgres@{address}/queues");
    let first = cluster.setup_at("a", &far).start();
    serves(&first);
    let second = cluster.setup("b").start();
    names(&second, &first);
    create(&[&first, &second]);
    let load = Load::start(&[&first, &second]);
    load.goes_on(20);
    link.lose_requests();
    link.lose_answers();
    until("the node to be cut off", || {
        ready(&first).is_some_and(|(status, text)| status == 503 && text.contains("cut off"))
    });
    serves(&second);
    load.goes_on(20);
    link.cut();
    link.restore();
    names(&first, &second);
    load.ends_whole(&[&first, &second]);
    first.has_not_panicked();
}
