//! `hapax proxy`: adds idempotency keys to any HTTP service, in any language. Requests to the
//! listed routes go through the layer of `hapax-idempotency`; everything else is passed through
//! unchanged. The calls to the service are in `proxy/upstream.rs`, the metrics in
//! `proxy/metrics.rs`.

mod headers;
mod keys;
mod metrics;
mod queue;
mod statuses;
mod upstream;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use clap::{Args, ValueEnum};
use hapax_idempotency::{CREDENTIALS, Headers, Idempotency, OnUnavailable, Route};
use hapax_server::listen::{Limits, Listener};
use hapax_server::log;
use hapax_wire::QueueConfig;
use http::{HeaderName, Request};
use hyper::body::Incoming;
use tokio::sync::watch;
use tower::ServiceExt;

use super::serve::{Signals, stop_signal, write_whole};
use crate::advice::Advice;
use crate::counts;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Colour, Screen};
use crate::session::{Connection, Session, worker_name};
use metrics::Metrics;
use statuses::Statuses;
use upstream::{Target, Upstream};

pub(crate) const HELP: &str = "The client gets the upstream's response after the broker has \
stored it. A retry with the same Idempotency-Key gets the stored response, byte for byte except \
for Set-Cookie and Date, with the header Idempotency-Replayed: true. A different request under \
the key gets 422. A retry while the first request is still running gets 409, or waits with \
Prefer: wait=SECONDS. A request without a key gets 400. The key is passed on to the upstream. \
While the broker cannot be reached, routes answer 503. See docs/guides/http-idempotency.md for \
what is guaranteed and what is not.

Examples:
  hapax proxy --upstream http://127.0.0.1:8080 --route 'POST /charges'
  hapax proxy --upstream http://shop:8080 --listen 0.0.0.0:80 --route 'POST /orders/{order}/pay' \
--optional-route 'PUT,PATCH /orders/{order}' --tenant-header x-account
  hapax proxy --upstream http://127.0.0.1:8080 --route 'POST /charges' --in-doubt retry
  hapax proxy --upstream http://127.0.0.1:8080 --route 'POST /hooks/stripe' --key-json /id
  hapax proxy --upstream http://127.0.0.1:8080 --route 'POST /hooks' --key-header webhook-id";

/// What to do with a key when the upstream may have carried out the request but its response is not
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InDoubt {
    /// Park it: nothing is repeated until an operator decides, with `hapax resolve`.
    Park,
    /// Free it: the retry calls the upstream again. For upstreams that support Idempotency-Key
    /// themselves, or whose requests are safe to repeat.
    Retry,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Proxy {
    /// The address of the service: http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    upstream: Target,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4748")]
    listen: SocketAddr,
    /// A route that needs a key: METHOD[,METHOD] /PATH/{segment}/{*rest}. May be repeated.
    #[arg(long = "route", value_name = "ROUTE", required_unless_present = "optional_routes")]
    routes: Vec<Route>,
    /// A route on which requests with a key are protected, and those without one are passed
    /// through. May be repeated.
    #[arg(long = "optional-route", value_name = "ROUTE")]
    optional_routes: Vec<Route>,
    /// The queue that stores keys and responses. Created if it does not exist.
    #[arg(long, default_value = "http")]
    queue: String,
    /// A prefix that separates the keys from those of other services on the same queue.
    #[arg(long, value_name = "NAME", default_value = "")]
    namespace: String,
    /// The request header with the key [default: Idempotency-Key].
    #[arg(long, value_name = "NAME", conflicts_with = "key_json")]
    key_header: Option<HeaderName>,
    /// Take the key from the JSON body. A JSON pointer to a string or an integer, such as /id or
    /// /data/object/id.
    #[arg(long, value_name = "POINTER", value_parser = keys::pointer)]
    key_json: Option<String>,
    /// The request header that identifies the caller: callers with different values have separate
    /// keys. Without it all callers share one set of keys, and a retry must repeat Authorization,
    /// Cookie and X-Api-Key.
    #[arg(long, value_name = "NAME")]
    tenant_header: Option<HeaderName>,
    /// A header that a retry must repeat, besides method, path, query and body [default:
    /// Content-Type]. May be repeated. Without --tenant-header, Authorization, Cookie and X-Api-Key
    /// are always compared.
    #[arg(long = "compare-header", value_name = "NAME")]
    compare_headers: Vec<HeaderName>,
    /// Store only these response headers [default: all except Set-Cookie, Date and hop-by-hop
    /// headers]. May be repeated.
    #[arg(long = "keep-header", value_name = "NAME")]
    keep_headers: Vec<HeaderName>,
    /// Statuses of responses that are not stored; their key is freed. All other responses are
    /// stored.
    #[arg(long, value_name = "STATUSES", default_value = "401,408,425,429,5xx")]
    release: Statuses,
    /// What to do with a key when the upstream may have carried out the request but its response is
    /// not known.
    #[arg(long, value_enum, default_value_t = InDoubt::Park)]
    in_doubt: InDoubt,
    /// While the broker cannot be reached, pass requests on unprotected instead of answering 503.
    #[arg(long)]
    fail_open: bool,
    /// How long a key stays claimed after this process dies. Extended while the upstream works.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    lease: Duration,
    /// The longest wait that Prefer: wait can request, at most 60s.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    wait_max: Duration,
    /// The largest request body on a route. Larger ones get 413.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    request_max: usize,
    /// The largest response that is stored whole. Of a larger one only the status is stored: a
    /// retry gets 410 and has no second effect.
    #[arg(long, value_name = "BYTES", default_value_t = (1 << 20) - (32 << 10))]
    response_max: usize,
    /// The most protected requests at a time. Further ones get 503. Each may hold its request and
    /// response in memory.
    #[arg(long, value_name = "COUNT", default_value_t = 1_024)]
    #[arg(value_parser = counts::any::<usize>)]
    operations_max: usize,
    /// Timeout of the upstream: for the whole response on routes, for the response head elsewhere.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "60s")]
    upstream_timeout: Duration,
    /// Timeout for opening a connection to the upstream.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    connect_timeout: Duration,
    /// How long an idle connection to the upstream is kept. It must be shorter than the upstream's
    /// own idle timeout: a request on a connection that the upstream is closing is in doubt.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    upstream_idle: Duration,
    /// How long a request waits for the broker before the broker counts as unreachable.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    broker_timeout: Duration,
    /// The address of /metrics, /livez and /readyz.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4749")]
    metrics_listen: SocketAddr,
    /// How long requests may take to finish after Ctrl-C or SIGTERM.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "25s")]
    drain: Duration,
    /// Write the two addresses to this file once the proxy listens. Useful with port 0, which picks
    /// a free port.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// The log level: error, warn, info or debug.
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: log::Filter,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(proxy: &Proxy) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(proxy.connection.open(async |session| act(session, proxy).await))
}

async fn act(session: &Session, proxy: &Proxy) -> Result<Exit, Failure> {
    let log = log::start(log::Format::Text, &proxy.log, None).map_err(anyhow::Error::from)?;
    let signals = Signals::listen()?;
    let metrics = Metrics::new();
    let idempotency = idempotency(session, proxy, &metrics)?;
    let found = queue::prepare(session, proxy, &idempotency).await?;
    let listener = bind(proxy.listen).await?;
    let beside = bind(proxy.metrics_listen).await?;
    let addresses = (listener.local_addr(), beside.local_addr());
    if let Some(file) = &proxy.port_file {
        write_whole(file, &format!("{}\n{}", addresses.0, addresses.1))?;
    }
    welcome(proxy, addresses, found.as_ref())?;

    let (stop, stopped) = watch::channel(false);
    let page =
        metrics::serve(beside, metrics.clone(), idempotency.clone(), session, proxy, stopped);
    let page = tokio::spawn(page);
    let upstream = Upstream::new(proxy, metrics);
    let guarded = tower_layer::Layer::layer(&idempotency, upstream);
    let service = tower::service_fn(move |request: Request<Incoming>| {
        let answer = guarded.clone().oneshot(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await?.map(Body::new)) }
    });
    let limits = Limits { drain: proxy.drain, ..Limits::default() };
    // Connections have their time first, then operations whose clients hung up.
    let drained = listener.run(service, limits, stop_signal(signals, 2 * proxy.drain)).await;
    // Clients that hung up have left operations behind, which end in their own time.
    let is_drained = idempotency.drained(proxy.drain).await;
    stop.send_replace(true);
    let _ = page.await;
    log.stop().await;
    match drained.cut == 0 && is_drained {
        true => Ok(Exit::Ok),
        false => {
            Err(Failure::new(Exit::Failure, "requests were cut off: they took longer than --drain")
                .next("their keys are freed or parked when their leases end"))
        }
    }
}

fn idempotency(
    session: &Session,
    proxy: &Proxy,
    metrics: &Metrics,
) -> Result<Idempotency, Failure> {
    let mut builder = Idempotency::builder(session.client.client().queue(&proxy.queue))
        .namespace(&proxy.namespace)
        .policy(proxy.release.policy())
        .lease(proxy.lease)
        .wait_max(proxy.wait_max)
        .request_max(proxy.request_max)
        .response_max(proxy.response_max)
        .operations_max(proxy.operations_max)
        .broker_timeout(proxy.broker_timeout)
        .worker(worker_name())
        .observe(metrics.observer());
    for route in &proxy.routes {
        builder = builder.route(keys::of(proxy, route.clone()));
    }
    for route in &proxy.optional_routes {
        builder = builder.route(keys::of(proxy, route.clone().optional()));
    }
    if let Some(name) = proxy.tenant_header.clone() {
        builder = builder.tenant_header(name);
    }
    if !proxy.compare_headers.is_empty() {
        // Callers who share their keys must not get each other's responses.
        let credentials = proxy.tenant_header.is_none().then_some(CREDENTIALS);
        let credentials = credentials.into_iter().flatten();
        let compared = proxy.compare_headers.iter().cloned().chain(credentials);
        builder = builder.fingerprint_headers(compared);
    }
    if !proxy.keep_headers.is_empty() {
        builder = builder.headers(Headers::only(&proxy.keep_headers));
    }
    if proxy.fail_open {
        builder = builder.on_unavailable(OnUnavailable::Open);
    }
    builder.build().map_err(|broken| Failure::usage(broken.to_string()))
}

async fn bind(address: SocketAddr) -> Result<Listener, Failure> {
    let bound = Listener::bind(address, None).await;
    bound.map_err(|error| Failure::new(Exit::Failure, error.to_string()))
}

fn welcome(
    proxy: &Proxy,
    (address, metrics): (SocketAddr, SocketAddr),
    found: Option<&QueueConfig>,
) -> Result<(), Failure> {
    let screen = Screen::plain();
    let url = format!("http://{address}");
    let head = screen.paint(Colour::Bold, format_args!("Hapax listens at {url}"));
    screen.line(format_args!("{head}, in front of {}", proxy.upstream))?;
    screen.line("")?;
    for route in &proxy.routes {
        screen.line(format_args!("  {:<30} needs a key", route.to_string()))?;
    }
    for route in &proxy.optional_routes {
        screen.line(format_args!("  {:<30} may have a key", route.to_string()))?;
    }
    screen.line(format_args!("  {:<30} streams through", "everything else"))?;
    screen.line("")?;
    let retention = match found {
        None => "for the queue's retention".to_owned(),
        Some(found) => match found.retention_ms {
            Some(retention_ms) => format!("for {}", duration::short(retention_ms)),
            None => "for ever".to_owned(),
        },
    };
    screen
        .line(format_args!("  keys      in the queue {}, remembered {retention}", proxy.queue))?;
    screen.line(format_args!(
        "  in doubt  {}",
        match proxy.in_doubt {
            InDoubt::Park => format!(
                "parked; see them with: {}",
                Advice::new("hapax peek", &[&proxy.queue]).option("--state", "parked")
            ),
            InDoubt::Retry => "repeated: the upstream gets the key and must support it".to_owned(),
        }
    ))?;
    screen.line(format_args!("  metrics   http://{metrics}/metrics"))?;
    screen.line("")?;
    let Some(route) = proxy.routes.first().or(proxy.optional_routes.first()) else { return Ok(()) };
    let text = route.to_string();
    let (methods, path) = text.split_once(' ').unwrap_or(("POST", "/"));
    let method = methods.split(',').next().unwrap_or("POST");
    screen.line("Try this twice in another terminal. The second call gets the first response:")?;
    screen.line("")?;
    let (header, body) = keys::example(proxy);
    screen.line(format_args!("  curl -i -X {method}{header} --data '{body}' '{url}{path}'"))?;
    screen.line("")?;
    screen.line("Ctrl-C stops the proxy after the running requests have ended.")?;
    Ok(())
}
