//! Each fault really happens, is counted, and does not affect anything else.

use std::io::ErrorKind;

use super::*;

const SEEDS: u64 = 300;

fn read(file: &dyn File, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    file.read_exact_at(&mut buffer, offset).unwrap();
    buffer
}

/// A disk with one durable file.
fn disk_with(seed: u64, name: &str, bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::new(seed);
    let volume = disk.mount();
    let file = volume.create(name).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync().unwrap();
    volume.sync_names().unwrap();
    disk
}

#[test]
fn a_file_works_like_a_file() {
    let volume = SimDisk::new(1).mount();
    assert_eq!(volume.open("a").unwrap_err().kind(), ErrorKind::NotFound);
    let file = volume.create("a").unwrap();
    assert_eq!(volume.create("a").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(file.is_empty().unwrap());
    file.write_all_at(b"hello", 700).unwrap();
    assert_eq!(file.len().unwrap(), 705);
    assert_eq!(read(&*file, 698, 7), b"\0\0hello");
    let error = file.read_exact_at(&mut [0; 2], 704).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    file.set_len(702).unwrap();
    file.set_len(704).unwrap();
    assert_eq!(read(&*volume.open("a").unwrap(), 700, 4), b"he\0\0");
}

#[test]
fn names_work_like_names_and_an_open_file_outlives_its_own() {
    let volume = SimDisk::new(1).mount();
    let old = volume.create("b").unwrap();
    old.write_all_at(b"old", 0).unwrap();
    let new = volume.create("a").unwrap();
    new.write_all_at(b"new", 0).unwrap();
    volume.rename("a", "b").unwrap();
    assert_eq!(volume.list().unwrap(), ["b"]);
    assert_eq!(read(&*volume.open("b").unwrap(), 0, 3), b"new");
    volume.sync_names().unwrap();
    assert_eq!(read(&*old, 0, 3), b"old");
    volume.remove("b").unwrap();
    assert_eq!(read(&*new, 0, 3), b"new");
    assert_eq!(volume.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(volume.rename("b", "c").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_lock_is_held_until_dropped_or_killed() {
    let disk = SimDisk::new(1);
    let volume = disk.mount();
    let held = volume.lock("lock").unwrap();
    assert_eq!(disk.mount().lock("lock").unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(held);
    let held = volume.lock("lock").unwrap();
    disk.kill();
    let again = disk.mount().lock("lock").unwrap();
    drop(held);
    assert_eq!(disk.mount().lock("lock").unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(again);
    assert_eq!(volume.lock("lock").unwrap_err().kind(), ErrorKind::Other, "its process is gone");
}

#[test]
fn synced_data_survives_every_crash() {
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[1; 3000]);
        let volume = disk.mount();
        let file = volume.open("a").unwrap();
        file.write_all_at(&[2; 1024], 1024).unwrap();
        file.sync().unwrap();
        file.write_all_at(&[3; 512], 2048).unwrap();
        file.write_all_at(&[3; 512], 5000).unwrap();
        disk.crash();
        let bytes = disk.contents("a").unwrap();
        assert_eq!(bytes[..1024], [1; 1024], "seed {seed}");
        assert_eq!(bytes[1024..2048], [2; 1024], "seed {seed}");
        assert_eq!(bytes[2560..3000], [1; 440], "seed {seed}");
    }
}

#[test]
fn unsynced_data_is_sometimes_kept_sometimes_lost_sometimes_torn_and_reordered() {
    let (mut kept, mut lost, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[0; 8192]);
        let file = disk.mount().open("a").unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[2; 4096], 4096).unwrap();
        disk.crash();
        let bytes = disk.contents("a").unwrap();
        let sectors = |range: std::ops::Range<usize>, value| {
            bytes[range].chunks(512).filter(|sector| sector[0] == value).count()
        };
        let (first, second) = (sectors(0..4096, 1), sectors(4096..8192, 2));
        kept += u64::from(first == 8 && second == 8);
        lost += u64::from(first == 0 && second == 0);
        torn += u64::from((1..8).contains(&first));
        reordered += u64::from(first < 8 && second > 0);
        assert_eq!(disk.counters().sectors_kept, (first + second) as u64);
        assert_eq!(disk.counters().sectors_lost, 16 - (first + second) as u64);
        let expected = u64::from((1..8).contains(&first)) + u64::from((1..8).contains(&second));
        assert_eq!(disk.counters().writes_torn, expected);
        assert_eq!(disk.counters().writes_reordered, u64::from(first < 8 && second > 0));
    }
    for (what, count) in [("kept", kept), ("lost", lost), ("torn", torn), ("late", reordered)] {
        assert!((SEEDS / 20..SEEDS).contains(&count), "{what}: {count} of {SEEDS}");
    }
}

#[test]
fn a_sector_is_never_torn() {
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[1; 512]);
        let file = disk.mount().open("a").unwrap();
        file.write_all_at(&[2; 300], 100).unwrap();
        disk.crash();
        let bytes = disk.contents("a").unwrap();
        assert!(bytes == [1; 512] || bytes[100..400] == [2; 300], "seed {seed}");
    }
}

#[test]
fn unsynced_names_survive_in_order_or_not_at_all() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", b"a");
        let volume = disk.mount();
        volume.create("b").unwrap().sync().unwrap();
        volume.rename("b", "c").unwrap();
        volume.remove("a").unwrap();
        disk.crash();
        *seen.entry(disk.names().join(" ")).or_insert(0) += 1;
    }
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["a", "a b", "a c", "c"], "{seen:?}");
}

#[test]
fn synced_names_survive_every_crash() {
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", b"a");
        let volume = disk.mount();
        volume.create("b").unwrap();
        volume.rename("a", "b").unwrap();
        volume.sync_names().unwrap();
        volume.create("c").unwrap();
        disk.crash_with(Survival::Nothing);
        assert_eq!(disk.names(), ["b"]);
        assert_eq!(disk.contents("b").unwrap(), b"a");
        assert_eq!(disk.counters().names_lost, 1);
    }
}

#[test]
fn a_durable_name_does_not_make_the_bytes_durable() {
    let disk = SimDisk::new(1);
    let volume = disk.mount();
    volume.create("a").unwrap().write_all_at(&[7; 600], 0).unwrap();
    volume.sync_names().unwrap();
    disk.crash_with(Survival::Nothing);
    assert_eq!(disk.contents("a").unwrap(), b"");
}

#[test]
fn an_unsynced_length_is_sometimes_lost_and_data_without_it_cut() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[1; 1000]);
        let file = disk.mount().open("a").unwrap();
        file.set_len(100).unwrap();
        file.write_all_at(&[2; 2000], 0).unwrap();
        disk.crash();
        let bytes = disk.contents("a").unwrap();
        assert!(bytes.iter().all(|byte| *byte <= 2));
        if bytes.len() == 2000 {
            assert!(!bytes[100..].contains(&1), "seed {seed}: what was cut off came back");
        }
        lengths.insert(bytes.len());
    }
    assert_eq!(Vec::from_iter(lengths), [100, 1000, 2000]);
}

#[test]
fn a_prefix_survives_as_a_prefix_over_all_files() {
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[0; 5120]);
        let volume = disk.mount();
        let file = volume.open("a").unwrap();
        for number in 0..10 {
            file.write_all_at(&[1; 512], number * 512).unwrap();
            volume.create(&format!("n{number}")).unwrap();
        }
        disk.crash_with(Survival::Prefix);
        let sectors = disk.contents("a").unwrap().iter().filter(|byte| **byte == 1).count() / 512;
        let names = disk.names().len() - 1;
        assert!(sectors == names || sectors == names + 1, "{sectors} sectors, {names} names");
        assert!(names < 10);
    }
}

#[test]
fn after_a_crash_old_handles_fail_and_change_nothing() {
    let disk = disk_with(1, "a", b"safe");
    let volume = disk.mount();
    let file = volume.open("a").unwrap();
    disk.crash();
    assert_eq!(disk.stopped(), Some(Stop::Crash));
    assert!(file.write_all_at(b"late", 0).is_err());
    assert!(file.read_exact_at(&mut [0; 4], 0).is_err());
    assert!(file.sync().is_err() && file.len().is_err() && file.set_len(0).is_err());
    assert!(volume.open("a").is_err() && volume.create("b").is_err() && volume.list().is_err());
    assert!(volume.remove("a").is_err() && volume.rename("a", "b").is_err());
    assert!(volume.sync_names().is_err() && volume.free_bytes().is_err());
    assert_eq!(read(&*disk.mount().open("a").unwrap(), 0, 4), b"safe");
    assert_eq!(disk.stopped(), None);
}

#[test]
fn a_kill_loses_nothing_by_itself_but_makes_nothing_durable() {
    let disk = disk_with(1, "a", b"old!");
    let volume = disk.mount();
    volume.open("a").unwrap().write_all_at(b"new!", 0).unwrap();
    volume.create("b").unwrap();
    disk.kill();
    assert_eq!(disk.contents("a").unwrap(), b"new!");
    assert_eq!(disk.names(), ["a", "b"]);
    disk.crash_with(Survival::Nothing);
    assert_eq!(disk.contents("a").unwrap(), b"old!");
    assert_eq!(disk.names(), ["a"]);
}

#[test]
fn a_failed_write_may_leave_its_first_sectors() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", b"");
        disk.faults(|faults| faults.write_error = Trigger::nth(1));
        let file = disk.mount().open("a").unwrap();
        let error = file.write_all_at(&[1; 1024], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        lengths.insert(file.len().unwrap());
        file.write_all_at(&[1; 1024], 0).unwrap();
        assert_eq!(disk.counters().write_errors, 1);
    }
    assert!(lengths.contains(&0) && lengths.contains(&512));
}

#[test]
fn after_a_failed_sync_the_next_one_succeeds_and_the_data_is_lost_all_the_same() {
    let (mut old, mut new, mut cached) = (0, 0, 0);
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[1; 1024]);
        disk.faults(|faults| faults.sync_error = Trigger::nth(1));
        let file = disk.mount().open("a").unwrap();
        file.write_all_at(&[2; 1024], 0).unwrap();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
        file.sync().unwrap();
        let before = disk.contents("a").unwrap();
        disk.crash_with(Survival::Everything);
        let after = disk.contents("a").unwrap();
        old += after.chunks(512).filter(|sector| *sector == [1; 512]).count();
        new += after.chunks(512).filter(|sector| *sector == [2; 512]).count();
        cached += u64::from(before != after);
        assert_eq!(disk.counters().sync_errors, 1);
    }
    assert_eq!(old + new, 2 * SEEDS as usize);
    assert!(old > 200 && new > 200, "{old} old, {new} new sectors");
    assert!(cached > SEEDS / 5, "the cache showed what was not there {cached} times");
}

#[test]
fn a_lying_sync_makes_nothing_durable() {
    let disk = disk_with(1, "a", b"old!");
    disk.faults(|faults| faults.lying_sync = Trigger::one_in(1));
    let volume = disk.mount();
    let file = volume.open("a").unwrap();
    file.write_all_at(b"new!", 0).unwrap();
    file.sync().unwrap();
    volume.create("b").unwrap();
    volume.sync_names().unwrap();
    disk.crash_with(Survival::Nothing);
    assert_eq!((disk.contents("a").unwrap(), disk.names()), (b"old!".to_vec(), vec!["a".into()]));
    assert_eq!(disk.counters().syncs_ignored, 2);
}

#[test]
fn failed_reads_and_name_syncs_are_counted() {
    let disk = disk_with(1, "a", b"a");
    disk.faults(|faults| {
        faults.read_error = Trigger::nth(1);
        faults.names_error = Trigger::nth(1);
    });
    let volume = disk.mount();
    volume.create("b").unwrap();
    assert!(volume.sync_names().is_err());
    assert!(volume.open("a").unwrap().read_exact_at(&mut [0], 0).is_err());
    assert_eq!((disk.counters().names_errors, disk.counters().read_errors), (1, 1));
    disk.fork(1).crash_with(Survival::Nothing);
    volume.sync_names().unwrap();
    disk.crash_with(Survival::Nothing);
    assert_eq!(disk.names(), ["a", "b"]);
}

#[test]
fn a_full_disk_takes_overwrites_and_refuses_growth_until_there_is_room() {
    let disk = disk_with(1, "a", &[1; 4096]);
    disk.set_capacity(8192);
    let volume = disk.mount();
    assert_eq!(volume.free_bytes().unwrap(), 4096);
    let file = volume.open("a").unwrap();
    let error = file.write_all_at(&[2; 8192], 4000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 8192, "what fitted was written");
    assert_eq!(volume.free_bytes().unwrap(), 0);
    file.write_all_at(&[3; 8192], 0).unwrap();
    assert!(file.write_all_at(&[3; 1], 8192).is_err());
    assert_eq!(disk.counters().writes_without_room, 2);
    disk.set_capacity(12_288);
    file.write_all_at(&[3; 1], 8192).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(disk.used_bytes(), 0);
}

#[test]
fn a_removed_file_takes_room_while_it_is_open() {
    let disk = disk_with(1, "a", &[1; 4096]);
    let volume = disk.mount();
    let file = volume.open("a").unwrap();
    volume.remove("a").unwrap();
    assert_eq!(disk.used_bytes(), 4096);
    drop(file);
    assert_eq!(disk.used_bytes(), 0);
    disk.crash_with(Survival::Nothing);
    assert_eq!(disk.contents("a").unwrap(), [1; 4096]);
}

#[test]
fn a_misdirected_write_spares_its_target_and_hits_another_place() {
    let mut files = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", &[1; 4096]);
        let volume = disk.mount();
        let other = volume.create("b").unwrap();
        other.write_all_at(&[1; 4096], 0).unwrap();
        other.sync().unwrap();
        volume.sync_names().unwrap();
        disk.faults(|faults| faults.misdirected_write = Trigger::nth(1));
        let file = volume.open("a").unwrap();
        file.write_all_at(&[2; 100], 1000).unwrap();
        file.sync().unwrap();
        disk.crash();
        let strays: Vec<_> = ["a", "b"]
            .into_iter()
            .flat_map(|name| {
                let bytes = disk.contents(name).unwrap();
                bytes.iter().position(|byte| *byte == 2).map(|offset| (name, offset))
            })
            .collect();
        if disk.counters().writes_misdirected == 1 {
            assert!(strays.len() == 1 && strays[0] != ("a", 1000), "{strays:?}");
            assert_eq!(strays[0].1 % 512, 1000 % 512);
            files.insert(strays[0].0);
        } else {
            assert_eq!(strays, [("a", 1000)], "drawn where it belongs");
        }
    }
    assert_eq!(files.len(), 2);
}

#[test]
fn a_flipped_bit_is_there_before_and_after_a_crash() {
    let disk = disk_with(1, "a", &[0; 1000]);
    disk.flip_bit("a", 700, 3).unwrap();
    assert_eq!(disk.contents("a").unwrap()[700], 8);
    disk.crash();
    assert_eq!(disk.contents("a").unwrap()[700], 8);
    assert!(disk.flip_bit("a", 1000, 0).is_err(), "beyond the end");
    assert_eq!(disk.counters().bits_flipped, 1);
}

#[test]
fn a_bit_on_its_way_can_be_flipped_too() {
    let disk = disk_with(1, "a", &[0; 1000]);
    let file = disk.mount().open("a").unwrap();
    file.write_all_at(&[1; 1000], 0).unwrap();
    disk.flip_bit("a", 700, 3).unwrap();
    file.sync().unwrap();
    disk.crash();
    assert_eq!(disk.contents("a").unwrap()[699..702], [1, 9, 1]);
}

#[test]
fn any_bit_means_a_bit_of_the_files_that_match() {
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "run-1", &[0; 100]);
        let volume = disk.mount();
        volume.create("run-2").unwrap();
        volume.create("journal").unwrap().write_all_at(&[0; 100], 0).unwrap();
        let flip = disk.flip_any_bit("run-*").unwrap();
        assert_eq!(flip.file, "run-1");
        assert_eq!(disk.contents("run-1").unwrap()[flip.offset as usize], 1 << flip.bit);
        assert_eq!(disk.flip_any_bit("other"), None);
    }
}

#[test]
fn slow_syncs_add_up_until_they_are_taken() {
    let disk = disk_with(1, "a", b"a");
    disk.faults(|faults| {
        faults.slow_sync = Trigger::one_in(1);
        faults.slow_sync_ms_max = 50;
    });
    let file = disk.mount().open("a").unwrap();
    for _ in 0..4 {
        file.sync().unwrap();
    }
    assert_eq!(disk.counters().slow_syncs, 4);
    assert!((4..=200).contains(&disk.take_delay()));
    assert_eq!(disk.take_delay(), 0);
}

#[test]
fn the_power_can_go_in_the_middle_of_a_call() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..SEEDS {
        let disk = disk_with(seed, "a", b"old!");
        let file = disk.mount().open("a").unwrap();
        disk.faults(|faults| faults.power_cut = Trigger::nth(2));
        file.write_all_at(b"new!", 0).unwrap();
        assert!(file.sync().is_err());
        assert_eq!((disk.stopped(), disk.counters().crashes), (Some(Stop::Crash), 1));
        match disk.contents("a").unwrap().as_slice() {
            b"old!" => before += 1,
            b"new!" => after += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(before > SEEDS / 10 && after > SEEDS / 2, "{before} before, {after} after");
}

#[test]
fn a_kill_can_come_in_the_middle_of_a_call() {
    let disk = disk_with(1, "a", b"old!");
    let volume = disk.mount();
    disk.faults(|faults| faults.kill = Trigger::nth(1).on("b"));
    volume.open("a").unwrap().write_all_at(b"new!", 0).unwrap();
    assert!(volume.create("b").is_err());
    assert_eq!(disk.stopped(), Some(Stop::Kill));
    assert_eq!(disk.contents("a").unwrap(), b"new!");
}

#[test]
fn a_fork_and_its_disk_do_not_disturb_each_other() {
    let disk = disk_with(1, "a", b"old!");
    let file = disk.mount().open("a").unwrap();
    file.write_all_at(b"new!", 0).unwrap();
    let lost = disk.fork(2);
    let kept = disk.fork(3);
    lost.crash_with(Survival::Nothing);
    kept.crash_with(Survival::Everything);
    assert_eq!(lost.contents("a").unwrap(), b"old!");
    assert_eq!(kept.contents("a").unwrap(), b"new!");
    file.write_all_at(b"more", 0).unwrap();
    assert_eq!(kept.contents("a").unwrap(), b"new!");
    assert_eq!(disk.contents("a").unwrap(), b"more");
    assert_eq!((lost.counters().crashes, disk.counters().crashes), (1, 0));
}

/// A run in which everything happens.
fn busy_run(seed: u64) -> (Trace, Counters, Vec<Vec<u8>>) {
    let disk = SimDisk::new(seed);
    disk.record(1000);
    let mut random = Random::new(seed);
    disk.faults(|faults| {
        faults.write_error = Trigger::one_in(20);
        faults.sync_error = Trigger::one_in(20);
        faults.misdirected_write = Trigger::one_in(20);
        faults.power_cut = Trigger::one_in(50);
    });
    let mut volume = disk.mount();
    for number in 0..300 {
        let name = format!("f{}", random.below(4));
        if let Ok(file) = volume.open(&name).or_else(|_| volume.create(&name)) {
            let _ = file.write_all_at(&[number as u8; 900], random.below(5000));
            if random.one_in(3) {
                let _ = file.sync();
            }
            let _ = file.read_exact_at(&mut [0; 100], 0);
        }
        if random.one_in(5) {
            let _ = volume.sync_names();
        }
        if disk.stopped().is_some() {
            volume = disk.mount();
        }
    }
    let contents = disk.names().iter().map(|name| disk.contents(name).unwrap()).collect();
    (disk.trace(), disk.counters(), contents)
}

#[test]
fn one_seed_is_one_run_byte_for_byte() {
    for seed in 0..20 {
        let (one, two) = (busy_run(seed), busy_run(seed));
        assert_eq!(one.0.lines, two.0.lines);
        assert_eq!((one.0.count, one.0.checksum), (two.0.count, two.0.checksum));
        assert_eq!((one.1, &one.2), (two.1, &two.2));
        assert!(one.0.count > 600 && one.0.lines.len() <= 1000 && one.1.crashes > 0);
        assert_ne!(one.0.checksum, busy_run(seed + 1).0.checksum);
    }
}
