//! Exactly one answer, tested in the order of DESIGN §3. Each test sets two neighbours against
//! each other: the upper one must win.

use super::script::check;

#[test]
fn invalid_goes_before_no_such_queue() {
    check(
        "
        send   k1 a delay=400d       => invalid Delay(34560000000)
        send   k1 a ttl=0            => invalid TimeToLive
        send   k1 a                  => no_such_queue
        claim  - f                   => invalid MissingKey
        claim  k1 f                  => no_such_queue
        ",
    );
}

#[test]
fn invalid_for_the_queue_goes_before_conflict() {
    check(
        "
        queue  orders max_body=3
        send   k1 a                  => accepted ready
        send   k1 four               => invalid BodyTooLarge { bytes: 4, max: 3 }
        send   k1 b delay=400d       => invalid Delay(34560000000)
        send   k1 b                  => conflict body
        ",
    );
}

#[test]
fn conflict_goes_before_done_dead_parked_and_in_flight() {
    check(
        "
        queue  orders max_attempts=1 on_lost=park
        send   k1 a
        send   k2 a
        send   k3 a
        send   k4 a
        receive w 3                  => k1#1 k2#1 k3#1
        settle k1 done result=x      => ok done
        settle k2 fail error=boom    => ok dead
        settle k3 begin              => ok leased
        wait   1h
        send   k1 a                  => done x
        send   k1 b                  => conflict body
        send   k2 a                  => dead boom
        send   k2 b                  => conflict body
        send   k3 a                  => parked attempts=1
        send   k3 b                  => conflict body
        send   k4 a                  => in_flight ready attempts=0
        send   k4 b                  => conflict body
        ",
    );
}

#[test]
fn conflict_goes_before_too_old_over_quota_and_store_full() {
    check(
        "
        queue  orders retention=48h max_messages=1
        send   k1 a                  => accepted ready
        send   k1 b issued=-3d       => conflict body
        send   k1 b                  => conflict body
        store  full
        send   k1 b                  => conflict body
        ",
    );
}

#[test]
fn every_answer_for_a_known_key_goes_before_too_old() {
    check(
        "
        queue  orders retention=48h max_attempts=1 on_lost=park undated=refuse
        send   k1 a issued=-1d
        send   k2 a issued=-1d
        send   k3 a issued=-1d
        send   k4 a issued=-1d
        receive w 3                  => k1#1 k2#1 k3#1
        settle k1 done result=x      => ok done
        settle k2 fail error=boom    => ok dead
        settle k3 begin              => ok leased
        wait   40h
        send   k1 a issued=-3d       => done x
        send   k2 a issued=-3d       => dead boom
        send   k3 a issued=-3d       => parked attempts=1
        send   k4 a issued=-3d       => in_flight ready attempts=0
        send   k5 a issued=-3d       => too_old
        send   k1 a                  => done x
        send   k5 a                  => undated_key
        ",
    );
}

#[test]
fn every_answer_for_a_known_key_goes_before_over_quota_and_store_full() {
    check(
        "
        queue  orders max_attempts=1 on_lost=park max_messages=3
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        send   k2 a
        send   k3 a
        send   k4 a
        receive w 2                  => k2#1 k3#1
        settle k2 fail error=boom    => ok dead
        settle k3 begin              => ok leased
        wait   1h
        store  full
        send   k1 a                  => done x
        send   k2 a                  => dead boom
        send   k3 a                  => parked attempts=1
        send   k4 a                  => in_flight ready attempts=0
        send   k5 a                  => over_quota messages
        ",
    );
}

#[test]
fn too_old_and_undated_go_before_over_quota() {
    check(
        "
        queue  orders retention=48h max_messages=1 undated=refuse
        send   k1 a issued=-1d       => accepted ready
        send   k2 a issued=-3d       => too_old
        send   k2 a                  => undated_key
        send   k2 a issued=-1d       => over_quota messages
        ",
    );
}

#[test]
fn over_quota_goes_before_store_full_and_store_full_before_accepted() {
    check(
        "
        queue  orders max_messages=1
        send   k1 a                  => accepted ready
        store  full
        send   k2 a                  => over_quota messages
        discard k1                   => ok
        send   k2 a                  => store_full
        store  free
        send   k2 a                  => accepted ready
        ",
    );
}

#[test]
fn a_claim_is_answered_in_the_same_order() {
    check(
        "
        queue  orders retention=48h max_messages=2
        claim  k1 f                  => fresh
        claim  k1 g                  => conflict fingerprint
        claim  k1 f issued=-3d       => in_flight leased attempts=1
        settle k1 done result=x      => ok done
        claim  k1 f issued=-3d       => done x
        claim  k2 f                  => fresh
        claim  k3 f                  => fresh
        claim  k4 f issued=-3d       => too_old
        claim  k4 f                  => over_quota messages
        settle k3 done               => ok done
        store  full
        claim  k4 f                  => store_full
        claim  k2 f                  => in_flight leased attempts=1
        ",
    );
}
