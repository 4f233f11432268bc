//! The client: address, credentials and connections.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hapax_wire::proto::hapax_client::HapaxClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use crate::claim;
use crate::error::Error;
use crate::lane::Lane;
use crate::nodes::{Calls, Dialer, Node, Nodes};
use crate::queue::Queue;
use crate::retry::{Retry, moment};

/// The default timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer: a page of large messages, or one message of the largest size with its
/// headers.
pub(crate) const FRAME_BYTES_MAX: usize = 64 * 1_024 * 1_024;
/// The largest frame that is sent. A broker of release 0.1 ends a stream with a larger one, also
/// for other callers.
pub(crate) const SENT_BYTES_MAX: usize = 16 * 1_024 * 1_024 + 64 * 1_024;

/// A broker. Cheap to clone; clones share their connections.
///
/// It connects on first use, and reconnects when the connection breaks.
///
/// ```no_run
/// # async fn example() -> Result<(), hapax_client::Error> {
/// use hapax_client::{Client, Message};
///
/// let client = Client::connect("http://127.0.0.1:4747")?;
/// let orders = client.queue("orders");
/// let answer = orders.send(Message::new("three lemons").key("order-42")).await?;
/// println!("{} is {}", answer.id, answer.state.as_str());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    addresses: String,
    nodes: Arc<Nodes>,
    bearer: Bearer,
    timeout: Duration,
    lane: OnceLock<Lane>,
    claim_lane: OnceLock<claim::Lane>,
}

/// The generated client, with the token on every call.
pub(crate) type Rpc = HapaxClient<InterceptedService<Calls, Bearer>>;

/// Puts the token on every call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.sign(&mut request);
        Ok(request)
    }
}

impl Bearer {
    pub(crate) fn sign<T>(&self, request: &mut Request<T>) {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
    }
}

impl Client {
    /// Creates a client for an address such as `http://127.0.0.1:4747`, or for several nodes of one
    /// broker, separated by commas: it finds the one that serves, and follows when another one
    /// takes over. Nothing is sent yet; see [`Client::ready`]. Must be called inside a tokio
    /// runtime.
    pub fn connect(address: &str) -> Result<Self, Error> {
        Self::builder(address).connect()
    }

    pub fn builder(address: &str) -> Builder {
        Builder {
            addresses: address.to_owned(),
            token: None,
            timeout: TIMEOUT,
            dialer: Dialer::default(),
        }
    }

    /// A queue of the broker, whether it exists or not.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue::new(self.clone(), name.into())
    }

    /// Waits until the broker answers, at most for `timeout`.
    pub async fn ready(&self, timeout: Duration) -> Result<(), Error> {
        let until = moment(tokio::time::Instant::now(), timeout);
        let request = hapax_wire::proto::ListQueuesRequest {};
        let ping = || {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            self.call_within(left, |mut rpc| async move { rpc.list_queues(request).await })
        };
        Retry::within(timeout).run(ping).await.map(drop)
    }

    /// The address as it was given; several are separated by commas.
    pub fn address(&self) -> &str {
        &self.0.addresses
    }

    /// How long a call may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Makes one call, within the client's timeout.
    pub(crate) async fn call<T, F>(&self, call: impl FnOnce(Rpc) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_within(self.0.timeout, call).await
    }

    /// Makes one call with its own timeout, for calls that wait at the broker.
    pub(crate) async fn call_within<T, F>(
        &self,
        timeout: Duration,
        call: impl FnOnce(Rpc) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        match tokio::time::timeout(timeout, call(self.rpc())).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.error(&status)),
            Err(_) => Err(Error::TimedOut(timeout)),
        }
    }

    pub(crate) fn rpc(&self) -> Rpc {
        HapaxClient::with_interceptor(Calls(Arc::clone(&self.0.nodes)), self.0.bearer.clone())
            .max_decoding_message_size(FRAME_BYTES_MAX)
        // No limit for encoding: the broker refuses what is too large. An encoder's error would
        // look like a broken connection, and be retried.
    }

    pub(crate) fn error(&self, status: &Status) -> Error {
        Error::of_status(status, &self.0.addresses)
    }

    pub(crate) fn bearer(&self) -> &Bearer {
        &self.0.bearer
    }

    /// The node to ask.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.0.nodes.current()
    }

    /// Asks another node from now on, if there is one. See [`Nodes::leave`].
    pub(crate) fn leave(&self, node: &Arc<Node>, named: Option<&str>) -> bool {
        self.0.nodes.leave(node, named)
    }

    /// A separate client over the same connection, for a task that must not keep this one alive.
    pub(crate) fn detached(&self) -> Self {
        Self(Arc::new(Inner {
            addresses: self.0.addresses.clone(),
            nodes: Arc::clone(&self.0.nodes),
            bearer: self.0.bearer.clone(),
            timeout: self.0.timeout,
            lane: OnceLock::new(),
            claim_lane: OnceLock::new(),
        }))
    }

    /// The stream that all sends of this client share.
    pub(crate) fn lane(&self) -> &Lane {
        self.0.lane.get_or_init(Lane::default)
    }

    /// The stream that all claims of this client share.
    pub(crate) fn claim_lane(&self) -> &claim::Lane {
        self.0.claim_lane.get_or_init(claim::Lane::default)
    }
}

/// The settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct Builder {
    addresses: String,
    token: Option<String>,
    timeout: Duration,
    dialer: Dialer,
}

impl Builder {
    /// Adds the address of another node of the same broker.
    pub fn address(mut self, address: &str) -> Self {
        self.addresses = format!("{},{address}", self.addresses);
        self
    }

    /// Sets the token, as printed by `hapax token create`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The timeout of a call, including retries; 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the CA certificate that signed the broker's, in PEM. For `https` addresses.
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.dialer.authority = Some(pem.into());
        self
    }

    /// The certificate and the key of this client, as PEM, for brokers that require one.
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.dialer.identity = Some((certificate.into(), key.into()));
        self
    }

    /// The name in the broker's certificate, if it differs from the address.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.dialer.server_name = Some(name.into());
        self
    }

    /// Builds the client. Nothing is sent yet. Must be called inside a tokio runtime.
    pub fn connect(self) -> Result<Client, Error> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::invalid("a client must be created inside a tokio runtime"));
        }
        let nodes = Arc::new(Nodes::new(&self.addresses, self.dialer)?);
        let bearer = match &self.token {
            Some(token) => {
                let value = format!("Bearer {}", token.trim()).parse();
                let value =
                    value.map_err(|_| Error::invalid("the token has invalid characters"))?;
                Bearer(Some(value))
            }
            None => Bearer::default(),
        };
        Ok(Client(Arc::new(Inner {
            addresses: self.addresses,
            nodes,
            bearer,
            timeout: self.timeout,
            lane: OnceLock::new(),
            claim_lane: OnceLock::new(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_outside_a_runtime_is_refused_instead_of_panicking() {
        let error = Client::connect("http://127.0.0.1:1").unwrap_err();
        assert!(error.to_string().contains("runtime"), "{error}");
    }

    #[tokio::test]
    async fn an_address_may_leave_the_scheme_out_and_a_strange_one_is_explained() {
        assert_eq!(Client::connect("127.0.0.1:1").unwrap().address(), "127.0.0.1:1");
        let error = Client::connect("ftp://127.0.0.1").unwrap_err();
        assert!(error.to_string().contains("use http or https"), "{error}");
        assert!(Client::connect("http://not an address").is_err());
    }

    #[tokio::test]
    async fn nothing_that_is_printed_has_the_private_key() {
        let builder = Client::builder("http://127.0.0.1:1").identity("certificate", "private");
        let key = format!("{:?}", b"private").trim_matches(['[', ']']).to_owned();
        let printed = format!("{builder:?}");
        assert!(!printed.contains(&key) && !printed.contains("private"), "{printed}");
        let client = builder.connect().unwrap();
        let printed = format!("{client:?} {:?}", client.queue("orders"));
        assert!(!printed.contains(&key) && !printed.contains("private"), "{printed}");
    }

    #[tokio::test]
    async fn a_broker_that_is_not_there_is_named() {
        let client = Client::connect("http://127.0.0.1:1").unwrap();
        // A machine that is too busy to see it within one limit is given a longer one.
        for limit in [300, 3_000, 30_000] {
            let error = client.ready(Duration::from_millis(limit)).await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
            if error.to_string().contains("127.0.0.1:1") {
                return;
            }
        }
        panic!("it was never named");
    }
}
