//! K1 to K12: one key, one operation.

use super::script::check;

#[test]
fn k1_a_key_is_known_within_its_tenant_and_queue_alone() {
    check(
        "
        queue  acme/orders
        queue  acme/emails
        queue  other/orders
        send   @acme/orders  k1 a   => accepted ready
        send   @acme/emails  k1 b   => accepted ready
        send   @other/orders k1 c   => accepted ready
        send   @acme/orders  k1 a   => in_flight ready attempts=0
        send   @other/orders k1 a   => conflict body
        ",
    );
}

#[test]
fn k1_in_a_queue_that_deduplicates_per_group_a_key_is_known_within_its_group() {
    check(
        "
        queue  orders order=group scope=group
        send   k1 a group=g    => accepted ready
        send   k1 b group=h    => accepted ready
        send   k1 a group=g    => in_flight ready attempts=0
        send   k1 a group=h    => conflict body
        send   k1 a            => invalid MissingGroup
        receive w 10           => k1#1 k1#1
        look   k1 group=g      => leased attempts=1
        look   k1              => no_such_key
        ",
    );
}

#[test]
fn k1_a_queue_wide_key_conflicts_over_groups() {
    check(
        "
        queue  orders order=group
        send   k1 a group=g    => accepted ready
        send   k1 a group=h    => conflict group
        send   k1 a            => conflict group
        ",
    );
}

#[test]
fn k2_key_and_message_come_back_together() {
    check(
        "
        queue  orders
        send   k1 a        => accepted ready
        crash
        send   k1 a        => in_flight ready attempts=0
        receive w 10       => k1#1
        receive w 10       => none
        ",
    );
}

#[test]
fn k3_a_conflict_names_everything_that_differs() {
    check(
        "
        queue  orders
        send   k1 a type=text/plain group=g  => accepted ready
        send   k1 b type=text/plain group=g  => conflict body
        send   k1 a type=text/plain group=h  => conflict group
        send   k1 b                          => conflict body,group
        send   k1 a type=text/plain group=g  => in_flight ready attempts=0
        receive w 1                          => k1#1
        settle k1 done
        send   k1 b type=text/plain group=g  => conflict body
        send   k1 a type=text/plain          => conflict group
        ",
    );
}

#[test]
fn k3_the_content_type_makes_no_other_operation() {
    check(
        "
        queue  orders
        send   k1 a type=text/plain          => accepted ready
        send   k1 a type=application/json    => in_flight ready attempts=0
        send   k1 a                          => in_flight ready attempts=0
        receive w 1                          => k1#1
        settle k1 done result=x              => ok done
        send   k1 a type=text/html           => done x
        send   k1 b type=text/plain          => conflict body
        ",
    );
}

#[test]
fn k8_a_key_dated_ahead_is_remembered_from_its_date_on() {
    check(
        "
        queue  orders retention=2h
        wait   1s
        send   ahead-uuid(12h) a             => accepted ready
        send   ahead-ulid(12h) a             => accepted ready
        send   k1 a issued=+12h              => accepted ready
        claim  k2 f issued=+12h              => fresh
        receive w 9                          => ahead-uuid(12h)#1 ahead-ulid(12h)#1 k1#1
        settle ahead-uuid(12h) done result=x => ok done
        settle ahead-ulid(12h) done result=x => ok done
        settle k1 done result=x              => ok done
        settle k2 done result=x              => ok done
        wait   13h
        send   ahead-uuid(12h) a             => done x
        send   ahead-ulid(12h) a             => done x
        send   k1 a issued=-1h               => done x
        claim  k2 f issued=-1h               => done x
        wait   1h
        send   ahead-uuid(12h) a             => too_old
        send   ahead-ulid(12h) a             => too_old
        send   k1 a issued=-2h               => too_old
        claim  k2 f issued=-2h               => too_old
        ",
    );
}

#[test]
fn k8_what_is_dated_more_than_a_day_ahead_is_refused() {
    check(
        "
        queue  orders retention=2h
        send   k1 a issued=+24h              => accepted ready
        send   k2 a issued=+25h              => invalid DatedAhead { ahead_ms: 90000000 }
        claim  k2 f issued=+25h              => invalid DatedAhead { ahead_ms: 90000000 }
        send   ahead-uuid(25h) a             => invalid DatedAhead { ahead_ms: 90000000 }
        send   ahead-ulid(25h) a             => invalid DatedAhead { ahead_ms: 90000000 }
        send   ahead-ulid(366d) a            => invalid DatedAhead { ahead_ms: 31622400000 }
        send   ahead-ulid(367d) a            => accepted ready
        send   k1 a issued=+25h              => in_flight ready attempts=0
        ",
    );
}

#[test]
fn k3_a_callers_own_fingerprint_stands_for_all_of_the_message() {
    check(
        "
        queue  orders
        send   k1 a@10:00 fp=order-42           => accepted ready
        send   k1 a@10:01 fp=order-42           => in_flight ready attempts=0
        send   k1 a@10:01 fp=order-42 type=x    => in_flight ready attempts=0
        send   k1 a@10:00 fp=order-43           => conflict fingerprint
        send   k1 a@10:00                       => conflict fingerprint
        send   k2 a                             => accepted ready
        send   k2 a fp=order-42                 => conflict fingerprint
        ",
    );
}

#[test]
fn k4_a_key_lives_as_long_as_its_message_and_then_for_the_retention() {
    check(
        "
        queue  orders retention=48h max_attempts=1
        send   k1 a                  => accepted ready
        wait   100d
        send   k1 a                  => in_flight ready attempts=0
        receive w 1 lease=12h        => k1#1
        wait   11h
        settle k1 done result=x      => ok done
        wait   47h
        send   k1 a                  => done x
        wait   59m
        send   k1 a                  => done x
        wait   1m
        send   k1 a                  => accepted ready
        ",
    );
}

#[test]
fn k4_a_dead_messages_key_is_never_forgotten_so_a_redrive_meets_it() {
    check(
        "
        queue  orders retention=48h max_attempts=1
        send   k1 a                  => accepted ready
        receive w 1                  => k1#1
        settle k1 fail error=boom    => ok dead
        wait   400d
        send   k1 a                  => dead boom
        redrive r1 keys=k1           => matched=1 moved=1 done
        send   k1 a                  => in_flight ready attempts=0
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn k4_delayed_and_parked_messages_keep_their_keys() {
    check(
        "
        queue  orders retention=48h on_lost=park
        send   k1 a delay=300d       => accepted delayed
        wait   299d
        send   k1 a                  => in_flight delayed attempts=0
        wait   1d
        receive w 1                  => k1#1
        settle k1 begin
        wait   400d
        send   k1 a                  => parked attempts=1
        ",
    );
}

#[test]
fn k5_a_full_store_refuses_new_sends_and_keeps_every_key() {
    check(
        "
        queue  orders retention=48h
        send   k1 a                  => accepted ready
        send   k2 a                  => accepted ready
        receive w 1                  => k1#1
        store  full
        send   k3 a                  => store_full
        claim  k4 f                  => store_full
        send   k1 a                  => in_flight leased attempts=1
        receive w 1                  => k2#1
        settle k1 save step one      => ok leased
        settle k1 done result=x      => ok done
        settle k2 fail error=boom    => ok delayed
        send   k1 a                  => done x
        replay k1 a                  => store_full
        store  free
        send   k3 a                  => accepted ready
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn k6_a_retention_below_twice_the_retry_horizon_is_refused() {
    check(
        "
        queue  orders retention=47h horizon=24h       => invalid retention_ms
        send   k1 a                                   => no_such_queue
        queue  orders retention=48h horizon=24h       => created v1
        queue  orders retention=40h horizon=24h       => invalid retention_ms
        queue  orders retention=forever horizon=900d  => changed v2
        ",
    );
}

#[test]
fn k6_for_ever_is_for_ever() {
    check(
        "
        queue  orders retention=forever
        send   k1 a                  => accepted ready
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        wait   36000d
        send   k1 a                  => done x in=never
        replay k1 a                  => ok
        send   k1 a                  => in_flight ready attempts=0
        receive w 1                  => k1#1g1
        settle k1 done result=y      => ok done
        send   k1 a                  => done y
        ",
    );
}

#[test]
fn k7_duplicates_do_not_prolong_a_keys_life() {
    check(
        "
        queue  orders retention=48h
        send   k1 a                  => accepted ready
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        send   k1 a                  => done x in=2d
        wait   24h
        send   k1 a                  => done x in=1d
        wait   23h
        send   k1 a                  => done x in=1h
        wait   3599s
        send   k1 a                  => done x in=1s
        wait   1s
        send   k1 a                  => accepted ready
        ",
    );
}

#[test]
fn k7_a_key_past_its_time_is_unknown_before_anything_sweeps_it() {
    check(
        "
        queue  orders retention=48h
        send   k1 a                  => accepted ready
        receive w 1                  => k1#1
        settle k1 done               => ok done
        later  48h
        & look k1                    => no_such_key
        & replay k1 a                => no_such_key
        & forget k1                  => no_such_key
        & send k1 other              => accepted ready
        ",
    );
}

#[test]
fn k7_changing_the_retention_keeps_the_keys_there_are() {
    check(
        "
        queue  orders retention=96h
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 1                  => k1#1
        settle k1 done               => ok done
        queue  orders retention=4h   => changed v2
        receive w 1                  => k2#1
        settle k2 done               => ok done
        wait   5h
        send   k1 a                  => done
        send   k2 a                  => accepted ready
        queue  orders retention=200h => changed v3
        wait   91h
        send   k1 a                  => accepted ready
        ",
    );
}

#[test]
fn k8_an_old_dated_key_that_is_not_remembered_is_too_old() {
    check(
        "
        queue  orders retention=48h
        send   uuid(3d) a              => too_old
        send   uuid(1d) a              => accepted ready
        send   ulid(3d) a              => too_old
        send   ulid(1d) a              => accepted ready
        send   k1 a issued=-3d         => too_old
        send   k2 a issued=-2d         => too_old
        send   k2 a issued=-47h        => accepted ready
        send   k3 a issued=-1d         => accepted ready
        claim  uuid(4d) f              => too_old
        claim  k4 f issued=-3d         => too_old
        wait   2d
        send   uuid(1d) a              => in_flight ready attempts=0
        receive w 10                   => uuid(1d)#1 ulid(1d)#1 k2#1 k3#1
        settle uuid(1d) done result=x  => ok done
        wait   2d
        send   uuid(1d) a              => too_old
        ",
    );
}

#[test]
fn k8_raising_the_retention_does_not_bring_forgotten_keys_back() {
    check(
        "
        queue  orders retention=2d
        send   k1 a issued=-1h         => accepted ready
        receive w 1                    => k1#1
        settle k1 done                 => ok done
        wait   3d
        queue  orders retention=7d
        send   k1 a issued=-3d         => too_old
        send   k1 a issued=-2d         => too_old
        send   k1 a issued=-47h        => accepted ready
        ",
    );
}

#[test]
fn k8_raising_the_retention_does_not_make_keys_new_that_end_by_the_old_one() {
    check(
        "
        queue  orders retention=2d
        send   k1 a issued=-0s         => accepted ready
        send   k2 a issued=+12h        => accepted ready
        receive w 2                    => k1#1 k2#1
        settle k1 done result=x        => ok done
        settle k2 done result=x        => ok done
        wait   1d
        queue  orders retention=7d
        send   k1 a issued=-1d         => done x
        wait   1d
        send   k1 a issued=-2d         => too_old
        send   k2 a issued=-36h        => done x
        wait   12h
        send   k2 a issued=-48h        => too_old
        wait   12h
        queue  orders retention=8d
        send   k1 a issued=-3d         => too_old
        send   k2 a issued=-60h        => too_old
        wait   4d
        queue  orders retention=forever
        send   k1 a issued=-7d         => too_old
        send   k3 a issued=-4d         => accepted ready
        ",
    );
}

#[test]
fn k8_a_replay_remembers_a_date_that_was_ahead() {
    check(
        "
        queue  orders retention=2h
        send   k1 a issued=+12h        => accepted ready
        send   ahead-uuid(12h) a       => accepted ready
        receive w 2                    => k1#1 ahead-uuid(12h)#1
        settle k1 done result=x
        settle ahead-uuid(12h) done result=x
        replay k1 a
        replay ahead-uuid(12h) a
        receive w 2                    => k1#1g1 ahead-uuid(12h)#1g1
        settle k1 done result=y
        settle ahead-uuid(12h) done result=y
        wait   13h
        send   k1 a issued=-1h         => done y
        send   ahead-uuid(12h) a       => done y
        wait   1h
        send   k1 a issued=-2h         => too_old
        send   ahead-uuid(12h) a       => too_old
        ",
    );
}

#[test]
fn k8_the_date_that_a_send_carries_goes_before_the_keys_own() {
    check(
        "
        queue  orders retention=48h
        send   uuid(1d) a issued=-3d   => too_old
        send   uuid(3d) a issued=-1d   => accepted ready
        ",
    );
}

#[test]
fn k8_nothing_is_too_old_where_keys_are_remembered_for_ever() {
    check(
        "
        queue  orders retention=forever
        send   uuid(400d) a            => accepted ready
        send   k1 a issued=-4000d      => accepted ready
        ",
    );
}

#[test]
fn k8_undated_keys_are_refused_where_the_queue_says_so() {
    check(
        "
        queue  orders retention=48h undated=refuse
        send   k1 a                    => undated_key
        claim  k1 f                    => undated_key
        send   k1 a issued=-1h         => accepted ready
        send   k1 a                    => in_flight ready attempts=0
        send   uuid(1h) a              => accepted ready
        send   ulid(1h) a              => accepted ready
        send   uuid(3d) a              => too_old
        ",
    );
}

#[test]
fn k9_pin_answers_dead_with_the_last_error() {
    check(
        "
        queue  orders max_attempts=2 backoff=1s
        send   k1 a                  => accepted ready
        receive w 1                  => k1#1
        settle k1 fail error=one     => ok delayed
        wait   1s
        receive w 1                  => k1#2
        settle k1 fail error=two     => ok dead
        send   k1 a                  => dead two
        send   k1 b                  => conflict body
        claim  k1 f                  => conflict fingerprint
        receive w 1                  => none
        ",
    );
}

#[test]
fn k9_rerun_makes_it_ready_again_with_attempts_from_zero() {
    check(
        "
        queue  orders max_attempts=1 on_dead=rerun
        send   k1 a                  => accepted ready
        receive w 1                  => k1#1
        settle k1 fail error=one     => ok dead
        send   k1 b                  => conflict body
        look   k1                    => dead attempts=1
        send   k1 a                  => accepted ready again
        send   k1 a                  => in_flight ready attempts=0
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn k9_rerun_gives_new_time_to_what_died_of_age() {
    check(
        "
        queue  orders ttl=1h on_dead=rerun
        send   k1 a                  => accepted ready
        wait   2h
        send   k1 a                  => accepted ready again
        receive w 1                  => k1#1
        settle k1 done               => ok done
        ",
    );
}

#[test]
fn k9_release_forgets_the_dead_one_so_the_send_is_new() {
    check(
        "
        queue  orders max_attempts=1 on_dead=release
        send   k1 a                  => accepted ready
        receive w1 1                 => k1#1
        settle k1 fail error=one     => ok dead
        send   k1 b                  => conflict body
        send   k1 a                  => accepted ready
        show   dead ready sent       => dead=0 ready=1 sent=2
        receive w2 1                 => k1#1
        settle k1@w1 done            => lease_lost leased
        settle k1@w2 done result=x   => ok done
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn k9_release_takes_nothing_away_where_the_send_is_refused() {
    check(
        "
        queue  orders max_attempts=1 on_dead=release retention=48h max_messages=2
        send   k1 a                  => accepted ready
        receive w1 1                 => k1#1
        settle k1 fail error=one     => ok dead
        send   k1 a issued=-3d       => too_old
        look   k1                    => dead attempts=1
        send   k2 a                  => accepted ready
        send   k1 a                  => over_quota messages
        look   k1                    => dead attempts=1
        queue  orders max_attempts=1 on_dead=release
        store  full
        send   k1 a                  => store_full
        claim  k1 f                  => conflict fingerprint
        look   k1                    => dead attempts=1
        redrive r1 all               => store_full
        store  free
        redrive r1 keys=k1           => matched=1 moved=1 done
        ",
    );
}

#[test]
fn k9_a_discarded_key_is_dead_under_pin_and_new_otherwise() {
    check(
        "
        queue  orders
        queue  lenient on_dead=release
        send   @orders  k1 a         => accepted ready
        send   @lenient k1 a         => accepted ready
        discard @orders  k1          => ok
        discard @lenient k1          => ok
        send   @orders  k1 a         => discarded discarded
        send   @lenient k1 a         => accepted ready
        send   @orders  k1 b         => conflict body
        ",
    );
}

#[test]
fn k10_a_forgotten_key_is_new_and_its_history_stays() {
    check(
        "
        queue  orders
        send   k1 a                  => accepted ready
        forget k1                    => invalid State(\"ready\")
        receive w 1                  => k1#1
        forget k1                    => invalid State(\"leased\")
        settle k1 done result=x      => ok done
        forget k1                    => ok
        forget k1                    => no_such_key
        look   k1                    => no_such_key
        wait   1s
        send   k1 b                  => accepted ready
        look   k1 history            => history=forgotten,sent
        show   keys                  => keys=0
        ",
    );
}

#[test]
fn k10_a_replay_is_the_next_generation_under_the_same_id() {
    check(
        "
        queue  orders
        queue  emails
        send   @orders k1 a          => accepted ready
        replay @orders k1 a          => invalid State(\"ready\")
        receive @orders w 1          => k1#1
        settle k1 done result=x emit=emails:receipt:hi   => ok done
        relays                       => emails derive(k1,0,receipt) hi tries=0
        relay  reached               => accepted ready
        replay @orders k1            => invalid BodyGone
        replay @orders k1 b          => refused conflict body
        replay @orders k1 a          => ok
        send   @orders k1 a          => in_flight ready attempts=0
        wait   1s
        receive @orders w 1          => k1#1g1
        settle k1 done result=y emit=emails:receipt:hi   => ok done
        relays                       => emails derive(k1,1,receipt) hi tries=0
        relay  reached               => accepted ready
        send   @orders k1 a          => done y
        look   @orders k1 generation history  => generation=1 history=sent,replayed,leased@w,done@w
        replay @orders k2 a          => no_such_key
        ",
    );
}

#[test]
fn k10_a_queue_that_keeps_bodies_replays_without_one() {
    check(
        "
        queue  orders keep_bodies retention=48h order=group
        send   k1 a group=g
        send   k2 b group=g
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        look   k1 body result        => body=a result=x
        replay k1                    => ok
        receive w 9                  => k1#1g1
        settle k1 done result=y      => ok done
        send   k1 a group=g          => done y
        replay k1 c                  => refused conflict body,group
        replay k1                    => ok
        look   k1 body generation    => body=a generation=2
        receive w 9                  => k1#1g2
        settle k1 done               => ok done
        forget k1                    => ok
        replay k1                    => no_such_key
        receive w 9                  => k2#1
        settle k2 done               => ok done
        queue  orders retention=48h order=group
        replay k2                    => ok
        receive w 9                  => k2#1g1
        settle k2 done               => ok done
        replay k2                    => invalid BodyGone
        wait   48h
        replay k2                    => no_such_key
        ",
    );
}

#[test]
fn k10_only_what_is_done_keeps_its_body_and_a_claim_has_none() {
    check(
        "
        queue  orders keep_bodies
        claim  k1 f                  => fresh
        settle k1 done result=x      => ok done
        replay k1                    => invalid BodyGone
        send   k2 a
        discard k2                   => ok
        look   k2 body               => body=
        replay k2                    => invalid State(\"discarded\")
        ",
    );
}

#[test]
fn k10_a_discarded_key_has_nothing_to_replay() {
    check(
        "
        queue  orders
        send   k1 a                  => accepted ready
        discard k1                   => ok
        replay k1 a                  => invalid State(\"discarded\")
        forget k1                    => ok
        send   k1 a                  => accepted ready
        ",
    );
}

#[test]
fn k11_a_name_longer_than_any_key_is_no_other_key() {
    check(
        "
        queue  orders
        send   k*255 a               => accepted ready
        look   k*255                 => ready attempts=0
        look   k*256                 => no_such_key
        discard k*300                => no_such_key
        redrive r keys=k*300         => invalid KeyLength(300)
        ",
    );
}

#[test]
fn k12_a_duplicate_in_a_batch_harms_no_neighbour() {
    check(
        "
        queue  orders
        send   k0 a
        batch  k1:a k2:b k1:a k0:a k3:c k2:x
            => accepted ready
            | accepted ready
            | in_flight ready attempts=0
            | in_flight ready attempts=0
            | accepted ready
            | conflict body
        receive w 10                          => k0#1 k1#1 k2#1 k3#1
        ",
    );
}

#[test]
fn k12_a_refusal_in_a_batch_harms_no_neighbour() {
    check(
        "
        queue  orders max_body=3 max_messages=3
        batch  k1:a k2:four k3:c k4:d k5:e k1:a
            => accepted ready
            | invalid BodyTooLarge { bytes: 4, max: 3 }
            | accepted ready
            | accepted ready
            | over_quota messages
            | in_flight ready attempts=0
        receive w 10                             => k1#1 k3#1 k4#1
        ",
    );
}
