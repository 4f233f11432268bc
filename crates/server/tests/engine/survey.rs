//! Figures of all queues, also while a partition stands still.

use std::sync::mpsc;
use std::time::Duration;

use hapax_core::Config;

use crate::{LONG, create, message, open};

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_stands_still_does_not_hold_up_a_survey() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path(), 2);
    create(&engine, "orders", Config::default()).await;
    let sends = (0..40).map(|n| message("orders", &format!("k{n}"), "b")).collect();
    engine.send(sends).await.unwrap();
    let all = engine.survey(LONG).await;
    assert_eq!(all.answered, [true, true]);
    assert_eq!(all.queues[0].1.stats.ready, 40);

    let (release, held) = mpsc::channel::<()>();
    let standing = engine.clone();
    let standing = tokio::spawn(async move { standing.inspect(1, move |_| held.recv()).await });
    let short = Duration::from_millis(50);
    let mut survey = engine.survey(short).await;
    while survey.answered != [true, false] {
        survey = engine.survey(short).await;
    }
    assert_eq!(survey.queues[0].1.stats.ready, 40, "its part is what it told last");

    drop(release);
    standing.await.unwrap().unwrap().unwrap_err();
    assert_eq!(engine.survey(LONG).await.answered, [true, true]);
    engine.stop();
}
