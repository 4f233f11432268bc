//! A2: the power fails while batches are being written.

use std::fs;
use std::time::Duration;

use crate::broker_in;
use crate::machine::{Mount, say, skip, tool};
use hapax_testing::load::{Load, resend_all};
use hapax_testing::pause;

const ROW: &str = "A2, a power cut";
const CUTS: usize = 6;
const PER_LIFE: usize = 10;
/// The free space below which the broker takes no more, and some segments for every journal.
const FREE_MEBIBYTES: u64 = 768;
const SEGMENTS_MEBIBYTES: u64 = 256;
const UNSYNCED_BYTES: usize = 256 * 1_024;

on_one_and_on_four!(a2_a_power_cut_takes_what_was_not_synced_and_nothing_that_was_confirmed);

fn a2_a_power_cut_takes_what_was_not_synced_and_nothing_that_was_confirmed(partitions: u16) {
    if tool("perl").is_none() {
        return skip(ROW, "perl is not installed, to ask the file system to shut down");
    }
    let directory = tempfile::tempdir().unwrap();
    let mebibytes = FREE_MEBIBYTES + SEGMENTS_MEBIBYTES * u64::from(partitions);
    let mut disk = match Mount::disk(&directory.path().join("disk"), mebibytes) {
        Ok(disk) => disk,
        Err(why) => return skip(ROW, &why),
    };
    let witness = disk.path().join("witness");
    let setup = broker_in(directory.path()).partitions(partitions).data(&disk.path().join("data"));
    let mut broker = setup.start();
    let load = Load::start(&setup);
    let mut cut_off = 0;
    let mut lost_bytes = 0;
    for cut in 0..CUTS {
        load.gets_on(PER_LIFE);
        pause(Duration::from_millis(fastrand::u64(..60)));
        // Written, and not synced: what the broker must not rely on.
        fs::write(&witness, [cut as u8 + 1; UNSYNCED_BYTES]).unwrap();
        cut_off += load.in_flight().iter().sum::<usize>();
        if let Err(why) = disk.cut_power() {
            return skip(ROW, &why);
        }
        broker.kill();
        disk.unmount();
        disk.mount().unwrap();
        let left = fs::read(&witness).unwrap_or_default();
        let kept = left.iter().filter(|&&byte| byte == cut as u8 + 1).count();
        lost_bytes += UNSYNCED_BYTES - kept;
        let _ = fs::remove_file(&witness);
        broker = setup.start();
    }
    let progress = load.progress();
    let history = load.finish();
    broker.kill();
    let broker = setup.start();
    resend_all(&setup, &history);

    assert!(lost_bytes > 0, "the power was not cut: everything is still there");
    assert!(cut_off > 0, "nothing was under way");
    for count in [progress.http, progress.grpc] {
        assert!(count.sent > CUTS * PER_LIFE && count.done > CUTS * PER_LIFE, "{count:?}");
    }
    broker.has_not_panicked();
    say(&format!(
        "A2: {CUTS} power cuts; {lost_bytes} unsynced bytes lost, {} keys and their results kept",
        history.keys().len()
    ));
}
