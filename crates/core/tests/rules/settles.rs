//! L2 and L3: settling is idempotent, and a `done` carries its follow-ups with it.

use hapax_core::*;

use super::script::{check, name};
use crate::support::World;

#[test]
fn l2_done_again_is_done_with_the_first_result() {
    check(
        "
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done result=x      => ok done
        settle k1 done result=x      => ok done
        settle k1 done result=y      => ok done
        send   k1 a                  => done x
        settle k1 fail               => lease_lost done x
        settle k1 release            => lease_lost done x
        show   done failed           => done=1 failed=0
        ",
    );
}

#[test]
fn l2_fail_again_gets_the_same_answer_and_counts_once() {
    check(
        "
        queue  orders backoff=10s
        send   k1 a
        receive w1 1                 => k1#1
        settle k1 fail error=one     => ok delayed in=10s
        wait   4s
        settle k1 fail error=one     => ok delayed in=6s
        settle k1 release            => lease_lost delayed
        settle k1 done               => lease_lost delayed
        send   k1 a                  => in_flight delayed attempts=1
        wait   6s
        receive w2 1                 => k1#2
        settle k1@w1 fail error=one  => ok delayed
        settle k1@w1 done            => lease_lost leased
        settle k1@w2 done            => ok done
        show   failed done           => failed=1 done=1
        ",
    );
}

#[test]
fn l2_fail_to_the_dead_again_is_dead_again() {
    check(
        "
        queue  orders max_attempts=1
        send   k1 a
        receive w1 1                 => k1#1
        settle k1 fail error=one     => ok dead
        settle k1 fail error=one     => ok dead
        redrive r1 keys=k1           => matched=1 moved=1 done
        settle k1@w1 fail error=one  => ok dead
        send   k1 a                  => in_flight ready attempts=0
        ",
    );
}

#[test]
fn l2_release_again_is_released_again() {
    check(
        "
        queue  orders
        send   k1 a
        receive w1 1                 => k1#1
        settle k1 release            => ok ready
        settle k1 release            => ok ready
        settle k1 fail               => lease_lost ready
        receive w2 1                 => k1#1
        settle k1@w1 release         => ok ready
        send   k1 a                  => in_flight leased attempts=1
        settle k1@w2 done            => ok done
        settle k1@w1 release         => lease_lost done
        ",
    );
}

#[test]
fn l3_emits_are_durable_with_the_done_and_carry_derived_keys() {
    check(
        "
        queue  emails
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done result=x emit=emails:receipt:hi emit=emails:thanks:yo emit=emails:n:z:own
            => ok done
        relays
            => emails derive(k1,0,receipt) hi tries=0
            ; emails derive(k1,0,thanks) yo tries=0
            ; emails own z tries=0
        settle k1 done result=x emit=emails:receipt:hi  => ok done
        relay  reached               => accepted ready
        relay  reached               => accepted ready
        relay  reached               => accepted ready
        relays                       => none
        show   @emails ready         => ready=3
        ",
    );
}

#[test]
fn l3_an_emit_whose_confirmation_is_lost_reaches_its_queue_once() {
    check(
        "
        queue  emails
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:receipt:hi  => ok done
        relay  unconfirmed           => accepted ready
        relay  unconfirmed           => in_flight ready attempts=0
        receive @emails v 1          => derive(k1,0,receipt)#1
        settle derive(k1,0,receipt) done result=sent  => ok done
        relay  reached               => done sent
        relays                       => none
        ",
    );
}

#[test]
fn l3_an_emit_that_did_not_reach_its_queue_stays() {
    check(
        "
        queue  emails
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:receipt:hi::5s  => ok done
        relay  failed                => ok
        relay  failed                => ok
        relays                       => emails derive(k1,0,receipt) hi tries=2
        relay  reached               => accepted delayed
        relays                       => none
        ",
    );
}

#[test]
fn l3_a_done_whose_emits_cannot_be_taken_changes_nothing() {
    check(
        "
        queue  emails max_body=3
        queue  grouped scope=group
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:ok:hi emit=nowhere:n:hi  => no_such_queue emit=1
        settle k1 done emit=emails:n:four
            => invalid BodyTooLarge { bytes: 4, max: 3 }
        settle k1 done emit=emails::hi                      => invalid Emits
        settle k1 done emit=emails:n:hi::400d               => invalid Delay(34560000000)
        settle k1 done emit=grouped:n:hi                    => invalid MissingGroup
        relays                       => none
        send   k1 a                  => in_flight leased attempts=1
        settle k1 done emit=emails:ok:hi                    => ok done
        ",
    );
}

#[test]
fn l3_a_keyless_parent_derives_from_its_id() {
    check(
        "
        queue  emails
        queue  orders guarantee=at-least-once
        send   - a
        receive w 1                  => -a#1
        settle -a done emit=emails:receipt:hi  => ok done
        relay  reached               => accepted ready
        ",
    );
}

#[test]
fn l3_emits_are_tried_again_with_growing_pauses() {
    let mut world = World::new();
    let config = Config::default();
    let configure = Configure { queue: name("orders"), config, if_version: None };
    world.run(Command::Configure(configure));
    let content = Content::builder("k1").build(b"a").unwrap();
    world.run(Command::Send(Send::new(name("orders"), content)));
    let Outcome::Received(deliveries) = world.run(Command::Receive(Receive {
        queue: name("orders"),
        max: 1,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    })) else {
        panic!("a receive is answered by deliveries");
    };
    let content = Content::builder("").build(b"hi").unwrap();
    let emit = Emit { queue: name("orders"), name: "next".into(), content, delay_ms: None };
    let verb = Verb::Done { result: None, emits: vec![emit] };
    let id = world.machine.relays().count() as u64;
    world.run(Command::Settle(Settle { lease: deliveries[0].lease, verb }));
    let told = |world: &mut World| {
        let effects = std::mem::take(&mut world.effects);
        effects.iter().filter(|effect| matches!(effect, Effect::Relay(_))).count()
    };
    assert_eq!(told(&mut world), 1, "an emit is told as soon as it is durable");
    for pause in [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
        world.run(Command::Relayed { id, reached: false });
        world.wait(pause - 1);
        assert_eq!(told(&mut world), 0, "not before {pause} ms");
        world.wait(1);
        assert_eq!(told(&mut world), 1, "after {pause} ms");
    }
    world.run(Command::Relayed { id, reached: true });
    world.run(Command::Relayed { id, reached: false });
    world.wait(60_000);
    assert_eq!((told(&mut world), world.machine.relays().count()), (0, 0));
}
