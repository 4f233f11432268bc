//! Everything comes to its end, however little is done at once and however much else is due.

use hapax_core::*;

use super::script::name;
use crate::support::{World, recipe};

/// How little is done at once, with a memory that keeps nothing that can leave it.
fn tiny(tick_step: usize) -> Bounds {
    let few = Bounds { expire_step: 2, job_step: 2, refill: 2, ..Bounds::default() };
    Bounds { tick_step, groups_at_once: 1, ..few }
}

fn configure(world: &mut World, queue: &str, config: Config) {
    let configure = Configure { queue: name(queue), config, if_version: None };
    let outcome = world.run(Command::Configure(Box::new(configure)));
    assert!(matches!(outcome, Outcome::Configured { .. }), "{outcome:?}");
}

fn send_of(queue: &str, key: &str, group: Option<&str>) -> SendMessage {
    let content = Content::builder(key).group(group).build(b"x").unwrap();
    SendMessage::new(&recipe(), name(queue), content)
}

fn send(world: &mut World, send: SendMessage) {
    let outcome = world.run(Command::Send(send));
    assert!(matches!(outcome, Outcome::Sent(Answer::Accepted { .. })), "{outcome:?}");
}

fn receive(world: &mut World, queue: &str) -> Vec<Delivery> {
    let (queue, worker) = (name(queue), "w".into());
    let (lease_ms, receive_id, several_per_group) = (None, None, false);
    let receive = Receive { queue, max: 100, lease_ms, worker, receive_id, several_per_group };
    let outcome = world.run(Command::Receive(receive));
    let Outcome::Received(deliveries) = outcome else { panic!("{outcome:?}") };
    deliveries
}

fn settle(world: &mut World, delivery: &Delivery, verb: Verb) {
    let outcome = world.run(Command::Settle(Settle { lease: delivery.lease, verb }));
    assert!(matches!(outcome, Outcome::Settled(Settled::Ok { .. })), "{outcome:?}");
}

fn redrive(world: &mut World, queue: &str, id: &str, per_s: Option<u32>) {
    let (id, select, dry_run) = (id.into(), Select::All, false);
    let redrive = Redrive { queue: name(queue), id, select, dry_run, per_s };
    let outcome = world.run(Command::Redrive(redrive));
    assert!(matches!(outcome, Outcome::Redrive(_)), "{outcome:?}");
}

fn progress(world: &mut World, queue: &str, id: &str) -> RedriveView {
    let outcome = world.run(Command::RedriveProgress { queue: name(queue), id: id.into() });
    let Outcome::Redrive(view) = outcome else { panic!("{outcome:?}") };
    *view
}

fn stats(world: &World, queue: &str) -> Stats {
    let mut queues = world.machine.queues();
    queues.find(|(known, _)| **known == name(queue)).unwrap().1.stats
}

/// One tick a millisecond later, and everything that can leave memory leaves it.
fn tick(world: &mut World) {
    world.at = world.at.plus(1);
    world.run(Command::Expire);
    world.checkpoint();
    world.evict_keeping(0);
}

fn kill(world: &mut World, queue: &str, keys: std::ops::Range<u32>) {
    keys.for_each(|key| send(world, send_of(queue, &format!("dead-{key}"), None)));
    for delivery in receive(world, queue) {
        let verb = Verb::Fail { error: "boom".into(), delay_ms: None, dead: true };
        settle(world, &delivery, verb);
    }
}

#[test]
fn what_is_due_becomes_ready_and_is_received_with_hardly_any_memory() {
    for tick_step in [1, 3, 1_000] {
        let mut world = World::with_bounds(tiny(tick_step));
        for queue in ["a", "b", "c"] {
            configure(&mut world, queue, Config { delay_ms: 50, ..Config::default() });
            for key in 0..7 {
                send(&mut world, send_of(queue, &key.to_string(), None));
                tick(&mut world);
            }
        }
        world.at = world.at.plus(100);
        (0..80).for_each(|_| tick(&mut world));
        for queue in ["a", "b", "c"] {
            assert_eq!(stats(&world, queue).ready, 7, "{queue}, ticks of {tick_step}");
            let received = receive(&mut world, queue);
            assert_eq!(received.len(), 7, "{queue}, ticks of {tick_step}");
        }
    }
}

#[test]
fn l6_due_members_of_a_group_come_in_order_although_the_older_one_left_memory() {
    let mut world = World::with_bounds(tiny(100));
    let config = Config { order: Order::Group, delay_ms: 50, ..Config::default() };
    configure(&mut world, "a", config);
    send(&mut world, send_of("a", "older", Some("g")));
    world.checkpoint();
    send(&mut world, send_of("a", "younger", Some("g")));
    world.evict_keeping(0); // The younger one is in no row yet, and stays.
    world.at = world.at.plus(100);
    let mut order = Vec::new();
    for _ in 0..6 {
        for delivery in receive(&mut world, "a") {
            order.push(delivery.content.key().to_owned());
            settle(&mut world, &delivery, Verb::Done { result: None, emits: Vec::new() });
        }
        world.run(Command::Expire);
    }
    assert_eq!(order, ["older", "younger"]);
}

/// Keeps both queues busy with all that a tick does: more delays, leases and lives end than one
/// tick has room for.
fn busy(world: &mut World, round: u32, tick_step: usize) {
    for queue in ["a", "b"] {
        for one in 0..tick_step {
            let key = format!("busy-{round}-{one}");
            let delayed = send_of(queue, &format!("{key}-late"), None);
            send(world, SendMessage { delay_ms: Some(2), ..delayed });
            let expiring = send_of(queue, &format!("{key}-old"), None);
            send(world, SendMessage { delay_ms: Some(1_000_000), ttl_ms: Some(1), ..expiring });
        }
        receive(world, queue);
    }
}

#[test]
fn l5_redrives_and_purges_end_however_much_else_is_due_in_every_tick() {
    for tick_step in [1, 2, 3, 5] {
        let mut world = World::with_bounds(tiny(tick_step));
        let config = Config { lease_ms: 100, max_attempts: 1, ..Config::default() };
        for queue in ["a", "b"] {
            configure(&mut world, queue, config.clone());
            kill(&mut world, queue, 0..6);
        }
        for round in 0..40 {
            busy(&mut world, round, tick_step);
            tick(&mut world);
        }
        world.at = world.at.plus(100);
        for queue in ["a", "b"] {
            redrive(&mut world, queue, "one", None);
            redrive(&mut world, queue, "two", None);
        }
        configure(&mut world, "c", config.clone());
        (0..6).for_each(|key| send(&mut world, send_of("c", &key.to_string(), None)));
        world.run(Command::Purge(Purge { queue: name("c"), keys: false }));
        let mut rounds = 0;
        let is_over = |world: &mut World| {
            let views = ["a", "b"].map(|queue| progress(world, queue, "one"));
            views.iter().all(|view| view.moved >= 6) && stats(world, "c").messages() == 0
        };
        while !is_over(&mut world) {
            rounds += 1;
            assert!(rounds < 400, "a redrive starves, ticks of {tick_step}");
            busy(&mut world, 1_000 + rounds, tick_step);
            tick(&mut world);
        }
    }
}

#[test]
fn l5_a_redrive_keeps_its_rate_and_ends_with_hardly_any_memory() {
    let mut world = World::with_bounds(tiny(3));
    configure(&mut world, "a", Config { max_attempts: 1, ..Config::default() });
    kill(&mut world, "a", 0..6);
    redrive(&mut world, "a", "slow", Some(1));
    (0..5).for_each(|_| tick(&mut world));
    assert_eq!(progress(&mut world, "a", "slow").moved, 1);
    (0..5).for_each(|_| world.wait(1_000));
    let view = progress(&mut world, "a", "slow");
    assert_eq!((view.moved, view.done), (6, false));
    world.wait(1_000);
    assert!(progress(&mut world, "a", "slow").done);
}

/// Hands every emit that waits to its queue, and tells the list what came of it.
fn hand_over(world: &mut World) {
    let relays: Vec<Relay> = world.machine.relays().cloned().collect();
    for relay in relays {
        let id = relay.id;
        let outcome = world.run(Command::Send(relay.into_send(&recipe())));
        let Outcome::Sent(answer) = outcome else { panic!("{outcome:?}") };
        world.run(Command::Relayed { id, arrival: Arrival::of(&answer) });
    }
}

#[test]
fn l3_a_full_queue_whose_messages_emit_into_it_drains() {
    for fan_out in [1, 3] {
        let mut world = World::with_bounds(Bounds { relays: 4, ..tiny(2) });
        let config = Config { max_messages: Some(3), max_bytes: Some(20), ..Config::default() };
        configure(&mut world, "orders", config);
        for key in ["a", "b", "c"] {
            send(&mut world, send_of("orders", key, None));
        }
        let outcome = world.run(Command::Send(send_of("orders", "d", None)));
        let Outcome::Sent(Answer::OverQuota { .. }) = outcome else { panic!("{outcome:?}") };
        let mut dones = 0;
        while stats(&world, "orders").messages() > 0 || world.machine.relays().next().is_some() {
            assert!(dones < 1_000, "the queue does not drain");
            for delivery in receive(&mut world, "orders") {
                // Three levels deep.
                let follows = if delivery.content.key().len() < 4 { fan_out } else { 0 };
                let emit = |number: usize| {
                    let key = format!("{}{number}", delivery.content.key());
                    Emit::new(name("orders"), "", Content::builder(&key).build(b"x").unwrap())
                };
                let emits = (0..follows).map(emit).collect();
                settle(&mut world, &delivery, Verb::Done { result: None, emits });
                hand_over(&mut world);
                world.checkpoint();
                world.crash();
                dones += 1;
            }
        }
        let levels: usize = (0..4).map(|level| 3 * fan_out.pow(level)).sum();
        assert_eq!(dones, levels, "every message and every follow-up was done once");
    }
}

#[test]
fn l3_emits_of_another_queue_wait_for_room() {
    let mut world = World::new();
    configure(&mut world, "orders", Config { max_messages: Some(1), ..Config::default() });
    configure(&mut world, "others", Config::default());
    send(&mut world, send_of("orders", "a", None));
    send(&mut world, send_of("others", "b", None));
    let delivery = receive(&mut world, "others").remove(0);
    let emit = Emit::new(name("orders"), "", Content::builder("c").build(b"x").unwrap());
    settle(&mut world, &delivery, Verb::Done { result: None, emits: vec![emit] });
    hand_over(&mut world);
    assert_eq!(world.machine.relays().count(), 1, "the queue is full");
    let delivery = receive(&mut world, "orders").remove(0);
    settle(&mut world, &delivery, Verb::Done { result: None, emits: Vec::new() });
    hand_over(&mut world);
    assert_eq!((world.machine.relays().count(), stats(&world, "orders").ready), (0, 1));
}
