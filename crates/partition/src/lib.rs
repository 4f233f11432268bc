//! One partition: the rules of `hapax-core` on the bytes of `hapax-store`.
//!
//! ```text
//!   commands ─▶ stamp time ─▶ load ─▶ decide ─▶ append ┄┄▶ durable ─▶ outcomes, effects
//!                              ▲                  │
//!                        rows ─┘◀── checkpoint ◀──┘
//! ```
//!
//! A [`Partition`] is owned by one thread and never blocks on a sync: `submit` decides a batch and
//! starts to make it durable, `poll` returns the outcomes of batches that are durable. Batches
//! overlap: the next is decided while the last one is being written.
//!
//! Invariants:
//! - no outcome is returned before its own batch and every earlier one are durable: not an
//!   `accepted`, not a duplicate's answer, not a delivery;
//! - after a store failure nothing more is returned: a new owner recovers from disk;
//! - memory is bounded: changes wait for a checkpoint up to a limit; beyond it callers wait too.
//!
//! Several partitions make a broker: [`route`] maps messages to partitions, [`change`] changes a
//! queue in all of them, [`relay`] sends emits from one to another, [`wait`] keeps the callers that
//! wait for messages and for the ends of keys. All four are plain data structures, used by the
//! broker's engine and by the simulator alike.
//!
//! It uses no threads, sockets or system clock; a [`Clock`] computes the time from clock readings
//! that the caller passes in.
//!
//! A program without a server. The order is sent twice and done once:
//!
//! ```
//! use hapax_core::{Answer, Blob, Command, Config, Configure, Content, Outcome, QueueName};
//! use hapax_core::{Receive, Recipe, SendMessage, Settle, Stamp, Time, Verb};
//! use hapax_partition::{Error, Options, Partition};
//! use hapax_store::disk::{self, DiskStore};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path();
//! let owner = std::thread::current();
//! let wake = std::sync::Arc::new(move || owner.unpark());
//! let store = DiskStore::open_threaded(path, disk::Options::default(), wake)?;
//! let mut partition = Partition::open(store, Options::default())?;
//! // A real program takes the time from a `Clock`, and a new random number each time.
//! let stamp = Stamp { at: Time(1_700_000_000_000), random: 7 };
//! let mut call = |command| -> Result<Outcome, Error> {
//!     partition.submit(stamp, vec![command])?;
//!     loop {
//!         match partition.poll()? {
//!             Some(mut answered) => return Ok(answered.outcomes.remove(0)),
//!             None => std::thread::park(), // Until the batch is on the disk.
//!         }
//!     }
//! };
//! let (queue, config) = (QueueName::new("default", "orders")?, Config::default());
//! let configure = Configure { queue: queue.clone(), config, if_version: None };
//! call(Command::Configure(Box::new(configure)))?;
//! let content = Content::builder("order-42").build(b"one book")?;
//! let order = SendMessage::new(&Recipe::First, queue.clone(), content);
//! let first = call(Command::Send(order.clone()))?;
//! assert!(matches!(first, Outcome::Sent(Answer::Accepted { .. })));
//! let (worker, receive_id) = ("billing-1".into(), None);
//! let receive =
//!     Receive { queue, max: 10, lease_ms: None, worker, receive_id, several_per_group: false };
//! let Outcome::Received(messages) = call(Command::Receive(receive))? else { panic!() };
//! let result = Some(Blob { content_type: None, body: "paid".into() });
//! let verb = Verb::Done { result: result.clone(), emits: Vec::new() };
//! call(Command::Settle(Settle { lease: messages[0].lease, verb }))?;
//! // The retry of a caller that got no answer: the result, and no second effect.
//! let again = call(Command::Send(order))?;
//! assert!(matches!(again, Outcome::Sent(Answer::Done(done)) if done.result == result));
//! partition.close()?;
//! # Ok(()) }
//! ```

pub mod change;
mod clock;
mod fetch;
mod partition;
mod recover;
pub mod relay;
pub mod route;
pub mod wait;

pub use clock::Clock;
pub use partition::{Answered, Commands, Error, Options, Partition, SPENT_MAX, Ticket};
