//! Cases about batches, owners and epochs.

use super::{Case, Harness, Owner, batch, numbered};
use crate::{Error, Room};

pub(super) const CASES: &[Case] = &[
    ("a_new_store_is_empty", a_new_store_is_empty),
    ("batches_come_back_in_order_and_unchanged", batches_come_back_in_order_and_unchanged),
    ("only_durable_batches_are_read", only_durable_batches_are_read),
    ("a_batch_out_of_order_is_refused", a_batch_out_of_order_is_refused),
    ("nothing_is_appended_without_a_claim", nothing_is_appended_without_a_claim),
    ("every_claim_raises_the_epoch", every_claim_raises_the_epoch),
    ("an_old_epoch_is_refused", an_old_epoch_is_refused),
    ("an_old_owners_checkpoint_never_shows", an_old_owners_checkpoint_never_shows),
    ("closing_keeps_what_was_not_yet_durable", closing_keeps_what_was_not_yet_durable),
    ("a_closed_store_refuses_everything", a_closed_store_refuses_everything),
    ("a_crash_keeps_what_was_durable", a_crash_keeps_what_was_durable),
    ("a_crash_keeps_whole_batches_in_order", a_crash_keeps_whole_batches_in_order),
    ("a_new_owner_goes_on_after_a_crash", a_new_owner_goes_on_after_a_crash),
    ("a_zombie_cannot_harm_its_successor", a_zombie_cannot_harm_its_successor),
    ("an_owner_is_confirmed_when_it_asks", an_owner_is_confirmed_when_it_asks),
    ("a_replaced_owner_that_only_reads_is_refused", a_replaced_owner_that_only_reads_is_refused),
    ("a_batch_sent_twice_is_one", a_batch_sent_twice_is_one),
    ("a_claim_that_races_an_append_sees_all_of_it_or_nothing", a_claim_races_an_append),
    ("a_replaced_owners_checkpoint_never_shows", a_replaced_owners_checkpoint_never_shows),
    ("a_journal_that_lost_its_tail_is_refused", a_journal_that_lost_its_tail_is_refused),
];

fn a_new_store_is_empty(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    assert!(owner.epoch > 0, "epoch 0 is nobody's");
    assert_eq!((owner.through, owner.last), (0, 0));
    assert_eq!(owner.store.durable().expect("is well"), 0);
    assert_eq!(owner.store.checkpointed().expect("is well"), 0);
    assert_eq!(owner.batches(1), []);
    assert_eq!(owner.get(&[super::key(1)]), [None]);
    assert_eq!(owner.scan(b"", b"\xff"), []);
    harness.settle();
    assert_eq!(owner.store.room(), Room::Free);
}

fn batches_come_back_in_order_and_unchanged(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    for round in 1..=20 {
        owner.append_many(round);
        harness.settle();
        assert_eq!(owner.store.durable().expect("is well"), owner.last);
    }
    assert_eq!(owner.last, 210);
    assert_eq!(owner.batches(1), numbered(1..=210));
    assert_eq!(owner.batches(200), numbered(200..=210));
    assert_eq!(owner.batches(211), []);
    owner.close();
    let mut owner = Owner::open(harness);
    assert_eq!((owner.through, owner.last), (0, 210));
    assert_eq!(owner.batches(1), numbered(1..=210));
    let mut seen = 0;
    let stopped = owner.store.read(1, &mut |sequence, _| {
        seen = sequence;
        if sequence < 3 { Ok(true) } else { Err(Error::OutOfOrder { got: 0, last: 0 }) }
    });
    assert!(matches!(stopped, Err(Error::OutOfOrder { got: 0, last: 0 })), "{stopped:?}");
    assert_eq!(seen, 3, "an error of the reader ends the reading");
    let enough = owner.store.read(1, &mut |sequence, _| {
        seen = sequence;
        Ok(sequence < 5)
    });
    assert!(enough.is_ok());
    assert_eq!(seen, 5, "the reader may have enough");
}

fn only_durable_batches_are_read(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(5);
    harness.settle();
    owner.append_many(5);
    let before = owner.store.durable().expect("is well");
    let read = owner.batches(1);
    let after = owner.store.durable().expect("is well");
    assert!(before >= 5 && after <= 10);
    assert!((before..=after).contains(&(read.len() as u64)));
    assert_eq!(read, numbered(1..=read.len() as u64));
}

fn a_batch_out_of_order_is_refused(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(3);
    for sequence in [0, 1, 3, 5, u64::MAX] {
        let refused = owner.store.append(owner.epoch, sequence, b"no");
        assert!(matches!(refused, Err(Error::OutOfOrder { got, last: 3 }) if got == sequence));
    }
    owner.append_many(1);
    harness.settle();
    assert_eq!(owner.batches(1), numbered(1..=4));
}

fn nothing_is_appended_without_a_claim(harness: &mut dyn Harness) {
    let mut store = harness.open().expect("opens");
    for epoch in [0, 1, u32::MAX] {
        let refused = store.append(epoch, 1, b"no");
        assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    }
}

fn every_claim_raises_the_epoch(harness: &mut dyn Harness) {
    let mut newest = 0;
    for round in 0..6 {
        let mut owner = Owner::open(harness);
        assert!(owner.epoch > newest);
        newest = owner.store.claim().expect("claims again").epoch;
        assert!(newest > owner.epoch);
        if round % 2 == 0 {
            owner.close();
        } else {
            drop(owner);
            harness.crash();
        }
    }
}

fn an_old_epoch_is_refused(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(2);
    harness.settle();
    let old = owner.epoch;
    let claim = owner.store.claim().expect("claims again");
    assert_eq!((claim.through, claim.last), (0, 2));
    let refused = owner.store.append(old, 3, b"no");
    let newest = claim.epoch;
    assert!(
        matches!(refused, Err(Error::Fenced { held, newest: n }) if held == old && n == newest)
    );
    let refused = owner.try_checkpoint(old, 2, 0, |_| {});
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    let refused = owner.store.append(newest + 1, 3, b"no");
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    owner.epoch = newest;
    owner.append_many(1);
    harness.settle();
    assert_eq!(owner.batches(1), numbered(1..=3));
}

fn an_old_owners_checkpoint_never_shows(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(3);
    owner.checkpoint(0, |rows| rows.put_ordered(b"a", b"1"));
    let claim = owner.store.claim().expect("claims again");
    harness.settle();
    // It was finished before the claim, or never will be.
    assert_eq!(owner.store.checkpointed().expect("is well"), claim.through);
    let rows = owner.scan(b"", b"z").len();
    assert_eq!(rows, usize::from(claim.through == 3));
    owner.epoch = claim.epoch;
    owner.last = claim.last;
    owner.append_many(1);
    owner.checkpoint(0, |rows| rows.put_ordered(b"b", b"2"));
    harness.settle();
    assert_eq!(owner.store.checkpointed().expect("is well"), owner.last);
}

fn closing_keeps_what_was_not_yet_durable(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(9);
    owner.close();
    let mut owner = Owner::open(harness);
    assert_eq!(owner.last, 9);
    assert_eq!(owner.batches(1), numbered(1..=9));
}

fn a_closed_store_refuses_everything(harness: &mut dyn Harness) {
    let Owner { mut store, epoch, .. } = Owner::open(harness);
    store.close().expect("closes");
    assert!(store.append(epoch, 1, b"no").is_err());
    assert!(store.durable().is_err());
    assert!(store.checkpointed().is_err());
    assert!(store.claim().is_err());
    assert!(store.read(1, &mut |_, _| Ok(true)).is_err());
}

fn a_crash_keeps_what_was_durable(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(7);
    harness.settle();
    owner.append_many(1);
    drop(owner);
    harness.crash();
    let mut owner = Owner::open(harness);
    assert!((7..=8).contains(&owner.last));
    assert_eq!(owner.batches(1), numbered(1..=owner.last));
}

fn a_crash_keeps_whole_batches_in_order(harness: &mut dyn Harness) {
    let mut durable = 0;
    for round in 1..=10 {
        let mut owner = Owner::open(harness);
        assert!(owner.last >= durable);
        assert_eq!(owner.batches(1), numbered(1..=owner.last));
        owner.append_many(round);
        durable = owner.store.durable().expect("is well");
        if round % 3 == 0 {
            harness.settle();
            durable = owner.last;
        }
        drop(owner);
        harness.crash();
    }
}

fn a_new_owner_goes_on_after_a_crash(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(4);
    harness.settle();
    drop(owner);
    harness.crash();
    let mut owner = Owner::open(harness);
    owner.append_many(4);
    harness.settle();
    assert_eq!(owner.batches(1), numbered(1..=8));
    owner.close();
    let mut owner = Owner::open(harness);
    assert_eq!(owner.batches(5), numbered(5..=8));
}

fn a_zombie_cannot_harm_its_successor(harness: &mut dyn Harness) {
    if !harness.allows_two_owners() {
        let first = Owner::open(harness);
        assert!(harness.open().is_err(), "a second owner is kept out");
        return first.close();
    }
    let mut zombie = Owner::open(harness);
    zombie.append_many(2);
    harness.settle();
    let mut owner = Owner::open(harness);
    assert_eq!(owner.last, 2);
    owner.append(&batch(3));
    harness.settle();
    let refused = zombie.store.append(zombie.epoch, 3, b"no");
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    let refused = zombie.store.append(zombie.epoch, 4, b"no");
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    let refused = zombie.try_checkpoint(zombie.epoch, 2, 0, |rows| rows.put_ordered(b"z", b"z"));
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    // The successor's batch 3 must not count as the zombie's.
    assert!(!matches!(zombie.store.durable(), Ok(3..)));
    owner.append_many(1);
    harness.settle();
    assert_eq!(owner.batches(1), numbered(1..=4));
    assert_eq!(owner.scan(b"", b"zz"), []);
}

fn an_owner_is_confirmed_when_it_asks(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    let mut before = 0;
    for round in 0..4 {
        if round % 2 == 1 {
            owner.append_many(1);
        }
        let question = owner.store.confirm().expect("asks");
        assert!(question >= before, "questions are counted");
        harness.settle();
        assert!(owner.store.confirmed().expect("is the owner") >= question);
        before = question;
    }
    // To claim again is to go on as the owner: what was asked before is answered.
    let question = owner.store.confirm().expect("asks");
    owner.epoch = owner.store.claim().expect("claims again").epoch;
    harness.settle();
    assert!(owner.store.confirmed().expect("is the owner") >= question);
    let Owner { mut store, .. } = owner;
    store.close().expect("closes");
    assert!(store.confirm().is_err() && store.confirmed().is_err(), "it was closed");
}

fn a_replaced_owner_that_only_reads_is_refused(harness: &mut dyn Harness) {
    if !harness.allows_two_owners() {
        return;
    }
    let mut zombie = Owner::open(harness);
    zombie.append_many(2);
    harness.settle();
    // Asked in time, and not answered in time.
    let early = zombie.store.confirm().expect("asks");
    let is_answered = zombie.store.confirmed().expect("is the owner") >= early;
    let mut owner = Owner::open(harness);
    let late = zombie.store.confirm();
    harness.settle();
    owner.append_many(1);
    let question = owner.store.confirm().expect("asks");
    harness.settle();
    assert!(owner.store.confirmed().expect("is the owner") >= question);
    let confirmed = zombie.store.confirmed();
    let refused = matches!(confirmed, Err(Error::Fenced { .. }));
    assert!(refused, "asked at {early} ({is_answered}) and {late:?}, and told {confirmed:?}");
    let again = zombie.store.claim();
    assert!(matches!(again, Err(Error::Fenced { .. })), "its memory is over: {again:?}");
    owner.append_many(1);
}

fn a_batch_sent_twice_is_one(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(2);
    for settled in [false, true] {
        if settled {
            harness.settle();
        }
        let refused = owner.store.append(owner.epoch, 2, &batch(2));
        assert!(matches!(refused, Err(Error::OutOfOrder { got: 2, last: 2 })), "{refused:?}");
    }
    owner.close();
    let mut owner = Owner::open(harness);
    let refused = owner.store.append(owner.epoch, 2, &batch(2));
    assert!(matches!(refused, Err(Error::OutOfOrder { got: 2, last: 2 })), "{refused:?}");
    owner.append_many(1);
    harness.settle();
    assert_eq!(owner.batches(1), numbered(1..=3));
}

fn a_claim_races_an_append(harness: &mut dyn Harness) {
    if !harness.allows_two_owners() {
        return;
    }
    let mut zombie = Owner::open(harness);
    zombie.append_many(2);
    harness.settle();
    zombie.append_many(1); // On its way while the other one claims.
    let mut owner = Owner::open(harness);
    assert!((2..=3).contains(&owner.last));
    assert_eq!(owner.batches(1), numbered(1..=owner.last));
    harness.settle();
    assert_eq!(owner.batches(1), numbered(1..=owner.last), "nothing comes after the claim");
    let claimed = owner.last;
    owner.append_many(2);
    harness.settle();
    // What the successor made durable at the same places says nothing of the zombie's batches.
    let told = zombie.store.durable();
    assert!(!matches!(told, Ok(durable) if durable > claimed), "{told:?}");
    let is_refused = matches!(told, Err(Error::Fenced { .. }));
    assert!(is_refused || claimed == 3, "nobody waits for ever for a lost batch: {told:?}");
    assert_eq!(owner.batches(1), numbered(1..=owner.last));
}

fn a_replaced_owners_checkpoint_never_shows(harness: &mut dyn Harness) {
    if !harness.allows_two_owners() {
        return;
    }
    let mut zombie = Owner::open(harness);
    zombie.append_many(3);
    zombie.checkpoint(0, |rows| rows.put_ordered(b"a", b"1"));
    let mut owner = Owner::open(harness);
    harness.settle();
    assert_eq!(owner.store.checkpointed().expect("is the owner"), owner.through);
    let rows = owner.scan(b"", b"z").len();
    assert_eq!(rows, usize::from(owner.through == 3), "it was done before the claim, or never");
    let refused = zombie.try_checkpoint(zombie.epoch, 3, 0, |rows| rows.put_ordered(b"z", b"z"));
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    owner.append_many(1);
    owner.checkpoint(0, |rows| rows.put_ordered(b"b", b"2"));
    harness.settle();
    assert_eq!(owner.store.checkpointed().expect("is the owner"), owner.last);
    assert_eq!(owner.scan(b"b", b"zz"), [(b"b".to_vec(), b"2".to_vec())]);
    let mut seen = 0;
    let scanned = zombie.store.scan(b"b", b"zz", &mut |_, _| {
        seen += 1;
        true
    });
    assert!(seen == 0 && matches!(scanned, Err(Error::Fenced { .. })), "{scanned:?}");
}

fn a_journal_that_lost_its_tail_is_refused(harness: &mut dyn Harness) {
    let mut owner = Owner::open(harness);
    owner.append_many(5);
    harness.settle();
    owner.close();
    if !harness.lose_tail() {
        return;
    }
    let opened = harness.open().and_then(|mut store| store.claim());
    assert!(opened.is_err(), "{opened:?}");
}
