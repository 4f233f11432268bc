//! Spans of requests reach a collector, as children of their callers' spans and without anything
//! that was only logged. One test, as the subscriber belongs to the whole process.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail by panicking")]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hapax_server::log::{self, Format};
use hapax_testing::TestBroker;
use hapax_wire::proto::{self, hapax_client::HapaxClient};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALL: &str = "hapax.v1.Hapax/GetQueue";
const PARENT: &str = "b7ad6b7169203331";

type Received = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_requests_reach_the_collector_under_their_callers_trace() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    tokio::spawn(collect(listener, Arc::clone(&received)));

    // Spans do not depend on what is logged.
    let handle = log::start(Format::Json, &"off".parse().unwrap(), Some(&endpoint)).unwrap();
    let again = log::start(Format::Json, &"off".parse().unwrap(), None);
    assert!(matches!(again, Err(log::Error::Started)));

    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let span = log::request_span("POST /v1/queues/{queue}/messages", Some(&traceparent));
    span.record("queue", "orders");
    span.in_scope(|| tracing::error!("a line of the log, with a secret"));
    drop(span);
    drop(log::request_span("GET /v1/queues", None));
    drop(tracing::error_span!("another span of the process"));
    // Whom the caller does not want to be traced is not.
    drop(log::request_span("unsampled", Some(&format!("00-{TRACE}-{PARENT}-00"))));
    ask_both_doors(&traceparent).await;
    handle.stop().await;
    assert!(log::request_span("too late", None).is_none());

    let received = received.lock().unwrap();
    let spans: Vec<&Span> = received
        .iter()
        .flat_map(|request| &request.resource_spans)
        .flat_map(|resource| &resource.scope_spans)
        .flat_map(|scope| &scope.spans)
        .collect();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let expected =
        ["POST /v1/queues/{queue}/messages", "GET /v1/queues", "GET /v1/queues/{queue}", CALL];
    assert_eq!(names, expected);
    for asked in &spans[2..] {
        assert_eq!(hex(&asked.trace_id), TRACE, "{}", asked.name);
        assert_eq!(attribute(&asked.attributes, "answer").as_deref(), Some("no_such_queue"));
    }
    assert_eq!(hex(&spans[0].trace_id), TRACE);
    assert_eq!(hex(&spans[0].parent_span_id), PARENT);
    assert_eq!(spans[0].kind, 2, "a server's span");
    assert_eq!(attribute(&spans[0].attributes, "queue").as_deref(), Some("orders"));
    assert_ne!(hex(&spans[1].trace_id), TRACE);
    assert!(spans[1].parent_span_id.is_empty());
    assert!(spans.iter().all(|span| span.events.is_empty()), "what is logged stays in the log");
    let resource = received[0].resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("hapax"));
}

/// A question to each door of a broker, within the caller's trace.
async fn ask_both_doors(traceparent: &str) {
    let broker = TestBroker::start(1).await;
    let address = broker.address();

    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut http, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/v1/queues/none").header("host", "hapax");
    let request = request.header("traceparent", traceparent).body(Full::new(Bytes::new())).unwrap();
    assert_eq!(http.send_request(request).await.unwrap().status(), 404);

    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut grpc = HapaxClient::new(endpoint.connect().await.unwrap());
    let mut request = tonic::Request::new(proto::QueueRequest { queue: "none".to_owned() });
    request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
    grpc.get_queue(request).await.unwrap_err();
    drop((http, grpc));
    broker.stop().await;
}

/// A collector: keeps what it is sent.
async fn collect(listener: TcpListener, received: Received) {
    while let Ok((stream, _)) = listener.accept().await {
        let received = Arc::clone(&received);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let received = Arc::clone(&received);
            async move {
                assert_eq!(request.uri().path(), EXPORT);
                let body = request.into_body().collect().await.unwrap().to_bytes();
                // A message is one byte for its compression and four for its length before it.
                assert_eq!(body[0], 0, "not compressed");
                let message = ExportTraceServiceRequest::decode(&body[5..]).unwrap();
                received.lock().unwrap().push(message);
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                let empty = Full::new(Bytes::from_static(&[0; 5]));
                let body = empty.with_trailers(async { Some(Ok(trailers)) });
                Response::builder().header("content-type", "application/grpc").body(body)
            }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
