//! The requests of clients, as the checker sees them, and their commands.

use std::sync::Arc;

use hapax_core::{
    Arrival, Claim, Command, Config, Configure, Content, DeadLetter, Emit, Fence, KeyName,
    LeaseName, MessageId, Purge, Receive, Redrive, Replay, Resolution, Resolve, Select,
    SendMessage, Settle, Time, Verb,
};

use crate::scene::{Item, ItemId, Scene, Variant, point_of, result_of};

/// A lease as its holder knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub item: ItemId,
    pub name: LeaseName,
    pub id: MessageId,
    pub generation: u32,
}

impl Held {
    pub fn fence(&self) -> Fence {
        self.name.fence
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "item {} fence {}", self.item, self.fence().0)
    }
}

/// One request of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Creates the queue, or changes its rules.
    Configure {
        queue: usize,
        config: Box<Config>,
    },
    /// Takes over what the leading partition decided: a step of a change, never a request.
    Follow {
        queue: usize,
        config: Box<Config>,
    },
    Delete {
        queue: usize,
    },
    Send {
        item: ItemId,
        variant: Variant,
    },
    Claim {
        item: ItemId,
        variant: Variant,
        lease_ms: u64,
        /// Names the claim, so that it may be repeated.
        id: Option<u64>,
    },
    Receive {
        queue: usize,
        max: u32,
        lease_ms: Option<u64>,
        id: Option<u64>,
        several: bool,
        patience: Patience,
    },
    Settle {
        held: Held,
        how: How,
    },
    Look {
        item: ItemId,
    },
    Forget {
        item: ItemId,
    },
    Replay {
        item: ItemId,
        variant: Variant,
    },
    Discard {
        item: ItemId,
    },
    /// By the id of the message, if it has no key.
    Resolve {
        item: ItemId,
        done: bool,
        id: Option<MessageId>,
    },
    /// By keys if items are given, else all of the queue.
    Redrive {
        queue: usize,
        id: u64,
        items: Vec<ItemId>,
    },
    Purge {
        queue: usize,
        keys: bool,
    },
    Pause {
        queue: usize,
        paused: bool,
    },
    /// Sends an emit to its queue, as a dead letter if the queue refused it.
    Emit(Emitted),
    /// Confirms an emit to its list.
    Relayed {
        id: u64,
        arrival: Arrival,
    },
    Show {
        queue: usize,
    },
}

/// An emit in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The partition that emitted it, and its number there.
    pub from: usize,
    pub id: u64,
    pub item: ItemId,
    pub issued_at: Time,
    /// Why its queue refused it for good.
    pub refused: Option<Arc<str>>,
}

/// What the caller of a receive does if there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Goes away.
    None,
    /// Waits until it is called.
    Waits,
    /// Waited, and was called.
    Called,
}

/// How a lease is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// With items to be emitted.
    Done(Vec<ItemId>),
    Fail {
        delay_ms: Option<u64>,
        dead: bool,
    },
    Release,
    /// In doubt whether the effect happened.
    Park {
        dead: bool,
    },
    Extend {
        lease_ms: u64,
    },
    Begin,
    Save(&'static str),
}

/// The names of recovery points.
pub const POINTS: [&str; 3] = ["charged", "mailed", "stored"];

impl Op {
    /// The queue that it concerns.
    pub fn queue(&self, items: &[Item]) -> Option<usize> {
        let of = |item: &ItemId| items.get(*item).map(|item| item.queue);
        match self {
            Self::Configure { queue, .. }
            | Self::Follow { queue, .. }
            | Self::Delete { queue }
            | Self::Receive { queue, .. }
            | Self::Redrive { queue, .. }
            | Self::Purge { queue, .. }
            | Self::Pause { queue, .. }
            | Self::Show { queue } => Some(*queue),
            Self::Send { item, .. }
            | Self::Claim { item, .. }
            | Self::Look { item }
            | Self::Forget { item }
            | Self::Replay { item, .. }
            | Self::Discard { item }
            | Self::Resolve { item, .. } => of(item),
            Self::Settle { held, .. } => of(&held.item),
            Self::Emit(emitted) => of(&emitted.item),
            Self::Relayed { .. } => None,
        }
    }

    /// Whether the process that owns the partition does it by itself, for the emits of its list.
    /// The next owner sends them again: a confirmation of the earlier one's would be taken for one
    /// of its own, and a second refusal for that of the dead letter.
    pub fn is_of_owner(&self) -> bool {
        matches!(self, Self::Emit(_) | Self::Relayed { .. })
    }

    pub fn command(&self, scene: &Scene, items: &[Item]) -> Command {
        let maker = Maker { scene, items };
        match self {
            Self::Configure { queue, config } => Command::Configure(Box::new(Configure {
                queue: maker.queue(*queue),
                config: (**config).clone(),
                if_version: None,
            })),
            Self::Follow { .. } => unreachable!("followers are told by the change itself"),
            Self::Delete { queue } => Command::Delete(maker.queue(*queue)),
            Self::Send { item, variant } => maker.send(*item, *variant),
            Self::Claim { item, variant, lease_ms, id } => {
                maker.claim(*item, *variant, *lease_ms, *id)
            }
            Self::Receive { queue, max, lease_ms, id, several, .. } => Command::Receive(Receive {
                queue: maker.queue(*queue),
                max: *max,
                lease_ms: *lease_ms,
                worker: "worker".into(),
                receive_id: id.map(|id| format!("receive-{id}").into()),
                several_per_group: *several,
            }),
            Self::Settle { held, how } => {
                Command::Settle(Settle { lease: held.name, verb: maker.verb(held, how) })
            }
            Self::Look { item } => Command::Look(maker.key(*item)),
            Self::Forget { item } => Command::Forget(maker.key(*item)),
            Self::Replay { item, variant } => maker.replay(*item, *variant),
            Self::Discard { item } => Command::Discard(maker.key(*item)),
            Self::Resolve { item, done, id } => {
                let resolution = match done {
                    true => Resolution::Done(result_of(maker.item(*item), Fence(1))),
                    false => Resolution::Retry,
                };
                let key = id.map_or_else(|| maker.key(*item), |id| maker.named(*item, id));
                Command::Resolve(Resolve { key, resolution })
            }
            Self::Redrive { queue, id, items } => Command::Redrive(Redrive {
                queue: maker.queue(*queue),
                id: format!("redrive-{id}").into(),
                select: match items.is_empty() {
                    true => Select::All,
                    false => Select::Keys {
                        keys: items.iter().map(|item| maker.key(*item).key).collect(),
                        group: items.first().and_then(|item| maker.key(*item).group),
                    },
                },
                dry_run: false,
                per_s: None,
            }),
            Self::Purge { queue, keys } => {
                Command::Purge(Purge { queue: maker.queue(*queue), keys: *keys })
            }
            Self::Pause { queue, paused: true } => Command::Pause(maker.queue(*queue)),
            Self::Pause { queue, paused: false } => Command::Resume(maker.queue(*queue)),
            Self::Emit(emitted) => maker.emitted(emitted),
            Self::Relayed { id, arrival } => Command::Relayed { id: *id, arrival: arrival.clone() },
            Self::Show { queue } => Command::Show(maker.queue(*queue)),
        }
    }
}

#[derive(Clone, Copy)]
struct Maker<'a> {
    scene: &'a Scene,
    items: &'a [Item],
}

impl<'a> Maker<'a> {
    fn item(&self, item: ItemId) -> &'a Item {
        let Some(item) = self.items.get(item) else { unreachable!("ops name items that exist") };
        item
    }

    fn spec(&self, queue: usize) -> &'a crate::scene::QueueSpec {
        let Some(spec) = self.scene.queues.get(queue) else { unreachable!("queues exist") };
        spec
    }

    fn recipe(&self) -> &'a hapax_core::Recipe {
        &self.scene.partition.recipe
    }

    fn queue(&self, queue: usize) -> hapax_core::QueueName {
        self.spec(queue).name.clone()
    }

    fn key(&self, item: ItemId) -> KeyName {
        let item = self.item(item);
        KeyName {
            queue: self.queue(item.queue),
            key: Arc::clone(&item.key),
            group: item.group.clone(),
        }
    }

    /// The name of an item: its key, or the id if it has none.
    fn named(&self, item: ItemId, id: MessageId) -> KeyName {
        KeyName { key: id.to_string().into(), ..self.key(item) }
    }

    fn content(&self, item: ItemId, variant: Variant) -> Arc<Content> {
        let item = self.item(item);
        item.content(variant, self.spec(item.queue).config.dedup_scope)
    }

    fn send(&self, id: ItemId, variant: Variant) -> Command {
        let item = self.item(id);
        let send =
            SendMessage::new(self.recipe(), self.queue(item.queue), self.content(id, variant));
        Command::Send(SendMessage {
            delay_ms: item.delay_ms,
            ttl_ms: item.ttl_ms,
            issued_at: item.issued_at,
            ..send
        })
    }

    fn emitted(&self, emitted: &Emitted) -> Command {
        let item = self.item(emitted.item);
        let send =
            SendMessage::new(self.recipe(), self.queue(item.queue), self.content(emitted.item, 0));
        let issued_at = Some(emitted.issued_at);
        let send = SendMessage { delay_ms: item.delay_ms, ttl_ms: item.ttl_ms, issued_at, ..send };
        match &emitted.refused {
            Some(error) => {
                Command::DeadLetter(Box::new(DeadLetter { send, error: Arc::clone(error) }))
            }
            None => Command::Send(send),
        }
    }

    fn claim(&self, id: ItemId, variant: Variant, lease_ms: u64, claim_id: Option<u64>) -> Command {
        let item = self.item(id);
        let scope = self.spec(item.queue).config.dedup_scope;
        let claim = Claim::new(
            self.recipe(),
            self.queue(item.queue),
            self.content(id, variant),
            item.fingerprint(self.recipe(), variant, scope),
        );
        let worker = "claimer".into();
        let lease_ms = Some(lease_ms);
        let claim_id = claim_id.map(|id| format!("claim-{id}").into());
        Command::Claim(Box::new(Claim {
            lease_ms,
            worker,
            issued_at: item.issued_at,
            claim_id,
            ..claim
        }))
    }

    fn replay(&self, id: ItemId, variant: Variant) -> Command {
        let item = self.item(id);
        let scope = self.spec(item.queue).config.dedup_scope;
        let fingerprint = item.fingerprint(self.recipe(), variant, scope);
        let content = (self.content(id, variant), fingerprint);
        Command::Replay(Replay { key: self.key(id), content: Some(content) })
    }

    fn verb(&self, held: &Held, how: &How) -> Verb {
        let item = self.item(held.item);
        match how {
            How::Done(emits) => Verb::Done {
                result: result_of(item, held.fence()),
                emits: emits.iter().map(|emit| self.emit(*emit)).collect(),
            },
            How::Fail { delay_ms, dead } => {
                Verb::Fail { error: "it failed".to_owned(), delay_ms: *delay_ms, dead: *dead }
            }
            How::Release => Verb::Release,
            How::Park { dead } => {
                Verb::Park { error: "in doubt".to_owned(), delay_ms: None, dead: *dead }
            }
            How::Extend { lease_ms } => Verb::Extend { lease_ms: Some(*lease_ms) },
            How::Begin => Verb::Begin,
            How::Save(name) => Verb::Save { name: (*name).to_owned(), data: point_of(item, name) },
        }
    }

    /// The emit goes without its key, which the machine derives again.
    fn emit(&self, id: ItemId) -> Emit {
        let item = self.item(id);
        let keyless = Item { key: "".into(), ..item.clone() };
        let scope = self.spec(item.queue).config.dedup_scope;
        let emit = Emit::new(self.queue(item.queue), EMIT, keyless.content(0, scope));
        Emit { delay_ms: item.delay_ms, ..emit }
    }
}

/// The name that derived keys are made with.
pub const EMIT: &str = "follow-up";
