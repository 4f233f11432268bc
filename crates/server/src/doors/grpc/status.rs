//! Refusals of a whole call, as gRPC statuses.

use hapax_wire::Code;
use hapax_wire::lean::{Malformed, Undecoded};
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::problem::Problem;

pub(super) const CODE: &str = "hapax-code";

/// The code for programs travels as metadata: `hapax-code`, and `hapax-retry-after-ms`.
pub(super) fn status(problem: &Problem) -> Status {
    let mut status = Status::new(problem.code.grpc(), problem.detail.clone());
    let metadata = status.metadata_mut();
    if let Ok(code) = MetadataValue::try_from(problem.code.as_str()) {
        metadata.insert(CODE, code);
    }
    if let Some(ms) = problem.retry_after_ms {
        metadata.insert("hapax-retry-after-ms", MetadataValue::from(ms));
    }
    status
}

/// A refusal by the framework (broken frames, unknown calls) with one of our codes.
pub(super) fn named(refused: &Status) -> Status {
    if refused.metadata().contains_key(CODE) {
        return refused.clone();
    }
    let code = match refused.code() {
        tonic::Code::OutOfRange => Code::TooLarge,
        tonic::Code::Internal | tonic::Code::InvalidArgument => Code::Invalid,
        // Kept, because clients look for this code if a call or an encoding is unknown.
        tonic::Code::Unimplemented => {
            let mut status = refused.clone();
            status.metadata_mut().insert(CODE, MetadataValue::from_static("invalid"));
            return status;
        }
        _ => return refused.clone(),
    };
    status(&Problem::new(code, refused.message()))
}

/// The caller broke the protocol of a stream.
pub(super) fn misuse(detail: &str) -> Status {
    status(&Problem::invalid(detail))
}

/// The caller speaks another protocol.
pub(super) fn malformed(malformed: Malformed) -> Status {
    misuse(&malformed.to_string())
}

/// A frame that is not decoded.
pub(super) fn undecoded(why: Undecoded) -> Status {
    match why {
        Undecoded::TooMany => status(&Problem::new(Code::TooLarge, why.to_string())),
        Undecoded::Malformed(why) => malformed(why),
    }
}

/// A stream that ends because the broker does: what is unanswered is for the next connection.
pub(super) fn stopping() -> Problem {
    Problem::new(
        Code::Unavailable,
        "the broker is stopping: connect again and resend everything \
                                     without an answer",
    )
}
