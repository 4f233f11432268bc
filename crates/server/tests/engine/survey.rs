//! Figures of all queues, also while a partition stands still.

use std::sync::mpsc;
use std::time::Duration;

use hapax_core::Config;
use hapax_server::engine::{Engine, Survey};

use crate::{LONG, Lists, create, message, open};

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

    let (release, standing) = stand_still(&engine, 1).await;
    let short = Duration::from_millis(50);
    let mut survey = engine.survey(short).await;
    while survey.answered != [true, false] {
        survey = engine.survey(short).await;
    }
    assert_eq!(survey.queues[0].1.stats.ready, 40, "its part is what it told last");

    drop(release);
    standing.await.unwrap();
    assert_eq!(engine.survey(LONG).await.answered, [true, true]);
    engine.stop();
}

/// The list of queues when only this partition does not answer; others may be late once.
async fn without(engine: &Engine, partition: usize) -> Survey {
    loop {
        let listed = engine.queues("default", Duration::from_millis(50)).await;
        if let Ok(list) = listed
            && list.unanswered().collect::<Vec<_>>() == [partition]
        {
            return list;
        }
    }
}

/// Stops the writer of a partition until the first of what is returned is dropped.
async fn stand_still(
    engine: &Engine,
    partition: usize,
) -> (mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
    let (release, held) = mpsc::channel::<()>();
    let (standing, stands) = mpsc::channel::<()>();
    let engine = engine.clone();
    let task = tokio::spawn(async move {
        let stand = move |_: &_| {
            drop(standing);
            held.recv().unwrap_err();
        };
        engine.inspect(partition, stand).await.unwrap();
    });
    tokio::task::spawn_blocking(move || stands.recv().unwrap_err()).await.unwrap();
    (release, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_stands_still_does_not_hold_up_a_list_of_queues() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path(), 2);
    create(&engine, "orders", Config::default()).await;
    let sends = (0..40).map(|n| message("orders", &format!("k{n}"), "b")).collect();
    engine.send(sends).await.unwrap();
    let short = Duration::from_millis(50);

    // Nothing was reported before: the other partition's part is all there is.
    let (release, standing) = stand_still(&engine, 1).await;
    let list = without(&engine, 1).await;
    let ready = list.queues[0].1.stats.ready;
    assert!((1..40).contains(&ready), "{ready}");
    drop(release);
    standing.await.unwrap();
    let list = engine.queues("default", LONG).await.unwrap();
    assert_eq!((list.unanswered().count(), list.queues[0].1.stats.ready), (0, 40));

    // The leader knows what queues there are: without it, its last report is used.
    let (release, standing) = stand_still(&engine, 0).await;
    let refused = engine.queues("default", short).await.unwrap_err();
    assert!(refused.to_string().contains("partition 0 did not answer"), "{refused}");
    drop(release);
    standing.await.unwrap();
    engine.survey(LONG).await;
    let (release, standing) = stand_still(&engine, 0).await;
    let list = without(&engine, 0).await;
    assert_eq!(list.queues[0].1.stats.ready, 40);
    drop(release);
    standing.await.unwrap();
    engine.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_came_late_is_not_taken_for_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path(), 1);
    create(&engine, "orders", Config::default()).await;
    let (release, standing) = stand_still(&engine, 0).await;
    assert_eq!(engine.survey(Duration::from_millis(20)).await.answered, [false]);
    drop(release);
    standing.await.unwrap();
    // The report that is owed has come by now, and knows nothing of the next queue.
    create(&engine, "letters", Config::default()).await;
    let survey = engine.survey(LONG).await;
    assert_eq!((survey.answered, survey.queues.len()), (vec![true], 2));
    engine.stop();
}
