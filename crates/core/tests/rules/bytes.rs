//! The bytes of decisions and rows: every kind reads back, nothing else is taken for one, and
//! what an older release wrote stays readable.
//!
//! The golden file holds one batch with every kind of decision and the rows of a partition with
//! every kind of row. Where the format changes, it gets a new version and a golden file of its
//! own, and this one stays.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use super::script::{after, blob, name, say_to};
use crate::support::{Rows, START, World, entries, to_lines};

const GOLDEN: &str = include_str!("../golden/decisions-v1.hex");

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
    for tag in [0, 24, 99, 255] {
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
        entries(GOLDEN).into_iter().find(|(title, _)| title == "batch").expect("a batch");
    assert_eq!(read_batch(&bytes), Ok((AT, every_decision())));

    let mut now = World::reopened(every_row().rows().clone());
    let mut then = World::reopened(Rows::from_text(GOLDEN));
    for line in LOOKS.lines().filter(|line| !line.trim().is_empty()) {
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
fn what_is_written_is_the_first_version() {
    let bytes = to_lines(&batch(&every_decision()));
    let written = format!("batch\n{bytes}{}", every_row().rows().to_text());
    assert!(
        written == GOLDEN,
        "the format changed: give it a new version and keep reading this one. Before the first \
         release, write this to tests/golden/decisions-v1.hex instead:\n{written}"
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

const LOOKS: &str = "
    look   @orders g1 history points attempts losses worker error
    look   @orders g2 history attempts
    look   @orders h1 history attempts error
    look   @orders n1
    look   @orders n2
    look   @emails e1 history result worker took remembered attempts
    look   @emails e2 history result worker took remembered attempts
    look   @emails e3 history
    look   @emails c1 history worker
    look   @emails c2
    show   @orders ready delayed leased parked dead keys bytes sent done failed lost version
    show   @emails ready delayed leased parked dead keys bytes sent done failed lost version paused
    browse @orders parked
    browse @orders dead
    redriven @orders r2
    redriven @orders r3
    relays
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
    let mut world = after(EVERY_ROW);
    world.checkpoint();
    world
}

fn content(key: &str, group: Option<&str>) -> Arc<Content> {
    let builder = Content::builder(key).group(group).content_type(Some("text/plain"));
    builder.header("traceparent", "00-1").build(b"body\0\xff").unwrap()
}

fn every_decision() -> Vec<Decision> {
    let (digest, fence) = (Digest([7; 16]), Fence::new(3, 1_234_567));
    let digests = vec![Digest([1; 16]), Digest([2; 16])];
    let later = AT.plus(30_000);
    let mut decisions = administrative(digest, &digests);
    decisions.extend(accepted(digest, fence));
    decisions.extend([None, Some(Digest([9; 16]))].map(|receive| {
        let (worker, digests) = ("w1".into(), digests.clone());
        let finish = receive.is_none();
        let deadline = later;
        let leased = Leased { queue: 3, fence, deadline, worker, receive, finish, digests };
        Decision::Leased(Box::new(leased))
    }));
    let emit = |key: &str, delay_ms| Emit {
        queue: name("emails"),
        name: "receipt".into(),
        content: content(key, None),
        delay_ms,
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
            fingerprint: Fingerprint::of(b"a", Some("t"), Some("g")),
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
        dry_run: true,
        per_s: Some(9),
        by_keys: false,
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
        fingerprint: Fingerprint::of(b"a", None, None),
        content: Content::builder("k1").build(b"a").unwrap(),
        due: None,
        ttl_at: Time::NEVER,
        claim: None,
    };
    let rich = Accepted {
        fingerprint: Fingerprint::of(b"a", Some("t"), Some("g")),
        content: content("k1", Some("g")),
        due: Some(AT.plus(1)),
        ttl_at: AT.plus(2),
        ..plain.clone()
    };
    let claim = |begun| {
        let lease = ClaimLease { fence, deadline: AT.plus(9), worker: "w1".into(), begun };
        Accepted { fingerprint: Fingerprint::own("f"), claim: Some(lease), ..plain.clone() }
    };
    let all = [plain.clone(), rich, claim(false), claim(true)];
    all.map(|accepted| Decision::Accepted(Box::new(accepted))).to_vec()
}
