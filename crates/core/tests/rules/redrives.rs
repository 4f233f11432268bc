//! L5: the dead get another life under their own key.

use hapax_core::{
    Bounds, Command, MessageId, Outcome, Redrive, RedriveView, Refusal, Select, Time, limits,
};

use super::script::{check, name, say_to};
use crate::support::{START, World};

/// Four dead messages, k1 and k2 of a timeout, k3 and k4 refused an hour later; and k5, ready.
const FOUR_DEAD: &str = "
        queue  orders max_attempts=1
        send   k1 a group=a
        send   k2 a group=b
        send   k3 a group=a
        send   k4 a
        send   k5 a
        receive w 4 lease=2h           => k1#1 k2#1 k3#1 k4#1
        settle k1 fail error=timeout-1 => ok dead
        settle k2 fail error=timeout-2 => ok dead
        wait   1h
        settle k3 fail error=refused   => ok dead
        settle k4 fail error=refused   => ok dead
";

fn check_with_the_dead(script: &str) {
    check(&format!("{FOUR_DEAD}{script}"));
}

#[test]
fn l5_the_dead_keep_key_body_group_and_history() {
    check_with_the_dead(
        "
        browse dead                  => k1 k2 k3 k4
        send   k1 a group=a          => dead timeout-1
        send   k1 b group=a          => conflict body
        look   k1 history            => history=sent,leased@w,failed:timeout-1@w,dead:timeout-1
        look   k3 error              => error=refused
        ",
    );
}

#[test]
fn l5_redrive_by_key_moves_the_dead_among_them() {
    check_with_the_dead(
        "
        redrive r1 keys=k1,k3,k5,k9,k1  => matched=2 moved=2 done
        redrive r1 keys=k9,k5,k3,k1  => matched=2 moved=2 done
        redriven r1                  => matched=2 moved=2 done
        redriven r2                  => no_such_key
        browse dead                  => k2 k4
        wait   1s
        receive w 10                 => k1#1 k3#1 k5#1
        look   k1 history
            => history=sent,failed:timeout-1@w,dead:timeout-1,redriven,leased@w
        ",
    );
}

#[test]
fn l5_a_redrive_tells_how_many_there_are_and_which_keys_were_not_dead() {
    check_with_the_dead(
        "
        redrive r1 keys=k1,k5,k9,k1,k9 total missing
            => matched=1 moved=1 done total=3 missing=k5,k9
        redriven r1 total missing    => matched=1 moved=1 done total=3 missing=k5,k9
        redrive r2 all dry total     => matched=0 moved=0 dry total=3
        redriven r2 total missing    => matched=3 moved=0 done dry total=3 missing=
        ",
    );
}

#[test]
fn l5_a_cancelled_redrive_stays_where_it_is() {
    check_with_the_dead(
        "
        redrive r1 all rate=1
        & cancel r1                  => matched=0 moved=0 done cancelled
        wait   1h
        redriven r1                  => matched=0 moved=0 done cancelled
        redrive r1 all rate=1        => matched=0 moved=0 done cancelled
        show   dead                  => dead=4
        redrive r2 all rate=1
        redriven r2                  => matched=1 moved=1
        wait   1s
        cancel r2                    => matched=2 moved=2 done cancelled
        cancel r2                    => matched=2 moved=2 done cancelled
        wait   1h
        redriven r2                  => matched=2 moved=2 done cancelled
        show   dead                  => dead=2
        redrive r3 all
        redriven r3                  => matched=2 moved=2 done
        cancel r3                    => matched=2 moved=2 done
        cancel r9                    => no_such_key
        cancel @absent r1            => no_such_queue
        ",
    );
}

#[test]
fn l5_redrive_by_when_they_died() {
    check_with_the_dead(
        "
        redrive r1 after=-30m dry
        redriven r1                  => matched=2 moved=0 done dry
        redrive r2 after=-1h dry
        redriven r2                  => matched=2 moved=0 done dry
        redrive r3 after=-2h before=-30m
        redriven r3                  => matched=2 moved=2 done
        browse dead                  => k3 k4
        ",
    );
}

#[test]
fn l5_a_filter_that_asks_for_nothing_is_refused() {
    check_with_the_dead(
        "
        redrive r1                   => invalid Redrive
        redriven r1                  => no_such_key
        show   dead                  => dead=4
        ",
    );
}

#[test]
fn l5_redrive_of_all_moves_all_and_repeated_moves_nothing_twice() {
    check_with_the_dead(
        "
        redrive r1 all
        redriven r1                  => matched=4 moved=4 done
        show   dead ready            => dead=0 ready=5
        receive w 10                 => k1#1 k2#1 k3#1 k4#1 k5#1
        settle k1 fail error=again   => ok dead
        redrive r1 all               => matched=4 moved=4 done
        wait   1h
        look   k1                    => dead attempts=1
        redrive r2 all
        redriven r2                  => matched=5 moved=5 done
        ",
    );
}

#[test]
fn l5_redrive_by_error() {
    check_with_the_dead(
        "
        redrive r1 error=timeout
        redriven r1                  => matched=2 moved=2 done
        browse dead                  => k3 k4
        ",
    );
}

#[test]
fn l5_redrive_by_group() {
    check_with_the_dead(
        "
        redrive r1 group=a
        redriven r1                  => matched=2 moved=2 done
        browse dead                  => k2 k4
        ",
    );
}

#[test]
fn l5_redrive_by_time_of_death() {
    check_with_the_dead(
        "
        redrive r1 before=-30m
        redriven r1                  => matched=2 moved=2 done
        browse dead                  => k3 k4
        redrive r2 error=refused group=a before=+1h
        redriven r2                  => matched=1 moved=1 done
        browse dead                  => k4
        ",
    );
}

#[test]
fn l5_a_dry_run_counts_and_moves_nothing() {
    check_with_the_dead(
        "
        redrive r1 all dry
        redriven r1                  => matched=4 moved=0 done dry
        redrive r2 keys=k1,k2 dry    => matched=2 moved=0 done dry
        redrive r3 error=refused dry
        redriven r3                  => matched=2 moved=0 done dry
        browse dead                  => k1 k2 k3 k4
        ",
    );
}

#[test]
fn l5_a_redrive_keeps_to_its_rate() {
    check_with_the_dead(
        "
        redrive r1 all rate=1
        redriven r1                  => matched=1 moved=1
        wait   999ms
        redriven r1                  => matched=1 moved=1
        wait   1ms
        redriven r1                  => matched=2 moved=2
        wait   1s
        redriven r1                  => matched=3 moved=3
        wait   10s
        redriven r1                  => matched=4 moved=4 done
        browse dead                  => none
        ",
    );
}

#[test]
fn l5_a_redrive_moves_what_was_dead_when_it_began() {
    check_with_the_dead(
        "
        redrive r1 all rate=1
        receive w 1                  => k1#1
        settle k1 fail error=again   => ok dead
        wait   1m
        redriven r1                  => matched=4 moved=4 done
        browse dead                  => k1
        ",
    );
}

#[test]
fn l5_a_redriven_message_that_died_of_age_lives_on() {
    check(
        "
        queue  orders ttl=1h
        send   k1 a
        wait   2h
        send   k1 a                  => dead its time to live was over
        redrive r1 keys=k1           => matched=1 moved=1 done
        wait   100d
        receive w 1                  => k1#1
        settle k1 done               => ok done
        ",
    );
}

#[test]
fn l5_where_keys_are_those_of_groups_the_dead_are_redriven_by_group() {
    check(
        "
        queue  orders order=group scope=group max_attempts=1
        send   k1 a group=g
        receive w 1                  => k1#1
        settle k1 fail               => ok dead
        redrive r1 keys=k1           => matched=0 moved=0 done
        redrive r2 group=g
        redriven r2                  => matched=1 moved=1 done
        receive w 1                  => k1#1
        ",
    );
}

#[test]
fn l5_where_keys_are_those_of_groups_a_redrive_by_key_names_the_group() {
    check(
        "
        queue  orders order=group scope=group max_attempts=1
        send   k1 g group=g
        receive w 9                  => k1#1
        settle k1 fail               => ok dead
        send   k1 h group=h
        receive w 9                  => k1#1
        settle k1 fail               => ok dead
        redrive r1 keys=k1,k2 group=h total missing
            => matched=1 moved=1 done total=2 missing=k2
        send   k1 g group=g          => dead boom
        send   k1 h group=h          => in_flight ready attempts=0
        redrive r2 keys=k1 group=x missing => matched=0 moved=0 done missing=k1
        redrive r3 keys=k1 missing   => matched=0 moved=0 done missing=k1
        redrive r3 keys=k1 group=g   => refused other_redrive
        redrive r4 keys=k1 group=g   => matched=1 moved=1 done
        browse dead                  => none
        ",
    );
}

#[test]
fn l5_the_id_of_a_redrive_is_that_of_one_redrive() {
    check_with_the_dead(
        "
        redrive r1 error=timeout rate=1
        redriven r1                  => matched=1 moved=1
        redrive r1 error=timeout rate=1 => matched=1 moved=1
        redrive r1 error=refused rate=1 => refused other_redrive
        redrive r1 error=timeout rate=2 => refused other_redrive
        redrive r1 error=timeout     => refused other_redrive
        redrive r1 error=timeout rate=1 group=a => refused other_redrive
        redrive r1 error=timeout rate=1 before=+1h => refused other_redrive
        redrive r1 error=timeout rate=1 after=-9h => refused other_redrive
        redrive r1 error=timeout rate=1 dry => refused other_redrive
        redrive r1 group=timeout rate=1 => refused other_redrive
        redrive r1 all rate=1        => refused other_redrive
        redrive r1 keys=k3           => refused other_redrive
        wait   2s
        redriven r1                  => matched=2 moved=2 done
        redrive r1 error=refused rate=1 => refused other_redrive
        redrive r1 error=timeout rate=1 => matched=2 moved=2 done
        redrive r2 keys=k3,k9        => matched=1 moved=1 done
        redrive r2 keys=k9,k3,k3     => matched=1 moved=1 done
        redrive r2 keys=k3           => refused other_redrive
        redrive r2 keys=k3,k4        => refused other_redrive
        redrive r2 keys=k3,k9 group=a => refused other_redrive
        browse dead                  => k4
        ",
    );
}

#[test]
fn l5_a_redrive_keeps_no_name_that_cannot_be_a_key() {
    let (longest, longer) = ("k".repeat(255), "k".repeat(256));
    check_with_the_dead(&format!(
        "
        redrive r1 keys=k1,{longest} missing => matched=1 moved=1 done missing={longest}
        redrive r2 keys=k2,{longer}  => invalid KeyLength(256)
        redrive r2 keys=k2 group={longer} => invalid Redrive
        redriven r2                  => no_such_key
        browse dead                  => k2 k3 k4
        "
    ));
}

#[test]
fn l5_a_redrive_that_is_only_checked_is_not_started() {
    check_with_the_dead(
        "
        redrive r1 all check         => matched=0 moved=0
        redrive r2 keys=k1,k9 check  => matched=1 moved=1 done
        redriven r1                  => no_such_key
        redriven r2                  => no_such_key
        browse dead                  => k1 k2 k3 k4
        redrive r1 keys=k1           => matched=1 moved=1 done
        redrive r1 all check         => refused other_redrive
        redrive r1 keys=k1 check     => matched=1 moved=1 done
        redrive r3 check             => invalid Redrive
        redrive @absent r3 all check => no_such_queue
        ",
    );
}

#[test]
fn l5_a_message_without_a_key_is_redriven_by_its_id() {
    // The first message of a partition, sent as the script begins.
    let id = MessageId::new(Time(START), 0, 1);
    check(&format!(
        "
        queue  orders guarantee=at-least-once max_attempts=1
        send   - a
        receive w 1                  => -a#1
        settle -a fail error=boom    => ok dead
        look   {id} error            => error=boom
        redrive r1 keys={id}         => matched=1 moved=1 done
        receive w 1                  => -a#1
        settle -a fail error=boom    => ok dead
        discard {id}                 => ok
        show   dead keys             => dead=0 keys=0
        "
    ));
}

#[test]
fn l5_many_dead_are_redriven_in_steps() {
    let keys = (0..700).map(|place| format!(" k{place}:a")).collect::<String>();
    let accepted = vec!["accepted ready"; 700].join(" | ");
    check(&format!(
        "
        queue  orders max_attempts=1 lease=1s
        batch  {keys}                => {accepted}
        receive w 1000
        wait   1s
        show   dead                  => dead=700
        redrive r1 all
        wait   1s
        redriven r1                  => matched=700 moved=700 done
        show   dead ready            => dead=0 ready=700
        "
    ));
}

#[test]
fn l5_many_keys_are_redriven_in_steps() {
    let keys = (0..100).map(|place| format!(" k{place}:a")).collect::<String>();
    let accepted = vec!["accepted ready"; 100].join(" | ");
    let named: Vec<String> = (0..120).map(|place| format!("k{place}")).collect();
    let mut missing = named[100..].to_vec();
    missing.sort();
    let (named, missing) = (named.join(","), missing.join(","));
    check(&format!(
        "
        queue  orders max_attempts=1 lease=1s
        batch  {keys}                => {accepted}
        receive w 100
        wait   1s
        show   dead                  => dead=100
        redrive r0 keys={named} dry
        redrive r1 keys={named}
        wait   1s
        redriven r0 total missing
            => matched=100 moved=0 done dry total=120 missing={missing}
        redriven r1 total missing    => matched=100 moved=100 done total=120 missing={missing}
        redrive r1 keys={named}      => matched=100 moved=100 done
        show   dead ready            => dead=0 ready=100
        "
    ));
}

/// A world whose memory has room for the body of one message at a time, with so many dead ones.
fn with_dead(count: usize) -> World {
    let mut world = World::with_bounds(Bounds { receive_bytes: 1, ..Bounds::default() });
    say_to(&mut world, "queue orders max_attempts=1 lease=1s");
    for place in 0..count {
        say_to(&mut world, &format!("send k{place} a"));
        say_to(&mut world, "receive w 1");
    }
    world.wait(1_000);
    world
}

fn redrive(world: &mut World, id: &str, select: Select) -> Outcome {
    let (queue, id) = (name("orders"), id.into());
    let redrive = Redrive { queue, id, select, dry_run: false, per_s: None };
    world.run(Command::Redrive(redrive))
}

fn progress(world: &mut World, id: &str) -> RedriveView {
    let progress = Command::RedriveProgress { queue: name("orders"), id: id.into() };
    let outcome = world.run(progress);
    let Outcome::Redrive(view) = outcome else { panic!("{outcome:?}") };
    *view
}

fn keys(range: std::ops::Range<usize>) -> Select {
    let keys = range.map(|place| format!("k{place}").into()).collect();
    Select::Keys { keys, group: None }
}

#[test]
fn l5_a_redrive_by_keys_brings_no_more_into_memory_than_a_step_moves() {
    let mut world = with_dead(20);
    world.checkpoint();
    world.crash();
    let outcome = redrive(&mut world, "r1", keys(0..25));
    let Outcome::Redrive(view) = outcome else { panic!("{outcome:?}") };
    assert_eq!((view.matched, view.done, view.total), (1, false, Some(25)));
    for step in 1.. {
        // And the oldest of those moved before, which is read after a start.
        assert!(world.machine.usage().messages <= 2, "{} at once", world.machine.usage().messages);
        let view = progress(&mut world, "r1");
        if view.done {
            let told = (view.matched, view.moved, view.missing.len(), step);
            assert_eq!(told, (20, 20, 5, 25));
            break;
        }
        let looked = view.matched as usize + view.missing.len();
        assert_eq!(looked, step, "a key at a time");
        // Whatever happens between two steps, the next goes on where the last one ended.
        world.checkpoint();
        world.crash();
        world.run(Command::Expire);
    }
}

#[test]
fn l5_a_redrive_by_keys_of_a_group_goes_on_in_its_group_after_a_crash() {
    let mut world = World::with_bounds(Bounds { receive_bytes: 1, ..Bounds::default() });
    say_to(&mut world, "queue orders scope=group max_attempts=1 lease=1s");
    for place in 0..3 {
        say_to(&mut world, &format!("send k{place} a group=g"));
        say_to(&mut world, "receive w 1");
    }
    world.wait(1_000);
    let Select::Keys { keys, .. } = keys(0..4) else { panic!("these are keys") };
    redrive(&mut world, "r1", Select::Keys { keys, group: Some("g".into()) });
    while !progress(&mut world, "r1").done {
        world.checkpoint();
        world.crash();
        world.run(Command::Expire);
    }
    let view = progress(&mut world, "r1");
    assert_eq!((view.matched, view.moved, view.missing), (3, 3, vec!["k3".into()]));
}

#[test]
fn l5_the_id_of_a_redrive_is_that_of_one_redrive_after_a_crash_too() {
    for is_checkpointed in [false, true] {
        let mut world = with_dead(3);
        redrive(&mut world, "r1", keys(0..2));
        if is_checkpointed {
            world.checkpoint();
        }
        world.crash();
        let other = redrive(&mut world, "r1", keys(0..3));
        assert_eq!(other, Outcome::Refused(Refusal::OtherRedrive), "{is_checkpointed}");
        assert!(matches!(redrive(&mut world, "r1", keys(0..2)), Outcome::Redrive(_)));
    }
}

#[test]
fn l5_of_two_redrives_at_once_each_counts_what_it_moved() {
    for others in [Select::All, keys(0..20)] {
        let mut world = with_dead(20);
        redrive(&mut world, "r1", Select::All);
        redrive(&mut world, "r2", others);
        redrive(&mut world, "r3", keys(10..20));
        world.wait(1_000);
        let views = ["r1", "r2", "r3"].map(|id| progress(&mut world, id));
        assert!(views.iter().all(|view| view.done));
        assert_eq!(views.iter().map(|view| view.moved).sum::<u64>(), 20, "{views:?}");
        assert_eq!(say_to(&mut world, "show dead ready"), "dead=0 ready=20");
    }
}

#[test]
fn l5_only_so_many_redrives_are_under_way_at_once() {
    let mut world = with_dead(1);
    let slow = |world: &mut World, queue: &str, id: usize| {
        let (queue, id) = (name(queue), format!("r{id}").into());
        let (select, dry_run, per_s) = (Select::All, true, Some(1));
        world.run(Command::Redrive(Redrive { queue, id, select, dry_run, per_s }))
    };
    let most = limits::REDRIVES_MAX;
    for id in 0..most {
        assert!(matches!(slow(&mut world, "orders", id), Outcome::Redrive(_)));
    }
    let refused = Outcome::Refused(Refusal::TooManyRedrives(most));
    assert_eq!(slow(&mut world, "orders", most), refused);
    assert!(matches!(slow(&mut world, "orders", 0), Outcome::Redrive(_)), "it is known");
    assert!(matches!(redrive(&mut world, "few", keys(0..1)), Outcome::Redrive(_)), "over at once");
    assert_eq!(redrive(&mut world, "many", keys(0..30)), refused);
    for other in 1..limits::REDRIVES_OF_TENANT_MAX / most {
        say_to(&mut world, &format!("queue q{other}"));
        for id in 0..most {
            assert!(matches!(slow(&mut world, &format!("q{other}"), id), Outcome::Redrive(_)));
        }
    }
    say_to(&mut world, "queue last");
    let refused = Outcome::Refused(Refusal::TooManyRedrives(limits::REDRIVES_OF_TENANT_MAX));
    assert_eq!(slow(&mut world, "last", 0), refused);
    world.wait(2_000);
    assert!(matches!(slow(&mut world, "last", 0), Outcome::Redrive(_)), "the others are over");
}
