//! The bytes of decisions and rows: every kind reads back, nothing else is taken for one, and
//! what an older release wrote stays readable.
//!
//! A golden file holds one batch with every kind of decision and the rows of a partition with
//! every kind of row. Where the format changes, it gets a new version and a golden file of its
//! own, and the older ones stay. The second version added kinds and fields to the first.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use super::script::{after_in, blob, name, say_to};
use crate::support::{Rows, START, World, entries, to_lines};

const FIRST: &str = include_str!("../golden/decisions-v1.hex");
const GOLDEN: &str = include_str!("../golden/decisions-v2.hex");

const AT: Time = Time(START);

fn batch(decisions: &[Decision]) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.begin(AT);
    let mut bytes = batch.bytes().to_vec();
    decisions.iter().for_each(|decision| decision.encode(&mut bytes));
    bytes
}

#[test]
fn every_decision_reads_back() {
    let decisions = every_decision();
    for decision in &decisions {
        let read = read_batch(&batch(std::slice::from_ref(decision)));
        assert_eq!(read, Ok((AT, vec![decision.clone()])));
    }
    assert_eq!(read_batch(&batch(&decisions)), Ok((AT, decisions)));
}

#[test]
fn no_decision_is_read_from_a_part_of_one() {
    let header = batch(&[]).len();
    for decision in every_decision() {
        let bytes = batch(std::slice::from_ref(&decision));
        assert_eq!(read_batch(&bytes[..header]), Ok((AT, Vec::new())));
        for cut in (0..header).chain(header + 1..bytes.len()) {
            let read = read_batch(&bytes[..cut]);
            assert!(read.is_err(), "{decision:?} cut at {cut} of {}: {read:?}", bytes.len());
        }
    }
}

#[test]
fn an_unknown_kind_or_version_is_refused() {
    let header = batch(&[]).len();
    for tag in [0, 32, 99, 255] {
        let mut bytes = batch(&every_decision()[..1]);
        bytes[header] = tag;
        assert_eq!(read_batch(&bytes), Err(BadBytes::Tag("decision", tag)));
    }
    let mut bytes = batch(&every_decision());
    bytes[0] = 2;
    assert_eq!(read_batch(&bytes), Err(BadBytes::Tag("batch", 2)));
}

#[test]
fn no_byte_that_is_changed_makes_reading_panic() {
    let bytes = batch(&every_decision());
    for place in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[place] ^= flip;
            let _ = read_batch(&bytes);
        }
    }
}

#[test]
fn counting_a_duplicate_is_not_journaled() {
    let counted = Decision::Counted { digest: Digest([1; 16]), queue: 1 };
    assert!(!counted.is_durable());
    assert_eq!(batch(&[counted]), batch(&[]));
}

#[test]
fn the_first_version_stays_readable() {
    let (_, bytes) =
        entries(FIRST).into_iter().find(|(title, _)| title == "batch").expect("a batch");
    assert_eq!(read_batch(&bytes), Ok((AT, first_decisions())));

    let mut now = World::reopened(Recipe::First, every_row().rows().clone());
    let mut then = World::reopened(Recipe::First, Rows::from_text(FIRST));
    for line in LOOKS.lines().filter(|line| !line.trim().is_empty()) {
        assert_eq!(say_to(&mut then, line), say_to(&mut now, line), "{line}");
    }
    // The older release kept the time of the first lease.
    assert_eq!(say_to(&mut then, "look @emails e2 took"), "leased=+0 finished=+61s");
    // What a redrive of the older release was asked for is not known: its id may be repeated.
    let repeated = say_to(&mut then, "redrive @orders r3 all");
    assert_eq!(repeated, say_to(&mut then, "redriven @orders r3"));
    // An emit keeps the key that the older release derived: its queue may know it already.
    assert_eq!(
        say_to(&mut then, "relays"),
        "emails 55530d2e759d6e8b519ad6dcbf6d2c35 hi tries=1 ; \
         emails 7c3b8681d0a8ee7facbdaef90714767b ho tries=0"
    );
}

#[test]
fn the_second_version_stays_readable() {
    let (_, bytes) =
        entries(GOLDEN).into_iter().find(|(title, _)| title == "batch").expect("a batch");
    assert_eq!(read_batch(&bytes), Ok((AT, every_decision())));

    let mut now = World::reopened(Recipe::First, every_row().rows().clone());
    let mut then = World::reopened(Recipe::First, Rows::from_text(GOLDEN));
    for line in format!("{LOOKS}{NEW_LOOKS}").lines().filter(|line| !line.trim().is_empty()) {
        assert_eq!(say_to(&mut then, line), say_to(&mut now, line), "{line}");
    }
}

#[test]
fn every_kind_of_row_is_among_them() {
    let entries = entries(GOLDEN);
    let has = |start: &str| entries.iter().any(|(title, _)| title.starts_with(start));
    for table in ["01", "02", "03", "04", "05", "06"] {
        assert!(has(&format!("row {table}")), "table {table}");
    }
    for file in ["00", "01", "02", "03", "04", "05"] {
        let is_filed = |queue: &str| has(&format!("row 10{queue}{file}"));
        assert!(is_filed("00000000") || is_filed("00000001"), "file {file}");
    }
    for tag in [1, 2, 3] {
        let is_tagged = |entry: &&(String, Vec<u8>)| {
            entry.0.starts_with("point") && entry.1.first() == Some(&tag)
        };
        assert!(entries.iter().find(is_tagged).is_some(), "point {tag}");
    }
}

#[test]
fn what_is_written_is_the_second_version() {
    let bytes = to_lines(&batch(&every_decision()));
    let written = format!("batch\n{bytes}{}", every_row().rows().to_text());
    assert!(
        written == GOLDEN,
        "the format changed: give it a new version and keep reading this one. Before the \
         release of this one, write this to tests/golden/decisions-v2.hex instead:\n{written}"
    );
}

/// A partition with every kind of row: the machine, queues, relays, receives, redrives, leads,
/// messages in every place, finished keys with little and with much to say, groups.
const EVERY_ROW: &str = "
    queue  orders order=group max_attempts=2 on_lost=park retention=48h on_group_dead=park
    queue  emails max_messages=9 max_bytes=9999 sends_per_s=99 ttl=9d retention=forever
    send   @orders g1 a group=g type=text/plain
    send   @orders g2 a group=g
    send   @orders h1 a group=h
    receive @orders w1 2 id=r1
    settle g1 save charged yes
    settle g1 begin
    send   @orders n1 a delay=3h
    send   @orders n2 a ttl=1h fp=own
    receive @orders w2 1
    settle h1 fail error=boom dead
    wait   40s
    send   @emails e1 a
    send   @emails e2 b
    send   @emails e3 c
    claim  @emails c1 f by=w9 lease=1h
    claim  @emails c2 f by=w9 lease=1h
    settle c2 release
    receive @emails w3 2
    settle e1 done result=x emit=emails:next:hi emit=emails:more:ho
    settle e2 fail error=later delay=1m
    wait   61s
    receive @emails w4 1
    settle e2 done result=y
    relay  failed
    send   @orders i1 a group=i
    send   @orders i2 a group=i
    redrive @orders r2 all dry
    redrive @orders r3 error=nothing
    pause  @emails
";

/// What the first version had no rows for: a claim under an id, a key dated ahead, a kept body, a
/// message that its holder parked, redrives with all they know, emits with all they carry, a
/// retention that was raised.
const NEW_ROWS: &str = "
    queue  charges on_lost=park keep_bodies retention=48h
    claim  @charges c3 f by=w9 lease=1h id=claim-1
    send   @charges d1 a issued=+1h
    send   @charges p1 a
    send   @charges e4 a
    receive @charges w 9 lease=1h
    settle p1 begin
    settle p1 park error=half
    settle e4 done result=x emit=emails:a:hi::1m:1h:own emit=emails:b:ho
    settle d1 fail dead
    redrive @charges r4 keys=c3,k9
    redrive @charges r5 after=-1h rate=1 dry
    redrive @orders r6 all rate=1 dry
    cancel @orders r6
    queue  charges on_lost=park keep_bodies retention=50h
";

const NEW_LOOKS: &str = "
    look   @emails e2 history took
    look   @charges c3 history worker
    claim  @charges c3 f id=claim-1
    look   @charges d1 history error
    look   @charges p1 history error
    look   @charges e4 body result
    redriven @charges r4 total missing
    redriven @charges r5 total missing
    redriven @orders r6 total
    show   @orders ready held
    relays
    resolve @charges p1 done y
    replay @charges e4
    receive @charges w 9
";

const LOOKS: &str = "
    look   @orders g1 history points attempts losses worker error
    look   @orders g2 history attempts
    look   @orders h1 history attempts error
    look   @orders n1
    look   @orders n2
    look   @emails e1 history result worker took remembered attempts
    look   @emails e2 result worker remembered attempts
    look   @emails e3 history
    look   @emails c1 history worker
    look   @emails c2
    show   @orders ready delayed leased parked dead keys bytes sent done failed lost version
    show   @emails ready delayed leased parked dead keys bytes sent done failed lost version paused
    browse @orders parked
    browse @orders dead
    redriven @orders r2
    redriven @orders r3
    send   @orders n2 b fp=own
    send   @orders n2 b
    claim  @emails c1 f
    claim  @emails c2 f
    resume @emails
    receive @emails w5 9
    discard @orders h1
    resolve @orders g1 retry
    receive @orders w6 9 several
";

fn every_row() -> World {
    let mut world = after_in(Recipe::First, &format!("{EVERY_ROW}{NEW_ROWS}"));
    let Some(id) = world.machine.relays().last().map(|relay| relay.id) else {
        panic!("an emit waits");
    };
    world.run(Command::Relayed { id, arrival: Arrival::Refused("never".into()) });
    world.checkpoint();
    world
}

fn content(key: &str, group: Option<&str>) -> Arc<Content> {
    let builder = Content::builder(key).group(group).content_type(Some("text/plain"));
    builder.header("traceparent", "00-1").build(b"body\0\xff").unwrap()
}

fn every_decision() -> Vec<Decision> {
    let mut decisions = first_decisions();
    decisions.extend(later_decisions());
    decisions
}

/// What came with the second version.
fn later_decisions() -> Vec<Decision> {
    let (digest, fence) = (Digest([7; 16]), Fence::new(3, 1_234_567));
    let kept = Config { keep_bodies: true, guarantee: Guarantee::AtMostOnce, ..Config::default() };
    let configured = Configured { queue: 3, name: name("acme/orders"), config: kept, version: 2 };
    let emit = Emit {
        delay_ms: Some(7),
        ttl_ms: Some(9),
        fingerprint: Some(Recipe::First.own("mine")),
        ..Emit::new(name("emails"), "receipt", content("k9", None))
    };
    let plain = Emit::new(name("emails"), "", content("k8", Some("g")));
    let started = RedriveStarted {
        queue: 3,
        job: digest,
        id: "r1".into(),
        error_contains: None,
        group: None,
        dead_before: Time::NEVER,
        dead_after: Some(AT),
        dry_run: false,
        per_s: None,
        by_keys: true,
        total: Some(3),
        missing: vec!["k1".into(), "k2".into()],
        asked: None,
    };
    let all = RedriveStarted { dead_after: None, missing: Vec::new(), ..started.clone() };
    let asked = RedriveStarted { asked: Some(Digest([5; 16])), ..started.clone() };
    let digests = vec![Digest([1; 16]), Digest([2; 16])];
    let leased = Leased {
        queue: 3,
        fence,
        deadline: AT.plus(30_000),
        worker: "w1".into(),
        receive: Some(Digest([9; 16])),
        finish: false,
        digests,
        step: 4_096,
    };
    let claim = |id: Option<Digest>, dated_ahead| {
        let worker = "w1".into();
        let lease = ClaimLease { fence, deadline: AT.plus(9), worker, begun: false, id };
        let Some(Decision::Accepted(plain)) = accepted(digest, fence).into_iter().next() else {
            panic!("an accepted one comes first");
        };
        let claim = id.is_some().then_some(lease);
        Decision::Accepted(Box::new(Accepted { claim, dated_ahead, ..*plain }))
    };
    let mut decisions = vec![
        Decision::Configured(Box::new(configured)),
        claim(Some(Digest([4; 16])), None),
        claim(Some(Digest([4; 16])), Some(AT.plus(77))),
        claim(None, Some(AT.plus(77))),
        Decision::Leased(Box::new(leased)),
        Decision::Done { digest, fence, result: None, emits: vec![emit, plain] },
        Decision::RedriveStarted(Box::new(started)),
        Decision::RedriveStarted(Box::new(all)),
        Decision::RedriveStarted(Box::new(asked)),
        Decision::RedriveCancelled { queue: 3, job: digest },
        Decision::RelayRefused { id: 300, error: "no".into(), key: None },
        Decision::RelayRefused { id: 300, error: "no".into(), key: Some("k1~1".into()) },
    ];
    decisions.extend([Next::Parked, Next::Dead, Next::Delayed(AT)].map(|next| Decision::Parked {
        digest,
        fence,
        error: "doubt".into(),
        next,
    }));
    decisions
}

/// What the first version had.
fn first_decisions() -> Vec<Decision> {
    let (digest, fence) = (Digest([7; 16]), Fence::new(3, 1_234_567));
    let digests = vec![Digest([1; 16]), Digest([2; 16])];
    let later = AT.plus(30_000);
    let mut decisions = administrative(digest, &digests);
    decisions.extend(accepted(digest, fence));
    decisions.extend([None, Some(Digest([9; 16]))].map(|receive| {
        let (worker, digests) = ("w1".into(), digests.clone());
        let finish = receive.is_none();
        let deadline = later;
        let (queue, step) = (3, 1);
        let leased = Leased { queue, fence, deadline, worker, receive, finish, digests, step };
        Decision::Leased(Box::new(leased))
    }));
    let emit = |key: &str, delay_ms| Emit {
        delay_ms,
        ..Emit::new(name("emails"), "receipt", content(key, None))
    };
    let emits = vec![emit("k9", None), emit("", Some(5_000))];
    let result = Blob { content_type: Some("a/b".into()), body: Bytes::from_static(b"\0r") };
    decisions.extend([
        Decision::Done { digest, fence, result: Some(result.clone()), emits },
        Decision::Done { digest, fence, result: None, emits: Vec::new() },
        Decision::Extended { digest, fence, deadline: later },
        Decision::Begun { digest, fence },
        Decision::Saved { digest, fence, name: "p".into(), data: Bytes::from_static(b"data") },
        Decision::Died { digest, error: "old".into() },
        Decision::Discarded { digest },
        Decision::Forgotten { digest, queue: 3 },
        Decision::Rerun { digest },
        Decision::Replayed {
            digest,
            queue: 3,
            content: content("k1", Some("g")),
            fingerprint: Recipe::First.fingerprint(b"a", Some("g")),
        },
        Decision::Resolved { digest, done: true, result: Some(blob("x")), next: Next::Ready },
        Decision::Resolved { digest, done: false, result: None, next: Next::Freed },
    ]);
    for next in [Next::Ready, Next::Delayed(later), Next::Dead, Next::Parked, Next::Freed] {
        decisions.extend([
            Decision::Failed { digest, fence, error: "boom".into(), next },
            Decision::Lost { digest, fence, next },
            Decision::Released { digest, fence, next },
        ]);
    }
    decisions
}

fn administrative(digest: Digest, digests: &[Digest]) -> Vec<Decision> {
    let odd = Config {
        guarantee: Guarantee::AtLeastOnce,
        order: Order::Group,
        dedup_scope: DedupScope::Group,
        retention_ms: None,
        undated_keys: UndatedKeys::Refuse,
        ttl_ms: Some(1),
        on_dead: OnDead::Release,
        on_group_dead: OnGroupDead::Park,
        on_lost: OnLost::Park,
        max_messages: Some(u64::MAX - 1),
        max_bytes: Some(0),
        sends_per_s: Some(u32::MAX),
        ..Config::default()
    };
    let configured = |queue, config, version| {
        let name = name("acme/orders");
        Decision::Configured(Box::new(Configured { queue, name, config, version }))
    };
    let started = RedriveStarted {
        queue: 3,
        job: digest,
        id: "r1".into(),
        error_contains: Some("boom".into()),
        group: Some("g".into()),
        dead_before: AT,
        dead_after: None,
        dry_run: true,
        per_s: Some(9),
        by_keys: false,
        total: None,
        missing: Vec::new(),
        asked: None,
    };
    let all = RedriveStarted {
        error_contains: None,
        group: None,
        dead_before: Time::NEVER,
        dry_run: false,
        per_s: None,
        by_keys: true,
        ..started.clone()
    };
    let (queue, matched) = (3, 5);
    vec![
        configured(0, Config::default(), 1),
        configured(3, odd, 300),
        Decision::Paused { queue, paused: true },
        Decision::Paused { queue, paused: false },
        Decision::PurgeStarted { queue, below: 1_000_000, keys: true, delete: false },
        Decision::PurgeStarted { queue, below: 1, keys: false, delete: true },
        Decision::Purged { queue, digests: digests.to_vec(), finished: false },
        Decision::Purged { queue, digests: Vec::new(), finished: true },
        Decision::RedriveStarted(Box::new(started)),
        Decision::RedriveStarted(Box::new(all)),
        Decision::Redriven {
            queue,
            job: digest,
            digests: digests.to_vec(),
            matched,
            cursor: 77,
            done: true,
        },
        Decision::Relayed { id: 300 },
        Decision::RelayRetried { id: 300, attempts: 2, next_at: AT.plus(100) },
    ]
}

fn accepted(digest: Digest, fence: Fence) -> Vec<Decision> {
    let plain = Accepted {
        seq: 1_000_000,
        queue: 3,
        digest,
        fingerprint: Recipe::First.fingerprint(b"a", None),
        content: Content::builder("k1").build(b"a").unwrap(),
        due: None,
        ttl_at: Time::NEVER,
        claim: None,
        dated_ahead: None,
    };
    let rich = Accepted {
        fingerprint: Recipe::First.fingerprint(b"a", Some("g")),
        content: content("k1", Some("g")),
        due: Some(AT.plus(1)),
        ttl_at: AT.plus(2),
        ..plain.clone()
    };
    let claim = |begun| {
        let (worker, id) = ("w1".into(), None);
        let lease = ClaimLease { fence, deadline: AT.plus(9), worker, begun, id };
        Accepted { fingerprint: Recipe::First.own("f"), claim: Some(lease), ..plain.clone() }
    };
    let all = [plain.clone(), rich, claim(false), claim(true)];
    all.map(|accepted| Decision::Accepted(Box::new(accepted))).to_vec()
}
