//! Runs a case on the machine and on the model, and compares after every step.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use super::ops::*;
use super::state::{Model, Scope, TENANT};
use crate::support::{START, World};

/// How a process dies in this run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Dying {
    Once,
    /// Every decision of the journal is applied twice on the way back.
    Twice,
}

pub(crate) struct Runner {
    world: World,
    model: Model,
    dying: Dying,
    /// Some messages may be in the rows alone.
    is_unloaded: bool,
    pub(crate) trace: String,
}

/// Longer than any delay, lease, backoff, and redrive at its rate.
const LONG_MS: u64 = 400 * 24 * 3_600 * 1_000;

/// What differs, in words.
pub(crate) type Differs = String;

impl Runner {
    pub(crate) fn new(bounds: Bounds, is_first: bool, dying: Dying) -> Self {
        let model = Model { is_first, ..Model::new(Time(START), bounds) };
        let (world, trace) = (World::with(model.recipe(), bounds), String::new());
        Self { world, model, dying, is_unloaded: false, trace }
    }

    pub(crate) fn step(&mut self, number: usize, op: &Op) -> Result<(), Differs> {
        self.model.random = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.world.random = self.model.random;
        let _ = writeln!(self.trace, "{:>8} {op:?}", self.model.at.0 - START);
        match op {
            Op::Wait(ms) => {
                self.model.at = self.model.at.plus(*ms);
                self.world.at = self.model.at;
                self.quiet();
            }
            Op::Expire => self.quiet(),
            Op::Tick => {
                self.tick();
                self.end_delays();
            }
            Op::Crash => {
                match self.dying {
                    Dying::Once => self.world.crash(),
                    Dying::Twice => self.world.crash_and_apply_twice(),
                }
                assert_eq!(self.world.at, self.model.at, "time does not run back");
                self.model.crash();
                self.is_unloaded = true;
                self.tick(); // What is counted by time is counted with the first batch.
                self.end_delays();
            }
            Op::Checkpoint => self.world.checkpoint(),
            Op::BeginCheckpoint => self.world.begin_checkpoint(),
            Op::FinishCheckpoint => self.world.finish_checkpoint(),
            Op::CancelCheckpoint => self.world.cancel_checkpoint(),
            Op::Evict { keep } => {
                self.is_unloaded |= self.world.evict_keeping(*keep) > 0;
                let left = self.world.machine.evictable_bytes();
                let may_stay = *keep > 0 || self.world.machine.is_in_checkpoint();
                assert!(may_stay || left == 0, "{left} bytes could have left memory");
            }
            Op::StoreFull(full) => {
                self.world.machine.set_store_full(*full);
                self.model.store_full = *full;
            }
            Op::Batch(ops) => self.ask_all(ops)?,
            _ => self.ask(op)?,
        }
        self.compare_state()
    }

    /// Everything that is known of every key, before and after it was read back from the rows.
    pub(crate) fn finale(&mut self) -> Result<(), Differs> {
        self.look_at_all()?;
        let _ = writeln!(self.trace, "   and at last Checkpoint, Crash");
        self.world.finish_checkpoint();
        self.world.checkpoint();
        self.step(usize::MAX - 1, &Op::Crash)?;
        self.look_at_all()?;
        self.world.checkpoint();
        self.drain()?;
        self.world.checkpoint();
        let mut stray = self.world.rows().queues().into_iter();
        let stray = stray.find(|id| self.world.machine.queue_name(*id).is_none());
        stray.map_or(Ok(()), |id| Err(format!("rows of queue {id}, which is gone")))
    }

    /// With time everything comes to its end, however little is in memory: delays and leases end,
    /// jobs are done, queues that were deleted are gone, and what is ready is received.
    fn drain(&mut self) -> Result<(), Differs> {
        let _ = writeln!(self.trace, "   and with time");
        self.step(usize::MAX - 2, &Op::StoreFull(false))?;
        for round in 0..3 {
            self.world.checkpoint();
            self.step(usize::MAX - 3 - round, &Op::Evict { keep: 0 })?;
            self.step(usize::MAX - 9 - round, &Op::Wait(LONG_MS))?;
        }
        for (name, view) in self.world.machine.queues() {
            let Stats { delayed, leased, .. } = view.stats;
            if delayed + leased > 0 {
                return Err(format!("{}: {delayed} delayed, {leased} leased", name.queue));
            }
        }
        for queue in &self.model.queues {
            if let Some((id, _)) = queue.jobs.iter().find(|(_, job)| !job.view.done) {
                return Err(format!("the redrive {id} of {} never ends", queue.name.queue));
            }
            if queue.purge.is_some() {
                return Err(format!("the purge of {} never ends", queue.name.queue));
            }
        }
        for queue in 0..QUEUES {
            self.step(usize::MAX - 20, &Op::Resume { queue })?;
            self.world.checkpoint();
            self.step(usize::MAX - 21, &Op::Evict { keep: 0 })?;
            let (lease_ms, worker, receive_id, several) = (None, 0, None, true);
            let take = Take { queue, max: 100, lease_ms, worker, receive_id, several };
            self.step(usize::MAX - 22, &Op::Receive(take))?;
        }
        Ok(())
    }

    fn look_at_all(&mut self) -> Result<(), Differs> {
        self.quiet();
        let living = self.model.messages.iter().map(name_of);
        let records = self.model.records.keys().map(name_of_scope);
        let names: Vec<KeyName> = living.chain(records).collect();
        for name in names {
            let said = self.world.run(Command::Look(name.clone()));
            let expected = self.model.look(&name);
            compare(&expected, &said, self.model.crashed, false)
                .map_err(|differs| format!("{name:?}\n{differs}"))?;
        }
        self.compare_state()
    }

    /// One command, the same to both.
    fn ask(&mut self, op: &Op) -> Result<(), Differs> {
        self.prepare(op);
        let Some(command) = self.command(op) else { return Ok(()) };
        let said = match &command {
            Command::Browse(browse) => self.browse(browse.clone()),
            _ => self.world.run(command.clone()),
        };
        let _ = writeln!(self.trace, "         → {said:?}");
        let expected = self.predict(&command, &said);
        let partial = self.is_unloaded && is_partial(&command, &self.model);
        compare(&expected, &said, self.model.crashed, partial)
    }

    /// Several commands in one batch.
    fn ask_all(&mut self, ops: &[Op]) -> Result<(), Differs> {
        ops.iter().for_each(|op| self.prepare(op));
        let commands: Vec<Command> = ops.iter().filter_map(|op| self.command(op)).collect();
        let said = self.world.run_all(commands.clone());
        for (command, said) in commands.iter().zip(said) {
            let _ = writeln!(self.trace, "         → {said:?}");
            let expected = self.predict(command, &said);
            compare(&expected, &said, self.model.crashed, false)?;
        }
        Ok(())
    }

    /// Pages may be short where rows are outdated; they are read on until there are enough.
    fn browse(&mut self, mut browse: Browse) -> Outcome {
        let limit = browse.limit.max(1);
        let mut all = Vec::new();
        loop {
            let said = self.world.run(Command::Browse(browse.clone()));
            let Outcome::Messages { messages, next } = said else { return said };
            assert!(messages.len() <= limit, "a page has a limit");
            all.extend(messages);
            browse.cursor = next;
            if next.is_none() || all.len() > limit {
                break;
            }
        }
        let more = all.len() > limit;
        all.truncate(limit);
        let next = all.last().filter(|_| more).map(|view| view.record.seq);
        Outcome::Messages { messages: all, next }
    }

    fn prepare(&mut self, op: &Op) {
        self.end_delays();
        // What is in front may be on its way out, and what is behind it in the rows alone.
        if matches!(op, Op::Receive(_) | Op::Show { .. }) && self.is_unloaded {
            let is_purging = self.model.queues.iter().any(|queue| queue.purge.is_some());
            let at = self.model.at;
            if is_purging || self.model.messages.iter().any(|message| message.is_over(at)) {
                self.quiet();
            }
        }
    }

    /// A delay ends without a decision, with the time of a batch, a few at once, and what is in
    /// the rows alone is read first. Here all of them end before anything else happens.
    fn end_delays(&mut self) {
        for round in 0.. {
            assert!(round < 1_000, "delays come to an end");
            let at = self.model.at;
            let mut messages = self.model.messages.iter();
            let is_due =
                |message: &super::state::Message| message.state.due().is_some_and(|due| due <= at);
            let waiting = |queue: &QueueName| {
                let mine = self.model.messages.iter().filter(|held| *held.queue == *queue.queue);
                let waiting = mine.filter(|held| held.state.due().is_some() && !is_due(held));
                waiting.count() as u64
            };
            let mut queues = self.world.machine.queues();
            let all_ended = queues.all(|(name, view)| view.stats.delayed == waiting(name));
            if all_ended && (round > 0 || !messages.any(is_due)) {
                break;
            }
            drop(queues);
            self.tick();
        }
        self.model.end_delays();
    }

    /// Gives the machine time for one step, and follows it.
    fn tick(&mut self) {
        let batches = self.world.batches();
        let name_of = |id| Some((id, self.world.machine.queue_name(id)?.queue.to_string()));
        let names: BTreeMap<QueueId, String> = (0..1_000).filter_map(name_of).collect();
        self.world.run(Command::Expire);
        self.model.lost.clear();
        self.model.freed.clear();
        for decision in self.world.decided_since(batches) {
            let queue = match &decision {
                Decision::Purged { queue, .. } | Decision::Redriven { queue, .. } => Some(queue),
                _ => None,
            };
            // Of those with one name, the newest; all others were deleted.
            let queue = queue.and_then(|id| {
                let name = names.get(id)?;
                let newest = names.iter().filter(|(_, other)| *other == name).map(|(id, _)| id);
                let is_there = self.model.queue(name).is_some() && newest.max() == Some(id);
                is_there.then_some(name.as_str())
            });
            let _ = writeln!(self.trace, "         · {decision:?}");
            self.model.follow(&decision, queue);
        }
    }

    fn predict(&mut self, command: &Command, said: &Outcome) -> Outcome {
        let model = &mut self.model;
        match command {
            Command::Configure(configure) => model.configure(configure),
            Command::Follow(_) => unreachable!("the model has one partition, which leads"),
            Command::Delete(queue) => model.delete(queue),
            Command::Pause(queue) => model.pause(queue, true),
            Command::Resume(queue) => model.pause(queue, false),
            Command::Purge(purge) => model.purge(purge),
            Command::Send(send) => model.send(send, said),
            Command::Claim(claim) => model.claim(claim, said),
            Command::Receive(receive) => model.receive(receive),
            Command::Settle(settle) => model.settle(settle),
            Command::Look(name) => model.look(name),
            Command::Browse(browse) => model.browse(browse),
            Command::Forget(name) => model.forget(name),
            Command::Replay(replay) => model.replay(replay),
            Command::Discard(name) => model.discard(name),
            Command::Resolve(resolve) => model.resolve(resolve),
            Command::Redrive(redrive) => model.redrive(redrive),
            Command::CheckRedrive(redrive) => model.clone().redrive(redrive),
            Command::RedriveProgress { queue, id } => model.progress(queue, id),
            Command::CancelRedrive { queue, id } => model.cancel(queue, id),
            Command::Relayed { id, arrival } => {
                let seen = self.world.machine.relays().find(|relay| relay.id == *id);
                model.relayed(*id, arrival, seen)
            }
            Command::DeadLetter(letter) => model.dead_letter(letter, said),
            Command::Show(name) => match model.queue(&name.queue) {
                Some(queue) => Outcome::Queue(Box::new(model.show(queue))),
                None => Outcome::Refused(Refusal::NoSuchQueue),
            },
            Command::Expire => Outcome::Ok,
        }
    }

    /// Gives the machine time until it asks for no more.
    fn quiet(&mut self) {
        // A time to live is kept of messages in memory; the others die when they are met. Here
        // they are met at once, so that both agree on when.
        let at = self.model.at;
        let over = self.model.messages.iter().filter(|message| message.is_over(at));
        let over: Vec<KeyName> = over.map(name_of).collect();
        for name in over {
            self.world.run(Command::Look(name));
        }
        for round in 0.. {
            assert!(round < 1_000, "time comes to an end");
            self.tick();
            if self.world.machine.next_deadline().is_none_or(|next| next > at) {
                break;
            }
        }
        self.model.expire(); // Which finds nothing left to do, or the next comparison fails.
    }

    fn compare_state(&mut self) -> Result<(), Differs> {
        let crashed = self.model.crashed;
        let machine: Vec<_> = self.world.machine.queues().collect();
        if machine.len() != self.model.queues.len() {
            return Err(format!("{} queues in the machine", machine.len()));
        }
        for queue in &self.model.queues {
            let found = machine.iter().find(|(name, _)| **name == queue.name);
            let Some((_, said)) = found else {
                return Err(format!("no queue {}", queue.name.queue));
            };
            let mut expected = self.model.stats(queue);
            if crashed && said.stats.duplicate_total <= expected.duplicate_total {
                expected.duplicate_total = said.stats.duplicate_total;
            }
            if expected != said.stats {
                let name = &queue.name.queue;
                let said = said.stats;
                return Err(format!("{name}, machine: {said:?}\n{name},   model: {expected:?}"));
            }
        }
        let relays = self.world.machine.relays();
        let relays: Vec<&Relay> = relays.collect();
        let expected: Vec<&Relay> = self.model.relays.values().collect();
        if relays != expected {
            return Err(format!("relays {relays:?}\n   model {expected:?}"));
        }
        Ok(())
    }

    /// What the op means among the names there are.
    fn command(&mut self, op: &Op) -> Option<Command> {
        Some(match op {
            Op::Configure { queue, config, if_version } => {
                Command::Configure(Box::new(Configure {
                    queue: queue_name(*queue),
                    config: (*config.0).clone(),
                    if_version: *if_version,
                }))
            }
            Op::Delete { queue } => Command::Delete(queue_name(*queue)),
            Op::Pause { queue } => Command::Pause(queue_name(*queue)),
            Op::Resume { queue } => Command::Resume(queue_name(*queue)),
            Op::Purge { queue, keys } => {
                Command::Purge(Purge { queue: queue_name(*queue), keys: *keys })
            }
            Op::Send(sent) => Command::Send(self.send(sent)),
            Op::Claim { sent, lease_ms, worker, id } => {
                let mut claim = self.claim(sent, *lease_ms, *worker);
                claim.claim_id = id.map(|id| text("c", id));
                Command::Claim(Box::new(claim))
            }
            Op::Receive(take) => Command::Receive(Receive {
                queue: queue_name(take.queue),
                max: take.max,
                lease_ms: take.lease_ms,
                worker: text("w", take.worker),
                receive_id: take.receive_id.map(|id| text("r", id)),
                several_per_group: take.several,
            }),
            Op::Settle { lease, verb } => {
                let verb = verb_of(&self.model.recipe(), verb);
                Command::Settle(Settle { lease: self.lease(*lease)?, verb })
            }
            Op::Look(named) => Command::Look(self.named(named)?),
            Op::Browse { queue, place, cursor, limit } => Command::Browse(Browse {
                queue: queue_name(*queue),
                place: *place,
                cursor: *cursor,
                limit: *limit,
            }),
            Op::Show { queue } => Command::Show(queue_name(*queue)),
            Op::Forget(named) => Command::Forget(self.named(named)?),
            Op::Replay { named, content } => self.replay(named, *content)?,
            Op::Discard(named) => Command::Discard(self.named(named)?),
            Op::Resolve { named, done } => {
                let resolution = match done {
                    Some(result) => Resolution::Done(result.map(blob)),
                    None => Resolution::Retry,
                };
                Command::Resolve(Resolve { key: self.named(named)?, resolution })
            }
            Op::Redrive { queue, id, which, dry_run, per_s, check } => {
                let command = self.redrive(*queue, *id, which, *dry_run, *per_s);
                match command {
                    Command::Redrive(redrive) if *check => Command::CheckRedrive(redrive),
                    other => other,
                }
            }
            Op::Progress { queue, id } => {
                Command::RedriveProgress { queue: queue_name(*queue), id: text("j", *id) }
            }
            Op::Cancel { queue, id } => {
                Command::CancelRedrive { queue: queue_name(*queue), id: text("j", *id) }
            }
            Op::Relayed { which, how } => {
                let id = self.model.relays.keys().nth((*which).into());
                let id = id.copied().unwrap_or((*which).into());
                let arrival = match how {
                    Reached::Arrived => Arrival::Arrived,
                    Reached::Later => Arrival::Later,
                    // Never twice for the same reason: the first one stays.
                    Reached::Refused => Arrival::Refused(text("refused", self.model.at.0)),
                };
                Command::Relayed { id, arrival }
            }
            Op::DeadLetter { which } => {
                let mut refused = self.model.relays.values().filter(|it| it.refused.is_some());
                let relay = refused.nth((*which).into())?.clone();
                let error = relay.refused.clone()?;
                Command::DeadLetter(Box::new(DeadLetter {
                    send: relay.into_send(&self.model.recipe()),
                    error,
                }))
            }
            _ => return None,
        })
    }

    fn send(&self, sent: &Sent) -> SendMessage {
        let content = content(sent, &bytes(sent.body));
        let mut send = SendMessage::new(&self.model.recipe(), queue_name(sent.queue), content);
        if let Some(own) = sent.own {
            send.fingerprint = self.model.recipe().own(&text("own", own));
        }
        send.delay_ms = sent.delay_ms;
        send.ttl_ms = sent.ttl_ms;
        send.issued_at = sent.issued_ago_ms.map(|ago| self.ago(ago));
        send.allowance = allowance(sent);
        send
    }

    fn ago(&self, ms: i64) -> Time {
        Time(self.model.at.0.saturating_add_signed(-ms))
    }

    fn claim(&self, sent: &Sent, lease_ms: Option<u64>, worker: u8) -> Claim {
        let content = content(sent, b"");
        let of = self.model.recipe().fingerprint(&bytes(sent.body), content.group());
        let mut claim = Claim::new(&self.model.recipe(), queue_name(sent.queue), content, of);
        claim.lease_ms = lease_ms;
        claim.worker = text("w", worker);
        claim.issued_at = sent.issued_ago_ms.map(|ago| self.ago(ago));
        claim.allowance = allowance(sent);
        claim
    }

    fn replay(&self, named: &Named, body: Option<(u8, bool)>) -> Option<Command> {
        let key = self.named(named)?;
        let body = body.map(|(body, own)| {
            let content = Content::builder(&key.key).group(key.group.as_deref());
            let content = content.build(&bytes(body)).expect("within bounds");
            let fingerprint = self.model.recipe().fingerprint(content.body(), content.group());
            let own = own.then(|| self.model.recipe().own("own0"));
            (content, own.unwrap_or(fingerprint))
        });
        Some(Command::Replay(Replay { key, content: body }))
    }

    fn redrive(
        &self,
        queue: u8,
        id: u8,
        which: &Which,
        dry_run: bool,
        per_s: Option<u32>,
    ) -> Command {
        let (name, id) = (queue_name(queue), text("j", id));
        let select = match which {
            Which::Keys { keys, group } => Select::Keys {
                keys: keys.iter().map(|key| key_name(*key)).collect(),
                group: group.map(|group| text("g", group)),
            },
            Which::Filter { error, group, dead_ago_ms, dead_within_ms } => Select::Filter {
                error_contains: error.map(|error| text("error", error).to_string()),
                group: group.map(|group| text("g", group).to_string()),
                dead_before: dead_ago_ms.map(|ago| Time(self.model.at.0 - ago)),
                dead_after: dead_within_ms.map(|ago| Time(self.model.at.0 - ago)),
            },
            Which::All => Select::All,
        };
        // Two jobs at once over the same messages have no order that the rules would name.
        let busy = self.model.queue(&name.queue).and_then(|queue| {
            queue.jobs.values().find(|job| !job.view.done).map(|job| job.view.id.clone())
        });
        match busy {
            Some(id) if !matches!(select, Select::Keys { .. }) => {
                Command::RedriveProgress { queue: name, id }
            }
            _ => Command::Redrive(Redrive { queue: name, id, select, dry_run, per_s }),
        }
    }

    fn named(&self, named: &Named) -> Option<KeyName> {
        let key = match named.key {
            KeyPick::Key(key) => key_name(key),
            KeyPick::IdOf(number) => {
                let messages = &self.model.messages;
                let message = messages.get(usize::from(number) % messages.len().max(1))?;
                message.id().to_string().into()
            }
        };
        let group = named.group.map(|group| text("g", group));
        Some(KeyName { queue: queue_name(named.queue), key, group })
    }

    fn lease(&self, pick: LeasePick) -> Option<LeaseName> {
        let newest = |number: u8, leases: &[LeaseName]| {
            let place = leases.len().checked_sub(1 + usize::from(number) % leases.len().max(1))?;
            leases.get(place).copied()
        };
        match pick {
            LeasePick::Recent(number) => newest(number, &self.model.leases),
            LeasePick::Held(number) => {
                let held = self.model.messages.iter().filter_map(|message| message.lease());
                let mut held: Vec<LeaseName> = held.collect();
                held.sort_by_key(|lease| lease.fence);
                newest(number, &held)
            }
            LeasePick::Foreign(number) => {
                let mut lease = newest(number / 3, &self.model.leases)?;
                match number % 3 {
                    0 => lease.fence = Fence(lease.fence.0 + 1_000),
                    1 => lease.seq += 1,
                    _ => lease.digest = Digest([number; 16]),
                }
                Some(lease)
            }
        }
    }
}

/// Browsing what is in the rows alone, in another order than asked for, shows a part.
fn is_partial(command: &Command, model: &Model) -> bool {
    let Command::Browse(browse) = command else { return false };
    let queue = model.queue(&browse.queue.queue);
    let grouped = queue.is_some_and(|queue| queue.config.order == Order::Group);
    browse.place == Place::Delayed || browse.place == Place::Ready && grouped
}

fn name_of(message: &super::state::Message) -> KeyName {
    let unnamed = (message.queue.clone(), None, message.id().to_string());
    name_of_scope(message.scope.as_ref().unwrap_or(&unnamed))
}

fn name_of_scope((queue, group, key): &Scope) -> KeyName {
    KeyName {
        queue: QueueName::new(TENANT, queue).expect("a name"),
        key: key.as_str().into(),
        group: group.as_deref().map(Into::into),
    }
}

pub(crate) fn queue_name(queue: u8) -> QueueName {
    QueueName::new(TENANT, &text("q", queue)).expect("a name")
}

/// The last key is dated, at the time when all cases start.
fn key_name(key: u8) -> Arc<str> {
    match key {
        4 => MessageId::new(Time(START), 9, 1).to_string().into(),
        key => text("k", key),
    }
}

fn text(prefix: &str, number: impl std::fmt::Display) -> Arc<str> {
    format!("{prefix}{number}").into()
}

fn bytes(number: u8) -> Vec<u8> {
    b"bodies"[..4].iter().copied().chain(vec![b'0' + number; usize::from(number) + 1]).collect()
}

fn content(sent: &Sent, body: &[u8]) -> Arc<Content> {
    let key = sent.key.map_or_else(|| "".into(), key_name);
    let group = sent.group.map(|group| text("g", group));
    let builder = Content::builder(&key).group(group.as_deref());
    let content_type = sent.content_type.then_some("text/plain");
    builder.content_type(content_type).build(body).expect("within bounds")
}

fn blob(number: u8) -> Blob {
    let content_type = (number == 1).then(|| "text/plain".into());
    Blob { content_type, body: Bytes::from(vec![b'r'; usize::from(number) * 4]) }
}

fn verb_of(recipe: &Recipe, verb: &Do) -> Verb {
    match verb {
        Do::Done { result, emits } => {
            let emits = emits.iter().map(|emit| {
                let key = emit.key.map_or_else(|| "".into(), key_name);
                let body = bytes(emit.body);
                let content = Content::builder(&key).build(&body).expect("within bounds");
                let name = text("emit", emit.name);
                Emit {
                    ttl_ms: emit.ttl_ms.filter(|ttl| *ttl > 0),
                    fingerprint: emit.own.map(|own| recipe.own(&text("own", own))),
                    ..Emit::new(queue_name(emit.queue), &name, content)
                }
            });
            Verb::Done { result: result.map(blob), emits: emits.collect() }
        }
        Do::Fail { error, delay_ms, dead } => Verb::Fail {
            error: text("error", *error).to_string(),
            delay_ms: *delay_ms,
            dead: *dead,
        },
        Do::Release => Verb::Release,
        Do::Park { error, delay_ms, dead } => Verb::Park {
            error: text("error", *error).to_string(),
            delay_ms: *delay_ms,
            dead: *dead,
        },
        Do::Extend { lease_ms } => Verb::Extend { lease_ms: *lease_ms },
        Do::Begin => Verb::Begin,
        Do::Save { name, data } => {
            let size = if *name == 3 { limits::RECOVERY_POINTS_BYTES_MAX } else { 3 };
            let name = if *name == 2 { String::new() } else { text("p", *name).to_string() };
            Verb::Save { name, data: Bytes::from(vec![*data; size]) }
        }
    }
}

/// Compares two answers but for what is soft: after a crash, duplicates may be counted lower.
fn compare(
    expected: &Outcome,
    said: &Outcome,
    crashed: bool,
    partial: bool,
) -> Result<(), Differs> {
    let (mut expected, mut said) = (expected.clone(), said.clone());
    if partial {
        only_those_of(&mut expected, &mut said);
    }
    let agree = |more: &mut u64, fewer: u64| {
        if crashed && fewer <= *more {
            *more = fewer;
        }
    };
    match (&mut expected, &mut said) {
        (Outcome::Key(expected), Outcome::Key(said)) => {
            agree(&mut expected.record.duplicates, said.record.duplicates);
            without_duplicates(said);
        }
        (
            Outcome::Messages { messages: expected, .. },
            Outcome::Messages { messages: said, .. },
        ) => {
            for (expected, said) in expected.iter_mut().zip(said) {
                agree(&mut expected.record.duplicates, said.record.duplicates);
                without_duplicates(said);
            }
        }
        (Outcome::Queue(expected), Outcome::Queue(said)) => {
            let said = said.stats.duplicate_total;
            agree(&mut expected.stats.duplicate_total, said);
        }
        _ => {}
    }
    if expected == said {
        return Ok(());
    }
    Err(format!("machine: {said:?}\n  model: {expected:?}"))
}

fn without_duplicates(view: &mut KeyView) {
    view.history.retain(|event| event.what != What::Duplicate);
    view.record.history.retain(|event| event.what != What::Duplicate);
}

/// Leaves of the expected page what was said, as long as all of it was expected.
fn only_those_of(expected: &mut Outcome, said: &mut Outcome) {
    if let (
        Outcome::Messages { messages: expected, next },
        Outcome::Messages { messages: said, next: said_next },
    ) = (expected, said)
    {
        expected.retain(|view| said.iter().any(|said| said.id == view.id));
        let last = expected.last().map(|view| view.id);
        said.truncate(said.iter().position(|view| Some(view.id) == last).map_or(0, |at| at + 1));
        *next = None;
        *said_next = None;
    }
}

fn allowance(sent: &Sent) -> Allowance {
    let used_up = Allowance::UsedUp { quota: Quota::TenantRate, retry_after_ms: 7 };
    if sent.used_up { used_up } else { Allowance::Queue }
}
