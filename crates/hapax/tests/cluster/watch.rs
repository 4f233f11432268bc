//! What nodes show of themselves: metrics, serving or not, and nothing of their database.

use std::time::Instant;

use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, until};

use crate::{Cluster, ends_whole, load, names, says, serves};

pub(crate) fn metrics(node: &BrokerProcess) -> String {
    let answer = node.connection().ask(&Request::get("/metrics"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

/// The value of a series, with its labels.
#[track_caller]
pub(crate) fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series}:\n{page}")).parse().unwrap()
}

#[test]
fn every_node_has_metrics_and_a_takeover_shows_its_parts() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (mut first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(20);
    cluster.has_watched("b", "a");
    let (serving, standby) = (metrics(&first), metrics(&second));
    assert_eq!((value(&serving, "hapax_ready"), value(&standby, "hapax_ready")), (1.0, 0.0));
    for page in [&serving, &standby] {
        assert_eq!(value(page, "hapax_database_up"), 1.0);
        assert!(value(page, "hapax_heartbeat_age_seconds") >= 0.0);
        assert!(value(page, "hapax_clock_offset_seconds").abs() < 3_600.0);
        let connections = value(page, "hapax_database_connections");
        assert!((1.0..=8.0).contains(&connections), "{connections}");
        for partition in 0..2 {
            let owner = format!("hapax_partition_owner{{partition=\"{partition}\",node=\"a\"}}");
            assert_eq!(value(page, &owner), 1.0);
            let epoch = format!("hapax_partition_epoch{{partition=\"{partition}\"}}");
            assert!(value(page, &epoch) >= 1.0);
        }
    }
    assert!(value(&serving, "hapax_append_seconds_count") > 0.0);
    assert!(value(&serving, "hapax_append_batches_sum") > 0.0);
    assert!(value(&serving, "hapax_partition_tail_bytes{partition=\"0\"}") > 0.0);
    assert!(!standby.contains("hapax_takeover_seconds{"), "it has not served");
    assert!(!standby.contains("hapax_messages"), "{standby}");
    first.kill();
    serves(&second);
    load.gets_on(20);
    let page = metrics(&second);
    for part in ["detection", "claim", "read", "replay", "commit"] {
        let took = value(&page, &format!("hapax_takeover_seconds{{part=\"{part}\"}}"));
        assert!(took > 0.0, "{part}: {took}");
    }
    for part in ["detection", "claim", "archive", "tail", "replay", "commit"] {
        assert!(second.setup.log().contains(&format!("{part}_ms=")), "{part}");
    }
    assert_eq!(value(&page, "hapax_partition_owner{partition=\"1\",node=\"b\"}"), 1.0);
    let first = first.setup.start();
    names(&first, &second);
    ends_whole(load, &[&first, &second]);
    // Without the database they answer, too.
    let since = Instant::now();
    cluster.server.stop();
    for node in [&first, &second] {
        until("the outage", || value(&metrics(node), "hapax_database_up") == 0.0);
        assert!(value(&metrics(node), "hapax_heartbeat_age_seconds") > 0.0);
    }
    // Nobody knows who serves, and nobody is named.
    for node in [&first, &second] {
        let said = says(node, "cut off from the database");
        assert!(!said.contains("serves") && !said.contains("\"serving\""), "{said}");
        assert!(node.setup.log().contains("cut off from the database"), "{}", node.setup.log());
        // They try twice a second and more.
        let log = node.setup.log();
        let warnings = log.matches("a heartbeat failed").count();
        assert!(warnings <= 1 + since.elapsed().as_secs() as usize / 10, "{log}");
    }
    cluster.server.launch();
    serves(&second);
    names(&first, &second);
    until("the log", || first.setup.log().contains("the database answers again"));
}

/// The reason is in the log; who asks without a token learns neither that nor where the database
/// is.
#[test]
fn a_node_that_cannot_open_its_partitions_keeps_the_reason_to_its_log() {
    let Some(cluster) = Cluster::start() else { return };
    let mut first = cluster.setup("a").start();
    serves(&first);
    let load = load(&[&first]);
    load.gets_on(20);
    first.kill();
    drop(load);
    let damage = "UPDATE hapax.journal SET batch = batch || '\\x00' WHERE sequence > 0";
    cluster.server.sql("queues", damage);
    let second = cluster.setup("b").start();
    let said = says(&second, "a standby after a failure: see its log");
    let log = second.setup.log();
    assert!(log.contains("fails its checksum"), "{log}");
    for hidden in ["checksum", &cluster.server.port().to_string(), "postgres"] {
        assert!(!said.contains(hidden), "{said}");
    }
}
