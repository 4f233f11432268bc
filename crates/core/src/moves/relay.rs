//! An emit reached its queue, or has to be tried again.

use crate::decision::Decision;
use crate::ids::Stamp;
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::outcome::Outcome;

pub(crate) fn decide(
    machine: &Machine,
    stamp: Stamp,
    id: u64,
    reached: bool,
    out: &mut Verdict,
) -> Outcome {
    let Some(relay) = machine.relays.get(id) else {
        return Outcome::Ok; // Said before.
    };
    if reached {
        out.decisions.push(Decision::Relayed { id });
    } else {
        let attempts = relay.attempts + 1;
        let doublings = relay.attempts.min(16);
        let delay = (limits::RELAY_BACKOFF_MIN_MS << doublings).min(limits::RELAY_BACKOFF_MAX_MS);
        let next_at = stamp.at.plus(delay);
        out.decisions.push(Decision::RelayRetried { id, attempts, next_at });
    }
    Outcome::Ok
}
