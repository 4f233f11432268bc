//! Bad input gets a typed refusal that says what is wrong. None of it panics.

use hapax_core::*;

use super::script::{Mode, check, check_in, name};
use crate::support::{World, recipe};

#[test]
fn what_is_wrong_with_a_message_is_said_before_it_is_sent() {
    let long = "x".repeat(256);
    let build = |builder: Builder<'_>| builder.build(b"a").map(drop);
    let refused = [
        (build(Content::builder(&long)), Invalid::KeyLength(256)),
        (build(Content::builder("a\u{7f}b")), Invalid::KeyCharacter(1)),
        (build(Content::builder("k\n")), Invalid::KeyCharacter(1)),
        (build(Content::builder("k").group(Some(""))), Invalid::GroupLength(0)),
        (build(Content::builder("k").group(Some(&long))), Invalid::GroupLength(256)),
        (build(Content::builder("k").content_type(Some(&long))), Invalid::ContentTypeLength(256)),
        (build(Content::builder("k").header("n", "a\0b")), Invalid::Headers),
        (build(Content::builder("k").header("n", &"v".repeat(17_000))), Invalid::Headers),
    ];
    for (built, invalid) in refused {
        assert_eq!(built, Err(invalid));
        assert!(!invalid.to_string().is_empty());
    }
    let many = (0..65).fold(Content::builder("k"), |builder, _| builder.header("n", "v"));
    assert_eq!(build(many), Err(Invalid::Headers));
    for text in ["", "a b", "ä", "a/b", &"x".repeat(81)] {
        assert_eq!(QueueName::new("default", text).map(drop), Err(Invalid::Name));
        assert_eq!(QueueName::new(text, "orders").map(drop), Err(Invalid::Name));
    }
}

#[test]
fn the_longest_of_everything_is_taken() {
    let long = "x".repeat(255);
    let content = Content::builder(&long).group(Some(&long)).content_type(Some(&long));
    let content = content.header("n", &"v".repeat(16_000)).build(b"a").unwrap();
    let mut world = World::new();
    let queue = QueueName::new(&"t".repeat(80), &"q".repeat(80)).unwrap();
    let config = Config { dedup_scope: DedupScope::Group, ..Config::default() };
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    let sent =
        world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content.clone())));
    assert!(matches!(sent, Outcome::Sent(Answer::Accepted { .. })), "{sent:?}");
    world.checkpoint();
    world.crash();
    let sent = world.run(Command::Send(SendMessage::new(&recipe(), queue, content)));
    assert!(matches!(sent, Outcome::Sent(Answer::InFlight(_))), "{sent:?}");
}

#[test]
fn a_send_out_of_bounds_is_refused() {
    check(
        "
        queue  orders max_body=8
        send   - a                   => invalid MissingKey
        send   k1 a*9                => invalid BodyTooLarge { bytes: 9, max: 8 }
        send   k1 a*8                => accepted ready
        send   k2 a delay=367d       => invalid Delay(31708800000)
        send   k2 a delay=366d       => accepted delayed
        send   k3 a ttl=0            => invalid TimeToLive
        queue  grouped scope=group
        send   k1 a                  => invalid MissingGroup
        claim  k1 f                  => invalid MissingGroup
        ",
    );
}

#[test]
fn a_receive_out_of_bounds_is_refused() {
    check(
        "
        queue  orders
        send   k1 a
        receive w 0                  => invalid ReceiveMax
        receive w 1001               => invalid ReceiveMax
        receive w*65 1               => invalid Worker
        receive w 1 id=              => invalid Id
        receive w 1 id=i*129         => invalid Id
        receive w 1 lease=99         => invalid LeaseLength(99)
        receive w 1 lease=13h        => invalid LeaseLength(46800000)
        receive w*64 1000 id=i*128 lease=100  => k1#1
        ",
    );
}

#[test]
fn a_settle_out_of_bounds_is_refused_and_the_lease_holds() {
    check(
        "
        queue  emails
        queue  orders max_body=8
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done result=r*9    => invalid BodyTooLarge { bytes: 9, max: 8 }
        settle k1 fail delay=367d    => invalid Delay(31708800000)
        settle k1 extend lease=99    => invalid LeaseLength(99)
        settle k1 extend lease=13h   => invalid LeaseLength(46800000)
        settle k1 save - x           => invalid PointName
        settle k1 save p x*65536     => invalid Points
        settle k1 done emit=emails::hi  => invalid Emits
        settle k1 done result=r*8    => ok done
        ",
    );
}

#[test]
fn more_emits_than_allowed_are_refused() {
    let emits = |count: usize| {
        (0..count).map(|place| format!(" emit=emails:n{place}:hi")).collect::<String>()
    };
    let (many, most) = (emits(65), emits(64));
    check(&format!(
        "
        queue  emails
        queue  orders
        send   k1 a
        receive w 1                  => k1#1
        settle k1 done {many}        => invalid Emits
        settle k1 done {most}        => ok done
        "
    ));
}

#[test]
fn a_done_waits_while_too_many_emits_are_under_way() {
    let emits = |count: usize| {
        (0..count).map(|place| format!(" emit=emails:n{place}:hi")).collect::<String>()
    };
    let most = limits::RELAY_MAX / 2; // The other half is for other tenants.
    let (many, last) = (emits(64), emits(most % 64));
    let life = |key: usize, emits: &str| {
        format!("send k{key} a\nreceive w 1\nsettle k{key} done {emits}\n")
    };
    let lives: String = (0..most / 64).map(|key| life(key, &many)).collect();
    let rest = life(usize::MAX, &last);
    check_in(
        &[Mode::Plain],
        &format!(
            "
            queue  emails
            queue  orders
            {lives}
            {rest}
            send   k a
            receive w 1                          => k#1
            settle k done emit=emails:n:hi       => refused relay_full
            relay  reached                       => accepted ready
            settle k done emit=emails:n:hi       => ok done
            "
        ),
    );
}

#[test]
fn an_operators_mistake_is_refused() {
    let keys = vec!["k"; 1_001].join(",");
    check(&format!(
        "
        queue  orders max_body=8 on_lost=park lease=30s
        send   k1 a
        redrive r1 keys=             => invalid Redrive
        redrive r1 keys={keys}       => invalid Redrive
        redrive r1 all rate=0        => invalid Redrive
        redrive i*129 all            => invalid Id
        resolve k1 retry             => invalid State(\"ready\")
        forget k1                    => invalid State(\"ready\")
        replay k1 a                  => invalid State(\"ready\")
        receive w 1                  => k1#1
        discard k1                   => invalid State(\"leased\")
        settle k1 begin
        wait   1m
        resolve k1 done r*9          => invalid BodyTooLarge {{ bytes: 9, max: 8 }}
        resolve k1 done r*8          => ok
        replay k1                    => invalid BodyGone
        "
    ));
}

#[test]
fn a_filter_is_as_long_as_what_it_looks_for_and_no_longer() {
    let mut world = World::new();
    let (queue, config) = (name("orders"), Config::default());
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    let redrive = |error: Option<usize>, group: Option<usize>| {
        let text = |length: Option<usize>| length.map(|length| "x".repeat(length));
        let select = Select::Filter {
            error_contains: text(error),
            group: text(group),
            dead_before: None,
            dead_after: None,
        };
        let id = format!("r-{error:?}-{group:?}").into();
        Command::Redrive(Redrive { queue: queue.clone(), id, select, dry_run: false, per_s: None })
    };
    let (error, group) = (limits::ERROR_BYTES_MAX, limits::GROUP_BYTES_MAX);
    for (length, of_group) in [(Some(error), None), (None, Some(group))] {
        let told = world.run(redrive(length, of_group));
        assert!(!matches!(told, Outcome::Refused(_)), "{told:?}");
        let more = |length: Option<usize>| length.map(|length| length + 1);
        let told = world.run(redrive(more(length), more(of_group)));
        assert_eq!(told, Outcome::Refused(Refusal::Invalid(Invalid::Redrive)));
    }
}

#[test]
fn an_error_too_long_is_cut_at_a_character() {
    let mut world = World::new();
    let (queue, config) = (name("orders"), Config::default());
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    let content = Content::builder("k1").build(b"a").unwrap();
    world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content.clone())));
    let Outcome::Received(deliveries) = world.run(receive(&queue)) else {
        panic!("a receive is answered by deliveries");
    };
    let verb = Verb::Fail { error: "€".repeat(2_000), delay_ms: None, dead: true };
    world.run(Command::Settle(Settle { lease: deliveries[0].lease, verb }));
    world.crash();
    let sent = world.run(Command::Send(SendMessage::new(&recipe(), queue, content)));
    let Outcome::Sent(Answer::Dead { error, .. }) = sent else { panic!("{sent:?}") };
    assert_eq!(error.chars().count(), 4_096 / 3);
}

#[test]
fn a_foreign_lease_is_lost() {
    let mut world = World::new();
    let (queue, config) = (name("orders"), Config::default());
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    for key in ["k1", "k2"] {
        let content = Content::builder(key).build(b"a").unwrap();
        world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content)));
    }
    let mut two = receive(&queue);
    if let Command::Receive(receive) = &mut two {
        receive.max = 2;
    }
    let Outcome::Received(deliveries) = world.run(two) else {
        panic!("a receive is answered by deliveries");
    };
    let (one, other) = (deliveries[0].lease, deliveries[1].lease);
    let foreign = [
        LeaseName { digest: Digest([7; 16]), ..one },
        LeaseName { fence: other.fence, ..one },
        LeaseName { fence: Fence(u64::MAX), ..one },
        LeaseName { seq: other.seq, ..one },
        LeaseName { digest: other.digest, ..one },
    ];
    for lease in foreign {
        for verb in [
            Verb::Done { result: None, emits: Vec::new() },
            Verb::Fail { error: String::new(), delay_ms: None, dead: false },
            Verb::Release,
            Verb::Extend { lease_ms: None },
            Verb::Begin,
            Verb::Save { name: "p".into(), data: bytes::Bytes::new() },
        ] {
            let settled = world.run(Command::Settle(Settle { lease, verb }));
            let is_lost = matches!(settled, Outcome::Settled(Settled::LeaseLost { .. }));
            assert!(is_lost, "{lease:?}: {settled:?}");
        }
    }
    let verb = Verb::Done { result: None, emits: Vec::new() };
    let settled = world.run(Command::Settle(Settle { lease: one, verb }));
    assert!(matches!(settled, Outcome::Settled(Settled::Ok { .. })), "{settled:?}");
}

#[test]
fn a_replay_under_another_key_is_refused() {
    let mut world = World::new();
    let (queue, config) = (name("orders"), Config::default());
    world.run(Command::Configure(Box::new(Configure {
        queue: queue.clone(),
        config,
        if_version: None,
    })));
    let content = Content::builder("k1").build(b"a").unwrap();
    world.run(Command::Send(SendMessage::new(&recipe(), queue.clone(), content)));
    let Outcome::Received(deliveries) = world.run(receive(&queue)) else {
        panic!("a receive is answered by deliveries");
    };
    let verb = Verb::Done { result: None, emits: Vec::new() };
    world.run(Command::Settle(Settle { lease: deliveries[0].lease, verb }));
    for wrong in ["", "k2"] {
        let content = Content::builder(wrong).build(b"a").unwrap();
        let fingerprint = recipe().fingerprint(b"a", None);
        let key = KeyName { queue: queue.clone(), key: "k1".into(), group: None };
        let replay = Replay { key, content: Some((content, fingerprint)) };
        let refused = world.run(Command::Replay(replay));
        assert!(matches!(refused, Outcome::Refused(_)), "{wrong:?}: {refused:?}");
    }
}

#[test]
fn a_word_about_an_emit_that_nobody_knows_is_taken_calmly() {
    let mut world = World::new();
    for arrival in [Arrival::Arrived, Arrival::Later, Arrival::Refused("no".into())] {
        assert_eq!(world.run(Command::Relayed { id: 77, arrival }), Outcome::Ok);
    }
}

fn receive(queue: &QueueName) -> Command {
    Command::Receive(Receive {
        queue: queue.clone(),
        max: 1,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    })
}
