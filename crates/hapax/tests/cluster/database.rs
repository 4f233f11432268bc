//! A database that takes no appends for a while and lives: full, with settings that lose data, or
//! without its synchronous standby. Nobody takes over who could do no better.

use std::time::Duration;

use hapax_testing::http::Request;
use hapax_testing::{pause, until};

use crate::standby::{is_synchronous, synchronous};
use crate::{Cluster, ends_whole, is_serving, load, ready, says, serves};

/// Longer than a node may be silent.
const LEASE: Duration = Duration::from_secs(3);

#[test]
fn a6_a_database_without_room_refuses_sends_and_changes_no_owner() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let owners = cluster.owners();
    let queue = Request::new("PUT", "/v1/queues/letters");
    first.connection().ask(&queue.header("content-type", "application/json").body("{}")).is(201);
    let full = "create function public.full_disk() returns trigger language plpgsql as $$
        begin raise exception 'no space left on device' using errcode = '53100'; end $$;
        create trigger full_disk before insert on hapax.journal
        for each row execute function public.full_disk()";
    cluster.server.sql("queues", full);
    // A request that waits for it gets an error, and no silence.
    let sent = Request::send("letters", "while-full", "lemons");
    let mut door = first.connection().timeout(Duration::from_secs(30));
    door.ask(&sent).fails(503, "unavailable");
    says(&first, "has no room");
    // For longer than a node may get nothing done.
    cluster.has_beaten("a", 50);
    says(&first, "has no room");
    cluster.server.sql("queues", "drop trigger full_disk on hapax.journal");
    serves(&first);
    let id = first.connection().ask(&sent).json()["id"].clone();
    assert_eq!(first.connection().ask(&sent).is(200)["id"], id);
    load.gets_on(20);
    assert_eq!(cluster.owners(), owners, "nobody took over");
    ends_whole(load, &[&first, &second]);
}

#[test]
fn a10_settings_that_lose_data_stop_the_nodes_until_they_are_back() {
    let Some(cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let journal = "SELECT sum(sequence) FROM hapax.journal";
    cluster.server.set("fsync", "off");
    says(&first, "standby after a failure");
    assert!(first.setup.log().contains("fsync is off"), "{}", first.setup.log());
    // The other one tries, and is refused as well.
    says(&second, "standby after a failure");
    assert!(second.setup.log().contains("fsync is off"), "{}", second.setup.log());
    let before = cluster.server.sql("queues", journal);
    cluster.has_beaten("a", 3);
    assert_eq!(cluster.server.sql("queues", journal), before, "nothing is appended");
    cluster.server.set("fsync", "on");
    until("a node to serve", || is_serving(&first) || is_serving(&second));
    // The other one could take over again: what went wrong is over.
    until("a spare without a reason", || {
        let nodes = [ready(&first), ready(&second)].map(Option::unwrap_or_default);
        let is_spare = |text: &str| text.contains("standby") && !text.contains("failure");
        nodes.iter().any(|(status, text)| *status == 503 && is_spare(text))
    });
    load.gets_on(20);
    ends_whole(load, &[&first, &second]);
}

/// Nothing is committed, and everybody is cut off alike.
#[test]
fn a10_a_synchronous_standby_that_is_gone_changes_no_owner_and_fills_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let mut standby = synchronous(&cluster);
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    let owners = cluster.owners();
    standby.stop();
    says(&first, "cut off");
    pause(4 * LEASE);
    // A node that joins waits, as all of them do.
    let third = cluster.setup("c").start();
    says(&third, "standby");
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'hapax%'";
    let sessions: u32 = cluster.server.sql("queues", asked).trim().parse().unwrap();
    assert!(sessions <= 3 * 12, "{sessions} sessions");
    standby.launch();
    until("the standby", || is_synchronous(&cluster));
    serves(&first);
    load.gets_on(20);
    assert_eq!(cluster.owners(), owners, "nobody took over");
    for node in [&first, &second, &third] {
        assert!(!node.setup.log().contains("set back"), "{}", node.setup.log());
    }
    ends_whole(load, &[&first, &second, &third]);
}
