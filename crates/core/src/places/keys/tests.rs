//! The index, the generations and the work after a checkpoint together.

use super::*;
use crate::message::Messages;

const PLACES: usize = 16;

fn keys() -> Keys {
    Keys::new(7, PLACES)
}

/// Traces of digests `from..to`.
fn trace(keys: &mut Keys, from: u64, to: u64) {
    (from..to).for_each(|number| keys.trace(&digest(number)));
}

fn digest(number: u64) -> Digest {
    let spread = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Digest(spread.to_le_bytes())
}

fn checkpoint(keys: &mut Keys) {
    drop(keys.begin_checkpoint());
    keys.finish_checkpoint();
}

#[test]
fn what_a_checkpoint_wrote_is_not_found_from_its_end_on() {
    let (mut keys, messages) = (keys(), Messages::default());
    trace(&mut keys, 0, 1_000);
    let frozen = keys.begin_checkpoint();
    trace(&mut keys, 900, 1_100);
    assert!((0..1_100).all(|number| keys.is_written(&digest(number))));
    drop(frozen);
    keys.finish_checkpoint();
    keys.check(&messages);
    for number in 0..1_100 {
        assert_eq!(keys.is_written(&digest(number)), number >= 900, "{number}");
    }
}

#[test]
fn entries_of_a_finished_generation_leave_the_index_in_bounded_steps() {
    let mut keys = keys();
    trace(&mut keys, 0, 20_000);
    checkpoint(&mut keys);
    let segments = keys.index.segments();
    assert!(segments > SWEEP_STEP * SWEEP_STEPS_MAX);
    let most = PLACES * segments.div_ceil(SWEEP_STEPS_MAX);
    let (mut entries, mut steps) = (keys.index.iter().count(), 0);
    assert_eq!(entries, 20_000, "the end of a checkpoint moves none of them");
    while entries > 0 {
        keys.finish_batch();
        steps += 1;
        let left = keys.index.iter().count();
        assert!(entries - left <= most, "{} left at once", entries - left);
        entries = left;
    }
    assert!(steps <= SWEEP_STEPS_MAX);
    keys.finish_batch();
    assert!(keys.stale.is_empty() && keys.sweep.is_none());
}

#[test]
fn what_is_written_during_a_sweep_stays() {
    let (mut keys, messages) = (keys(), Messages::default());
    trace(&mut keys, 0, 2_000);
    for round in 1..40 {
        checkpoint(&mut keys);
        for step in 0..20 {
            let from = round * 1_000 + step * 10;
            trace(&mut keys, from, from + 10);
            keys.finish_batch();
        }
        keys.check(&messages);
        let here = |number| keys.is_written(&digest(number));
        assert!((round * 1_000..round * 1_000 + 200).all(here));
        assert!(!(0..round * 1_000).any(here));
    }
}

#[test]
fn checkpoints_that_follow_each_other_at_once_do_not_mix_their_records() {
    let (mut keys, messages) = (keys(), Messages::default());
    for round in 0..50 {
        trace(&mut keys, round * 300, round * 300 + 300);
        let frozen = keys.begin_checkpoint();
        trace(&mut keys, round * 300 + 250, round * 300 + 310);
        drop(frozen);
        keys.finish_checkpoint();
        keys.check(&messages);
        for number in 0..round * 300 + 320 {
            let is_last = (round * 300 + 250..round * 300 + 310).contains(&number);
            assert_eq!(keys.is_written(&digest(number)), is_last, "{number}");
        }
    }
}

#[test]
fn a_checkpoint_that_may_begin_sweeps_nothing() {
    let (mut keys, messages) = (keys(), Messages::default());
    trace(&mut keys, 0, 20_000);
    let (mut begun, mut waited) = (0, 0);
    while begun < 20 {
        trace(&mut keys, 20_000 + begun, 20_010 + begun);
        if !keys.may_begin_checkpoint() {
            keys.step();
            waited += 1;
            continue;
        }
        let swept = keys.sweep.map(|sweep| sweep.next);
        checkpoint(&mut keys);
        assert_eq!(keys.sweep.map(|sweep| sweep.next), swept, "checkpoint {begun}");
        begun += 1;
    }
    assert!(waited > SWEEP_STEPS_MAX / 2, "there was something to wait for: {waited}");
    keys.check(&messages);
}

#[test]
fn the_memory_of_a_checkpoint_counts_until_it_is_written() {
    let mut keys = keys();
    trace(&mut keys, 0, 1_000);
    let bytes = keys.footprint();
    assert!(bytes > 0 && keys.checkpoint_footprint() == 0);
    drop(keys.begin_checkpoint());
    assert_eq!((keys.footprint(), keys.checkpoint_footprint()), (0, bytes));
    keys.finish_checkpoint();
    assert_eq!((keys.footprint(), keys.checkpoint_footprint()), (0, 0));
}

#[test]
fn what_was_beside_records_is_dropped_in_steps() {
    let mut keys = keys();
    let record = crate::record::tests::uneventful();
    for number in 0..3 * DROP_STEP as u64 {
        keys.remember(&digest(number), &record);
        keys.count(&digest(number), Time(1));
    }
    checkpoint(&mut keys);
    for _ in 0..3 {
        assert!(!keys.dropped.is_empty());
        keys.finish_batch();
    }
    assert!(keys.dropped.is_empty());
}
