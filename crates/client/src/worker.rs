//! Workers: a handler for the messages of a queue, many at a time. One task drives the stream. It
//! starts a task per message, extends every lease from its receipt, also of messages that wait for
//! a handler, notifies handlers whose lease is lost, and settles what they return. Leases outlive
//! connections: a message that is finished while the broker cannot be reached is settled after the
//! reconnect.

mod away;
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
/// How long handlers may continue after a stop.
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

    /// The number of handlers that run at once; 16 by default.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// The number of messages that wait for a free handler; by default as many as handlers. They
    /// are leased to this worker, and given back without counting an attempt if it stops.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = Some(messages);
        self
    }

    /// A name that histories show, of at most 64 bytes: by default host and process.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long a message stays leased if this process dies; by default the queue's `lease_ms`.
    /// While a handler runs its lease is extended automatically.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long handlers may continue after a stop; 25 s by default.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain = timeout;
        self
    }

    /// Sets a callback for events: settles that the broker answered, lost leases, and whether the
    /// broker can be reached. It is called by the task that drives the worker, and should return at
    /// once.
    pub fn observe(mut self, observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Observer::new(observer);
        self
    }

    /// Runs for ever, or until a permanent error: a queue that does not exist, a token that is not
    /// valid. It waits for a broker that cannot be reached.
    ///
    /// What the handler returns is stored as the result, see [`Done`]. An error fails the attempt,
    /// see [`Failure`]. So does a panic, except if an effect has begun: then the message is in
    /// doubt. If the broker refuses the result, for example because it is too large, the message
    /// becomes dead, because another attempt would not help; if an effect has begun, the message is
    /// in doubt.
    pub async fn run<H, F, R, E>(self, handler: H) -> Result<(), Error>
    where
        H: Fn(Delivery, Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, E>> + Send + 'static,
        R: Into<Done> + 'static,
        E: Into<Failure> + 'static,
    {
        self.run_until(std::future::pending(), handler).await
    }

    /// Like [`Worker::run`], until `stop` resolves. Then it takes no more messages, gives back
    /// those that no handler has started, and waits for the handlers, for at most the drain
    /// timeout. Handlers that are not finished by then are dropped and their messages fail, except
    /// those whose effect has begun: they are in doubt, and parked if the queue has `on_lost =
    /// park`.
    ///
    /// ```no_run
    /// # async fn example(orders: hapax_client::Queue) -> Result<(), hapax_client::Error> {
    /// use hapax_client::{Failure, Worker};
    ///
    /// let stop = async { drop(tokio::signal::ctrl_c().await) };
    /// Worker::new(orders)
    ///     .run_until(stop, |message, context| async move {
    ///         tokio::select! {
    ///             // Another worker may have the message now: stop. This error is not reported to
    ///             // the broker.
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

/// The default name: host and process.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().chars().filter(|letter| !letter.is_control()).take(40);
    let host: String = host.collect();
    let host = if host.is_empty() { "worker".to_owned() } else { host };
    format!("{host}-{}", std::process::id()).chars().take(60).collect()
}
