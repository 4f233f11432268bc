//! The body of an answer: bytes that were read already, and a rest that is streamed.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// The body of the layer's response: a stored body, a problem, or the handler's own body, which is
/// streamed if it is not stored.
#[derive(Debug)]
pub struct ResponseBody<R> {
    first: Option<Bytes>,
    rest: Option<R>,
}

impl<R> ResponseBody<R> {
    /// The handler's body, streamed.
    pub(crate) fn passed(body: R) -> Self {
        Self { first: None, rest: Some(body) }
    }

    /// The handler's body, of which the beginning was read.
    fn continued(first: Bytes, rest: R) -> Self {
        Self { first: Some(first), rest: Some(rest) }
    }
}

impl<R> From<Bytes> for ResponseBody<R> {
    fn from(bytes: Bytes) -> Self {
        Self { first: (!bytes.is_empty()).then_some(bytes), rest: None }
    }
}

impl<R: Body<Data = Bytes> + Unpin> Body for ResponseBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// A handler's body, as far as it was read.
#[derive(Debug)]
pub(crate) enum Gathered<R> {
    Whole(Bytes),
    /// It is larger than what may be stored.
    TooLarge(ResponseBody<R>),
    /// It was interrupted.
    Broken(String),
}

/// Reads a body until its end or the frame in which it exceeds `max`. Trailers are dropped.
pub(crate) async fn gather<R>(mut body: R, max: usize) -> Gathered<R>
where
    R: Body<Data = Bytes> + Unpin,
    R::Error: std::fmt::Display,
{
    let mut bytes = BytesMut::new();
    loop {
        match body.frame().await {
            None => return Gathered::Whole(bytes.freeze()),
            Some(Err(error)) => return Gathered::Broken(error.to_string()),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if bytes.is_empty() && body.is_end_stream() && data.len() <= max {
                    return Gathered::Whole(data);
                }
                bytes.extend_from_slice(&data);
                if bytes.len() > max {
                    return Gathered::TooLarge(ResponseBody::continued(bytes.freeze(), body));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};

    fn frames(
        frames: Vec<Result<&'static str, &'static str>>,
    ) -> impl Body<Data = Bytes, Error = &'static str> + Unpin {
        let frames = frames.into_iter().map(|frame| frame.map(|data| Frame::data(data.into())));
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_within_the_bound_is_gathered_whole() {
        let gathered = gather(frames(vec![Ok("three "), Ok("lemons")]), 12).await;
        assert!(matches!(gathered, Gathered::Whole(bytes) if bytes == "three lemons"));
        let gathered = gather(Full::new(Bytes::from("lemons")), 6).await;
        assert!(matches!(gathered, Gathered::Whole(bytes) if bytes == "lemons"));
    }

    #[tokio::test]
    async fn a_larger_one_is_passed_on_without_losing_a_byte() {
        let gathered = gather(frames(vec![Ok("three "), Ok("lemons"), Ok("!")]), 11).await;
        let Gathered::TooLarge(body) = gathered else { panic!("it was kept") };
        assert_eq!(body.size_hint().lower(), 12);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "three lemons!");
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_no_body() {
        let gathered = gather(frames(vec![Ok("three "), Err("cut")]), 100).await;
        assert!(matches!(gathered, Gathered::Broken(error) if error == "cut"));
    }

    #[tokio::test]
    async fn an_answer_of_the_layers_own_has_its_exact_length() {
        let body: ResponseBody<Full<Bytes>> = Bytes::from("problem").into();
        assert_eq!(body.size_hint().exact(), Some(7));
        assert!(!body.is_end_stream());
        let empty: ResponseBody<Full<Bytes>> = Bytes::new().into();
        assert_eq!((empty.size_hint().exact(), empty.is_end_stream()), (Some(0), true));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "problem");
    }
}
