//! What operators do, and what time does.

use hapax_core::*;

use super::state::*;
use super::work::{LOST, OVER};

impl Model {
    pub(crate) fn configure(&mut self, configure: &Configure) -> Outcome {
        let refused = |refusal| Outcome::Refused(refusal);
        if let Err(invalid) = configure.config.check() {
            return refused(Refusal::InvalidConfig(invalid));
        }
        let (at, next_seq) = (self.at, self.next_seq);
        let existing = self.queue(&configure.queue.queue);
        let version = existing.map_or(0, |queue| queue.version);
        match (configure.if_version, existing.map(|queue| queue.number)) {
            (None, _) | (Some(Expected::Absent), None) | (Some(Expected::Present), Some(_)) => {}
            (Some(Expected::Absent), Some(_)) => return refused(Refusal::QueueExists),
            (Some(Expected::Version { number, version: wanted }), Some(known))
                if number == known && wanted == version => {}
            _ => return refused(Refusal::VersionChanged(version)),
        }
        if let Some(queue) = existing {
            if queue.config == configure.config {
                return Outcome::Configured { version, created: false };
            }
            if let Err(invalid) = queue.config.check_change(&configure.config) {
                return refused(Refusal::InvalidConfig(invalid));
            }
            let queue = self.queue_mut(&configure.queue.queue);
            if let Some(retention) = queue.config.retention_ms {
                queue.raised.push((at.plus(limits::DATED_AHEAD_MS), retention));
            }
            queue.config = configure.config.clone();
            queue.version += 1;
        } else {
            let number = self.next_queue;
            self.next_queue += 1;
            self.queues.push(Queue {
                number,
                name: configure.queue.clone(),
                config: configure.config.clone(),
                version: 1,
                created_at: at,
                paused: false,
                keys_from: next_seq,
                raised: Vec::new(),
                purge: None,
                jobs: Default::default(),
                totals: Stats::default(),
                rate: (0, Time(0)),
            });
        }
        Outcome::Configured { version: version + 1, created: version == 0 }
    }

    pub(crate) fn pause(&mut self, name: &QueueName, paused: bool) -> Outcome {
        if self.queue(&name.queue).is_none() {
            return Outcome::Refused(Refusal::NoSuchQueue);
        }
        self.queue_mut(&name.queue).paused = paused;
        Outcome::Ok
    }

    pub(crate) fn purge(&mut self, purge: &Purge) -> Outcome {
        let below = self.next_seq;
        if self.queue(&purge.queue.queue).is_none() {
            return Outcome::Refused(Refusal::NoSuchQueue);
        }
        let queue = self.queue_mut(&purge.queue.queue);
        queue.purge = Some(below);
        if purge.keys {
            queue.keys_from = below;
        }
        Outcome::Ok
    }

    /// The queue goes, and everything in it, as soon as time is given to it.
    pub(crate) fn delete(&mut self, name: &QueueName) -> Outcome {
        if self.queue(&name.queue).is_none() {
            return Outcome::Refused(Refusal::NoSuchQueue);
        }
        while let Some(index) =
            self.messages.iter().position(|message| message.queue == *name.queue)
        {
            self.purge_one(index, true);
        }
        self.queues.retain(|queue| queue.name != *name);
        self.receives.retain(|(queue, _), _| **queue != *name.queue);
        Outcome::Ok
    }

    pub(crate) fn purge_one(&mut self, index: usize, keys: bool) {
        let end = if keys { End::Forgotten } else { End::Discarded };
        let purged = Some(event(self.at, What::Discarded, &"".into(), "purged"));
        let error = Some("purged".into());
        self.end(index, end, Ending { error, event: purged, ..Ending::default() });
    }

    pub(crate) fn look(&self, name: &KeyName) -> Outcome {
        let Some(queue) = self.queue(&name.queue.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        if let Some(index) = self.named(queue, name) {
            return Outcome::Key(Box::new(self.messages[index].view()));
        }
        let scope = Self::scope(queue, &name.key, name.group.as_deref());
        let Some(record) = self.remembered(queue, &scope) else {
            return Outcome::Refused(Refusal::NoSuchKey);
        };
        Outcome::Key(Box::new(KeyView {
            key: Some(name.key.clone()),
            digest: self.digest(&scope),
            place: if record.end == End::Done { Place::Done } else { Place::Discarded },
            id: record.id(0),
            deadline: None,
            content: record.content.clone(),
            recovery_points: Default::default(),
            history: told(record, false, true),
            record: record.clone(),
        }))
    }

    pub(crate) fn browse(&self, browse: &Browse) -> Outcome {
        if self.queue(&browse.queue.queue).is_none() {
            return Outcome::Refused(Refusal::NoSuchQueue);
        }
        let from = browse.cursor.map_or(0, |cursor| cursor + 1);
        let mut found: Vec<&Message> = self.messages.iter().collect();
        found.retain(|message| {
            message.queue == *browse.queue.queue
                && message.place() == browse.place
                && message.seq >= from
        });
        found.sort_by_key(|message| message.seq);
        let limit = browse.limit.max(1);
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|message| message.seq);
        let messages = found.into_iter().map(Message::view).collect();
        Outcome::Messages { messages, next }
    }

    pub(crate) fn forget(&mut self, name: &KeyName) -> Outcome {
        let Some(queue) = self.queue(&name.queue.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        let scope = Self::scope(queue, &name.key, name.group.as_deref());
        if let Some(index) = self.living(&scope) {
            let place = self.messages[index].place().as_str();
            return Outcome::Refused(Refusal::Invalid(Invalid::State(place)));
        }
        let saved = self.records.get(&scope).is_some_and(|record| {
            let is_ours = record.expires_at > self.at && record.seq >= queue.keys_from;
            is_ours && !record.points.is_empty()
        });
        if self.remembered(queue, &scope).is_none() && !saved {
            return Outcome::Refused(Refusal::NoSuchKey);
        }
        let forgotten = event(self.at, What::Forgotten, &"".into(), "");
        let record = self.records.get_mut(&scope).expect("it is remembered");
        record.points.clear();
        record.end = End::Forgotten;
        record.result = None;
        record.content = None;
        record.history.push(forgotten);
        Outcome::Ok
    }

    pub(crate) fn replay(&mut self, replay: &Replay) -> Outcome {
        match self.replayed(replay) {
            Ok(()) => Outcome::Ok,
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    fn replayed(&mut self, replay: &Replay) -> Result<(), Refusal> {
        let name = &replay.key;
        let queue = self.queue(&name.queue.queue).ok_or(Refusal::NoSuchQueue)?;
        let scope = Self::scope(queue, &name.key, name.group.as_deref());
        if let Some(index) = self.living(&scope) {
            let place = self.messages[index].place().as_str();
            return Err(Refusal::Invalid(Invalid::State(place)));
        }
        let record = self.remembered(queue, &scope).ok_or(Refusal::NoSuchKey)?.clone();
        if record.end != End::Done {
            return Err(Refusal::Invalid(Invalid::State("discarded")));
        }
        if queue.purge.is_some_and(|below| record.seq < below) {
            return Err(Refusal::Invalid(Invalid::State("in a queue that is being purged")));
        }
        let kept = record.content.clone().map(|content| (content, record.fingerprint));
        let Some((content, fingerprint)) = replay.content.clone().or(kept) else {
            return Err(Refusal::Invalid(Invalid::BodyGone));
        };
        let differs = record.fingerprint.differs(&fingerprint);
        if !differs.is_empty() {
            return Err(Refusal::Conflict(differs));
        }
        if self.store_full {
            return Err(Refusal::StoreFull);
        }
        let ordered = content.group().filter(|_| queue.config.order == Order::Group);
        let ordered = ordered.map(Into::into);
        let mut history = record.history;
        history.push(event(self.at, What::Replayed, &"".into(), ""));
        self.records.remove(&scope);
        self.messages.push(Message {
            queue: scope.0.clone(),
            digest: self.digest(&scope),
            scope: Some(scope),
            seq: record.seq,
            content,
            fingerprint,
            ordered,
            claim: false,
            state: State::Ready,
            attempts: 0,
            generation: record.generation + 1,
            accepted_at: record.accepted_at,
            leased_at: self.at,
            ttl_at: Time::NEVER,
            error: None,
            points: Default::default(),
            duplicates: record.duplicates,
            losses: record.losses,
            settled: None,
            lost: None,
            worker: None,
            claim_id: None,
            dated_ahead: record.dated_ahead,
            history,
        });
        Ok(())
    }

    pub(crate) fn discard(&mut self, name: &KeyName) -> Outcome {
        let Some(queue) = self.queue(&name.queue.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        let Some(index) = self.named(queue, name) else {
            return self.not_living(queue, name);
        };
        let message = &self.messages[index];
        if message.place() == Place::Leased {
            return Outcome::Refused(Refusal::Invalid(Invalid::State("leased")));
        }
        let error = message.error.clone().filter(|error| !error.is_empty());
        let error = Some(error.unwrap_or_else(|| "discarded".into()));
        let discarded = Some(event(self.at, What::Discarded, &"".into(), ""));
        let ending = Ending { error, event: discarded, ..Ending::default() };
        self.end(index, End::Discarded, ending);
        Outcome::Ok
    }

    /// What is refused where there is no message: what the key is instead.
    fn not_living(&self, queue: &Queue, name: &KeyName) -> Outcome {
        let scope = Self::scope(queue, &name.key, name.group.as_deref());
        let Some(record) = self.remembered(queue, &scope) else {
            return Outcome::Refused(Refusal::NoSuchKey);
        };
        let place = if record.end == End::Done { Place::Done } else { Place::Discarded };
        Outcome::Refused(Refusal::Invalid(Invalid::State(place.as_str())))
    }

    pub(crate) fn resolve(&mut self, resolve: &Resolve) -> Outcome {
        let Some(queue) = self.queue(&resolve.key.queue.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        let max = queue.config.max_body_bytes;
        let Some(index) = self.named(queue, &resolve.key) else {
            return self.not_living(queue, &resolve.key);
        };
        let at = self.at;
        let message = &mut self.messages[index];
        if message.place() != Place::Parked {
            let place = message.place().as_str();
            return Outcome::Refused(Refusal::Invalid(Invalid::State(place)));
        }
        match &resolve.resolution {
            Resolution::Done(result) => {
                let bytes = result.as_ref().map_or(0, |result| result.body.len() as u64);
                if bytes > max {
                    let invalid = Invalid::BodyTooLarge { bytes, max };
                    return Outcome::Refused(Refusal::Invalid(invalid));
                }
                message.tell(at, What::Resolved, &"".into(), "done");
                let queue = message.queue.clone();
                self.queue_mut(&queue).totals.done_total += 1;
                let ending = Ending { result: result.clone(), ..Ending::default() };
                self.end(index, End::Done, ending);
            }
            Resolution::Retry => {
                message.tell(at, What::Resolved, &"".into(), "retry");
                message.lost = None;
                let next = if message.claim { Next::Freed } else { Next::Ready };
                self.go(index, Fence::default(), next);
            }
        }
        Outcome::Ok
    }

    pub(crate) fn redrive(&mut self, redrive: &Redrive) -> Outcome {
        match self.redriven(redrive) {
            Ok(view) => Outcome::Redrive(Box::new(view)),
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    fn redriven(&mut self, redrive: &Redrive) -> Result<RedriveView, Refusal> {
        let (id, name) = (redrive.id.to_string(), &redrive.queue.queue);
        let (error_contains, group, dead_before, dead_after) = (None, None, None, None);
        let empty = Select::Filter { error_contains, group, dead_before, dead_after };
        let is_empty = matches!(&redrive.select, Select::Keys { keys, .. } if keys.is_empty())
            || redrive.select == empty;
        if redrive.per_s == Some(0) || is_empty {
            return Err(Refusal::Invalid(Invalid::Redrive));
        }
        let queue = self.queue(name).ok_or(Refusal::NoSuchQueue)?;
        let asked = asked_for(redrive);
        if let Some(job) = queue.jobs.get(&id) {
            let is_same = job.asked == asked;
            return if is_same { Ok(job.view.clone()) } else { Err(Refusal::OtherRedrive) };
        }
        if self.store_full {
            return Err(Refusal::StoreFull);
        }
        let (matched, moved, done) = (0, 0, false);
        let most = self.bounds.keys_at_once(queue.config.max_body_bytes);
        let mut job = Job {
            view: RedriveView {
                id: redrive.id.clone(),
                matched,
                moved,
                total: Some(self.stats(queue).dead),
                by_keys: false,
                missing: Vec::new(),
                done,
                cancelled: false,
                dry_run: redrive.dry_run,
            },
            asked,
            error_contains: None,
            group: None,
            dead_before: self.at.plus(1),
            dead_after: None,
            per_s: redrive.per_s,
            started_at: self.at,
            cursor: 0,
            keys: Vec::new(),
        };
        match &redrive.select {
            Select::All => {}
            Select::Filter { error_contains, group, dead_before, dead_after } => {
                job.error_contains.clone_from(error_contains);
                job.group.clone_from(group);
                job.dead_before = dead_before.unwrap_or(job.dead_before);
                job.dead_after = *dead_after;
            }
            Select::Keys { keys, group } => {
                let scope = |key| Self::scope(queue, key, group.as_deref());
                let mut scopes: Vec<Scope> = keys.iter().map(|key| scope(key)).collect();
                scopes.sort();
                scopes.dedup();
                job.view.by_keys = true;
                job.view.total = Some(scopes.len() as u64);
                job.keys = scopes;
                self.step_keys(&mut job, most);
            }
        }
        let view = job.view.clone();
        self.queue_mut(name).jobs.insert(id, job);
        Ok(view)
    }

    /// Looks at the next keys that a redrive names.
    fn step_keys(&mut self, job: &mut Job, most: usize) {
        for _ in 0..most.min(job.keys.len()) {
            if job.view.matched >= job.allowed(self.at) {
                break;
            }
            let scope = job.keys.remove(0);
            job.cursor += 1;
            let living = self.living(&scope);
            match living.filter(|it| self.messages[*it].place() == Place::Dead) {
                Some(index) => self.match_one(job, index),
                None => job.view.missing.push(scope.2.as_str().into()),
            }
        }
        job.view.done = job.keys.is_empty();
    }

    fn match_one(&mut self, job: &mut Job, index: usize) {
        job.view.matched += 1;
        if !job.view.dry_run {
            job.view.moved += 1;
            self.redrive_one(index);
        }
    }

    pub(crate) fn redrive_one(&mut self, index: usize) {
        let at = self.at;
        let message = &mut self.messages[index];
        message.attempts = 0;
        message.ttl_at = Time::NEVER;
        message.tell(at, What::Redriven, &"".into(), "");
        // A claim has nothing to deliver: its key is free again.
        let next = if message.claim { Next::Freed } else { Next::Ready };
        self.go(index, Fence::default(), next);
    }

    pub(crate) fn progress(&self, name: &QueueName, id: &str) -> Outcome {
        let Some(queue) = self.queue(&name.queue) else {
            return Outcome::Refused(Refusal::NoSuchQueue);
        };
        match queue.jobs.get(id) {
            Some(job) => Outcome::Redrive(Box::new(job.view.clone())),
            None => Outcome::Refused(Refusal::NoSuchKey),
        }
    }

    pub(crate) fn cancel(&mut self, name: &QueueName, id: &str) -> Outcome {
        if self.queue(&name.queue).is_none() {
            return Outcome::Refused(Refusal::NoSuchQueue);
        }
        let Some(job) = self.queue_mut(&name.queue).jobs.get_mut(id) else {
            return Outcome::Refused(Refusal::NoSuchKey);
        };
        if !job.view.done {
            (job.view.done, job.view.cancelled) = (true, true);
        }
        Outcome::Redrive(Box::new(job.view.clone()))
    }

    /// `seen` tells the key that an emit goes on under whose own is taken.
    pub(crate) fn relayed(&mut self, id: u64, arrival: &Arrival, seen: Option<&Relay>) -> Outcome {
        let Some(relay) = self.relays.get_mut(&id) else { return Outcome::Ok };
        match arrival {
            Arrival::Arrived => _ = self.relays.remove(&id),
            Arrival::Later => relay.attempts += 1,
            Arrival::Refused(error) => {
                let was_refused = relay.refused.is_some();
                relay.refused.get_or_insert_with(|| error.clone());
                if was_refused {
                    let (own, seen) = (&relay.emit.content, &seen.expect("it waits").emit.content);
                    assert_ne!(own.key(), seen.key(), "another key");
                    assert_eq!((own.body(), own.group()), (seen.body(), seen.group()));
                    relay.emit.content = seen.clone();
                }
            }
        }
        Outcome::Ok
    }

    pub(crate) fn dead_letter(&mut self, letter: &DeadLetter, seen: &Outcome) -> Outcome {
        Outcome::Sent(self.filed(letter, seen).unwrap_or_else(|answer| answer))
    }

    fn filed(&mut self, letter: &DeadLetter, seen: &Outcome) -> Result<Answer, Answer> {
        let send = &letter.send;
        let queue = self.queue(&send.queue.queue).ok_or(Answer::NoSuchQueue)?.clone();
        let scope = Self::scope(&queue, send.content.key(), send.content.group());
        let living = self.living(&scope);
        let is_purged = |message: &Message| {
            message.place() != Place::Leased
                && queue.purge.is_some_and(|below| message.seq < below)
                && message.seq < queue.keys_from
        };
        let purged = living.is_some_and(|index| is_purged(&self.messages[index]));
        if living.is_some() && !purged || self.remembered(&queue, &scope).is_some() {
            return Err(self.there(&queue, &scope, &send.fingerprint));
        }
        self.check_room(&queue, send.content.size() as u64, send.allowance, seen)?;
        if let Some(index) = living {
            self.purge_one(index, true);
        }
        let what = (send.content.clone(), send.fingerprint);
        let index = self.accept(&queue, Some(scope), what, State::Ready, Time::NEVER, false);
        self.messages[index].error = Some(letter.error.clone());
        self.go(index, Fence::default(), Next::Dead);
        let (id, error) = (self.messages[index].id(), letter.error.clone());
        Ok(Answer::Dead { id, accepted_at: self.at, attempts: 0, error, discarded: false })
    }

    /// What a dead letter finds under its key; nothing changes there.
    fn there(&self, queue: &Queue, scope: &Scope, fingerprint: &Fingerprint) -> Answer {
        // A pinned queue answers a send as a dead letter is answered, but for the count.
        let mut copy = self.clone();
        let at = copy.queues.iter().position(|it| it.name == queue.name).expect("it exists");
        copy.queues[at].config.on_dead = OnDead::Pin;
        for message in &mut copy.messages {
            message.ttl_at = Time::NEVER;
        }
        let queue = copy.queues[at].clone();
        copy.known(&queue, scope, fingerprint, false).expect_err("the key is known")
    }

    /// Everything that is due happens.
    pub(crate) fn expire(&mut self) {
        self.end_delays();
        self.lose_leases();
        self.end_lives();
        self.go_on_with_purges();
        self.go_on_with_redrives();
        self.end_delays();
    }

    pub(crate) fn end_delays(&mut self) {
        for message in &mut self.messages {
            if matches!(message.state, State::Delayed { due, .. } if due <= self.at) {
                message.state = State::Ready;
            }
        }
    }

    fn lose_leases(&mut self) {
        let at = self.at;
        let is_lost = |message: &Message| match message.state {
            State::Leased { deadline, .. } => deadline <= at,
            _ => false,
        };
        while let Some(index) = self.messages.iter().position(is_lost) {
            self.lose(index);
        }
    }

    pub(crate) fn lose(&mut self, index: usize) {
        let at = self.at;
        let message = &self.messages[index];
        let parks = self.queue(&message.queue).expect("its queue").config.on_lost;
        let begun = matches!(message.state, State::Leased { begun: true, .. });
        let next = if begun && parks == OnLost::Park {
            Next::Parked
        } else if message.claim {
            Next::Freed
        } else {
            self.after_failure(index, None)
        };
        let message = &mut self.messages[index];
        let (worker, name) = (message.holder(), message.queue.clone());
        message.tell(at, What::Lost, &worker, "");
        message.losses += 1;
        message.worker = Some(worker);
        let fence = message.fence().unwrap_or_default();
        message.lost = Some(fence);
        if next == Next::Dead {
            message.error = Some(if message.ttl_at <= at { OVER } else { LOST }.into());
        }
        self.queue_mut(&name).totals.lease_lost_total += 1;
        self.go(index, fence, next);
    }

    fn end_lives(&mut self) {
        let at = self.at;
        while let Some(index) = self.messages.iter().position(|message| message.is_over(at)) {
            self.die_of_age(index);
        }
    }

    pub(crate) fn die_of_age(&mut self, index: usize) {
        self.messages[index].error = Some(OVER.into());
        self.go(index, Fence::default(), Next::Dead);
    }

    fn go_on_with_purges(&mut self) {
        for number in 0..self.queues.len() {
            let queue = &mut self.queues[number];
            let Some(below) = queue.purge.take() else { continue };
            let (name, keys_from) = (queue.name.queue.clone(), queue.keys_from);
            let is_victim = |message: &Message| message.is_purged(&name, below);
            while let Some(index) = self.messages.iter().position(is_victim) {
                self.purge_one(index, self.messages[index].seq < keys_from);
            }
        }
    }

    fn go_on_with_redrives(&mut self) {
        for number in 0..self.queues.len() {
            let name = self.queues[number].name.queue.to_string();
            let ids: Vec<String> = self.queues[number].jobs.keys().cloned().collect();
            for id in ids {
                let mut job = self.queues[number].jobs[&id].clone();
                if !job.view.done {
                    self.step(&name, &mut job);
                    self.queues[number].jobs.insert(id, job);
                }
            }
        }
    }

    fn step(&mut self, queue: &str, job: &mut Job) {
        if job.view.by_keys {
            return self.step_keys(job, usize::MAX);
        }
        loop {
            if job.view.matched >= job.allowed(self.at) {
                return; // More when the rate allows it.
            }
            let dead = self.messages.iter().filter(|message| {
                message.queue == queue
                    && message.place() == Place::Dead
                    && message.seq >= job.cursor
            });
            let Some(seq) = dead.map(|message| message.seq).min() else {
                job.view.done = true;
                return;
            };
            job.cursor = seq + 1;
            let mut all = self.messages.iter();
            let index = all.position(|message| message.seq == seq).expect("just found");
            if job.matches(&self.messages[index]) {
                self.match_one(job, index);
            }
        }
    }
}

/// What a redrive asks for, in whatever order it names its keys.
fn asked_for(redrive: &Redrive) -> (Select, bool, Option<u32>) {
    let mut select = redrive.select.clone();
    if let Select::Keys { keys, .. } = &mut select {
        keys.sort();
        keys.dedup();
    }
    (select, redrive.dry_run, redrive.per_s)
}
