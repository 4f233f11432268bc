//! Every bound of the layer, in one place, with the unit last. Those that are settings have their
//! defaults here.

use std::time::Duration;

/// What a tenant may be called.
pub(crate) const TENANT_BYTES_MAX: usize = 1_024;

/// How many characters of a path are told in the error of what is in doubt.
pub(crate) const NAMED_PATH_MAX: usize = 100;

/// The largest request under a key: it is read whole, to be compared with the first one.
pub(crate) const REQUEST_BYTES_MAX: usize = 1_024 * 1_024;
/// The largest response that is remembered. With its headers it must fit into a result, and a
/// queue takes 1 MiB where nothing else is said.
pub(crate) const RESPONSE_BYTES_MAX: usize = 1_024 * 1_024 - HEADERS_BYTES_MAX;
/// Names and values of the headers of a remembered response, with their lengths.
pub(crate) const HEADERS_BYTES_MAX: usize = 32 * 1_024;

/// How long a key stays taken when its process dies.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The longest that `Prefer: wait` may ask for.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);
/// What the broker itself waits at most in one call.
pub(crate) const WAIT_SECONDS_MAX: u64 = 60;
/// Timeout for a client to send its whole request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an answer waits for the broker, before it says that the broker cannot be reached.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a response is tried to be stored, behind the back of the one who waited for it.
pub(crate) const SETTLE_PATIENCE: Duration = Duration::from_secs(600);
/// Bodies of requests that have not come whole, together, without the first of each.
pub(crate) const UPLOADS_BYTES_MAX: usize = 256 * 1_024 * 1_024;
/// The part of a body that takes no room from others: about what its connection takes anyway. So
/// no number of slow requests keeps a small one out.
pub(crate) const UPLOAD_FREE_BYTES: usize = 16 * 1_024;
/// Requests under keys at a time.
pub(crate) const OPERATIONS_MAX: usize = 1_024;
/// The `Retry-After` for a key that is in progress.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

const _: () = assert!(HEADERS_BYTES_MAX < RESPONSE_BYTES_MAX);
