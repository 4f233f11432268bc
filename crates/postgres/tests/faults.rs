//! Replies that are lost, warnings, servers that go away and come back with less.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::time::Duration;

use hapax_postgres::{Failure, Members, NodeState};
use hapax_store::{Checkpoint, Error, LogEnd, Store};
use hapax_testing::{PATIENCE, PostgresServer, Proxy, until};

fn expected(count: u64) -> String {
    (1..=count).map(|it| format!("{it} b{it}\n")).collect()
}

fn append(store: &mut impl Store, epoch: u32, sequence: u64) {
    store.append(epoch, sequence, format!("b{sequence}").as_bytes()).unwrap();
}

#[test]
fn a9_fifty_lost_replies_leave_every_batch_once() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let proxy = Proxy::to(server.port());
    let database =
        support::connect(&url.replace(&server.port().to_string(), &proxy.port.to_string()), 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    for sequence in 1..=50 {
        proxy.lose_reply_after(0);
        append(&mut store, claim.epoch, sequence);
        until("the loss", || !proxy.is_armed());
        until("the batch", || store.durable().unwrap() == sequence);
    }
    store.close().unwrap();
    assert_eq!(support::batches(&server, &name, 0), expected(50));
}

/// Claim, appends, a question, a checkpoint, a close: with each of the replies lost in turn.
#[test]
fn a_reply_lost_at_any_statement_changes_nothing() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let proxy = Proxy::to(server.port());
    let through = url.replace(&server.port().to_string(), &proxy.port.to_string());
    drop(support::connect(&url, 64));
    let database = support::connect(&through, 64);
    for (lost, partition) in (0_i64..).zip(0_u16..64) {
        let cache = tempfile::tempdir().unwrap();
        proxy.lose_reply_after(lost);
        let (mut store, claim) = support::claimed(&database, partition, cache.path());
        append(&mut store, claim.epoch, 1);
        append(&mut store, claim.epoch, 2);
        let question = store.confirm().unwrap();
        until("the answer", || store.confirmed().unwrap() >= question);
        until("the batches", || store.durable().unwrap() == 2);
        store
            .checkpoint(Checkpoint {
                epoch: claim.epoch,
                through: 1,
                at: 0,
                rows: Box::new(|rows| rows.put_ordered(b"key", b"value")),
            })
            .unwrap();
        until("the checkpoint", || store.checkpointed().unwrap() == 1);
        append(&mut store, claim.epoch, 3);
        store.close().unwrap();
        drop(store);
        let is_over = proxy.is_armed();
        proxy.disarm();
        let mut store = support::open(&database, partition, cache.path());
        let again = store.claim().unwrap();
        assert_eq!((again.through, again.last, again.closed), (1, 3, true), "reply {lost}");
        let mut rows = Vec::new();
        let each = &mut |key: &[u8], value: Option<&[u8]>| {
            rows.extend(value.map(|value| (key.to_vec(), value.to_vec())));
            true
        };
        store.scan(b"", b"z", each).unwrap();
        assert_eq!(rows, [(b"key".to_vec(), b"value".to_vec())], "reply {lost}");
        let kept = support::batches(&server, &name, partition);
        assert_eq!(kept, "1 b1\n2 b2\n3 b3\n", "reply {lost}");
        if is_over {
            assert!(lost > 15, "the scenario has more statements than {lost}");
            return;
        }
    }
    panic!("the scenario has more statements than were tried");
}

#[test]
fn a_row_that_the_standby_may_not_have_is_not_durable() {
    check_cancelled_wait("notice");
}

/// What the database, the role or whoever had a pooled session before has set.
#[test]
fn nor_where_the_server_was_told_to_keep_its_warnings_to_itself() {
    check_cancelled_wait("error");
}

fn check_cancelled_wait(messages: &str) {
    let Some(primary) = PostgresServer::start(&[]) else { return };
    let mut standby = primary.standby("s1", &[]);
    let url = primary.database("it");
    primary.sql("it", &format!("alter database it set client_min_messages = {messages}"));
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    primary.set("synchronous_standby_names", "s1");
    append(&mut store, claim.epoch, 1);
    until("the batch on both", || store.durable().unwrap() == 1);
    standby.stop();
    append(&mut store, claim.epoch, 2);
    let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    for _ in 0..3 {
        until("the wait for the standby", || {
            assert_eq!(store.durable().unwrap(), 1, "what is visible need not be replicated");
            primary.sql("it", waiting).trim() != "0"
        });
        // What a person does to a statement that hangs: it is reported as done, with a warning.
        let cancel = "select pg_cancel_backend(pid) from pg_stat_activity
                      where wait_event = 'SyncRep'";
        primary.sql("it", cancel);
        until("the row to be seen", || support::batches(&primary, "it", 0) == expected(2));
    }
    // The appender looked, found the row, and asks for a clean commit, which waits.
    until("the question", || {
        database.trouble().is_some() && primary.sql("it", waiting).trim() != "0"
    });
    assert_eq!(store.durable().unwrap(), 1, "what is visible need not be replicated");
    standby.launch();
    until("the batch on both", || store.durable().unwrap() == 2);
    store.close().unwrap();
}

/// A statement that waits for a standby that is gone stays on the server when nobody waits for it.
#[test]
fn heartbeats_that_wait_for_the_standby_do_not_fill_the_server() {
    let Some(primary) = PostgresServer::start(&[]) else { return };
    let mut standby = primary.standby("s1", &[]);
    let url = primary.database("it");
    let database = support::connect(&url, 1);
    primary.set("synchronous_standby_names", "s1");
    standby.stop();
    // Nobody waits for the standby to enter a row.
    let members = Members::register(&database, &support::named("one"), PATIENCE).unwrap();
    let beat = |within| members.heartbeat(NodeState::Standby, 0, &[], within);
    for _ in 0..40 {
        let told = beat(Duration::from_millis(100)).unwrap_err();
        assert!(matches!(told, Failure::TimedOut(_)), "{told}");
    }
    let asked = "select count(*) from pg_stat_activity where query like '%hapax.node%'
                 and application_name = 'hapax heartbeats'";
    let left: u32 = primary.sql("it", asked).trim().parse().unwrap();
    assert!((1..=5).contains(&left), "{left} of 40 are on the server");
    standby.launch();
    until("a heartbeat", || beat(PATIENCE).is_ok_and(|beat| beat.is_some()));
    // Those that were given up are over, too.
    let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
    until("the others", || primary.sql("it", waiting).trim() == "0");
    members.leave(PATIENCE).unwrap();
}

#[test]
fn h5_a_standby_that_lagged_behind_is_noticed() {
    let Some(mut primary) = PostgresServer::start(&[]) else { return };
    let url = primary.database("it");
    drop(support::connect(&url, 2));
    let mut standby = primary.standby("s1", &[]);
    let both = url.replace('/', "\u{1}").replacen(
        &format!(":{}", primary.port()),
        &format!(":{},127.0.0.1:{}", primary.port(), standby.port()),
        1,
    );
    let both = both.replace('\u{1}', "/");
    let database = support::connect(&both, 2);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    let (mut idle, _) = support::claimed(&database, 1, cache.path());
    append(&mut store, claim.epoch, 1);
    until("the batch", || store.durable().unwrap() == 1);
    until("the standby", || support::batches(&standby, "it", 0) == expected(1));
    standby.stop();
    append(&mut store, claim.epoch, 2);
    until("the batch", || store.durable().unwrap() == 2);
    primary.stop();
    standby.launch();
    standby.promote();
    append(&mut store, claim.epoch, 3);
    let told = until("the regression", || store.durable().err());
    let Error::Regressed {
        had: LogEnd { sequence: 2, .. }, found: LogEnd { sequence: 1, .. }, ..
    } = told
    else {
        panic!("{told}");
    };
    assert!(store.append(claim.epoch, 4, b"no").is_err() && store.confirm().is_err());
    assert_eq!(support::batches(&standby, "it", 0), expected(1), "nothing was written");
    // The other partition lost nothing, and goes on at the new primary.
    let question = idle.confirm().unwrap();
    until("the answer", || idle.confirmed().unwrap() >= question);
    // A node that was restarted meanwhile knows by its witness.
    drop(store);
    let told = support::open(&database, 0, cache.path()).claim().unwrap_err();
    assert!(matches!(told, Error::Regressed { .. }), "{told}");
    // Until somebody accepts it.
    database.accept_loss(std::time::Duration::from_secs(60)).unwrap();
    let database = support::connect(&both, 2);
    let (store, again) = support::claimed(&database, 0, cache.path());
    assert!(again.last == 1 && again.epoch > claim.epoch + 65_536, "{again:?}");
    drop(store);
}

#[test]
fn a10_a_server_that_crashes_and_comes_back_loses_nothing() {
    let Some(mut server) = PostgresServer::start(&[]) else { return };
    let url = server.database("it");
    let database = support::connect(&url, 2);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    let mut sequence = 0;
    for _ in 0..2 {
        for _ in 0..20 {
            sequence += 1;
            append(&mut store, claim.epoch, sequence);
        }
        server.stop();
        sequence += 1;
        append(&mut store, claim.epoch, sequence);
        until("the trouble", || database.trouble().is_some());
        server.launch();
        until("the batches", || store.durable().unwrap() == sequence);
        assert_eq!(database.trouble().map(|(failure, _)| failure), None);
    }
    assert_eq!(support::batches(&server, "it", 0), expected(sequence));
    store.close().unwrap();
}

#[test]
fn an_owner_that_was_replaced_is_fenced_beside_one_that_was_not() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let (one, other) = (support::connect(&url, 4), support::connect(&url, 4));
    let (cache, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut zombie, old) = support::claimed(&one, 0, cache.path());
    let (mut neighbour, its) = support::claimed(&one, 2, cache.path()); // On the same lane.
    append(&mut zombie, old.epoch, 1);
    until("the batch", || zombie.durable().unwrap() == 1);
    let (mut owner, new) = support::claimed(&other, 0, elsewhere.path());
    assert_eq!((new.last, new.closed), (1, false));
    append(&mut zombie, old.epoch, 2);
    append(&mut neighbour, its.epoch, 1);
    let told = until("the fence", || zombie.durable().err());
    assert!(matches!(told, Error::Fenced { .. }), "{told}");
    until("the neighbour's batch", || neighbour.durable().unwrap() == 1);
    append(&mut owner, new.epoch, 2);
    until("the batch", || owner.durable().unwrap() == 2);
    assert_eq!(support::batches(&server, &name, 0), expected(2));
    // One that only asks is refused as well: nothing told it before.
    let (mut reader, _) = support::claimed(&one, 1, cache.path());
    let (successor, _) = support::claimed(&other, 1, elsewhere.path());
    let question = reader.confirm().unwrap();
    let told = until("the answer", || match reader.confirmed() {
        Ok(answered) if answered < question => None,
        told => Some(told),
    });
    assert!(matches!(told, Err(Error::Fenced { .. })), "{told:?}");
    drop(successor);
    // A claim on what was seen before is refused.
    let mut options = hapax_postgres::Options::new(support::node(), cache.path().to_owned());
    options.seen = Some(old.epoch);
    let wake = std::sync::Arc::new(|| {});
    let mut late = hapax_postgres::PostgresStore::open(&one, 0, options, wake);
    assert!(matches!(late.claim(), Err(Error::Fenced { .. })));
}

#[test]
fn a_node_has_few_connections_however_many_partitions() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 32);
    let cache = tempfile::tempdir().unwrap();
    let mut stores: Vec<_> =
        (0..32).map(|number| support::claimed(&database, number, cache.path())).collect();
    for sequence in 1..=20 {
        for (store, claim) in &mut stores {
            append(store, claim.epoch, sequence);
        }
    }
    for (store, _) in &mut stores {
        until("the batches", || store.durable().unwrap() == 20);
    }
    let asked = format!(
        "select count(*) from pg_stat_activity where datname = '{name}' and pid <> pg_backend_pid()"
    );
    let count: u32 = server.sql("postgres", &asked).trim().parse().unwrap();
    assert!((1..=8).contains(&count), "{count} connections");
}

/// A page of the runs is lost: whoever needs it is told so, and does not wait for it for ever.
#[test]
fn what_the_database_cannot_read_is_an_error_with_its_reason() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    append(&mut store, claim.epoch, 1);
    let (epoch, through, at) = (claim.epoch, 1, 0);
    // Too much for a row of the database's own, however it is packed.
    let value: Vec<u8> =
        (0..30_000_u32).map(|it| it.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let rows = Box::new(move |rows: &mut hapax_store::RowSet| rows.put_ordered(b"key", &value));
    store.checkpoint(Checkpoint { epoch, through, at, rows }).unwrap();
    until("the checkpoint", || store.checkpointed().unwrap() == 1);
    store.close().unwrap();
    drop(store);
    let damage = "create extension pg_surgery;
        do $$ declare toast regclass; begin
          select reltoastrelid into toast from pg_class where oid = 'hapax.chunk'::regclass;
          execute format('select heap_force_kill(%L, array(select ctid from %s))', toast, toast);
        end $$";
    server.sql(&name, damage);
    let opening = std::thread::spawn(move || {
        support::open(&database, 0, cache.path()).claim().map(drop).unwrap_err().to_string()
    });
    until("the refusal", || opening.is_finished());
    let told = opening.join().unwrap();
    assert!(told.contains("is damaged") && told.contains("toast value"), "{told}");
}
