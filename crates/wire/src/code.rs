//! The closed list of error codes. A code is never reused for something else.

use http::StatusCode;

macro_rules! codes {
    ($($name:ident = $text:literal $status:literal $grpc:ident $retryable:literal
        $title:literal
        means $means:literal
        why $why:literal
        what_to_do $do:literal,
    )+) => {
        /// Why a request was refused, for programs to tell apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($name,)+ }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// As it is spelled in every answer.
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

            /// How a request comes to get it.
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
        "The request cannot be understood"
        means "A field, a header or the shape of the request is wrong. Nothing was changed."
        why "A name with a forbidden character, a number out of its bounds, JSON that does not \
             parse, an operation that does not fit the state of the message."
        what_to_do "Read `detail`: it names the field and its bounds. The same request fails \
                    again, so do not retry it.",
    MissingKey = "missing_key" 400 InvalidArgument false
        "An idempotency key is required"
        means "The queue accepts only messages with a key, and this one came without."
        why "The `Idempotency-Key` header (or the `key` field) is missing or empty, or its name is \
             spelled another way."
        what_to_do "Make a key once per logical operation, store it with the operation, and send \
                    it with every retry. For messages that may be done twice, make the queue's \
                    guarantee `at-least-once`.",
    MalformedKey = "malformed_key" 400 InvalidArgument false
        "The idempotency key is malformed"
        means "A key has 1 to 255 bytes of UTF-8 without control characters; this one has not."
        why "The header is neither a structured-field string (`\"order-42\"`) nor a bare value, it \
             was given twice, or it is too long."
        what_to_do "Send one key, quoted or bare. Hash what is too long yourself.",
    Unauthorized = "unauthorized" 401 Unauthenticated false
        "A valid token is required"
        means "The broker does not know who asks."
        why "The `Authorization: Bearer` header is missing, or its token is unknown or revoked."
        what_to_do "Make a token with `hapax token create` and send it with every request.",
    Forbidden = "forbidden" 403 PermissionDenied false
        "The token does not allow this"
        means "The token is valid, but not for this action on this queue."
        why "Tokens are limited to a tenant, to queues by pattern, and to `send`, `work`, \
             `admin` and `operate`."
        what_to_do "Use a token with the permission, or make one with `hapax token create --can`.",
    NoSuchQueue = "no_such_queue" 404 NotFound false
        "There is no such queue"
        means "The tenant of the token has no queue of this name, or none that the token may see."
        why "It was not created yet, was deleted, or the name has a typo."
        what_to_do "Create it: `hapax queue create NAME`, or `PUT /v1/queues/NAME`.",
    NoSuchKey = "no_such_key" 404 NotFound false
        "The key is not known"
        means "Nothing was sent under this key, or it was forgotten since."
        why "A finished key is remembered for the queue's retention, counted from its end."
        what_to_do "Check key, queue and, where the queue deduplicates per group, the group.",
    Conflict = "conflict" 422 AlreadyExists false
        "The key was used for something else"
        means "An earlier message under this key had another body or group, or another \
               fingerprint of the caller's own. It is untouched, and this one was not accepted."
        why "Two operations share a key, or the body of one operation changes between retries \
             (a timestamp, a trace id)."
        what_to_do "Use one key per operation. Where bodies carry noise, send your own \
                    `hapax-fingerprint` of what matters. The refusal of a send or a \
                    claim says in `differs`, `id` and `accepted_at` what the first one was; \
                    `GET /v1/queues/QUEUE/keys/KEY` shows it. The id of a redrive is a key too.",
    InFlight = "in_flight" 409 Aborted true
        "Somebody else holds the key"
        means "A claim of this key is being worked on."
        why "A concurrent duplicate of the same operation, or the first one's holder died and its \
             lease is not over yet."
        what_to_do "Retry after `Retry-After`, or wait for the outcome: `Prefer: wait=SECONDS`.",
    TooOld = "too_old" 410 FailedPrecondition false
        "The operation is older than what is remembered"
        means "The key, or `issued_at`, tells that the operation was born before the queue's \
               retention. Whether it was done once, the broker no longer knows; it refuses to do \
               it a second time."
        why "A retry that came after the retention was over."
        what_to_do "Find out by other means whether it was done. If it was not, send it under a \
                    new key. Raise `retention_ms` if such retries are to be expected.",
    UndatedKey = "undated_key" 422 FailedPrecondition false
        "The queue takes dated keys only"
        means "The queue has `undated_keys = \"refuse\"`, and this key does not tell its age."
        why "Only UUIDv7 and ULID keys, or sends with `issued_at`, can be told from late retries."
        what_to_do "Make keys as UUIDv7, or send `hapax-issued-at`.",
    LeaseLost = "lease_lost" 409 Aborted false
        "The lease is no longer yours"
        means "Another worker has the message now, or it is finished. Nothing was changed."
        why "The lease's deadline passed and the message went on, or an operator stepped in."
        what_to_do "Stop working on it and undo nothing: if the message is done, its `result` is \
                    in the answer.",
    InvalidConfig = "invalid_config" 422 InvalidArgument false
        "The configuration is refused"
        means "The queue stays as it was. `detail` names the field."
        why "An unknown field, a value out of bounds, or a combination that would weaken a \
             guarantee, such as a retention below twice the retry horizon. Also `If-Match` that \
             does not fit."
        what_to_do "Correct the field. `hapax lint FILE` checks whole files the same way.",
    TooLarge = "too_large" 413 OutOfRange false
        "The request is too large"
        means "The body, the batch or the headers are above their limit."
        why "Queues take bodies up to their `max_body_bytes`; a batch has at most 1000 messages \
             and 8 MiB. `GET /v1/limits` lists them all."
        what_to_do "Store large bodies elsewhere and send a reference, or split the batch.",
    OverQuota = "over_quota" 429 ResourceExhausted true
        "The queue or the tenant is full"
        means "The message was not accepted: the queue holds as many messages or bytes as it may."
        why "Workers do not follow, or are stopped."
        what_to_do "Retry after `Retry-After` under the same key; start more workers, or raise \
                    `max_messages` and `max_bytes`.",
    RateLimited = "rate_limited" 429 ResourceExhausted true
        "Too many requests"
        means "The message was not accepted: the rate of the queue or of the tenant is used up."
        why "More than `sends_per_s`."
        what_to_do "Retry after `Retry-After` under the same key.",
    StoreFull = "store_full" 507 ResourceExhausted true
        "The broker's disk is full"
        means "New messages are refused; receives and settles go on. No key was evicted."
        why "The disk under the data directory has no room left but the reserve for settles."
        what_to_do "Free some room: the broker goes on by itself. Retry under the same key.",
    Unavailable = "unavailable" 503 Unavailable true
        "The broker cannot answer now"
        means "The request was not carried out, or its outcome is not known."
        why "The broker is starting or stopping, overloaded, or its disk failed."
        what_to_do "Retry under the same key: if the first try was carried out, its answer comes.",
    Internal = "internal" 500 Internal true
        "Something is wrong with the broker"
        means "The outcome of the request is not known."
        why "A defect of Hapax, or damage that it met. The log of the broker has the request id."
        what_to_do "Retry under the same key, and report it with the `Request-Id`.",
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
