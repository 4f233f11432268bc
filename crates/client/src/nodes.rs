//! The addresses of a broker. Of several nodes one serves; the others answer which one does. All
//! connections of a client ask the same node, until it cannot be reached or does not serve: then
//! they ask the node that it named, or the next one of the list. Names are followed a few times in
//! a row: an address that leads nowhere, or nodes that name each other, keep nobody from the rest
//! of the list.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error as Lost, Identity};
use tonic::{ConnectError, Status};

use crate::error::Error;

/// Metadata of a node that does not serve, and so did nothing: the address of the node that does,
/// or nothing if it knows none.
const SERVING: &str = "hapax-serving";
/// The longest address that is followed.
const ADDRESS_BYTES_MAX: usize = 512;
/// The most addresses of a client.
const NODES_MAX: usize = 64;
/// How often names are followed before the next address of the list is asked: a node may name one
/// that served until a moment ago, which names another one.
const FOLLOWED_MAX: usize = 2;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A broker that disappeared is noticed after both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where another node may have taken over.
const KEEP_ALIVE_OF_SEVERAL: Duration = Duration::from_secs(3);
/// The largest DATA frame of HTTP/2: a frame of ours that fits into one is not copied together.
const CHUNK_BYTES: u32 = 256 * 1_024;
/// HTTP/2 flow-control windows: of one stream, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 2 * 1_024 * 1_024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1_024 * 1_024;

/// How connections are made: what is the same for all addresses.
#[derive(Clone, Default)]
pub(crate) struct Dialer {
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) server_name: Option<String>,
    is_one_of_several: bool,
}

/// Clients, queues and claims are printed with it: without the private key.
impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}

/// The nodes of a broker, shared by everything that connects to it.
#[derive(Debug)]
pub(crate) struct Nodes {
    dialer: Dialer,
    given: Vec<Arc<Node>>,
    asked: Mutex<Asked>,
}

/// The node to ask, and how it was found.
#[derive(Debug)]
struct Asked {
    node: Arc<Node>,
    /// The place of the last one that was asked because it is in the list.
    place: usize,
    /// How often names were followed since.
    followed: usize,
}

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    address: String,
    endpoint: Endpoint,
    channel: Channel,
}

impl Nodes {
    /// Reads a list of addresses, which commas separate. The first one is asked first.
    pub(crate) fn new(addresses: &str, mut dialer: Dialer) -> Result<Self, Error> {
        let addresses: Vec<&str> = addresses.split(',').map(str::trim).collect();
        if addresses.len() > NODES_MAX {
            return Err(Error::invalid(format!("more than {NODES_MAX} addresses")));
        }
        if addresses.iter().any(|address| address.is_empty()) && addresses.len() > 1 {
            return Err(Error::invalid("an address between two commas is empty"));
        }
        dialer.is_one_of_several = addresses.len() > 1;
        let given = addresses.into_iter().map(|address| Node::new(address, &dialer).map(Arc::new));
        let given = given.collect::<Result<Vec<_>, _>>()?;
        let first = given.first().cloned().ok_or_else(|| Error::invalid("there is no address"))?;
        let asked = Mutex::new(Asked { node: first, place: 0, followed: 0 });
        Ok(Self { dialer, given, asked })
    }

    /// The node to ask.
    pub(crate) fn current(&self) -> Arc<Node> {
        Arc::clone(&self.asked().node)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks another node than this one: the one that it named, or the next one of the list. Returns
    /// whether there is another.
    pub(crate) fn leave(&self, node: &Arc<Node>, named: Option<&str>) -> bool {
        let named = named.and_then(|address| self.named(node, address));
        let mut asked = self.asked();
        // Another connection may have found out before.
        if !Arc::ptr_eq(&asked.node, node) {
            return true;
        }
        let named = named.filter(|_| asked.followed < FOLLOWED_MAX);
        let next = match named {
            Some(node) => Some(Asked { node, place: asked.place, followed: asked.followed + 1 }),
            None => self.after(asked.place, node),
        };
        let Some(next) = next else {
            asked.followed = 0;
            return false;
        };
        tracing::debug!(from = node.address, to = next.node.address, "asking another node");
        *asked = next;
        true
    }

    /// The most nodes that one call asks: everybody once and whom each of them names, and one more.
    fn tries_max(&self) -> usize {
        2 * self.given.len() + 1
    }

    /// The node of an address that another one named; `None` if it is not followed.
    fn named(&self, by: &Node, address: &str) -> Option<Arc<Node>> {
        if address.is_empty() || address.len() > ADDRESS_BYTES_MAX || address.contains(',') {
            return None;
        }
        let node = Node::new(address, &self.dialer).ok()?;
        if node.endpoint.uri() == by.endpoint.uri() {
            return None; // It does not serve.
        }
        // Neither the token nor messages leave encryption because somebody says so.
        if by.is_encrypted() && !node.is_encrypted() {
            return None;
        }
        let known = self.given.iter().find(|known| known.endpoint.uri() == node.endpoint.uri());
        Some(known.cloned().unwrap_or_else(|| Arc::new(node)))
    }

    /// The next one of the list after this place; `None` if there is only this node.
    fn after(&self, place: usize, node: &Arc<Node>) -> Option<Asked> {
        let count = self.given.len();
        (1..=count).find_map(|step| {
            let place = (place + step) % count;
            let next = self.given.get(place).filter(|next| !Arc::ptr_eq(next, node))?;
            Some(Asked { node: Arc::clone(next), place, followed: 0 })
        })
    }
}

impl Node {
    fn new(address: &str, dialer: &Dialer) -> Result<Self, Error> {
        let endpoint = dialer.endpoint(address)?;
        Ok(Self { address: address.to_owned(), channel: endpoint.connect_lazy(), endpoint })
    }

    /// A separate connection for a stream, so that a stream that is not read does not block others.
    pub(crate) fn channel(&self) -> Channel {
        self.endpoint.connect_lazy()
    }

    fn is_encrypted(&self) -> bool {
        self.endpoint.uri().scheme_str() == Some("https")
    }
}

impl Dialer {
    fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        let bad = |why: String| Error::invalid(format!("{address}: {why}"));
        let address = match address.split_once("://") {
            Some(("http" | "https", _)) => address.to_owned(),
            Some((scheme, _)) => {
                return Err(bad(format!("{scheme} is not supported: use http or https")));
            }
            None => format!("http://{address}"),
        };
        let is_tls = address.starts_with("https:");
        let (interval, timeout) = match self.is_one_of_several {
            true => (KEEP_ALIVE_OF_SEVERAL, KEEP_ALIVE_OF_SEVERAL),
            false => (KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT),
        };
        let endpoint = Endpoint::from_shared(address)
            .map_err(|error| bad(format!("not a valid address: {error}")))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true)
            .max_frame_size(CHUNK_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        if !is_tls {
            return Ok(endpoint);
        }
        endpoint.tls_config(self.tls()).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            bad(cause.unwrap_or_else(|| error.to_string()))
        })
    }

    fn tls(&self) -> ClientTlsConfig {
        // The timeout of connecting ends before the handshake.
        let mut tls = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT);
        match &self.authority {
            Some(pem) => tls = tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls = with_native_roots(tls),
        }
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name);
        }
        tls
    }
}

/// Adds the CA certificates of the machine, with the feature `native-roots`.
fn with_native_roots(tls: ClientTlsConfig) -> ClientTlsConfig {
    #[cfg(feature = "native-roots")]
    let tls = tls.with_native_roots();
    tls
}

/// The node that serves, as another one named it: `None` if the answer is not that of a node that
/// does not serve, and empty if that one knows none.
pub(crate) fn serving(headers: &HeaderMap) -> Option<&str> {
    headers.get(SERVING).map(|address| address.to_str().unwrap_or_default())
}

/// Calls whichever node serves. A call is repeated at another node only if it is certain that
/// nothing was done: there was no connection, or the node does not serve.
#[derive(Clone, Debug)]
pub(crate) struct Calls(pub(crate) Arc<Nodes>);

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Lost;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Lost>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        // Each call waits for the connection of its own node.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let nodes = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            // One message, which is one piece of bytes.
            let body = match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(status) => return Ok(status.into_http()),
            };
            let mut tries = 1;
            loop {
                let node = nodes.current();
                let answer = ask(&node, head.clone(), body.clone()).await;
                let is_elsewhere = match &answer {
                    Ok(response) => serving(response.headers())
                        .is_some_and(|named| nodes.leave(&node, Some(named))),
                    Err(lost) => nodes.leave(&node, None) && is_unconnected(lost),
                };
                if !is_elsewhere || tries == nodes.tries_max() {
                    return answer;
                }
                tries += 1;
            }
        })
    }
}

async fn ask(
    node: &Node,
    head: http::request::Parts,
    body: Bytes,
) -> Result<http::Response<Body>, Lost> {
    let mut channel = node.channel.clone();
    poll_fn(|context| channel.poll_ready(context)).await?;
    channel.call(http::Request::from_parts(head, Body::new(Full::new(body)))).await
}

/// Whether a call failed because there was no connection, so that nothing was sent.
fn is_unconnected(lost: &Lost) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(lost);
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The node that a status names; see [`serving`].
pub(crate) fn named(status: &Status) -> Option<&str> {
    status.metadata().get(SERVING).map(|address| address.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(addresses: &str) -> Nodes {
        Nodes::new(addresses, Dialer::default()).unwrap()
    }

    /// Leaves the current node, and returns the address of the one that is asked then.
    fn after(nodes: &Nodes, named: Option<&str>) -> String {
        nodes.leave(&nodes.current(), named);
        nodes.current().address.clone()
    }

    #[tokio::test]
    async fn nodes_are_asked_in_turn_and_one_that_is_named_at_once() {
        let nodes = nodes("a:1, b:2,http://c:3");
        assert_eq!(nodes.current().address, "a:1");
        assert_eq!(after(&nodes, None), "b:2");
        assert_eq!(after(&nodes, Some("")), "http://c:3");
        assert_eq!(after(&nodes, Some("http://b:2")), "b:2", "it is known by another spelling");
        assert_eq!(after(&nodes, Some("http://d:4")), "http://d:4", "and one that is not");
        assert_eq!(after(&nodes, None), "a:1", "the list again");
    }

    #[tokio::test]
    async fn who_left_a_node_first_decides_for_all() {
        let nodes = nodes("a:1,b:2,c:3");
        let first = nodes.current();
        assert!(nodes.leave(&first, None));
        assert!(nodes.leave(&first, None), "it was left already");
        assert_eq!(nodes.current().address, "b:2");
    }

    #[tokio::test]
    async fn a_lone_node_is_kept_unless_it_names_another() {
        let nodes = nodes("a:1");
        assert!(!nodes.leave(&nodes.current(), None));
        assert!(!nodes.leave(&nodes.current(), Some("http://a:1")), "itself");
        assert_eq!(after(&nodes, Some("http://b:2")), "http://b:2");
        assert_eq!(after(&nodes, None), "a:1");
    }

    #[tokio::test]
    async fn what_is_encrypted_stays_so_and_nonsense_is_not_followed() {
        let nodes = nodes("https://a:1");
        let long = format!("https://{}", "x".repeat(600));
        for bad in ["http://b:2", "b:2", "ftp://b", "https://", "https://a,b", &long] {
            assert!(!nodes.leave(&nodes.current(), Some(bad)), "{bad}");
        }
        assert_eq!(after(&nodes, Some("https://b:2")), "https://b:2");
    }

    #[tokio::test]
    async fn lists_with_holes_are_refused() {
        for bad in ["", "a:1,,b:2", "a:1,", &vec!["a:1"; 65].join(",")] {
            assert!(Nodes::new(bad, Dialer::default()).is_err(), "{bad}");
        }
    }
    /// The addresses that are asked one after the other, as long as none of them serves: each names
    /// what `names` says, and one that is not in the list of `names` cannot be reached.
    fn asked(addresses: &str, names: &[(&str, &str)], count: usize) -> Vec<String> {
        let nodes = nodes(addresses);
        let next = |_| {
            let current = nodes.current();
            let named = names.iter().find(|(node, _)| *node == current.address);
            nodes.leave(&current, named.map(|(_, named)| *named));
            current.address.clone()
        };
        (0..count).map(next).collect()
    }

    #[tokio::test]
    async fn a_name_that_leads_nowhere_keeps_nobody_from_the_rest_of_the_list() {
        // An address that clients cannot reach.
        let names = [("a:1", "http://d:4"), ("b:2", "http://d:4")];
        let asked_in_turn = asked("a:1,b:2,c:3", &names, 5);
        assert_eq!(asked_in_turn, ["a:1", "http://d:4", "b:2", "http://d:4", "c:3"]);
        // All nodes were given the address of the first one.
        let names = [("a:1", "http://a:1"), ("b:2", "http://a:1")];
        assert_eq!(asked("a:1,b:2,c:3", &names, 4), ["a:1", "b:2", "a:1", "c:3"]);
    }

    #[tokio::test]
    async fn nodes_that_name_each_other_are_left_for_the_rest_of_the_list() {
        // One that is not in the list names itself.
        let names = [("a:1", "http://d:4"), ("http://d:4", "http://d:4")];
        assert_eq!(asked("a:1,b:2", &names, 3), ["a:1", "http://d:4", "b:2"]);
        assert_eq!(asked("a:1", &names, 3), ["a:1", "http://d:4", "a:1"]);
        // Or another one, which names it.
        let names = [("a:1", "http://d:4"), ("http://d:4", "http://e:5"), ("http://e:5", "d:4")];
        assert_eq!(asked("a:1,b:2", &names, 4), ["a:1", "http://d:4", "http://e:5", "b:2"]);
        let names = [("a:1", "b:2"), ("b:2", "a:1")];
        assert_eq!(asked("a:1,b:2,c:3", &names, 7).last().unwrap(), "c:3");
    }

    #[tokio::test]
    async fn a_node_that_does_not_finish_the_handshake_of_tls_is_left() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = format!("https://{},b:2", silent.local_addr().unwrap());
        let nodes = Arc::new(nodes(&addresses));
        let mut channel = Calls(Arc::clone(&nodes));
        let call = channel.call(http::Request::new(Body::empty()));
        let left = async {
            tokio::pin!(call);
            loop {
                tokio::select! {
                    _ = &mut call => break,
                    () = tokio::time::sleep(Duration::from_millis(20)) => {}
                }
                if nodes.current().address == "b:2" {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), left).await.expect("it is waited for");
        assert_eq!(nodes.current().address, "b:2");
    }
    #[tokio::test]
    async fn a_call_that_may_have_been_made_is_not_repeated_at_another_node() {
        let listen = || tokio::net::TcpListener::bind("127.0.0.1:0");
        let (first, second) = (listen().await.unwrap(), listen().await.unwrap());
        let address = |it: &tokio::net::TcpListener| it.local_addr().unwrap().to_string();
        let nodes = Arc::new(nodes(&format!("{},{}", address(&first), address(&second))));
        let call = Calls(Arc::clone(&nodes)).call(http::Request::new(Body::empty()));
        let call = tokio::spawn(call);
        let (connection, _) = first.accept().await.unwrap();
        connection.readable().await.unwrap();
        drop(connection);
        tokio::select! {
            answer = call => assert!(answer.unwrap().is_err()),
            _ = second.accept() => panic!("it was asked, too"),
        }
        assert_eq!(nodes.current().address, address(&second), "the next call is for it");
    }
}
