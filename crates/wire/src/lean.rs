//! The messages of the streams, read and written without allocation.
//!
//! The generated types allocate and copy every text, which on the streams is most of the work. Here
//! a message is read as slices of its frame and written from slices. The bytes are those of the
//! `.proto`: tests compare every message with the generated type. What is rare on the streams uses
//! the generated types.

mod claims;
mod codec;
mod frames;
mod incoming;
mod members;
mod read;
mod write;

pub use claims::{Claim, ClaimsFrame};
pub use codec::{Bounded, BoundedDecoder, Raw};
pub use frames::Frames;
pub use incoming::Incoming;
pub use members::{MEMBERS_MAX, Undecoded, check_members};
pub use read::{
    Answer, Answers, Delivery, Fields, Frame, Malformed, Message, Settle, SettleAnswer, Value,
    WorkFrame, WorkReply,
};
pub use write::{
    frame_head, put_answer, put_claim, put_delivery, put_done, put_message, put_nested, put_settled,
};

/// Field 1 of a `SendReply`: an answer.
pub const ANSWER: u8 = 1 << 3 | 2;
/// Field 2 of a `SendFrame`: a message.
pub const MESSAGE: u8 = 2 << 3 | 2;
/// Field 3 of a `WorkFrame` and of a `ClaimsFrame`: a settle.
pub const SETTLE: u8 = 3 << 3 | 2;
/// Field 2 of a `WorkReply` and of a `ClaimsReply`: the answer to a settle.
pub const SETTLED: u8 = 2 << 3 | 2;
/// Field 2 of a `ClaimsFrame`: a claim.
pub const CLAIM: u8 = 2 << 3 | 2;
/// Field 1 of a `ClaimsReply`: the answer to a claim.
pub const CLAIMED: u8 = 1 << 3 | 2;
