//! An emit reached its queue, has to be tried again, or is refused for good.
//!
//! An emit that its queue refuses for good is not dropped: it is stored there as a dead letter, a
//! message that is dead from the start. After the first refusal it is not sent as a normal message
//! again, so that it exists once: as a message or as a dead letter. If its key belongs to another
//! message, the dead letter gets a new key, which is the same in every try.

use std::sync::Arc;

use crate::command::{Arrival, DeadLetter};
use crate::decision::{Accepted, Decision};
use crate::ids::{MessageId, Stamp, Time};
use crate::key;
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::moves::send::{self, Asked};
use crate::moves::settle::{bounded, with_key};
use crate::outcome::{Answer, Effect, Outcome, Relay};
use crate::places::keys::Known;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    id: u64,
    arrival: Arrival,
    out: &mut Verdict,
) -> Outcome {
    let Some(relay) = machine.relays.get(id) else {
        return Outcome::Ok; // Confirmed before.
    };
    match arrival {
        Arrival::Arrived => out.decisions.push(Decision::Relayed { id }),
        Arrival::Later => {
            let attempts = relay.attempts + 1;
            let doublings = relay.attempts.min(16);
            let delay =
                (limits::RELAY_BACKOFF_MIN_MS << doublings).min(limits::RELAY_BACKOFF_MAX_MS);
            let next_at = stamp.at.plus(delay);
            out.decisions.push(Decision::RelayRetried { id, attempts, next_at });
        }
        Arrival::Refused(error) => {
            let error: Arc<str> = bounded(&error).into();
            // A dead letter is only ever refused because its key is taken.
            let taken = relay.refused.is_some();
            let aside = || {
                let fingerprint = relay.fingerprint(&machine.recipe);
                key::aside(relay.emit.content.key(), &fingerprint).into()
            };
            let key: Option<Arc<str>> = taken.then(aside);
            let again = refused(relay, &error, key.as_deref());
            out.decisions.push(Decision::RelayRefused { id, error, key });
            out.effects.push(Effect::Relay(Box::new(again)));
        }
    }
    Outcome::Ok
}

/// The relay after a refusal: the first reason is kept.
fn refused(relay: &Relay, error: &Arc<str>, key: Option<&str>) -> Relay {
    let mut relay = relay.clone();
    relay.refused.get_or_insert_with(|| Arc::clone(error));
    if let Some(key) = key {
        let content = with_key(&relay.emit.content, key);
        assert!(content.is_ok(), "a key that was made fits: {key}");
        relay.emit.content = content.unwrap_or(relay.emit.content);
    }
    relay
}

pub(crate) fn apply_refused(machine: &mut Machine, id: u64, error: Arc<str>, key: Option<&str>) {
    let Some(relay) = machine.relays.get(id) else { return };
    let refused = refused(relay, &error, key);
    machine.relays.refuse(id, refused);
}

/// Stores an emit that its queue refused as a dead message there.
pub(crate) fn dead_letter(
    machine: &Machine,
    stamp: Stamp,
    letter: DeadLetter,
    out: &mut Verdict,
) -> Outcome {
    Outcome::Sent(filed(machine, stamp, letter, out).unwrap_or_else(|answer| answer))
}

fn filed(
    machine: &Machine,
    stamp: Stamp,
    letter: DeadLetter,
    out: &mut Verdict,
) -> Result<Answer, Answer> {
    let DeadLetter { send, error } = letter;
    let queue = machine.queues.named(&send.queue).ok_or(Answer::NoSuchQueue)?;
    let digest = machine.scoped(queue, send.digest, &send.content);
    let asked = Asked { queue, digest, fingerprint: &send.fingerprint, claim: false };
    let mut released = None;
    // Unlike a send it changes nothing of a message that is there: no rerun, no release.
    match machine.keys.find(&machine.messages, &digest) {
        Some(Known::Living(slot)) => {
            let message = machine.messages.at(slot);
            released = send::purged(machine, message, &asked);
            if released.is_none() {
                let id = message.id(machine.partition);
                send::conflict(&message.fingerprint, &asked, id, message.accepted_at)?;
                return Err(send::alive(machine, message));
            }
        }
        Some(Known::Record(record)) if send::is_remembered(&record, queue, stamp.at) => {
            let id = record.id(machine.partition);
            send::conflict(&record.fingerprint, &asked, id, record.accepted_at)?;
            return Err(send::remembered(machine, *record));
        }
        Some(Known::Record(_)) => {}
        None => out.found.unknown = Some(digest),
    }
    let bytes = send.content.size() as u64;
    send::check_room(machine, queue, stamp.at, bytes, send.allowance)?;
    let seq = machine.next_seq;
    let error: Arc<str> = bounded(&error).into();
    out.decisions.extend(released);
    out.decisions.push(Decision::Accepted(Box::new(Accepted {
        seq,
        queue: queue.id,
        digest,
        fingerprint: send.fingerprint,
        content: send.content,
        due: None,
        ttl_at: Time::NEVER,
        claim: None,
        dated_ahead: None,
    })));
    out.decisions.push(Decision::Died { digest, error: Arc::clone(&error) });
    out.effects.push(Effect::Ended { digest });
    let id = MessageId::new(stamp.at, machine.partition, seq);
    Ok(Answer::Dead { id, accepted_at: stamp.at, attempts: 0, error, discarded: false })
}
