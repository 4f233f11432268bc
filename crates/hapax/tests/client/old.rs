//! A broker as it was before it had the stream `Claims`: a front that does not know the method and
//! passes on everything else. Its claims wait for a short time only, whatever they ask for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::Request;
use bytes::{BufMut, BytesMut};
use hapax_client::Client;
use hapax_testing::PATIENCE;
use hapax_wire::proto;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

/// The longest wait of one claim.
const WAIT_MS_MAX: u64 = 20;

pub(crate) struct OldBroker {
    pub(crate) client: Client,
    pub(crate) address: SocketAddr,
    /// How often it was asked for the stream.
    asked: Arc<AtomicUsize>,
    serving: tokio::task::AbortHandle,
}

impl OldBroker {
    pub(crate) async fn before(broker: SocketAddr) -> Self {
        Self::refusing(broker, "12", "invalid").await
    }

    /// Refuses the stream with this gRPC status and this code.
    pub(crate) async fn refusing(
        broker: SocketAddr,
        status: &'static str,
        code: &'static str,
    ) -> Self {
        let stream = TcpStream::connect(broker).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let asked = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&asked);
        let pass = move |request: Request| {
            let (mut sender, counting) = (sender.clone(), Arc::clone(&counting));
            async move {
                if request.uri().path() == "/hapax.v1.Hapax/Claims" {
                    counting.fetch_add(1, Ordering::SeqCst);
                    let unknown = http::Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", status)
                        .header("hapax-code", code);
                    return unknown.body(Body::empty()).unwrap();
                }
                let request = match request.uri().path() {
                    "/hapax.v1.Hapax/Claim" => shorten(request).await,
                    _ => request,
                };
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap().map(Body::new)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = axum::Router::new().fallback(pass);
        let serving = tokio::spawn(async { axum::serve(listener, app).await.unwrap() });
        let client =
            Client::builder(&format!("http://{address}")).timeout(PATIENCE).connect().unwrap();
        Self { client, address, asked, serving: serving.abort_handle() }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// The claim, which waits no longer than [`WAIT_MS_MAX`].
async fn shorten(request: Request) -> Request {
    let (mut head, body) = request.into_parts();
    head.headers.remove(http::header::CONTENT_LENGTH);
    let mut frame = BytesMut::from(body.collect().await.unwrap().to_bytes());
    // After a byte that it is not compressed, and its length in four.
    let mut claim = proto::ClaimRequest::decode(frame.split_off(5)).unwrap();
    claim.wait_ms = claim.wait_ms.min(WAIT_MS_MAX);
    let mut frame = BytesMut::from(&[0][..]);
    frame.put_u32(claim.encoded_len() as u32);
    claim.encode(&mut frame).unwrap();
    Request::from_parts(head, Body::from(frame.freeze()))
}

impl Drop for OldBroker {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
