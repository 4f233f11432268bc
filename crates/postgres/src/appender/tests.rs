//! The appender against answers made by hand.

use super::*;

const CLUSTER: Uuid = Uuid::from_u128(1);
const LINEAGE: Uuid = Uuid::from_u128(2);
const START: LogEnd = LogEnd { epoch: 0, sequence: 0, chain: 7 };

fn owner(partition: u16) -> Owner {
    Owner { partition, epoch: 3, claim: Uuid::from_u128(u128::from(partition) + 100) }
}

fn with(partitions: u16) -> (Appender, Vec<Ticket>) {
    let mut appender = Appender::new(CLUSTER, LINEAGE);
    let tickets = (0..partitions)
        .map(|number| appender.add(format!("p{number}"), owner(number), START))
        .collect();
    (appender, tickets)
}

fn parts(call: Option<Call>) -> Vec<Part> {
    match call {
        Some(Call::Append(parts)) => parts,
        other => panic!("{other:?}"),
    }
}

fn whole(parts: &[Part]) -> Result<Answer, Failure> {
    let answer = |part: &Part| Appended {
        owned: true,
        follows: true,
        inserted: part.batches.iter().map(|batch| batch.at.sequence).collect(),
        unsafe_setting: None,
    };
    Ok(Answer::Appended(parts.iter().map(answer).collect()))
}

fn lost() -> Result<Answer, Failure> {
    Err(Failure::Unreachable("lost".to_owned()))
}

fn end(owner: Owner, at: Position) -> End {
    let last = LogEnd { epoch: owner.epoch, sequence: at.sequence, chain: at.chain };
    let (partition, epoch, claim) = (owner.partition, owner.epoch, Some(owner.claim));
    End { partition, epoch, claim, owner: None, last }
}

fn ends(ends: Vec<End>) -> Result<Answer, Failure> {
    Ok(Answer::Ends(Ends { cluster: CLUSTER, lineage: LINEAGE, ends }))
}

#[track_caller]
fn looks(appender: &mut Appender) {
    let call = appender.next_call();
    assert!(matches!(call, Some(Call::Ends(_))), "{call:?}");
}

#[test]
fn what_gathers_while_a_statement_is_on_its_way_goes_with_the_next() {
    let (mut appender, tickets) = with(2);
    assert!(appender.next_call().is_none());
    appender.append(tickets[0], 1, b"a");
    let first = parts(appender.next_call());
    appender.append(tickets[0], 2, b"b");
    appender.append(tickets[1], 1, b"c");
    let question = appender.confirm(tickets[1]);
    assert!(appender.next_call().is_none(), "one at a time");
    assert_eq!(appender.answered(whole(&first)), [tickets[0]]);
    assert_eq!(appender.durable(tickets[0]).unwrap().sequence, 1);
    let second = parts(appender.next_call());
    assert_eq!(second.len(), 2);
    appender.answered(whole(&second));
    assert_eq!(appender.confirmed(tickets[1]), question, "an append answers questions");
    assert!(appender.is_at_rest());
}

#[test]
fn what_a_look_up_finds_is_durable_after_a_later_clean_commit_only() {
    let (mut appender, tickets) = with(1);
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    let warned = Failure::Warned("canceling wait".to_owned());
    appender.answered(Err(warned));
    looks(&mut appender);
    appender.answered(ends(vec![end(owner(0), sent[0].batches[0].at)]));
    assert_eq!(appender.durable(tickets[0]).unwrap().sequence, 0, "found is not durable");
    let question = parts(appender.next_call());
    assert_eq!(question[0].after, sent[0].batches[0].at, "it asks for what was found");
    assert!(question[0].batches.is_empty());
    appender.answered(whole(&question));
    assert_eq!(appender.durable(tickets[0]).unwrap().sequence, 1);
}

#[test]
fn an_owner_that_claims_again_is_not_taken_for_replaced_meanwhile() {
    let (mut appender, tickets) = with(1);
    appender.hold(tickets[0]);
    assert!(appender.is_quiet(tickets[0]));
    // Its claim is in the database, and its answer on the way; a minute has passed.
    let next = Owner { epoch: 4, claim: Uuid::from_u128(9), ..owner(0) };
    appender.look();
    looks(&mut appender);
    appender.answered(ends(vec![end(next, position(&START))]));
    appender.go_on(tickets[0], next);
    assert!(appender.ended(tickets[0]).is_none(), "{:?}", appender.ended(tickets[0]));
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    appender.answered(whole(&sent));
    assert_eq!(appender.durable(tickets[0]).unwrap().epoch, 4);
}

/// The look-up ran before the next claim, and its reply came when the owner had gone on.
#[test]
fn a_late_look_up_is_not_held_against_an_owner_that_claimed_again() {
    let (mut appender, tickets) = with(1);
    appender.hold(tickets[0]);
    appender.look();
    looks(&mut appender);
    let next = Owner { epoch: 4, claim: Uuid::from_u128(9), ..owner(0) };
    appender.go_on(tickets[0], next);
    appender.answered(ends(vec![end(owner(0), position(&START))]));
    assert!(appender.ended(tickets[0]).is_none(), "{:?}", appender.ended(tickets[0]));
    appender.look();
    looks(&mut appender);
    let again = Owner { epoch: 5, claim: Uuid::from_u128(10), ..next };
    appender.hold(tickets[0]);
    appender.go_on(tickets[0], again);
    appender.answered(ends(vec![end(next, position(&START))]));
    assert!(appender.ended(tickets[0]).is_none(), "{:?}", appender.ended(tickets[0]));
}

#[test]
fn what_was_found_and_then_lost_is_sent_again() {
    let (mut appender, tickets) = with(1);
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    appender.answered(lost());
    looks(&mut appender);
    appender.answered(ends(vec![end(owner(0), sent[0].batches[0].at)]));
    parts(appender.next_call());
    appender.answered(lost());
    looks(&mut appender);
    // Another primary, which has not got it.
    appender.answered(ends(vec![end(owner(0), position(&START))]));
    assert_eq!(parts(appender.next_call()), sent, "the same bytes at the same place");
}

#[test]
fn an_earlier_statement_that_ran_late_is_met() {
    let (mut appender, tickets) = with(1);
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    appender.answered(lost());
    appender.append(tickets[0], 2, b"b");
    looks(&mut appender);
    appender.answered(ends(vec![end(owner(0), position(&START))]));
    let again = parts(appender.next_call());
    assert_eq!(again[0].batches.len(), 2);
    // The first statement came after all, in between: only the second batch is new.
    let fewer = Appended { owned: true, follows: true, inserted: vec![2], unsafe_setting: None };
    appender.answered(Ok(Answer::Appended(vec![fewer])));
    looks(&mut appender);
    assert_eq!(again[0].batches[0], sent[0].batches[0]);
    appender.answered(ends(vec![end(owner(0), again[0].batches[1].at)]));
    let question = parts(appender.next_call());
    appender.answered(whole(&question));
    assert_eq!(appender.durable(tickets[0]).unwrap().sequence, 2);
}

#[test]
fn a_fenced_owner_ends_and_its_neighbour_goes_on() {
    let (mut appender, tickets) = with(2);
    appender.append(tickets[0], 1, b"a");
    appender.append(tickets[1], 1, b"b");
    let sent = parts(appender.next_call());
    let Ok(Answer::Appended(mut answers)) = whole(&sent) else { unreachable!() };
    answers[0] = Appended::default();
    assert_eq!(appender.answered(Ok(Answer::Appended(answers))), [tickets[1]]);
    looks(&mut appender);
    let successor = Owner { epoch: 4, claim: Uuid::from_u128(9), ..owner(0) };
    let neighbour = end(owner(1), sent[1].batches[0].at);
    let told = appender.answered(ends(vec![end(successor, position(&START)), neighbour]));
    assert_eq!(told, [tickets[0]]);
    let ended = appender.ended(tickets[0]);
    assert!(matches!(ended, Some(Error::Fenced { held: 3, newest: 4 })), "{ended:?}");
    assert!(appender.ended(tickets[1]).is_none());
    appender.append(tickets[1], 2, b"c");
    assert_eq!(parts(appender.next_call()).len(), 1);
}

#[test]
fn a_journal_that_ends_elsewhere_has_regressed() {
    let other = Position { sequence: 1, chain: 99 };
    let forgotten = Owner { epoch: 2, claim: Uuid::from_u128(5), ..owner(0) };
    let forgotten = end(forgotten, position(&START));
    // From before this owner, when nobody had it.
    let free = End { claim: None, ..forgotten };
    for seen in [end(owner(0), other), forgotten, free] {
        let (mut appender, tickets) = with(1);
        appender.append(tickets[0], 1, b"a");
        appender.next_call();
        appender.answered(lost());
        looks(&mut appender);
        appender.answered(ends(vec![seen]));
        let ended = appender.ended(tickets[0]);
        assert!(matches!(ended, Some(Error::Regressed { .. })), "{ended:?}");
        assert!(appender.next_call().is_none(), "nothing is sent to another history");
    }
    let (mut appender, tickets) = with(1);
    appender.look();
    looks(&mut appender);
    let other = Ends { cluster: CLUSTER, lineage: Uuid::from_u128(8), ends: Vec::new() };
    appender.answered(Ok(Answer::Ends(other)));
    assert!(matches!(appender.ended(tickets[0]), Some(Error::Regressed { .. })));
}

/// Its close was executed, and the answer to it lost.
#[test]
fn an_owner_that_gave_its_partition_up_has_not_regressed() {
    let (mut appender, tickets) = with(1);
    appender.look();
    looks(&mut appender);
    let given_up = End { claim: None, ..end(owner(0), position(&START)) };
    appender.answered(ends(vec![given_up]));
    let ended = appender.ended(tickets[0]);
    assert!(matches!(ended, Some(Error::Fenced { .. })), "{ended:?}");
}

/// A node that was paused while an operator accepted a loss.
#[test]
fn an_owner_from_before_a_loss_was_accepted_is_fenced_and_has_not_regressed() {
    let lineage = Uuid::from_u128(8);
    for (epoch, is_fenced) in [(owner(0).epoch + 65_536, true), (owner(0).epoch - 1, false)] {
        let (mut appender, tickets) = with(1);
        appender.look();
        looks(&mut appender);
        let end = End { claim: None, epoch, ..end(owner(0), position(&START)) };
        appender.answered(Ok(Answer::Ends(Ends { cluster: CLUSTER, lineage, ends: vec![end] })));
        let ended = appender.ended(tickets[0]);
        match is_fenced {
            true => assert!(matches!(ended, Some(Error::Fenced { .. })), "{ended:?}"),
            false => assert!(matches!(ended, Some(Error::Regressed { .. })), "{ended:?}"),
        }
    }
}

#[test]
fn a_reply_that_comes_twice_counts_once() {
    let (mut appender, tickets) = with(1);
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    appender.answered(whole(&sent));
    appender.append(tickets[0], 2, b"b");
    assert!(appender.answered(whole(&sent)).is_empty());
    assert_eq!(appender.durable(tickets[0]).unwrap().sequence, 1);
}

#[test]
fn a_lack_of_room_is_told_and_ends_with_the_next_append() {
    let (mut appender, tickets) = with(1);
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    let told = appender.answered(Err(Failure::of_state("53100", "disk full")));
    assert!(appender.is_full() && told == tickets);
    looks(&mut appender);
    appender.answered(ends(vec![end(owner(0), position(&START))]));
    assert!(appender.is_full(), "until something was written");
    parts(appender.next_call());
    appender.answered(whole(&sent));
    assert!(!appender.is_full());
}

#[test]
fn large_batches_go_a_few_at_a_time_and_all_get_their_turn() {
    let (mut appender, tickets) = with(3);
    let large = vec![0; CALL_BYTES_MAX / 2 + 1];
    for ticket in &tickets {
        appender.append(*ticket, 1, &large);
    }
    let mut served = Vec::new();
    while let Some(call) = appender.next_call() {
        let sent = parts(Some(call));
        assert_eq!(sent.len(), 1);
        served.push(sent[0].owner.partition);
        appender.answered(whole(&sent));
    }
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2]);
}

#[test]
fn a_question_of_an_owner_that_was_replaced_is_not_answered() {
    let (mut appender, tickets) = with(1);
    let question = appender.confirm(tickets[0]);
    assert_eq!(parts(appender.next_call())[0].batches, []);
    appender.answered(Ok(Answer::Appended(vec![Appended::default()])));
    assert!(appender.confirmed(tickets[0]) < question);
    looks(&mut appender);
    // Its journal is not the one it knows: that is no answer either.
    let (mut appender, tickets) = with(1);
    let question = appender.confirm(tickets[0]);
    appender.next_call();
    let elsewhere = Appended { owned: true, ..Appended::default() };
    appender.answered(Ok(Answer::Appended(vec![elsewhere])));
    assert!(appender.confirmed(tickets[0]) < question);
}

/// A statement proves who owned when it was executed, and nothing of later.
#[test]
fn a_question_that_is_asked_while_a_statement_is_under_way_is_not_answered_by_it() {
    let (mut appender, tickets) = with(1);
    appender.append(tickets[0], 1, b"a");
    let sent = parts(appender.next_call());
    let question = appender.confirm(tickets[0]);
    appender.answered(whole(&sent));
    assert_eq!(appender.durable(tickets[0]).unwrap().sequence, 1);
    assert!(appender.confirmed(tickets[0]) < question);
    let sent = parts(appender.next_call());
    appender.answered(whole(&sent));
    assert_eq!(appender.confirmed(tickets[0]), question);
}

#[test]
fn an_owner_with_more_than_a_statement_takes_lets_the_others_have_their_turn() {
    let (mut appender, tickets) = with(2);
    let large = vec![0; CALL_BYTES_MAX];
    (1..=3).for_each(|sequence| appender.append(tickets[0], sequence, &large));
    appender.append(tickets[1], 1, b"small");
    let mut served = Vec::new();
    for _ in 0..2 {
        let sent = parts(appender.next_call());
        served.extend(sent.iter().map(|part| part.owner.partition));
        appender.answered(whole(&sent));
    }
    assert_eq!(served, [0, 1]);
}
