//! A caller takes a key to do the work itself.

use crate::command::Claim;
use crate::config::{Guarantee, OnLost};
use crate::content::Invalid;
use crate::decision::{Accepted, ClaimLease, Decision};
use crate::ids::{MessageId, Stamp, Time};
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::moves::send::{self, Asked};
use crate::outcome::{Answer, Outcome};

pub(crate) fn decide(machine: &Machine, stamp: Stamp, claim: Claim, out: &mut Verdict) -> Outcome {
    Outcome::Claimed(answer(machine, stamp, claim, out).unwrap_or_else(|answer| answer))
}

fn answer(
    machine: &Machine,
    stamp: Stamp,
    claim: Claim,
    out: &mut Verdict,
) -> Result<Answer, Answer> {
    let invalid = |invalid| Err(Answer::Invalid(invalid));
    if claim.content.key().is_empty() {
        return invalid(Invalid::MissingKey);
    }
    if claim.worker.len() > limits::WORKER_BYTES_MAX {
        return invalid(Invalid::Worker);
    }
    let queue = machine.queues.named(&claim.queue).ok_or(Answer::NoSuchQueue)?;
    if queue.config.guarantee == Guarantee::AtMostOnce {
        // There is no lease to hold in a queue whose messages are done as they are handed out.
        return invalid(Invalid::State("in an at-most-once queue"));
    }
    send::check_for(queue, &claim.content)?;
    let lease_ms = claim.lease_ms.unwrap_or(queue.config.lease_ms);
    if !(limits::LEASE_MS_MIN..=limits::LEASE_MS_MAX).contains(&lease_ms) {
        return invalid(Invalid::LeaseLength(lease_ms));
    }
    let key = claim.content.key();
    let digest = machine.scoped(queue, claim.digest, &claim.content);
    let asked = Asked { queue, digest, fingerprint: &claim.fingerprint, claim: true };
    let released = send::known(machine, stamp.at, &asked, out)?;
    send::check_date(queue, stamp.at, key, claim.issued_at)?;
    send::check_room(machine, queue, stamp.at, claim.content.size() as u64)?;

    let seq = machine.next_seq;
    let (fence, deadline) = (machine.next_fence(), stamp.at.plus(lease_ms));
    // In a queue that parks, who takes a key has begun: it may be half done when it is lost.
    let begun = queue.config.on_lost == OnLost::Park;
    let lease = ClaimLease { fence, deadline, worker: claim.worker, begun };
    if released.is_some() {
        out.effects.push(send::wake(queue)); // It may have held others of its group.
    }
    out.decisions.extend(released);
    out.decisions.push(Decision::Accepted(Box::new(Accepted {
        seq,
        queue: queue.id,
        digest,
        fingerprint: claim.fingerprint,
        content: claim.content,
        due: None,
        ttl_at: Time::NEVER,
        claim: Some(lease),
    })));
    let id = MessageId::new(stamp.at, machine.partition, seq);
    let lease = crate::command::LeaseName { digest, seq, fence };
    let before = machine.keys.record(&digest);
    let before = before.filter(|record| send::hands_on(record, queue, stamp.at));
    let recovery_points = before.map(|record| record.points).unwrap_or_default();
    Ok(Answer::Fresh { id, lease, deadline, recovery_points })
}
