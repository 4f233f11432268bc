//! An operator resolves a parked message: it is done, or it is retried.

use crate::command::{Blob, Resolution, Resolve};
use crate::content::Invalid;
use crate::decision::{Decision, Next};
use crate::ids::{Fence, Time};
use crate::key::Digest;
use crate::machine::{Machine, Verdict};
use crate::moves::send::wake;
use crate::moves::settle::{check_result, go};
use crate::outcome::{Effect, Outcome, Place, Refusal};
use crate::record::{End, What};
use crate::row::nobody;
use crate::state::{Ending, event};

pub(crate) fn decide(machine: &Machine, at: Time, resolve: Resolve, out: &mut Verdict) -> Outcome {
    let Some(queue) = machine.queues.named(&resolve.key.queue) else {
        return Outcome::Refused(Refusal::NoSuchQueue);
    };
    let Some(slot) = machine.living_of(queue, &resolve.key) else {
        return Outcome::Refused(machine.not_living(queue, &resolve.key, at));
    };
    let message = machine.messages.at(slot);
    if message.place() != Place::Parked {
        return Outcome::Refused(Refusal::Invalid(Invalid::State(message.place().as_str())));
    }
    let digest = message.digest;
    let (done, result, next) = match resolve.resolution {
        Resolution::Done(result) => (true, result, Next::Ready),
        Resolution::Retry if message.claim => (false, None, Next::Freed),
        Resolution::Retry => (false, None, Next::Ready),
    };
    if let Err(invalid) = check_result(queue, result.as_ref()) {
        return Outcome::Refused(Refusal::Invalid(invalid));
    }
    out.decisions.push(Decision::Resolved { digest, done, result, next });
    if done || next == Next::Freed {
        out.effects.push(Effect::Ended { digest });
    }
    out.effects.push(wake(queue));
    Outcome::Ok
}

pub(crate) fn apply(
    machine: &mut Machine,
    at: Time,
    digest: &Digest,
    done: bool,
    result: Option<Blob>,
    next: Next,
) {
    let Some(slot) = machine.keys.living(&machine.messages, digest) else { return };
    let message = machine.messages.at_mut(slot);
    if message.place() != Place::Parked {
        return; // Applied before.
    }
    let detail = if done { "done" } else { "retry" };
    message.remember(event(at, What::Resolved, &nobody(), detail));
    message.extra().lost = None; // The operator decided: its worker can no longer settle.
    let queue = message.queue;
    if !done {
        go(machine, at, slot, Fence(0), next);
        return;
    }
    if let Some(queue) = machine.queues.get_mut(queue) {
        queue.stats.done_total += 1;
    }
    machine.end(at, slot, Ending { result, ..Ending::new(End::Done) });
}
