//! What lies behind a bound: a step, a page, a scan that is left off goes on, and ends nothing.

use hapax_core::*;

use super::script::{check, name, say_to};
use crate::support::{World, recipe};

/// A world that does two things at once at most, with one queue.
fn few(config: Config) -> World {
    let bounds = Bounds {
        expire_step: 2,
        job_step: 2,
        refill: 2,
        groups_at_once: 1,
        browse: 2,
        ..Bounds::default()
    };
    let mut world = World::with_bounds(bounds);
    configure(&mut world, config);
    world
}

fn configure(world: &mut World, config: Config) {
    let configure = Configure { queue: name("orders"), config, if_version: None };
    let outcome = world.run(Command::Configure(Box::new(configure)));
    assert!(matches!(outcome, Outcome::Configured { .. }), "{outcome:?}");
}

fn send_of(key: &str, group: Option<&str>, bytes: usize) -> Command {
    let content = Content::builder(key).group(group).build(&vec![b'x'; bytes]).unwrap();
    Command::Send(SendMessage::new(&recipe(), name("orders"), content))
}

fn send(world: &mut World, key: &str, group: Option<&str>) {
    let outcome = world.run(send_of(key, group, 10));
    assert!(matches!(outcome, Outcome::Sent(Answer::Accepted { .. })), "{outcome:?}");
}

fn receive(world: &mut World, max: u32) -> Vec<Delivery> {
    let outcome = world.run(Command::Receive(Receive {
        queue: name("orders"),
        max,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    }));
    let Outcome::Received(deliveries) = outcome else { panic!("{outcome:?}") };
    deliveries
}

fn settle(world: &mut World, delivery: &Delivery, verb: Verb) {
    let settle = Settle { lease: delivery.lease, verb };
    let outcome = world.run(Command::Settle(settle));
    assert!(matches!(outcome, Outcome::Settled(Settled::Ok { .. })), "{outcome:?}");
}

fn die(world: &mut World, delivery: &Delivery) {
    settle(world, delivery, Verb::Fail { error: "boom".into(), delay_ms: None, dead: true });
}

fn stats(world: &World) -> Stats {
    let mut queues = world.machine.queues();
    queues.find(|(queue, _)| **queue == name("orders")).unwrap().1.stats
}

#[test]
fn l4_leases_that_end_together_all_end_however_many_there_are() {
    for crash in [false, true] {
        let mut world = few(Config { lease_ms: 1_000, max_attempts: 2, ..Config::default() });
        (0..9).for_each(|key| send(&mut world, &key.to_string(), None));
        assert_eq!(receive(&mut world, 100).len(), 9);
        if crash {
            world.checkpoint();
            world.crash();
        }
        world.wait(5_000);
        assert_eq!(stats(&world).lease_lost_total, 9, "crash: {crash}");
        world.wait(3_600_000);
        assert_eq!(receive(&mut world, 100).len(), 9, "and come again, crash: {crash}");
    }
}

#[test]
fn lives_and_delays_that_end_together_all_end_however_many_there_are() {
    for cold in [false, true] {
        let mut world = few(Config { delay_ms: 1_000, ..Config::default() });
        (0..9).for_each(|key| send(&mut world, &key.to_string(), None));
        if cold {
            world.checkpoint();
            world.crash();
        }
        world.wait(2_000);
        assert_eq!((stats(&world).ready, stats(&world).delayed), (9, 0), "cold: {cold}");
        assert_eq!(receive(&mut world, 100).len(), 9, "cold: {cold}");
    }
    let mut world = few(Config { ttl_ms: Some(1_000), ..Config::default() });
    (0..9).for_each(|key| send(&mut world, &key.to_string(), None));
    world.wait(2_000);
    assert_eq!((stats(&world).ready, stats(&world).dead), (0, 9));
}

#[test]
fn a_receive_takes_no_further_message_after_so_many_bytes() {
    let bounds = Bounds { receive_bytes: 250, refill: 2, ..Bounds::default() };
    for (cold, group) in [(false, None), (true, None), (false, Some(())), (true, Some(()))] {
        let mut world = World::with_bounds(bounds);
        let order = if group.is_some() { Order::Group } else { Order::None };
        configure(&mut world, Config { order, ..Config::default() });
        for key in 0..7 {
            let group = group.map(|()| format!("g{key}"));
            world.run(send_of(&key.to_string(), group.as_deref(), 100));
        }
        if cold {
            world.checkpoint();
            world.crash();
        }
        let counts = [(); 4].map(|()| receive(&mut world, 100).len());
        assert_eq!(counts, [3, 3, 1, 0], "the bound is met, then left; all come; cold: {cold}");
    }
}

#[test]
fn every_lease_ends_after_a_restart_and_frees_its_group() {
    let config = Config { order: Order::Group, lease_ms: 60_000, ..Config::default() };
    let mut world = few(config);
    for key in 0..7 {
        send(&mut world, &key.to_string(), Some(&format!("g{key}")));
        send(&mut world, &format!("{key}-behind"), Some(&format!("g{key}")));
    }
    assert_eq!(receive(&mut world, 100).len(), 7);
    world.checkpoint();
    world.crash();
    assert_eq!(world.machine.missing_leases(), None);
    let usage = world.machine.usage();
    assert_eq!((usage.messages, usage.leases), (0, 7), "the ends of leases, and nothing else");
    world.wait(3_600_000);
    let again = receive(&mut world, 100);
    assert_eq!(again.len(), 7, "no lease goes on for ever");
    again
        .iter()
        .for_each(|one| settle(&mut world, one, Verb::Done { result: None, emits: Vec::new() }));
    assert_eq!(receive(&mut world, 100).len(), 7, "and no group is held for ever");
}

#[test]
fn groups_that_share_a_number_are_all_delivered() {
    let mut world = few(Config { order: Order::Group, ..Config::default() });
    for key in 0..9 {
        let group = format!("g{key}");
        send(&mut world, &key.to_string(), Some(&group));
        send(&mut world, &format!("{key}-behind"), Some(&group));
    }
    // Blocked when they are written, and freed by those who do not know what is behind them.
    let held = receive(&mut world, 100);
    assert_eq!(held.len(), 9);
    world.checkpoint();
    world.crash();
    for one in &held {
        settle(&mut world, one, Verb::Done { result: None, emits: Vec::new() });
    }
    world.checkpoint();
    world.crash();
    assert_eq!(stats(&world).ready, 9);
    let mut keys: Vec<String> = Vec::new();
    for _ in 0..9 {
        keys.extend(receive(&mut world, 1).iter().map(|one| one.content.key().to_owned()));
    }
    keys.sort();
    let expected: Vec<String> = (0..9).map(|key| format!("{key}-behind")).collect();
    assert_eq!(keys, expected);
}

#[test]
fn a_purge_passes_over_nothing_that_it_read_and_eviction_took_away_again() {
    let mut world = few(Config::default());
    (0..8).for_each(|key| send(&mut world, &format!("dead-{key}"), None));
    receive(&mut world, 100).iter().for_each(|one| die(&mut world, one));
    world.checkpoint();
    assert_eq!(world.evict(), 8);
    // In memory alone: these are purged first, and cannot be evicted.
    (0..20).for_each(|key| send(&mut world, &format!("ready-{key}"), None));
    world.run(Command::Purge(Purge { queue: name("orders"), keys: false }));
    while stats(&world).messages() > 0 {
        world.run(Command::Expire);
        world.evict();
        let has_more = world.machine.next_deadline().is_some_and(|due| due <= world.at);
        assert!(has_more || stats(&world).messages() == 0, "{:?} left", stats(&world));
    }
}

#[test]
fn a_purge_passes_over_nothing_that_moved_behind_it() {
    let bounds = Bounds { job_step: 2, refill: 10, ..Bounds::default() };
    let mut world = World::with_bounds(bounds);
    configure(&mut world, Config { delay_ms: 1_000, ..Config::default() });
    (0..10).for_each(|key| send(&mut world, &key.to_string(), None));
    world.checkpoint();
    world.evict_keeping(0);
    world.run(Command::Purge(Purge { queue: name("orders"), keys: false }));
    world.run(Command::Expire);
    assert_eq!(stats(&world).delayed, 8, "it has read past where the ready ones are");
    world.at = world.at.plus(1_000);
    world.run(Command::Expire); // Reads what is due,
    world.run(Command::Expire); // which becomes ready,
    assert_eq!((stats(&world).delayed, stats(&world).ready), (0, 4));
    world.checkpoint();
    world.evict_keeping(0); // and is left to the rows before its turn has come.
    world.wait(0);
    assert_eq!(stats(&world).messages(), 0);
}

#[test]
fn a_purge_passes_over_nothing_whatever_is_evicted_between_its_steps() {
    for keep in [0, 1, 3] {
        let mut world = few(Config::default());
        (0..8).for_each(|key| send(&mut world, &format!("dead-{key}"), None));
        receive(&mut world, 100).iter().for_each(|one| die(&mut world, one));
        (0..8).for_each(|key| send(&mut world, &format!("ready-{key}"), None));
        world.checkpoint();
        world.evict_keeping(keep);
        world.run(Command::Purge(Purge { queue: name("orders"), keys: false }));
        for _ in 0..60 {
            world.run(Command::Expire);
            world.checkpoint();
            world.evict_keeping(keep);
        }
        let left = stats(&world);
        assert_eq!((left.ready, left.dead, left.messages()), (0, 0, 0), "keep: {keep}");
        world.crash();
        assert!(receive(&mut world, 100).is_empty());
    }
}

#[test]
fn a_deleted_queue_leaves_no_rows_whatever_was_evicted_meanwhile() {
    let mut world = few(Config { order: Order::Group, ..Config::default() });
    let before = world.rows().len();
    for key in 0..20 {
        send(&mut world, &key.to_string(), Some(&format!("g{}", key % 5)));
    }
    receive(&mut world, 2).iter().for_each(|one| die(&mut world, one));
    assert_eq!(receive(&mut world, 3).len(), 3, "and some are out");
    world.checkpoint();
    world.evict_keeping(0);
    world.run(Command::Delete(name("orders")));
    for _ in 0..60 {
        world.run(Command::Expire);
        world.checkpoint();
        world.evict_keeping(0);
    }
    assert_eq!(world.machine.queues().count(), 0);
    assert_eq!(world.machine.usage().messages, 0);
    let (_, ordered) = world.rows().len();
    assert_eq!(ordered, before.1 + 1, "the machine's own row: {}", world.rows().to_text());
}

#[test]
fn a_redrive_passes_over_nothing_that_eviction_took_away_behind_it() {
    let mut world = few(Config { max_attempts: 1, ..Config::default() });
    (0..9).for_each(|key| send(&mut world, &key.to_string(), None));
    receive(&mut world, 100).iter().for_each(|one| die(&mut world, one));
    world.checkpoint();
    world.evict();
    say_to(&mut world, "redrive j1 all");
    for _ in 0..30 {
        world.run(Command::Expire);
        world.checkpoint();
        world.evict_keeping(0);
    }
    assert_eq!((stats(&world).dead, stats(&world).ready), (0, 9));
}

#[test]
fn a_deleted_queue_stays_deleted_after_a_crash() {
    let mut world = World::new();
    configure(&mut world, Config::default());
    send(&mut world, "k1", None);
    let held = receive(&mut world, 1);
    settle(&mut world, &held[0], Verb::Done { result: None, emits: Vec::new() });
    world.checkpoint();
    world.run(Command::Delete(name("orders")));
    world.wait(0);
    assert_eq!(world.machine.queues().count(), 0);
    // A new owner makes room for records; nothing of what the journal told it may get lost.
    world.crash();
    world.checkpoint();
    world.crash();
    assert_eq!(world.machine.queues().count(), 0);
    configure(&mut world, Config::default());
    send(&mut world, "k1", None);
}

#[test]
fn k2_a_key_sent_in_the_batch_that_makes_its_queue_is_looked_up_like_any_other() {
    let old = Config { retention_ms: Some(48 * 3_600_000), ..Config::default() };
    for retention_ms in [old.retention_ms, None, Some(96 * 3_600_000)] {
        let mut world = World::new();
        configure(&mut world, old.clone());
        send(&mut world, "k1", None);
        let held = receive(&mut world, 1);
        settle(&mut world, &held[0], Verb::Done { result: None, emits: Vec::new() });
        world.checkpoint();
        world.crash();
        world.run(Command::Delete(name("orders")));
        world.wait(0);
        let config = Config { retention_ms, ..old.clone() };
        let configure = Configure { queue: name("orders"), config, if_version: None };
        let outcomes =
            world.run_all(vec![Command::Configure(Box::new(configure)), send_of("k1", None, 10)]);
        assert!(matches!(outcomes[1], Outcome::Sent(Answer::Accepted { .. })), "{outcomes:?}");
        world.checkpoint();
        world.crash();
        let again = world.run(send_of("k1", None, 10));
        assert!(matches!(again, Outcome::Sent(Answer::InFlight(_))), "{again:?}");
        let held = receive(&mut world, 10);
        assert_eq!(held.len(), 1, "one key, one message");
        settle(&mut world, &held[0], Verb::Done { result: None, emits: Vec::new() });
        world.checkpoint();
        world.crash();
        let again = world.run(send_of("k1", None, 10));
        assert!(matches!(again, Outcome::Sent(Answer::Done(_))), "{again:?}");
    }
}

#[test]
fn k1_a_queue_made_anew_hands_out_no_recovery_points_of_the_old_one() {
    check(
        "
        queue  orders
        claim  k1 a by=w1               => fresh
        settle k1 save charged yes   => ok leased
        settle k1 release            => ok discarded
        delete                       => ok
        queue  orders
        claim  k1 a by=w2               => fresh
        ",
    );
    check(
        "
        queue  orders
        claim  k1 a by=w1               => fresh
        settle k1 save charged yes   => ok leased
        settle k1 release            => ok discarded
        purge  keys                  => ok
        claim  k1 a by=w2               => fresh
        look   k1 history            => history=claimed
        ",
    );
}

#[test]
fn a_purge_after_a_purge_of_keys_takes_nothing_back() {
    check(
        "
        queue  orders
        send   k1 a
        & purge keys                 => ok
        & send k2 a
        & purge                      => ok
        & send k1 b                  => accepted ready
        receive w 10                 => k1#1
        send   k2 b                  => conflict body
        send   k2 a                  => discarded purged
        settle k1 done               => ok done
        send   k3 a
        & purge keys                 => ok
        & send k4 a
        & purge                      => ok
        wait   1s
        send   k3 b                  => accepted ready
        ",
    );
}

#[test]
fn a_replay_is_not_purged_with_what_was_there_before() {
    check(
        "
        queue  orders
        send   k1 a
        send   k2 a
        receive w 1                  => k1#1
        settle k1 done               => ok done
        & purge                      => ok
        & replay k1 a                => invalid State(\"in a queue that is being purged\")
        wait   1s
        replay k1 a                  => ok
        receive w 10                 => k1#1g1
        ",
    );
}

#[test]
fn k9_a_send_that_is_accepted_during_a_purge_is_not_purged() {
    check(
        "
        queue  orders on_dead=rerun max_attempts=1
        send   k1 a
        receive w 1                  => k1#1
        settle k1 fail error=boom    => ok dead
        & purge                      => ok
        & send k1 a                  => accepted ready
        receive w 10                 => k1#1
        ",
    );
}

/// Whether the last command woke those who wait for messages.
fn wakes(world: &mut World, line: &str) -> bool {
    world.effects.clear();
    say_to(world, line);
    world.effects.iter().any(|effect| matches!(effect, Effect::Wake(_)))
}

#[test]
fn a_receive_that_leaves_some_wakes_whoever_else_waits() {
    let mut world = super::script::after(
        "
        queue  orders
        send   k1 a
        send   k2 a
        send   k3 a
        ",
    );
    assert!(wakes(&mut world, "receive w 1"), "it was enough for one, and there are more");
    assert!(wakes(&mut world, "receive w 1"));
    assert!(!wakes(&mut world, "receive w 1"), "nobody gets anything now");
    assert!(!wakes(&mut world, "receive w 1"));

    let bounds = Bounds { receive_bytes: 250, refill: 2, ..Bounds::default() };
    for cold in [false, true] {
        let mut world = World::with_bounds(bounds);
        configure(&mut world, Config::default());
        (0..7).for_each(|key| drop(world.run(send_of(&key.to_string(), None, 100))));
        if cold {
            world.checkpoint();
            world.crash();
        }
        let woken = [(); 4].map(|()| {
            world.effects.clear();
            receive(&mut world, 100);
            world.effects.iter().any(|effect| matches!(effect, Effect::Wake(_)))
        });
        assert_eq!(woken, [true, true, false, false], "cut by its bytes; cold: {cold}");
    }
}

#[test]
fn a_receive_that_leaves_only_what_waits_for_its_group_wakes_nobody() {
    let mut world = super::script::after(
        "
        queue  orders order=group
        send   k1 a group=g
        send   k2 a group=g
        send   k3 a group=h
        ",
    );
    assert!(wakes(&mut world, "receive w 1"), "the other group");
    assert!(!wakes(&mut world, "receive w 1"));
    let mut world = super::script::after(
        "
        queue  orders order=group guarantee=at-most-once
        send   k1 a group=g
        send   k2 a group=g
        ",
    );
    assert!(wakes(&mut world, "receive w 1"), "the first is done as it is handed out");
    assert!(!wakes(&mut world, "receive w 1"));
}

#[test]
fn l10_a_repeated_receive_wakes_whoever_gets_what_it_leaves() {
    let mut world = super::script::after(
        "
        queue  orders
        send   k1 a
        receive w 1 id=r1            => k1#1
        send   k2 a
        ",
    );
    assert!(wakes(&mut world, "receive w 1 id=r1"), "it gets k1 again");
    assert_eq!(say_to(&mut world, "receive w 1"), "k2#1");
    assert!(!wakes(&mut world, "receive w 1 id=r1"));
}

#[test]
fn l6_who_releases_a_dead_head_wakes_those_who_wait_for_its_followers() {
    let script = "
        queue  orders order=group on_group_dead=park on_dead=release max_attempts=1
        send   k1 a group=g
        send   k2 a group=g
        receive w 1                  => k1#1
        settle k1 fail error=boom    => ok dead
        receive w 1                  => none
        ";
    let mut world = super::script::after(script);
    assert!(wakes(&mut world, "send k1 a group=g delay=1h"), "by a send that waits itself");
    assert_eq!(say_to(&mut world, "receive w 1"), "k2#1");
    let mut world = super::script::after(
        "
        queue  orders order=group on_group_dead=park on_dead=release
        claim  k1 f group=g          => fresh
        send   k2 a group=g
        settle k1 fail dead error=boom  => ok dead
        receive w 1                  => none
        ",
    );
    assert!(wakes(&mut world, "claim k1 f group=g"), "by a claim");
}

#[test]
fn l6_a_claim_that_is_given_up_wakes_those_who_wait_behind_it_in_its_group() {
    let fail = Verb::Fail { error: "boom".to_owned(), delay_ms: None, dead: false };
    let park = Verb::Park { error: "unsure".to_owned(), delay_ms: None, dead: false };
    for verb in [Verb::Release, fail, park] {
        let mut world = super::script::after("queue orders order=group");
        let content = Content::builder("k1").group(Some("g")).build(b"").unwrap();
        let queue = QueueName::new("default", "orders").unwrap();
        let claim = Claim::new(&recipe(), queue, content, recipe().fingerprint(b"f", None));
        let claimed = world.run(Command::Claim(Box::new(claim)));
        let Outcome::Claimed(Answer::Fresh(fresh)) = claimed else { panic!("{claimed:?}") };
        let lease = fresh.lease;
        assert_eq!(say_to(&mut world, "send k2 a group=g"), "accepted ready");
        assert_eq!(say_to(&mut world, "receive w 1"), "none", "the claim is before it");
        world.effects.clear();
        let settled = world.run(Command::Settle(Settle { lease, verb: verb.clone() }));
        assert!(matches!(settled, Outcome::Settled(Settled::Ok { .. })), "{settled:?}");
        assert!(world.effects.iter().any(|it| matches!(it, Effect::Wake(_))), "by {verb:?}");
        assert_eq!(say_to(&mut world, "receive w 1"), "k2#1");
    }
}

#[test]
fn l6_a_purge_wakes_those_who_wait_behind_what_it_takes_away() {
    let mut world = super::script::after(
        "
        queue  orders order=group on_group_dead=park max_attempts=1
        send   k1 a group=g
        receive w 1                  => k1#1
        settle k1 fail error=boom    => ok dead
        ",
    );
    assert_eq!(say_to(&mut world, "purge"), "ok");
    assert_eq!(say_to(&mut world, "send k2 a group=g"), "accepted ready");
    assert_eq!(say_to(&mut world, "receive w 1"), "none", "the dead one holds it");
    assert!(wakes(&mut world, "wait 0s"), "by the step that takes the dead one");
    assert_eq!(say_to(&mut world, "receive w 1"), "k2#1");
}
