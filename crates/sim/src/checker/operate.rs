//! Answers to operators and to look-ups.

use hapax_core::{Finished, Invalid, KeyView, Outcome, Place, Refusal, Time};

use super::{Checked, Checker, Places, violation};
use crate::op::Op;
use crate::scene::{ItemId, result_of};

/// The refusal of a replay while its queue is purged.
const PURGED: &str = "in a queue that is being purged";

impl Checker {
    pub(super) fn operated(&mut self, at: Time, op: &Op, outcome: &Outcome) -> Checked {
        match (op, outcome) {
            (Op::Configure { queue, config }, outcome) => {
                self.configured(at, *queue, config, outcome)
            }
            (Op::Follow { queue, config }, outcome) => self.followed(at, *queue, config, outcome),
            (Op::Delete { queue }, Outcome::Ok) => self.deleted(*queue),
            (Op::Show { queue }, Outcome::Queue(view)) => self.shown(at, *queue, view),
            (Op::Look { item }, Outcome::Key(view)) => self.looked(at, *item, view),
            (Op::Look { item }, Outcome::Refused(Refusal::NoSuchKey)) => {
                self.narrow(at, *item, Places::ABSENT)
            }
            (Op::Forget { item }, Outcome::Ok) => {
                let is_claim = self.item(*item).claim;
                let (life, ..) = self.passed(at, *item);
                let saved = !life.may_be_saved.is_empty() || !life.past_points.is_empty();
                // What a freed claim saved is forgotten too.
                let absent = if is_claim && saved { Places::ABSENT } else { Places::default() };
                self.narrow(at, *item, Places::ENDED.or(absent))?;
                let (life, ..) = self.passed(at, *item);
                life.places = Places::ABSENT;
                life.saved.clear();
                life.may_be_saved.clear();
                life.past_points.clear();
                Ok(())
            }
            (Op::Forget { item } | Op::Replay { item, .. }, Outcome::Refused(refusal)) => {
                self.not_ended(at, *item, refusal)
            }
            (Op::Replay { item, variant }, Outcome::Ok) => {
                self.narrow(at, *item, Places::DONE)?;
                let (life, ..) = self.passed(at, *item);
                life.revive(true);
                life.variants |= 1 << variant; // The same operation with another content.
                life.result = None;
                life.results.clear();
                life.saved.clear();
                life.redriven = None;
                life.generation += 1;
                Ok(())
            }
            (Op::Discard { item }, Outcome::Ok) => {
                self.narrow(at, *item, Places::WAITING)?;
                let (life, ..) = self.passed(at, *item);
                life.places = Places::default();
                life.end(Places::DISCARDED, at);
                Ok(())
            }
            (Op::Resolve { item, done, .. }, Outcome::Ok) => self.resolved(at, *item, *done),
            // Its id is unknown, so it cannot be named.
            (Op::Resolve { item, id: None, .. }, Outcome::Refused(Refusal::NoSuchKey))
                if self.item(*item).is_keyless() =>
            {
                Ok(())
            }
            (Op::Discard { item } | Op::Resolve { item, .. }, Outcome::Refused(refusal)) => {
                self.not_waiting(at, *item, refusal)
            }
            (Op::Redrive { items, .. }, Outcome::Redrive(view)) => {
                if view.by_keys == items.is_empty() {
                    return violation("a redrive gets the progress of another one");
                }
                self.lost_operation(at, op);
                Ok(())
            }
            (Op::Purge { queue, .. }, Outcome::Ok) => {
                self.lost_operation(at, op);
                self.purge_confirmed(at, *queue);
                Ok(())
            }
            (Op::Redrive { .. }, Outcome::Refused(Refusal::StoreFull)) if self.may_be_full => {
                Ok(())
            }
            (Op::Redrive { .. }, Outcome::Refused(Refusal::TooManyRedrives(_))) => Ok(()),
            (Op::Redrive { queue, id, items }, Outcome::Refused(Refusal::OtherRedrive)) => {
                match self.state(*queue).redrives.iter().any(|it| it.0 == *id && it.1 != *items) {
                    true => Ok(()),
                    false => violation("a redrive is refused for another one that was not"),
                }
            }
            (Op::Pause { .. } | Op::Relayed { .. }, Outcome::Ok) => Ok(()),
            _ => violation("an answer that does not belong to its request"),
        }
    }

    /// Messages that waited when a purge was confirmed are not delivered any more.
    fn purge_confirmed(&mut self, at: Time, queue: usize) {
        for item in self.homed(queue) {
            let (life, ..) = self.passed(at, item);
            let waits = !life.places.may_be(Places::LEASED);
            life.purged |= waits && life.places.may_be(Places::WAITING);
        }
    }

    fn looked(&mut self, at: Time, item: ItemId, view: &KeyView) -> Checked {
        if view.place == Place::Done {
            return self.done(
                at,
                item,
                &Finished {
                    id: view.id,
                    accepted_at: view.record.accepted_at,
                    finished_at: view.record.finished_at,
                    remembered_until: view.record.expires_at,
                    attempts: view.record.attempts,
                    result: view.record.result.clone(),
                },
            );
        }
        self.narrow(at, item, Places::of(view.place))?;
        self.check_id(item, view.id)?;
        if let Some(content) = &view.content
            && self.variants_of(item, content)? == 0
        {
            return violation("a look shows another payload");
        }
        self.check_attempts(at, item, view.record.attempts)
    }

    fn resolved(&mut self, at: Time, item: ItemId, done: bool) -> Checked {
        self.narrow(at, item, Places::PARKED)?;
        let (life, spec, _) = self.passed(at, item);
        life.lapsed = false;
        if done {
            let result = result_of(spec, hapax_core::Fence(1));
            life.results.push(result.clone());
            life.result = Some(result);
            life.places = Places::default();
            life.end(Places::DONE, at);
        } else if spec.claim {
            life.places = Places::ABSENT;
        } else {
            life.places = Places::READY;
            life.extra_attempts += 1;
        }
        Ok(())
    }

    /// The key was alive, or unknown; or the store had no room for a replay.
    fn not_ended(&mut self, at: Time, item: ItemId, refusal: &Refusal) -> Checked {
        match refusal {
            Refusal::NoSuchKey => self.narrow(at, item, Places::ABSENT),
            Refusal::Invalid(Invalid::State(PURGED)) => {
                match self.state(self.item(item).queue).purges {
                    true => self.narrow(at, item, Places::DONE),
                    false => violation("a replay is refused for a purge that nobody asked for"),
                }
            }
            Refusal::Invalid(Invalid::State(place)) => self.narrow(at, item, named(place)),
            Refusal::Conflict(_) => self.narrow(at, item, Places::DONE),
            Refusal::StoreFull if self.may_be_full => self.narrow(at, item, Places::DONE),
            _ => violation("a refusal that nothing called for"),
        }
    }

    fn not_waiting(&mut self, at: Time, item: ItemId, refusal: &Refusal) -> Checked {
        match refusal {
            Refusal::NoSuchKey => self.narrow(at, item, Places::ABSENT.or(Places::ENDED)),
            Refusal::Invalid(Invalid::State(place)) => self.narrow(at, item, named(place)),
            _ => violation("a refusal that nothing called for"),
        }
    }
}

fn named(place: &str) -> Places {
    let found = Place::ALL.into_iter().find(|known| known.as_str() == place);
    found.map_or_else(Places::default, Places::of)
}
