//! Logging: lines on standard error, and spans to a collector.
//!
//! Lines are text or JSON; the filter can change at run time. If spans are not exported a request
//! has none, and the cost is one check of a flag. Nothing here filters bodies, keys or tokens out
//! of a line: code that logs does not include them, and libraries that would are not traced (see
//! [`Filter`]).

mod filter;
mod span;
mod spans;

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, fmt, reload};

pub use filter::{BadFilter, Filter};
pub use span::{is_traceparent, request_span};

/// Timeout for sending the last spans.
const FLUSH: Duration = Duration::from_secs(3);

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text for people, coloured on a terminal.
    Text,
    /// JSON for programs, one object per line.
    Json,
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("logging was already started")]
    Started,
    #[error("spans cannot be sent: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    #[error("spans need a tokio runtime, and there is none")]
    NoRuntime,
}

/// Changes what is logged, and ends the export.
#[derive(Clone, Debug)]
pub struct Handle {
    wanted: reload::Handle<Targets, Registry>,
    filter: Arc<Mutex<Filter>>,
    provider: Option<SdkTracerProvider>,
}

/// Starts to log to standard error, for the whole process. With an endpoint, spans of requests are
/// sent there; that needs a tokio runtime.
pub fn start(
    format: Format,
    filter: &Filter,
    otlp_endpoint: Option<&str>,
) -> Result<Handle, Error> {
    let provider = otlp_endpoint.map(spans::provider).transpose()?;
    // The convention of https://no-color.org.
    let asked_for_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !asked_for_none;
    let (subscriber, handle) = subscriber(format, filter, colours, std::io::stderr, provider);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| Error::Started)?;
    span::export(handle.provider.is_some());
    Ok(handle)
}

impl Handle {
    /// Changes what is logged, from now on.
    pub fn set(&self, filter: &str) -> Result<(), BadFilter> {
        let filter: Filter = filter.parse()?;
        // It only fails when logging has ended.
        let _ = self.wanted.reload(filter.targets());
        *self.filter.lock().unwrap_or_else(PoisonError::into_inner) = filter;
        Ok(())
    }

    /// What is logged now.
    pub fn filter(&self) -> Filter {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends the last spans and no more. Lines continue.
    pub async fn stop(&self) {
        let Some(provider) = self.provider.clone() else { return };
        span::export(false);
        // It waits for the exporter, which needs this runtime meanwhile.
        let sent = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH));
        if let Ok(Err(error)) = sent.await {
            tracing::warn!(%error, "the last spans may not have been sent");
        }
    }
}

fn subscriber<W>(
    format: Format,
    filter: &Filter,
    colours: bool,
    writer: W,
    provider: Option<SdkTracerProvider>,
) -> (impl tracing::Subscriber + Send + Sync, Handle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (wanted, handle) = reload::Layer::new(filter.targets());
    let lines = fmt::layer().with_writer(writer);
    let lines = match format {
        Format::Text => lines.with_ansi(colours).with_filter(wanted).boxed(),
        Format::Json => {
            let lines = lines.with_ansi(false).json().flatten_event(true).with_span_list(false);
            lines.with_filter(wanted).boxed()
        }
    };
    let layers: Vec<_> =
        [Some(lines), provider.as_ref().map(spans::layer)].into_iter().flatten().collect();
    let filter = Arc::new(Mutex::new(filter.clone()));
    (Registry::default().with(layers), Handle { wanted: handle, filter, provider })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Lines as somebody at standard error would see them.
    #[derive(Clone, Default)]
    pub(super) struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        pub(super) fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    fn logging(format: Format, filter: &str, colours: bool, script: impl FnOnce(&Handle, &Lines)) {
        let lines = Lines::default();
        let writer = lines.clone();
        let (subscriber, handle) =
            subscriber(format, &filter.parse().unwrap(), colours, move || writer.clone(), None);
        tracing::subscriber::with_default(subscriber, || script(&handle, &lines));
    }

    #[test]
    fn text_is_for_people_and_without_colours_unless_on_a_terminal() {
        logging(Format::Text, "info", false, |_, lines| {
            tracing::info!(partition = 3, "recovered");
            let line = lines.take();
            assert!(line.contains("INFO") && line.contains("recovered partition=3"), "{line}");
            assert!(!line.contains('\x1b'), "{line:?}");
        });
        logging(Format::Text, "info", true, |_, lines| {
            tracing::info!("recovered");
            assert!(lines.take().contains('\x1b'));
        });
    }

    #[test]
    fn json_is_one_object_per_line() {
        logging(Format::Json, "info", true, |_, lines| {
            tracing::warn!(partition = 3, why = "a \"quoted\"\nword", "stopped");
            tracing::info!("again");
            let lines = lines.take();
            assert_eq!(lines.lines().count(), 2);
            let line: serde_json::Value =
                serde_json::from_str(lines.lines().next().unwrap()).unwrap();
            assert_eq!(line["level"], "WARN");
            assert_eq!(line["message"], "stopped");
            assert_eq!(line["partition"], 3);
            assert_eq!(line["why"], "a \"quoted\"\nword");
            assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
        });
    }

    #[test]
    fn a_line_of_text_cannot_be_forged_by_what_it_tells() {
        logging(Format::Text, "info", false, |_, lines| {
            tracing::info!(worker = "a\n2020 ERROR all lost\x1b[2J", "joined");
            let text = lines.take();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(!text.contains('\x1b'), "{text:?}");
        });
    }

    #[test]
    fn the_level_changes_while_the_broker_runs() {
        logging(Format::Text, "info", false, |handle, lines| {
            let say = || {
                tracing::debug!("detail");
                lines.take().contains("detail")
            };
            assert!(!say());
            handle.set("debug").unwrap();
            assert!(say());
            handle.set("warn,hapax_server::log=debug").unwrap();
            assert!(say());
            assert_eq!(handle.filter().to_string(), "warn,hapax_server::log=debug");
            assert!(handle.set("luod").is_err());
            assert!(say(), "a filter that is refused changes nothing");
            handle.set("off").unwrap();
            assert!(!say());
        });
    }

    #[test]
    fn without_an_endpoint_a_request_has_no_span() {
        logging(Format::Text, "trace", false, |handle, _| {
            assert!(handle.provider.is_none());
            let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            assert!(request_span("POST /v1", Some(traceparent)).is_none());
        });
    }

    #[test]
    fn spans_need_a_runtime() {
        let started = start(Format::Text, &Filter::default(), Some("http://127.0.0.1:4317"));
        assert!(matches!(started, Err(Error::NoRuntime)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_collector_that_does_not_answer_holds_nobody_up() {
        // Connections are taken by the system, and nobody ever reads from them.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let provider = spans::provider(&endpoint).unwrap();
        let lines = Lines::default();
        let writer = move || lines.clone();
        let (subscriber, handle) =
            subscriber(Format::Text, &Filter::default(), false, writer, Some(provider));
        tracing::subscriber::with_default(subscriber, || {
            // More than may wait: what is too much is dropped, and nobody waits for room.
            for _ in 0..10_000 {
                let span = span::exported_span("POST /v1", None);
                assert!(!span.is_disabled());
            }
        });
        let stopped = tokio::time::timeout(Duration::from_secs(60), handle.stop()).await;
        assert!(stopped.is_ok(), "stopping does not wait for the collector");
    }
}
