//! The closed list of error codes. A code is never reused for something else.

use std::borrow::Cow;

use http::StatusCode;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! codes {
    ($($name:ident = $text:literal $status:literal $grpc:ident $retryable:literal
        $title:literal
        means $means:literal
        why $why:literal
        what_to_do $do:literal,
    )+) => {
        /// Why a request was refused, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($name,)+ }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name of the code in answers.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            pub fn status(self) -> StatusCode {
                let number: u16 = match self { $(Self::$name => $status,)+ };
                StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }

            /// The gRPC status of a whole call that ends with it.
            pub fn grpc(self) -> tonic::Code {
                match self { $(Self::$name => tonic::Code::$grpc,)+ }
            }

            /// Whether the same request may succeed later. Under one key a retry is always safe.
            pub fn is_retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)+ }
            }

            /// A few words for people.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }

            /// What the answer says about the request.
            pub fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)+ }
            }

            /// The cause.
            pub fn why(self) -> &'static str {
                match self { $(Self::$name => $why,)+ }
            }

            /// What the caller can do now.
            pub fn what_to_do(self) -> &'static str {
                match self { $(Self::$name => $do,)+ }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == text)
            }
        }
    };
}

codes! {
    Invalid = "invalid" 400 InvalidArgument false
        "The request is invalid"
        means "A field, a header or the structure of the request is invalid. Nothing was changed."
        why "A name with a forbidden character, a number out of range, JSON that does not parse, \
             or an operation that is not allowed in the message's state."
        what_to_do "Read `detail`: it names the field and the allowed values. Do not retry: the \
                    same request fails again.",
    MissingKey = "missing_key" 400 InvalidArgument false
        "An idempotency key is required"
        means "The queue accepts only messages with a key, and this one has none."
        why "The `Idempotency-Key` header (or the `key` field) is missing or misspelt. (An empty \
             one is a `malformed_key`.)"
        what_to_do "Create one key per logical operation, store it with the operation, and send \
                    it with every retry. If messages may be processed twice, set the queue's \
                    `guarantee` to `at-least-once`.",
    MalformedKey = "malformed_key" 400 InvalidArgument false
        "The idempotency key is malformed"
        means "A key must have 1 to 255 bytes of UTF-8 without control characters."
        why "The header is neither a structured-field string (`\"order-42\"`) nor a bare value, it \
             was given twice, or it is empty or too long."
        what_to_do "Send one key, quoted or bare. If it is too long, send a hash of it.",
    Unauthorized = "unauthorized" 401 Unauthenticated false
        "A valid token is required"
        means "The caller is not authenticated."
        why "The `Authorization: Bearer` header is missing, or its token is unknown or revoked."
        what_to_do "Create a token with `hapax token create` and send it with every request.",
    Forbidden = "forbidden" 403 PermissionDenied false
        "This is not allowed"
        means "The token is valid, but not for this action on this queue; or a web page of \
               another site sent the request."
        why "A token is limited to a tenant, to queues that match its patterns, and to its \
             permissions (`send`, `work`, `admin`, `operate`). To browse messages it needs \
             `work` or `admin`, to claim `send` and `work`. A broker without tokens refuses what \
             a browser sends for a page of another site (`Sec-Fetch-Site`, `Origin`)."
        what_to_do "Use a token with the permission, or create one: `hapax token create --can`.",
    NoSuchQueue = "no_such_queue" 404 NotFound false
        "There is no such queue"
        means "The tenant of the token has no queue with this name, or the token may not see it."
        why "It was not created yet, was deleted, or the name has a typo."
        what_to_do "Create it: `hapax queue create NAME`, or `PUT /v1/queues/NAME`.",
    NoSuchKey = "no_such_key" 404 NotFound false
        "The key is unknown"
        means "Nothing was sent under this key, or the key was forgotten."
        why "A finished key is forgotten after the queue's retention, counted from the end of its \
             message."
        what_to_do "Check the key, the queue and, if the queue deduplicates per group, the group.",
    Conflict = "conflict" 422 AlreadyExists false
        "The key was used for another operation"
        means "An earlier message under this key had another body or group, or another \
               fingerprint given by the caller. The earlier message is unchanged, and this one \
               was not accepted."
        why "Two operations share a key, or the body of one operation changes between retries \
             (a timestamp, a trace id)."
        what_to_do "Use one key per operation. If the body changes between retries, send your own \
                    `hapax-fingerprint` of the fields that matter. The fields `differs`, `id` and \
                    `accepted_at` of the error identify the first message; `GET \
                    /v1/queues/QUEUE/keys/KEY` shows it. A redrive gets this error too, if its id \
                    was used for another redrive.",
    InFlight = "in_flight" 409 Aborted true
        "The key is being processed"
        means "Another caller has claimed this key and is working on it."
        why "A concurrent duplicate of the same operation, or the first caller crashed and its \
             lease has not ended yet."
        what_to_do "Retry after `Retry-After`, or wait for the outcome: `Prefer: wait=SECONDS`.",
    TooOld = "too_old" 410 FailedPrecondition false
        "The operation is older than the queue's retention"
        means "The date in the key, or `issued_at`, is older than the queue's retention. The \
               broker no longer knows whether the operation was done, and refuses to do it a \
               second time."
        why "A retry that arrived after the retention."
        what_to_do "Find out by other means whether the operation was done. If it was not, send \
                    it under a new key. If such late retries are normal, raise `retention_ms`.",
    UndatedKey = "undated_key" 422 FailedPrecondition false
        "The queue accepts only keys with a date"
        means "The queue has `undated_keys = \"refuse\"`, and this key contains no date."
        why "Only with a date (a UUIDv7 or ULID key, or `issued_at`) can the broker recognise a \
             retry of a forgotten key."
        what_to_do "Use UUIDv7 keys, or send the header `hapax-issued-at`.",
    LeaseLost = "lease_lost" 409 Aborted false
        "The lease is lost"
        means "Another worker has the message now, or it is finished. Nothing was changed."
        why "The lease ended before this settle and the message went to another worker, or an \
             operator changed the message."
        what_to_do "Stop working on the message and do not undo anything. If the message is done, \
                    its `result` is in the answer.",
    InvalidConfig = "invalid_config" 422 InvalidArgument false
        "The configuration is refused"
        means "The queue was not changed. `detail` names the field."
        why "An unknown field, a value out of range, or a combination that would weaken a \
             guarantee, such as a retention below twice the retry horizon; or an `If-Match` that \
             does not match, or `If-None-Match: *` for a queue that exists (both 412)."
        what_to_do "Correct the field. `hapax lint FILE` checks files with the same rules.",
    TooLarge = "too_large" 413 OutOfRange false
        "The request is too large"
        means "The body, the batch or the headers are above their limit."
        why "A queue accepts bodies up to its `max_body_bytes`; a batch has at most 1000 messages \
             and 8 MiB. `GET /v1/limits` lists all limits."
        what_to_do "Store large bodies elsewhere and send a reference, or split the batch.",
    OverQuota = "over_quota" 429 ResourceExhausted true
        "A limit of the queue or the tenant is reached"
        means "Nothing was accepted: the queue or the tenant has reached a limit, which `detail` \
               names."
        why "`max_messages` or `max_bytes`: workers are too slow or stopped. `max_queues`: the \
             tenant has as many queues as it may. Redrives: as many are running as may run at \
             once. Emits: as many wait for their queues as may."
        what_to_do "Messages, redrives and settles: retry after `Retry-After` under the same key \
                    or id; start more workers, or raise the limit. Queues: delete one, or raise \
                    the tenant's `max_queues`; waiting does not help.",
    RateLimited = "rate_limited" 429 ResourceExhausted true
        "Too many requests"
        means "The message was not accepted: the rate limit of the queue or of the tenant is \
               exceeded."
        why "More than `sends_per_s`."
        what_to_do "Retry after `Retry-After` under the same key.",
    StoreFull = "store_full" 507 ResourceExhausted true
        "The broker's disk is full"
        means "New messages are refused; receives and settles continue. No key was evicted."
        why "The free space on the disk of the data directory is down to the reserve for settles."
        what_to_do "Free some disk space; the broker continues without a restart. Retry under the \
                    same key.",
    Unavailable = "unavailable" 503 Unavailable true
        "The broker cannot answer now"
        means "The request was not carried out, or its outcome is unknown."
        why "The broker is starting, stopping or overloaded, or its disk failed; or this node is \
             one of several and does not serve: then nothing was done, and `serving` is the \
             address of the node that serves, if it is known."
        what_to_do "Retry under the same key: if the first try succeeded, you get its answer. If \
                    `serving` (over gRPC the metadata `hapax-serving`) names another node, send \
                    the request there.",
    Internal = "internal" 500 Internal true
        "The broker has an internal error"
        means "The outcome of the request is unknown."
        why "A bug in Hapax, or damaged data. The broker's log has the details, with the request \
             id."
        what_to_do "Retry under the same key, and report the bug with `Request-Id` and log.",
}

impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        let names = Self::ALL.iter().map(|code| code.as_str());
        let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names));
        schema.description(Some("Why a request was refused.")).build().into()
    }
}

impl ToSchema for Code {
    fn name() -> Cow<'static, str> {
        "Code".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_and_retryable_ones_are_not_the_callers_fault() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert!(code.status().is_client_error() || code.status().is_server_error());
            assert!(!code.status().is_server_error() || code.is_retryable(), "{code:?}");
        }
        assert_eq!(Code::ALL.len(), 19);
    }
}
