//! Every setting of the broker and every limit of a tenant, declared once each.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hapax_core::limits;

use super::entry::{Entry, table};
use super::kind::{Auth, Bytes, Endpoint};
use crate::log::{Filter, Format};

/// The request budget is never less than the largest body: nothing may be too large to get in.
const REQUEST_BYTES_MIN: u64 = 2 * limits::BODY_BYTES_MAX;
const TEBIBYTE: u64 = 1 << 40;

table! {
    /// The broker's settings.
    Values {
        /// The settings file. Where none is named, `hapax.toml` in the working directory is read
        /// if there is one. This setting cannot stand in the file.
        config: Option<PathBuf> = None;
        /// Where to listen. All doors share this one address. Beyond loopback the broker wants
        /// tokens and TLS, or to be told that it can do without.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 4747));
        /// Where messages and keys are kept: a directory of this broker alone, on a disk that
        /// honours syncs. It is created if it is missing.
        data: PathBuf = PathBuf::from("./hapax-data");
        /// How many partitions new data gets. Each has a writer thread and a journal of its own.
        /// The number is fixed with the data; for existing data this setting has no effect.
        partitions: u16 = 1, within (1, limits::PARTITIONS_MAX as u64);
        /// Memory for caches, the heads of queues and what waits for a checkpoint, for all
        /// partitions together. Filters of remembered keys come on top, with about 2.3 bytes per
        /// key.
        memory_bytes: Bytes = Bytes::mebi(256), within (16 << 20, TEBIBYTE);
        /// Who may speak to the broker. With `tokens`, every request shows a token made by
        /// `hapax token create`. With `off`, everybody is the tenant `default` and may do
        /// everything. `hapax dev` has `off` as its default.
        auth: Auth = Auth::Tokens;
        /// Listen beyond loopback although `auth` is `off`: whoever reaches the port may read and
        /// change everything.
        allow_no_auth: bool = false;
        /// Listen beyond loopback without TLS: whoever sees the traffic can read bodies and tokens.
        allow_no_tls: bool = false;
        /// The certificate chain of the broker, in PEM. It turns TLS on and needs `tls_key`.
        /// Renewed files are taken without a restart.
        tls_cert: Option<PathBuf> = None;
        /// The private key of the certificate, in PEM.
        tls_key: Option<PathBuf> = None;
        /// Certificates, in PEM, one of which must have signed a client's certificate. It turns
        /// mutual TLS on. Clients show their tokens besides.
        tls_client_ca: Option<PathBuf> = None;
        /// What to log: a level for Hapax itself, and other levels for parts of it or for other
        /// libraries, such as `info,hapax_server::engine=debug,h2=info`. It can be changed while
        /// the broker runs.
        log: Filter = Filter::default();
        /// How to log, to standard error: lines for people or JSON for programs.
        log_format: Format = Format::Text;
        /// Where to send OpenTelemetry spans of requests, by OTLP over gRPC. The variables of
        /// OpenTelemetry's exporter, such as OTEL_EXPORTER_OTLP_HEADERS, are honoured.
        otlp_endpoint: Option<Endpoint> = None;
        /// Connections at once, of all doors together.
        max_connections: u32 = 4096, within (1, 1_000_000);
        /// Bytes of requests that are being read or decided at once, of all doors together. What
        /// is beyond that waits, or is refused as retryable.
        request_bytes: Bytes = Bytes::mebi(64), within (REQUEST_BYTES_MIN, TEBIBYTE);
        /// How long a stopping broker waits for what is in flight before it ends anyway. Nothing
        /// that was confirmed is lost then.
        stop_timeout: Duration = Duration::from_secs(25), within (0, 3_600_000);
    }
}

table! {
    /// What one tenant may use. Limits of its queues apply besides.
    Limits {
        /// Messages sent per second, in all queues together.
        sends_per_s: Option<u32> = None, within (1, u32::MAX as u64);
        /// Messages alive at once, in all queues together, the dead included.
        max_messages: Option<u64> = None, within (1, limits::COUNT_MAX);
        /// Bytes of bodies alive at once, in all queues together.
        max_bytes: Option<Bytes> = None, within (1, limits::COUNT_MAX);
        /// Queues at once.
        max_queues: Option<u32> = None, within (1, limits::QUEUES_MAX as u64);
    }
}

impl Entry<Values> {
    /// The default, for help and reference. A quote goes around what can be written.
    pub(super) fn default_in_words(&self, quote: &str) -> String {
        match self.name {
            "config" => format!("{quote}hapax.toml{quote}, if it is there"),
            _ => format!("{quote}{}{quote}", (self.text)(&Values::default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::entry::Plain;

    fn entry(name: &str) -> &'static Entry<Values> {
        Values::TABLE.iter().find(|entry| entry.name == name).unwrap()
    }

    #[test]
    fn every_default_reads_back_and_is_allowed() {
        let defaults = Values::default();
        let mut read = Values { listen: ([9, 9, 9, 9], 9).into(), ..Values::default() };
        for entry in Values::TABLE {
            let text = (entry.text)(&defaults);
            assert_eq!((entry.set)(&mut read, &text), Ok(()), "{}", entry.name);
        }
        assert_eq!(read, defaults);
        let mut limits = Limits { max_bytes: Some(Bytes(7)), ..Limits::default() };
        for entry in Limits::TABLE {
            (entry.set)(&mut limits, &(entry.text)(&Limits::default())).unwrap();
        }
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn names_of_flags_and_variables_come_from_the_setting() {
        assert_eq!(entry("tls_client_ca").flag(), "--tls-client-ca");
        assert_eq!(entry("tls_client_ca").variable(), "HAPAX_TLS_CLIENT_CA");
        for entry in Values::TABLE {
            let doc = entry.doc();
            assert!(doc.ends_with('.') && !doc.contains("  "), "{}: {doc}", entry.name);
        }
    }

    #[test]
    fn a_number_is_not_a_text_in_a_file() {
        let mut values = Values::default();
        let mut assign = |name: &str, value: Plain| entry(name).assign(&mut values, &value);
        let text = |text: &str| Plain::Text(text.to_owned());
        assert_eq!(assign("partitions", Plain::Integer(4)), Ok(()));
        assert_eq!(assign("memory_bytes", Plain::Integer(1 << 30)), Ok(()));
        assert_eq!(assign("memory_bytes", text("512MiB")), Ok(()));
        assert_eq!(assign("allow_no_tls", Plain::Boolean(true)), Ok(()));
        let why = assign("partitions", text("4")).unwrap_err();
        assert!(why.contains("leave the quotes out"), "{why}");
        let why = assign("allow_no_auth", text("true")).unwrap_err();
        assert!(why.contains("leave the quotes out"), "{why}");
        assert!(assign("log", Plain::Boolean(true)).is_err());
        assert!(assign("listen", Plain::Integer(4747)).is_err());
        assert!(assign("partitions", Plain::Integer(-1)).is_err());
        assert!(assign("data", Plain::Other("a list")).is_err());
        assert!(assign("data", Plain::Null).is_err());
        assert_eq!(values.partitions, 4);
        assert_eq!(values.memory_bytes, Bytes::mebi(512));
        assert!(values.allow_no_tls && !values.allow_no_auth);
    }
}
