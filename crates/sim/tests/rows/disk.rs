//! A3 to A6: what the disk does.

use hapax_core::{Answer, Command, Config, Outcome, Place, Settled};
use hapax_partition::Error;
use hapax_sim::SimDisk;
use hapax_sim::volume::Trigger;
use hapax_store::Error as StoreError;

use crate::rig::{Rig, content, done, key, receive, send};

const SEGMENT: &str = "journal-00000001.seg";

/// The end of what was written to the first segment.
fn end_of_journal(disk: &SimDisk) -> u64 {
    let bytes = disk.contents(SEGMENT).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1
}

fn is_known(rig: &mut Rig, name: &str) -> bool {
    match rig.call(Command::Look(key(name))) {
        Outcome::Key(view) => {
            assert_eq!(view.content, Some(content(name, &format!("body of {name}"))));
            true
        }
        Outcome::Refused(_) => false,
        other => panic!("{other:?}"),
    }
}

fn send_two(rig: &mut Rig, first: &str, second: &str) {
    let batch = [first, second].map(|name| send(name, &format!("body of {name}")));
    for outcome in rig.try_call(batch.into()).unwrap() {
        assert!(matches!(outcome, Outcome::Sent(Answer::Accepted { .. })), "{outcome:?}");
    }
}

#[test]
fn a3_the_last_batch_cut_at_every_byte_survives_whole_or_not_at_all() {
    let mut rig = Rig::new(Config::default());
    send_two(&mut rig, "a", "b");
    let first = end_of_journal(&rig.disk);
    send_two(&mut rig, "c", "d");
    let second = end_of_journal(&rig.disk);
    send_two(&mut rig, "e", "f");
    let third = end_of_journal(&rig.disk);
    rig.disk.kill();
    let len = rig.disk.contents(SEGMENT).unwrap().len() as u64;
    let (mut survived, mut refused) = (0, 0);
    for cut in first + 1..=third {
        for wiped in [false, true] {
            let disk = rig.disk.fork(cut);
            match wiped {
                true => disk.overwrite(SEGMENT, &vec![0; (len - cut) as usize], cut).unwrap(),
                false => disk.cut(SEGMENT, cut).unwrap(),
            }
            match Rig::open(&disk) {
                Ok(mut rig) => {
                    survived += 1;
                    assert!(cut >= second, "a cut at {cut} of what ends at {second} was taken");
                    for name in ["a", "b", "c", "d"] {
                        assert!(is_known(&mut rig, name), "{name} after a cut at {cut}");
                    }
                    let last = [is_known(&mut rig, "e"), is_known(&mut rig, "f")];
                    assert_eq!(last[0], last[1], "half a batch after a cut at {cut}");
                    assert!(!last[0] || cut == third, "a cut batch came back at {cut}");
                }
                Err(Error::Store(StoreError::Corrupt(damage))) => {
                    refused += 1;
                    assert!(cut <= second + 16, "refused for a torn tail at {cut}: {damage}");
                    assert!(damage.file.ends_with(SEGMENT), "{damage}");
                    // A record lacks nothing where only its padding is cut.
                    assert!(damage.offset <= cut + 16 && damage.offset > 0, "{damage}");
                }
                Err(error) => panic!("cut at {cut}: {error}"),
            }
        }
    }
    assert!(survived > 100 && refused > 100, "{survived} survived, {refused} refused");
}

/// A directory with everything in it: rows of both kinds, a journal with a tail, a spare.
fn full_directory() -> (SimDisk, u64) {
    let mut rig = Rig::new(Config::default());
    for number in 0..40 {
        let name = format!("key-{number}");
        rig.send(&name, &format!("body of {name}"));
        if number % 2 == 0 {
            let delivery = rig.receive(1).pop().unwrap();
            rig.settle(delivery.lease, done(&format!("result of {name}")));
        }
        if number == 20 || number == 30 {
            rig.checkpoint();
        }
    }
    let now = rig.now;
    rig.partition.close().unwrap();
    rig.disk.kill();
    (rig.disk, now)
}

/// Asks for everything; what comes is what was stored, or the damage is named.
fn read_everything(rig: &mut Rig) -> Result<(), Error> {
    for number in 0..40 {
        let name = format!("key-{number}");
        let outcome = rig.try_call(vec![Command::Look(key(&name))])?.pop().unwrap();
        let Outcome::Key(view) = outcome else { panic!("{name} is gone: {outcome:?}") };
        match view.place {
            Place::Ready => {
                assert_eq!(view.content, Some(content(&name, &format!("body of {name}"))));
            }
            Place::Done => {
                let result = view.record.result.unwrap();
                assert!(result.body.starts_with(b"result of key-"), "{result:?}");
            }
            other => panic!("{name} is {other:?}"),
        }
    }
    let outcome = rig.try_call(vec![receive(40)])?.pop().unwrap();
    let Outcome::Received(deliveries) = outcome else { panic!("{outcome:?}") };
    assert_eq!(deliveries.len(), 20);
    for delivery in deliveries {
        let name = delivery.content.key().to_owned();
        assert_eq!(*delivery.content, *content(&name, &format!("body of {name}")));
    }
    Ok(())
}

#[test]
fn a4_a_flipped_bit_in_any_file_is_named_or_harmless_and_never_data() {
    let (disk, now) = full_directory();
    let files: Vec<String> = disk.names().into_iter().filter(|name| name != "LOCK").collect();
    assert!(files.iter().any(|name| name.starts_with("run-")), "{files:?}");
    let mut outcomes = std::collections::BTreeMap::new();
    for file in files {
        let len = disk.contents(&file).unwrap().len() as u64;
        // Every bit of what is small, a spread of them elsewhere; 97 visits every kind of field.
        let step = if len <= 512 { 5 } else { (len * 8 / 250) | 1 };
        for bit in (0..len * 8).step_by(step as usize) {
            let copy = disk.fork(bit);
            copy.flip_bit(&file, bit / 8, (bit % 8) as u32).unwrap();
            let names = copy.names();
            let told = Rig::open(&copy).and_then(|mut rig| {
                rig.now = now;
                read_everything(&mut rig)
            });
            let kind = file.trim_matches(|c: char| c.is_ascii_hexdigit()).to_owned();
            let entry: &mut [u32; 2] = outcomes.entry(kind).or_default();
            match told {
                Ok(()) => entry[0] += 1,
                Err(Error::Store(
                    StoreError::Corrupt(hapax_store::Corruption { file: named, .. })
                    | StoreError::NewerFormat { file: named, .. },
                )) => {
                    assert!(named.starts_with("sim:"), "{named}");
                    entry[1] += 1;
                    for name in names {
                        assert!(copy.contents(&name).is_ok(), "{name} was deleted");
                    }
                }
                Err(error) => panic!("bit {bit} of {file}: {error}"),
            }
        }
    }
    let refused = |start: &str| -> u32 {
        outcomes.iter().filter(|(kind, _)| kind.starts_with(start)).map(|(_, n)| n[1]).sum()
    };
    assert!(refused("run-") > 20 && refused("j") > 20 && refused("MANIFEST") > 20, "{outcomes:?}");
}

#[test]
fn a5_after_a_failed_sync_nothing_leaves_and_nothing_is_synced_again() {
    let mut rig = Rig::new(Config::default());
    rig.send("before", "body");
    rig.disk.faults(|faults| faults.sync_error = Trigger::nth(1).on("journal-*"));
    rig.submit(vec![send("during", "body")]).unwrap();
    assert!(rig.workers.flusher.step().is_err());
    let syncs = rig.disk.counters().syncs;
    for _ in 0..10 {
        assert!(rig.partition.poll().is_err(), "no answer leaves");
        assert!(rig.workers.flusher.step().is_err());
        assert!(rig.submit(vec![send("after", "body")]).is_err());
    }
    assert_eq!(rig.disk.counters().syncs, syncs, "no second sync is tried");
    assert_eq!(rig.disk.counters().sync_errors, 1);
    for power in [false, true] {
        let disk = rig.disk.fork(5);
        if power {
            disk.crash();
        }
        let mut rig = Rig::open(&disk).unwrap();
        assert!(matches!(rig.send("before", "body"), Answer::InFlight(_)));
        let first = rig.send("during", "body");
        assert!(matches!(first, Answer::Accepted { .. } | Answer::InFlight(_)), "{first:?}");
        disk.crash();
        let mut rig = Rig::open(&disk).unwrap();
        assert!(matches!(rig.send("during", "body"), Answer::InFlight(_)), "it was confirmed");
    }
}

#[test]
fn a6_on_a_full_disk_sends_are_refused_and_acks_go_on_until_it_is_freed() {
    let mut rig = Rig::new(Config::default());
    for number in 0..50 {
        rig.send(&format!("early-{number}"), "body");
    }
    while rig.workers.step().unwrap() {}
    rig.disk.set_capacity(rig.disk.used_bytes());
    rig.workers.step().unwrap();
    assert_eq!(rig.send("refused", "body"), Answer::StoreFull);
    assert!(matches!(rig.send("early-1", "body"), Answer::InFlight(_)), "known keys are answered");
    for _ in 0..5 {
        for delivery in rig.receive(10) {
            let settled = rig.settle(delivery.lease, done("result"));
            assert_eq!(settled, Settled::Ok { place: Place::Done, deadline: None });
        }
        rig.workers.step().unwrap();
    }
    assert_eq!(rig.send("refused", "body"), Answer::StoreFull);
    rig.disk.set_capacity(1 << 40);
    let freed = rig.now;
    while rig.send("refused", "body") == Answer::StoreFull {
        rig.now += 100;
        rig.workers.step().unwrap();
        assert!(rig.now - freed <= 10_000, "it does not recover by itself");
    }
    let mut rig = rig.killed();
    assert!(matches!(rig.send("refused", "body"), Answer::InFlight(_)));
    assert!(matches!(rig.send("early-1", "body"), Answer::Done(_)));
}
