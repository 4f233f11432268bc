//! What is known of a queue in one partition: whether it exists, and its configuration.
//!
//! A queue is created, changed, deleted and created again. Its configuration is certain unless a
//! change was not answered; the next answer that shows the queue decides between the possibilities.
//! The effects of a change on its keys are applied here.

use hapax_core::{Config, OnGroupDead, Order, Outcome, QueueView, Refusal, Time};

use super::{Checked, Checker, Places, violation};
use crate::scene::ItemId;

/// One queue in one partition.
#[derive(Clone, Debug)]
pub(crate) struct QueueState {
    /// Possible configurations; `None` if it may not exist. One unless answers were lost.
    may_be: Vec<Option<Config>>,
    /// The configuration that answers are checked against, also after the queue is gone.
    pub(super) config: Config,
    /// All configurations since it was created.
    had: Vec<Config>,
    /// A purge was requested, and may still be in progress.
    pub(super) purges: bool,
    /// When everything dead was redriven last: what dies at that exact time is included.
    pub(super) redriven: Option<Time>,
    /// Redrives that were or may have been started: their ids and items.
    pub(super) redrives: Vec<(u64, Vec<ItemId>)>,
}

impl QueueState {
    pub(super) fn new(config: Config) -> Self {
        Self {
            may_be: vec![None],
            config,
            had: Vec::new(),
            purges: false,
            redriven: None,
            redrives: Vec::new(),
        }
    }

    pub(super) fn may_exist(&self) -> bool {
        self.may_be.iter().any(Option::is_some)
    }

    pub(super) fn may_be_gone(&self) -> bool {
        self.may_be.iter().any(Option::is_none)
    }

    /// The configurations it may have.
    pub(super) fn candidates(&self) -> Vec<Config> {
        self.may_be.iter().flatten().cloned().collect()
    }

    pub(super) fn had(&self) -> impl Iterator<Item = &Config> {
        self.had.iter().chain([&self.config])
    }

    /// Whether dead messages always blocked their groups.
    pub(super) fn always_held(&self) -> bool {
        self.had().all(|config| config.on_group_dead == OnGroupDead::Park)
    }

    /// The most attempts that any of its configurations allowed.
    pub(super) fn attempts_max(&self) -> u32 {
        self.had().map(|config| config.max_attempts).max().unwrap_or(0)
    }

    fn add(&mut self, possibility: Option<Config>) {
        if !self.may_be.contains(&possibility) {
            self.may_be.push(possibility);
        }
    }
}

impl Checker {
    /// Whether the queue certainly exists here.
    pub fn exists(&self, partition: usize, queue: usize) -> bool {
        self.queue_at(partition, queue).is_some_and(|state| !state.may_be_gone())
    }

    /// The configuration of the queue, as far as known.
    pub fn rules(&self, partition: usize, queue: usize) -> Config {
        self.queue_at(partition, queue).map(|state| state.config.clone()).unwrap_or_default()
    }

    fn queue_at(&self, partition: usize, queue: usize) -> Option<&QueueState> {
        self.queues.get(partition).and_then(|queues| queues.get(queue))
    }

    pub(super) fn state(&self, queue: usize) -> &QueueState {
        let Some(state) = self.queue_at(self.here, queue) else { unreachable!("names are fixed") };
        state
    }

    pub(super) fn state_mut(&mut self, queue: usize) -> &mut QueueState {
        let queues = self.queues.get_mut(self.here);
        let Some(state) = queues.and_then(|queues| queues.get_mut(queue)) else {
            unreachable!("names are fixed")
        };
        state
    }

    pub(super) fn configured(
        &mut self,
        at: Time,
        queue: usize,
        config: &Config,
        outcome: &Outcome,
    ) -> Checked {
        let state = self.state(queue);
        match outcome {
            Outcome::Configured { version, created } => {
                let is_same = || state.may_be.iter().flatten().any(|known| known == config);
                if *created != (*version == 1) && (*created || !is_same()) {
                    return violation("a queue is new with its first version");
                }
                let fits = |known: &Option<Config>| match known {
                    Some(known) => !created && known.check_change(config).is_ok(),
                    None => *created,
                };
                if !state.may_be.iter().any(fits) {
                    return violation(format!("a queue was configured as version {version}"));
                }
                if *created {
                    self.vanish(queue);
                    self.state_mut(queue).had.clear();
                }
                self.rule(at, queue, config);
                Ok(())
            }
            Outcome::Refused(Refusal::InvalidConfig(_)) => {
                let refuses = |known: &Config| known.check_change(config).is_err();
                match state.may_be.iter().flatten().any(refuses) {
                    true => Ok(()),
                    false => violation("a change was refused that is none"),
                }
            }
            _ => violation("an answer that does not belong to its request"),
        }
    }

    /// A partition adopted what the leader had decided.
    pub(super) fn followed(
        &mut self,
        at: Time,
        queue: usize,
        config: &Config,
        outcome: &Outcome,
    ) -> Checked {
        let Outcome::Configured { created, .. } = outcome else {
            return violation("a partition does not follow its leader");
        };
        let state = self.state(queue);
        if *created && !state.may_be_gone() || !created && !state.may_exist() {
            return violation("a queue was created where it is, or is not where it is changed");
        }
        if *created {
            self.vanish(queue);
            self.state_mut(queue).had.clear();
        }
        self.rule(at, queue, config);
        Ok(())
    }

    /// Sets whether the queue must stay: its creation was confirmed, and its deletion not
    /// requested.
    pub fn keep(&mut self, queue: usize, kept: bool) {
        if let Some(keep) = self.kept.get_mut(queue) {
            *keep = kept;
        }
    }

    fn unless_kept(&self, queue: usize) -> Checked {
        match self.kept.get(queue) {
            Some(true) => violation("a queue is gone that nobody deleted"),
            _ => Ok(()),
        }
    }

    pub(super) fn deleted(&mut self, queue: usize) -> Checked {
        if !self.state(queue).may_exist() {
            return violation("a queue was deleted that does not exist");
        }
        self.unless_kept(queue)?;
        self.gone(queue);
        Ok(())
    }

    /// Checks a view of the queue.
    pub(super) fn shown(&mut self, at: Time, queue: usize, view: &QueueView) -> Checked {
        let state = self.state(queue);
        if !state.may_be.contains(&Some(view.config.clone())) {
            let known = match state.may_exist() {
                true => "it was configured otherwise",
                false => "it was deleted, or never created",
            };
            return violation(format!("a queue shows rules though {known}"));
        }
        if view.stats.held > view.stats.ready {
            return violation("more messages are held than are ready");
        }
        let is_ordered = |config: &Config| config.order == Order::Group;
        let has_groups = state.had().any(is_ordered) || state.candidates().iter().any(is_ordered);
        if view.stats.held > 0 && !has_groups {
            return violation("messages are held in a queue without order");
        }
        if state.may_be.len() > 1 {
            self.rule(at, queue, &view.config);
        }
        Ok(())
    }

    /// Checks an answer that the queue does not exist.
    pub(super) fn no_such_queue(&mut self, queue: usize) -> Checked {
        if !self.state(queue).may_be_gone() {
            return violation("a queue is said not to exist, and does");
        }
        self.unless_kept(queue)?;
        self.gone(queue);
        Ok(())
    }

    /// Checks an answer that only an existing queue gives.
    pub(super) fn exists_here(&self, queue: usize) -> Checked {
        match self.state(queue).may_exist() {
            true => Ok(()),
            false => violation("a queue that does not exist answers"),
        }
    }

    /// A change of the queue was not answered.
    pub(super) fn lost_change(&mut self, queue: usize, config: Option<&Config>) {
        let before = self.state(queue).may_be.clone();
        for known in before {
            let next = match (&known, config) {
                (Some(known), Some(config)) if known.check_change(config).is_err() => continue,
                (_, config) => config.cloned(),
            };
            self.state_mut(queue).add(next);
        }
        if let Some(config) = config {
            self.state_mut(queue).had.push(config.clone()); // Perhaps for a while.
        }
        if config.is_none() {
            for item in self.homed(queue) {
                let Some(life) = self.lives.get_mut(item) else { continue };
                if life.places.may_be(Places::KNOWN) {
                    life.places.add(Places::ABSENT);
                }
                life.saved.clear();
            }
        }
    }

    /// The queue certainly has this configuration now.
    fn rule(&mut self, at: Time, queue: usize, config: &Config) {
        // What was due under the old configuration, or any possible one since, may have happened.
        let known = self.state(queue).config.clone();
        for rules in self.state(queue).candidates().into_iter().chain([known]) {
            self.state_mut(queue).config = rules;
            for item in self.homed(queue) {
                self.passed(at, item);
            }
        }
        let state = self.state_mut(queue);
        if !state.had.contains(&state.config) && state.may_exist() {
            state.had.push(state.config.clone());
        }
        state.config = config.clone();
        state.may_be = vec![Some(config.clone())];
        if !state.had.contains(config) {
            state.had.push(config.clone());
        }
    }

    fn gone(&mut self, queue: usize) {
        self.vanish(queue);
        let state = self.state_mut(queue);
        state.may_be = vec![None];
        state.had.clear();
    }

    /// All messages and keys of the queue are gone with it.
    fn vanish(&mut self, queue: usize) {
        let gone = self.homed(queue);
        // An emit that arrives again is stored again.
        self.emits.filed.retain(|_, (item, _)| !gone.contains(item));
        for item in gone {
            if let Some(life) = self.lives.get_mut(item) {
                life.vanish();
                if let Some(moved) = self.moved.remove(&item) {
                    *life = moved;
                }
            }
        }
    }

    /// The items of a queue whose messages are in this partition, if anywhere.
    pub(super) fn homed(&self, queue: usize) -> Vec<ItemId> {
        let items = self.items.iter().zip(&self.lives).enumerate();
        let here = self.here;
        items
            .filter(|(_, (item, life))| item.queue == queue && life.home == Some(here))
            .map(|(id, _)| id)
            .collect()
    }
}
