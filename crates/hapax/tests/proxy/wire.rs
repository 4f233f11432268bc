//! A way to the broker that can be made to swallow what is said, in either direction, and be cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Wire {
    pub(crate) url: String,
    is_deaf: Arc<AtomicBool>,
    is_mute: Arc<AtomicBool>,
    passing: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let is_deaf = Arc::new(AtomicBool::new(false));
        let is_mute = Arc::new(AtomicBool::new(false));
        let passing: Arc<Mutex<Vec<tokio::task::AbortHandle>>> = Arc::default();
        let (deaf, mute) = (Arc::clone(&is_deaf), Arc::clone(&is_mute));
        let (kept, target) = (Arc::clone(&passing), target.to_owned());
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                let Ok(far) = TcpStream::connect(&target).await else { continue };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                let there = tokio::spawn(pass(near_read, far_write, Arc::clone(&deaf)));
                let back = tokio::spawn(pass(far_read, near_write, Arc::clone(&mute)));
                kept.lock().unwrap().extend([there.abort_handle(), back.abort_handle()]);
            }
        });
        Self { url, is_deaf, is_mute, passing, accepting }
    }

    /// From now on nothing that the broker says arrives.
    pub(crate) fn swallow_answers(&self) {
        self.is_mute.store(true, Ordering::SeqCst);
    }

    /// Ends every connection there is; new ones pass everything on.
    pub(crate) fn cut(&self) {
        self.passing.lock().unwrap().drain(..).for_each(|passing| passing.abort());
        self.is_mute.store(false, Ordering::SeqCst);
    }

    /// From now on nothing that is said reaches the broker.
    pub(crate) fn swallow(&self) {
        self.is_deaf.store(true, Ordering::SeqCst);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    is_deaf: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 16 * 1_024];
    loop {
        let Ok(length) = from.read(&mut buffer).await else { return };
        if length == 0 {
            return;
        }
        if !is_deaf.load(Ordering::SeqCst) && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
