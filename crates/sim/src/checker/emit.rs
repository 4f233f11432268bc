//! Emits: those of a confirmed `done` must arrive, as a message or as a dead letter.
//!
//! An emit is sent to its queue until its arrival is confirmed. If its queue refuses it for good,
//! it is stored there as a dead message: under its own key, or, if that belongs to another message,
//! under a key made from it. Such a key is a separate item.

use std::collections::{BTreeMap, BTreeSet};

use hapax_core::{Answer, Content, MessageId, Relay, Time};

use super::{Checked, Checker, Life, Places, violation};
use crate::op::Emitted;
use crate::scene::{Item, ItemId};

/// What is known of the lists of emits, by partition and number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Emits {
    /// Emits that were refused for good.
    refused: BTreeSet<(usize, u64)>,
    /// Emits that were stored as dead letters.
    pub(super) filed: BTreeMap<(usize, u64), (ItemId, MessageId)>,
}

impl Checker {
    /// An emit as its list sends it; none if it is unknown.
    pub fn emitted(&mut self, from: usize, queue: usize, relay: &Relay) -> Option<Emitted> {
        let content = &relay.emit.content;
        let is_it = |item: &Item| item.queue == queue && *item.key == *content.key();
        let known = self.items.iter().position(is_it);
        let item = known.or_else(|| self.aside(queue, content))?;
        self.date(item, relay.issued_at);
        if relay.refused.is_some() {
            self.emits.refused.insert((from, relay.id));
        }
        let (id, issued_at, refused) = (relay.id, relay.issued_at, relay.refused.clone());
        Some(Emitted { from, id, item, issued_at, refused })
    }

    /// The item of a key that was made from an emit's own.
    fn aside(&mut self, queue: usize, content: &Content) -> Option<ItemId> {
        let (_, number) = content.headers().find(|(name, _)| *name == "number")?;
        let number: u64 = number.parse().ok()?;
        let is_root = |item: &Item| item.queue == queue && item.number == number;
        let root = self.items.iter().position(|item| is_root(item) && item.aside_of.is_none())?;
        let item = self.items.get(root)?.clone();
        Some(self.add(Item { key: content.key().into(), aside_of: Some(root), ..item }))
    }

    /// Checks the answer to an emit: it exists as a message or as a dead letter.
    pub(super) fn handed_over(&mut self, at: Time, emitted: &Emitted, answer: &Answer) -> Checked {
        let is_refused = self.emits.refused.contains(&(emitted.from, emitted.id));
        match emitted.refused {
            Some(_) => self.filed(at, emitted, answer)?,
            None if is_refused => {
                return violation("an emit that was refused is sent as a message again");
            }
            None => self.sent(at, emitted.item, 0, answer)?,
        }
        let is_there = match answer {
            Answer::Accepted { .. }
            | Answer::InFlight(_)
            | Answer::Parked { .. }
            | Answer::Dead { .. }
            | Answer::Done(_) => true,
            Answer::Conflict { .. }
            | Answer::Invalid(_)
            | Answer::TooOld { .. }
            | Answer::UndatedKey
            | Answer::NoSuchQueue
            | Answer::OverQuota { .. }
            | Answer::StoreFull
            | Answer::Fresh(_) => false,
        };
        if is_there && let Some(life) = self.promise_of(emitted.item) {
            life.arrived = true;
        }
        Ok(())
    }

    /// The life of a promised emit.
    fn promise_of(&mut self, item: ItemId) -> Option<&mut Life> {
        let root = self.items.get(item)?.aside_of.unwrap_or(item);
        self.lives.get_mut(root)
    }

    /// Checks the answer to a dead letter: it exists now, or its key is taken, or there is no room.
    fn filed(&mut self, at: Time, emitted: &Emitted, answer: &Answer) -> Checked {
        let item = emitted.item;
        match answer {
            Answer::Dead { id, accepted_at, attempts, .. } => {
                let is_new = *accepted_at == at && !self.ids.contains_key(id);
                if is_new {
                    return self.file(at, emitted, *id, *attempts);
                }
                self.known(at, item, 0, Places::DEAD.or(Places::DISCARDED), *id)?;
                self.check_attempts(at, item, *attempts)
            }
            Answer::Accepted { .. } => violation("a dead letter was accepted as a message"),
            Answer::TooOld { .. } | Answer::Invalid(_) | Answer::UndatedKey => {
                violation("a dead letter was refused for something other than its key")
            }
            _ => self.refused(at, item, 0, false, answer),
        }
    }

    /// Adds a dead message that was never delivered.
    fn file(&mut self, at: Time, emitted: &Emitted, id: MessageId, attempts: u32) -> Checked {
        let (here, item) = (self.here, emitted.item);
        if let Some((before, letter)) =
            self.emits.filed.insert((emitted.from, emitted.id), (item, id))
            && before != item
        {
            // Unless it ended, or was replaced by another message under its key.
            let (life, ..) = self.passed(at, before);
            let is_same = life.id == Some(letter) && !life.may_be_new;
            if is_same && !life.places.may_be(Places::ABSENT) {
                return violation("an emit was filed as two dead letters");
            }
        }
        let redriven = self.redriven_now(at, item);
        let (life, spec, _) = self.passed(at, item);
        if !life.places.may_be(Places::ABSENT) {
            let (key, places) = (spec.key.clone(), life.places);
            return violation(format!("a dead letter took the key {key}, which is {places}"));
        }
        if attempts != 0 {
            return violation("a dead letter was tried before");
        }
        *life = life.renewed(id, 0);
        life.home = Some(here);
        life.places = Places::DEAD;
        life.redriven = redriven;
        self.ids.insert(id, item);
        Ok(())
    }

    /// A redrive begun at this exact time takes what dies now.
    pub(super) fn redriven_now(&self, at: Time, item: ItemId) -> Option<Time> {
        self.state(self.item(item).queue).redriven.filter(|redriven| *redriven == at)
    }

    /// The answer to an emit was lost.
    pub(super) fn lost_emit(&mut self, at: Time, emitted: &Emitted) {
        let (here, item) = (self.here, emitted.item);
        match emitted.refused {
            None => self.lost_send(at, item, 0),
            Some(_) => {
                let redriven = self.redriven_now(at, item);
                let (life, ..) = self.passed(at, item);
                if life.places.may_be(Places::ABSENT) {
                    life.redriven = life.redriven.or(redriven);
                    life.home = Some(here);
                    life.purged = false;
                    life.may_be_new = true;
                    life.variants |= 1;
                    life.attempts.0 = 0;
                    life.saved.clear();
                    life.places.add(Places::DEAD);
                }
            }
        }
        if let Some(life) = self.promise_of(item) {
            life.may_have_arrived = true;
        }
    }

    /// An emit that was promised and never arrived.
    pub fn broken_promise(&self) -> Option<String> {
        let is_known = |life: &Life| life.id.is_some() || life.places != Places::ABSENT;
        let lives = self.lives.iter().zip(&self.items).enumerate();
        let mut broken = lives.filter(|(root, (life, _))| {
            let all = self.lives.iter().zip(&self.items);
            let mut asides = all.filter(|(_, item)| item.aside_of == Some(*root));
            let mut is_anywhere = || is_known(life) || asides.any(|(life, _)| is_known(life));
            life.promised && !life.arrived && !(life.may_have_arrived && is_anywhere())
        });
        broken.next().map(|(_, (_, item))| item.key.to_string())
    }
}
