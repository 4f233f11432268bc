//! One partition: the rules of `hapax-core` on the bytes of `hapax-store`.
//!
//! ```text
//!   commands ─▶ stamp time ─▶ load ─▶ decide ─▶ append ┄┄▶ durable ─▶ outcomes, effects
//!                              ▲                  │
//!                        rows ─┘◀── checkpoint ◀──┘
//! ```
//!
//! A [`Partition`] is owned by one thread and never blocks on a sync: `submit` decides a batch and
//! starts to make it durable, `poll` hands out what may leave the house. Batches overlap: the next
//! is decided while the last one is on its way to the disk.
//!
//! Invariants:
//! - nothing leaves before the batch it was decided in, and every batch it could have seen, is
//!   durable: not an `accepted`, not a duplicate's answer, not a delivery;
//! - after a failure of the store nothing leaves any more: a new owner recovers from what is on
//!   disk;
//! - memory is bounded: changes wait for a checkpoint up to a limit, and then so do callers.
//!
//! Several partitions make a broker: [`route`] tells which one a message belongs to, [`change`] is
//! a change of a queue over all of them, [`relay`] hands emits from one to another, [`wait`] knows
//! who waits for messages and for the ends of keys. All four are plain data, driven by the
//! broker's engine and by the simulator alike.
//!
//! It refuses to know threads, sockets and the clock; time comes from a [`Clock`] that is told
//! what the clocks say.
//!
//! A program without a server. The order is sent twice and done once:
//!
//! ```
//! use hapax_core::{Answer, Blob, Command, Config, Configure, Content, Outcome, QueueName};
//! use hapax_core::{Receive, SendMessage, Settle, Stamp, Time, Verb};
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
//! // A real program takes the time from a `Clock`, and draws the random number anew.
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
//! call(Command::Configure(Configure { queue: queue.clone(), config, if_version: None }))?;
//! let order = SendMessage::new(queue.clone(), Content::builder("order-42").build(b"one book")?);
//! let first = call(Command::Send(order.clone()))?;
//! assert!(matches!(first, Outcome::Sent(Answer::Accepted { .. })));
//! let (worker, receive_id) = ("billing-1".into(), None);
//! let receive =
//!     Receive { queue, max: 10, lease_ms: None, worker, receive_id, several_per_group: false };
//! let Outcome::Received(messages) = call(Command::Receive(receive))? else { panic!() };
//! let result = Some(Blob { content_type: None, body: "paid".into() });
//! let verb = Verb::Done { result: result.clone(), emits: Vec::new() };
//! call(Command::Settle(Settle { lease: messages[0].lease, verb }))?;
//! // The retry of a caller who never saw the first answer: the result, and no second effect.
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
pub use partition::{Answered, Error, Options, Partition, Ticket};
