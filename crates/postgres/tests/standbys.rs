//! Whoever starts a node or looks at it is told of standbys that replicate asynchronously, and of
//! nothing else that receives the log.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use hapax_postgres::{Database, Settings};
use hapax_testing::{PostgresServer, until};

/// The same at the start of a node and for whoever looks, as a superuser and as a role that may
/// not see what the sessions of others do.
#[track_caller]
fn warns(server: &PostgresServer) -> bool {
    let warned = ["postgres", "poor"].map(|user| {
        let url = server.url("it").replace("postgres@", &format!("{user}@"));
        let settings = || Settings::parse(&url).unwrap();
        let at_start = Database::connect(settings(), None).unwrap().warning().cloned();
        let looking = Database::look(settings()).unwrap().warning().cloned();
        assert_eq!(at_start, looking, "{user}");
        let text = looking.map(|it| it.to_string()).unwrap_or_default();
        assert!(text.is_empty() || text.contains("replicate asynchronously"), "{text}");
        !text.is_empty()
    });
    assert_eq!(warned[0], warned[1], "whatever the role may see");
    warned[0]
}

fn count(server: &PostgresServer, what: &str) -> String {
    server.sql("it", &format!("select count(*) from {what}")).trim().to_owned()
}

#[test]
fn standbys_that_are_asynchronous_are_a_warning_and_other_receivers_are_none() {
    let Some(server) = PostgresServer::start(&["wal_level=logical"]) else { return };
    let url = server.database("it");
    drop(support::connect(&url, 1));
    server.sql(
        "it",
        "create role poor login; grant usage on schema hapax to poor;
         grant select, insert, update, delete on all tables in schema hapax to poor",
    );
    assert!(!warns(&server), "there is no standby");

    let port = server.port().to_string();
    let programs = hapax_testing::newest_programs().unwrap();
    let target = server.directory().to_str().unwrap();
    let own = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
    let archive = [&own[..], &["-D", target, "--synchronous"]].concat();
    let archive = server.beside(&programs.join("pg_receivewal"), &archive);
    server.sql("it", "select pg_create_logical_replication_slot('changes', 'test_decoding')");
    let changes = ["-d", "it", "-S", "changes", "--start", "-f", "/dev/null"];
    let changes = [&own[..], &changes].concat();
    let changes = server.beside(&programs.join("pg_recvlogical"), &changes);
    let receivers = "pg_stat_replication where state = 'streaming' and flush_lsn is not null";
    until("both to receive the log", || count(&server, receivers) == "2");
    assert!(!warns(&server), "neither takes over");
    drop((archive, changes));

    let _standby = server.standby("s1", &[]);
    let replays = "pg_stat_replication where replay_lsn is not null and state = 'streaming'";
    until("the standby", || count(&server, replays) == "1");
    assert!(warns(&server));
    // Where the server does not show its standbys there is nothing to tell, and no error.
    server.sql("it", "revoke select on pg_stat_replication from public");
    let as_poor = Settings::parse(&url.replace("postgres@", "poor@")).unwrap();
    assert_eq!(Database::connect(as_poor, None).unwrap().warning(), None);
    server.sql("it", "grant select on pg_stat_replication to public");
    server.set("synchronous_standby_names", "s1");
    until("it to be synchronous", || {
        count(&server, "pg_stat_replication where sync_state = 'sync'") == "1"
    });
    assert!(!warns(&server), "it is synchronous");
}
