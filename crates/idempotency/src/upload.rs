//! Reads request bodies completely, within limits of size, of time, and of the memory of all
//! incomplete bodies.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::builder::Rules;
use crate::limits::UPLOAD_FREE_BYTES;
use crate::problem::Problem;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The bytes of a permit.
const UNIT: usize = 1_024;

/// The memory for incomplete bodies.
#[derive(Debug)]
pub(crate) struct Uploads {
    room: Arc<Semaphore>,
    max: usize,
}

impl Uploads {
    pub(crate) fn new(bytes: usize) -> Self {
        let max = bytes.div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(max)), max }
    }

    /// Makes it large enough for one body of this size.
    pub(crate) fn at_least(self, bytes: usize) -> Self {
        let needed = bytes.saturating_sub(UPLOAD_FREE_BYTES);
        if needed.div_ceil(UNIT) <= self.max { self } else { Self::new(needed) }
    }
}

/// The memory of one body.
struct Share<'a> {
    uploads: &'a Uploads,
    held: Option<OwnedSemaphorePermit>,
}

impl Share<'_> {
    /// Takes as much memory as a body of this size needs.
    fn grow(&mut self, bytes: usize) -> Result<(), Unread> {
        let needed = bytes.saturating_sub(UPLOAD_FREE_BYTES).div_ceil(UNIT);
        let more = needed - self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).map_err(|_| Unread::NoRoom)?;
        let room = Arc::clone(&self.uploads.room);
        let permit = room.try_acquire_many_owned(more).map_err(|_| Unread::NoRoom)?;
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        Ok(())
    }
}

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    Refused(Problem),
    /// There is no memory left.
    NoRoom,
}

impl From<Problem> for Unread {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

/// Reads the complete body of a request.
pub(crate) async fn read<B>(rules: &Rules, headers: &HeaderMap, body: B) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let max = rules.request_bytes_max;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|value| value.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > max as u64) {
        return Err(Problem::too_large(max).into());
    }
    let share = Share { uploads: &rules.uploads, held: None };
    match tokio::time::timeout(rules.request_timeout, gather(body, max, share)).await {
        Ok(gathered) => gathered,
        Err(_) => Err(Problem::request_timeout(rules.request_timeout).into()),
    }
}

async fn gather<B>(body: B, max: usize, mut share: Share<'_>) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::broken_request())?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > max {
            return Err(Problem::too_large(max).into());
        }
        if bytes.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        share.grow(length)?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(uploads: &Uploads, bytes: usize) -> Option<Share<'_>> {
        let mut share = Share { uploads, held: None };
        share.grow(bytes).ok().map(|()| share)
    }

    #[test]
    fn the_first_of_a_body_takes_no_room_and_the_rest_gives_it_back() {
        let uploads = Uploads::new(2 * UNIT);
        let mut first = grow(&uploads, UPLOAD_FREE_BYTES + 1).unwrap();
        assert_eq!(uploads.room.available_permits(), 1);
        assert!(grow(&uploads, UPLOAD_FREE_BYTES + 2 * UNIT).is_none(), "there is less");
        let small: Vec<_> = (0..100).map(|_| grow(&uploads, UPLOAD_FREE_BYTES).unwrap()).collect();
        first.grow(UPLOAD_FREE_BYTES + 2 * UNIT).unwrap();
        assert_eq!(uploads.room.available_permits(), 0);
        drop((first, small));
        assert_eq!(uploads.room.available_permits(), 2);
    }

    #[test]
    fn there_is_room_for_the_largest_body_whatever_was_said() {
        let uploads = Uploads::new(0).at_least(UPLOAD_FREE_BYTES + 5 * UNIT);
        assert!(grow(&uploads, UPLOAD_FREE_BYTES + 5 * UNIT).is_some());
        assert_eq!(Uploads::new(7 * UNIT).at_least(UNIT).max, 7);
    }
}
