//! Answers to sends and claims.

use hapax_core::{
    Answer, Fence, Finished, Fresh, Guarantee, InFlight, MessageId, OnDead, Place, Time,
};

use super::{Begun, Checked, Checker, Lease, Life, Places, violation};
use crate::op::Op;
use crate::scene::{ItemId, Variant, point_of};

impl Checker {
    pub(super) fn sent(
        &mut self,
        at: Time,
        item: ItemId,
        variant: Variant,
        answer: &Answer,
    ) -> Checked {
        match answer {
            Answer::Accepted { id, place, at: accepted_at } => {
                self.accepted(at, item, variant, *id, *place, *accepted_at)
            }
            Answer::Fresh(_) => violation("a send was answered as a claim"),
            _ => self.refused(at, item, variant, false, answer),
        }
    }

    pub(super) fn claimed(&mut self, at: Time, op: &Op, answer: &Answer) -> Checked {
        let Op::Claim { item, variant, lease_ms, id: claim } = op else {
            return violation("a claim's answer for something else");
        };
        let (item, variant) = (*item, *variant);
        let may_be_second = claim.and_then(|claim| self.claims.get(&claim)) == Some(&true);
        if let Some(claim) = claim {
            self.claims.entry(*claim).or_default();
        }
        let Answer::Fresh(fresh) = answer else {
            if matches!(answer, Answer::Accepted { .. }) {
                return violation("a claim was answered as a send");
            }
            self.not_again(at, item, *claim, answer)?;
            return self.refused(at, item, variant, true, answer);
        };
        let Fresh { id, lease, deadline, recovery_points, .. } = &**fresh;
        if self.knows_lease(self.here, lease.fence) {
            return self.claimed_again(at, item, *claim, (*id, lease.fence, *deadline));
        }
        let newest = self.fence_max.get(self.here).copied().unwrap_or(Fence(0));
        let (life, spec, config) = self.passed(at, item);
        let is_old = lease.fence <= newest || *deadline != at.plus(*lease_ms);
        let is_held = life.unseen_lease && life.places.may_be(Places::LEASED);
        let is_older = life.may_be_new && (is_old || !life.may_begin(config, true, spec));
        // The work under an earlier lease may be begun.
        let begun = if may_be_second && is_held { life.begun.perhaps() } else { Begun::No };
        if may_be_second && is_held && (life.id == Some(*id) || is_older) {
            life.variants |= 1 << variant;
            life.past_points.append(&mut life.may_be_saved);
            life.saved.clear();
            self.check_id(item, *id)?;
            self.raise_fence(lease.fence)?;
        } else {
            // This may be the lease of the first claim under this id; a purge in between then
            // covers it.
            let purge = life.purge.filter(|_| may_be_second && is_held);
            self.begin(at, item, variant, true, *id)?;
            self.passed(at, item).0.purge = purge;
            if *deadline != at.plus(*lease_ms) {
                return violation("a claim's deadline is not its lease from now");
            }
            self.grow_fence(lease.fence)?;
        }
        self.check_inherited(item, recovery_points)?;
        let (life, ..) = self.passed(at, item);
        life.lease(lease.fence, *deadline, 1);
        life.begun = begun;
        self.leases.insert((self.here, lease.fence), Lease::of_claim(item, *id, *claim));
        Ok(())
    }

    /// Checks that a repeated claim, while it holds, gets the same lease.
    fn claimed_again(
        &mut self,
        at: Time,
        item: ItemId,
        claim: Option<u64>,
        (id, fence, deadline): (MessageId, Fence, Time),
    ) -> Checked {
        let known = self.leases.get(&(self.here, fence));
        if claim.is_none() || known.is_none_or(|lease| !lease.is_of(item, claim)) {
            return violation("a claim got the lease of another");
        }
        self.narrow(at, item, Places::LEASED)?;
        self.check_id(item, id)?;
        let (life, ..) = self.passed(at, item);
        if life.fence != fence {
            return violation("a repeated claim got a lease that is not the newest");
        }
        life.lost_from = deadline;
        life.unseen_lease = false;
        Ok(())
    }

    /// Checks that a claim that holds is not answered "in flight".
    fn not_again(
        &mut self,
        at: Time,
        item: ItemId,
        claim: Option<u64>,
        answer: &Answer,
    ) -> Checked {
        let here = self.here;
        let (life, ..) = self.passed(at, item);
        let holds = life.places == Places::LEASED && !life.unseen_lease && !life.may_be_new;
        let fence = life.fence;
        let known = self.leases.get(&(here, fence));
        let is_its = claim.is_some() && known.is_some_and(|lease| lease.is_of(item, claim));
        match matches!(answer, Answer::InFlight(_)) && holds && is_its {
            true => violation("a repeated claim does not get its lease again"),
            false => Ok(()),
        }
    }

    fn accepted(
        &mut self,
        at: Time,
        item: ItemId,
        variant: Variant,
        id: MessageId,
        place: Place,
        accepted_at: Time,
    ) -> Checked {
        self.check_variant(at, item, variant, true)?;
        if self.is_out_of_place(item, variant) {
            return violation("accepted, though the queue takes no such message");
        }
        let (life, spec, config) = self.passed(at, item);
        let reruns = config.on_dead == OnDead::Rerun && life.places.may_be(Places::DEAD);
        let is_old = accepted_at != at || !life.may_begin(config, false, spec);
        if life.id == Some(id) || (reruns && life.may_be_new && is_old) {
            if !reruns {
                let key = self.item(item).key.clone();
                return violation(format!("{key} was accepted twice under one id"));
            }
            self.check_id(item, id)?;
            let (life, ..) = self.passed(at, item);
            life.revive(true);
            return Ok(());
        }
        self.begin(at, item, variant, false, id)?;
        if accepted_at != at {
            return violation("a message was accepted at another time than now");
        }
        let (life, spec, config) = self.passed(at, item);
        life.places = Places::default();
        life.enter(at, spec, config);
        if life.places != Places::of(place) {
            return violation(format!("accepted as {}, not {}", place.as_str(), life.places));
        }
        Ok(())
    }

    /// A new message under the key.
    fn begin(
        &mut self,
        at: Time,
        item: ItemId,
        variant: Variant,
        claim: bool,
        id: MessageId,
    ) -> Checked {
        let (here, redriven) = (self.here, self.redriven_now(at, item));
        let (life, spec, config) = self.passed(at, item);
        if !life.may_begin(config, claim, spec) {
            let (key, places) = (spec.key.clone(), life.places);
            let known = life.id.map_or_else(|| "no id yet".to_owned(), |id| id.to_string());
            return violation(format!(
                "{key} was accepted anew as {id}, though it is {places} ({known})"
            ));
        }
        *life = life.renewed(id, variant);
        life.home = Some(here);
        life.redriven = redriven;
        match self.ids.insert(id, item) {
            None => Ok(()),
            Some(_) => violation(format!("the id {id} was used before")),
        }
    }

    /// Every answer but the first.
    pub(super) fn refused(
        &mut self,
        at: Time,
        item: ItemId,
        variant: Variant,
        claim: bool,
        answer: &Answer,
    ) -> Checked {
        match answer {
            Answer::Conflict { differs, id, .. } => {
                self.narrow(at, item, Places::KNOWN)?;
                self.check_id(item, *id)?;
                let (life, spec, config) = self.passed(at, item);
                let others = (0..crate::scene::VARIANTS).filter(|first| {
                    life.may_be_variant(*first)
                        && !differs.is_empty()
                        && spec.differs(*first, variant, config.dedup_scope) == *differs
                });
                let bits = others.fold(0, |bits, first| bits | 1 << first);
                if bits == 0 {
                    return violation(format!("{} conflicts with nothing", spec.key));
                }
                life.variants = bits;
                Ok(())
            }
            Answer::Done(finished) => {
                self.check_variant(at, item, variant, false)?;
                self.done(at, item, finished)
            }
            Answer::Dead { id, attempts, .. } => {
                if self.config(self.item(item).queue).on_dead != OnDead::Pin {
                    return violation("dead, in a queue that does not pin its dead");
                }
                self.known(at, item, variant, Places::DEAD.or(Places::DISCARDED), *id)?;
                self.check_attempts(at, item, *attempts)
            }
            Answer::Parked { id, attempts, .. } => {
                self.known(at, item, variant, Places::PARKED, *id)?;
                self.check_attempts(at, item, *attempts)
            }
            Answer::InFlight(InFlight { id, place, attempts, .. }) => {
                self.known(at, item, variant, Places::of(*place), *id)?;
                self.check_attempts(at, item, *attempts)
            }
            Answer::TooOld { dated } => {
                let queue = self.item(item).queue;
                // Under an earlier, shorter retention the key may be forgotten already.
                let kept = self.state(queue).had().filter_map(|config| config.retention_ms);
                let kept = kept.min().map_or(Time::NEVER, |ms| dated.plus(ms));
                if !self.dates(item).contains(dated) || kept > at {
                    return violation("a key was too old before its time");
                }
                self.unknown(at, item, claim)
            }
            Answer::OverQuota { .. } => {
                if self.config(self.item(item).queue).max_messages.is_none() {
                    return violation("over a quota that there is not");
                }
                self.unknown(at, item, claim)
            }
            Answer::StoreFull if self.may_be_full => self.unknown(at, item, claim),
            Answer::Invalid(_) if self.is_out_of_place(item, variant) => Ok(()),
            _ => violation("an answer that nothing called for"),
        }
    }

    pub(super) fn known(
        &mut self,
        at: Time,
        item: ItemId,
        variant: Variant,
        places: Places,
        id: MessageId,
    ) -> Checked {
        self.narrow(at, item, places)?;
        self.check_variant(at, item, variant, false)?;
        self.check_id(item, id)
    }

    /// The key was unknown, or its dead message was to be replaced.
    fn unknown(&mut self, at: Time, item: ItemId, claim: bool) -> Checked {
        let (life, spec, config) = self.passed(at, item);
        if !life.may_begin(config, claim, spec) {
            let (key, places) = (spec.key.clone(), life.places);
            return violation(format!("{key} was taken for unknown, and is {places}"));
        }
        if life.purge.is_some() {
            return Ok(()); // It may be there until the purge has come to it.
        }
        let left = life.narrow(at, Life::beginnings(config, claim, spec));
        debug_assert!(left.is_ok(), "it may begin");
        Ok(())
    }

    pub(super) fn done(&mut self, at: Time, item: ItemId, finished: &Finished) -> Checked {
        self.narrow(at, item, Places::DONE)?;
        self.check_id(item, finished.id)?;
        self.check_result(item, &finished.result)?;
        self.check_attempts(at, item, finished.attempts)?;
        let queue = self.item(item).queue;
        let kept: Vec<u64> =
            self.state(queue).had().map(|had| had.retention_ms.unwrap_or(u64::MAX)).collect();
        // The retention of an operation dated in the future starts at its date.
        let mut ends = self.dates(item);
        ends.iter_mut().for_each(|date| *date = finished.finished_at.max(*date));
        ends.push(finished.finished_at);
        let (life, ..) = self.passed(at, item);
        if life.ended_from > finished.finished_at || finished.finished_at > at {
            return violation(format!(
                "finished at {}, which is before {}",
                finished.finished_at.0, life.ended_from.0
            ));
        }
        life.ended_from = finished.finished_at;
        let until = finished.remembered_until;
        let is_kept = |ms: &u64| match *ms {
            u64::MAX => until == Time::NEVER,
            ms => ends.iter().any(|end| until == end.plus(ms)),
        };
        let Some(ms) = kept.into_iter().find(is_kept).filter(|_| until > at) else {
            return violation("remembered for another time than the queue's retention");
        };
        life.kept_ms = ms;
        Ok(())
    }

    /// Whether its queue refuses the item under its current configuration.
    pub(super) fn is_out_of_place(&self, item: ItemId, variant: Variant) -> bool {
        let item = self.item(item);
        let config = self.config(item.queue);
        let content = item.content(variant, config.dedup_scope);
        if content.body().len() as u64 > config.max_body_bytes {
            return true;
        }
        match config.guarantee {
            Guarantee::AtMostOnce => item.claim || item.is_keyless(),
            Guarantee::ExactlyOnce => item.is_keyless(),
            Guarantee::AtLeastOnce => false,
        }
    }

    /// Checks the recovery points that a claim inherits from earlier claims of its key.
    fn check_inherited(
        &mut self,
        item: ItemId,
        points: &std::collections::BTreeMap<String, bytes::Bytes>,
    ) -> Checked {
        let spec = self.item(item).clone();
        let Some(life) = self.lives.get_mut(item) else { return Ok(()) };
        for (name, data) in points {
            let known = life.past_points.iter().find(|known| **known == name.as_str());
            match known {
                Some(known) if *data == point_of(&spec, name) => {
                    life.may_be_saved.insert(known);
                }
                _ => return violation(format!("the recovery point {name} is none of this key")),
            }
        }
        Ok(())
    }

    /// Checks that the message is the variant sent now. With `new`, the key may also have been
    /// unknown.
    pub(super) fn check_variant(
        &mut self,
        at: Time,
        item: ItemId,
        variant: Variant,
        new: bool,
    ) -> Checked {
        let (life, spec, config) = self.passed(at, item);
        let same = (0..crate::scene::VARIANTS).filter(|first| {
            life.may_be_variant(*first)
                && spec.differs(*first, variant, config.dedup_scope).is_empty()
        });
        let bits = same.fold(0, |bits, first| bits | 1 << first);
        if new {
            return Ok(());
        }
        if bits == 0 {
            return violation(format!("{} was sent otherwise, and this is no conflict", spec.key));
        }
        life.variants = bits;
        Ok(())
    }

    pub(super) fn check_attempts(&mut self, at: Time, item: ItemId, attempts: u32) -> Checked {
        let (life, spec, _) = self.passed(at, item);
        let (least, most) = life.attempts;
        if !(least..=most).contains(&attempts) {
            return violation(format!(
                "{} had {attempts} attempts, which is not {least} to {most}",
                spec.key
            ));
        }
        life.attempts = (attempts, attempts);
        Ok(())
    }
}
