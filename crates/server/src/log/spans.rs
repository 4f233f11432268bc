//! Sends spans to a collector: OTLP over gRPC, in batches, by a thread of its own. Spans that the
//! collector does not accept in time are dropped: at most 2048 wait, and no request waits for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;

use super::{Error, span};

/// The name of the service, unless OTEL_SERVICE_NAME sets another.
const SERVICE: &str = "hapax";

pub(super) fn provider(endpoint: &str) -> Result<SdkTracerProvider, Error> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(Error::NoRuntime);
    }
    let exporter =
        opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let exporter = Telling { exporter, is_failing: AtomicBool::new(false) };
    let resource = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(_) => resource,
        None => resource.with_service_name(SERVICE),
    };
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_batch_exporter(exporter)
        .build();
    Ok(provider)
}

/// Exports the spans of requests, and no others.
pub(super) fn layer(provider: &SdkTracerProvider) -> Box<dyn Layer<Registry> + Send + Sync> {
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(SERVICE))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false)
        .with_level(false)
        .with_filter(Targets::new().with_target(span::TARGET, LevelFilter::INFO))
        .boxed()
}

/// An exporter that logs when it begins to fail and when it works again, and nothing in between.
#[derive(Debug)]
struct Telling<E> {
    exporter: E,
    is_failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Telling<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_failing => {
                tracing::warn!(%error, spans, "spans are lost: the collector does not accept them");
            }
            Ok(()) if was_failing => tracing::info!("the collector accepts spans again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opentelemetry_sdk::error::OTelSdkError;

    use super::*;
    use crate::log::tests::Lines;

    /// Fails while it is told to.
    #[derive(Clone, Debug, Default)]
    struct Collector(Arc<AtomicBool>);

    impl SpanExporter for Collector {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            match self.0.load(Ordering::Relaxed) {
                true => Err(OTelSdkError::InternalFailure("down".to_owned())),
                false => Ok(()),
            }
        }
    }

    #[tokio::test]
    async fn failures_are_told_when_they_begin_and_when_they_end() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let collector = Collector::default();
        let exporter = Telling { exporter: collector.clone(), is_failing: false.into() };
        for is_down in [false, true, true, true, false, false, true] {
            collector.0.store(is_down, Ordering::Relaxed);
            assert_eq!(exporter.export(Vec::new()).await.is_err(), is_down);
        }
        let lines = lines.take();
        assert_eq!(lines.matches("spans are lost").count(), 2, "{lines}");
        assert_eq!(lines.matches("accepts spans again").count(), 1, "{lines}");
    }
}
