//! Who gets memory and who waits, without any task.

use super::*;
use std::task::Waker;

const KIB: usize = 1_024;
const MIB: usize = 1_024 * KIB;

fn tenant(name: &str) -> Arc<str> {
    name.into()
}

/// Asks for memory once; tells whether it was there.
fn asks(admitted: &mut Admitted, bytes: usize) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    admitted.poll_take(&mut context, bytes).is_ready()
}

/// A request that has so much, or waits for it.
fn request(memory: &Memory, name: &str, bytes: usize) -> (Admitted, bool) {
    let mut admitted = memory.request(&tenant(name));
    let is_there = asks(&mut admitted, bytes);
    (admitted, is_there)
}

fn fill(memory: &Memory, name: &str, bytes: usize) -> Vec<Admitted> {
    let all = std::iter::repeat_with(|| request(memory, name, bytes));
    all.take_while(|(_, is_there)| *is_there).map(|(admitted, _)| admitted).take(10_000).collect()
}

#[test]
fn a_tenant_takes_half_and_the_next_one_finds_some() {
    let memory = Memory::new(64 * MIB);
    let noisy = fill(&memory, "noisy", MIB);
    assert_eq!(noisy.len(), 28, "half of 56 MiB");
    let loud = fill(&memory, "loud", MIB);
    assert_eq!(loud.len(), 14);
    let quiet = fill(&memory, "quiet", MIB);
    assert_eq!(quiet.len(), 7);
    drop((noisy, loud, quiet));
    assert!(memory.is_whole());
}

#[test]
fn small_requests_have_a_lane_that_large_ones_never_take() {
    let memory = Memory::new(64 * MIB);
    let large = fill(&memory, "noisy", MIB);
    let (waiting, is_there) = request(&memory, "noisy", MIB);
    assert!(!is_there);
    let small = fill(&memory, "noisy", 64 * KIB);
    assert_eq!(small.len(), 64, "half of 8 MiB, although a large one waits");
    let (_quiet, is_there) = request(&memory, "quiet", 64 * KIB);
    assert!(is_there);
    drop((large, waiting, small, _quiet));
    assert!(memory.is_whole());
}

#[test]
fn small_requests_take_of_the_others_what_is_free_there() {
    let memory = Memory::new(64 * MIB);
    let small = fill(&memory, "noisy", 64 * KIB);
    assert_eq!(small.len(), 64 + 28 * 16);
    drop(small);
    assert!(memory.is_whole());
}

#[test]
fn who_waits_is_served_in_order_when_memory_comes_back() {
    let memory = Memory::new(64 * MIB);
    let mut noisy = fill(&memory, "noisy", MIB);
    let (mut first, is_there) = request(&memory, "noisy", MIB);
    assert!(!is_there);
    let (mut second, is_there) = request(&memory, "noisy", 2 * MIB);
    assert!(!is_there);
    noisy.pop();
    assert!(asks(&mut first, MIB) && !asks(&mut second, 2 * MIB));
    noisy.pop();
    assert!(!asks(&mut second, 2 * MIB));
    drop(first);
    assert!(asks(&mut second, 2 * MIB));
    drop((noisy, second));
    assert!(memory.is_whole());
}

#[test]
fn who_gives_up_lets_those_behind_it_go() {
    let memory = Memory::new(64 * MIB);
    let mut noisy = fill(&memory, "noisy", MIB);
    let (first, _) = request(&memory, "noisy", 8 * MIB);
    let (mut second, is_there) = request(&memory, "noisy", MIB);
    assert!(!is_there);
    noisy.pop();
    assert!(!asks(&mut second, MIB), "the one before it comes first");
    drop(first);
    assert!(asks(&mut second, MIB));
    let (third, is_there) = request(&memory, "noisy", MIB);
    assert!(!is_there);
    noisy.pop(); // The third is granted, and goes away without having looked.
    drop(third);
    drop((noisy, second));
    assert!(memory.is_whole());
}

#[test]
fn requests_that_are_partly_read_do_not_wait_for_each_other_for_ever() {
    let memory = Memory::new(64 * MIB);
    let mut all: Vec<Admitted> =
        (0..8).map(|number| memory.request(&tenant(&format!("tenant-{}", number % 4)))).collect();
    let mut done = 0;
    let mut rounds = 0;
    while !all.is_empty() {
        rounds += 1;
        assert!(rounds < 1_000, "{done} of 8 came to their end");
        let mut left = Vec::new();
        for mut request in all {
            if asks(&mut request, MIB) && request.bytes() >= 16 * MIB {
                done += 1;
                continue;
            }
            left.push(request);
            let state = memory.lock();
            let most = -(16 * MIB as i64);
            assert!(state.lanes.iter().all(|lane| lane.free >= most), "one exceeds its share");
        }
        all = left;
    }
    assert_eq!(done, 8);
    assert!(memory.is_whole());
}

#[test]
fn one_that_is_larger_than_all_the_memory_gets_in_when_it_waits() {
    let memory = Memory::new(8 * MIB);
    let (huge, is_there) = request(&memory, "shop", 32 * MIB);
    assert!(is_there);
    let (mut second, is_there) = request(&memory, "shop", 32 * MIB);
    assert!(!is_there, "one at a time");
    drop(huge);
    assert!(asks(&mut second, 32 * MIB));
    drop(second);
    assert!(memory.is_whole());
}

#[test]
fn a_part_that_was_split_off_is_given_back_by_itself() {
    let memory = Memory::new(64 * MIB);
    let mut stream = memory.request(&tenant("shop"));
    assert!(asks(&mut stream, 40 * KIB) && asks(&mut stream, 40 * KIB));
    let frame = stream.split(70 * KIB);
    assert_eq!((stream.bytes(), frame.bytes()), (10 * KIB, 70 * KIB));
    let rest = stream.split(MIB);
    assert_eq!((stream.bytes(), rest.bytes()), (0, 10 * KIB));
    drop(frame);
    drop(stream);
    assert!(!memory.is_whole());
    drop(rest);
    assert!(memory.is_whole());
}

#[test]
fn what_is_held_for_long_leaves_a_part_of_the_share_for_others_of_the_tenant() {
    let memory = Memory::new(64 * MIB);
    let mut noisy = memory.request(&tenant("noisy"));
    let mut taken = 0;
    while noisy.try_take(4 * KIB) {
        taken += 4 * KIB;
    }
    assert!((18 * MIB..19 * MIB).contains(&taken), "a third of 56 MiB: {taken}");
    assert_eq!(noisy.bytes(), taken);
    let own = fill(&memory, "noisy", 64 * KIB);
    assert!(own.len() * 64 * KIB > 9 * MIB, "a sixth is for its other requests: {}", own.len());
    let (_quiet, is_there) = request(&memory, "quiet", MIB);
    assert!(is_there);
    drop((noisy, own, _quiet));
    assert!(memory.is_whole());
}
