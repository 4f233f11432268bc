//! Frames as bytes, up and down. What they say is for the streams, which read and write them as
//! they are.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, EncodeBuf};

/// Frames leave together up to this size.
const BUFFER_BYTES: usize = 64 * 1_024;

/// A codec whose frames are written from `T` and read as [`Bytes`].
#[derive(Debug)]
pub struct Raw<T>(PhantomData<fn(T)>);

impl<T> Default for Raw<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: AsRef<[u8]> + Send + 'static> tonic::codec::Codec for Raw<T> {
    type Encode = T;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: AsRef<[u8]>> tonic::codec::Encoder for Raw<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, frame: T, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let frame = frame.as_ref();
        into.reserve(frame.len());
        into.put_slice(frame);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES)
    }
}

impl<T> tonic::codec::Decoder for Raw<T> {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES)
    }
}
