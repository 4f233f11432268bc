//! H5: the database loses what it had confirmed. Nodes that know it halt, and go on when somebody
//! accepts the loss.

use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, PATIENCE, Signal, printed, until};

use crate::standby::both;
use crate::{Cluster, fence, hapax, load, names, says, serves};

/// What `hapax cluster accept-loss` prints, and whether it did it.
fn accept_loss(url: &str, arguments: &[&str]) -> (bool, String) {
    let arguments = [&["cluster", "accept-loss"], arguments].concat();
    let output = hapax(&arguments).env("HAPAX_STORE", url).output().unwrap();
    (output.status.success(), printed(&output))
}

/// The node is halted and names both positions; the loss is accepted; both nodes serve on.
fn goes_on_after_the_loss(
    cluster: &Cluster,
    mut halted: BrokerProcess,
    spare: BrokerProcess,
    before: u64,
) {
    let why = says(&halted, "halted");
    assert!(why.contains("was set back"), "{why}");
    assert!(why.contains("it went to batch") && why.contains("now ends at batch"), "{why}");
    let (is_done, shown) = accept_loss(&cluster.url, &["--yes"]);
    assert!(!is_done && shown.contains("stop all nodes first"), "{shown}");
    assert!(!why.contains("partition 0: partition 0"), "{why}");
    // It says so to programs: asking again soon does not help.
    let metrics = halted.connection().ask(&Request::get("/metrics")).text();
    assert!(metrics.contains("\nhapax_halted 1"), "{metrics}");
    let refused = halted.connection().ask(&Request::get("/v1/queues")).fails(503, "unavailable");
    assert_eq!(refused["retry_after_ms"], 5_000, "{refused}");
    let told = printed(&halted.command(&["queue", "ls"]).output().unwrap());
    assert!(told.contains("an operator has decided") && told.contains("cluster status"), "{told}");
    // The spare knows it, too.
    says(&spare, "halted");
    let mut spare = spare;
    spare.signal(Signal::TERM);
    assert!(!spare.ends(PATIENCE).success(), "a halted spare exits with an error");
    halted.signal(Signal::TERM);
    assert!(!halted.ends(PATIENCE).success(), "a halted node exits with an error");
    let (_, shown) = accept_loss(&cluster.url, &[]);
    assert!(shown.contains("repeat with --yes") && shown.contains("ends at batch"), "{shown}");
    // Nothing was changed by that.
    let again = halted.setup.start();
    says(&again, "halted");
    again.signal(Signal::TERM);
    let mut again = again;
    assert!(!again.ends(PATIENCE).success());
    let (is_done, shown) = accept_loss(&cluster.url, &["--yes"]);
    assert!(is_done, "{shown}");
    let first = again.setup.start();
    serves(&first);
    let second = spare.setup.start();
    names(&second, &first);
    let after = fence(&[&first, &second]);
    assert!(after >> 24 > before >> 24, "fences grow: {before}, {after}");
    // A load of its own keys: what was lost is lost.
    let load = load(&[&first, &second]);
    load.gets_on(20);
    drop(load);
    first.has_not_panicked();
    second.has_not_panicked();
}

#[test]
fn h5_a_backup_restored_under_living_nodes_halts_them() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(10);
    cluster.server.back_up();
    let before = fence(&[&first, &second]);
    load.gets_on(20);
    cluster.has_beaten("b", 3);
    cluster.server.restore();
    says(&first, "halted");
    drop(load);
    goes_on_after_the_loss(&cluster, first, second, before);
}

#[test]
fn h5_a_backup_restored_while_the_nodes_are_down_halts_them() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(10);
    cluster.server.back_up();
    let before = fence(&[&first, &second]);
    load.gets_on(20);
    cluster.has_beaten("b", 3);
    drop(load);
    let (second, first) = (second.stop(), first.stop());
    cluster.server.restore();
    let first = first.start();
    says(&first, "halted");
    goes_on_after_the_loss(&cluster, first, second.start(), before);
}

/// A spare, which never served, is left alone with a database that lost something, and knows it.
#[track_caller]
fn the_spare_halts(spare: &BrokerProcess) {
    let why = says(spare, "halted");
    assert!(why.contains("was set back"), "{why}");
    assert!(why.contains("it went to batch") && why.contains("now ends at batch"), "{why}");
    assert!(!spare.setup.log().contains("all partitions are open"), "it never served");
    spare.has_not_panicked();
}

#[test]
fn h5_a_spare_that_never_served_notices_a_backup_that_was_restored() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (mut first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(10);
    cluster.server.back_up();
    load.gets_on(20);
    cluster.has_beaten("b", 3);
    // Whoever served is gone before anybody could take over.
    cluster.server.stop();
    first.kill();
    drop(load);
    cluster.server.restore();
    the_spare_halts(&second);
    let owners = cluster.owners();
    // It knows it also after a restart, and at once.
    let mut second = second;
    second.kill();
    let second = second.setup.start();
    the_spare_halts(&second);
    assert_eq!(cluster.owners(), owners, "nothing was claimed");
}

/// It never stopped in order: what it knows is what it wrote down while it lived.
#[test]
fn h5_a_spare_that_was_killed_before_notices_a_backup_that_was_restored() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (mut first, mut second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(10);
    cluster.server.back_up();
    load.gets_on(20);
    // How far the partitions are is written once a second at most.
    cluster.has_beaten("b", 8);
    first.kill();
    second.kill();
    drop(load);
    cluster.server.restore();
    let owners = cluster.owners();
    the_spare_halts(&second.setup.start());
    assert_eq!(cluster.owners(), owners, "nothing was claimed");
}

#[test]
fn h5_a_spare_that_never_served_notices_a_standby_that_lagged() {
    let Some(mut cluster) = Cluster::start() else { return };
    let mut standby = cluster.server.standby("s1", &[]);
    cluster.url = both(&cluster.server, &standby);
    let (mut first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(10);
    let owned = "SELECT count(*) FROM hapax.partition WHERE owner IS NOT NULL";
    until("the standby", || standby.sql("queues", owned).trim() == "2");
    standby.stop();
    load.gets_on(20);
    cluster.has_beaten("b", 3);
    cluster.server.stop();
    first.kill();
    drop(load);
    standby.launch();
    standby.promote();
    the_spare_halts(&second);
}

#[test]
fn h5_a_standby_that_lagged_and_was_promoted_halts_the_nodes() {
    let Some(mut cluster) = Cluster::start() else { return };
    let mut standby = cluster.server.standby("s1", &[]);
    cluster.url = both(&cluster.server, &standby);
    let (first, second) = cluster.two();
    let load = load(&[&first, &second]);
    load.gets_on(10);
    let owned = "SELECT count(*) FROM hapax.partition WHERE owner IS NOT NULL";
    until("the standby", || standby.sql("queues", owned).trim() == "2");
    standby.stop();
    let before = fence(&[&first, &second]);
    load.gets_on(20);
    cluster.has_beaten("b", 3);
    cluster.server.stop();
    standby.launch();
    standby.promote();
    says(&first, "halted");
    drop(load);
    goes_on_after_the_loss(&cluster, first, second, before);
}

/// A node that is new remembers nothing, and would serve what is left.
#[test]
fn h5_a_node_that_is_new_serves_nothing_while_another_one_is_halted() {
    let Some(mut cluster) = Cluster::start() else { return };
    let first = cluster.setup("a").start();
    serves(&first);
    let one = load(&[&first]);
    one.gets_on(10);
    cluster.server.back_up();
    drop(one);
    // Whoever owns the partitions in the backup is another process.
    let first = first.stop().start();
    serves(&first);
    let one = load(&[&first]);
    one.gets_on(20);
    drop(one);
    cluster.has_beaten("a", 3);
    cluster.server.restore();
    says(&first, "halted");
    let new = cluster.setup("c").start();
    let owners = cluster.owners();
    // For longer than the lease of whoever owned them.
    cluster.has_beaten("c", 20);
    assert_eq!(cluster.owners(), owners, "{}", new.setup.log());
    says(&new, "while the node a is halted");
}
