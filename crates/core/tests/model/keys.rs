//! Sends and claims: exactly one answer, in the order of DESIGN §3.

use std::sync::Arc;

use hapax_core::*;

use super::state::*;

impl Model {
    /// `seen` decides the one thing the model cannot know: whether a rate was remembered.
    pub(crate) fn send(&mut self, send: &SendMessage, seen: &Outcome) -> Outcome {
        Outcome::Sent(self.sent(send, seen).unwrap_or_else(|answer| answer))
    }

    pub(crate) fn claim(&mut self, claim: &Claim, seen: &Outcome) -> Outcome {
        Outcome::Claimed(self.claimed(claim, seen).unwrap_or_else(|answer| answer))
    }

    fn sent(&mut self, send: &SendMessage, seen: &Outcome) -> Result<Answer, Answer> {
        if send.ttl_ms == Some(0) {
            return Err(Answer::Invalid(Invalid::TimeToLive));
        }
        let queue = self.queue(&send.queue.queue).ok_or(Answer::NoSuchQueue)?.clone();
        check_for(&queue, &send.content)?;
        let (key, group) = (send.content.key(), send.content.group());
        let scope = (!key.is_empty()).then(|| Self::scope(&queue, key, group));
        let (mut released, mut dated_ahead) = (None, None);
        if let Some(scope) = &scope {
            released = self.known(&queue, scope, &send.fingerprint, false)?;
            dated_ahead = self.check_date(&queue, key, send.issued_at)?;
        }
        self.check_room(&queue, send.content.size() as u64, send.allowance, seen)?;
        if let Some(scope) = released {
            self.release_key(&scope);
        }
        let delay = send.delay_ms.unwrap_or(queue.config.delay_ms);
        let state = match delay {
            0 => State::Ready,
            delay => State::Delayed { due: self.at.plus(delay), backoff: false },
        };
        let ttl = send.ttl_ms.or(queue.config.ttl_ms);
        let ttl_at = ttl.map_or(Time::NEVER, |ttl| self.at.plus(ttl));
        let what = (send.content.clone(), send.fingerprint);
        let index = self.accept(&queue, scope, what, state, ttl_at, false);
        self.messages[index].dated_ahead = dated_ahead;
        let message = &self.messages[index];
        Ok(Answer::Accepted { id: message.id(), place: message.place(), at: self.at })
    }

    fn claimed(&mut self, claim: &Claim, seen: &Outcome) -> Result<Answer, Answer> {
        let key = claim.content.key();
        if key.is_empty() {
            return Err(Answer::Invalid(Invalid::MissingKey));
        }
        let queue = self.queue(&claim.queue.queue).ok_or(Answer::NoSuchQueue)?.clone();
        if queue.config.guarantee == Guarantee::AtMostOnce {
            return Err(Answer::Invalid(Invalid::State("in an at-most-once queue")));
        }
        check_for(&queue, &claim.content)?;
        let lease_ms = claim.lease_ms.unwrap_or(queue.config.lease_ms);
        if lease_ms < limits::LEASE_MS_MIN {
            return Err(Answer::Invalid(Invalid::LeaseLength(lease_ms)));
        }
        let scope = Self::scope(&queue, key, claim.content.group());
        if let Some(answer) = self.claimed_before(&queue, &scope, claim) {
            return Ok(answer);
        }
        let released = self.known(&queue, &scope, &claim.fingerprint, true)?;
        let dated_ahead = self.check_date(&queue, key, claim.issued_at)?;
        self.check_room(&queue, claim.content.size() as u64, claim.allowance, seen)?;
        if let Some(scope) = released {
            self.release_key(&scope);
        }
        let (fence, deadline) = (self.take_fence(), self.at.plus(lease_ms));
        let worker = claim.worker.clone();
        let state = State::Leased { fence, deadline, worker, begun: false };
        let what = (claim.content.clone(), claim.fingerprint);
        let index = self.accept(&queue, Some(scope), what, state, Time::NEVER, true);
        let message = &mut self.messages[index];
        message.attempts = 1;
        message.claim_id.clone_from(&claim.claim_id);
        message.dated_ahead = dated_ahead;
        let lease = message.lease().expect("a claim is leased");
        let (id, recovery_points) = (message.id(), message.points.clone());
        self.leases.push(lease);
        let parks = queue.config.on_lost == OnLost::Park;
        Ok(Answer::Fresh(Box::new(Fresh { id, lease, deadline, lease_ms, recovery_points, parks })))
    }

    /// The same claim again, while it is held.
    fn claimed_before(&self, queue: &Queue, scope: &Scope, claim: &Claim) -> Option<Answer> {
        let message = &self.messages[self.living(scope)?];
        let lease = message.lease()?;
        let deadline = message.deadline().expect("it is leased");
        let is_same = claim.claim_id.is_some()
            && message.claim_id == claim.claim_id
            && message.fingerprint == claim.fingerprint;
        is_same.then(|| {
            Answer::Fresh(Box::new(Fresh {
                id: message.id(),
                lease,
                deadline,
                lease_ms: deadline.since(self.at),
                recovery_points: message.points.clone(),
                parks: queue.config.on_lost == OnLost::Park,
            }))
        })
    }

    /// The answer for a known key, as an error. Where a dead message's key is to be released
    /// first, its scope.
    pub(crate) fn known(
        &mut self,
        queue: &Queue,
        scope: &Scope,
        fingerprint: &Fingerprint,
        claims: bool,
    ) -> Result<Option<Scope>, Answer> {
        let (at, name) = (self.at, &queue.name.queue);
        if let Some(index) = self.living(scope) {
            let message = &mut self.messages[index];
            // On its way out with its key: whoever sends now sends something new.
            let is_going = message.place() != Place::Leased
                && queue.purge.is_some_and(|below| message.seq < below);
            if is_going && message.seq < queue.keys_from {
                return Ok(Some(scope.clone()));
            }
            let (id, accepted_at, attempts) = (message.id(), message.accepted_at, message.attempts);
            let differs = message.fingerprint.differs(fingerprint);
            if !differs.is_empty() {
                return Err(Answer::Conflict { differs, id, accepted_at });
            }
            if message.is_over(at) {
                self.die_of_age(index);
            }
            let message = &mut self.messages[index];
            if message.place() == Place::Dead && queue.config.on_dead != OnDead::Pin {
                let reruns = queue.config.on_dead == OnDead::Rerun && !claims && !message.claim;
                // What is on its way out is not run again: a new message takes its key.
                let reruns = reruns && !is_going;
                if !reruns {
                    return Ok(Some(scope.clone()));
                }
                message.attempts = 0;
                message.ttl_at = Time::NEVER;
                message.state = State::Ready;
                message.tell(at, What::Rerun, &"".into(), "");
                return Err(Answer::Accepted { id, place: Place::Ready, at: accepted_at });
            }
            message.duplicates += 1;
            let answer = match message.place() {
                Place::Dead => {
                    let error = message.last_error();
                    Answer::Dead { id, accepted_at, attempts, error, discarded: false }
                }
                Place::Parked => Answer::Parked { id, accepted_at, attempts },
                place => {
                    let deadline = message.deadline();
                    Answer::InFlight(InFlight { id, accepted_at, place, attempts, deadline })
                }
            };
            self.queue_mut(name).totals.duplicate_total += 1;
            return Err(answer);
        }
        let Some(record) = self.remembered(queue, scope).cloned() else { return Ok(None) };
        let (id, accepted_at, attempts) = (record.id(0), record.accepted_at, record.attempts);
        let differs = record.fingerprint.differs(fingerprint);
        if !differs.is_empty() {
            return Err(Answer::Conflict { differs, id, accepted_at });
        }
        if record.end == End::Discarded && queue.config.on_dead != OnDead::Pin {
            return Ok(None);
        }
        self.queue_mut(name).totals.duplicate_total += 1;
        if let Some(record) = self.records.get_mut(scope) {
            record.duplicates += 1;
        }
        if record.end == End::Discarded {
            let error = record.error.unwrap_or_else(|| "discarded".into());
            return Err(Answer::Dead { id, accepted_at, attempts, error, discarded: true });
        }
        Err(Answer::Done(Box::new(Finished {
            id,
            accepted_at,
            finished_at: record.finished_at,
            remembered_until: record.expires_at,
            attempts,
            result: record.result,
        })))
    }

    fn release_key(&mut self, scope: &Scope) {
        let index = self.living(scope).expect("the dead message");
        let queue = self.queue(&scope.0).expect("its queue");
        let seq = self.messages[index].seq;
        if queue.purge.is_some_and(|below| seq < below) && seq < queue.keys_from {
            return self.purge_one(index, true);
        }
        let forgotten = Some(event(self.at, What::Forgotten, &"".into(), ""));
        self.end(index, End::Forgotten, Ending { event: forgotten, ..Ending::default() });
    }

    fn check_date(
        &self,
        queue: &Queue,
        key: &str,
        issued_at: Option<Time>,
    ) -> Result<Option<Time>, Answer> {
        let Some(dated) = issued_at.or_else(|| date(key, self.at)) else {
            return match queue.config.undated_keys {
                UndatedKeys::Accept => Ok(None),
                UndatedKeys::Refuse => Err(Answer::UndatedKey),
            };
        };
        let ahead_ms = dated.since(self.at);
        if ahead_ms > limits::DATED_AHEAD_MS {
            return Err(Answer::Invalid(Invalid::DatedAhead { ahead_ms }));
        }
        // As long as one of the retentions it may have ended under remembers it.
        let ended_under = |(until, _): &&(Time, u64)| dated <= *until;
        let retentions = queue.raised.iter().filter(ended_under).map(|(_, retention)| *retention);
        let mut retentions = retentions.chain(queue.config.retention_ms);
        if retentions.any(|retention| dated.plus(retention) <= self.at) {
            return Err(Answer::TooOld { dated });
        }
        Ok(issued_at.filter(|issued_at| *issued_at > self.at))
    }

    pub(crate) fn check_room(
        &self,
        queue: &Queue,
        bytes: u64,
        allowance: Allowance,
        seen: &Outcome,
    ) -> Result<(), Answer> {
        let (config, stats) = (&queue.config, self.stats(queue));
        let over = |quota, retry_after_ms| Err(Answer::OverQuota { quota, retry_after_ms });
        if let Allowance::UsedUp { quota, retry_after_ms } = allowance {
            return over(quota, retry_after_ms);
        }
        let is_bounded = allowance == Allowance::Queue;
        if is_bounded && config.max_messages.is_some_and(|max| stats.messages() >= max) {
            return over(Quota::Messages, 1_000);
        }
        if is_bounded && config.max_bytes.is_some_and(|max| stats.bytes + bytes > max) {
            return over(Quota::Bytes, 1_000);
        }
        if let Some(per_s) = config.sends_per_s {
            let used = self.rate_used(queue, per_s) + 1_000;
            let room = u64::from(per_s) * 1_000;
            if used > room {
                let wait = (used - room).div_ceil(per_s.into()).max(1);
                let said = match seen {
                    Outcome::Sent(answer) | Outcome::Claimed(answer) => answer,
                    _ => return over(Quota::Rate, wait),
                };
                match said {
                    // Tokens are in memory alone: after a crash there may be more of them.
                    Answer::OverQuota { quota: Quota::Rate, retry_after_ms } if self.crashed => {
                        assert!(*retry_after_ms <= wait, "a crash takes no tokens away");
                        return Err(said.clone());
                    }
                    Answer::Accepted { .. } | Answer::Fresh(_) | Answer::StoreFull
                        if self.crashed => {}
                    _ => return over(Quota::Rate, wait),
                }
            }
        }
        if self.store_full { Err(Answer::StoreFull) } else { Ok(()) }
    }

    fn rate_used(&self, queue: &Queue, per_s: u32) -> u64 {
        let (used, at) = queue.rate;
        used.saturating_sub(self.at.since(at).saturating_mul(per_s.into()))
    }

    pub(crate) fn accept(
        &mut self,
        queue: &Queue,
        scope: Option<Scope>,
        (content, fingerprint): (Arc<Content>, Fingerprint),
        state: State,
        ttl_at: Time,
        claim: bool,
    ) -> usize {
        let (at, seq) = (self.at, self.next_seq);
        self.next_seq += 1;
        let used = queue.config.sends_per_s.map(|per_s| self.rate_used(queue, per_s) + 1_000);
        let kept = self.queue_mut(&queue.name.queue);
        kept.totals.sent_total += 1;
        if let Some(used) = used {
            kept.rate = (used, at);
        }
        let id = MessageId::new(at, 0, seq);
        let before = scope.as_ref().and_then(|scope| self.records.remove(scope));
        let freed = before.filter(|record| {
            record.is_free() && record.expires_at > at && record.seq >= queue.keys_from
        });
        let ordered = content.group().filter(|_| queue.config.order == Order::Group);
        self.messages.push(Message {
            queue: queue.name.queue.to_string(),
            digest: scope.as_ref().map_or(Digest(id.0), |scope| self.digest(scope)),
            scope,
            seq,
            ordered: ordered.map(Into::into),
            content,
            fingerprint,
            claim,
            state,
            attempts: 0,
            generation: 0,
            accepted_at: at,
            leased_at: at,
            ttl_at,
            error: None,
            duplicates: 0,
            losses: 0,
            settled: None,
            lost: None,
            worker: None,
            claim_id: None,
            dated_ahead: None,
            points: freed.as_ref().map(|record| record.points.clone()).unwrap_or_default(),
            history: freed.map(|record| record.history).unwrap_or_default(),
        });
        self.messages.len() - 1
    }
}

pub(crate) fn check_for(queue: &Queue, content: &Content) -> Result<(), Answer> {
    let config = &queue.config;
    if content.key().is_empty() && config.guarantee != Guarantee::AtLeastOnce {
        return Err(Answer::Invalid(Invalid::MissingKey));
    }
    if content.group().is_none() && config.dedup_scope == DedupScope::Group {
        return Err(Answer::Invalid(Invalid::MissingGroup));
    }
    let (bytes, max) = (content.body().len() as u64, config.max_body_bytes);
    if bytes > max {
        return Err(Answer::Invalid(Invalid::BodyTooLarge { bytes, max }));
    }
    Ok(())
}
