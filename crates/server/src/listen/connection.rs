//! One connection, from its handshake to its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tower::{Service, ServiceExt};
use tracing::debug;

use super::io::Watched;
use super::limits::{HEADER_BYTES_MIN, RESET_BY_PEER_MAX, RESET_FOR_ERRORS_MAX};
use super::pulse::{Due, Pulse, Running};
use super::{Limits, Peer, Stats, Tls};

/// What all connections of a listener share.
#[derive(Debug)]
pub(super) struct Server {
    tls: Option<Arc<Tls>>,
    limits: Limits,
    stats: Arc<Stats>,
    http: auto::Builder<TokioExecutor>,
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// Ended normally: closed by the peer, or asked to finish.
    Closed,
    Failed(Box<dyn std::error::Error + Send + Sync>),
    TimedOut,
}

impl Server {
    pub(super) fn new(tls: Option<Arc<Tls>>, limits: Limits, stats: Arc<Stats>) -> Self {
        Self { tls, limits, stats, http: http(&limits) }
    }

    pub(super) fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    pub(super) async fn serve<S>(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        service: S,
        mut stopped: watch::Receiver<bool>,
    ) where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let _open = self.stats.open.hold();
        let peer = Peer { address, is_encrypted: self.tls.is_some() };
        let end = match &self.tls {
            None => self.speak(stream, peer, service, stopped).await,
            Some(tls) => {
                let stream = tokio::select! {
                    stream = self.handshake(tls, stream, address) => stream,
                    _ = stopped.wait_for(|stopped| *stopped) => None,
                };
                let Some(stream) = stream else { return };
                self.speak(stream, peer, service, stopped).await
            }
        };
        match end {
            End::Closed => {}
            End::Failed(error) => debug!(%address, %error, "a connection failed"),
            End::TimedOut => {
                self.stats.timed_out.add();
                debug!(%address, "a connection was closed: its peer is too slow");
            }
        }
    }

    async fn handshake(
        &self,
        tls: &Tls,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let error = match timeout(self.limits.handshake, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(late) => late.to_string(),
        };
        self.stats.handshakes_failed.add();
        debug!(%address, error, "a TLS handshake failed");
        None
    }

    /// Speaks HTTP until the connection ends or times out, or the listener stops.
    async fn speak<I, S>(
        &self,
        io: I,
        peer: Peer,
        service: S,
        mut stopped: watch::Receiver<bool>,
    ) -> End
    where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let pulse = Pulse::new();
        let io = TokioIo::new(Watched::new(io, Arc::clone(&pulse)));
        let beat = Arc::clone(&pulse);
        let service =
            service_fn(move |request| answer(service.clone(), request, peer, beat.begin()));
        let mut connection = pin!(self.http.serve_connection(io, service));
        let mut clock = Clock::new(&pulse, &self.limits);
        loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => {
                    return result.map_or_else(End::Failed, |()| End::Closed);
                }
                due = poll_fn(|context| clock.poll(context)) => {
                    if let Due::Cut(_) = due {
                        return End::TimedOut;
                    }
                }
                _ = stopped.wait_for(|stopped| *stopped), if clock.finishing_since.is_none() => {}
            }
            clock.finishing_since = Some(Instant::now());
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// Fires when something is due on a connection. Polled after every step of the connection, because
/// each may change what is due.
struct Clock<'a> {
    pulse: &'a Pulse,
    limits: &'a Limits,
    finishing_since: Option<Instant>,
    /// Never later than what is due. It is not reset with every request, but fires early and is set
    /// again.
    timer: Pin<Box<Sleep>>,
}

impl<'a> Clock<'a> {
    fn new(pulse: &'a Pulse, limits: &'a Limits) -> Self {
        let timer = Box::pin(sleep_until(Instant::now() + limits.headers));
        Self { pulse, limits, finishing_since: None, timer }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Due> {
        loop {
            let due = self.pulse.due(self.limits, self.finishing_since);
            let now = Instant::now();
            match due.at() {
                Some(at) if at <= now => return Poll::Ready(due),
                Some(at) if at < self.timer.deadline() => self.timer.as_mut().reset(at),
                Some(_) | None => {}
            }
            std::task::ready!(self.timer.as_mut().poll(context));
            self.timer.as_mut().reset(due.at().unwrap_or(now + self.limits.headers));
        }
    }
}

/// Answers a request.
async fn answer<S>(
    service: S,
    mut request: Request<Incoming>,
    peer: Peer,
    running: Running,
) -> Result<Response<Answer>, Infallible>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
{
    request.extensions_mut().insert(peer);
    let response = service.oneshot(request).await?;
    Ok(response.map(|body| Answer { body, _running: running }))
}

/// The body of an answer. Its request runs until it is dropped.
struct Answer {
    body: Body,
    _running: Running,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn http(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let header_bytes_max = limits.header_bytes_max.max(HEADER_BYTES_MIN);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The pulse does this: it distinguishes a slow head from an idle connection.
        .header_read_timeout(None)
        // A head must fit into the buffer, so the buffer bounds it.
        .max_buf_size(header_bytes_max as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(header_bytes_max)
        .max_concurrent_streams(limits.streams_max)
        .max_pending_accept_reset_streams(RESET_BY_PEER_MAX)
        .max_local_error_reset_streams(RESET_FOR_ERRORS_MAX)
        // Adaptive sizes would be bounded only by the peer's speed.
        .adaptive_window(false)
        .initial_stream_window_size(limits.stream_window_bytes)
        .initial_connection_window_size(limits.connection_window_bytes)
        .max_frame_size(limits.frame_bytes_max)
        .max_send_buf_size(limits.send_buffer_bytes as usize)
        .keep_alive_interval(limits.ping_every)
        .keep_alive_timeout(limits.ping_timeout);
    builder
}
