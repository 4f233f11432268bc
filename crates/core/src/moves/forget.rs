//! An operator makes a key unknown again. Its history stays, for the next message under the key.

use crate::command::KeyName;
use crate::content::Invalid;
use crate::decision::{Decision, QueueId};
use crate::ids::{Stamp, Time};
use crate::key::Digest;
use crate::machine::{Machine, Verdict};
use crate::moves::send::{hands_on, is_remembered};
use crate::outcome::{Outcome, Place, Refusal};
use crate::places::keys::Known;
use crate::record::{End, What, remember};
use crate::row::nobody;
use crate::state::{Ending, event};

pub(crate) fn decide(machine: &Machine, stamp: Stamp, key: &KeyName, out: &mut Verdict) -> Outcome {
    let Some(queue) = machine.queues.named(&key.queue) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    let digest = machine.digest_of(queue, &key.key, key.group.as_deref());
    match machine.keys.find(&machine.messages, &digest) {
        // A key lives as long as its message does.
        Some(Known::Living(slot)) if machine.messages.at(slot).queue == queue.id => {
            let place = machine.messages.at(slot).place().as_str();
            Outcome::Refused(Refusal::Invalid(Invalid::State(place)))
        }
        Some(Known::Record(record)) if is_remembered(&record, queue, stamp.at) => {
            out.decisions.push(Decision::Forgotten { digest, queue: queue.id });
            Outcome::Ok
        }
        // The key of a freed claim is unknown already, but its recovery points are kept for the
        // next claim.
        Some(Known::Record(record))
            if hands_on(&record, queue, stamp.at) && !record.points.is_empty() =>
        {
            out.decisions.push(Decision::Forgotten { digest, queue: queue.id });
            Outcome::Ok
        }
        _ => Outcome::Refused(Refusal::NoSuchKey),
    }
}

/// Forgets a remembered key, the recovery points of a freed claim, or a dead message whose key is
/// released by another send.
pub(crate) fn apply(machine: &mut Machine, at: Time, digest: &Digest, queue: QueueId) {
    let forgotten = event(at, What::Forgotten, &nobody(), "");
    match machine.keys.find(&machine.messages, digest) {
        Some(Known::Living(slot)) if machine.messages.at(slot).place() == Place::Dead => {
            let ending = Ending { event: Some(forgotten), ..Ending::new(End::Forgotten) };
            machine.end(at, slot, ending);
        }
        Some(Known::Record(mut record)) if !record.is_free() || !record.points.is_empty() => {
            let counts = !record.is_free();
            record.end = End::Forgotten;
            record.result = None;
            record.content = None;
            record.points.clear();
            remember(&mut record.history, forgotten);
            machine.keys.remember(digest, &record);
            if let Some(queue) = machine.queues.get_mut(queue).filter(|_| counts) {
                queue.count_key(record.drop_at(), false);
                queue.dirty = true;
            }
        }
        _ => {} // Applied before.
    }
}
