//! Checks of the `Connection` header.
//!
//! A header that `Connection` names ends at the next hop, so that a service behind a proxy does not
//! see it. A client that names the header of its key, of its credentials or of anything that is
//! compared would make the service see another request than the one that was fingerprinted. Such a
//! request is refused on every route: no client has a reason to send it.

use http::{HeaderMap, HeaderName, header};

use crate::builder::{CREDENTIALS, Rules};
use crate::key::IDEMPOTENCY_KEY;
use crate::problem::Problem;
use crate::route::KeySource;

/// End-to-end headers, which `Connection` must not name: the caller's credentials and address, the
/// key, the host, and the headers that describe the body.
static END_TO_END: [HeaderName; 10] = [
    IDEMPOTENCY_KEY,
    header::HOST,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];

/// Whether a header is end-to-end, whatever `Connection` says.
pub fn is_end_to_end(name: &HeaderName) -> bool {
    CREDENTIALS.contains(name) || END_TO_END.contains(name)
}

/// Headers that `Connection` names.
pub fn named(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Refuses a request whose `Connection` names a header that identifies the caller or the request.
pub(crate) fn check(rules: &Rules, headers: &HeaderMap) -> Result<(), Problem> {
    let is_key = |name: &HeaderName| {
        let mut sources = rules.routes.iter().map(|route| &route.key);
        sources.any(|source| matches!(source, KeySource::Header(key) if key == name))
    };
    let decides = |name: &HeaderName| {
        is_end_to_end(name)
            || rules.fingerprint_headers.contains(name)
            || rules.tenant_header.as_ref() == Some(name)
            || is_key(name)
    };
    match named(headers).find(decides) {
        Some(name) => Err(Problem::hop_by_hop(&name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use hapax_client::Client;
    use http::{HeaderValue, Request, Response};
    use http_body_util::{BodyExt, Full};
    use tower_layer::Layer;
    use tower_service::Service;

    use crate::{Idempotency, Route};

    /// What a request with this `Connection` gets, and whether it reached the service.
    async fn ask(uri: &str, connection: &[u8]) -> (u16, serde_json::Value, usize) {
        let broker = Client::connect("http://127.0.0.1:1").unwrap();
        let route: Route = "POST /hooks".parse().unwrap();
        let layer = Idempotency::builder(broker.queue("http"))
            .required("POST /charges")
            .route(route.key_header(HeaderName::from_static("webhook-id")))
            .tenant_header(HeaderName::from_static("x-account"))
            .fingerprint_headers([HeaderName::from_static("x-version")])
            .build()
            .unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let called = Arc::clone(&calls);
        let mut service = layer.layer(Called(called));
        let mut request = Request::post(uri).body(Full::<Bytes>::default()).unwrap();
        let connection = HeaderValue::from_bytes(connection).unwrap();
        request.headers_mut().append("connection", HeaderValue::from_static("keep-alive"));
        request.headers_mut().append("connection", connection);
        let response = service.call(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let document = serde_json::from_slice(&body).unwrap_or_default();
        (status, document, calls.load(Ordering::SeqCst))
    }

    /// A service that counts its calls.
    #[derive(Clone)]
    struct Called(Arc<AtomicUsize>);

    impl Service<Request<Full<Bytes>>> for Called {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(Response::default()))
        }
    }

    #[tokio::test]
    async fn a_request_that_names_what_decides_in_connection_is_refused_on_every_route() {
        let decides = [
            "Authorization",
            "cookie",
            "X-Api-Key",
            "Idempotency-Key",
            "Host",
            "Content-Type",
            "content-length",
            "X-Forwarded-For",
            "Webhook-Id",
            "X-Account",
            "x-version",
        ];
        for name in decides {
            for uri in ["/charges", "/hooks", "/unlisted"] {
                for connection in [name.to_owned(), format!("close,, x-hop ,\t{name} ,te")] {
                    let (status, document, calls) = ask(uri, connection.as_bytes()).await;
                    assert_eq!((status, calls), (400, 0), "{uri} {connection}: {document}");
                    assert_eq!(document["code"], "invalid");
                    let detail = document["detail"].as_str().unwrap();
                    assert!(detail.contains(&name.to_lowercase()), "{connection}: {detail}");
                }
            }
        }
        let (status, _, calls) = ask("/unlisted", b"\xff, cookie").await;
        assert_eq!((status, calls), (400, 0), "beside what is not a name");
    }

    #[tokio::test]
    async fn a_connection_may_name_what_is_its_own() {
        for connection in ["close", "te, trailers", "x-hop", "upgrade, http2-settings", "", ","] {
            let (status, _, calls) = ask("/unlisted", connection.as_bytes()).await;
            assert_eq!((status, calls), (200, 1), "{connection}");
        }
    }
}
