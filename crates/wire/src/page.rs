//! What the broker publishes about itself: its limits and its errors.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::code::Code;

/// What an error code means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorPage {
    #[schema(value_type = Code)]
    pub code: String,
    pub title: String,
    pub status: u16,
    pub retryable: bool,
    /// What the answer says about the request.
    pub means: String,
    /// The cause.
    pub why: String,
    /// What the caller can do now.
    pub what_to_do: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorPages {
    pub errors: Vec<ErrorPage>,
}

/// The empty body of a request that needs none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct Nothing {}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Every bound of a request. Sizes are in bytes, times in milliseconds.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
        pub struct Limits { $($(#[$doc])* pub $name: u64,)+ }
    };
}

limits! {
    queue_name_bytes_max,
    key_bytes_max,
    group_bytes_max,
    content_type_bytes_max,
    fingerprint_bytes_max,
    worker_bytes_max,
    receive_id_bytes_max,
    redrive_id_bytes_max,
    claim_id_bytes_max,
    error_bytes_max,
    /// The most headers of one message.
    headers_max,
    headers_bytes_max,
    /// The largest `max_body_bytes` of a queue.
    body_bytes_max,
    batch_messages_max,
    batch_bytes_max,
    receive_messages_max,
    /// The most bytes of bodies in one receive. Messages beyond it come with the next receive.
    receive_bytes_max,
    settle_items_max,
    settle_bytes_max,
    /// The largest frame of a gRPC stream and the largest unary request.
    grpc_frame_bytes_max,
    emits_max,
    emit_name_bytes_max,
    emits_bytes_max,
    recovery_points_max,
    recovery_points_bytes_max,
    recovery_point_name_bytes_max,
    browse_messages_max,
    redrive_keys_max,
    /// The most events in the history of a key.
    history_events_max,
    /// The longest `wait_ms` and `Prefer: wait`.
    wait_ms_max,
    lease_ms_min,
    lease_ms_max,
    delay_ms_max,
    retention_ms_min,
    retention_ms_max,
    backoff_ms_max,
    attempts_max,
}
