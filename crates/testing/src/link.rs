//! A link to a broker that can be cut, lose data, or hold it back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Passes bytes on between clients and a broker. It closes when it is dropped.
#[derive(Debug)]
pub struct Link {
    /// For clients.
    pub url: String,
    state: Arc<State>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct State {
    connections: Mutex<Vec<AbortHandle>>,
    refuses_connections: AtomicBool,
    loses_requests: AtomicBool,
    loses_answers: AtomicBool,
    /// Pieces of answers that were read so far, over all connections.
    answers: AtomicU64,
    /// Number of them that may be passed on.
    allowed: watch::Sender<u64>,
    /// Connections on which this was sent are not stopped by the next two.
    exempt: Vec<u8>,
    stops_old: AtomicU64,
    stops_new: AtomicBool,
    accepted: AtomicU64,
}

impl Link {
    pub async fn to(broker: SocketAddr) -> Self {
        Self::exempting(broker, b"").await
    }

    /// One whose connections are stopped by [`Self::stop_old`] and [`Self::stop_new`] unless these
    /// bytes were sent on them.
    pub async fn exempting(broker: SocketAddr, exempt: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            connections: Mutex::default(),
            refuses_connections: AtomicBool::default(),
            loses_requests: AtomicBool::default(),
            loses_answers: AtomicBool::default(),
            answers: AtomicU64::default(),
            allowed: watch::Sender::new(u64::MAX),
            exempt: exempt.to_vec(),
            stops_old: AtomicU64::default(),
            stops_new: AtomicBool::default(),
            accepted: AtomicU64::default(),
        });
        let accepting = tokio::spawn(accept(listener, broker, Arc::clone(&state))).abort_handle();
        Self { url, state, accepting }
    }

    /// Returns a client on this link.
    #[cfg(feature = "client")]
    pub fn client(&self) -> hapax_client::Client {
        let builder = hapax_client::Client::builder(&self.url);
        builder.timeout(crate::wait::PATIENCE).connect().unwrap()
    }

    /// Breaks every connection; new ones can be made. Returns whether there was any.
    pub fn cut(&self) -> bool {
        let mut connections = self.state.connections.lock().unwrap();
        let was_any = connections.iter().any(|connection| !connection.is_finished());
        connections.drain(..).for_each(|connection| connection.abort());
        was_any
    }

    /// Breaks every connection, and every new one, until the link is restored.
    pub fn disconnect(&self) {
        self.state.refuses_connections.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Loses what is sent to the broker from now on.
    pub fn lose_requests(&self) {
        self.state.loses_requests.store(true, Ordering::SeqCst);
    }

    /// Loses what the broker answers from now on.
    pub fn lose_answers(&self) {
        self.state.loses_answers.store(true, Ordering::SeqCst);
    }

    /// Connections that exist now stay open, and nothing is passed on any more: the server gets no
    /// request of theirs, and they no answer. New ones work.
    pub fn stop_old(&self) {
        self.state.stops_old.store(self.state.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// The same happens to new connections: they are accepted, and never answered.
    pub fn stop_new(&self) {
        self.state.stops_new.store(true, Ordering::SeqCst);
    }

    /// Holds answers back from now on.
    pub fn hold_answers(&self) {
        self.pass_answers(self.answers());
    }

    /// The number of pieces of answers that have come so far.
    pub fn answers(&self) -> u64 {
        self.state.answers.load(Ordering::SeqCst)
    }

    /// Passes on this many pieces of answers, counted from the first, and holds back the rest.
    pub fn pass_answers(&self, pieces: u64) {
        self.state.allowed.send_replace(pieces);
    }

    /// Passes everything on again. What was lost stays lost: cut the connections first.
    pub fn restore(&self) {
        self.state.refuses_connections.store(false, Ordering::SeqCst);
        self.state.loses_requests.store(false, Ordering::SeqCst);
        self.state.loses_answers.store(false, Ordering::SeqCst);
        self.state.stops_old.store(0, Ordering::SeqCst);
        self.state.stops_new.store(false, Ordering::SeqCst);
        self.state.allowed.send_replace(u64::MAX);
    }

    /// Breaks every connection; no new ones can be made.
    pub fn close(&self) {
        self.accepting.abort();
        self.disconnect();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

async fn accept(listener: TcpListener, broker: SocketAddr, state: Arc<State>) {
    loop {
        let Ok((near, _)) = listener.accept().await else { return };
        // Locked until it is in the list: a cut that comes meanwhile breaks this connection too.
        let mut connections = state.connections.lock().unwrap();
        if state.refuses_connections.load(Ordering::SeqCst) {
            continue;
        }
        let number = state.accepted.fetch_add(1, Ordering::SeqCst);
        let passing = Arc::clone(&state);
        let connection = tokio::spawn(async move {
            let Ok(far) = TcpStream::connect(broker).await else { return };
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            let is_exempt = AtomicBool::default();
            let one = One { number, is_exempt: &is_exempt, state: &passing };
            tokio::select! {
                () = pass_requests(near_read, far_write, &one) => {}
                () = pass_answers(far_read, near_write, &one) => {}
            }
        });
        connections.push(connection.abort_handle());
    }
}

/// One connection.
struct One<'a> {
    number: u64,
    is_exempt: &'a AtomicBool,
    state: &'a State,
}

impl One<'_> {
    fn note(&self, sent: &[u8]) {
        let exempt = &self.state.exempt;
        if !exempt.is_empty() && sent.windows(exempt.len()).any(|it| it == exempt) {
            self.is_exempt.store(true, Ordering::SeqCst);
        }
    }

    fn is_stopped(&self) -> bool {
        let old = self.state.stops_old.load(Ordering::SeqCst);
        let is_stopped = self.number < old || self.state.stops_new.load(Ordering::SeqCst);
        is_stopped && !self.is_exempt.load(Ordering::SeqCst)
    }
}

async fn pass_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one: &One<'_>) {
    let mut buffer = vec![0; 64 * 1_024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        one.note(&buffer[..length]);
        let is_lost = one.state.loses_requests.load(Ordering::SeqCst) || one.is_stopped();
        if !is_lost && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one: &One<'_>) {
    let state = one.state;
    let mut allowed = state.allowed.subscribe();
    let mut buffer = vec![0; 64 * 1_024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let number = state.answers.fetch_add(1, Ordering::SeqCst);
        if allowed.wait_for(|allowed| *allowed > number).await.is_err() {
            return;
        }
        let is_lost = state.loses_answers.load(Ordering::SeqCst) || one.is_stopped();
        if !is_lost && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
