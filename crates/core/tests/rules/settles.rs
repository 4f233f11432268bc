//! L2 and L3: settling is idempotent, and a `done` carries its follow-ups with it.

use hapax_core::*;

use super::script::{check, name};
use crate::support::{World, recipe};

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
fn l3_two_emits_of_one_done_under_one_key_are_refused() {
    check(
        "
        queue  emails
        queue  bills
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hi emit=emails:m:hi emit=emails:n:ho
            => invalid SameEmits(0, 2)
        settle k1 done emit=emails:n:hi:k9 emit=emails:m:hi:k9
            => invalid SameEmits(0, 1)
        relays                       => none
        settle k1 done emit=emails:n:hi:k9 emit=bills:n:hi:k9 emit=emails:n:hi
            => ok done
        ",
    );
}

#[test]
fn l3_the_name_of_an_emit_is_bounded() {
    let mut world = World::new();
    let lease = leased(&mut world);
    let emit = |length: usize| {
        let content = Content::builder("").build(b"hi").unwrap();
        vec![Emit::new(name("orders"), &"n".repeat(length), content)]
    };
    let settle = |length| {
        let verb = Verb::Done { result: None, emits: emit(length) };
        Command::Settle(Settle { lease, verb })
    };
    let refused = world.run(settle(256));
    assert_eq!(refused, Outcome::Settled(Settled::Invalid(Invalid::EmitName(256))));
    let taken = world.run(settle(255));
    assert!(matches!(taken, Outcome::Settled(Settled::Ok { .. })), "{taken:?}");
}

#[test]
fn l3_a_result_whose_content_type_is_too_long_is_refused() {
    let mut world = World::new();
    let lease = leased(&mut world);
    let content_type = Some("x".repeat(256).into());
    let result = Some(Blob { content_type, body: bytes::Bytes::new() });
    let verb = Verb::Done { result, emits: Vec::new() };
    let refused = world.run(Command::Settle(Settle { lease, verb }));
    assert_eq!(refused, Outcome::Settled(Settled::Invalid(Invalid::ContentTypeLength(256))));
}

#[test]
fn k1_emits_of_parents_in_two_queues_or_groups_do_not_take_each_others_keys() {
    check(
        "
        queue  emails
        queue  payments
        queue  shipping
        queue  grouped scope=group
        send   @payments k1 a
        send   @shipping k1 a
        send   @grouped k1 a group=g
        send   @grouped k1 a group=h
        receive @payments w1 1       => k1#1
        settle k1@w1 done emit=emails:mail:payments  => ok done
        receive @shipping w2 1       => k1#1
        settle k1@w2 done emit=emails:mail:shipping  => ok done
        receive @grouped w3 1        => k1#1
        settle k1@w3 done emit=emails:mail:g  => ok done
        receive @grouped w4 1        => k1#1
        settle k1@w4 done emit=emails:mail:h  => ok done
        relays => emails derive(payments,k1,0,mail) payments tries=0
            ; emails derive(shipping,k1,0,mail) shipping tries=0
            ; emails derive(grouped/g,k1,0,mail) g tries=0
            ; emails derive(grouped/h,k1,0,mail) h tries=0
        relay  reached               => accepted ready
        relay  reached               => accepted ready
        relay  reached               => accepted ready
        relay  reached               => accepted ready
        show   @emails ready         => ready=4
        ",
    );
}

#[test]
fn l3_an_emit_keeps_its_time_to_live_and_its_own_fingerprint() {
    check(
        "
        queue  emails
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hi:k9::1h:mine  => ok done
        relay  unconfirmed           => accepted ready
        send   @emails k9 other fp=mine
            => in_flight ready attempts=0 under an id nobody was given
        send   @emails k9 hi         => conflict fingerprint
        relay  reached               => in_flight ready attempts=0
        wait   1h
        send   @emails k9 other fp=mine  => dead its time to live was over
        ",
    );
}

#[test]
fn l3_an_emit_that_its_queue_refuses_for_good_is_dead_there() {
    check(
        "
        queue  emails max_body=9
        queue  orders max_attempts=1
        send   k1 a
        send   k2 a
        receive w 2                  => k1#1 k2#1
        settle k1 done emit=emails:n:too-long-a:k9  => invalid BodyTooLarge { bytes: 10, max: 9 }
        settle k1 done emit=emails:n:hello:k9  => ok done
        queue  emails max_body=3
        relay  reached               => invalid BodyTooLarge { bytes: 5, max: 3 }
        relays                       => emails k9 hello tries=0 refused
        queue  emails max_body=9
        relay  unconfirmed
            => dead its queue refused it: the body has 5 bytes, the queue allows 3
        relays                       => emails k9 hello tries=0 refused
        relay  reached
            => dead its queue refused it: the body has 5 bytes, the queue allows 3
        relays                       => none
        browse @emails dead          => k9
        show   @emails ready dead sent  => ready=0 dead=1 sent=1
        redrive @emails r1 keys=k9   => matched=1 moved=1 done
        receive @emails v 1          => k9#1
        ",
    );
}

#[test]
fn l3_an_emit_whose_key_is_another_messages_is_dead_under_a_key_of_its_own() {
    check(
        "
        queue  emails on_dead=rerun
        queue  orders
        send   @emails k9 other      => accepted ready
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hello:k9  => ok done
        relay  reached               => conflict body
        relay  reached               => conflict body
        relay  unconfirmed => dead its queue refused it: another message has its key
        relay  unconfirmed => dead its queue refused it: another message has its key
        relay  reached     => dead its queue refused it: another message has its key
        relays                       => none
        show   @emails ready dead sent  => ready=1 dead=1 sent=2
        receive @emails v 9          => k9#1
        redrive @emails r1 all
        show   @emails ready dead    => ready=1 dead=0
        settle k9 done               => ok done
        send   @emails k9 other      => done
        ",
    );
}

#[test]
fn l3_a_refused_emit_waits_while_its_queue_is_gone_or_full() {
    check(
        "
        queue  emails max_body=9
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hello:k9  => ok done
        queue  emails max_body=3 max_messages=1
        relay  reached               => invalid BodyTooLarge { bytes: 5, max: 3 }
        send   @emails k2 a          => accepted ready
        relay  reached               => over_quota messages
        relays                       => emails k9 hello tries=1 refused
        delete @emails
        wait   1s
        relay  reached               => no_such_queue
        relays                       => emails k9 hello tries=2 refused
        queue  emails
        relay  reached
            => dead its queue refused it: the body has 5 bytes, the queue allows 3
        relays                       => none
        ",
    );
}

#[test]
fn l3_a_refused_emit_keeps_its_first_reason() {
    check(
        "
        queue  emails max_body=9
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hello:k9  => ok done
        queue  emails max_body=3
        relay  reached               => invalid BodyTooLarge { bytes: 5, max: 3 }
        send   @emails k9 a          => accepted ready
        relay  reached               => conflict body
        relay  reached
            => dead its queue refused it: the body has 5 bytes, the queue allows 3
        relays                       => none
        show   @emails ready dead    => ready=1 dead=1
        ",
    );
}

#[test]
fn l3_a_dead_letter_under_a_key_that_is_being_purged_takes_the_key() {
    check(
        "
        queue  emails max_body=9
        queue  orders
        send   @emails k8 other
        send   @emails k9 other
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hello:k9  => ok done
        queue  emails max_body=3
        relay  reached               => invalid BodyTooLarge { bytes: 5, max: 3 }
        purge  @emails keys          => ok
        & relay reached
            => dead its queue refused it: the body has 5 bytes, the queue allows 3
        relays                       => none
        wait   1s
        browse @emails dead          => k9
        show   @emails ready dead keys  => ready=0 dead=1 keys=0
        redrive @emails r1 keys=k9   => matched=1 moved=1 done
        receive @emails v 9          => k9#1
        look   @emails k9 body       => body=hello
        ",
    );
}

#[test]
fn l3_a_dead_letter_under_a_key_whose_message_alone_is_purged_leaves_the_key() {
    check(
        "
        queue  emails max_body=9
        queue  orders
        send   @emails k9 other
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done emit=emails:n:hello:k9  => ok done
        queue  emails max_body=3
        relay  reached               => invalid BodyTooLarge { bytes: 5, max: 3 }
        purge  @emails               => ok
        & relay reached              => conflict body
        wait   1s
        relay  reached
            => dead its queue refused it: the body has 5 bytes, the queue allows 3
        send   @emails k9 a          => conflict body
        ",
    );
}

/// The lease of one message.
fn leased(world: &mut World) -> LeaseName {
    let queue = name("orders");
    let config = Config::default();
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    let content = Content::builder("k1").build(b"a").unwrap();
    world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content)));
    let received = world.run(Command::Receive(Receive {
        queue,
        max: 1,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    }));
    let Outcome::Received(deliveries) = received else { panic!("{received:?}") };
    deliveries[0].lease
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
    world.run(Command::Configure(Box::new(configure)));
    let content = Content::builder("k1").build(b"a").unwrap();
    world.run(Command::Send(SendMessage::new(&recipe(), name("orders"), content)));
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
    let emit = Emit::new(name("orders"), "next", content);
    let verb = Verb::Done { result: None, emits: vec![emit] };
    let id = world.machine.relays().count() as u64;
    world.run(Command::Settle(Settle { lease: deliveries[0].lease, verb }));
    let told = |world: &mut World| {
        let effects = std::mem::take(&mut world.effects);
        effects.iter().filter(|effect| matches!(effect, Effect::Relay(_))).count()
    };
    assert_eq!(told(&mut world), 1, "an emit is told as soon as it is durable");
    for pause in [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
        world.run(Command::Relayed { id, arrival: Arrival::Later });
        world.wait(pause - 1);
        assert_eq!(told(&mut world), 0, "not before {pause} ms");
        world.wait(1);
        assert_eq!(told(&mut world), 1, "after {pause} ms");
    }
    world.run(Command::Relayed { id, arrival: Arrival::Arrived });
    world.run(Command::Relayed { id, arrival: Arrival::Later });
    world.wait(60_000);
    assert_eq!((told(&mut world), world.machine.relays().count()), (0, 0));
}
