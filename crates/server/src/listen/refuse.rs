//! Connections beyond `max_connections`: answered with 503 if that is cheap, and closed.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hapax_wire::Code;
use serde_json::json;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Refusals that wait for their peers at a time; beyond, connections are just closed.
const TOLD_MAX: usize = 64;
/// Timeout for the peer to read the answer.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Refusals {
    /// `None` under TLS: a handshake is what a full broker should spare itself.
    answer: Option<Arc<str>>,
    telling: JoinSet<()>,
}

impl Refusals {
    pub(super) fn new(is_encrypted: bool) -> Self {
        let answer = (!is_encrypted).then(|| answer().into());
        Self { answer, telling: JoinSet::new() }
    }

    pub(super) fn refuse(&mut self, stream: TcpStream) {
        if let Some(answer) = self.answer.clone()
            && self.telling.len() < TOLD_MAX
        {
            self.telling.spawn(async move {
                // A peer too slow to be told is closed like any other.
                let _ = tokio::time::timeout(TOLD_WITHIN, tell(stream, &answer)).await;
            });
        }
    }

    /// Forgets those that have ended; ready when there was one.
    pub(super) async fn tidy(&mut self) {
        if self.telling.join_next().await.is_none() {
            std::future::pending().await
        }
    }
}

fn answer() -> String {
    let code = Code::Unavailable;
    let problem = json!({
        "type": format!("/errors/{}", code.as_str()),
        "title": code.title(),
        "status": code.status().as_u16(),
        "detail": "the broker has reached max_connections",
        "code": code.as_str(),
        "retryable": code.is_retryable(),
    })
    .to_string();
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{problem}",
        code.status(),
        problem.len()
    )
}

/// Closing while the peer's request is unread would make the kernel throw the answer away. So:
/// answer, say that there is no more, and read until the peer has closed too.
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
