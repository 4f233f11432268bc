//! Workers: a handler for the messages of a queue, many at a time. One task drives the stream. It
//! starts a task per message, extends every lease from its receipt, also of messages that wait for
//! a handler, notifies handlers whose lease is lost, and settles what they return. Leases outlive
//! connections: a message that is finished while the broker cannot be reached is settled after the
//! reconnect.

mod context;
mod driver;
mod event;
mod leases;

use std::future::Future;
use std::time::Duration;

use crate::delivery::Delivery;
use crate::error::Error;
use crate::queue::Queue;
use crate::settle::{Done, Failure};
pub use context::Context;
use driver::Driver;
pub use event::Event;
use event::Observer;

const CONCURRENCY: usize = 16;
/// How long handlers may go on once the worker is told to stop.
const DRAIN: Duration = Duration::from_secs(25);

/// Runs a handler for the messages of a queue.
///
/// ```no_run
/// # async fn example() -> Result<(), hapax_client::Error> {
/// use hapax_client::{Client, Failure, Worker};
///
/// let orders = Client::connect("http://127.0.0.1:4747")?.queue("orders");
/// Worker::new(orders)
///     .concurrency(16)
///     .run(|message, _context| async move {
///         let order: serde_json::Value = message.parse_json()?;
///         Ok::<_, Failure>(format!("shipped {order}"))
///     })
///     .await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    queue: Queue,
    concurrency: usize,
    prefetch: Option<usize>,
    name: Option<String>,
    lease: Option<Duration>,
    drain: Duration,
    observer: Observer,
}

impl Worker {
    pub fn new(queue: Queue) -> Self {
        Self {
            queue,
            concurrency: CONCURRENCY,
            prefetch: None,
            name: None,
            lease: None,
            drain: DRAIN,
            observer: Observer::default(),
        }
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How many handlers run at once: 16 where nothing is said.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// How many messages wait here for a handler to be free: as many as handlers where nothing is
    /// said. They are leased to this worker, and given back uncounted if it stops.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// A name that histories show, of at most 64 bytes: host and process where nothing is said.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long a message stays leased if this process dies: as long as the queue says where
    /// nothing is said. While a handler runs its lease is extended by itself.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long handlers may go on once the worker is told to stop: 25 s where nothing is said.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain = timeout;
        self
    }

    /// Calls this with what the worker learns: what the broker confirmed, and whether it is there.
    /// It is called by the task that drives the worker, and should return at once.
    pub fn observe(mut self, observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Observer::new(observer);
        self
    }

    /// Works for ever, or until there is an error that no retry helps against: a queue that does
    /// not exist, a token that is not valid. A broker that is away is waited for.
    ///
    /// What the handler returns is stored as the result, see [`Done`]; an error fails the attempt,
    /// see [`Failure`]; so does a panic, except where an effect has begun: that is in doubt then. A
    /// result that the broker refuses, as one that is too large, makes the message dead, since
    /// running it again would not help; where an effect has begun it is in doubt.
    pub async fn run<H, F, R, E>(self, handler: H) -> Result<(), Error>
    where
        H: Fn(Delivery, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Done> + 'static,
        E: Into<Failure> + 'static,
    {
        self.run_until(std::future::pending(), handler).await
    }

    /// As [`Worker::run`], until `stop` is ready. Then it takes no more messages, gives back those
    /// that no handler has begun with, and waits for the handlers, for at most the drain timeout.
    /// Handlers that are still not finished are dropped and their messages failed, except those
    /// whose effect has begun: they are in doubt, and a queue that parks does so.
    ///
    /// ```no_run
    /// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_client::Error> {
    /// use hapax_client::{Failure, Worker};
    ///
    /// let stop = async { drop(tokio::signal::ctrl_c().await) };
    /// Worker::new(orders)
    ///     .run_until(stop, |message, context| async move {
    ///         tokio::select! {
    ///             // Somebody else has the message now: what we do would be done twice. Nobody is
    ///             // told of this error.
    ///             () = context.lost() => Err(Failure::new("too slow")),
    ///             done = work(message.body()) => done,
    ///         }
    ///     })
    ///     .await
    /// # }
    /// # async fn work(_body: &[u8]) -> Result<(), hapax_client::Failure> { Ok(()) }
    /// ```
    pub async fn run_until<H, F, R, E>(
        self,
        stop: impl Future<Output = ()>,
        handler: H,
    ) -> Result<(), Error>
    where
        H: Fn(Delivery, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Done> + 'static,
        E: Into<Failure> + 'static,
    {
        let name = self.name.clone().unwrap_or_else(own_name);
        let mut work = self.queue.work().worker(name);
        if let Some(lease) = self.lease {
            work = work.lease(lease);
        }
        let handler = std::sync::Arc::new(handler);
        let run = move |delivery, context| {
            let handler = std::sync::Arc::clone(&handler);
            async move { handler(delivery, context).await.map(Into::into).map_err(Into::into) }
        };
        let limits = driver::Limits {
            concurrency: self.concurrency,
            prefetch: self.prefetch.unwrap_or(self.concurrency),
            drain: self.drain,
        };
        Driver::new(work.open(), run, limits, self.observer).run(stop).await
    }
}

/// Host and process.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().chars().filter(|letter| !letter.is_control()).take(40);
    let host: String = host.collect();
    let host = if host.is_empty() { "worker".to_owned() } else { host };
    format!("{host}-{}", std::process::id()).chars().take(60).collect()
}
