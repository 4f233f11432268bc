//! An operator gives up a message that is dead, parked or waiting. Its key stays remembered.

use crate::command::KeyName;
use crate::content::Invalid;
use crate::decision::Decision;
use crate::ids::Time;
use crate::key::Digest;
use crate::machine::{Machine, Verdict};
use crate::moves::send::wake;
use crate::outcome::{Effect, Outcome, Place, Refusal};
use crate::record::{End, What};
use crate::row::nobody;
use crate::state::{Ending, event};

pub(crate) fn decide(machine: &Machine, at: Time, key: &KeyName, out: &mut Verdict) -> Outcome {
    let Some(queue) = machine.queues.named(&key.queue) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    let Some(slot) = machine.living_of(queue, key) else {
        return Outcome::Refused(machine.not_living(queue, key, at));
    };
    let message = machine.messages.at(slot);
    if message.place() == Place::Leased {
        return Outcome::Refused(Refusal::Invalid(Invalid::State("leased")));
    }
    out.decisions.push(Decision::Discarded { digest: message.digest });
    out.effects.push(Effect::Ended { digest: message.digest });
    if message.group.is_some() {
        out.effects.push(wake(queue));
    }
    Outcome::Ok
}

pub(crate) fn apply(machine: &mut Machine, at: Time, digest: &Digest) {
    let Some(slot) = machine.keys.living(&machine.messages, digest) else { return };
    let message = machine.messages.at(slot);
    if message.place() == Place::Leased {
        return;
    }
    let (queue, error) = (message.queue, message.error());
    let error = Some(if error.is_empty() { "discarded".into() } else { error });
    let discarded = Some(event(at, What::Discarded, &nobody(), ""));
    machine.end(at, slot, Ending { error, event: discarded, ..Ending::new(End::Discarded) });
    crate::moves::receive::trim(machine, queue);
}
