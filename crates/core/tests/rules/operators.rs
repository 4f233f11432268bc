//! Operators: pause, purge, delete, discard, quotas, browsing.

use super::script::{ALIVE, Mode, check, check_in};

#[test]
fn a_paused_queue_takes_sends_and_hands_nothing_out() {
    check(
        "
        queue  orders
        send   k1 a
        send   k2 a
        receive w 1                  => k1#1
        pause                        => ok
        pause                        => ok
        show   paused                => paused=true
        send   k3 a                  => accepted ready
        receive w 10                 => none
        settle k1 done               => ok done
        resume                       => ok
        resume                       => ok
        receive w 10                 => k2#1 k3#1
        ",
    );
}

#[test]
fn purge_drops_what_waits_and_keeps_its_keys() {
    check(
        "
        queue  orders max_attempts=1 retention=48h
        send   k1 a
        send   k2 a
        send   k3 a
        send   k4 a delay=1h
        receive w 2                  => k1#1 k2#1
        settle k2 fail error=boom    => ok dead
        purge                        => ok
        receive w 10                 => none
        show   ready delayed dead leased  => ready=0 delayed=0 dead=0 leased=1
        send   k2 a                  => discarded purged
        send   k3 a                  => discarded purged
        send   k4 a                  => discarded purged
        send   k3 b                  => conflict body
        settle k1 done result=x      => ok done
        send   k1 a                  => done x
        send   k5 a                  => accepted ready
        receive w 10                 => k5#1
        wait   48h
        send   k3 a                  => accepted ready
        ",
    );
}

#[test]
fn purge_with_keys_forgets_them_too() {
    check(
        "
        queue  orders
        send   k1 a
        send   k2 a
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        purge  keys                  => ok
        show   keys ready            => keys=0 ready=0
        send   k1 b                  => accepted ready
        send   k2 b                  => accepted ready
        receive w 10                 => k1#1 k2#1
        settle k1 done result=y      => ok done
        send   k1 b                  => done y
        ",
    );
}

#[test]
fn purge_with_keys_holds_from_the_next_send_on() {
    check(
        "
        queue  orders
        send   k1 a
        purge  keys                  => ok
        & send k1 b                  => accepted ready
        & receive w 10               => k1#1
        receive w 10                 => none
        settle k1 done result=y      => ok done
        send   k1 b                  => done y
        ",
    );
}

#[test]
fn purge_empties_groups_and_what_they_hold() {
    check(
        "
        queue  orders order=group max_attempts=1 on_group_dead=park
        send   a1 x group=a
        send   a2 x group=a
        send   b1 x group=b
        receive w 1                  => a1#1
        settle a1 fail               => ok dead
        purge                        => ok
        show   ready dead            => ready=0 dead=0
        send   a3 x group=a
        receive w 10                 => a3#1
        ",
    );
}

#[test]
fn purge_of_a_long_queue_goes_in_steps() {
    let keys = (0..600).map(|place| format!(" k{place}:a")).collect::<String>();
    let accepted = vec!["accepted ready"; 600].join(" | ");
    check(&format!(
        "
        queue  orders
        batch  {keys}                => {accepted}
        purge                        => ok
        & receive w 10               => none
        wait   1s
        show   ready                 => ready=0
        send   k599 a                => discarded purged
        "
    ));
}

#[test]
fn a_deleted_queue_is_gone_with_messages_and_keys() {
    check(
        "
        queue  emails
        queue  orders
        send   k1 a
        send   k2 a
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        receive w 1                  => k2#1
        delete                       => ok
        send   k1 a                  => no_such_queue
        delete                       => no_such_queue
        show                         => no_such_queue
        settle k2 done               => lease_lost
        queue  orders                => created v1
        show   ready leased keys sent  => ready=0 leased=0 keys=0 sent=0
        send   k1 b                  => accepted ready
        send   k2 b                  => accepted ready
        receive w 10                 => k1#1 k2#1
        send   @emails k1 a          => accepted ready
        ",
    );
}

#[test]
fn a_queue_created_again_at_once_knows_nothing_of_the_old_one() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a
        send   a2 x group=a
        receive w1 1                 => a1#1
        delete                       => ok
        & queue orders order=group   => created v1
        & send a2 y group=a          => accepted ready
        & send a1 y group=a          => accepted ready
        & receive w2 9 several       => a2#1 a1#1
        & settle a1@w1 done          => lease_lost leased
        show   leased ready          => leased=2 ready=0
        settle a1@w2 done result=x   => ok done
        send   a1 y group=a          => done x
        ",
    );
}

#[test]
fn a_version_is_not_that_of_a_queue_created_again_under_the_name() {
    check(
        "
        queue  orders                  => created v1
        delete
        queue  orders lease=1m         => created v1
        queue  orders if=0.1 lease=2m  => refused version=1
        queue  orders if=1.1 lease=2m  => changed v2
        queue  orders if=present lease=3m  => changed v3
        ",
    );
}

#[test]
fn the_same_configuration_again_changes_nothing() {
    check(
        "
        queue  orders lease=1m         => created v1
        queue  orders lease=1m         => changed v1
        queue  orders lease=1m if=0.1  => changed v1
        queue  orders lease=2m         => changed v2
        show   version                 => version=2
        ",
    );
}

#[test]
fn a_configuration_changes_only_from_the_version_it_was_made_for() {
    check(
        "
        queue  orders if=0.1         => refused version=0
        queue  orders if=present     => refused version=0
        queue  orders if=absent      => created v1
        queue  orders if=absent      => refused exists
        queue  orders if=0.1 lease=1m  => changed v2
        queue  orders if=0.1 lease=2m  => refused version=2
        show   version               => version=2
        queue  orders order=group    => invalid order
        queue  orders scope=group    => invalid dedup_scope
        queue  orders lease=1        => invalid lease_ms
        queue  orders max_attempts=0 => invalid max_attempts
        queue  orders on_group_dead=park                     => invalid on_group_dead
        queue  orders on_lost=park guarantee=at-most-once    => invalid on_lost
        queue  orders backoff_min=2s backoff_max=1s          => invalid backoff_min_ms
        show   version               => version=2
        ",
    );
}

#[test]
fn a_queue_takes_no_more_messages_than_its_quota() {
    check(
        "
        queue  orders max_messages=2 max_attempts=1
        send   k1 a                  => accepted ready
        send   k2 a                  => accepted ready
        send   k3 a                  => over_quota messages in=1000ms
        send   k1 a                  => in_flight ready attempts=0
        receive w 1                  => k1#1
        send   k3 a                  => over_quota messages
        settle k1 fail               => ok dead
        send   k3 a                  => over_quota messages
        discard k1                   => ok
        send   k3 a                  => accepted ready
        ",
    );
}

#[test]
fn a_queue_takes_no_more_bytes_than_its_quota() {
    check(
        "
        queue  orders max_bytes=20
        send   k1 a*8                => accepted ready
        send   k2 a*9                => over_quota bytes
        send   k2 a*8                => accepted ready
        show   bytes                 => bytes=20
        send   k3 a                  => over_quota bytes
        receive w 1                  => k1#1
        settle k1 done               => ok done
        show   bytes                 => bytes=10
        send   k3 a                  => accepted ready
        ",
    );
}

#[test]
fn a_queue_takes_no_more_sends_in_a_second_than_its_quota() {
    // The count is in memory alone: after a crash it may begin again.
    check_in(
        &ALIVE,
        "
        queue  orders sends_per_s=2
        send   k1 a                  => accepted ready
        send   k2 a                  => accepted ready
        send   k3 a                  => over_quota rate in=500ms
        send   k1 a                  => in_flight ready attempts=0
        claim  k3 f                  => over_quota rate
        wait   499ms
        send   k3 a                  => over_quota rate in=1ms
        wait   1ms
        send   k3 a                  => accepted ready
        send   k4 a                  => over_quota rate
        wait   1h
        send   k4 a                  => accepted ready
        send   k5 a                  => accepted ready
        send   k6 a                  => over_quota rate
        ",
    );
}

#[test]
fn discard_gives_up_what_waits_and_keeps_its_key() {
    check(
        "
        queue  orders max_attempts=1
        send   k1 a
        send   k2 a
        send   k3 a delay=1h
        receive w 1                  => k1#1
        discard k1                   => invalid State(\"leased\")
        settle k1 fail error=boom    => ok dead
        discard k1                   => ok
        discard k1                   => invalid State(\"discarded\")
        resolve k1 retry             => invalid State(\"discarded\")
        discard k2                   => ok
        discard k3                   => ok
        send   k1 a                  => discarded boom
        send   k2 a                  => discarded discarded
        look   k1                    => discarded attempts=1
        receive w 10                 => none
        wait   1h
        receive w 10                 => none
        show   ready delayed dead keys  => ready=0 delayed=0 dead=0 keys=3
        ",
    );
}

#[test]
fn browsing_shows_a_place_in_pages_and_leases_nothing() {
    check(
        "
        queue  orders max_attempts=1
        send   k1 a
        send   k2 a
        send   k3 a
        send   k4 a delay=1h
        browse ready                 => k1 k2 k3
        browse ready limit=2         => k1 k2 more
        browse ready limit=2 after=2 => k3
        browse delayed               => k4
        browse dead                  => none
        receive w 2                  => k1#1 k2#1
        browse leased                => k1 k2
        settle k1 fail               => ok dead
        settle k2 fail               => ok dead
        browse dead                  => k1 k2
        browse dead limit=1          => k1 more
        browse dead limit=1 after=1  => k2
        browse ready                 => k3
        browse done                  => none
        show   oldest                => oldest=0
        ",
    );
}

#[test]
fn browsing_shows_the_members_of_groups_that_are_in_memory() {
    // Members that were left to the rows are filed by group, and no page could be put together
    // from them by age without reading them all.
    check_in(
        &[Mode::Plain, Mode::Crash, Mode::Checkpoint, Mode::Frozen],
        "
        queue  orders order=group
        send   a1 x group=a
        send   b1 x group=b
        send   a2 x group=a
        send   n1 x
        browse ready                 => a1 b1 a2 n1
        browse ready limit=3         => a1 b1 a2 more
        ",
    );
}

#[test]
fn the_age_of_the_oldest_message_is_told() {
    check(
        "
        queue  orders order=group
        show   oldest                => oldest=-
        send   k1 a
        wait   1h
        send   a1 a group=a
        wait   1h
        show   oldest                => oldest=2h
        receive w 1                  => k1#1
        show   oldest                => oldest=1h
        receive w 1                  => a1#1
        show   oldest                => oldest=-
        ",
    );
}

#[test]
fn every_command_to_a_queue_that_is_not_there_says_so() {
    check(
        "
        receive w 1                  => no_such_queue
        pause                        => no_such_queue
        resume                       => no_such_queue
        purge                        => no_such_queue
        delete                       => no_such_queue
        show                         => no_such_queue
        look   k1                    => no_such_queue
        browse ready                 => no_such_queue
        forget k1                    => no_such_queue
        replay k1 a                  => no_such_queue
        discard k1                   => no_such_queue
        resolve k1 retry             => no_such_queue
        redrive r1 all               => no_such_queue
        redriven r1                  => no_such_queue
        ",
    );
}
