//! The pool against a table that somebody has locked, on a real server.

use hapax_testing::PostgresServer;

use super::*;

const LATE: Duration = Duration::from_millis(1_500);

/// As an operator does by `VACUUM FULL`. The statements that are given up wait on in the server,
/// each in a connection of its own.
#[test]
fn who_waits_for_a_locked_table_is_given_up_ever_later() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let settings = Settings::parse(&server.database("it")).unwrap();
    let secret = || Secret([1; 32]);
    let create = Create { partitions: 1, fingerprints: None, leases: secret(), links: secret() };
    drop(Database::connect(settings.clone(), Some(&create)).unwrap());
    let pulse = Pulse::default();
    let beats = async {
        loop {
            pulse.beat(Instant::now());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            () = beats => {}
            () = wait_for_a_lock(&settings, &pulse) => {}
        }
    });
}

async fn wait_for_a_lock(settings: &Settings, pulse: &Pulse) {
    let pool = Pool::new(settings.clone(), 4, pulse.clone(), LATE);
    let operator = Connection::open(settings).await.unwrap();
    operator.batch("begin; lock table hapax.chunk").await.unwrap();
    let fetch = Call::Fetch { partition: 0, run: 1, at: 0 };
    for least in [LATE, LATE * 2, LATE * 4] {
        let (one, other) = tokio::join!(pool.call(&fetch), pool.call(&fetch));
        for outcome in [one, other] {
            let Err(Failure::TimedOut(waited)) = outcome else { panic!("{outcome:?}") };
            assert!(waited >= least, "given up after {waited:?}, not {least:?}");
        }
        // What is not locked goes on, and says nothing of what is.
        pool.call(&Call::Manifest { partition: 0 }).await.unwrap();
    }
    operator.batch("rollback").await.unwrap();
    pool.call(&fetch).await.unwrap();
    assert_eq!(pool.with_patience(discriminant(&fetch), |it| it.limit()), LATE);
}
