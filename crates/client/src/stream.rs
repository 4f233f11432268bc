//! One bidirectional stream that outlives its connections. Frames are sent already encoded and are
//! kept until everything in them is answered. When the connection breaks, the stream reconnects and
//! sends the unanswered frames again: with keys, and for leases, that is safe. There is no waiting
//! per message: answers arrive in frames.

mod unanswered;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_wire::lean::Raw;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::client::{Client, FRAME_BYTES_MAX, SENT_BYTES_MAX};
use crate::error::Error;
use crate::retry::Retry;
pub(crate) use unanswered::Unanswered;

/// Frames are filled to about this size; what is large has one of its own.
const FRAME_BYTES: usize = 32 * 1_024;

/// What the two streams have of their own.
pub(crate) trait Protocol {
    const PATH: &'static str;

    /// What is said first on every connection.
    fn open(&self) -> Option<Bytes>;
    /// A frame without what was answered; `None` where nothing is left of it.
    fn again(frame: &Bytes, is_open: &dyn Fn(u64) -> bool) -> Option<Bytes>;
}

/// See the module's documentation.
pub(crate) struct Pipe<P: Protocol> {
    client: Client,
    pub(crate) protocol: P,
    channel: Channel,
    pub(crate) unanswered: Unanswered,
    /// The frame that is being filled, and the reference of its first member.
    frame: Vec<u8>,
    first: u64,
    line: Line,
    /// Met by somebody who did not wait, for the one who does.
    failure: Option<Status>,
    /// The last connection broke, and there was no other since.
    is_broken: bool,
    /// Of connections. Whoever drives the stream says when to give up.
    retry: Retry,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Streaming<Bytes>, Status>> + Send>>;

enum Line {
    /// No connection, and no retry before this time.
    Down(Option<Pin<Box<tokio::time::Sleep>>>),
    /// Asked for. Frames can go up already.
    Dialing(mpsc::UnboundedSender<Bytes>, Connecting),
    Up(mpsc::UnboundedSender<Bytes>, Box<Streaming<Bytes>>),
}

impl<P: Protocol> Pipe<P> {
    pub(crate) fn new(client: &Client, protocol: P) -> Self {
        Self {
            channel: client.channel(),
            client: client.clone(),
            protocol,
            unanswered: Unanswered::default(),
            frame: Vec::new(),
            first: 0,
            line: Line::Down(None),
            failure: None,
            is_broken: false,
            retry: Retry::forever(),
        }
    }

    /// Adds something of about so many bytes, which will be answered, to the frame that is being
    /// filled: `head` writes how a frame begins, `put` the thing itself, under its reference.
    /// What no frame takes is refused.
    pub(crate) fn fill(
        &mut self,
        bytes: usize,
        tag: u64,
        head: impl FnOnce(&mut Vec<u8>),
        put: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<(), Error> {
        if self.frame.len() >= FRAME_BYTES || bytes > FRAME_BYTES {
            self.flush();
        }
        if bytes > SENT_BYTES_MAX {
            return Err(Error::too_large(bytes, SENT_BYTES_MAX));
        }
        let reference = self.unanswered.next();
        if self.frame.is_empty() {
            self.first = reference;
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
        Ok(())
    }

    /// Sends the frame that is being filled.
    pub(crate) fn flush(&mut self) {
        if !self.frame.is_empty() {
            let frame = Bytes::from(std::mem::take(&mut self.frame));
            self.say(frame.clone());
            self.unanswered.keep(self.first, frame);
        }
    }

    /// What is unanswered, or not even sent.
    pub(crate) fn bytes(&self) -> usize {
        self.unanswered.bytes() + self.frame.len()
    }

    /// Sends a frame that needs no answer, and is not repeated on the next connection.
    pub(crate) fn say(&mut self, frame: Bytes) {
        // What cannot be said now is in the next connection's first frame, or sent again.
        if let Line::Dialing(sender, _) | Line::Up(sender, _) = &self.line {
            let _ = sender.send(frame);
        }
    }

    /// Hangs up. What is unanswered stays so, for the next connection.
    pub(crate) fn hang_up(&mut self) {
        self.line = Line::Down(None);
        self.failure = None;
    }

    /// The next reply. An error tells that a connection broke or could not be made; the next call
    /// pauses as long as is decent, and tries again. After an error, an empty reply tells that
    /// there is a connection again. Can be dropped and called anew.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Error> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// A reply that is there already.
    pub(crate) fn next_now(&mut self) -> Option<Bytes> {
        let Line::Up(_, streaming) = &mut self.line else { return None };
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(&mut **streaming).poll_next(&mut context) {
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
                        Ok(streaming) => {
                            self.pick_up(streaming);
                            if std::mem::take(&mut self.is_broken) {
                                return Poll::Ready(Ok(Bytes::new()));
                            }
                        }
                        Err(status) => return Poll::Ready(Err(self.broken(&status))),
                    }
                }
                Line::Up(_, streaming) => {
                    let next = Pin::new(&mut **streaming).poll_next(context);
                    return Poll::Ready(match std::task::ready!(next) {
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
        let (sender, receiver) = mpsc::unbounded_channel();
        let first = self.protocol.open().into_iter();
        let is_open = |reference| self.unanswered.is_open(reference);
        let again = self.unanswered.frames().filter_map(|frame| P::again(frame, &is_open));
        for frame in first.chain(again) {
            let _ = sender.send(frame);
        }
        let mut request = Request::new(UnboundedReceiverStream::new(receiver));
        self.client.bearer().sign(&mut request);
        let mut grpc = tonic::client::Grpc::new(self.channel.clone())
            .max_decoding_message_size(FRAME_BYTES_MAX)
            .max_encoding_message_size(FRAME_BYTES_MAX);
        let connecting = async move {
            let lost = |error| Status::from_error(Box::new(error));
            grpc.ready().await.map_err(lost)?;
            let path = PathAndQuery::from_static(P::PATH);
            Ok(grpc.streaming(request, path, Raw::default()).await?.into_inner())
        };
        self.line = Line::Dialing(sender, Box::pin(connecting));
    }

    fn pick_up(&mut self, streaming: Streaming<Bytes>) {
        let before = std::mem::replace(&mut self.line, Line::Down(None));
        if let Line::Dialing(sender, _) = before {
            self.line = Line::Up(sender, Box::new(streaming));
        }
    }

    fn broken(&mut self, status: &Status) -> Error {
        self.is_broken = true;
        let error = self.client.error(status);
        let pause = self.retry.next_pause(error.retry_after());
        self.line = Line::Down(Some(Box::pin(tokio::time::sleep(pause))));
        error
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
