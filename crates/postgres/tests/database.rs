//! The statements, on a real server; races between claims and appends.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::sync::{Arc, Barrier};

use hapax_postgres::call::{Answer, Backend, Batch, Call, Owner, Part, Position, chain};
use hapax_postgres::{Members, Node, NodeState, Options, PostgresStore, Uuid, conformance};

#[test]
fn the_database_keeps_what_the_statements_promise() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    conformance::run(&support::connect(&url, 4));
    // What somebody left behind in a session does not make an append asynchronous.
    server.sql(&name, &format!("alter database {name} set synchronous_commit = local"));
    conformance_of_sync(&server, &url, &name);
}

/// The append is flushed when it is acknowledged, whatever the session was set to.
fn conformance_of_sync(server: &hapax_testing::PostgresServer, url: &str, name: &str) {
    let database = support::connect(url, 4);
    server.sql(name, &format!("alter database {name} set synchronous_commit = off"));
    let cache = tempfile::tempdir().unwrap();
    // Its connections are made after the change.
    let (mut store, claim) = support::claimed(&database, 3, cache.path());
    use hapax_store::Store;
    for sequence in claim.last + 1..=claim.last + 5 {
        let before = server.sql(name, "select pg_current_wal_flush_lsn()");
        store.append(claim.epoch, sequence, &[7; 9000]).unwrap();
        hapax_testing::until("the batch", || store.durable().unwrap() == sequence);
        let flushed =
            format!("select pg_current_wal_flush_lsn() > '{}'::pg_lsn + 9000", before.trim());
        assert_eq!(server.sql(name, &flushed).trim(), "t");
    }
}

/// H1: whatever a claim sees after it is what was appended, whoever is first.
#[test]
fn what_a_claim_sees_is_what_was_appended() {
    let Some(server) = support::server() else { return };
    let (url, _) = support::empty(&server);
    let database = Arc::new(support::connect(&url, 1));
    let ends = |call| match database.call(call) {
        Ok(Answer::Ends(ends)) => (ends.cluster, ends.ends[0].position(), ends.ends[0].epoch),
        other => panic!("{other:?}"),
    };
    let claim = |seen| {
        let claim = Uuid::now_v7();
        let call = Call::Claim { partition: 0, seen, least: 0, claim, node: claim };
        match database.call(call) {
            Ok(Answer::Claimed(Some(epoch))) => Owner { partition: 0, epoch, claim },
            other => panic!("{other:?}"),
        }
    };
    let mut owner = claim(0);
    let mut wins = [0, 0];
    for round in 0..120_u64 {
        let (cluster, after, _) = ends(Call::Ends(vec![0]));
        let bytes: Arc<[u8]> = vec![round as u8; 20_000].into();
        let sequence = after.sequence + 1;
        let at = Position { sequence, chain: chain(cluster, 0, sequence, after.chain, &bytes) };
        let part = Part { owner, after, batches: vec![Batch { at, bytes }] };
        let start = Barrier::new(2);
        let (appended, (new, seen)) = std::thread::scope(|scope| {
            let append = scope.spawn(|| {
                start.wait();
                database.call(Call::Append(vec![part]))
            });
            let claims = scope.spawn(|| {
                start.wait();
                // Both orders have to be met, on any machine.
                (0..(round % 6) * 20_000).for_each(|it| {
                    std::hint::black_box(it);
                });
                let new = claim(owner.epoch);
                (new, ends(Call::Ends(vec![0])).1)
            });
            (append.join().unwrap(), claims.join().unwrap())
        });
        let Ok(Answer::Appended(answers)) = appended else { panic!("{appended:?}") };
        let is_in = answers[0].inserted == [sequence];
        assert_eq!(seen.sequence == sequence, is_in, "round {round}: {answers:?}, {seen:?}");
        wins[usize::from(is_in)] += 1;
        owner = new;
    }
    assert!(wins[0] + wins[1] == 120, "{wins:?}");
}

#[test]
fn nodes_see_each_other_and_forget_those_that_are_gone() {
    let Some(server) = support::server() else { return };
    let (url, _) = support::empty(&server);
    let database = support::connect(&url, 2);
    let within = hapax_testing::PATIENCE;
    let register = |name: &str| {
        let (name, address, release) = (name.to_owned(), "a:1".to_owned(), "0".to_owned());
        let node = Node { name, address, release, feature: 1 };
        Members::register(&database, &node, within).unwrap()
    };
    let (one, other) = (register("one"), register("other"));
    let beat = one.heartbeat(NodeState::Serving, 5, &[], within).unwrap().unwrap();
    assert_eq!((beat.count, beat.lineage), (1, database.shared().lineage));
    let seen = other.read(within).unwrap();
    assert_eq!(seen.partitions.len(), 2);
    let names: Vec<_> = seen.nodes.iter().map(|node| (&*node.name, node.heartbeat)).collect();
    assert_eq!(names, [("one", 1), ("other", 0)]);
    assert!(!other.delete(one.id(), 0, within).unwrap(), "its heartbeat changed");
    assert!(other.delete(one.id(), 1, within).unwrap());
    assert!(
        one.heartbeat(NodeState::Serving, 5, &[], within).unwrap().is_none(),
        "its row is gone"
    );
    other.leave(within).unwrap();
    let third = register("third");
    assert_eq!(third.read(within).unwrap().nodes.len(), 1);
}

#[test]
fn what_others_left_over_is_removed_by_the_next_owner_and_by_nobody_else() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (owner, claim) = support::claimed(&database, 0, cache.path());
    // A run that the living owner is writing, of more pieces than one statement removes.
    let run = (u64::from(claim.epoch) << 40) | 5;
    let pieces = format!(
        "insert into hapax.chunk select 0, {run}, at * 5, 'piece' from generate_series(0, 199) at"
    );
    server.sql(&name, &pieces);
    let left = || server.sql(&name, "select count(*) from hapax.chunk").trim().to_owned();
    let mut options = Options::new(support::node(), cache.path().to_owned());
    options.seen = Some(claim.epoch - 1);
    let mut late = PostgresStore::open(&database, 0, options, Arc::new(|| {}));
    assert!(hapax_store::Store::claim(&mut late).is_err());
    assert_eq!(left(), "200", "who may not claim removes nothing");
    drop(owner);
    drop(support::claimed(&database, 0, cache.path()));
    assert_eq!(left(), "0");
}

/// The rows of nodes and partitions are two statements, and a node may join and claim in between.
#[test]
fn every_owner_that_is_read_is_among_the_nodes_that_are_read() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let within = std::time::Duration::from_secs(60);
    let node = |name: &str| Node {
        name: name.to_owned(),
        address: "a:1".to_owned(),
        release: "0".to_owned(),
        feature: 1,
    };
    let members = Members::register(&database, &node("first"), within).unwrap();
    // Something keeps the rows of the partitions, and then a node has joined and claimed.
    let joins = "begin; lock table hapax.partition in access exclusive mode;
        select pg_sleep(1);
        insert into hapax.node (id, name, address, release, feature, state)
          values ('00000000-0000-0000-0000-000000000007', 'second', 'b:1', '0', 1, 2);
        update hapax.partition set owner = '00000000-0000-0000-0000-000000000007'; commit";
    std::thread::scope(|scope| {
        scope.spawn(|| server.sql(&name, joins));
        let locked = "select count(*) from pg_locks where mode = 'AccessExclusiveLock'
            and relation = 'hapax.partition'::regclass and granted";
        hapax_testing::until("the lock", || server.sql(&name, locked).trim() == "1");
        let seen = members.read(within).unwrap();
        let owners = seen.partitions.iter().filter_map(|partition| partition.owner);
        for owner in owners {
            assert!(seen.nodes.iter().any(|node| node.id == owner), "{seen:?}");
        }
        assert!(seen.partitions[0].owner.is_some(), "it was read after the claim: {seen:?}");
    });
}

/// A claim is under way when the owner replaces the manifest: the swap waits for it and is refused,
/// as an append is. The next owner has read the manifest by then.
#[test]
fn a_swap_waits_for_a_claim_under_way_and_is_refused_after_it() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let (claim, node) = (support::node(), support::node());
    let claimed = database.call(Call::Claim { partition: 0, seen: 0, least: 0, claim, node });
    assert_eq!(claimed, Ok(Answer::Claimed(Some(1))));
    let owner = Owner { partition: 0, epoch: 1, claim };
    let claims = "begin;
        update hapax.partition set epoch = 2, claim = '00000000-0000-0000-0000-000000000007';
        select pg_sleep(1); commit";
    std::thread::scope(|scope| {
        scope.spawn(|| server.sql(&name, claims));
        let under_way = format!(
            "select count(*) from pg_stat_activity where datname = '{name}'
             and wait_event = 'PgSleep'"
        );
        hapax_testing::until("the claim", || server.sql(&name, &under_way).trim() == "1");
        let bytes = Arc::from(&b"manifest"[..]);
        let (version, through, runs, size) = (0, 0, Vec::new(), 0);
        let swap = Call::Swap { owner, version, through, bytes, runs, size };
        assert_eq!(database.call(swap), Ok(Answer::Changed(0)));
    });
    let version = server.sql(&name, "select version from hapax.manifest");
    assert_eq!(version.trim(), "0");
}
