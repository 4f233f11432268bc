//! A3 and A4 through the binary: a journal that ends in the middle of a batch, and flipped bits.
//! What cannot be trusted is refused with its place and left as it is; nothing is ever made up.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::exits::{contents, without_zeros};
use crate::machine::say;
use crate::{broker_in, hapax};
use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, PATIENCE, Setup, printed};

const MESSAGES: usize = 24;
const DONE: usize = 8;

fn body(number: usize) -> String {
    format!("the body of {number}: {}", "lemon ".repeat(number))
}

/// Makes messages, one batch each, and finishes some.
fn fill(setup: &Setup) {
    let mut door = setup.connection();
    door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({}))).is(201);
    for number in 0..MESSAGES {
        door.ask(&Request::send("orders", &format!("k{number}"), body(number))).is(201);
        if number < DONE {
            let told = door.ask(&Request::post("/v1/queues/orders/receive", &json!({}))).is(200);
            let lease = &told["messages"][0]["lease"];
            let result = json!({ "body": format!("result of {number}") });
            let item = json!({ "lease": lease, "do": "done", "result": result });
            let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }));
            assert_eq!(door.ask(&settle).is(200)["answers"][0]["answer"], "ok");
        }
    }
}

/// How many of the keys are there, from the first on; all of them as they were. None where the
/// broker stopped over what it was asked for.
fn intact(setup: &Setup) -> Option<usize> {
    let mut door = setup.connection();
    let mut kept = 0;
    for number in 0..MESSAGES {
        let look = Request::get(&format!("/v1/queues/orders/keys/k{number}"));
        let response = door.try_ask(&look).ok()?;
        match response.status {
            404 => continue,
            503 => return None,
            _ => {}
        }
        let found = response.is(200);
        assert_eq!(kept, number, "a hole before {number}");
        kept += 1;
        match number < DONE {
            true => {
                let result = format!("result of {number}");
                assert_eq!(found["result"]["body"], json!(result), "{found}");
            }
            false => assert_eq!(found["body"], json!(body(number)), "{found}"),
        }
    }
    Some(kept)
}

/// A copy that may be damaged. Holes stay holes: the journal's segments are large and empty.
fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let copied = Command::new("cp").args(["-r", "--sparse=always"]).arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// The segment that is written to, and where its records begin and end.
fn records(data: &Path) -> (PathBuf, Vec<(u64, u64)>) {
    let folder = data.join("partition-0000");
    let mut segments: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.sort();
    for segment in segments.into_iter().rev() {
        let bytes = fs::read(&segment).unwrap();
        let mut found = Vec::new();
        // docs/disk-format.md: a header of 64 bytes, then records with a header of 48.
        let mut at = 64;
        while bytes.get(at..at + 4) == Some(b"HxJr") {
            let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
            let end = at + (48 + length as usize).next_multiple_of(16);
            found.push((at as u64, end as u64));
            at = end;
        }
        if !found.is_empty() {
            return (segment, found);
        }
    }
    panic!("no segment has records");
}

fn check(data: &Path) -> (bool, Value, String) {
    let output = hapax(&["check", "-o", "json"]).arg(data).output().unwrap();
    let found = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.success(), found, printed(&output))
}

#[test]
fn a3_a_torn_last_batch_is_cut_and_a_deeper_cut_is_refused_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let mut broker = setup.start();
    fill(&setup);
    broker.kill();
    let (segment, records) = records(&setup.data);
    let name = segment.file_name().unwrap().to_string_lossy().into_owned();
    assert!(records.len() > MESSAGES, "{records:?}");
    let (is_sound, whole, said) = check(&setup.data);
    assert!(is_sound, "{said}");
    let last_batch = whole["partitions"][0]["last_batch"].as_u64().unwrap();

    // At every eighth byte of the last batch, and at its ends. Looking changes nothing, so the
    // bytes are put back each time.
    let (start, end) = records[records.len() - 1];
    let original = fs::read(&segment).unwrap()[start as usize..end as usize].to_vec();
    let file = File::options().write(true).open(&segment).unwrap();
    let cuts = (start..end).step_by(8).chain([end - 1]);
    let mut torn = 0;
    for cut in cuts {
        let zeros = vec![0; (end - cut) as usize];
        if original[(cut - start) as usize..] == zeros {
            continue;
        }
        file.write_all_at(&zeros, cut).unwrap();
        let (is_sound, found, said) = check(&setup.data);
        assert!(is_sound, "cut at {cut}: {said}");
        assert_eq!(found["partitions"][0]["last_batch"], last_batch - 1, "cut at {cut}: {said}");
        file.write_all_at(&original, start).unwrap();
        torn += 1;
    }
    assert!(torn > 5, "{torn} cuts");
    assert_eq!(check(&setup.data).1["partitions"][0]["last_batch"], last_batch);

    // The broker itself, on a batch that is half there.
    let half = directory.path().join("half");
    copy(&setup.data, &half);
    let cut = start + (end - start) / 2;
    let zeros = vec![0; (end - cut) as usize];
    let copied = half.join("partition-0000").join(&name);
    File::options().write(true).open(&copied).unwrap().write_all_at(&zeros, cut).unwrap();
    let torn_setup = broker_in(directory.path()).data(&half);
    let mut torn_broker = torn_setup.start();
    let kept = intact(&torn_setup).unwrap();
    assert!(kept >= MESSAGES - 1, "{kept} of {MESSAGES} messages are left");
    torn_broker.kill();

    // Deeper: batches that are proven to have been there.
    let deep = directory.path().join("deep");
    copy(&setup.data, &deep);
    let (start, _) = records[records.len() / 2];
    let zeros = vec![0; (end - start) as usize];
    let copied = deep.join("partition-0000").join(&name);
    File::options().write(true).open(&copied).unwrap().write_all_at(&zeros, start).unwrap();
    let before = contents(&deep);
    let (is_sound, _, said) = check(&deep);
    assert!(!is_sound && said.contains(&name), "{said}");
    let (code, said) = broker_in(directory.path()).data(&deep).refuses();
    assert!(code != 0 && said.contains(&name) && said.contains(&start.to_string()), "{said}");
    assert!(before == contents(&deep), "refusing changed something");
    say(&format!("A3: the last batch cut at {torn} places; a deeper cut refused at byte {start}"));
}

/// The kind of a file, by its name.
fn kind(path: &Path) -> String {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let letters = |letter: char| letter.is_ascii_alphabetic() || letter == '.';
    name.split(|letter| !letters(letter)).next().unwrap_or(&name).to_owned()
}

#[test]
fn a4_a_flipped_bit_is_refused_or_harmless_and_never_changes_a_message() {
    let directory = tempfile::tempdir().unwrap();
    let setup = broker_in(directory.path());
    let broker = setup.start();
    fill(&setup);
    broker.stop();
    // Once with everything in rows, once with a journal behind them.
    let mut broker = setup.start();
    let mut door = setup.connection();
    door.ask(&Request::new("PUT", "/v1/queues/another").json(&json!({}))).is(201);
    door.ask(&Request::send("another", "k", "x")).is(201);
    broker.kill();

    let (pristine, flipped) = (directory.path().join("pristine"), directory.path().join("flipped"));
    copy(&setup.data, &pristine);
    let mut outcomes: Vec<(String, &str)> = Vec::new();
    for path in contents(&pristine).into_keys() {
        for (offset, bit) in places(&path) {
            copy(&pristine, &flipped);
            let target = flipped.join(path.strip_prefix(&pristine).unwrap());
            flip(&target, offset, bit);
            let place = format!("{} at {offset}", target.display());
            let flipped_setup = broker_in(directory.path()).data(&flipped);
            let told = flipped_setup.log().len();
            let outcome = match flipped_setup.try_start() {
                Ok(broker) => outlives(broker, &place),
                Err(_) => "refused",
            };
            if outcome != "harmless" {
                let said = flipped_setup.log().split_off(told);
                let name = path.file_name().unwrap().to_string_lossy();
                // A number that became a larger one looks like a newer release's.
                let is_explained = said.contains(&*name) || said.contains("newer release");
                assert!(is_explained, "a flip in {place}: {said}");
                flip(&target, offset, bit);
            }
            match outcome {
                "refused" => {
                    let is_same =
                        same(&contents(&pristine), &pristine, &contents(&flipped), &flipped);
                    assert!(is_same, "a flip in {place} was refused, and something was changed");
                }
                "stopped" => {
                    let _broker = flipped_setup.start();
                    assert_eq!(intact(&flipped_setup), Some(MESSAGES), "cured of {place}");
                }
                _ => {}
            }
            assert!(!flipped_setup.log().contains("panicked"), "a flip in {place}");
            outcomes.push((kind(&path), outcome));
        }
    }
    let refused = outcomes.iter().filter(|(_, outcome)| *outcome != "harmless").count();
    assert!(refused > 5, "{outcomes:?}");
    for needed in ["journal", "run", "MANIFEST", "format"] {
        let of_kind = |(kind, outcome): &&(String, &str)| kind == needed && *outcome != "harmless";
        assert!(outcomes.iter().any(|it| of_kind(&it)), "{needed} was never refused: {outcomes:?}");
    }
    say(&format!("A4: {} bits flipped, {refused} refused, the rest harmless", outcomes.len()));
}

/// A broker that started: nothing of what it knows is changed, or it stops over what it reads.
/// Blocks of rows are looked at when they are read, not when the data is opened.
fn outlives(mut broker: BrokerProcess, place: &str) -> &'static str {
    match intact(&broker.setup) {
        Some(kept) => {
            assert_eq!(kept, MESSAGES, "after a flip in {place}");
            "harmless"
        }
        None => {
            let status = broker.ends(PATIENCE);
            assert!(!status.success(), "it ended as if all were well");
            "stopped"
        }
    }
}

type Contents = std::collections::BTreeMap<PathBuf, (u64, u64)>;

/// Whether two directories hold the same files.
fn same(one: &Contents, at_one: &Path, other: &Contents, at_other: &Path) -> bool {
    let relative = |all: &Contents, at: &Path| -> Contents {
        let files = all.iter();
        files.map(|(path, file)| (path.strip_prefix(at).unwrap().to_owned(), *file)).collect()
    };
    relative(one, at_one) == relative(other, at_other)
}

/// Where to flip: at the ends, in the middle, and in every digit of the small head, whose numbers
/// mean something else then.
fn places(path: &Path) -> Vec<(u64, u8)> {
    let bytes = fs::read(path).unwrap();
    let used = without_zeros(&bytes);
    let Some(last) = used.len().checked_sub(1).map(|last| last as u64) else { return Vec::new() };
    if path.ends_with("broker.json") {
        let digits = used.iter().enumerate().filter(|(_, byte)| byte.is_ascii_digit());
        let digits = digits.flat_map(|(offset, _)| (0..4).map(move |bit| (offset as u64, bit)));
        return digits.chain([(0, 1), (5, 3), (last, 6)]).collect();
    }
    let mut places = vec![(0, 1), (last / 4, 3), (last / 2, 5), (last, 2)];
    places.sort_unstable();
    places.dedup();
    places
}

fn flip(path: &Path, offset: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], offset).unwrap();
}
