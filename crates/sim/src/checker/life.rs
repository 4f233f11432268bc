//! What is known of one key: the possible states of its message.
//!
//! A [`Life`] is a set of possibilities. An answer narrows it; a request whose answer was lost
//! widens it by what the request may have done; time widens it by what becomes due. An answer that
//! matches none of the possibilities is a violation.

use std::collections::{BTreeMap, BTreeSet};

use hapax_core::{Blob, Config, Fence, Guarantee, MessageId, OnDead, OnLost, Place, Time};

use super::lease::End;
use crate::scene::{Item, Variant};

/// A set of places; "absent" is one of them: the key is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places(u8);

impl Places {
    pub(crate) const ABSENT: Self = Self(1 << 7);
    pub(crate) const READY: Self = Self::of(Place::Ready);
    pub(crate) const DELAYED: Self = Self::of(Place::Delayed);
    pub(crate) const LEASED: Self = Self::of(Place::Leased);
    pub(crate) const PARKED: Self = Self::of(Place::Parked);
    pub(crate) const DEAD: Self = Self::of(Place::Dead);
    pub(crate) const DONE: Self = Self::of(Place::Done);
    pub(crate) const DISCARDED: Self = Self::of(Place::Discarded);
    /// Places in which an operator can discard, and a purge removes.
    pub(crate) const WAITING: Self =
        Self(Self::READY.0 | Self::DELAYED.0 | Self::PARKED.0 | Self::DEAD.0);
    pub(crate) const LIVING: Self = Self(Self::WAITING.0 | Self::LEASED.0);
    pub(crate) const ENDED: Self = Self(Self::DONE.0 | Self::DISCARDED.0);
    pub(crate) const KNOWN: Self = Self(Self::LIVING.0 | Self::ENDED.0);

    pub(crate) const fn of(place: Place) -> Self {
        Self(1 << place as u8)
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether any place of `other` is possible.
    pub(crate) const fn may_be(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = Place::ALL.iter().map(|place| (Self::of(*place), place.as_str()));
        let all = named.chain([(Self::ABSENT, "absent")]);
        let words: Vec<&str> =
            all.filter(|(set, _)| self.may_be(*set)).map(|(_, word)| word).collect();
        f.write_str(&words.join(" or "))
    }
}

/// What is known of one key.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) places: Places,
    /// The message's id, once an answer contained it.
    pub(crate) id: Option<MessageId>,
    /// An unanswered send may have begun a life with another id.
    pub(crate) may_be_new: bool,
    /// Bits: which variants the message may be.
    pub(crate) variants: u8,
    /// The fewest and the most attempts it may have had.
    pub(crate) attempts: (u32, u32),
    /// Attempts beyond the limit, from operators that resolved it for another try.
    pub(crate) extra_attempts: u32,
    pub(crate) generation: u32,
    /// The newest lease that was seen.
    pub(crate) fence: Fence,
    /// From this time on the lease may expire.
    pub(crate) lost_from: Time,
    pub(crate) begun: Begun,
    /// From this time on a delay may be over.
    pub(crate) due_from: Time,
    /// Whether the sender may have asked for the delay: such a message does not block its group.
    pub(crate) sender_delays: bool,
    /// From this time on it may exceed its time to live.
    pub(crate) dies_from: Time,
    /// The earliest time at which it may have ended.
    pub(crate) ended_from: Time,
    /// The stored result, once it was seen.
    pub(crate) result: Option<Option<Blob>>,
    /// The possible stored results.
    pub(crate) results: Vec<Option<Blob>>,
    /// The newest lease may have expired without being superseded: it may still settle.
    pub(crate) lapsed: bool,
    /// A newer lease may exist whose grant was not answered.
    pub(crate) unseen_lease: bool,
    /// A purge may have removed it since then; with its key if true.
    pub(crate) purge: Option<(Time, bool)>,
    /// A redrive of everything dead by then may take it.
    pub(crate) redriven: Option<Time>,
    /// Recovery points that exist; below, those that may.
    pub(crate) saved: BTreeSet<&'static str>,
    pub(crate) may_be_saved: BTreeSet<&'static str>,
    /// Its parent's end was confirmed, so it must arrive.
    pub(crate) promised: bool,
    /// The emit arrived: as a message, or as a dead letter under its own key or another.
    pub(crate) arrived: bool,
    /// It was sent, and the answer was lost.
    pub(crate) may_have_arrived: bool,
    /// The partition that its message is in, or may be.
    pub(crate) home: Option<usize>,
    /// The shortest time for which its record is remembered, by the rules when it ended.
    pub(crate) kept_ms: u64,
    /// A confirmed purge removes it: it must not be delivered any more.
    pub(crate) purged: bool,
    /// Points that earlier claims of the key saved; the next one may get them.
    pub(crate) past_points: BTreeSet<&'static str>,
    /// Every id of this key, with what is known to be stored under it.
    pub(crate) past: BTreeMap<MessageId, Option<Option<Blob>>>,
}

/// Whether the work under the newest lease was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    No,
    Perhaps,
    Yes,
}

impl Begun {
    /// The same for a lease that may be another one.
    pub(crate) fn perhaps(self) -> Self {
        if self == Self::No { Self::No } else { Self::Perhaps }
    }
}

impl Life {
    pub(crate) fn unknown() -> Self {
        Self {
            places: Places::ABSENT,
            id: None,
            may_be_new: false,
            variants: 0,
            attempts: (0, 0),
            extra_attempts: 0,
            generation: 0,
            fence: Fence(0),
            lost_from: Time::NEVER,
            begun: Begun::No,
            due_from: Time::NEVER,
            sender_delays: false,
            dies_from: Time::NEVER,
            ended_from: Time::NEVER,
            result: None,
            results: Vec::new(),
            lapsed: false,
            unseen_lease: false,
            purge: None,
            redriven: None,
            saved: BTreeSet::new(),
            may_be_saved: BTreeSet::new(),
            promised: false,
            arrived: false,
            may_have_arrived: false,
            home: None,
            kept_ms: u64::MAX,
            purged: false,
            past_points: BTreeSet::new(),
            past: BTreeMap::new(),
        }
    }

    /// The same key with a new message under it.
    pub(crate) fn renewed(&self, id: MessageId, variant: Variant) -> Self {
        let mut past = self.past.clone();
        if let Some(old) = self.id {
            past.insert(old, self.result.clone());
        }
        let past_points = self.past_points.union(&self.may_be_saved).copied().collect();
        let mut fresh = Self { past, past_points, ..self.promise() };
        fresh.id = Some(id);
        fresh.variants = 1 << variant;
        fresh
    }

    /// Its queue was deleted, with its message and key.
    pub(crate) fn vanish(&mut self) {
        let mut past = std::mem::take(&mut self.past);
        if let Some(old) = self.id {
            past.insert(old, self.result.take());
        }
        let (id, fence) = (self.id, self.fence);
        *self = Self { id, past, fence, ..self.promise() };
    }

    /// The state of its promise, which outlives the message.
    fn promise(&self) -> Self {
        let Self { promised, arrived, may_have_arrived, .. } = *self;
        Self { promised, arrived, may_have_arrived, ..Self::unknown() }
    }

    pub(crate) fn may_be_variant(&self, variant: Variant) -> bool {
        self.variants & 1 << variant != 0
    }

    /// Adds what time alone may have done by `at`.
    pub(crate) fn pass(&mut self, at: Time, item: &Item, config: &Config) {
        let kept_ms = config.retention_ms.unwrap_or(u64::MAX);
        if !self.places.may_be(Places::ENDED) {
            self.kept_ms = kept_ms;
        } else if !self.places.without(Places::ENDED.or(Places::ABSENT)).is_empty() {
            self.kept_ms = self.kept_ms.min(kept_ms);
        }
        loop {
            let before = self.places;
            self.pass_once(at, item, config);
            if self.places == before {
                return;
            }
        }
    }

    fn pass_once(&mut self, at: Time, item: &Item, config: &Config) {
        if self.places.may_be(Places::LEASED) && at >= self.lost_from {
            self.lose(at, item, config);
        }
        if self.places.may_be(Places::DELAYED) && at >= self.due_from {
            self.places.add(Places::READY);
        }
        if self.places.may_be(Places::READY) && at >= self.due_from {
            self.places.add(Places::DELAYED); // As its row still has it.
        }
        if self.places.may_be(Places::READY.or(Places::DELAYED)) && at >= self.dies_from {
            self.places.add(Places::DEAD);
        }
        if let Some((since, keys)) = self.purge {
            if self.places.may_be(Places::WAITING) {
                self.end(Places::DISCARDED, since);
            }
            if keys && self.places.may_be(Places::WAITING.or(Places::ENDED)) {
                self.places.add(Places::ABSENT);
            }
        }
        if self.redriven.is_some() && self.places.may_be(Places::DEAD) {
            // A claim has nothing to deliver: its key is free again.
            self.places.add(if item.claim { Places::ABSENT } else { Places::READY });
            self.attempts.0 = 0;
        }
        if self.places.may_be(Places::ENDED) {
            let kept = match self.kept_ms {
                u64::MAX => Time::NEVER,
                ms => self.ended_from.plus(ms),
            };
            if at >= kept || item.is_keyless() {
                self.places.add(Places::ABSENT);
            }
        }
    }

    /// A lease may have expired.
    fn lose(&mut self, at: Time, item: &Item, config: &Config) {
        self.lapsed = true;
        let parks = config.on_lost == OnLost::Park;
        if parks && self.begun != Begun::No {
            self.places.add(Places::PARKED);
        }
        if parks && self.begun == Begun::Yes {
            return;
        }
        if item.claim {
            self.places.add(Places::ABSENT);
            return;
        }
        self.fail(at, config, false);
    }

    /// An attempt may have failed.
    pub(crate) fn fail(&mut self, at: Time, config: &Config, dead: bool) {
        if dead || self.attempts.1 >= config.max_attempts || at >= self.dies_from {
            self.places.add(Places::DEAD);
        }
        if !dead && self.attempts.0 < config.max_attempts {
            self.places.add(Places::DELAYED);
            self.due_from = self.due_from.min(at);
        }
    }

    /// Its holder may have parked it (`dead` if it is not parked) while it was in one of these
    /// places.
    pub(crate) fn doubt(
        &mut self,
        at: Time,
        (item, dead): (&Item, bool),
        config: &Config,
        before: Places,
    ) {
        let parks = config.on_lost == OnLost::Park && before.may_be(Places::LEASED);
        if parks && self.begun != Begun::No {
            self.places.add(Places::PARKED);
        }
        if parks && self.begun == Begun::Yes && before == Places::LEASED {
            return;
        }
        match item.claim && !dead {
            true => self.places.add(Places::DISCARDED),
            false => self.fail(at, config, dead),
        }
    }

    /// It may have ended, or did.
    pub(crate) fn end(&mut self, how: Places, at: Time) {
        self.places.add(how);
        self.ended_from = self.ended_from.min(at);
    }

    /// It is in one of these places now. Returns the known places if that is impossible.
    pub(crate) fn narrow(&mut self, at: Time, to: Places) -> Result<(), Places> {
        let left = self.places.and(to);
        if left.is_empty() {
            return Err(self.places);
        }
        self.places = left;
        if !left.may_be(Places::ENDED) {
            self.ended_from = Time::NEVER;
        }
        if !left.may_be(Places::DEAD) && self.redriven.is_some_and(|redriven| redriven < at) {
            self.redriven = None;
        }
        Ok(())
    }

    /// It was leased.
    pub(crate) fn lease(&mut self, fence: Fence, deadline: Time, attempt: u32) {
        self.places = Places::LEASED;
        self.fence = fence;
        self.unseen_lease = false;
        self.lapsed = false;
        self.lost_from = deadline;
        self.begun = Begun::No;
        self.attempts = (attempt, attempt);
        self.due_from = Time::NEVER;
        self.sender_delays = false;
        self.ended_from = Time::NEVER;
    }

    /// It was redriven, run again or replayed.
    pub(crate) fn revive(&mut self, certain: bool) {
        self.purged = false;
        if certain {
            self.places = Places::READY;
            self.attempts = (0, 0);
            self.dies_from = Time::NEVER;
            self.ended_from = Time::NEVER;
            self.due_from = Time::NEVER;
        } else {
            self.places.add(Places::READY);
            self.attempts.0 = 0;
        }
    }

    /// The places from which a send begins a new message.
    pub(crate) fn beginnings(config: &Config, claim: bool, item: &Item) -> Places {
        match config.on_dead {
            OnDead::Pin => Places::ABSENT,
            OnDead::Rerun if !claim && !item.claim => Places::ABSENT.or(Places::DISCARDED),
            OnDead::Rerun | OnDead::Release => {
                Places::ABSENT.or(Places::DEAD).or(Places::DISCARDED)
            }
        }
    }

    /// Whether the newest lease may settle: it holds the message, or it expired and can only end.
    /// Only `done` resolves a parked message.
    pub(crate) fn may_settle(&self, end: Option<End>) -> bool {
        let waiting = match end {
            Some(End::Done) => Places::READY.or(Places::DELAYED).or(Places::PARKED),
            Some(End::Fail | End::Release | End::Park) => Places::READY.or(Places::DELAYED),
            None => Places::default(),
        };
        self.places.may_be(Places::LEASED) || self.lapsed && self.places.may_be(waiting)
    }

    /// Whether a send may be the first of a new message.
    pub(crate) fn may_begin(&self, config: &Config, claim: bool, item: &Item) -> bool {
        self.places.may_be(Self::beginnings(config, claim, item))
    }

    /// A message was accepted.
    pub(crate) fn enter(&mut self, at: Time, item: &Item, config: &Config) {
        let delay = item.delay_ms.unwrap_or(config.delay_ms);
        if delay > 0 {
            self.places.add(Places::DELAYED);
            self.due_from = self.due_from.min(at.plus(delay));
            self.sender_delays = true;
        } else {
            self.places.add(Places::READY);
        }
        if let Some(ttl) = item.ttl_ms.or(config.ttl_ms) {
            self.dies_from = self.dies_from.min(at.plus(ttl));
        }
    }

    /// A receive may have leased it.
    pub(crate) fn may_be_taken(&mut self, deadline: Time, config: &Config, at: Time) {
        self.attempts.1 += 1;
        if config.guarantee == Guarantee::AtMostOnce {
            self.results.push(None);
            self.end(Places::DONE, at);
        } else {
            let known = self.places.may_be(Places::LEASED);
            self.places.add(Places::LEASED);
            self.unseen_lease = true;
            // A new lease is not begun; the previous one may still be the newest.
            self.begun = match self.begun {
                Begun::Yes | Begun::Perhaps if known => Begun::Perhaps,
                _ => Begun::No,
            };
            self.lost_from = if known { self.lost_from.min(deadline) } else { deadline };
        }
    }
}
