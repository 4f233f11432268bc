//! A20, the first half: a stop under load, and an old binary on newer data.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hapax_testing::Signal;
use serde_json::{Value, json};

use crate::machine::say;
use crate::{broker_in, hapax};
use hapax_testing::http::Request;
use hapax_testing::load::{Load, resend_all};
use hapax_testing::printed;

const STOPS: usize = 4;
const PER_LIFE: usize = 20;
const BOUND: Duration = Duration::from_secs(30);

on_one_and_on_four!(a20_a_stop_under_load_is_over_in_thirty_seconds_and_loses_nothing);

fn a20_a_stop_under_load_is_over_in_thirty_seconds_and_loses_nothing(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let load = Load::start(&setup);
    let mut cut_off = 0;
    let mut longest = Duration::ZERO;
    for _ in 0..STOPS {
        load.gets_on(PER_LIFE);
        cut_off += load.in_flight().iter().sum::<usize>();
        // A hangup asks to read certificates again, and is no reason to end.
        broker.signal(Signal::HUP);
        load.gets_on(PER_LIFE / 4);
        let told = Instant::now();
        broker.signal(Signal::TERM);
        let status = broker.ends(BOUND);
        assert!(status.success(), "{status:?}\n{}", setup.log());
        longest = longest.max(told.elapsed());
        let check = hapax(&["check", "-o", "json"]).arg(&setup.data).output().unwrap();
        let found: Value = serde_json::from_slice(&check.stdout).unwrap();
        assert_eq!(found["sound"], true, "{found}");
        for number in 0..usize::from(partitions) {
            assert_eq!(found["partitions"][number]["sealed"], true, "in good order: {found}");
        }
        broker = setup.start();
    }
    let progress = load.progress();
    let history = load.finish();
    broker.stop();
    let broker = setup.start();
    resend_all(&setup, &history);
    assert!(cut_off > 0, "nothing was under way");
    for count in [progress.http, progress.grpc] {
        assert!(count.sent > STOPS * PER_LIFE && count.done > STOPS * PER_LIFE, "{count:?}");
    }
    broker.has_not_panicked();
    say(&format!("A20: {STOPS} stops under load, the longest took {longest:.1?}"));
}

#[test]
fn a20_an_old_binary_refuses_newer_data_and_leaves_it_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let id = door.ask(&Request::send("orders", "k", "x")).is(201)["id"].clone();
    broker.stop();

    let head = setup.data.join("broker.json");
    let marker = setup.data.join("partition-0000/format");
    let newer_head = |old: &[u8]| {
        let mut head: Value = serde_json::from_slice(old).unwrap();
        head["format"] = json!(head["format"].as_u64().unwrap() + 1);
        head["something"] = json!("this release knows nothing of");
        head.to_string().into_bytes()
    };
    let newer_marker = |old: &[u8]| {
        let mut marker = old.to_vec();
        marker[8] += 1;
        let checksum = crc32c(&marker[..20]);
        marker[20..24].copy_from_slice(&checksum.to_le_bytes());
        marker
    };
    type Newer<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let files: [(&Path, Newer<'_>); 2] = [(&head, &newer_head), (&marker, &newer_marker)];
    for (file, newer) in files {
        let old = fs::read(file).unwrap();
        fs::write(file, newer(&old)).unwrap();
        let before = contents(&setup.data);
        let (code, said) = setup.refuses();
        assert_ne!(code, 0, "{said}");
        assert!(said.contains("newer"), "{said}");
        for arguments in [&["check"][..], &["backup"][..]] {
            let mut command = hapax(arguments);
            command.arg(&setup.data);
            if arguments == ["backup"] {
                command.arg(directory.path().join("never"));
            }
            let told = command.output().unwrap();
            assert!(!told.status.success(), "{arguments:?}");
            assert!(printed(&told).contains("newer"), "{arguments:?}: {}", printed(&told));
        }
        let after = contents(&setup.data);
        assert!(before == after, "{} changed something", file.display());
        fs::write(file, old).unwrap();
    }

    // With its own release it is all there.
    let broker = setup.start();
    let known = broker.connection().ask(&Request::send("orders", "k", "x")).is(200);
    assert_eq!(known["id"], id);
    broker.has_not_panicked();
}

on_one_and_on_four!(a_second_broker_is_kept_out_also_where_the_lock_file_was_removed);

fn a_second_broker_is_kept_out_also_where_the_lock_file_was_removed(partitions: u16) {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path()).partitions(partitions);
    let mut broker = setup.start();
    let second = tempfile::tempdir().unwrap();
    fs::remove_file(setup.data.join("partition-0000/LOCK")).unwrap();
    let (code, said) = broker_in(second.path()).data(&setup.data).refuses();
    assert!(code != 0 && said.contains("another process holds"), "{said}");
    let check = hapax(&["check"]).arg(&setup.data).output().unwrap();
    assert!(printed(&check).contains("in use"), "{}", printed(&check));
    broker.is_alive();
    broker.stop();
}

#[test]
fn more_connections_than_files_do_not_end_the_broker() {
    let directory = tempfile::tempdir().unwrap();
    let setup =
        broker_in(directory.path()).under(&["sh", "-c", "ulimit -n 200 && exec \"$0\" \"$@\""]);
    let mut broker = setup.start();
    let mut door = broker.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    let idle: Vec<std::net::TcpStream> =
        (0..400).filter_map(|_| std::net::TcpStream::connect(setup.address).ok()).collect();
    assert!(idle.len() > 200, "{} connections", idle.len());
    for number in 0..50 {
        door.ask(&Request::send("orders", &format!("k{number}"), "x".repeat(200_000))).is(201);
    }
    broker.is_alive();
    drop(idle);
    broker.stop();
    assert!(!setup.log().contains("Too many open files"), "{}", setup.log());
}

/// Every file, with its length and a digest of its bytes.
pub(crate) fn contents(directory: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let mut hasher = DefaultHasher::new();
            hasher.write(without_zeros(&bytes));
            found.insert(path, (bytes.len() as u64, hasher.finish()));
        }
    }
    found
}

/// All but the zeros at the end, of which segments are full.
pub(crate) fn without_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = [0; 4_096];
    let empty = bytes.rchunks(zeros.len()).take_while(|chunk| **chunk == zeros[..chunk.len()]);
    let used = bytes.len() - empty.map(<[u8]>::len).sum::<usize>();
    let last = bytes[..used].iter().rposition(|byte| *byte != 0);
    &bytes[..last.map_or(0, |last| last + 1)]
}

/// As docs/disk-format.md has it.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}
