//! Every bound of the layer, in one place, with the unit last. Those that are settings have their
//! defaults here.

use std::time::Duration;

/// The longest tenant.
pub(crate) const TENANT_BYTES_MAX: usize = 1_024;

/// The most characters of a path in the error of an operation in doubt.
pub(crate) const NAMED_PATH_MAX: usize = 100;

/// The largest request with a key: it is read completely, to be compared with the first one.
pub(crate) const REQUEST_BYTES_MAX: usize = 1_024 * 1_024;
/// The largest response that is stored. With its headers it must fit into a result, which by
/// default has at most 1 MiB.
pub(crate) const RESPONSE_BYTES_MAX: usize = 1_024 * 1_024 - HEADERS_BYTES_MAX;
/// Names and values of the headers of a stored response, with their lengths.
pub(crate) const HEADERS_BYTES_MAX: usize = 32 * 1_024;

/// How long a key stays claimed when its process dies.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The longest wait of `Prefer: wait`.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);
/// The longest wait of one call to the broker.
pub(crate) const WAIT_SECONDS_MAX: u64 = 60;
/// Timeout for a client to send its whole request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request waits for the broker before the broker counts as unreachable.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long storing a response is retried after its client got an error.
pub(crate) const SETTLE_PATIENCE: Duration = Duration::from_secs(600);
/// The most bytes of incomplete request bodies together, not counting the first bytes of each.
pub(crate) const UPLOADS_BYTES_MAX: usize = 256 * 1_024 * 1_024;
/// The first bytes of a body, which are not counted: about what its connection takes anyway. So
/// slow requests cannot block small ones.
pub(crate) const UPLOAD_FREE_BYTES: usize = 16 * 1_024;
/// The most requests with keys in progress.
pub(crate) const OPERATIONS_MAX: usize = 1_024;
/// The `Retry-After` for a key that is in progress.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

const _: () = assert!(HEADERS_BYTES_MAX < RESPONSE_BYTES_MAX);
