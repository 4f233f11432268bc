//! A caller claims a key to do the work itself.

use crate::command::Claim;
use crate::config::{Guarantee, OnLost};
use crate::content::Invalid;
use crate::decision::{Accepted, ClaimLease, Decision};
use crate::ids::{MessageId, Stamp, Time};
use crate::key::Digest;
use crate::limits;
use crate::machine::{Machine, Verdict};
use crate::moves::send::{self, Asked};
use crate::outcome::{Answer, Fresh, Outcome};
use crate::queue::Queue;

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
    if !claim.content.has_key() {
        return invalid(Invalid::MissingKey);
    }
    if claim.worker.len() > limits::WORKER_BYTES_MAX {
        return invalid(Invalid::Worker);
    }
    let queue = machine.queues.named(&claim.queue).ok_or(Answer::NoSuchQueue)?;
    if queue.config.guarantee == Guarantee::AtMostOnce {
        // An at-most-once queue has no leases to hold.
        return invalid(Invalid::State("in an at-most-once queue"));
    }
    send::check_for(queue, &claim.content)?;
    let lease_ms = claim.lease_ms.unwrap_or(queue.config.lease_ms);
    if !(limits::LEASE_MS_MIN..=limits::LEASE_MS_MAX).contains(&lease_ms) {
        return invalid(Invalid::LeaseLength(lease_ms));
    }
    let id = claim.claim_id.as_deref();
    if id.is_some_and(|id| !(1..=limits::CLAIM_ID_BYTES_MAX).contains(&id.len())) {
        return invalid(Invalid::Id);
    }
    let id = id.map(|id| Digest::of_claim(queue.id, id));
    let key = claim.content.key_bytes();
    let digest = machine.scoped(queue, claim.digest, &claim.content);
    if let Some(answer) = id.and_then(|id| again(machine, queue, &digest, &claim, id)) {
        return Ok(answer);
    }
    let asked = Asked { queue, digest, fingerprint: &claim.fingerprint, claim: true };
    let released = send::known(machine, stamp.at, &asked, out)?;
    let dated_ahead = send::check_date(queue, stamp.at, key, claim.issued_at)?;
    send::check_room(machine, queue, stamp.at, claim.content.size() as u64, claim.allowance)?;

    let seq = machine.next_seq;
    let (fence, deadline) = (machine.next_fence(), stamp.at.plus(lease_ms));
    let lease = ClaimLease { fence, deadline, worker: claim.worker, begun: false, id };
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
        dated_ahead,
    })));
    let id = MessageId::new(stamp.at, machine.partition, seq);
    let lease = crate::command::LeaseName { digest, seq, fence };
    let before = machine.keys.record(&machine.messages, &digest);
    let before = before.filter(|record| send::hands_on(record, queue, stamp.at));
    let recovery_points = before.map(|record| record.points).unwrap_or_default();
    let parks = queue.config.on_lost == OnLost::Park;
    Ok(Answer::Fresh(Box::new(Fresh { id, lease, deadline, lease_ms, recovery_points, parks })))
}

/// The lease that the claim of this id already holds.
fn again(
    machine: &Machine,
    queue: &Queue,
    digest: &Digest,
    claim: &Claim,
    id: Digest,
) -> Option<Answer> {
    let slot = machine.keys.living(&machine.messages, digest)?;
    let message = machine.messages.at(slot);
    let extra = message.extra.as_ref().filter(|extra| extra.claim_id == Some(id))?;
    let lease = message.lease().filter(|_| message.queue == queue.id)?;
    debug_assert!(message.claim, "only a claim has a claim's id");
    if !message.fingerprint.differs(&claim.fingerprint).is_empty() {
        return None; // A conflict, which takes precedence over every other answer.
    }
    Some(Answer::Fresh(Box::new(Fresh {
        id: message.id(machine.partition),
        lease: message.lease_name(lease.fence),
        deadline: lease.deadline,
        lease_ms: lease.deadline.since(machine.now),
        recovery_points: extra.points.clone(),
        parks: queue.config.on_lost == OnLost::Park,
    })))
}
