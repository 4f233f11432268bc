//! Answers to workers: deliveries and settles.

use std::collections::BTreeSet;

use hapax_core::{Config, Delivery, Fence, Guarantee, Invalid, MessageId, Place, Settled, Time};

use super::{Begun, Checked, Checker, Life, Places, violation};
use crate::op::{Held, How, Op};
use crate::scene::{Item, ItemId, point_of, result_of};

/// A lease that was granted.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    item: ItemId,
    id: MessageId,
    /// The kinds of settles that were done under it, or may have been.
    ends: BTreeSet<End>,
    /// One of them was confirmed.
    ended: bool,
    /// The id of the claim that got it.
    claim: Option<u64>,
}

/// A settle that ends its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Done,
    Fail,
    Release,
    Park,
}

impl Lease {
    /// The item, if the lease may have ended in a result.
    pub(super) fn finished(&self) -> Option<ItemId> {
        self.ends.contains(&End::Done).then_some(self.item)
    }

    pub(super) fn new(item: ItemId, id: MessageId) -> Self {
        Self::of_claim(item, id, None)
    }

    pub(super) fn of_claim(item: ItemId, id: MessageId, claim: Option<u64>) -> Self {
        Self { item, id, ends: BTreeSet::new(), ended: false, claim }
    }

    pub(super) fn is_of(&self, item: ItemId, claim: Option<u64>) -> bool {
        self.item == item && self.claim == claim
    }

    pub(super) fn may_end(&mut self, end: End) {
        self.ends.insert(end);
    }
}

impl End {
    pub(super) fn of(how: &How) -> Option<Self> {
        match how {
            How::Done(_) => Some(Self::Done),
            How::Fail { .. } => Some(Self::Fail),
            How::Release => Some(Self::Release),
            How::Park { .. } => Some(Self::Park),
            How::Extend { .. } | How::Begin | How::Save(_) => None,
        }
    }
}

impl Checker {
    /// Checks that every lease of a broker has its own fence.
    fn own_fence(&mut self, fence: Fence) -> Checked {
        match self.fences.insert(fence, self.here) {
            Some(other) if other != self.here => {
                violation(format!("two partitions gave the fence {}", fence.0))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn grow_fence(&mut self, fence: Fence) -> Checked {
        let newest = self.fence_max.get(self.here).copied().unwrap_or(Fence(0));
        if fence <= newest {
            return violation(format!("fence {} after {}", fence.0, newest.0));
        }
        self.raise_fence(fence)
    }

    pub(super) fn raise_fence(&mut self, fence: Fence) -> Checked {
        if let Some(newest) = self.fence_max.get_mut(self.here) {
            *newest = fence.max(*newest);
        }
        self.own_fence(fence)
    }

    pub(super) fn received(&mut self, at: Time, op: &Op, deliveries: &[Delivery]) -> Checked {
        let Op::Receive { queue, max, lease_ms, id, several, .. } = op else {
            return violation("deliveries for something else");
        };
        if deliveries.len() > *max as usize {
            return violation("more deliveries than were asked for");
        }
        self.check_size(deliveries, id.is_some())?;
        let used_before = id.and_then(|id| self.receives.get(&id)).copied();
        if let Some(id) = id {
            let lost = used_before.unwrap_or(false);
            self.receives.insert(*id, lost);
        }
        let deadline = at.plus(lease_ms.unwrap_or(self.config(*queue).lease_ms));
        let mut together = BTreeSet::new();
        for delivery in deliveries {
            let item = self.whose(&delivery.content)?;
            let variants = self.variants_of(item, &delivery.content)?;
            if self.item(item).queue != *queue || self.item(item).claim {
                return violation("delivered from another queue, or a claim");
            }
            if used_before.is_some() && self.knows_lease(self.here, delivery.lease.fence) {
                self.delivered_again(at, item, delivery)?;
            } else {
                // The first answer under this id may have been lost, and this may be the second.
                let second = used_before == Some(true);
                self.delivered(at, item, delivery, deadline, second)?;
                if !several {
                    together.clear();
                }
                self.narrow_variants(item, variants)?;
                if !second {
                    self.check_group(at, item, &together)?;
                }
            }
            self.check_points(item, delivery)?;
            together.insert(item);
        }
        Ok(())
    }

    /// Checks the byte limit of a receive.
    fn check_size(&self, deliveries: &[Delivery], may_repeat: bool) -> Checked {
        let Some((_, before)) = deliveries.split_last() else { return Ok(()) };
        let bytes: usize = before.iter().map(|delivery| delivery.content.size()).sum();
        match bytes >= self.receive_bytes && !may_repeat {
            true => violation(format!("a receive went on after {bytes} bytes")),
            false => Ok(()),
        }
    }

    /// Whether the broker granted the lease, as far as known.
    pub fn knows_lease(&self, partition: usize, fence: Fence) -> bool {
        self.leases.contains_key(&(partition, fence))
    }

    /// Whether any partition issued the fence.
    pub fn knows_fence(&self, fence: Fence) -> bool {
        self.leases.keys().any(|(_, known)| *known == fence)
    }

    fn delivered(
        &mut self,
        at: Time,
        item: ItemId,
        delivery: &Delivery,
        deadline: Time,
        second: bool,
    ) -> Checked {
        if second {
            self.raise_fence(delivery.lease.fence)?;
            self.narrow(at, item, Places::READY.or(Places::LEASED))?;
        } else {
            self.grow_fence(delivery.lease.fence)?;
            self.narrow(at, item, Places::READY)?;
        }
        self.check_id(item, delivery.id)?;
        let state = self.state(self.item(item).queue);
        let attempts_max = state.attempts_max();
        // A lease granted under earlier rules, whose answer was lost, still holds.
        let may_hold = second && state.had().any(|had| had.guarantee != Guarantee::AtMostOnce);
        let (life, spec, config) = self.passed(at, item);
        if life.purged {
            return violation(format!("{} was purged, and is delivered", spec.key));
        }
        let (least, most) = life.attempts;
        let least = if second { least } else { least + 1 };
        if !(least..=most + 1).contains(&delivery.attempt) {
            return violation(format!(
                "{} is at attempt {}, after {least} to {most}",
                spec.key, delivery.attempt
            ));
        }
        if delivery.attempt > attempts_max + life.extra_attempts {
            return violation(format!("{} has more attempts than its queue allows", spec.key));
        }
        if delivery.generation < life.generation {
            return violation("a generation went backwards");
        }
        if delivery.deadline != deadline && !second {
            return violation("a lease's deadline is not its length from now");
        }
        life.generation = delivery.generation;
        let begun = if second { life.begun.perhaps() } else { Begun::No };
        life.lease(delivery.lease.fence, delivery.deadline, delivery.attempt);
        life.begun = begun;
        if config.guarantee == Guarantee::AtMostOnce {
            if !may_hold {
                life.places = Places::default();
                life.results.clear();
            }
            life.end(Places::DONE, at);
            life.results.push(None);
            life.result = None;
        }
        self.leases.insert((self.here, delivery.lease.fence), Lease::new(item, delivery.id));
        Ok(())
    }

    /// Checks that a repeated receive gets the same leases.
    fn delivered_again(&mut self, at: Time, item: ItemId, delivery: &Delivery) -> Checked {
        let fence = delivery.lease.fence;
        let known = self.leases.get(&(self.here, fence)).map(|lease| (lease.item, lease.id));
        if known != Some((item, delivery.id)) {
            return violation("a repeated receive brought another lease");
        }
        self.narrow(at, item, Places::LEASED)?;
        self.check_id(item, delivery.id)?;
        self.check_attempts(at, item, delivery.attempt)?;
        let (life, ..) = self.passed(at, item);
        if life.fence != fence {
            return violation("a repeated receive brought a lease that is not the newest");
        }
        let begun = life.begun;
        life.lease(fence, delivery.deadline, delivery.attempt);
        life.begun = begun;
        Ok(())
    }

    fn narrow_variants(&mut self, item: ItemId, variants: u8) -> Checked {
        let Some(life) = self.lives.get_mut(item) else { return Ok(()) };
        if life.variants & variants == 0 {
            return violation("a payload was delivered that lost to another");
        }
        life.variants &= variants;
        Ok(())
    }

    fn check_points(&mut self, item: ItemId, delivery: &Delivery) -> Checked {
        let spec = self.item(item).clone();
        let Some(life) = self.lives.get_mut(item) else { return Ok(()) };
        for (name, data) in &delivery.recovery_points {
            let known = life.may_be_saved.contains(name.as_str());
            if !known || *data != point_of(&spec, name) {
                return violation(format!("the recovery point {name} was never saved"));
            }
        }
        if let Some(name) =
            life.saved.iter().find(|name| !delivery.recovery_points.contains_key(**name))
        {
            return violation(format!("the recovery point {name} is gone"));
        }
        Ok(())
    }

    pub(super) fn settled(
        &mut self,
        at: Time,
        held: &Held,
        how: &How,
        settled: &Settled,
    ) -> Checked {
        let (end, here) = (End::of(how), self.here);
        let Some(lease) = self.leases.get(&(self.here, held.fence())).cloned() else {
            return violation("a settle under a lease that nobody was given");
        };
        let newest = self.lives.get(held.item).and_then(|life| self.fences.get(&life.fence));
        let was_elsewhere = newest.is_some_and(|partition| *partition != here);
        let (life, spec, _) = self.passed(at, held.item);
        let is_newest = life.id == Some(lease.id) && life.fence == held.fence();
        // Its partition lost it with an earlier queue, which spread its keys differently.
        let is_elsewhere = life.home != Some(here) || was_elsewhere;
        let may_hold = is_newest && !is_elsewhere && !lease.ended && life.may_settle(end);
        let alone = lease.ends.is_empty() && !life.unseen_lease;
        let surely_holds = may_hold && life.places == Places::LEASED && alone;
        let (key, places) = (spec.key.clone(), life.places);
        match settled {
            Settled::Ok { place, deadline } => {
                let repeats = end.is_some_and(|end| lease.ends.contains(&end));
                // Releasing a claim that is already released is answered the same.
                let gives_up =
                    matches!(end, Some(End::Fail | End::Release | End::Park)) && spec.claim;
                let may_be_over = is_newest || is_elsewhere;
                let was_free = gives_up && may_be_over && *place == Place::Discarded;
                if !may_hold && !repeats && !was_free {
                    return violation(format!("a stale lease settled {key}, which is {places}"));
                }
                if is_elsewhere {
                    return Ok(());
                }
                if was_free && places.may_be(Places::ABSENT) {
                    life.places = Places::ABSENT;
                } else if may_hold {
                    self.take_effect(at, held, how, (*place, *deadline), repeats)?;
                }
            }
            Settled::LeaseLost { result, .. } => {
                if surely_holds {
                    return violation(format!("the lease of {key} was lost before its time"));
                }
                // A lease past its deadline cannot begin, but may still be held.
                let may_go_on = matches!(how, How::Begin);
                if may_hold && !life.unseen_lease && !may_go_on {
                    life.places = life.places.without(Places::LEASED);
                }
                if let Some(result) = result {
                    return self.check_told_result(held.item, result);
                }
            }
            Settled::RelayFull if matches!(how, How::Done(emits) if !emits.is_empty()) => {}
            Settled::NoSuchQueue { emit } => return self.emit_refused(how, *emit),
            Settled::Invalid(Invalid::BodyTooLarge { .. }) => return self.emit_too_large(how),
            _ => return violation("a settle got an answer that nothing called for"),
        }
        Ok(())
    }

    /// An emit names a queue that does not exist.
    fn emit_refused(&self, how: &How, emit: usize) -> Checked {
        let How::Done(emits) = how else { return violation("only a done emits") };
        let queue = emits.get(emit).map(|emit| self.item(*emit).queue);
        match queue {
            Some(queue) if self.state(queue).may_be_gone() => Ok(()),
            _ => violation("an emit was refused though its queue exists"),
        }
    }

    /// An emit is larger than its queue allows.
    fn emit_too_large(&self, how: &How) -> Checked {
        let How::Done(emits) = how else { return violation("only a done emits") };
        let is_too_large = |emit: &ItemId| {
            let item = self.item(*emit);
            let mut rules = self.state(item.queue).candidates().into_iter();
            rules.any(|config| {
                let content = item.content(0, config.dedup_scope);
                content.body().len() as u64 > config.max_body_bytes
            })
        };
        match emits.iter().any(is_too_large) {
            true => Ok(()),
            false => violation("an emit was refused though its queue takes it"),
        }
    }

    /// The result returned with `lease_lost` may be from an earlier life of the key.
    fn check_told_result(&mut self, item: ItemId, result: &hapax_core::Blob) -> Checked {
        let spec = self.item(item);
        let told = Some(result.clone());
        let gave = |((_, fence), lease): (&(usize, Fence), &Lease)| {
            let ended = lease.item == item && lease.ends.contains(&End::Done);
            ended && result_of(spec, *fence) == told
        };
        let resolved = result_of(spec, Fence(1)) == told;
        // A lease that was forgotten when a copy was restored.
        let mut finished = self.finished.iter().filter(|(of, _)| *of == item);
        let may_have = finished.any(|(_, fence)| result_of(spec, *fence) == told);
        let may_have =
            may_have || self.lives.get(item).is_some_and(|life| life.results.contains(&told));
        match resolved || may_have || self.leases.iter().any(gave) {
            true => Ok(()),
            false => violation("a loser was told a result that nobody gave"),
        }
    }

    fn take_effect(
        &mut self,
        at: Time,
        held: &Held,
        how: &How,
        (place, deadline): (Place, Option<Time>),
        repeats: bool,
    ) -> Checked {
        self.note_end(held, how, place);
        let (life, spec, config) = self.passed(at, held.item);
        // If an unanswered settle of the same kind may have been first, the message may have moved
        // on.
        let further = match (repeats, life.unseen_lease) {
            (true, true) => life.places,
            (true, false) => life.places.without(Places::LEASED),
            (false, _) => Places::default(),
        };
        let expected = expected(life, spec, config, (at, how, repeats));
        if !expected.may_be(Places::of(place)) {
            return violation(format!("{} went to {}, not {expected}", spec.key, place.as_str()));
        }
        life.places = Places::of(place);
        life.unseen_lease &= repeats;
        if End::of(how).is_some() {
            life.lapsed = false;
        }
        match how {
            How::Done(_) => {
                let result = result_of(spec, held.fence());
                life.results.push(result.clone());
                life.result = Some(result);
                if !repeats {
                    life.ended_from = at;
                }
                life.end(Places::DONE, at);
            }
            How::Fail { .. } | How::Release | How::Park { .. }
                if spec.claim && place == Place::Discarded =>
            {
                life.places = Places::ABSENT;
            }
            // It may still be done.
            How::Park { .. } if place == Place::Parked => life.lapsed = true,
            How::Fail { .. } | How::Park { .. } => {
                life.due_from = deadline.unwrap_or(Time::NEVER);
                life.sender_delays = false;
            }
            How::Release => {
                life.attempts.0 = life.attempts.0.saturating_sub(1);
                if !repeats {
                    life.attempts.1 = life.attempts.1.saturating_sub(1);
                }
            }
            How::Extend { lease_ms } => {
                life.lost_from = at.plus(*lease_ms);
                if deadline != Some(life.lost_from) {
                    return violation("an extended lease ends at another time");
                }
            }
            How::Begin => life.begun = Begun::Yes,
            How::Save(name) => {
                life.saved.insert(name);
                life.may_be_saved.insert(name);
            }
        }
        life.places.add(further);
        Ok(())
    }
    /// The lease ended, and what it emits must arrive.
    fn note_end(&mut self, held: &Held, how: &How, place: Place) {
        if let Some(lease) = self.leases.get_mut(&(self.here, held.fence()))
            && let Some(end) = End::of(how)
        {
            lease.may_end(end);
            lease.ended = place != Place::Parked; // A parked message may still be done.
        }
        if let How::Done(emits) = how {
            for emit in emits {
                if let Some(life) = self.lives.get_mut(*emit) {
                    life.promised = true;
                }
            }
        }
    }
}

/// The possible places of a message after a settle.
fn expected(
    life: &Life,
    item: &Item,
    config: &Config,
    (at, how, repeats): (Time, &How, bool),
) -> Places {
    match how {
        How::Done(_) => Places::DONE,
        // The first of the two may have been another kind of failure.
        How::Fail { .. } if repeats => Places::DEAD.or(Places::DELAYED).or(Places::DISCARDED),
        How::Fail { dead: true, .. } => Places::DEAD,
        How::Fail { .. } if item.claim => Places::DISCARDED,
        How::Fail { .. } => {
            let mut copy = life.clone();
            copy.places = Places::default();
            copy.fail(at, config, false);
            copy.places
        }
        How::Park { .. } if repeats => {
            Places::PARKED.or(Places::DEAD).or(Places::DELAYED).or(Places::DISCARDED)
        }
        How::Park { dead } => {
            let mut copy = life.clone();
            copy.places = Places::default();
            copy.doubt(at, (item, *dead), config, life.places);
            copy.places
        }
        How::Release if item.claim => Places::DISCARDED,
        How::Release => Places::READY,
        How::Extend { .. } | How::Begin | How::Save(_) => Places::LEASED,
    }
}
