//! K13: a life without incident is told from its record, incidents are kept, and duplicates are
//! counted as long as the process lives.

use super::script::{ALIVE, check, check_in};

#[test]
fn k13_an_uneventful_life_is_told_from_its_record() {
    check(
        "
        queue  orders retention=48h
        send   k1 a
        look   k1 history            => history=sent
        wait   3s
        receive w1 1                 => k1#1
        look   k1 history worker     => history=sent,leased@w1 worker=w1
        wait   2s
        settle k1 done result=x      => ok done
        look   k1 history            => history=sent,leased@w1,done@w1
        look   k1 took worker attempts  => leased=+3s finished=+5s worker=w1 attempts=1
        look   k1 remembered generation losses result
            => remembered in=2d generation=0 losses=0 result=x
        ",
    );
}

#[test]
fn k13_incidents_are_kept_in_order() {
    check(
        "
        queue  orders backoff=1s lease=30s max_attempts=3
        send   k1 a
        wait   1s
        receive w1 1                 => k1#1
        wait   1s
        settle k1 save charged yes   => ok leased
        wait   1s
        settle k1 fail error=boom    => ok delayed
        wait   1s
        receive w2 1                 => k1#2{charged=yes}
        wait   31s
        receive w3 1                 => k1#3{charged=yes}
        wait   1s
        settle k1 done               => ok done
        look   k1 history
            => history=sent,saved:charged@w1,failed:boom@w1,lost@w2,leased@w3,done@w3
        look   k1 attempts losses error  => attempts=3 losses=1 error=boom
        ",
    );
}

#[test]
fn k13_the_lease_that_is_told_is_the_last_one() {
    check(
        "
        queue  orders backoff=1s lease=30s
        send   k1 a
        wait   1s
        receive wa 1                 => k1#1
        settle k1 fail error=boom    => ok delayed
        wait   2s
        receive wb 1                 => k1#2
        settle k1 fail error=bang    => ok delayed
        look   k1 history            => history=sent,failed:boom@wa,leased@wb,failed:bang@wb
        wait   5s
        receive wc 1                 => k1#3
        look   k1 history
            => history=sent,failed:boom@wa,failed:bang@wb,leased@wc
        wait   1s
        settle k1 done               => ok done
        look   k1 took               => leased=+8s finished=+9s
        ",
    );
}

#[test]
fn k13_history_is_bounded_to_the_newest_64() {
    let lives = "receive w 1\nsettle k1 fail error=e delay=0\n".repeat(70);
    check(&format!(
        "
        queue  orders max_attempts=100
        send   k1 a
        {lives}
        look   k1 events attempts    => events=64 attempts=70
        receive w 1                  => k1#71
        settle k1 done               => ok done
        look   k1 events attempts    => events=64 attempts=71
        "
    ));
}

#[test]
fn k13_duplicates_are_counted_and_a_storm_is_one_event() {
    check_in(
        &ALIVE,
        "
        queue  orders
        send   k1 a
        send   k1 a                  => in_flight ready attempts=0
        send   k1 a                  => in_flight ready attempts=0
        look   k1 duplicates everything => duplicates=2 everything=sent,duplicate:2
        wait   1s
        receive w 1                  => k1#1
        wait   1s
        settle k1 done               => ok done
        wait   1s
        send   k1 a                  => done
        send   k1 b                  => conflict body
        look   k1 duplicates everything => duplicates=3 everything=sent,leased@w,done@w,duplicate:3
        show   duplicates sent done  => duplicates=3 sent=1 done=1
        ",
    );
}

#[test]
fn k13_a_finished_keys_duplicates_survive_a_checkpoint() {
    check_in(
        &ALIVE,
        "
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done               => ok done
        checkpoint
        wait   1s
        send   k1 a                  => done
        checkpoint
        crash
        look   k1 duplicates everything => duplicates=1 everything=sent,leased@w,done@w,duplicate:1
        ",
    );
}

#[test]
fn k13_counters_survive() {
    check(
        "
        queue  orders max_attempts=1 lease=30s retention=48h
        send   k1 a
        send   k2 a
        send   k3 a
        send   k4 a
        receive w 3                  => k1#1 k2#1 k3#1
        settle k1 done               => ok done
        settle k2 fail               => ok dead
        wait   30s
        show   ready leased dead keys sent done failed lost
            => ready=1 leased=0 dead=2 keys=1 sent=4 done=1 failed=1 lost=1
        wait   60h
        show   keys                  => keys=0
        ",
    );
}
