//! Codecs of gRPC: one that passes frames as bytes, which the streams parse, and one for unary
//! calls, which counts the members of a request before it is decoded.

use std::convert::Infallible;
use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::members::{Undecoded, check_members};

/// The read buffer.
const BUFFER_BYTES: usize = 64 * 1_024;

/// A codec whose frames are read as [`Bytes`]. It writes none: [`super::Frames`] are themselves a
/// body.
#[derive(Debug, Default)]
pub struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Infallible;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Infallible;
    type Error = Status;

    fn encode(&mut self, frame: Infallible, _into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match frame {}
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES)
    }
}

/// A codec of messages. A request with too many members is refused before it is decoded.
#[derive(Debug)]
pub struct Bounded<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Bounded<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Bounded<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + prost::Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(ProstDecoder::default())
    }
}

#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: prost::Message + prost::Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        debug_assert_eq!(from.chunk().len(), from.remaining(), "a message is one piece");
        let checked = check_members(&U::full_name(), from.chunk());
        checked.map_err(|why| match why {
            Undecoded::TooMany => Status::out_of_range(why.to_string()),
            Undecoded::Malformed(_) => Status::invalid_argument(why.to_string()),
        })?;
        self.0.decode(from)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
