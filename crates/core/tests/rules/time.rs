//! Times to live, delays, backoff with its jitter, and D3: time never runs backwards.

use hapax_core::*;

use super::script::{check, name};
use crate::support::{START, World, recipe};

#[test]
fn a_ready_message_whose_time_is_over_is_dead() {
    check(
        "
        queue  orders
        send   k1 a ttl=1h
        send   k2 a
        wait   3599s
        send   k1 a                  => in_flight ready attempts=0
        wait   1s
        receive w 10                 => k2#1
        send   k1 a                  => dead its time to live was over
        ",
    );
}

#[test]
fn a_key_whose_messages_time_is_over_is_dead_before_anything_sweeps_it() {
    check(
        "
        queue  orders
        send   k1 a ttl=1h
        later  2h
        & send k1 b                  => conflict body
        & send k1 a                  => dead its time to live was over
        & send k1 a                  => dead its time to live was over
        & receive w 10               => none
        ",
    );
}

#[test]
fn messages_left_to_the_rows_come_forward_when_the_one_in_front_dies() {
    check(
        "
        queue  orders
        send   k1 a ttl=5s
        send   k2 a
        send   k3 a
        checkpoint
        evict
        wait   6s
        receive w 1                  => k2#1
        receive w 1                  => k3#1
        browse dead                  => k1
        ",
    );
}

#[test]
fn a_delayed_message_whose_time_is_over_is_dead() {
    check(
        "
        queue  orders ttl=1h
        send   k1 a delay=2h         => accepted delayed
        wait   1h
        send   k1 a                  => dead its time to live was over
        wait   1h
        receive w 10                 => none
        ",
    );
}

#[test]
fn a_leased_message_whose_time_is_over_may_be_finished_but_not_tried_again() {
    check(
        "
        queue  orders ttl=1h lease=2h
        send   k1 a
        send   k2 a
        send   k3 a
        receive w 10                 => k1#1 k2#1 k3#1
        wait   90m
        settle k1 done result=x      => ok done
        settle k2 fail error=boom    => ok dead
        send   k1 a                  => done x
        send   k2 a                  => dead boom
        wait   30m
        send   k3 a                  => dead its time to live was over
        ",
    );
}

#[test]
fn a_message_in_backoff_dies_when_its_time_is_over() {
    check(
        "
        queue  orders ttl=1m backoff=2m
        send   k1 a
        receive w 10                 => k1#1
        settle k1 fail error=boom    => ok delayed
        wait   1m
        send   k1 a                  => dead its time to live was over
        ",
    );
}

#[test]
fn a_message_may_be_sent_with_a_delay_of_its_own() {
    check(
        "
        queue  orders delay=10s
        send   k1 a                  => accepted delayed
        send   k2 a delay=0          => accepted ready
        send   k3 a delay=20s        => accepted delayed
        send   k1 a                  => in_flight delayed attempts=0 in=10s
        receive w 10                 => k2#1
        wait   10s
        receive w 10                 => k1#1
        wait   10s
        receive w 10                 => k3#1
        show   ready delayed leased  => ready=0 delayed=0 leased=3
        ",
    );
}

#[test]
fn d3_times_are_those_of_the_journal_and_survive_with_it() {
    check(
        "
        queue  orders retention=48h lease=1h backoff=1s
        send   k1 a
        send   k2 a delay=90m
        receive w 1                  => k1#1
        wait   59m
        send   k1 a                  => in_flight leased attempts=1 in=1m
        send   k2 a                  => in_flight delayed attempts=0 in=31m
        look   k1 age                => age=59m
        wait   2m
        receive w 1                  => k1#2
        settle k1 done               => ok done
        send   k1 a                  => done in=2d
        ",
    );
}

#[test]
fn d3_a_reopened_partition_goes_on_from_the_time_it_wrote_last() {
    let mut world = world_of(Config::default());
    world.wait(86_400_000);
    world.run(send("k1"));
    world.crash();
    assert_eq!(world.machine.now(), Time(START + 86_400_000));
    world.wait(1_000);
    world.checkpoint();
    world.crash();
    assert_eq!(world.machine.now(), Time(START + 86_401_000));
}

#[test]
#[should_panic(expected = "time never runs backwards")]
fn d3_time_that_runs_backwards_is_not_taken() {
    let mut machine = Machine::new(0, 1, 1, 7);
    machine.advance(Time(START), &mut Vec::new());
    machine.advance(Time(START - 1), &mut Vec::new());
}

#[test]
fn l4_backoff_doubles_with_full_jitter_between_its_bounds() {
    let config = Config {
        backoff_min_ms: 1_000,
        backoff_max_ms: 16_000,
        max_attempts: 1_000,
        ..Config::default()
    };
    let ceilings = [1_000, 2_000, 4_000, 8_000, 16_000, 16_000, 16_000];
    let mut delays = vec![Vec::new(); ceilings.len()];
    for random in 0..64 {
        let mut world = world_of(config.clone());
        world.random = random;
        world.run(send("k1"));
        for delays in &mut delays {
            let failed = fail(&mut world);
            let Settled::Ok { deadline: Some(due), .. } = failed else { panic!("{failed:?}") };
            let delay = due.since(world.at);
            delays.push(delay);
            world.wait(delay);
        }
    }
    for (ceiling, delays) in ceilings.into_iter().zip(&mut delays) {
        delays.sort_unstable();
        let (least, most) = (delays[0], delays[delays.len() - 1]);
        assert!(least >= 1_000 && most <= ceiling, "{least} to {most} of {ceiling}");
        if ceiling > 1_000 {
            let spread = ceiling - 1_000;
            assert!(least < 1_000 + spread / 4, "the jitter is full: {least} of {ceiling}");
            assert!(most > ceiling - spread / 4, "the jitter is full: {most} of {ceiling}");
        }
    }
}

#[test]
fn l4_neighbours_in_a_batch_do_not_share_their_jitter() {
    let mut world = world_of(Config::default());
    for key in ["k1", "k2", "k3", "k4", "k5", "k6"] {
        world.run(send(key));
    }
    for _ in 0..4 {
        world.run(Command::Receive(receive(10)));
        world.wait(30_000 + 600_000);
    }
    let Outcome::Received(deliveries) = world.run(Command::Receive(receive(10))) else {
        panic!("a receive is answered by deliveries");
    };
    let mut due = Vec::new();
    for delivery in deliveries {
        let verb = Verb::Fail { error: "boom".into(), delay_ms: None, dead: false };
        let settled = world.run(Command::Settle(Settle { lease: delivery.lease, verb }));
        due.push(format!("{settled:?}"));
    }
    due.sort_unstable();
    due.dedup();
    assert_eq!(due.len(), 6);
}

fn world_of(config: Config) -> World {
    let mut world = World::new();
    world.run(Command::Configure(Box::new(Configure {
        queue: name("orders"),
        config,
        if_version: None,
    })));
    world
}

fn send(key: &str) -> Command {
    Command::Send(SendMessage::new(
        &recipe(),
        name("orders"),
        Content::builder(key).build(b"a").unwrap(),
    ))
}

fn receive(max: u32) -> Receive {
    Receive {
        queue: name("orders"),
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    }
}

fn fail(world: &mut World) -> Settled {
    let Outcome::Received(deliveries) = world.run(Command::Receive(receive(1))) else {
        panic!("a receive is answered by deliveries");
    };
    let verb = Verb::Fail { error: "boom".into(), delay_ms: None, dead: false };
    let settle = Settle { lease: deliveries[0].lease, verb };
    let Outcome::Settled(settled) = world.run(Command::Settle(settle)) else {
        panic!("a settle is answered by what it settled");
    };
    settled
}
