//! L1, L4, L7 to L11: who holds a message, for how long, and what becomes of it.

use hapax_core::*;

use super::script::{check, name};
use crate::support::{PARTITIONS, START, recipe};

#[test]
fn l1_a_stale_lease_is_lost_and_harmless() {
    check(
        "
        queue  orders lease=30s backoff=1s
        send   k1 a                  => accepted ready
        receive w1 1                 => k1#1
        wait   31s
        receive w2 1                 => k1#2
        settle k1@w1 done result=x   => lease_lost leased
        settle k1@w1 fail            => lease_lost leased
        settle k1@w1 release         => lease_lost leased
        settle k1@w1 extend          => lease_lost leased
        settle k1@w1 begin           => lease_lost leased
        settle k1@w1 save p x        => lease_lost leased
        send   k1 a                  => in_flight leased attempts=2
        settle k1@w2 done result=y   => ok done
        settle k1@w1 done result=x   => lease_lost done y
        settle k1@w1 extend          => lease_lost done y
        send   k1 a                  => done y
        ",
    );
}

#[test]
fn l1_a_lease_past_its_deadline_that_nobody_superseded_still_settles() {
    check(
        "
        queue  orders lease=30s backoff=1s
        send   k1 a
        send   k2 a
        send   k3 a
        send   k4 a
        receive w 4                  => k1#1 k2#1 k3#1 k4#1
        later  1h
        & settle k1 done result=x    => ok done
        & settle k2 extend           => ok leased in=30s
        & settle k3 fail             => ok delayed in=1s
        & settle k4 release          => ok ready
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn l1_a_lease_past_its_deadline_begins_nothing_before_it_is_extended() {
    check(
        "
        queue  orders lease=30s backoff=1s on_lost=park
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 3                  => k1#1 k2#1 k3#1
        settle k3 begin
        later  30s
        & settle k1 begin            => lease_lost leased
        & settle k1 save p x         => ok leased in=0
        & settle k2 begin            => lease_lost leased
        & settle k2 extend           => ok leased in=30s
        & settle k2 begin            => ok leased in=30s
        & settle k3 begin            => ok leased in=0
        wait   1s
        send   k1 a                  => in_flight ready attempts=1
        send   k2 a                  => in_flight leased attempts=1
        send   k3 a                  => parked attempts=1
        ",
    );
}

#[test]
fn l8_a_claim_past_its_deadline_begins_nothing() {
    check(
        "
        queue  orders on_lost=park
        claim  k f                   => fresh in=30s
        later  30s
        & settle k begin             => lease_lost leased
        & settle k done result=x     => ok done
        claim  k f                   => done x
        ",
    );
}

#[test]
fn l1_a_lease_that_was_lost_still_ends_what_nobody_else_took() {
    check(
        "
        queue  orders lease=30s backoff=1s
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 3                  => k1#1 k2#1 k3#1
        wait   30s
        settle k1@w extend           => lease_lost delayed
        settle k1@w save p x         => lease_lost delayed
        settle k1@w done result=x    => ok done
        wait   1s
        settle k2@w done result=y    => ok done
        settle k3@w release          => ok ready
        settle k3@w done             => lease_lost ready
        receive w2 10                => k3#1
        send   k1 a                  => done x
        send   k2 a                  => done y
        show   lost done             => lost=3 done=2
        ",
    );
}

#[test]
fn l1_l8_a_worker_that_comes_back_resolves_its_parked_message_itself() {
    check(
        "
        queue  orders lease=30s on_lost=park max_attempts=3
        send   k1 a
        send   k2 a
        receive w 2                  => k1#1 k2#1
        settle k1 begin              => ok leased
        settle k2 begin              => ok leased
        wait   31s
        send   k1 a                  => parked attempts=1
        settle k1@w done result=x    => ok done
        send   k1 a                  => done x
        resolve k2 retry             => ok
        settle k2@w done             => lease_lost ready
        ",
    );
}

#[test]
fn l8_no_failure_of_a_lease_that_ended_takes_a_message_out_of_parked() {
    check(
        "
        queue  orders lease=30s on_lost=park
        send   k1 a
        receive w 1                  => k1#1
        settle k1 begin              => ok leased
        wait   31s
        settle k1 fail error=slow    => lease_lost parked
        settle k1 fail error=slow dead  => lease_lost parked
        settle k1 release            => lease_lost parked
        settle k1 park error=slow    => lease_lost parked
        settle k1 extend             => lease_lost parked
        settle k1 begin              => lease_lost parked
        settle k1 save a b           => lease_lost parked
        show   parked failed         => parked=1 failed=0
        receive w2 1                 => none
        settle k1 done result=x      => ok done
        send   k1 a                  => done x
        ",
    );
}

#[test]
fn l8_park_says_that_it_is_in_doubt_and_the_message_waits_for_somebody_who_knows() {
    check(
        "
        queue  orders lease=30s on_lost=park
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 3                  => k1#1 k2#1 k3#1
        settle k1 begin              => ok leased
        settle k2 begin              => ok leased
        settle k3 begin              => ok leased
        settle k1 park error=killed  => ok parked
        settle k2 park error=killed  => ok parked
        settle k3 park error=killed  => ok parked
        settle k1 park error=killed  => ok parked
        settle k1 fail               => lease_lost parked
        settle k1 release            => lease_lost parked
        settle k1 extend             => lease_lost parked
        send   k1 a                  => parked attempts=1
        show   parked failed lost    => parked=3 failed=0 lost=0
        look   k1 history error      => history=sent,leased@w,begun@w,parked:killed error=killed
        wait   1h
        receive w 9                  => none
        settle k1 done result=x      => ok done
        settle k1 done result=x      => ok done
        send   k1 a                  => done x
        resolve k2 done y            => ok
        resolve k3 retry             => ok
        settle k3 done               => lease_lost ready
        receive w 9                  => k3#2
        ",
    );
}

#[test]
fn l8_park_with_dead_parks_what_was_begun_and_ends_everything_else() {
    check(
        "
        queue  careful on_lost=park
        queue  orders
        send   @careful k1 a
        send   @careful k2 a
        send   @orders k3 a
        receive @careful w 2         => k1#1 k2#1
        receive @orders w 1          => k3#1
        settle k1 begin              => ok leased
        settle k3 begin              => ok leased
        settle k1 park dead error=refused  => ok parked
        settle k2 park dead error=refused  => ok dead
        settle k3 park dead error=refused  => ok dead
        settle k2 park dead error=refused  => ok dead
        settle k2 fail dead error=refused  => lease_lost dead
        settle k1 fail dead error=refused  => lease_lost parked
        show   @careful parked dead failed  => parked=1 dead=1 failed=1
        look   @careful k2 history error  => history=sent,leased@w,failed:refused@w,dead:refused \
error=refused
        claim  @careful c1 f         => fresh
        settle c1 park dead error=refused  => ok dead
        claim  @careful c2 f         => fresh
        settle c2 begin              => ok leased
        settle c2 park dead error=refused  => ok parked
        settle k1 done result=x      => ok done
        ",
    );
}

#[test]
fn l8_park_of_what_was_not_begun_waits_as_long_as_it_says() {
    check(
        "
        queue  careful on_lost=park backoff=1s
        send   k1 a
        receive w 1                  => k1#1
        settle k1 park delay=1h      => ok delayed in=1h
        settle k1 park delay=2h      => ok delayed in=1h
        ",
    );
}

#[test]
fn l8_park_is_a_failure_of_what_was_not_begun_or_where_the_queue_does_not_park() {
    check(
        "
        queue  careful on_lost=park backoff=1s max_attempts=2
        queue  orders backoff=1s max_attempts=2
        send   @careful k1 a
        send   @orders k2 a
        receive @careful w 1         => k1#1
        receive @orders w 1          => k2#1
        settle k2 begin              => ok leased
        settle k1 park error=one     => ok delayed in=1s
        settle k1 park error=one     => ok delayed in=1s
        settle k1 fail error=one     => lease_lost delayed
        settle k2 park error=two     => ok delayed
        look   @careful k1 history   => history=sent,leased@w,failed:one@w
        show   @careful failed parked  => failed=1 parked=0
        wait   2s
        receive @careful w 1         => k1#2
        settle k1 park error=one     => ok dead
        settle k1 park error=one     => ok dead
        send   @careful k1 a         => dead one
        ",
    );
}

#[test]
fn l1_no_two_partitions_of_a_broker_give_out_the_same_fence() {
    let mut seen = std::collections::BTreeSet::new();
    for partition in 0..PARTITIONS {
        let mut machine =
            Machine::with_bounds(partition, PARTITIONS, 4, 7, recipe(), Bounds::default());
        let mut batch = Batch::default();
        let stamp = Stamp { at: Time(START), random: 1 };
        machine.advance(stamp.at, &mut Vec::new());
        batch.begin(stamp.at);
        let queue = name("orders");
        let configure =
            Configure { queue: queue.clone(), config: Config::default(), if_version: None };
        machine.execute(stamp, Command::Configure(Box::new(configure)), &mut batch);
        for number in 0..30 {
            let content = Content::builder(&format!("k{number}")).build(b"").unwrap();
            let send = SendMessage::new(&recipe(), queue.clone(), content);
            machine.absent(&Need::Point(send.digest));
            machine.execute(stamp, Command::Send(send), &mut batch);
        }
        let mut last = Fence(0);
        let mut note = |fence: Fence| {
            assert!(fence > last, "fences of a partition grow");
            assert_eq!(fence.epoch(), 4);
            assert!(seen.insert(fence), "{fence:?} is another partition's");
            last = fence;
        };
        for max in [1, 7, 3] {
            let receive = Receive {
                queue: queue.clone(),
                max,
                lease_ms: None,
                worker: "w".into(),
                receive_id: None,
                several_per_group: false,
            };
            let outcome = machine.execute(stamp, Command::Receive(receive), &mut batch);
            let Outcome::Received(deliveries) = outcome else { panic!("{outcome:?}") };
            assert_eq!(deliveries.len(), max as usize);
            deliveries.iter().for_each(|delivery| note(delivery.lease.fence));
            let content = Content::builder(&format!("c{max}")).build(b"").unwrap();
            let claim = Claim::new(&recipe(), queue.clone(), content, recipe().own("f"));
            machine.absent(&Need::Point(claim.digest));
            let outcome = machine.execute(stamp, Command::Claim(Box::new(claim)), &mut batch);
            let Outcome::Claimed(Answer::Fresh(fresh)) = outcome else { panic!("{outcome:?}") };
            note(fresh.lease.fence);
        }
    }
}

#[test]
fn l1_a_lease_of_a_message_that_is_gone_is_lost() {
    check(
        "
        queue  orders retention=48h
        send   k1 a
        receive w1 1                 => k1#1
        settle k1 done result=x      => ok done
        settle k1@w1 extend          => lease_lost done x
        wait   48h
        settle k1@w1 extend          => lease_lost
        settle k1@w1 done            => lease_lost
        send   k1 a                  => accepted ready
        settle k1@w1 done            => lease_lost ready
        discard k1                   => ok
        settle k1@w1 done            => lease_lost discarded
        ",
    );
}

#[test]
fn l4_a_failure_counts_and_goes_to_backoff_within_the_queues_bounds() {
    check(
        "
        queue  orders backoff_min=2s backoff_max=2s max_attempts=3
        send   k1 a
        receive w 1                  => k1#1
        settle k1 fail error=one     => ok delayed in=2s
        receive w 1                  => none
        send   k1 a                  => in_flight delayed attempts=1 in=2s
        wait   1999ms
        receive w 1                  => none
        wait   1ms
        receive w 1                  => k1#2
        settle k1 fail error=two     => ok delayed in=2s
        wait   2s
        receive w 1                  => k1#3
        settle k1 fail error=three   => ok dead
        send   k1 a                  => dead three
        show   dead failed           => dead=1 failed=3
        ",
    );
}

#[test]
fn l4_a_failure_may_bring_its_own_delay_or_be_final() {
    check(
        "
        queue  orders
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 3                         => k1#1 k2#1 k3#1
        settle k1 fail delay=5m             => ok delayed in=5m
        settle k2 fail delay=0              => ok delayed in=0
        settle k3 fail error=never dead     => ok dead
        receive w 3                         => k2#2
        wait   5m
        receive w 3                         => k1#2 k2#3
        send   k3 a                         => dead never
        ",
    );
}

#[test]
fn l4_a_lost_lease_counts_an_attempt_and_goes_to_backoff() {
    check(
        "
        queue  orders lease=30s backoff=10s max_attempts=2
        send   k1 a
        receive w 1                  => k1#1
        wait   30s
        send   k1 a                  => in_flight delayed attempts=1 in=10s
        look   k1 losses             => losses=1
        wait   10s
        receive w 1                  => k1#2
        wait   30s
        send   k1 a                  => dead its lease was lost
        show   dead lost             => dead=1 lost=2
        ",
    );
}

#[test]
fn l4_a_release_is_uncounted_and_returns_to_its_old_place() {
    check(
        "
        queue  orders max_attempts=1
        send   k1 a
        send   k2 a
        receive w 1                  => k1#1
        settle k1 release            => ok ready
        receive w 1                  => k1#1
        settle k1 release            => ok ready
        send   k1 a                  => in_flight ready attempts=0
        receive w 2                  => k1#1 k2#1
        settle k1 fail               => ok dead
        ",
    );
}

#[test]
fn l4_an_extended_lease_lasts_until_its_new_deadline() {
    check(
        "
        queue  orders lease=30s backoff=1s
        send   k1 a
        receive w1 1                 => k1#1
        wait   29s
        settle k1 extend lease=2m    => ok leased in=2m
        wait   119s
        settle k1 extend             => ok leased in=30s
        wait   29s
        settle k1 done               => ok done
        ",
    );
}

#[test]
fn l7_an_at_least_once_queue_takes_messages_without_keys_and_remembers_nothing_of_them() {
    check(
        "
        queue  orders guarantee=at-least-once
        send   - a                   => accepted ready
        send   - a                   => accepted ready
        send   k1 b                  => accepted ready
        send   k1 b                  => in_flight ready attempts=0
        receive w 10                 => -a#1 -a#1 k1#1
        settle -a done result=x      => ok done
        settle -a done result=x      => lease_lost
        settle k1 done result=x      => ok done
        settle k1 done result=x      => ok done
        send   k1 b                  => done x
        show   keys leased           => keys=1 leased=1
        ",
    );
}

#[test]
fn l7_a_message_without_a_key_has_a_whole_life_too() {
    check(
        "
        queue  orders guarantee=at-least-once max_attempts=2 backoff=1s
        send   - a delay=5s          => accepted delayed
        wait   5s
        receive w 10                 => -a#1
        settle -a save step one      => ok leased
        settle -a fail error=one     => ok delayed
        wait   1s
        receive w 10                 => -a#2{step=one}
        settle -a fail error=two     => ok dead
        browse dead                  => -a
        redrive r1 all
        redriven r1                  => matched=1 moved=1 done
        receive w 10                 => -a#1{step=one}
        settle -a done               => ok done
        show   ready leased dead keys => ready=0 leased=0 dead=0 keys=0
        ",
    );
}

#[test]
fn l7_every_other_queue_needs_a_key() {
    check(
        "
        queue  orders
        send   - a                   => invalid MissingKey
        queue  once guarantee=at-most-once
        send   @once - a             => invalid MissingKey
        ",
    );
}

#[test]
fn l7_at_most_once_is_done_as_it_is_handed_out() {
    check(
        "
        queue  orders guarantee=at-most-once
        send   k1 a                  => accepted ready
        receive w 10                 => k1#1
        send   k1 a                  => done
        receive w 10                 => none
        settle k1 done result=x      => ok done
        settle k1 fail               => lease_lost done
        wait   1h
        receive w 10                 => none
        show   leased done           => leased=0 done=1
        claim  k2 f                  => invalid State(\"in an at-most-once queue\")
        ",
    );
}

#[test]
fn l8_a_begun_message_whose_lease_is_lost_is_parked_until_somebody_resolves_it() {
    check(
        "
        queue  orders on_lost=park lease=30s
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 2                  => k1#1 k2#1
        settle k1 begin              => ok leased
        settle k1 begin              => ok leased
        settle k2 begin              => ok leased
        wait   1h
        send   k1 a                  => parked attempts=1
        browse parked                => k1 k2
        show   parked lost           => parked=2 lost=2
        receive w 10                 => k3#1
        resolve k1 done x            => ok
        resolve k2 retry             => ok
        resolve k3 retry             => invalid State(\"leased\")
        resolve k1 retry             => invalid State(\"done\")
        resolve k9 retry             => no_such_key
        send   k1 a                  => done x
        receive w 10                 => k2#2
        settle k2 done               => ok done
        look   k1 history => history=sent,leased@w,begun@w,lost@w,parked,resolved:done,done@w
        ",
    );
}

#[test]
fn l8_only_what_was_begun_parks_and_only_where_the_queue_says_so() {
    check(
        "
        queue  careful on_lost=park lease=30s backoff=1s
        queue  plain lease=30s backoff=1s
        send   @careful k1 a
        send   @plain   k2 a
        receive @careful w 1         => k1#1
        receive @plain   w 1         => k2#1
        settle k2 begin              => ok leased
        wait   40s
        receive @careful w 1         => k1#2
        receive @plain   w 1         => k2#2
        settle k1 begin              => ok leased
        settle k1 fail               => ok delayed
        ",
    );
}

#[test]
fn l9_saved_points_reach_the_next_attempt() {
    check(
        "
        queue  orders backoff=1s lease=30s
        send   k1 a
        receive w 1                  => k1#1
        settle k1 save charged yes   => ok leased
        settle k1 save mailed no     => ok leased
        settle k1 save mailed yes    => ok leased
        settle k1 save mailed yes    => ok leased
        wait   40s
        receive w 1                  => k1#2{charged=yes,mailed=yes}
        settle k1 release            => ok ready
        receive w 1                  => k1#2{charged=yes,mailed=yes}
        look   k1 points             => points={charged=yes,mailed=yes}
        settle k1 done               => ok done
        ",
    );
}

#[test]
fn l9_points_are_bounded_in_number_and_size() {
    let saves = (0..64).map(|point| format!("settle k1 save p{point} x => ok leased\n"));
    let saves: String = saves.collect();
    check(&format!(
        "
        queue  orders
        send   k1 a
        send   k2 a
        receive w 2                  => k1#1 k2#1
        {saves}
        settle k1 save p64 x         => invalid Points
        settle k1 save p63 y         => ok leased
        settle k2 save big x*65534   => invalid Points
        settle k2 save big x*65533   => ok leased
        settle k2 save b x           => invalid Points
        settle k2 save big x*65534   => invalid Points
        settle k2 save - x           => invalid PointName
        settle k2 save n*129 x       => invalid PointName
        "
    ));
}

#[test]
fn l10_a_repeated_receive_gets_the_same_messages_and_leases() {
    check(
        "
        queue  orders lease=20m
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 2 id=r1            => k1#1 k2#1
        receive w 2 id=r1            => k1#1= k2#1=
        settle k1 done               => ok done
        receive w 2 id=r1            => k2#1=
        wait   299s
        receive w 2 id=r1            => k2#1=
        wait   1s
        receive w 2 id=r1            => k3#1
        receive w 2 id=r1            => k3#1=
        receive w 2 id=r2            => none
        ",
    );
}

#[test]
fn l10_a_repeated_receive_gets_no_lease_that_was_lost() {
    check(
        "
        queue  orders lease=30s backoff=1s
        send   k1 a
        receive w 1 id=r1            => k1#1
        wait   40s
        receive w 1 id=r1            => k1#2
        receive w 1                  => none
        receive w 1 id=r1            => k1#2=
        ",
    );
}

#[test]
fn l10_receives_that_found_nothing_are_not_remembered() {
    check(
        "
        queue  orders
        receive w 1 id=r1            => none
        send   k1 a
        receive w 1 id=r1            => k1#1
        pause
        receive w 1 id=r1            => k1#1=
        receive w 1 id=r2            => none
        ",
    );
}

#[test]
fn l11_a_prefetched_message_is_given_back_uncharged() {
    check(
        "
        queue  orders max_attempts=1
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 3                  => k1#1 k2#1 k3#1
        settle k2 release            => ok ready
        settle k3 release            => ok ready
        look   k3 attempts losses    => attempts=0 losses=0
        receive w 3                  => k2#1 k3#1
        ",
    );
}
