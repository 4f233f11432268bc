//! Scripts: one line per command, the last column its answer.
//!
//! ```text
//! queue  orders  retention=48h
//! send   k1 a                   => accepted ready
//! receive w1 10                 => k1#1
//! settle k1 done result=x       => ok done
//! ```
//!
//! A line without an answer must merely not be refused. A line that begins with `&` follows the
//! line before it at once: nothing expires and nothing crashes in between. Every script is run in
//! every [`Mode`], and must get the same answers in each.
//!
//! Messages are told as `key#attempt`, with `g1` behind it in the first generation after a replay,
//! `=` where the lease was handed out before, and the recovery points in braces. A message without
//! a key is told by its body. `settle k1` settles under the newest lease that the script saw, and
//! `settle k1@w1` under the newest that w1 got.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::*;

use super::speak;
use super::words::{Words, config, duration, expand};
use crate::support::{START, World, recipe};

/// What happens after every line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    /// The process dies.
    Crash,
    /// The process dies, and every decision is applied twice.
    Twice,
    /// Everything is written to the rows.
    Checkpoint,
    /// Everything is written to the rows, and memory left to them.
    Evict,
    /// A checkpoint is begun, and is in the rows a line later.
    Frozen,
    /// A checkpoint is begun, and lost in a crash a line later.
    Abandoned,
    /// Everything is written to the rows and read from them alone.
    Cold,
    /// The same, and few things are done at once.
    Few,
}

pub(crate) const MODES: [Mode; 9] = [
    Mode::Plain,
    Mode::Crash,
    Mode::Twice,
    Mode::Checkpoint,
    Mode::Evict,
    Mode::Frozen,
    Mode::Abandoned,
    Mode::Cold,
    Mode::Few,
];

/// Modes in which the process lives on: for counts that are kept in memory alone.
pub(crate) const ALIVE: [Mode; 4] = [Mode::Plain, Mode::Checkpoint, Mode::Evict, Mode::Frozen];

/// Runs the script in every mode.
pub(crate) fn check(script: &str) {
    check_in(&MODES, script);
}

pub(crate) fn check_in(modes: &[Mode], script: &str) {
    for mode in modes {
        Run::new(*mode).script(script);
    }
}

/// The world after a script that is not about its answers.
pub(crate) fn after(script: &str) -> World {
    after_in(recipe(), script)
}

/// The same in data of this recipe.
pub(crate) fn after_in(recipe: Recipe, script: &str) -> World {
    let mut run = Run::new(Mode::Plain);
    run.world = World::with(recipe, Bounds::default());
    run.script(script);
    run.world
}

/// What a world answers to one line.
pub(crate) fn say_to(world: &mut World, line: &str) -> String {
    let mut run = Run::new(Mode::Plain);
    std::mem::swap(&mut run.world, world);
    let answer = run.say(line.trim(), false);
    std::mem::swap(&mut run.world, world);
    answer
}

struct Run {
    world: World,
    mode: Mode,
    queue: String,
    /// Queues that deduplicate per group.
    scoped: BTreeSet<String>,
    leases: BTreeMap<String, LeaseName>,
    fences: BTreeSet<Fence>,
    /// The id every key was accepted under.
    ids: BTreeMap<String, MessageId>,
    full: bool,
    steps: usize,
}

impl Run {
    fn new(mode: Mode) -> Self {
        let few = Bounds {
            expire_step: 2,
            job_step: 2,
            refill: 2,
            groups_at_once: 1,
            index_places: 4,
            ..Bounds::default()
        };
        let bounds = if mode == Mode::Few { few } else { Bounds::default() };
        Self {
            world: World::with_bounds(bounds),
            mode,
            queue: "orders".into(),
            scoped: BTreeSet::new(),
            leases: BTreeMap::new(),
            fences: BTreeSet::new(),
            ids: BTreeMap::new(),
            full: false,
            steps: 0,
        }
    }

    fn script(&mut self, script: &str) {
        let lines = joined(script);
        let mut told = String::new();
        for (place, line) in lines.iter().enumerate() {
            let (said, expected) = match line.split_once("=>") {
                Some((said, expected)) => (said, Some(expand(expected.trim()))),
                None => (line.as_str(), None),
            };
            let joins = |line: &&String| line.trim_start().starts_with('&');
            let is_followed = lines.get(place + 1).filter(joins).is_some();
            let in_detail = expected.as_ref().is_some_and(|text| text.contains("in="));
            let answer = self.say(said.trim().trim_start_matches('&'), in_detail);
            let fits = match &expected {
                Some(expected) => answer == *expected,
                None => !speak::is_refusal(&answer),
            };
            told += &format!("{} {line}\n", if fits { " " } else { "✗" });
            if !fits {
                told += &format!("  {:width$}=> {answer}\n", "", width = said.chars().count());
                told += &lines.get(place + 1..).unwrap_or_default().join("\n  ");
                panic!("in the mode {:?}:\n{told}\n", self.mode);
            }
            if !is_followed {
                self.afterwards();
            }
        }
    }

    /// What the mode asks for after a line, and what is due.
    fn afterwards(&mut self) {
        self.steps += 1;
        let world = &mut self.world;
        match (self.mode, self.steps % 2 == 1) {
            (Mode::Plain, _) => {}
            (Mode::Crash, _) => world.crash(),
            (Mode::Twice, _) => world.crash_and_apply_twice(),
            (Mode::Checkpoint, _) => world.checkpoint(),
            (Mode::Evict, _) => {
                world.checkpoint();
                world.evict_keeping(1);
            }
            (Mode::Frozen | Mode::Abandoned, true) => world.begin_checkpoint(),
            (Mode::Frozen, false) => world.finish_checkpoint(),
            (Mode::Abandoned, false) => world.crash(),
            (Mode::Cold | Mode::Few, _) => {
                world.checkpoint();
                world.evict_keeping(1);
                world.crash();
            }
        }
        world.machine.set_store_full(self.full);
        world.wait(0);
    }

    fn say(&mut self, line: &str, in_detail: bool) -> String {
        let mut words = Words::new(line);
        match words.queue.take() {
            Some(named) => {
                let before = std::mem::replace(&mut self.queue, named);
                let answer = self.answer(words, in_detail);
                self.queue = before;
                answer
            }
            None => self.answer(words, in_detail),
        }
    }

    fn answer(&mut self, mut words: Words, in_detail: bool) -> String {
        let verb = words.next();
        let now = self.world.at;
        let outcome = match verb.as_str() {
            "wait" => {
                self.world.wait(duration(&words.next()));
                return "ok".into();
            }
            "later" => {
                self.world.at = self.world.at.plus(duration(&words.next()));
                return "ok".into();
            }
            "crash" | "checkpoint" | "evict" | "store" | "random" => {
                return self.happen(&verb, &mut words);
            }
            "relays" => return self.relays(),
            "relay" => return self.relay(&mut words),
            "batch" => return self.batch(&mut words),
            "send" => {
                let send = self.send(&mut words);
                let (queue, content) = (send.queue.clone(), Arc::clone(&send.content));
                let outcome = self.world.run(Command::Send(send));
                return self.told_of_key(&queue, &content, &outcome, now, in_detail);
            }
            "claim" => {
                let claim = self.claim(&mut words);
                let (queue, content) = (claim.queue.clone(), Arc::clone(&claim.content));
                let outcome = self.world.run(Command::Claim(Box::new(claim)));
                return self.told_of_key(&queue, &content, &outcome, now, in_detail);
            }
            "receive" => return self.receive(&mut words),
            "settle" => {
                let settle = self.settle(&mut words);
                self.world.run(Command::Settle(settle))
            }
            _ => {
                let command = self.administrative(&verb, &mut words);
                self.world.run(command)
            }
        };
        speak::outcome(&outcome, &words.rest(), now, in_detail)
    }

    fn happen(&mut self, verb: &str, words: &mut Words) -> String {
        match verb {
            "crash" => self.world.crash(),
            "checkpoint" => {
                self.world.finish_checkpoint();
                self.world.checkpoint();
            }
            "evict" => {
                self.world.finish_checkpoint();
                self.world.evict_keeping(1);
            }
            "random" => self.world.random = words.next().parse().unwrap(),
            _ => self.full = words.next() == "full",
        }
        self.world.machine.set_store_full(self.full);
        "ok".into()
    }

    fn name(&self) -> QueueName {
        name(&self.queue)
    }

    fn key(&self, words: &mut Words) -> KeyName {
        let group = words.option("group").map(|group| group.as_str().into());
        KeyName { queue: self.name(), key: words.next().as_str().into(), group }
    }

    fn administrative(&mut self, verb: &str, words: &mut Words) -> Command {
        match verb {
            "queue" => {
                self.queue = words.next();
                let queue = self.name();
                let (config, if_version) = config(words);
                if config.dedup_scope == DedupScope::Group {
                    self.scoped.insert(self.queue.clone());
                }
                Command::Configure(Box::new(Configure { queue, config, if_version }))
            }
            "delete" => Command::Delete(self.name()),
            "pause" => Command::Pause(self.name()),
            "resume" => Command::Resume(self.name()),
            "purge" => Command::Purge(Purge { queue: self.name(), keys: words.flag("keys") }),
            "show" => Command::Show(self.name()),
            "look" => Command::Look(self.key(words)),
            "forget" => Command::Forget(self.key(words)),
            "discard" => Command::Discard(self.key(words)),
            "browse" => {
                let place = words.next();
                let place = Place::ALL.into_iter().find(|known| known.as_str() == place);
                let limit = words.option("limit").map_or(100, |limit| limit.parse().unwrap());
                let cursor = words.option("after").map(|cursor| cursor.parse().unwrap());
                Command::Browse(Browse { queue: self.name(), place: place.unwrap(), cursor, limit })
            }
            "replay" => {
                let group = words.option("group");
                let own = words.option("fp");
                let key = words.next();
                let content = words.peek().map(|body| {
                    let content = Content::builder(&key).group(group.as_deref());
                    let content = content.build(body.as_bytes()).unwrap();
                    let fingerprint = own.as_deref().map_or_else(
                        || self.world.recipe.fingerprint(content.body(), content.group()),
                        |own| self.world.recipe.own(own),
                    );
                    (content, fingerprint)
                });
                let group = group.as_deref().map(Into::into);
                let key = KeyName { queue: self.name(), key: key.as_str().into(), group };
                Command::Replay(Replay { key, content })
            }
            "resolve" => {
                let key = self.key(words);
                let resolution = match words.next().as_str() {
                    "done" => Resolution::Done(words.peek().map(|body| blob(&body))),
                    _ => Resolution::Retry,
                };
                Command::Resolve(Resolve { key, resolution })
            }
            "redrive" if words.flag("check") => Command::CheckRedrive(self.redrive(words)),
            "redrive" => Command::Redrive(self.redrive(words)),
            "redriven" => {
                let id = words.next().as_str().into();
                Command::RedriveProgress { queue: self.name(), id }
            }
            "cancel" => {
                let id = words.next().as_str().into();
                Command::CancelRedrive { queue: self.name(), id }
            }
            other => panic!("no such command: {other}"),
        }
    }

    fn redrive(&self, words: &mut Words) -> Redrive {
        let id = words.next().as_str().into();
        let per_s = words.option("rate").map(|rate| rate.parse().unwrap());
        let dry_run = words.flag("dry");
        let keys = words.option("keys");
        let all = words.flag("all");
        let select = match keys {
            Some(keys) => Select::Keys {
                keys: keys.split(',').filter(|key| !key.is_empty()).map(Into::into).collect(),
                group: words.option("group").as_deref().map(Into::into),
            },
            None if all => Select::All,
            None => Select::Filter {
                error_contains: words.option("error"),
                group: words.option("group"),
                dead_before: words.option("before").map(|ago| self.time(&ago)),
                dead_after: words.option("after").map(|ago| self.time(&ago)),
            },
        };
        Redrive { queue: self.name(), id, select, dry_run, per_s }
    }

    /// A time told as `-8d` or `+1h` from now.
    fn time(&self, text: &str) -> Time {
        match text.strip_prefix('-') {
            Some(ago) => Time(self.world.at.0 - duration(ago)),
            None => self.world.at.plus(duration(text.trim_start_matches('+'))),
        }
    }

    fn send(&self, words: &mut Words) -> SendMessage {
        let key = words.next();
        let body = words.next();
        self.send_of(&key, &body, words)
    }

    fn send_of(&self, key: &str, body: &str, words: &mut Words) -> SendMessage {
        let (group, content_type) = (words.option("group"), words.option("type"));
        let content = Content::builder(if key == "-" { "" } else { key })
            .group(group.as_deref())
            .content_type(content_type.as_deref());
        let content = content.build(body.as_bytes()).unwrap();
        let mut send = SendMessage::new(&self.world.recipe, self.name(), content);
        if let Some(own) = words.option("fp") {
            send.fingerprint = self.world.recipe.own(&own);
        }
        send.delay_ms = words.option("delay").map(|delay| duration(&delay));
        send.ttl_ms = words.option("ttl").map(|ttl| duration(&ttl));
        send.issued_at = words.option("issued").map(|issued| self.time(&issued));
        send
    }

    /// Many sends in one batch: `batch k1:a k2:b`.
    fn batch(&mut self, words: &mut Words) -> String {
        let mut sends = Vec::new();
        while let Some(word) = words.peek() {
            words.next();
            let (key, body) = word.split_once(':').unwrap();
            sends.push(self.send_of(key, body, &mut Words::new("")));
        }
        let contents: Vec<_> = sends.iter().map(|send| Arc::clone(&send.content)).collect();
        let queue = self.name();
        let outcomes = self.world.run_all(sends.into_iter().map(Command::Send).collect());
        let told = contents.iter().zip(&outcomes).map(|(content, outcome)| {
            self.told_of_key(&queue, content, outcome, Time(START), false)
        });
        told.collect::<Vec<_>>().join(" | ")
    }

    fn claim(&self, words: &mut Words) -> Claim {
        let group = words.option("group");
        let key = words.next();
        let content = Content::builder(if key == "-" { "" } else { &key }).group(group.as_deref());
        let fingerprint = self.world.recipe.own(&words.next());
        let mut claim =
            Claim::new(&self.world.recipe, self.name(), content.build(b"").unwrap(), fingerprint);
        claim.worker = words.option("by").unwrap_or_default().as_str().into();
        claim.lease_ms = words.option("lease").map(|lease| duration(&lease));
        claim.issued_at = words.option("issued").map(|issued| self.time(&issued));
        claim.claim_id = words.option("id").map(|id| id.as_str().into());
        claim
    }

    /// Checks that a key keeps its id, and remembers a claim's lease.
    fn told_of_key(
        &mut self,
        queue: &QueueName,
        content: &Content,
        outcome: &Outcome,
        now: Time,
        in_detail: bool,
    ) -> String {
        let (Outcome::Sent(answer) | Outcome::Claimed(answer)) = outcome else {
            panic!("a send or a claim gets an answer, not {outcome:?}");
        };
        let mut told = speak::answer(answer, now, in_detail);
        if content.key().is_empty() {
            return told;
        }
        let group = content.group().filter(|_| self.scoped.contains(&self.queue));
        let scope = format!("{}/{}/{group:?}", queue.tenant, queue.queue);
        let name = format!("{scope}/{}", content.key());
        if let Answer::Fresh(fresh) = answer {
            self.hold(content.key(), "", fresh.lease);
        }
        if let Some(id) = speak::id(answer) {
            let is_new = matches!(answer, Answer::Accepted { .. } | Answer::Fresh(_));
            match self.ids.insert(name, id) {
                Some(before) if before == id && is_new => told += " again",
                Some(before) if before != id && !is_new => told += " under another id",
                None if !is_new => told += " under an id nobody was given",
                _ => {}
            }
        }
        told
    }

    /// Remembers a lease under its names. True where it was handed out before.
    fn hold(&mut self, key: &str, worker: &str, lease: LeaseName) -> bool {
        self.leases.insert(key.to_owned(), lease);
        self.leases.insert(format!("{key}@{worker}"), lease);
        let newest = self.fences.last().copied();
        let is_new = self.fences.insert(lease.fence);
        assert!(!is_new || newest.is_none_or(|newest| newest < lease.fence), "fences grow");
        !is_new
    }

    fn receive(&mut self, words: &mut Words) -> String {
        let worker = words.next();
        let receive = Receive {
            queue: self.name(),
            max: words.next().parse().unwrap(),
            lease_ms: words.option("lease").map(|lease| duration(&lease)),
            worker: worker.as_str().into(),
            receive_id: words.option("id").map(|id| id.as_str().into()),
            several_per_group: words.flag("several"),
        };
        let deliveries = match self.world.run(Command::Receive(receive)) {
            Outcome::Received(deliveries) => deliveries,
            other => return speak::outcome(&other, &[], self.world.at, false),
        };
        let told = deliveries.iter().map(|delivery| {
            let body = String::from_utf8_lossy(delivery.content.body()).into_owned();
            let key = Some(delivery.content.key()).filter(|key| !key.is_empty());
            let key = key.map_or_else(|| format!("-{body}"), ToOwned::to_owned);
            let before = self.hold(&key, &worker, delivery.lease);
            speak::delivery(&key, delivery, before)
        });
        let told = told.collect::<Vec<_>>().join(" ");
        if told.is_empty() { "none".into() } else { told }
    }

    fn settle(&self, words: &mut Words) -> Settle {
        let named = words.next();
        let held = self.leases.get(&named);
        let lease = *held.unwrap_or_else(|| panic!("nobody holds {named}"));
        let lease_ms = words.option("lease").map(|lease| duration(&lease));
        let verb = match words.next().as_str() {
            "done" => {
                let result = words.option("result").map(|body| blob(&body));
                let mut emits = Vec::new();
                while let Some(emit) = words.option("emit") {
                    emits.push(self.emit(&emit));
                }
                Verb::Done { result, emits }
            }
            "fail" => Verb::Fail {
                error: words.option("error").unwrap_or_else(|| "boom".into()),
                delay_ms: words.option("delay").map(|delay| duration(&delay)),
                dead: words.flag("dead"),
            },
            "release" => Verb::Release,
            "park" => Verb::Park {
                error: words.option("error").unwrap_or_else(|| "doubt".into()),
                delay_ms: words.option("delay").map(|delay| duration(&delay)),
                dead: words.flag("dead"),
            },
            "extend" => Verb::Extend { lease_ms },
            "begin" => Verb::Begin,
            "save" => {
                let name = words.next();
                let data = words.next().into_bytes().into();
                Verb::Save { name: if name == "-" { String::new() } else { name }, data }
            }
            other => panic!("no such settlement: {other}"),
        };
        Settle { lease, verb }
    }

    /// `queue:name:body:key:delay:ttl:fingerprint`, or as many of them from the front.
    fn emit(&self, text: &str) -> Emit {
        let parts: Vec<&str> = text.split(':').collect();
        let key = parts.get(3).copied().unwrap_or_default();
        let content = Content::builder(key).build(parts[2].as_bytes()).unwrap();
        let given = |place: usize| parts.get(place).filter(|part| !part.is_empty());
        Emit {
            delay_ms: given(4).map(|delay| duration(delay)),
            ttl_ms: given(5).map(|ttl| duration(ttl)),
            fingerprint: given(6).map(|own| self.world.recipe.own(own)),
            ..Emit::new(name(parts[0]), parts[1], content)
        }
    }

    /// Emits that wait for their queues.
    fn relays(&self) -> String {
        let told = self.world.machine.relays().map(|relay| {
            let content = &relay.emit.content;
            let body = String::from_utf8_lossy(content.body());
            let tries = relay.attempts;
            let refused = relay.refused.as_ref().map_or("", |_| " refused");
            let queue = &relay.emit.queue.queue;
            format!("{queue} {} {body} tries={tries}{refused}", content.key())
        });
        let told = told.collect::<Vec<_>>().join(" ; ");
        if told.is_empty() { "none".into() } else { told }
    }

    /// The first emit that waits is handed to its queue, with or without a confirmation, or is not.
    fn relay(&mut self, words: &mut Words) -> String {
        let relay = self.world.machine.relays().next().cloned().unwrap();
        let how = words.next();
        let mut answer = "ok".to_owned();
        let mut arrival = Arrival::Later;
        if how != "failed" {
            let send = relay.clone().into_send(&self.world.recipe);
            let outcome = self.world.run(match relay.refused {
                Some(error) => Command::DeadLetter(Box::new(DeadLetter { send, error })),
                None => Command::Send(send),
            });
            let Outcome::Sent(sent) = outcome else { panic!("a send gets an answer") };
            answer = speak::answer(&sent, self.world.at, false);
            arrival = Arrival::of(&sent);
        }
        if how != "unconfirmed" {
            self.world.run(Command::Relayed { id: relay.id, arrival });
        }
        answer
    }
}

/// The lines of a script. One that begins with `=>`, `|`, `;` or `,` goes on with the one before.
fn joined(script: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in script.lines().filter(|line| !line.trim().is_empty()) {
        let goes_on = line.trim_start().starts_with(['=', '|', ';', ',']);
        match lines.last_mut().filter(|_| goes_on) {
            Some(before) if line.trim_start().starts_with(',') => *before += line.trim(),
            Some(before) => *before = format!("{before} {}", line.trim()),
            None => lines.push(line.to_owned()),
        }
    }
    lines
}

pub(crate) fn name(text: &str) -> QueueName {
    let (tenant, queue) = text.split_once('/').unwrap_or(("default", text));
    QueueName::new(tenant, queue).unwrap()
}

pub(crate) fn blob(body: &str) -> Blob {
    Blob { content_type: None, body: Bytes::copy_from_slice(body.as_bytes()) }
}
