//! Bugs that other brokers had, each as a test that it is not ours (docs/faults.md).

use hapax_core::*;

use super::script::{check, name};
use crate::support::{World, recipe};

#[test]
fn a_key_is_not_remembered_before_its_message_is_stored() {
    // Elsewhere the key was staged first: the message was lost, and its retries were "duplicates".
    check(
        "
        queue  orders max_messages=1
        send   k1 a                  => accepted ready
        send   k2 a                  => over_quota messages
        discard k1                   => ok
        send   k2 a                  => accepted ready
        receive w 10                 => k2#1
        ",
    );
}

#[test]
fn a_send_whose_record_was_lost_with_the_process_is_new_when_it_is_retried() {
    let mut world = World::new();
    let config = Config::default();
    world.run(Command::Configure(Box::new(Configure {
        queue: name("orders"),
        config,
        if_version: None,
    })));
    world.checkpoint();
    let send = || {
        let content = Content::builder("k1").build(b"a").unwrap();
        Command::Send(SendMessage::new(&recipe(), name("orders"), content))
    };
    world.run(send());
    world.crash_and_lose_the_last_batch();
    let sent = world.run(send());
    assert!(matches!(sent, Outcome::Sent(Answer::Accepted { .. })), "{sent:?}");
}

#[test]
fn a_key_is_not_forgotten_at_a_restart_because_its_message_was_consumed() {
    check(
        "
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        crash
        checkpoint
        crash
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn a_look_alike_name_is_not_taken_for_the_key() {
    check(
        "
        queue  orders
        send   order-42 a            => accepted ready
        send   Order-42 a            => accepted ready
        send   order-42. a           => accepted ready
        send   ORDER-42 a            => accepted ready
        send   \"order-42\" a        => accepted ready
        send   order-42 a            => in_flight ready attempts=0
        ",
    );
}

#[test]
fn a_header_that_looks_like_a_key_is_a_header() {
    let content = Content::builder("")
        .header("Idempotency-Key", "k1")
        .header("hapax-group", "g")
        .build(b"a")
        .unwrap();
    assert_eq!((content.key(), content.group()), ("", None));
    let mut world = World::new();
    let config = Config::default();
    world.run(Command::Configure(Box::new(Configure {
        queue: name("orders"),
        config,
        if_version: None,
    })));
    let sent = world.run(Command::Send(SendMessage::new(&recipe(), name("orders"), content)));
    assert_eq!(sent, Outcome::Sent(Answer::Invalid(Invalid::MissingKey)));
}

#[test]
fn attempts_are_not_kept_in_memory_alone() {
    check(
        "
        queue  orders max_attempts=3 backoff=1s lease=30s
        send   k1 a
        receive w 1                  => k1#1
        settle k1 fail               => ok delayed
        crash
        wait   1s
        receive w 1                  => k1#2
        crash
        wait   31s
        receive w 1                  => k1#3
        checkpoint
        crash
        settle k1 fail error=third   => ok dead
        ",
    );
}

#[test]
fn a_prefetched_message_is_not_charged_an_attempt_it_never_had() {
    check(
        "
        queue  orders max_attempts=2 backoff=1s
        send   k1 a
        receive w 1                  => k1#1
        settle k1 release            => ok ready
        receive w 1                  => k1#1
        settle k1 release            => ok ready
        receive w 1                  => k1#1
        settle k1 fail               => ok delayed
        wait   1s
        receive w 1                  => k1#2
        ",
    );
}

#[test]
fn a_redriven_message_is_not_swallowed_by_its_own_key() {
    check(
        "
        queue  orders max_attempts=1 retention=48h
        send   k1 a
        receive w 1                  => k1#1
        settle k1 fail               => ok dead
        wait   1d
        redrive r1 all
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn a_delayed_message_does_not_block_its_group() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a delay=1h
        send   a2 x group=a
        receive w 10                 => a2#1
        ",
    );
}
