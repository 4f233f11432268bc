//! One request over its own connection, so that its errors do not affect others.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Sends a request and reads its answer. After an error it is unknown whether it was carried out.
pub(crate) async fn send(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Reply> {
    let mut request = Request::post(path).header("host", address.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body)))?;
    let exchange = async {
        let stream = TokioIo::new(TcpStream::connect(address).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        // It ends with the sender, which also gets its errors.
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Reply { status: head.status, headers: head.headers, body })
    };
    tokio::time::timeout(TIMEOUT, exchange).await?
}

/// Like `send`, but anything except a success is an error.
pub(crate) async fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Reply> {
    let reply = send(address, path, headers, body).await?;
    let text = String::from_utf8_lossy(&reply.body);
    ensure!(reply.status.is_success(), "{}: {text}", reply.status);
    Ok(reply)
}
