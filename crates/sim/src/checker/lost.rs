//! Requests whose answers were lost: each may have been done, or not.

use hapax_core::{OnDead, Time};

use super::lease::End;
use super::{Begun, Checker, Life, Places};
use crate::op::{Held, How, Op};
use crate::scene::{ItemId, Variant, result_of};

impl Checker {
    /// Applies what a request made at `at` and never answered may have done. Called for all of them
    /// in the order they were made.
    pub fn lost(&mut self, partition: usize, at: Time, op: &Op) {
        self.here = partition;
        match op {
            Op::Configure { queue, config } | Op::Follow { queue, config } => {
                return self.lost_change(*queue, Some(config));
            }
            Op::Delete { queue } => return self.lost_change(*queue, None),
            _ => {}
        }
        let Some(queue) = op.queue(&self.items) else { return };
        // Under each of the possible configurations.
        let known = self.state(queue).config.clone();
        for config in self.state(queue).candidates() {
            self.state_mut(queue).config = config;
            self.lost_by_the_rules(at, op);
        }
        self.state_mut(queue).config = known;
    }

    /// Like `lost`, for a request that may be in the copy that was restored. A key that was in
    /// another partition when the copy was begun is here if its queue was recreated meanwhile, and
    /// still there if that is not in the copy.
    pub fn perhaps_copied(&mut self, partition: usize, at: Time, op: &Op) {
        if let Op::Send { item, .. } | Op::Claim { item, .. } = op
            && !self.item(*item).is_keyless()
            && self.lives.get(*item).and_then(|life| life.home).is_some_and(|at| at != partition)
        {
            self.moved.entry(*item).or_insert_with(Life::unknown);
        }
        let is_here = |life: &Life| life.home.is_none_or(|home| home == partition);
        let here = self.moved.iter().filter(|(_, life)| is_here(life)).map(|(item, _)| *item);
        let here: Vec<ItemId> = here.collect();
        here.iter().for_each(|item| self.swap_moved(*item));
        self.lost(partition, at, op);
        here.iter().for_each(|item| self.swap_moved(*item));
    }

    /// Items that may have moved to another partition.
    pub fn moved(&self) -> Vec<ItemId> {
        self.moved.keys().copied().collect()
    }

    /// By the configuration in the copy, a key that may have moved is in `partition`.
    pub fn routed(&mut self, item: ItemId, partition: usize) {
        if let Some(moved) = self.moved.remove(&item)
            && moved.home == Some(partition)
            && let Some(life) = self.lives.get_mut(item)
        {
            *life = moved;
        }
    }

    fn swap_moved(&mut self, item: ItemId) {
        if let (Some(life), Some(moved)) = (self.lives.get_mut(item), self.moved.get_mut(&item)) {
            std::mem::swap(life, moved);
        }
    }

    fn lost_by_the_rules(&mut self, at: Time, op: &Op) {
        match op {
            Op::Send { item, variant } => self.lost_send(at, *item, *variant),
            Op::Emit(emitted) => self.lost_emit(at, emitted),
            Op::Claim { item, variant, lease_ms, id } => {
                if let Some(id) = id {
                    self.claims.insert(*id, true);
                }
                self.lost_claim(at, *item, *variant, *lease_ms);
            }
            Op::Receive { queue, lease_ms, id, .. } => {
                let deadline = at.plus(lease_ms.unwrap_or(self.config(*queue).lease_ms));
                if let Some(id) = id {
                    self.receives.insert(*id, true);
                }
                for item in self.homed(*queue) {
                    let (life, spec, config) = self.passed(at, item);
                    if life.places.may_be(Places::READY) && !spec.claim {
                        life.may_be_taken(deadline, config, at);
                    }
                }
            }
            Op::Settle { held, how } => self.lost_settle(at, held, how),
            _ => self.lost_operation(at, op),
        }
    }

    pub(super) fn lost_send(&mut self, at: Time, item: ItemId, variant: Variant) {
        let (here, redriven) = (self.here, self.redriven_now(at, item));
        let (life, spec, config) = self.passed(at, item);
        if config.on_dead == OnDead::Rerun && life.places.may_be(Places::DEAD) && !spec.claim {
            life.revive(false);
        }
        if life.may_begin(config, false, spec) {
            life.home = Some(here);
            life.redriven = life.redriven.or(redriven);
            life.purged = false;
            life.may_be_new = true;
            life.variants |= 1 << variant;
            life.attempts.0 = 0;
            life.saved.clear();
            life.enter(at, spec, config);
        }
    }

    fn lost_claim(&mut self, at: Time, item: ItemId, variant: Variant, lease_ms: u64) {
        let here = self.here;
        let (life, spec, config) = self.passed(at, item);
        if life.may_begin(config, true, spec) {
            life.home = Some(here);
            life.purged = false;
            life.may_be_new = true;
            life.variants |= 1 << variant;
            life.attempts = (0, life.attempts.1.max(1));
            // Its holder was not answered, and could not begin.
            let known = life.places.may_be(Places::LEASED) && life.begun != Begun::No;
            life.begun = if known { Begun::Perhaps } else { Begun::No };
            life.places.add(Places::LEASED);
            life.unseen_lease = true;
            life.lost_from = life.lost_from.min(at.plus(lease_ms));
        }
    }

    fn lost_settle(&mut self, at: Time, held: &Held, how: &How) {
        let lease = self.leases.get_mut(&(self.here, held.fence()));
        let is_seen = lease.is_some();
        if let Some(lease) = lease
            && let Some(end) = End::of(how)
        {
            lease.may_end(end);
        }
        let (life, spec, config) = self.passed(at, held.item);
        let may_hold = match is_seen {
            true => life.fence == held.fence() && life.may_settle(End::of(how)),
            // A lease granted and settled while a copy was taken may be in it in either state.
            false => life.unseen_lease && life.places.may_be(Places::LEASED),
        };
        if !may_hold {
            return;
        }
        match how {
            How::Done(_) => {
                life.results.push(result_of(spec, held.fence()));
                life.end(Places::DONE, at);
            }
            How::Fail { dead: false, .. } | How::Release if spec.claim => {
                life.places.add(Places::ABSENT);
            }
            How::Fail { dead, .. } => life.fail(at, config, *dead),
            How::Park { dead } => {
                life.doubt(at, (spec, *dead), config, life.places);
                if spec.claim && !dead {
                    life.places = life.places.without(Places::DISCARDED).or(Places::ABSENT);
                }
                life.lapsed = true; // A parked message may still be done.
            }
            How::Release => {
                life.places.add(Places::READY);
                life.attempts.0 = life.attempts.0.saturating_sub(1);
            }
            How::Extend { lease_ms } => {
                life.lost_from = life.lost_from.min(at.plus(*lease_ms));
            }
            How::Begin => {
                if life.begun == Begun::No {
                    life.begun = Begun::Perhaps;
                }
            }
            How::Save(name) => {
                life.may_be_saved.insert(name);
            }
        }
    }

    /// Applies what an unanswered operator's request may have done, now or in later steps.
    pub(super) fn lost_operation(&mut self, at: Time, op: &Op) {
        match op {
            Op::Forget { item } => {
                let (life, ..) = self.passed(at, *item);
                if life.places.may_be(Places::ENDED) {
                    life.places.add(Places::ABSENT);
                }
            }
            Op::Replay { item, variant } => {
                let (life, ..) = self.passed(at, *item);
                if life.places.may_be(Places::DONE) {
                    life.variants |= 1 << variant;
                    life.revive(false);
                    life.saved.clear();
                    life.result = None;
                }
            }
            Op::Discard { item } => {
                let (life, ..) = self.passed(at, *item);
                if life.places.may_be(Places::WAITING) {
                    life.end(Places::DISCARDED, at);
                }
            }
            Op::Resolve { item, done, .. } => {
                let (life, spec, _) = self.passed(at, *item);
                if life.places.may_be(Places::PARKED) {
                    match (done, spec.claim) {
                        (true, _) => {
                            life.results.push(result_of(spec, hapax_core::Fence(1)));
                            life.end(Places::DONE, at);
                        }
                        (false, true) => life.places.add(Places::ABSENT),
                        (false, false) => {
                            life.places.add(Places::READY);
                            life.extra_attempts += 1;
                        }
                    }
                }
            }
            Op::Redrive { queue, id, items } => {
                self.state_mut(*queue).redrives.push((*id, items.clone()));
                if items.is_empty() {
                    self.state_mut(*queue).redriven = Some(at);
                }
                let mut all = self.homed(*queue);
                all.retain(|item| items.is_empty() || items.contains(item));
                for item in all {
                    let (life, ..) = self.passed(at, item);
                    life.redriven = Some(at);
                }
            }
            Op::Purge { queue, keys } => {
                self.state_mut(*queue).purges = true;
                for item in self.homed(*queue) {
                    let (life, ..) = self.passed(at, item);
                    if life.places.may_be(Places::KNOWN) {
                        let before = life.purge;
                        let since = before.map_or(at, |(since, _)| since);
                        life.purge = Some((since, *keys || before.is_some_and(|(_, keys)| keys)));
                    }
                }
            }
            _ => {}
        }
    }
}
