//! A way to the broker that can be made to swallow everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Wire {
    pub(crate) url: String,
    is_deaf: Arc<AtomicBool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let is_deaf = Arc::new(AtomicBool::new(false));
        let (deaf, target) = (Arc::clone(&is_deaf), target.to_owned());
        let accepting = tokio::spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else { return };
                let Ok(far) = TcpStream::connect(&target).await else { continue };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::spawn(pass(near_read, far_write, Arc::clone(&deaf)));
                tokio::spawn(pass(far_read, near_write, Arc::default()));
            }
        });
        Self { url, is_deaf, accepting }
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
