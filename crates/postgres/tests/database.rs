//! The statements, on a real server; races between claims and appends.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::sync::{Arc, Barrier};

use hapax_postgres::call::{Answer, Backend, Batch, Call, Owner, Part, Position, chain};
use hapax_postgres::{Uuid, conformance};

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
