//! What the tests of this crate share: one server, databases with a broker, owners.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hapax_postgres::{Create, Database, Node, Options, PostgresStore, Secret, Settings, Uuid};
use hapax_store::{Claim, Store};
use hapax_testing::PostgresServer;

/// A server that the tests of one program share; it ends with the last of them.
pub(crate) fn server() -> Option<Arc<PostgresServer>> {
    static RUNNING: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = running.upgrade() {
        return Some(server);
    }
    let server = Arc::new(PostgresServer::start(&[])?);
    *running = Arc::downgrade(&server);
    Some(server)
}

/// The address of a new database.
pub(crate) fn empty(server: &PostgresServer) -> (String, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    (server.database(&name), name)
}

pub(crate) fn create(partitions: u16) -> Create {
    let secret = |byte| Secret([byte; 32]);
    let (fingerprints, leases, links) = (Some(secret(1)), secret(2), secret(3));
    Create { partitions, fingerprints, leases, links }
}

pub(crate) fn connect(url: &str, partitions: u16) -> Database {
    Database::connect(Settings::parse(url).unwrap(), Some(&create(partitions))).unwrap()
}

/// A node of that name.
pub(crate) fn named(name: &str) -> Node {
    let (name, address, release) = (name.to_owned(), "a:1".to_owned(), "0".to_owned());
    Node { name, address, release, feature: 1 }
}

pub(crate) fn node() -> Uuid {
    Uuid::now_v7()
}

pub(crate) fn open(database: &Database, partition: u16, cache: &Path) -> PostgresStore {
    let options = Options::new(node(), cache.to_owned());
    PostgresStore::open(database, partition, options, Arc::new(|| {}))
}

pub(crate) fn claimed(database: &Database, partition: u16, cache: &Path) -> (PostgresStore, Claim) {
    let mut store = open(database, partition, cache);
    let claim = store.claim().unwrap();
    (store, claim)
}

/// The batches of a partition as they are in the database.
pub(crate) fn batches(server: &PostgresServer, database: &str, partition: u16) -> String {
    let sql = format!(
        "select sequence || ' ' || encode(batch, 'escape') from hapax.journal
         where partition = {partition} and sequence > 0 order by sequence"
    );
    server.sql(database, &sql)
}
