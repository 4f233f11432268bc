//! One bidirectional stream that outlives its connections. Frames are sent already encoded and are
//! kept until everything in them is answered. When the connection breaks, the stream reconnects and
//! sends the unanswered frames again: with keys, and for leases, that is safe. There is no waiting
//! per message: answers arrive in frames.

mod unanswered;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_wire::Code;
use hapax_wire::lean::{Frames, Incoming, Raw};
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::client::{Client, FRAME_BYTES_MAX, SENT_BYTES_MAX};
use crate::error::Error;
use crate::nodes::{self, Node};
use crate::retry::Retry;
pub(crate) use unanswered::Unanswered;

/// Frames are filled to about this size; something larger gets its own frame.
const FRAME_BYTES: usize = 32 * 1_024;

/// What differs between the streams.
pub(crate) trait Protocol {
    const PATH: &'static str;

    /// The first frame of every connection.
    fn open(&self) -> Option<Bytes>;
    /// A frame without the members that were answered; `None` if nothing is left.
    fn again(&self, frame: &Bytes, is_open: &dyn Fn(u64) -> bool) -> Option<Bytes>;
}

/// See the module's documentation.
pub(crate) struct Pipe<P: Protocol> {
    client: Client,
    pub(crate) protocol: P,
    /// The node that it is connected to, or was.
    node: Arc<Node>,
    channel: Channel,
    pub(crate) unanswered: Unanswered,
    /// The frame that is being filled, and the reference of its first member.
    frame: Vec<u8>,
    first: u64,
    line: Line,
    /// An error found without waiting, for the next caller that waits.
    failure: Option<Status>,
    /// Whether the last connection broke and there was no other since.
    is_broken: bool,
    /// Whether the broker has no such stream.
    is_unknown: bool,
    /// The backoff of reconnects. The caller decides when to give up.
    retry: Retry,
}

type Replies = Incoming<Body>;
type Connecting = Pin<Box<dyn Future<Output = Result<Replies, Status>> + Send>>;

enum Line {
    /// No connection, and no retry before this time.
    Down(Option<Pin<Box<tokio::time::Sleep>>>),
    /// Connecting. Frames can be sent already.
    Dialing(mpsc::UnboundedSender<Bytes>, Connecting),
    Up(mpsc::UnboundedSender<Bytes>, Box<Replies>),
}

impl<P: Protocol> Pipe<P> {
    pub(crate) fn new(client: &Client, protocol: P) -> Self {
        let node = client.node();
        Self {
            channel: node.channel(),
            node,
            client: client.clone(),
            protocol,
            unanswered: Unanswered::default(),
            frame: Vec::new(),
            first: 0,
            line: Line::Down(None),
            failure: None,
            is_broken: false,
            is_unknown: false,
            retry: Retry::forever(),
        }
    }

    /// Adds a member of about `bytes` bytes, which will be answered, to the current frame: `head`
    /// writes the head of a frame, `put` the member with its reference. Returns the reference, or
    /// an error if it is too large for a frame.
    pub(crate) fn fill(
        &mut self,
        bytes: usize,
        tag: u64,
        head: impl FnOnce(&mut Vec<u8>),
        put: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<u64, Error> {
        if self.frame.len() >= FRAME_BYTES || bytes > FRAME_BYTES {
            self.flush();
        }
        if bytes > SENT_BYTES_MAX {
            return Err(Error::too_large(bytes, SENT_BYTES_MAX));
        }
        let reference = self.unanswered.next();
        if self.frame.is_empty() {
            self.first = reference;
            self.frame = self.unanswered.empty_frame();
            self.frame.reserve(FRAME_BYTES + FRAME_BYTES / 8);
            head(&mut self.frame);
        }
        put(&mut self.frame, reference);
        if self.frame.len() > SENT_BYTES_MAX {
            debug_assert_eq!(self.first, reference, "what is large is alone");
            let bytes = std::mem::take(&mut self.frame).len();
            return Err(Error::too_large(bytes, SENT_BYTES_MAX));
        }
        let added = self.unanswered.add(tag);
        debug_assert_eq!(added, reference, "as it was told in the frame");
        Ok(reference)
    }

    /// Sends the frame that is being filled.
    pub(crate) fn flush(&mut self) {
        if !self.frame.is_empty() {
            let frame = Bytes::from(std::mem::take(&mut self.frame));
            self.say(frame.clone());
            self.unanswered.keep(self.first, frame);
            self.unanswered.set_aside(|frame, is_open| self.protocol.again(frame, is_open));
        }
    }

    /// The bytes that are unanswered or not sent yet.
    pub(crate) fn bytes(&self) -> usize {
        self.unanswered.bytes() + self.frame.len()
    }

    /// Sends a frame that needs no answer, and is not repeated on the next connection.
    pub(crate) fn say(&mut self, frame: Bytes) {
        // If there is no connection, the next one's first frame has it, or it is sent again.
        if let Line::Dialing(sender, _) | Line::Up(sender, _) = &self.line {
            let _ = sender.send(frame);
        }
    }

    /// Whether the last connection was refused because the broker has no such stream.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Closes the connection. Unanswered frames are sent again on the next one.
    pub(crate) fn hang_up(&mut self) {
        self.line = Line::Down(None);
        self.failure = None;
    }

    /// Waits for the next reply. An error means that a connection broke or could not be opened; the
    /// next call pauses for the backoff and tries again. After an error, an empty reply means that
    /// there is a connection again. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// A reply that has already arrived.
    pub(crate) fn next_now(&mut self) -> Option<Bytes> {
        let Line::Up(_, replies) = &mut self.line else { return None };
        let mut context = Context::from_waker(std::task::Waker::noop());
        match replies.poll_next(&mut context) {
            Poll::Ready(Some(Ok(reply))) => Some(reply),
            Poll::Ready(Some(Err(status))) => {
                self.failure = Some(status);
                None
            }
            Poll::Ready(None) => {
                self.failure = Some(hung_up());
                None
            }
            Poll::Pending => None,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, Error>> {
        if let Some(status) = self.failure.take() {
            return Poll::Ready(Err(self.broken(&status)));
        }
        loop {
            match &mut self.line {
                Line::Down(pause) => {
                    if let Some(pause) = pause {
                        std::task::ready!(pause.as_mut().poll(context));
                    }
                    self.dial();
                }
                Line::Dialing(_, connecting) => {
                    match std::task::ready!(connecting.as_mut().poll(context)) {
                        Ok(replies) => {
                            self.pick_up(replies);
                            if std::mem::take(&mut self.is_broken) {
                                return Poll::Ready(Ok(Bytes::new()));
                            }
                        }
                        Err(status) => return Poll::Ready(Err(self.broken(&status))),
                    }
                }
                Line::Up(_, replies) => {
                    return Poll::Ready(match std::task::ready!(replies.poll_next(context)) {
                        Some(Ok(reply)) => {
                            self.retry.reset();
                            Ok(reply)
                        }
                        Some(Err(status)) => Err(self.broken(&status)),
                        None => Err(self.broken(&hung_up())),
                    });
                }
            }
        }
    }

    fn dial(&mut self) {
        let node = self.client.node();
        if !Arc::ptr_eq(&node, &self.node) {
            (self.channel, self.node) = (node.channel(), node);
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let first = self.protocol.open().into_iter();
        let is_open = |reference| self.unanswered.is_open(reference);
        let again =
            self.unanswered.frames().filter_map(|frame| self.protocol.again(frame, &is_open));
        for frame in first.chain(again) {
            let _ = sender.send(frame);
        }
        let mut request = Request::new(tokio_stream::empty());
        self.client.bearer().sign(&mut request);
        let replies = Arc::new(Mutex::new(None));
        let frames = Some(UnboundedReceiverStream::new(receiver));
        let channel = Bare { channel: self.channel.clone(), frames, replies: Arc::clone(&replies) };
        let mut grpc = tonic::client::Grpc::new(channel);
        let connecting = async move {
            let lost = |error| Status::from_error(Box::new(error));
            grpc.ready().await.map_err(lost)?;
            let path = PathAndQuery::from_static(P::PATH);
            grpc.streaming(request, path, Raw).await?;
            let replies = replies.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(Incoming::new(replies.unwrap_or_default(), FRAME_BYTES_MAX))
        };
        self.line = Line::Dialing(sender, Box::pin(connecting));
    }

    fn pick_up(&mut self, replies: Replies) {
        let before = std::mem::replace(&mut self.line, Line::Down(None));
        if let Line::Dialing(sender, _) = before {
            self.line = Line::Up(sender, Box::new(replies));
        }
    }

    fn broken(&mut self, status: &Status) -> Error {
        self.is_broken = true;
        self.is_unknown = status.code() == tonic::Code::Unimplemented;
        let error = self.client.error(status);
        // What a node that does not serve asks for is meant for those who know no other.
        let named = nodes::named(status);
        let is_elsewhere =
            error.code() == Code::Unavailable && self.client.leave(&self.node, named);
        let asked = error.retry_after().filter(|_| !is_elsewhere);
        let pause = self.retry.next_pause(asked);
        self.line = Line::Down(Some(Box::pin(tokio::time::sleep(pause))));
        error
    }
}

/// A channel for one call, whose bodies are frames as they are. The rest of the call is tonic's.
struct Bare {
    channel: Channel,
    frames: Option<UnboundedReceiverStream<Bytes>>,
    replies: Arc<Mutex<Option<Body>>>,
}

impl Service<http::Request<Body>> for Bare {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let frames = self.frames.take().map(|frames| frames.map(Ok));
        let called = self.channel.call(match frames {
            Some(frames) => request.map(|_| Body::new(Frames::of_request(frames))),
            None => request,
        });
        let replies = Arc::clone(&self.replies);
        Box::pin(async move {
            let response = called.await?;
            Ok(response.map(|body| {
                *replies.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
                Body::empty()
            }))
        })
    }
}

fn hung_up() -> Status {
    Status::unavailable("the broker closed the stream")
}

impl<P: Protocol> std::fmt::Debug for Pipe<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let line = match self.line {
            Line::Down(_) => "down",
            Line::Dialing(..) => "dialing",
            Line::Up(..) => "up",
        };
        f.debug_struct("Pipe").field("path", &P::PATH).field("line", &line).finish_non_exhaustive()
    }
}
