//! Doors that are exchanged while the port is open: a node that serves gets others than one that
//! does not.
//!
//! A request goes to the doors that are there when it comes. When they are taken away its handler
//! is dropped, and it is answered that the outcome is not known: a stream ends with that status.
//! Without that, a caller would wait at a node that has nothing to say any more.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use hapax_wire::Code;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::{grpc, http as web};
use crate::problem::Problem;

/// The present doors. Cheap to clone; all clones have the same.
#[derive(Clone, Debug)]
pub struct Doors(Arc<ArcSwap<Present>>);

#[derive(Debug)]
struct Present {
    routes: Router,
    ended: watch::Sender<Option<Arc<str>>>,
}

impl Doors {
    pub fn new(routes: Router) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Present::new(routes))))
    }

    /// Requests go to other doors from now on. Those that are not answered yet get `why`, or go on
    /// to their end where there is none.
    pub fn exchange(&self, routes: Router, why: Option<&str>) {
        let before = self.0.swap(Arc::new(Present::new(routes)));
        if let Some(why) = why {
            before.ended.send_replace(Some(why.into()));
        }
    }
}

impl Present {
    fn new(routes: Router) -> Self {
        Self { routes, ended: watch::Sender::new(None) }
    }
}

impl tower::Service<Request<Incoming>> for Doors {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let present = self.0.load_full();
        Box::pin(async move {
            let ended = ended(present.ended.subscribe()).shared();
            let is_grpc = is_grpc(request.headers());
            let headers = request.headers().clone();
            let mut routes = present.routes.clone();
            // The doors may be gone before their answer is: they are kept by it.
            drop(present);
            tokio::select! {
                Ok(response) = routes.call(request) => {
                    let ended = Box::pin(ended);
                    Ok(response.map(|body| Body::new(Open { body, ended, is_grpc })))
                }
                why = ended.clone() => Ok(unknown(&why, is_grpc, &headers)),
            }
        })
    }
}

async fn ended(mut ended: watch::Receiver<Option<Arc<str>>>) -> Arc<str> {
    let why = ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
    match why {
        Some(why) => why,
        // They were exchanged without ending what is open.
        None => std::future::pending().await,
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.starts_with(b"application/grpc")
}

/// The answer to a request that may or may not have been carried out.
fn unknown(why: &str, is_grpc: bool, headers: &HeaderMap) -> Response<Body> {
    let problem = problem(why);
    match is_grpc {
        true => grpc::refused(&problem),
        false => web::refused(problem, headers),
    }
}

fn problem(why: &str) -> Problem {
    let detail =
        format!("{why}; whether the request was carried out is not known, a retry is safe");
    Problem::new(Code::Unavailable, detail)
}

/// The body of an answer, until its doors are taken away.
struct Open {
    body: Body,
    ended: Pin<Box<dyn Future<Output = Arc<str>> + Send>>,
    is_grpc: bool,
}

impl http_body::Body for Open {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // What is there leaves first.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let why = ready!(self.ended.as_mut().poll(context));
        self.body = Body::empty();
        self.ended = Box::pin(std::future::pending());
        Poll::Ready(Some(match self.is_grpc {
            true => Ok(Frame::trailers(grpc::trailers(&problem(&why)))),
            false => Err(axum::Error::new(problem(&why))),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
