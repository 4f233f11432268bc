//! The span of a request, which continues the trace of its caller.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Only spans of this target are exported: log events do not get into them.
pub(super) const TARGET: &str = "hapax::request";

/// Whether spans are exported. If not, checking this flag is the whole cost of a request.
static EXPORTED: AtomicBool = AtomicBool::new(false);

pub(super) fn export(on: bool) {
    EXPORTED.store(on, Ordering::Relaxed);
}

/// The span of one request, named after what is asked (`POST /v1/queues/{queue}/messages`, or
/// `hapax.v1.Hapax/Send`), as a child of the caller's span if `traceparent` names one. None if
/// spans are not exported; the name is only formatted (`format_args!`) if they are.
///
/// `request_id`, `tenant`, `queue`, `answer` and `otel.status_code` (`ERROR`, of what failed by the
/// broker's fault) can be recorded once they are known.
pub fn request_span(name: impl Display, traceparent: Option<&str>) -> Span {
    if !EXPORTED.load(Ordering::Relaxed) {
        return Span::none();
    }
    exported_span(name, traceparent)
}

pub(super) fn exported_span(name: impl Display, traceparent: Option<&str>) -> Span {
    let span = tracing::info_span!(
        target: TARGET,
        "request",
        otel.name = %name,
        otel.kind = "server",
        otel.status_code = Empty,
        request_id = Empty,
        tenant = Empty,
        queue = Empty,
        answer = Empty,
    );
    if let Some(parent) = traceparent.and_then(remote) {
        // It fails if the span is not exported after all.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
    span
}

/// Whether a header is a valid W3C trace context.
pub fn is_traceparent(header: &str) -> bool {
    remote(header).is_some()
}

/// Parses the caller's span, see <https://www.w3.org/TR/trace-context/>.
fn remote(header: &str) -> Option<SpanContext> {
    let mut parts = header.split('-');
    let mut part = |length: usize| {
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        parts.next().filter(|part| part.len() == length && part.bytes().all(lower_hex))
    };
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    // A later version may have more parts; version 00 has not, and ff is invalid.
    if version == "ff" || version == "00" && parts.next().is_some() {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_traceparent_names_the_callers_span() {
        let context = remote(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        assert_eq!(context.trace_id().to_string(), TRACE);
        assert_eq!(context.span_id().to_string(), SPAN);
        assert!(context.is_sampled() && context.is_remote());
        assert!(!remote(&format!("00-{TRACE}-{SPAN}-00")).unwrap().is_sampled());
        assert!(is_traceparent(&format!("cc-{TRACE}-{SPAN}-01-what-comes-later")));
    }

    #[test]
    fn anything_else_is_no_traceparent() {
        let zero = "0".repeat(32);
        for header in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0é"),
            format!("+0-{TRACE}-{SPAN}-01"),
        ] {
            assert!(!is_traceparent(&header), "{header}");
        }
    }
}
