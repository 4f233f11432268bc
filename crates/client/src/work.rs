//! Deliveries in, settles out, on one stream. A [`Work`] is driven by one task: it gives credits,
//! waits for deliveries, and settles them. Deliveries and answers arrive in batches, and there is
//! no future per message. When the connection breaks, leases stay valid: unanswered settles are
//! sent again on the next connection, and unused credits are given again. [`Worker`](crate::Worker)
//! is built on it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_wire::{lean, proto};
use prost::Message as _;
use tokio::time::Instant;

use crate::delivery::{Delivery, Lease, Source};
use crate::error::Error;
use crate::message::ms;
use crate::queue::Queue;
use crate::retry::Retry;
use crate::settle::{Settle, Settled};
use crate::stream::{Pipe, Protocol};

/// About the most deliveries returned at once.
const BATCH_MAX: usize = 8_192;
/// A connection that lasted this long counts as established.
const STEADY: Duration = Duration::from_secs(1);

/// The settings of a [`Work`].
#[derive(Clone, Debug)]
pub struct WorkBuilder {
    queue: Queue,
    worker: String,
    lease: Option<Duration>,
}

impl WorkBuilder {
    pub(crate) fn new(queue: &Queue) -> Self {
        Self { queue: queue.clone(), worker: String::new(), lease: None }
    }

    /// A name that histories show, of at most 64 bytes.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = name.into();
        self
    }

    /// The length of leases; by default the queue's `lease_ms`.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    pub fn open(self) -> Work {
        let client = self.queue.client().clone();
        let works = Works {
            open: proto::WorkOpen {
                queue: self.queue.name().to_owned(),
                worker: self.worker,
                lease_ms: self.lease.map(ms),
            },
            credit: 0,
            drains: false,
        };
        Work {
            retry: Retry::within(client.timeout()),
            up_at: Some(Instant::now()),
            pipe: Pipe::new(&client, works),
            credit: 0,
            refused: Vec::new(),
            source: Arc::new(Source::new(self.queue.name())),
        }
    }
}

/// A stream of deliveries and settles: see [`Queue::work`].
///
/// ```no_run
/// # async fn example() -> Result<(), hapax_client::Error> {
/// use hapax_client::{Batch, Client, Settle};
///
/// let mut work = Client::connect("http://127.0.0.1:4747")?.queue("orders").work().open();
/// let (mut batch, mut count) = (Batch::default(), 0);
/// work.credit(1_000);
/// loop {
///     work.next(&mut batch).await?;
///     for delivery in batch.deliveries.drain(..) {
///         work.settle(delivery.lease(), Settle::done(), count);
///         count += 1;
///     }
///     for settled in batch.settled.drain(..) {
///         settled.answer?;
///         work.credit(1);
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Work {
    pipe: Pipe<Works>,
    /// Limits the time without a connection.
    retry: Retry,
    /// The last sign of a connection; `None` since it broke.
    up_at: Option<Instant>,
    /// Credits that are not sent yet.
    credit: u32,
    /// Answers to settles that fit into no frame and were not sent.
    refused: Vec<Answered>,
    /// Fields that all deliveries share.
    source: Arc<Source>,
}

/// What arrived on a [`Work`] since the last call.
#[derive(Debug, Default)]
pub struct Batch {
    pub deliveries: Vec<Delivery>,
    pub settled: Vec<Answered>,
    /// Fences of leases of the queue that were lost, including those of other workers. A hint: only
    /// the answer to an extend shows whether a lease is lost.
    pub lost: Vec<u64>,
    /// The broker is stopping: it delivers no more, and settles are still answered for a while.
    pub is_closing: bool,
    /// The length of the leases of these and later deliveries. Set in the first batch, and when it
    /// changes.
    pub lease: Option<Duration>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
            && self.settled.is_empty()
            && self.lost.is_empty()
            && !self.is_closing
            && self.lease.is_none()
    }
}

/// The answer to one settle.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The tag that was given to [`Work::settle`].
    pub tag: u64,
    pub answer: Result<Settled, Error>,
}

/// The bytes of the lease, for settling it elsewhere, such as in a child process.
impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Work {
    /// Asks for this many more messages.
    pub fn credit(&mut self, more: u32) {
        self.credit = self.credit.saturating_add(more);
        self.pipe.protocol.credit = self.pipe.protocol.credit.saturating_add(more);
    }

    /// Messages that were asked for and have not arrived.
    pub fn credits(&self) -> u32 {
        self.pipe.protocol.credit
    }

    /// Settles a lease. It is sent with others when a frame is full, or by the next
    /// [`flush`](Work::flush) or [`next`](Work::next).
    ///
    /// A settle that is larger than a frame is not sent, and answered with `too_large`.
    pub fn settle(&mut self, lease: Lease, settle: Settle, tag: u64) {
        let filled = self.pipe.fill(
            settle.bytes(),
            tag,
            |_| {},
            |frame, reference| {
                settle.put(frame, reference, lease.0);
            },
        );
        if let Err(error) = filled {
            self.refused.push(Answered { tag, answer: Err(error) });
        }
    }

    /// The number of settles without an answer.
    pub fn unanswered(&self) -> usize {
        self.pipe.unanswered.len() + self.refused.len()
    }

    /// Stops asking for messages; settles continue. Messages on their way may still arrive.
    pub fn drain(&mut self) {
        self.flush();
        self.credit = 0;
        self.pipe.protocol.credit = 0;
        self.pipe.protocol.drains = true;
        self.pipe
            .say(proto::WorkFrame { drain: true, ..Default::default() }.encode_to_vec().into());
    }

    /// Sends credits and settles.
    pub fn flush(&mut self) {
        let credit = std::mem::take(&mut self.credit);
        if credit > 0 && !self.pipe.protocol.drains {
            let frame = proto::WorkFrame { credit, ..Default::default() };
            self.pipe.say(frame.encode_to_vec().into());
        }
        self.pipe.flush();
    }

    /// Waits until something arrives, and adds it to the batch.
    ///
    /// An error means that the broker could not be reached for the client's timeout, or never will
    /// be, for example because the token is not valid. Nothing is dropped: the call can be
    /// repeated. It is cancel-safe.
    pub async fn next(&mut self, batch: &mut Batch) -> Result<(), Error> {
        loop {
            let came = self.try_next(batch).await;
            let was_up_at = match &came {
                Ok(()) => self.up_at.replace(Instant::now()),
                Err(_) => self.up_at.take(),
            };
            match came {
                // There is a connection again, but nothing has arrived yet.
                Ok(()) if batch.is_empty() => {}
                // It was idle before it broke: the time counts from now on.
                Err(error)
                    if error.is_retryable()
                        && was_up_at.is_some_and(|at| at.elapsed() >= STEADY) =>
                {
                    self.retry.reset();
                    tracing::debug!(%error, "connecting again");
                }
                Err(error) if self.retry.goes_on_after(&error) => {
                    tracing::debug!(%error, "connecting again");
                }
                ended => {
                    self.retry.reset();
                    return ended;
                }
            }
        }
    }

    /// Like [`next`](Work::next), but every broken connection is an error at once, and an empty
    /// batch reports the next connection.
    pub(crate) async fn try_next(&mut self, batch: &mut Batch) -> Result<(), Error> {
        self.flush();
        if !self.refused.is_empty() {
            batch.settled.append(&mut self.refused);
            return Ok(());
        }
        let reply = self.pipe.next().await?;
        self.take(&reply, batch)?;
        while batch.deliveries.len() < BATCH_MAX
            && let Some(reply) = self.pipe.next_now()
        {
            self.take(&reply, batch)?;
        }
        Ok(())
    }

    fn take(&mut self, frame: &Bytes, batch: &mut Batch) -> Result<(), Error> {
        let mut reply = lean::WorkReply::read(frame).map_err(Error::malformed)?;
        self.learn(&reply);
        batch.deliveries.reserve(reply.deliveries());
        while let Some(delivery) = reply.next_delivery().map_err(Error::malformed)? {
            batch.deliveries.push(Delivery::new(frame, &delivery, &self.source));
            let credit = &mut self.pipe.protocol.credit;
            *credit = credit.saturating_sub(1);
        }
        while let Some(answer) = reply.next_settled().map_err(Error::malformed)? {
            if let Some(tag) = self.pipe.unanswered.answer(answer.reference) {
                batch.settled.push(Answered { tag, answer: Settled::of_lean(&answer) });
            }
        }
        batch.lost.extend(reply.lost);
        batch.is_closing |= reply.closing;
        batch.lease = reply.lease_ms.map(Duration::from_millis).or(batch.lease);
        Ok(())
    }

    /// Reads what the first deliveries of a connection contain, and changes of it.
    fn learn(&mut self, reply: &lean::WorkReply<'_>) {
        let Some(lease_ms) = reply.lease_ms else { return };
        let source = Arc::make_mut(&mut self.source);
        source.lease_ms = lease_ms;
        if !reply.tenant.is_empty() {
            reply.tenant.clone_into(&mut source.tenant);
            source.keys_per_group = reply.keys_per_group;
        }
    }
}

#[derive(Debug)]
struct Works {
    open: proto::WorkOpen,
    /// Messages that were asked for and have not arrived.
    credit: u32,
    drains: bool,
}

impl Protocol for Works {
    const PATH: &'static str = "/hapax.v1.Hapax/Work";

    fn open(&self) -> Option<Bytes> {
        let frame = proto::WorkFrame {
            open: Some(self.open.clone()),
            credit: self.credit,
            settles: Vec::new(),
            drain: self.drains,
        };
        Some(frame.encode_to_vec().into())
    }

    fn again(&self, frame: &Bytes, is_open: &dyn Fn(u64) -> bool) -> Option<Bytes> {
        let mut frame = proto::WorkFrame::decode(frame.clone()).ok()?;
        frame.settles.retain(|settle| is_open(settle.r#ref));
        (!frame.settles.is_empty()).then(|| frame.encode_to_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_again_is_what_has_no_answer() {
        let mut frame = Vec::new();
        for reference in [7, 8] {
            Settle::fail("bad").put(&mut frame, reference, Bytes::from_static(b"lease"));
        }
        let frame = Bytes::from(frame);
        let works = Works { open: proto::WorkOpen::default(), credit: 0, drains: false };
        let again = works.again(&frame, &|reference| reference == 7).unwrap();
        let again = proto::WorkFrame::decode(again).unwrap();
        assert_eq!(again.settles.iter().map(|settle| settle.r#ref).collect::<Vec<_>>(), [7]);
        assert_eq!(works.again(&frame, &|_| false), None);
    }
}
