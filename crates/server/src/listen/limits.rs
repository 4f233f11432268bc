//! Every bound of a connection, in one place.

use std::time::Duration;

/// What peers may use. The defaults suit a broker; tests shorten the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; more are refused, with 503 if they are not encrypted.
    pub connections_max: usize,
    /// Timeout of a TLS handshake, from the connection to its end.
    pub handshake: Duration,
    /// For the head of a request: for the first one from the connection (or the end of the
    /// handshake), for later ones from its first byte. In HTTP/2, for the preface.
    pub headers: Duration,
    /// A connection without a request for this long is asked to finish.
    pub idle: Duration,
    /// A peer that reads nothing for this long while answers are pending is disconnected.
    pub write: Duration,
    /// Timeout for requests to finish when the broker stops.
    pub drain: Duration,
    /// Bytes of a request's head, with its path; at least 8 KiB. A message's own headers may take
    /// 16 KiB of it. Over HTTP/1.1 there are at most 100 headers.
    pub header_bytes_max: u32,
    /// Requests at a time on one HTTP/2 connection.
    pub streams_max: u32,
    /// What an HTTP/2 peer may send ahead on one stream and on the whole connection: together
    /// with `streams_max × header_bytes_max`, the memory that one connection can occupy before
    /// a door has read anything. A stream that is not read leaves half of it for the others.
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    /// A frame of HTTP/2. What our client fills on a stream, 32 KiB and a message, fits into one:
    /// it is read without being copied together.
    pub frame_bytes_max: u32,
    /// What may wait to be written to one HTTP/2 stream.
    pub send_buffer_bytes: u32,
    /// An HTTP/2 peer that sent nothing for this long is pinged, …
    pub ping_every: Duration,
    /// … and disconnected if it does not answer in time.
    pub ping_timeout: Duration,
}

/// Streams that a peer has reset before they were looked at, and streams that we have reset for
/// a peer's errors: beyond these the connection is closed. Honest peers stay far below.
pub(super) const RESET_BY_PEER_MAX: usize = 32;
pub(super) const RESET_FOR_ERRORS_MAX: usize = 256;

/// The smallest limit that HTTP/1.1 supports.
pub(super) const HEADER_BYTES_MIN: u32 = 8 * 1_024;

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(20),
            header_bytes_max: 32 * 1_024,
            streams_max: 256,
            stream_window_bytes: 512 * 1_024,
            connection_window_bytes: 1_024 * 1_024,
            frame_bytes_max: 48 * 1_024,
            send_buffer_bytes: 256 * 1_024,
            ping_every: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(20),
        }
    }
}
