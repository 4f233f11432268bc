//! A way to the broker that can be made to swallow what is said, in either direction, to hold
//! answers back, and be cut.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub(crate) struct Wire {
    pub(crate) url: String,
    ways: Ways,
    is_away: Arc<AtomicBool>,
    passing: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: tokio::task::JoinHandle<()>,
}

/// What happens to what is said.
#[derive(Clone)]
struct Ways {
    is_deaf: Arc<AtomicBool>,
    is_mute: Arc<AtomicBool>,
    /// Pieces of answers that were read so far, over all connections.
    said: Arc<AtomicU64>,
    /// So many of them may be passed on.
    allowed: watch::Sender<u64>,
}

impl Wire {
    pub(crate) async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ways = Ways {
            is_deaf: Arc::default(),
            is_mute: Arc::default(),
            said: Arc::default(),
            allowed: watch::Sender::new(u64::MAX),
        };
        let is_away: Arc<AtomicBool> = Arc::default();
        let passing: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let (open, gone) = (ways.clone(), Arc::clone(&is_away));
        let (kept, target) = (Arc::clone(&passing), target.to_owned());
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                if gone.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&target).await else { continue };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                let there = tokio::spawn(pass_on(near_read, far_write, Arc::clone(&open.is_deaf)));
                let back = tokio::spawn(answer(far_read, near_write, open.clone()));
                kept.lock().unwrap().extend([there.abort_handle(), back.abort_handle()]);
            }
        });
        Self { url, ways, is_away, passing, accepting }
    }

    /// From now on nothing that the broker says arrives.
    pub(crate) fn swallow_answers(&self) {
        self.ways.is_mute.store(true, Ordering::SeqCst);
    }

    /// Ends every connection there is; new ones pass everything on.
    pub(crate) fn cut(&self) {
        self.passing.lock().unwrap().drain(..).for_each(|passing| passing.abort());
        self.ways.is_mute.store(false, Ordering::SeqCst);
        self.ways.allowed.send_replace(u64::MAX);
    }

    /// From now on answers stand still, until they are passed.
    pub(crate) fn hold_answers(&self) {
        self.pass(self.said());
    }

    /// How many pieces of answers have come so far.
    pub(crate) fn said(&self) -> u64 {
        self.ways.said.load(Ordering::SeqCst)
    }

    /// Passes on the first so many pieces, and no more.
    pub(crate) fn pass(&self, pieces: u64) {
        self.ways.allowed.send_replace(pieces);
    }

    /// Ends every connection there is, and no new ones can be made until it comes back.
    pub(crate) fn go_away(&self) {
        self.is_away.store(true, Ordering::SeqCst);
        self.cut();
    }

    pub(crate) fn come_back(&self) {
        self.is_away.store(false, Ordering::SeqCst);
    }

    /// From now on nothing that is said reaches the broker.
    pub(crate) fn swallow(&self) {
        self.ways.is_deaf.store(true, Ordering::SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_deaf: Arc<AtomicBool>) {
    let mut buffer = vec![0; 16 * 1_024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if !is_deaf.load(Ordering::SeqCst) && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, ways: Ways) {
    let mut allowed = ways.allowed.subscribe();
    let mut buffer = vec![0; 16 * 1_024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let number = ways.said.fetch_add(1, Ordering::SeqCst);
        if allowed.wait_for(|allowed| *allowed > number).await.is_err() {
            return;
        }
        let is_mute = ways.is_mute.load(Ordering::SeqCst);
        if !is_mute && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
