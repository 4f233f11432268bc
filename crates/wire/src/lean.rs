//! The messages of the two streams, read from and written to bytes as they are.
//!
//! The generated types allocate for every text and copy themselves around; on the streams that is
//! most of the work. Here a message is read as slices of its frame and written from slices. The
//! bytes are those of the `.proto`: tests hold every message against the generated one. What is
//! rare on the streams is left to the generated types.

mod codec;
mod read;
mod write;

pub use codec::Raw;
pub use read::{
    Answer, Answers, Delivery, Fields, Frame, Malformed, Message, Settle, SettleAnswer, Value,
    WorkFrame, WorkReply,
};
pub use write::{
    frame_head, put_answer, put_delivery, put_done, put_message, put_nested, put_settled,
};

/// Field 1 of a `SendReply`: an answer.
pub const ANSWER: u8 = 1 << 3 | 2;
/// Field 2 of a `SendFrame`: a message.
pub const MESSAGE: u8 = 2 << 3 | 2;
/// Field 3 of a `WorkFrame`: a settle.
pub const SETTLE: u8 = 3 << 3 | 2;
/// Field 2 of a `WorkReply`: the answer to a settle.
pub const SETTLED: u8 = 2 << 3 | 2;
