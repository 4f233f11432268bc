//! Servers that take no appends for a while: full, read-only under open sessions, unsafe.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::time::Duration;

use hapax_postgres::{Failure, Members, NodeState};
use hapax_store::{Checkpoint, Error, Room, Store};
use hapax_testing::{PATIENCE, PostgresServer, until};

fn expected(count: u64) -> String {
    (1..=count).map(|it| format!("{it} b{it}\n")).collect()
}

fn append(store: &mut impl Store, epoch: u32, sequence: u64) {
    store.append(epoch, sequence, format!("b{sequence}").as_bytes()).unwrap();
}

/// Lets statements that write to a table fail as those of a full disk do, until it is dropped.
struct Full<'a> {
    server: &'a PostgresServer,
    database: &'a str,
    table: &'a str,
}

impl<'a> Full<'a> {
    fn of(server: &'a PostgresServer, database: &'a str, table: &'a str) -> Self {
        let sql = format!(
            "create or replace function public.full_disk() returns trigger language plpgsql as $$
             begin raise exception 'no space left on device' using errcode = '53100'; end $$;
             create trigger full_disk before insert or update on hapax.{table}
             for each row execute function public.full_disk()"
        );
        server.sql(database, &sql);
        Self { server, database, table }
    }
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        let sql = format!("drop trigger full_disk on hapax.{}", self.table);
        self.server.sql(self.database, &sql);
    }
}

#[test]
fn a6_a_database_without_room_takes_everything_when_it_has_some_again() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    append(&mut store, claim.epoch, 1);
    until("the batch", || store.durable().unwrap() == 1);
    let full = Full::of(&server, &name, "journal");
    append(&mut store, claim.epoch, 2);
    append(&mut store, claim.epoch, 3);
    until("the lack of room", || matches!(store.room(), Room::Low(_)));
    assert!(database.is_full());
    let told = database.trouble().map(|(failure, _)| failure);
    assert!(matches!(&told, Some(Failure::Full(why)) if why.contains("no space left")), "{told:?}");
    assert_eq!(store.durable().unwrap(), 1);
    drop(full);
    until("the batches", || store.durable().unwrap() == 3);
    assert_eq!((store.room(), database.is_full()), (Room::Free, false));
    // A checkpoint waits, too, for its runs and for its manifest.
    for (table, through) in [("chunk", 2), ("manifest", 3)] {
        let full = Full::of(&server, &name, table);
        let rows = Box::new(|rows: &mut hapax_store::RowSet| rows.put_ordered(b"key", b"value"));
        store.checkpoint(Checkpoint { epoch: claim.epoch, through, at: 0, rows }).unwrap();
        until("the lack of room", || matches!(store.room(), Room::Low(_)));
        assert_eq!(store.checkpointed().unwrap(), through - if through == 2 { 2 } else { 1 });
        drop(full);
        until("the checkpoint", || store.checkpointed().unwrap() == through);
        until("room", || store.room() == Room::Free);
    }
    append(&mut store, claim.epoch, 4);
    store.close().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    assert_eq!((claim.through, claim.last), (3, 4));
    let mut found = None;
    store
        .scan(b"key", b"kez", &mut |_, value| value.map(|it| found = Some(it.to_vec())).is_some())
        .unwrap();
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
}

/// A server becomes a reader without closing its sessions, as managed services do when they change
/// roles: its refusal closes the connection, and the other host is found.
#[test]
fn an_owner_follows_the_role_of_the_primary_under_open_sessions() {
    let Some(primary) = PostgresServer::start(&[]) else { return };
    let url = primary.database("it");
    drop(support::connect(&url, 1));
    let standby = primary.standby("s1", &[]);
    let both =
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/it", primary.port(), standby.port());
    let database = support::connect(&both, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    append(&mut store, claim.epoch, 1);
    until("the batch", || store.durable().unwrap() == 1);
    until("the standby", || support::batches(&standby, "it", 0) == expected(1));
    primary.set("default_transaction_read_only", "on");
    append(&mut store, claim.epoch, 2);
    until("the refusal", || database.trouble().is_some());
    assert_eq!(store.durable().unwrap(), 1);
    standby.promote();
    until("the batch", || store.durable().unwrap() == 2);
    assert_eq!(support::batches(&standby, "it", 0), expected(2));
    assert_eq!(support::batches(&primary, "it", 0), expected(1), "nobody writes to a reader");
    store.close().unwrap();
}

/// The former primary stood still, was left, and wakes: nobody has told it. What its open sessions
/// say is from before.
#[test]
fn what_is_read_comes_from_the_server_that_takes_the_heartbeats() {
    let Some(primary) = PostgresServer::start(&[]) else { return };
    let url = primary.database("it");
    drop(support::connect(&url, 1));
    let standby = primary.standby("s1", &[]);
    primary.set("synchronous_standby_names", "s1");
    let both =
        format!("postgres://postgres@127.0.0.1:{},127.0.0.1:{}/it", primary.port(), standby.port());
    let database = support::connect(&both, 1);
    let members = Members::register(&database, &support::named("one"), PATIENCE).unwrap();
    let beat = |within| members.heartbeat(NodeState::Standby, 0, &[], within);
    assert!(beat(PATIENCE).unwrap().is_some());
    let epoch = || database.ends(PATIENCE).unwrap().ends[0].epoch;
    assert_eq!(epoch(), 0);
    primary.pause();
    standby.promote();
    until("a heartbeat", || beat(Duration::from_secs(1)).is_ok());
    primary.resume();
    standby.sql("it", "update hapax.partition set epoch = 7");
    assert_eq!(epoch(), 7);
}

/// Every append asks for them, so what an operator switches off is noticed by the next one, and who
/// claims then is refused as well.
#[test]
fn settings_that_are_switched_off_later_are_noticed_by_the_next_append() {
    for setting in ["fsync", "full_page_writes"] {
        let Some(server) = PostgresServer::start(&[]) else { return };
        let database = support::connect(&server.database("it"), 2);
        let cache = tempfile::tempdir().unwrap();
        let (mut store, claim) = support::claimed(&database, 0, cache.path());
        let (mut reader, _) = support::claimed(&database, 1, cache.path());
        append(&mut store, claim.epoch, 1);
        until("the batch", || store.durable().unwrap() == 1);
        server.set(setting, "off");
        append(&mut store, claim.epoch, 2);
        let is_it = |told: &Error| {
            let named = format!("{setting} is off");
            matches!(told, Error::Unsafe { setting, .. } if *setting == named)
        };
        let told = until("the refusal", || store.durable().err());
        assert!(is_it(&told), "{told}");
        // Also who only asks.
        reader.confirm().unwrap();
        let told = until("the refusal", || reader.confirmed().err());
        assert!(is_it(&told), "{told}");
        let told = support::open(&database, 0, cache.path()).claim().unwrap_err();
        assert!(is_it(&told), "{told}");
        assert_eq!(support::batches(&server, "it", 0), expected(1));
        drop(store);
        server.set(setting, "on");
        let (mut store, claim) = support::claimed(&database, 0, cache.path());
        append(&mut store, claim.epoch, 2);
        until("the batch", || store.durable().unwrap() == 2);
    }
}
