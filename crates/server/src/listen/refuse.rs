//! Connections beyond `max_connections`: answered with 503 if that is cheap, and closed.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hapax_wire::Code;
use serde_json::json;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::doors::http::generated;

/// Refusals that wait for their peers at a time; beyond, connections are just closed.
const TOLD_MAX: usize = 64;
/// Timeout for the peer to read the answer.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Refusals {
    /// Not under TLS: a full broker should not spend time on a handshake.
    is_answering: bool,
    telling: JoinSet<()>,
}

impl Refusals {
    pub(super) fn new(is_encrypted: bool) -> Self {
        Self { is_answering: !is_encrypted, telling: JoinSet::new() }
    }

    pub(super) fn refuse(&mut self, stream: TcpStream) {
        if self.is_answering && self.telling.len() < TOLD_MAX {
            self.telling.spawn(async move {
                // A peer that is too slow to read the answer is closed too.
                let _ = tokio::time::timeout(TOLD_WITHIN, tell(stream, &answer())).await;
            });
        }
    }

    /// Removes refusals that have ended; ready when there was one.
    pub(super) async fn tidy(&mut self) {
        if self.telling.join_next().await.is_none() {
            std::future::pending().await
        }
    }
}

fn answer() -> String {
    let code = Code::Unavailable;
    let request_id = generated();
    let request_id = request_id.to_str().unwrap_or_default();
    let problem = json!({
        "type": format!("/errors/{}", code.as_str()),
        "title": code.title(),
        "status": code.status().as_u16(),
        "detail": "the broker has reached max_connections",
        "code": code.as_str(),
        "retryable": code.is_retryable(),
        "request_id": request_id,
    })
    .to_string();
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         request-id: {request_id}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{problem}",
        code.status(),
        problem.len()
    )
}

/// Closing while the peer's request is unread would make the kernel discard the answer. So: answer,
/// shut down the write side, and read until the peer has closed too.
async fn tell(mut stream: TcpStream, answer: &str) {
    // Into an empty buffer of the kernel: all of it, or the peer is gone.
    if stream.writable().await.is_err() || stream.try_write(answer.as_bytes()).is_err() {
        return;
    }
    if poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await.is_err() {
        return;
    }
    let mut ignored = [0; 4_096];
    loop {
        match stream.try_read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if stream.readable().await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}
