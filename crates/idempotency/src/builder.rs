//! The settings of a layer, with their defaults.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use hapax_client::Queue;
use http::request::Parts;
use http::{HeaderName, header};
use tokio::sync::{Semaphore, watch};

use crate::event::Event;
use crate::layer::Idempotency;
use crate::limits;
use crate::policy::{Headers, Policy};
use crate::route::{BadRoute, Route};
use crate::upload::Uploads;

/// Headers that identify callers. Without a tenant they are compared with those of the first
/// request.
pub const CREDENTIALS: [HeaderName; 3] =
    [header::AUTHORIZATION, header::COOKIE, HeaderName::from_static("x-api-key")];

/// What a protected request gets while the broker cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// 503: a request is not carried out if its response could not be stored.
    #[default]
    Close,
    /// The handler is called without protection: a retry may be carried out again.
    Open,
}

type TenantOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;
type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// The settings of an [`Idempotency`].
#[derive(Debug)]
pub struct Builder {
    rules: Rules,
    headers: Option<Vec<HeaderName>>,
    bad: Option<BadRoute>,
}

/// Why a layer cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    #[error(transparent)]
    Route(#[from] BadRoute),
    #[error("no route is protected: name one, such as .required(\"POST /charges\")")]
    NoRoute,
    #[error("the route {0} is given twice")]
    Twice(String),
    #[error("a lease must last 100 ms to 12 h, not {} ms", .0.as_millis())]
    Lease(Duration),
}

/// The configuration of a layer.
pub(crate) struct Rules {
    pub(crate) queue: Queue,
    pub(crate) namespace: String,
    pub(crate) routes: Vec<Route>,
    pub(crate) tenant: Option<TenantOf>,
    /// The header with the tenant, if it is in one.
    pub(crate) tenant_header: Option<HeaderName>,
    /// Sorted.
    pub(crate) fingerprint_headers: Vec<HeaderName>,
    pub(crate) policy: Policy,
    pub(crate) headers: Headers,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) lease: Duration,
    pub(crate) wait_max: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) broker_timeout: Duration,
    pub(crate) retry_after: Duration,
    pub(crate) request_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
    pub(crate) worker: String,
    /// The memory for incomplete bodies.
    pub(crate) uploads: Uploads,
    /// Limits the operations in progress.
    pub(crate) room: Arc<Semaphore>,
    observer: Option<Observer>,
    /// The number of operations in progress.
    pub(crate) running: watch::Sender<usize>,
}

impl Rules {
    pub(crate) fn tell(&self, event: Event) {
        let Some(observer) = &self.observer else { return };
        // The operation goes on: what is done has to be settled and answered.
        if catch_unwind(AssertUnwindSafe(|| observer(event))).is_err() {
            tracing::error!(?event, "the observer of events panicked");
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.name();
        f.debug_struct("Rules").field("queue", &queue).field("routes", &self.routes).finish()
    }
}

impl Builder {
    pub(crate) fn new(queue: Queue) -> Self {
        let rules = Rules {
            queue,
            namespace: String::new(),
            routes: Vec::new(),
            tenant: None,
            tenant_header: None,
            fingerprint_headers: Vec::new(),
            policy: Policy::default(),
            headers: Headers::default(),
            on_unavailable: OnUnavailable::default(),
            lease: limits::LEASE,
            wait_max: limits::WAIT_MAX,
            request_timeout: limits::REQUEST_TIMEOUT,
            broker_timeout: limits::BROKER_TIMEOUT,
            retry_after: limits::RETRY_AFTER,
            request_bytes_max: limits::REQUEST_BYTES_MAX,
            response_bytes_max: limits::RESPONSE_BYTES_MAX,
            worker: String::new(),
            uploads: Uploads::new(limits::UPLOADS_BYTES_MAX),
            room: Arc::new(Semaphore::new(limits::OPERATIONS_MAX)),
            observer: None,
            running: watch::Sender::new(0),
        };
        Self { rules, headers: None, bad: None }
    }

    /// Protects a route: a pattern such as `POST /orders/{order}/refunds`. A request without a key
    /// gets 400. See [`Route`].
    pub fn required(self, pattern: &str) -> Self {
        self.parsed(pattern, |route| route)
    }

    /// Protects the requests of a route that come with a key.
    pub fn optional(self, pattern: &str) -> Self {
        self.parsed(pattern, Route::optional)
    }

    fn parsed(mut self, pattern: &str, change: impl Fn(Route) -> Route) -> Self {
        match pattern.parse() {
            Ok(route) => self.route(change(route)),
            Err(bad) => {
                self.bad.get_or_insert(bad);
                self
            }
        }
    }

    /// Protects a route. If two match a request, the first counts.
    pub fn route(mut self, route: Route) -> Self {
        self.rules.routes.push(route);
        self
    }

    /// Sets the tenant of a request: callers of different tenants have separate keys. `None`
    /// refuses the request with 401.
    ///
    /// Put authentication outside the layer and read its result here, such as the account's number
    /// in the request's extensions. Do not use a token that may change between two retries. Without
    /// this setting all callers share their keys, and [`CREDENTIALS`] are compared with those of
    /// the first request, so that nobody gets another caller's response.
    pub fn tenant(
        mut self,
        tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.rules.tenant = Some(Arc::new(tenant));
        self.rules.tenant_header = None;
        self
    }

    /// Takes the tenant from a header, which must occur once: for services behind a proxy that
    /// authenticates callers and sets the header. See [`Builder::tenant`].
    pub fn tenant_header(self, name: HeaderName) -> Self {
        let read = name.clone();
        let mut builder = self.tenant(move |request| {
            let mut values = request.headers.get_all(&read).iter();
            let value = values.next()?.to_str().ok()?.to_owned();
            values.next().is_none().then_some(value)
        });
        builder.rules.tenant_header = Some(name);
        builder
    }

    /// Separates the keys of this layer from those of others on the same queue, such as another
    /// service with the same routes.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.rules.namespace = namespace.into();
        self
    }

    /// Headers that a retry must repeat, besides method, path, query and body. By default
    /// `Content-Type`, and [`CREDENTIALS`] if there is no [`Builder::tenant`].
    pub fn fingerprint_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.headers = Some(names.into_iter().collect());
        self
    }

    /// Sets which responses are stored.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.rules.policy = policy;
        self
    }

    /// Sets which headers of a response are stored.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.rules.headers = headers;
        self
    }

    /// What a protected request gets while the broker cannot be reached; by default 503.
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.rules.on_unavailable = on_unavailable;
        self
    }

    /// How long a key stays claimed when this process dies; 30 s by default. The lease is extended
    /// as long as the handler runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.rules.lease = lease;
        self
    }

    /// The longest wait of `Prefer: wait`; 30 s by default, at most 60.
    pub fn wait_max(mut self, wait: Duration) -> Self {
        self.rules.wait_max = wait;
        self
    }

    /// How long a client may take to send a protected request; 30 s by default.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.rules.request_timeout = timeout;
        self
    }

    /// How long a request waits for the broker before the broker counts as unreachable; 5 s by
    /// default.
    pub fn broker_timeout(mut self, timeout: Duration) -> Self {
        self.rules.broker_timeout = timeout;
        self
    }

    /// The `Retry-After` while the first request is in progress; 1 s by default.
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.rules.retry_after = after;
        self
    }

    /// The largest body of a request with a key; 1 MiB by default. Larger ones get 413.
    pub fn request_max(mut self, bytes: usize) -> Self {
        self.rules.request_bytes_max = bytes;
        self
    }

    /// The largest body of a response that is stored; 1 MiB less 32 KiB by default. Of a larger one
    /// only the status is stored: a retry gets 410 `response_not_kept`. The queue's
    /// `max_body_bytes` must be at least 32 KiB above it.
    pub fn response_max(mut self, bytes: usize) -> Self {
        self.rules.response_bytes_max = bytes;
        self
    }

    /// The memory for incomplete request bodies; 256 MiB by default, and at least one body of
    /// [`Builder::request_max`]. Requests beyond it get 503. The first 16 KiB of each are not
    /// counted, so that slow uploads cannot block small requests.
    pub fn uploads_max(mut self, bytes: usize) -> Self {
        self.rules.uploads = Uploads::new(bytes);
        self
    }

    /// The most requests with keys in progress, counted from when they have been read completely;
    /// 1,024 by default. Further ones get 503. Each may hold its request and its response in
    /// memory.
    pub fn operations_max(mut self, operations: usize) -> Self {
        self.rules.room = Arc::new(Semaphore::new(operations.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// A name that the history of a key shows, of at most 64 bytes.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.rules.worker = name.into();
        self
    }

    /// Sets an observer of events, for metrics. It must not block.
    pub fn observe(mut self, observer: impl Fn(Event) + Send + Sync + 'static) -> Self {
        self.rules.observer = Some(Arc::new(observer));
        self
    }

    pub fn build(mut self) -> Result<Idempotency, BuildError> {
        if let Some(bad) = self.bad {
            return Err(bad.into());
        }
        let rules = &mut self.rules;
        if rules.routes.is_empty() {
            return Err(BuildError::NoRoute);
        }
        let mut names: Vec<String> = rules.routes.iter().map(Route::to_string).collect();
        names.sort_unstable();
        if let Some([twice, _]) = names.array_windows::<2>().find(|[one, other]| one == other) {
            return Err(BuildError::Twice(twice.clone()));
        }
        let lengths = Duration::from_millis(100)..=Duration::from_secs(12 * 60 * 60);
        if !lengths.contains(&rules.lease) {
            return Err(BuildError::Lease(rules.lease));
        }
        let mut headers = self.headers.unwrap_or_else(|| match rules.tenant {
            Some(_) => vec![header::CONTENT_TYPE],
            None => CREDENTIALS.into_iter().chain([header::CONTENT_TYPE]).collect(),
        });
        let uploads = std::mem::replace(&mut rules.uploads, Uploads::new(0));
        rules.uploads = uploads.at_least(rules.request_bytes_max);
        headers.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        headers.dedup();
        rules.fingerprint_headers = headers;
        Ok(Idempotency::of(self.rules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_client::Client;

    fn builder() -> Builder {
        Builder::new(Client::connect("http://127.0.0.1:1").unwrap().queue("http"))
    }

    #[tokio::test]
    async fn a_layer_that_protects_nothing_or_cannot_work_is_refused() {
        assert_eq!(builder().build().unwrap_err(), BuildError::NoRoute);
        let bad = builder().required("POST /a").optional("GET /b").build().unwrap_err();
        assert!(bad.to_string().contains("GET /b"), "{bad}");
        let twice = builder().required("POST /a").optional("POST /a").build().unwrap_err();
        assert_eq!(twice, BuildError::Twice("POST /a".to_owned()));
        let lease = builder().required("POST /a").lease(Duration::from_millis(1)).build();
        assert!(lease.unwrap_err().to_string().contains("100 ms"));
    }

    #[tokio::test]
    async fn whose_key_it_is_decides_whether_credentials_are_compared() {
        let compared = |builder: Builder| {
            let layer = builder.required("POST /a").build().unwrap();
            let names = &layer.rules().fingerprint_headers;
            names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        let all = ["authorization", "content-type", "cookie", "x-api-key"];
        assert_eq!(compared(builder()), all);
        assert_eq!(compared(builder().tenant(|_| None)), ["content-type"]);
        let chosen = builder().fingerprint_headers([header::ETAG, header::ACCEPT, header::ETAG]);
        assert_eq!(compared(chosen), ["accept", "etag"]);
    }
    #[tokio::test]
    async fn an_observer_that_panics_ends_no_operation() {
        let panics = |event| panic!("planted, at {event:?}");
        let layer = builder().required("POST /a").observe(panics).build().unwrap();
        let told = || layer.rules().tell(Event::BrokerFailed(hapax_client::Code::Unavailable));
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
        assert!(told.is_ok(), "it has to be answered, whoever watches");
    }
}
