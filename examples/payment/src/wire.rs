//! The connection between the service and its broker, which loses answers and breaks.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    is_deaf: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Wire {
    pub(crate) async fn to(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let wire = Self {
            address: listener.local_addr()?,
            is_deaf: Arc::default(),
            connections: Arc::default(),
        };
        let (is_deaf, connections) = (Arc::clone(&wire.is_deaf), Arc::clone(&wire.connections));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let passing = tokio::spawn(pass(near, target, Arc::clone(&is_deaf)));
                let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
                connections.retain(|connection| !connection.is_finished());
                connections.push(passing.abort_handle());
            }
        });
        Ok(wire)
    }

    /// Loses all answers for this time, and then breaks every connection.
    pub(crate) async fn fail(&self, time: Duration) {
        self.is_deaf.store(true, Ordering::SeqCst);
        tokio::time::sleep(time).await;
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.drain(..).for_each(|connection| connection.abort());
        self.is_deaf.store(false, Ordering::SeqCst);
    }
}

async fn pass(near: TcpStream, target: SocketAddr, is_deaf: Arc<AtomicBool>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let (from_near, to_near) = near.into_split();
    let (from_far, to_far) = far.into_split();
    let hears = AtomicBool::new(false);
    tokio::select! {
        () = copy(from_near, to_far, &hears) => {}
        () = copy(from_far, to_near, &is_deaf) => {}
    }
}

/// Passes bytes on, or loses them.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_deaf: &AtomicBool,
) {
    let mut buffer = vec![0; 16 * 1_024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let Some(bytes) = buffer.get(..count) else { return };
        // Half an answer is useless: once bytes were lost, all are until the connection breaks.
        if is_deaf.load(Ordering::SeqCst) {
            while let Ok(1..) = from.read(&mut buffer).await {}
            return;
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
