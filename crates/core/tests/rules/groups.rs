//! L6: messages of a group, in order, one unfinished at a time.

use super::script::{check, say_to};
use crate::support::World;

#[test]
fn l6_a_group_is_delivered_in_order_one_unfinished_at_a_time() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a
        send   a2 x group=a
        send   b1 x group=b
        send   n1 x
        send   a3 x group=a
        receive w 10                 => a1#1 b1#1 n1#1
        receive w 10                 => none
        settle a1 done               => ok done
        receive w 10                 => a2#1
        settle a2 done               => ok done
        settle b1 done               => ok done
        receive w 10                 => a3#1
        settle a3 done               => ok done
        show   ready leased done     => ready=0 leased=1 done=4
        ",
    );
}

#[test]
fn l6_ready_messages_that_wait_for_another_of_their_group_are_counted_as_held() {
    check(
        "
        queue  orders order=group on_group_dead=park max_attempts=1
        send   a1 x group=a
        show   ready held            => ready=1 held=0
        send   a2 x group=a
        send   a3 x group=a
        send   b1 x group=b
        send   n1 x
        show   ready held            => ready=5 held=2
        receive w 10                 => a1#1 b1#1 n1#1
        show   ready held            => ready=2 held=2
        send   b2 x group=b
        show   ready held            => ready=3 held=3
        settle b1 done               => ok done
        show   ready held            => ready=3 held=2
        settle a1 fail               => ok dead
        show   ready held dead       => ready=3 held=2 dead=1
        redrive r1 keys=a1           => matched=1 moved=1 done
        show   ready held            => ready=4 held=2
        discard a1                   => ok
        show   ready held            => ready=3 held=1
        purge
        show   ready held            => ready=0 held=0
        ",
    );
}

#[test]
fn l6_those_that_are_held_are_counted_after_a_crash_too() {
    for is_checkpointed in [false, true] {
        let mut world = World::new();
        say_to(&mut world, "queue orders order=group");
        for key in ["a1", "a2", "a3"] {
            say_to(&mut world, &format!("send {key} x group=a"));
        }
        if is_checkpointed {
            world.checkpoint();
        }
        world.crash();
        assert_eq!(say_to(&mut world, "show ready held"), "ready=3 held=2");
        say_to(&mut world, "receive w 1");
        assert_eq!(say_to(&mut world, "show ready held"), "ready=2 held=2");
    }
}

#[test]
fn l6_without_order_groups_hold_nobody() {
    check(
        "
        queue  orders
        send   a1 x group=a
        send   a2 x group=a
        show   ready held            => ready=2 held=0
        receive w 10                 => a1#1 a2#1
        ",
    );
}

#[test]
fn l6_several_of_one_group_may_be_taken_in_order() {
    check(
        "
        queue  orders order=group backoff=1s
        send   a1 x group=a
        send   a2 x group=a
        send   b1 x group=b
        send   a3 x group=a
        send   a4 x group=a
        receive w 3 several          => a1#1 a2#1 a3#1
        receive w 9 several          => b1#1
        settle a1 done               => ok done
        receive w 9 several          => none
        settle a3 release            => ok ready
        settle a2 done               => ok done
        receive w 9 several          => a3#1 a4#1
        ",
    );
}

#[test]
fn l6_several_of_a_group_never_skip_one_that_came_due_late() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a
        send   a2 x group=a
        send   a3 x group=a delay=5s
        send   a4 x group=a
        wait   5s
        receive w 2 several          => a1#1 a2#1
        settle a1 done
        settle a2 done
        receive w 2 several          => a3#1 a4#1
        ",
    );
}

#[test]
fn l6_a_message_in_backoff_holds_its_group() {
    check(
        "
        queue  orders order=group backoff=10s lease=30s
        send   a1 x group=a
        send   a2 x group=a
        receive w 10                 => a1#1
        settle a1 fail               => ok delayed
        receive w 10                 => none
        wait   10s
        receive w 10                 => a1#2
        wait   30s
        receive w 10                 => none
        wait   10s
        receive w 10                 => a1#3
        settle a1 release            => ok ready
        receive w 10                 => a1#3
        settle a1 done               => ok done
        receive w 10                 => a2#1
        ",
    );
}

#[test]
fn l6_a_message_with_an_initial_delay_does_not_hold_its_group() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a delay=10s
        send   a2 x group=a
        receive w 10                 => a2#1
        wait   10s
        receive w 10                 => none
        settle a2 done               => ok done
        receive w 10                 => a1#1
        ",
    );
}

#[test]
fn l6_a_delayed_message_takes_its_old_place_when_it_is_due() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a delay=10s
        send   a2 x group=a
        send   a3 x group=a
        wait   10s
        receive w 10                 => a1#1
        settle a1 done
        receive w 10                 => a2#1
        ",
    );
}

#[test]
fn l6_continue_goes_on_after_a_death() {
    check(
        "
        queue  orders order=group max_attempts=1
        send   a1 x group=a
        send   a2 x group=a
        receive w 10                 => a1#1
        settle a1 fail               => ok dead
        receive w 10                 => a2#1
        ",
    );
}

#[test]
fn l6_park_holds_the_followers_uncharged_until_the_head_is_redriven() {
    check(
        "
        queue  orders order=group max_attempts=1 on_group_dead=park
        send   a1 x group=a
        send   a2 x group=a
        send   b1 x group=b
        receive w 10                 => a1#1 b1#1
        settle a1 fail error=boom    => ok dead
        receive w 10                 => none
        wait   100d
        send   a2 x group=a          => in_flight ready attempts=0
        send   a1 x group=a          => dead boom
        redrive r1 keys=a1           => matched=1 moved=1 done
        receive w 10                 => a1#1
        settle a1 done               => ok done
        receive w 10                 => a2#1
        ",
    );
}

#[test]
fn l6_park_lets_go_when_the_head_is_discarded() {
    check(
        "
        queue  orders order=group max_attempts=1 on_group_dead=park
        send   a1 x group=a
        send   a2 x group=a
        receive w 10                 => a1#1
        settle a1 fail error=boom    => ok dead
        receive w 10                 => none
        discard a1                   => ok
        receive w 10                 => a2#1
        send   a1 x group=a          => discarded boom
        ",
    );
}

#[test]
fn l6_a_parked_message_holds_its_group_until_it_is_resolved() {
    check(
        "
        queue  orders order=group on_lost=park lease=30s
        send   a1 x group=a
        send   a2 x group=a
        receive w 10                 => a1#1
        settle a1 begin              => ok leased
        wait   1h
        receive w 10                 => none
        resolve a1 retry             => ok
        receive w 10                 => a1#2
        settle a1 begin              => ok leased
        wait   1h
        resolve a1 done x            => ok
        receive w 10                 => a2#1
        ",
    );
}

#[test]
fn l5_a_redriven_message_goes_ahead_of_younger_members_of_its_group() {
    check(
        "
        queue  orders order=group max_attempts=1
        send   a1 x group=a
        send   a2 x group=a
        send   a3 x group=a
        receive w 10                 => a1#1
        settle a1 fail               => ok dead
        receive w 10                 => a2#1
        redrive r1 keys=a1           => matched=1 moved=1 done
        receive w 10                 => none
        settle a2 done               => ok done
        receive w 10                 => a1#1
        settle a1 done               => ok done
        receive w 10                 => a3#1
        ",
    );
}

#[test]
fn l6_at_most_once_keeps_the_order_of_a_group() {
    check(
        "
        queue  orders order=group guarantee=at-most-once
        send   a1 x group=a
        send   a2 x group=a
        receive w 10                 => a1#1
        receive w 10                 => a2#1
        receive w 10                 => none
        ",
    );
}

#[test]
fn l6_a_replayed_message_joins_its_group_again() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a
        receive w 10                 => a1#1
        settle a1 done               => ok done
        send   a2 x group=a
        send   a3 x group=a
        replay a1 x group=a          => ok
        receive w 10                 => a1#1g1
        settle a1 done               => ok done
        receive w 10                 => a2#1
        ",
    );
}

#[test]
fn l6_a_member_that_outlives_its_time_lets_the_next_one_go() {
    check(
        "
        queue  orders order=group
        send   a1 x group=a ttl=5s
        send   a2 x group=a
        wait   6s
        receive w 10                 => a2#1
        send   a1 x group=a          => dead its time to live was over
        ",
    );
}

#[test]
fn l6_the_groups_of_two_queues_are_two_groups() {
    check(
        "
        queue  orders order=group
        queue  emails order=group
        send   @orders o1 x group=a
        send   @emails e1 x group=a
        receive @orders w 10         => o1#1
        receive @emails w 10         => e1#1
        ",
    );
}

#[test]
fn l6_a_long_group_stays_in_order() {
    let sends = (0..40).map(|place| format!("send m{place:02} x group=a\n"));
    let sends: String = sends.collect();
    let lives =
        (0..40).map(|place| format!("receive w 10 => m{place:02}#1\nsettle m{place:02} done\n"));
    let lives: String = lives.collect();
    check(&format!(
        "
        queue  orders order=group
        {sends}
        {lives}
        receive w 10                 => none
        "
    ));
}
