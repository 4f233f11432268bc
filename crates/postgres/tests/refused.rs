//! Databases that are refused, each with its remedy, and nothing changed in them; URLs; SQLSTATEs.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::path::Path;

use hapax_postgres::import::Import;
use hapax_postgres::{Database, Failure, Refused, Settings, Uuid};
use hapax_testing::{PostgresServer, until};

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

/// What the database's own functions say of it is made up: there is no older server here.
#[test]
fn servers_that_are_too_old_or_no_postgresql_are_refused_by_their_version() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let real = "'PostgreSQL 13.4 on x86_64'";
    let say = |version: &str, number: &str| {
        server.sql(
            &name,
            &format!(
                "drop schema if exists old cascade; create schema old;
                 create function old.version() returns text language sql as $$ select {version} $$;
                 create function old.current_setting(asked text) returns text language sql as $$
                   select case asked when 'server_version_num' then '{number}'
                     when 'server_version' then '13.4' else pg_catalog.current_setting(asked) end
                 $$; alter database {name} set search_path = old, pg_catalog"
            ),
        );
    };
    say(real, "130004");
    let told = refused(&url);
    assert!(matches!(&told, Refused::TooOld { found, .. } if found == "13.4"), "{told}");
    assert!(told.to_string().contains("upgrade the server"), "{told}");
    for other in ["'CockroachDB CCL v23'", "'PostgreSQL 11.2-YB-2.18 on x86_64'"] {
        say(other, "150000");
        let told = refused(&url);
        assert!(matches!(told, Refused::NotPostgres { .. }), "{told}");
    }
    let schemas = "select count(*) from pg_namespace where nspname = 'hapax'";
    assert_eq!(server.sql(&name, schemas).trim(), "0", "nothing was changed");
    say(real, "140000");
    drop(support::connect(&url, 1));
}

/// Each in a database of its own, with what is in the schema before and after.
#[test]
fn schemas_that_are_not_whole_are_left_as_they_are() {
    let Some(server) = support::server() else { return };
    type Kind = fn(&Refused) -> bool;
    let foreign: Kind = |it| matches!(it, Refused::Foreign { .. });
    let newer: Kind = |it| matches!(it, Refused::Newer { .. });
    let importing: Kind = |it| matches!(it, Refused::Importing { .. });
    let mark = format!("{} tables /var/lib/hapax", Uuid::from_u128(7));
    let import = format!(
        "delete from hapax.cluster;
         insert into hapax.document values ('import', 1, convert_to('{mark}', 'UTF8'))"
    );
    for (change, kind, expected) in [
        ("delete from hapax.cluster", foreign, "has no format"),
        ("update hapax.cluster set format = 0", foreign, "has no format"),
        ("drop table hapax.chunk", foreign, "chunk is missing"),
        ("alter table hapax.cluster drop format", foreign, "format"),
        ("update hapax.cluster set leases = 'short'", foreign, "makes no sense"),
        ("update hapax.cluster set partitions = -1", foreign, "makes no sense"),
        ("update hapax.cluster set feature = 9", newer, "format 9"),
        (import.as_str(), importing, "/var/lib/hapax"),
    ] {
        let (url, name) = support::empty(&server);
        drop(support::connect(&url, 2));
        server.sql(&name, change);
        let state = "select string_agg(relname || coalesce(relacl::text, ''), ' ' order by relname)
                     from pg_class c join pg_namespace n on n.oid = relnamespace
                     where nspname = 'hapax'";
        let before = server.sql(&name, state);
        let told = refused(&url);
        assert!(kind(&told) && told.to_string().contains(expected), "{change}: {told}");
        let told = Database::connect(Settings::parse(&url).unwrap(), None).expect_err(change);
        assert!(kind(&told), "{change}: {told}");
        assert_eq!(server.sql(&name, state), before, "{change}");
    }
}

/// As its owner runs what the refusals say, in the end the role can do all that a node does.
#[test]
fn the_remedies_for_missing_rights_are_enough() {
    let Some(server) = support::server() else { return };
    // Its name has to be quoted.
    server.sql("postgres", "create role \"modest-One\" login");
    for is_there in [false, true] {
        let (url, name) = support::empty(&server);
        if is_there {
            drop(support::connect(&url, 4));
        }
        let as_modest = url.replace("postgres@", "modest-One@");
        let mut remedies = Vec::new();
        let database = loop {
            let settings = Settings::parse(&as_modest).unwrap();
            match Database::connect(settings, Some(&support::create(4))) {
                Ok(database) => break database,
                Err(Refused::Rights { remedy, .. }) if remedies.len() < 5 => {
                    server.sql(&name, &remedy);
                    remedies.push(remedy);
                }
                Err(refused) => panic!("{refused} after {remedies:?}"),
            }
        };
        assert!(!remedies.is_empty());
        hapax_postgres::conformance::run(&database);
    }
}

/// What a database sets for its sessions changes neither the statements nor what they mean.
#[test]
fn what_is_set_for_a_database_changes_nothing() {
    let Some(server) = support::server() else { return };
    for set in [
        "standard_conforming_strings = off",
        "backslash_quote = on",
        "bytea_output = escape",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
        "search_path = nowhere",
        "lc_messages = 'C'",
        "quote_all_identifiers = on",
        "client_encoding = 'LATIN1'",
    ] {
        let (url, name) = support::empty(&server);
        server.sql("postgres", &format!("alter database {name} set {set}"));
        let settings = || Settings::parse(&url).unwrap();
        let begin = || Import::begin(settings(), support::create(4), "it's \\ here");
        let import = begin().unwrap_or_else(|refused| panic!("{set}: {refused}"));
        import.document("tokens", b"\\x41'").unwrap_or_else(|error| panic!("{set}: {error}"));
        assert!(matches!(refused(&url), Refused::Importing { .. }), "{set}");
        import.abandon().unwrap_or_else(|failure| panic!("{set}: {failure}"));
        hapax_postgres::conformance::run(&support::connect(&url, 4));
    }
}

/// The text of a statement is shown by the server to others, and is in its log.
#[test]
fn the_statement_that_creates_a_broker_has_no_secret() {
    let Some(server) = PostgresServer::start(&["log_statement=all", "log_parameter_max_length=0"])
    else {
        return;
    };
    let url = server.database("it");
    drop(support::connect(&url, 2));
    let log = std::fs::read_to_string(server.directory().join("log")).unwrap();
    assert!(log.contains("insert into hapax.cluster"), "{log}");
    for secret in ["01010101", "02020202", "03030303"] {
        assert!(!log.contains(secret), "{log}");
    }
    let kept = "select encode(leases, 'hex') from hapax.cluster";
    assert!(server.sql("it", kept).starts_with("02020202"));
}

/// Somebody else's lock, or a standby that is gone: who starts a node is told so.
#[test]
fn the_checks_of_a_database_have_a_deadline() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    drop(support::connect(&url, 2));
    let port = server.port().to_string();
    let locks = "begin; lock table hapax.cluster in access exclusive mode; select pg_sleep(600)";
    let asked = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", &name, "-c", locks];
    let _session = server.beside(Path::new("psql"), &asked);
    let holder = format!(
        "select pid from pg_stat_activity where datname = '{name}' and wait_event = 'PgSleep'"
    );
    until("the lock", || !server.sql("postgres", &holder).is_empty());
    let settings = || Settings::parse(&url).unwrap();
    let ended = std::thread::scope(|scope| {
        let checks = [
            scope.spawn(|| Database::connect(settings(), Some(&support::create(2))).map(drop)),
            scope.spawn(|| Database::look(settings()).map(drop)),
            scope.spawn(|| Import::check(&settings())),
        ];
        checks.map(|check| check.join().unwrap().unwrap_err())
    });
    server.sql("postgres", &format!("select pg_terminate_backend(pid) from ({holder}) it"));
    for told in ended {
        assert!(matches!(told, Refused::Unreachable { .. }), "{told}");
        assert!(told.to_string().contains("did not answer within 10s"), "{told}");
        assert!(told.to_string().contains("pg_stat_activity"), "{told}");
    }
    drop(support::connect(&url, 2));
}

#[test]
fn missing_rights_name_the_grant() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    server.sql(&name, "create role poor login");
    let as_poor = url.replace("postgres@", "poor@");
    let told = refused(&as_poor);
    assert!(told.to_string().contains("CREATE SCHEMA hapax AUTHORIZATION poor"), "{told}");
    server.sql(&name, "create schema hapax");
    let told = refused(&as_poor).to_string();
    assert!(told.contains("GRANT USAGE, CREATE ON SCHEMA hapax TO poor"), "{told}");
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
