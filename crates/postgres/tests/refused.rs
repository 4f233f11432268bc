//! Databases that are refused, each with its remedy, and nothing changed in them; URLs; SQLSTATEs.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use hapax_postgres::{Database, Failure, Refused, Settings};
use hapax_testing::PostgresServer;

fn refused(url: &str) -> Refused {
    let settings = Settings::parse(url).unwrap();
    Database::connect(settings, Some(&support::create(2))).expect_err("it is refused")
}

#[test]
fn a_url_says_what_is_wrong_with_it() {
    for (url, expected) in [
        ("mysql://me@host/it", "starts with \"mysql\""),
        ("postgres://me@host", "no database"),
        ("postgres://host/it", "no user"),
        ("postgres://me@/it", "no host"),
        ("postgres://me:secret@host/it?sslmode=maybe", "sslmode is"),
        ("postgres://me:secret@host/it?pooled=perhaps", "pooled is true or false"),
        ("postgres://me:secret@host/it?sslmode=disable&sslrootcert=x", "needs sslmode=require"),
        ("postgres://me:secret@host/it?sslrootcert=/nowhere.pem", "/nowhere.pem"),
        ("postgres://me:secret@host/it?target_session_attrs=any", "always read-write"),
        ("postgres://me:secret@host:port/it", "port"),
        ("postgres://me:secret@host/it?schemer=x", "schemer"),
    ] {
        let told = Settings::parse(url).expect_err(url).to_string();
        assert!(told.contains(expected), "{url}: {told}");
        assert!(!told.contains("secret"), "{told}");
    }
    let settings = Settings::parse("postgres://me:secret@one:1,two:2/it?pooled=true").unwrap();
    assert_eq!(settings.shown(), "postgres://one:1,two:2/it");
    assert!(settings.is_pooled() && !settings.is_encrypted());
    assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
}

/// A machine that stands still takes connections, and says nothing.
#[test]
fn a_host_that_never_answers_keeps_nobody_from_the_next() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (one, two) = (silent.local_addr().unwrap(), server.port());
    let both = format!("postgres://postgres@{one},127.0.0.1:{two}/{name}");
    let database = support::connect(&both, 2);
    assert_eq!(database.shared().cluster, support::connect(&url, 2).shared().cluster);
    assert_eq!(database.shown(), format!("postgres://{one},127.0.0.1:{two}/{name}"));
    // Alone it is given up, and named.
    let alone = refused(&format!("postgres://postgres@{one}/{name}?connect_timeout=1"));
    assert!(alone.to_string().contains("silent"), "{alone}");
}

#[test]
fn each_sqlstate_has_its_meaning() {
    type Kind = fn(&Failure) -> bool;
    let unreachable: Kind = |it| matches!(it, Failure::Unreachable(_)) && it.ends_connection();
    let full: Kind = |it| matches!(it, Failure::Full(_)) && !it.ends_connection();
    let rolled_back: Kind = |it| matches!(it, Failure::RolledBack(_)) && !it.ends_connection();
    let damaged: Kind = |it| matches!(it, Failure::Damaged(_)) && !it.ends_connection();
    let refused: Kind = |it| matches!(it, Failure::Refused(_)) && !it.ends_connection();
    for (state, kind) in [
        ("53100", full),
        ("53200", full),
        ("53400", full),
        ("25006", unreachable),
        ("57P01", unreachable),
        ("57P03", unreachable),
        ("08006", unreachable),
        ("53300", unreachable),
        ("40001", rolled_back),
        ("40P01", rolled_back),
        ("XX001", damaged),
        ("XX002", damaged),
        ("23505", refused),
        ("42501", refused),
    ] {
        let failure = Failure::of_state(state, "so it is");
        assert!(kind(&failure), "{state}: {failure:?}");
        assert!(failure.to_string().contains(state), "{failure}");
    }
}

#[test]
fn settings_that_lose_data_are_refused_by_name() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let url = server.database("it");
    for setting in ["fsync", "full_page_writes", "synchronous_commit"] {
        server.set(setting, "off");
        let told = refused(&url);
        let is_it = matches!(&told, Refused::Unsafe { setting: named, .. } if *named == setting);
        assert!(is_it && told.to_string().contains(&format!("{setting} = on")), "{told}");
        server.set(setting, "on");
    }
    server.sql("it", "alter database it set default_transaction_read_only = on");
    let told = refused(&url);
    assert!(matches!(told, Refused::ReadOnly { .. }), "{told}");
    server.sql("postgres", "alter database it reset all");
    let schemas = "select count(*) from pg_namespace where nspname = 'hapax'";
    assert_eq!(server.sql("it", schemas).trim(), "0", "nothing was changed");
    // Later, too: the append itself demands them.
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    server.set("fsync", "off");
    hapax_store::Store::append(&mut store, claim.epoch, 1, b"unsafe").unwrap();
    let told =
        hapax_testing::until("the refusal", || hapax_store::Store::durable(&mut store).err());
    assert!(
        matches!(&told, hapax_store::Error::Unsafe { setting, .. } if setting == "fsync is off"),
        "{told}"
    );
    assert_eq!(support::batches(&server, "it", 0), "");
}

#[test]
fn a_schema_of_somebody_else_or_of_a_newer_release_is_left_alone() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    server.sql(&name, "create schema hapax; create table hapax.mine (it int)");
    let told = refused(&url);
    assert!(matches!(told, Refused::Foreign { .. }), "{told}");
    let tables = "select string_agg(relname, ' ') from pg_class c join pg_namespace n
                  on n.oid = relnamespace where nspname = 'hapax'";
    assert_eq!(server.sql(&name, tables).trim(), "mine");

    let (url, name) = support::empty(&server);
    drop(support::connect(&url, 2));
    // A newer one looks different in everything but its format.
    server.sql(&name, "update hapax.cluster set format = 2; alter table hapax.cluster drop links");
    server.sql(&name, "drop table hapax.document");
    let told = refused(&url);
    assert!(matches!(told, Refused::Newer { found: 2, known: 1, .. }), "{told}");

    let (url, _) = support::empty(&server);
    let settings = Settings::parse(&url).unwrap();
    let told = Database::connect(settings, None).expect_err("there is nothing");
    assert!(matches!(told, Refused::Empty { .. }), "{told}");
}

#[test]
fn missing_rights_name_the_grant() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    server.sql(&name, "create role poor login");
    let as_poor = url.replace("postgres@", "poor@");
    let told = refused(&as_poor);
    assert!(told.to_string().contains("CREATE SCHEMA hapax AUTHORIZATION poor"), "{told}");
    drop(support::connect(&url, 2));
    let told = refused(&as_poor);
    assert!(told.to_string().contains("GRANT USAGE ON SCHEMA hapax TO poor"), "{told}");
    server.sql(&name, "grant usage on schema hapax to poor");
    let told = refused(&as_poor);
    assert!(told.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE ON hapax."), "{told}");
    server.sql(&name, "grant select on all tables in schema hapax to poor");
    assert!(matches!(refused(&as_poor), Refused::Rights { .. }));
    server.sql(&name, "grant insert, update, delete on all tables in schema hapax to poor");
    let database = support::connect(&as_poor, 9);
    assert_eq!(database.shared().partitions, 2, "the number is fixed");
    // What the tables allow is enough to work.
    let cache = tempfile::tempdir().unwrap();
    drop(support::claimed(&database, 0, cache.path()));
}

#[test]
fn nodes_that_start_at_once_create_one_broker() {
    let Some(server) = support::server() else { return };
    let (url, _) = support::empty(&server);
    let start = || support::connect(&url, 4).shared().cluster;
    let clusters: Vec<_> = std::thread::scope(|scope| {
        let nodes: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
        nodes.into_iter().map(|node| node.join().unwrap()).collect()
    });
    assert!(clusters.windows(2).all(|pair| pair[0] == pair[1]), "{clusters:?}");
}

#[test]
fn a_database_that_is_not_there_says_so() {
    let Some(server) = support::server() else { return };
    let told = refused(&server.url("nowhere"));
    assert!(told.to_string().contains("CREATE DATABASE"), "{told}");
    let told = refused("postgres://me@127.0.0.1:1/it");
    assert!(matches!(told, Refused::Unreachable { .. }), "{told}");
}
