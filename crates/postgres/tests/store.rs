//! The store on PostgreSQL keeps the contract.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use hapax_postgres::{Database, Options, PostgresStore};
use hapax_store::conformance::{self, Harness};
use hapax_store::{
    Checkpoint, Claim, EachBatch, EachRow, Epoch, Error, PointKey, Question, Room, Sequence, Store,
};
use hapax_testing::{PostgresServer, until};

/// A store that the harness can ask whether it is idle.
struct Watched(Arc<Mutex<PostgresStore>>);

impl Watched {
    fn of(&self) -> std::sync::MutexGuard<'_, PostgresStore> {
        self.0.lock().unwrap()
    }
}

impl Store for Watched {
    fn claim(&mut self) -> Result<Claim, Error> {
        self.of().claim()
    }
    fn read(&mut self, from: Sequence, each: EachBatch<'_>) -> Result<(), Error> {
        self.of().read(from, each)
    }
    fn append(&mut self, epoch: Epoch, sequence: Sequence, batch: &[u8]) -> Result<(), Error> {
        self.of().append(epoch, sequence, batch)
    }
    fn durable(&mut self) -> Result<Sequence, Error> {
        self.of().durable()
    }
    fn confirm(&mut self) -> Result<Question, Error> {
        self.of().confirm()
    }
    fn confirmed(&mut self) -> Result<Question, Error> {
        self.of().confirmed()
    }
    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), Error> {
        self.of().checkpoint(checkpoint)
    }
    fn abandon(&mut self) -> Result<bool, Error> {
        self.of().abandon()
    }
    fn checkpointed(&mut self) -> Result<Sequence, Error> {
        self.of().checkpointed()
    }
    fn get_many(
        &mut self,
        keys: &[PointKey],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Error> {
        self.of().get_many(keys, found)
    }
    fn scan(&mut self, from: &[u8], to: &[u8], each: EachRow<'_>) -> Result<(), Error> {
        self.of().scan(from, to, each)
    }
    fn room(&mut self) -> Room {
        self.of().room()
    }
    fn close(&mut self) -> Result<(), Error> {
        self.of().close()
    }
}

/// Each case has a partition of its own.
struct InPostgres {
    server: Arc<PostgresServer>,
    name: String,
    database: Database,
    partition: u16,
    cache: tempfile::TempDir,
    stores: Vec<Arc<Mutex<PostgresStore>>>,
}

impl Harness for InPostgres {
    fn open(&mut self) -> Result<Box<dyn Store>, Error> {
        let options = Options::new(support::node(), self.cache.path().to_owned());
        let wake = Arc::new(|| {});
        let store = PostgresStore::open(&self.database, self.partition, options, wake);
        let store = Arc::new(Mutex::new(store));
        // Those that the suite dropped are gone.
        self.stores.retain(|store| Arc::strong_count(store) > 1);
        self.stores.push(Arc::clone(&store));
        Ok(Box::new(Watched(store)))
    }

    fn settle(&mut self) {
        self.stores.retain(|store| Arc::strong_count(store) > 1);
        // An owner that was replaced and is idle learns of it when it asks.
        self.database.check_owners();
        until("the stores to be idle", || {
            self.stores.iter().all(|store| store.lock().unwrap().is_idle())
        });
        self.database.wait_idle();
        until("the stores to be idle", || {
            self.stores.iter().all(|store| store.lock().unwrap().is_idle())
        });
    }

    fn crash(&mut self) {
        self.stores.clear();
    }

    fn lose_tail(&mut self) -> bool {
        self.stores.clear();
        let last = format!(
            "delete from hapax.journal where partition = {0} and sequence =
               (select max(sequence) from hapax.journal where partition = {0})",
            self.partition
        );
        self.server.sql(&self.name, &last);
        true
    }

    fn allows_two_owners(&self) -> bool {
        true
    }
}

fn check_contract(server: &Arc<PostgresServer>, url_of: impl Fn(&str, &str) -> String) {
    let (url, name) = support::empty(server);
    let database = support::connect(&url_of(&url, &name), 80);
    let next = AtomicU16::new(0);
    conformance::run(&mut || {
        Box::new(InPostgres {
            server: Arc::clone(server),
            name: name.clone(),
            database: database.clone(),
            partition: next.fetch_add(1, Ordering::Relaxed),
            cache: tempfile::tempdir().unwrap(),
            stores: Vec::new(),
        })
    });
}

#[test]
fn the_store_in_postgres_keeps_the_contract() {
    let Some(server) = support::server() else { return };
    check_contract(&server, |url, _| url.to_owned());
}

/// The same on other releases of PostgreSQL, if `./test` has brought their programs, with what the
/// statements promise.
#[test]
fn the_store_on_other_releases_of_postgresql_keeps_the_contract() {
    for programs in hapax_testing::other_programs() {
        let server = Arc::new(PostgresServer::start_from(programs, &[]));
        check_contract(&server, |url, _| url.to_owned());
        let (url, _) = support::empty(&server);
        hapax_postgres::conformance::run(&support::connect(&url, 4));
    }
}

/// The same through PgBouncer, where every statement may go to another session.
#[test]
fn the_store_behind_a_pooler_keeps_the_contract() {
    let Some(server) = support::server() else { return };
    let program = Path::new("/usr/sbin/pgbouncer");
    if !program.is_file() {
        return hapax_testing::skip("PgBouncer", "pgbouncer");
    }
    let port = hapax_testing::free_address().port();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n\
         pool_mode = transaction\ndefault_pool_size = 3\nunix_socket_dir =\n",
        server.port()
    );
    let settings = server.write("pgbouncer.ini", &settings);
    let _pooler = server.beside(program, &["-q", settings.to_str().unwrap()]);
    until("PgBouncer", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    check_contract(&server, |_, name| {
        format!("postgres://postgres@127.0.0.1:{port}/{name}?pooled=true")
    });
    let (_, name) = support::empty(&server);
    let url = format!("postgres://postgres@127.0.0.1:{port}/{name}?pooled=true");
    hapax_postgres::conformance::run(&support::connect(&url, 4));
}

/// Waits for a wake.
#[test]
fn an_owner_is_woken_when_its_batch_is_durable() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let woken = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let told = Arc::clone(&woken);
    let options = Options::new(support::node(), Path::to_owned(cache.path()));
    let wake = Arc::new(move || {
        *told.0.lock().unwrap() += 1;
        told.1.notify_all();
    });
    let mut store = PostgresStore::open(&database, 0, options, wake);
    let epoch = store.claim().unwrap().epoch;
    for sequence in 1..=20 {
        store.append(epoch, sequence, format!("b{sequence}").as_bytes()).unwrap();
        let mut wakes = woken.0.lock().unwrap();
        while store.durable().unwrap() < sequence {
            wakes = woken.1.wait(wakes).unwrap();
        }
    }
    store.close().unwrap();
    let expected: Vec<_> = (1..=20).map(|it| format!("{it} b{it}\n")).collect();
    assert_eq!(support::batches(&server, &name, 0), expected.concat());
    let owner = server.sql(&name, "select coalesce(owner::text, 'free') from hapax.partition");
    assert_eq!(owner.trim(), "free", "a close gives the partition up");
}

/// Whoever ends without a word, such as by a loss of power, has written how far it was.
#[test]
fn how_far_a_partition_is_is_written_while_it_runs() {
    let Some(server) = support::server() else { return };
    let (url, _) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    let witness = cache.path().join("witness-0000");
    for sequence in 1..=2 {
        store.append(claim.epoch, sequence, b"batch").unwrap();
        let position = format!(" {} {sequence} ", claim.epoch);
        until("the witness", || std::fs::read_to_string(&witness).unwrap().contains(&position));
    }
}

fn checkpoint(store: &mut PostgresStore, epoch: Epoch, through: Sequence) {
    let rows = Box::new(|rows: &mut hapax_store::RowSet| rows.put_ordered(b"key", b"value"));
    store.checkpoint(Checkpoint { epoch, through, at: 0, rows }).unwrap();
}

#[test]
fn a_checkpoint_leaves_the_rows_after_it_and_the_one_that_they_follow() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    (1..=300).for_each(|it| store.append(claim.epoch, it, b"batch").unwrap());
    until("the batches", || store.durable().unwrap() == 300);
    let left = "select min(sequence) || ' ' || count(*) from hapax.journal";
    for through in [100, 290] {
        checkpoint(&mut store, claim.epoch, through);
        until("the checkpoint", || store.checkpointed().unwrap() == through);
        let expected = format!("{through} {}", 301 - through);
        until("the rows to go", || server.sql(&name, left).trim() == expected);
    }
}

/// Somebody changed a row, or a page of it is another one.
#[test]
fn a_batch_that_is_not_what_was_appended_is_damage() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    (1..=3).for_each(|it| store.append(claim.epoch, it, b"batch").unwrap());
    until("the batches", || store.durable().unwrap() == 3);
    store.close().unwrap();
    server.sql(&name, "update hapax.journal set batch = 'botch' where sequence = 2");
    let (mut store, _) = support::claimed(&database, 0, cache.path());
    let mut found = Vec::new();
    let read = store.read(1, &mut |sequence, _| {
        found.push(sequence);
        Ok(true)
    });
    let told = read.unwrap_err();
    assert!(matches!(&told, Error::Corrupt(_)) && found == [1], "{told}, {found:?}");
}

/// A piece of a run did not arrive: the manifest that names it is not written.
#[test]
fn a_manifest_that_names_what_is_not_there_is_refused() {
    let Some(server) = support::server() else { return };
    let (url, name) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    store.append(claim.epoch, 1, b"batch").unwrap();
    until("the batch", || store.durable().unwrap() == 1);
    let manifest = "select version || ' ' || through from hapax.manifest";
    let before = server.sql(&name, manifest);
    let lost = "create function public.nothing() returns trigger language plpgsql as $$
        begin return null; end $$;
        create trigger lost before insert on hapax.chunk
        for each row execute function public.nothing()";
    server.sql(&name, lost);
    checkpoint(&mut store, claim.epoch, 1);
    let told = until("the refusal", || store.checkpointed().err());
    assert!(told.to_string().contains("is missing"), "{told}");
    assert_eq!(server.sql(&name, manifest), before);
}

/// A partition that has used up the fences of its epoch claims again while it runs, whatever its
/// merges are doing meanwhile.
#[test]
fn an_owner_that_claims_again_while_it_merges_stays_the_owner() {
    let Some(server) = support::server() else { return };
    let (url, _) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    let mut options = Options::new(support::node(), Path::to_owned(cache.path()));
    options.archive.merge_fan_in = 2;
    let mut store = PostgresStore::open(&database, 0, options, Arc::new(|| {}));
    let mut epoch = store.claim().unwrap().epoch;
    for sequence in 1..=8 {
        store.append(epoch, sequence, b"batch").unwrap();
        let value = vec![7_u8; 64 * 1_024];
        let rows = Box::new(move |rows: &mut hapax_store::RowSet| {
            (0..64_u64).for_each(|row| {
                let key = [&row.to_be_bytes()[..], &sequence.to_be_bytes()[..]].concat();
                rows.put_ordered(&key, &value);
            });
        });
        store.checkpoint(Checkpoint { epoch, through: sequence, at: sequence, rows }).unwrap();
        until("the checkpoint", || store.checkpointed().unwrap() == sequence);
        // Merges begin now.
        for _ in 0..20 {
            let next = store.claim().unwrap().epoch;
            assert!(next > epoch);
            epoch = next;
        }
    }
    store.close().unwrap();
}

/// Recovery reads some batches, applies them, and goes on.
#[test]
fn a_read_that_goes_on_has_every_batch_and_reads_no_page_twice() {
    let Some(server) = support::server() else { return };
    let (url, _) = support::empty(&server);
    let database = support::connect(&url, 1);
    let cache = tempfile::tempdir().unwrap();
    // Several go into one statement and are told apart by their lengths alone; some are empty.
    let batch = |sequence: u64| vec![sequence as u8; (sequence as usize * 37) % 100];
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    (1..=300).for_each(|it| store.append(claim.epoch, it, &batch(it)).unwrap());
    until("the batches", || store.durable().unwrap() == 300);
    drop(store);
    let options = Options::new(support::node(), cache.path().to_owned());
    let steps = Arc::clone(&options.steps);
    let mut store = PostgresStore::open(&database, 0, options, Arc::new(|| {}));
    assert_eq!(store.claim().unwrap().last, 300);
    for first in (1..=300).step_by(7) {
        let mut found = Vec::new();
        store
            .read(first, &mut |sequence, bytes| {
                assert_eq!(bytes, batch(sequence), "batch {sequence}");
                found.push(sequence);
                Ok(found.len() < 7)
            })
            .unwrap();
        assert_eq!(found, Vec::from_iter(first..=(first + 6).min(300)));
    }
    assert_eq!(steps.tail().count, 1, "all of it is one page");
    store.read(100, &mut |sequence, _| Ok(sequence < 200)).unwrap();
    assert_eq!(steps.tail().count, 2, "what was read before is not kept");
}
