//! Proxies as processes, before brokers that are processes too.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use axum::body::Bytes;
use hapax_testing::{BrokerProcess, Setup, Signal, eventually, in_time, program, signal};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// The program in a directory.
pub(crate) fn hapax(directory: &Path) -> Command {
    let mut command = program(HAPAX);
    command.current_dir(directory);
    command
}

const HAPAX: &str = env!("CARGO_BIN_EXE_hapax");

/// Starts a broker of so many partitions in a directory of its own.
pub(crate) fn start_broker(partitions: u16) -> BrokerProcess {
    Setup::temporary(HAPAX, tempfile::tempdir().unwrap()).partitions(partitions).start()
}

/// Starts a broker again, while clients and upstream go on.
pub(crate) async fn start_again(broker: &mut BrokerProcess) {
    let setup = broker.setup.clone();
    *broker = tokio::task::spawn_blocking(move || setup.start()).await.unwrap();
}

/// Runs a command against a broker.
pub(crate) async fn ok(broker: &BrokerProcess, arguments: &[&str]) -> String {
    let mut command = broker.command(arguments);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = ran.await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A proxy before an upstream.
pub(crate) struct Proxy {
    pub(crate) child: Child,
    directory: TempDir,
    pub(crate) address: String,
    metrics: String,
}

impl Proxy {
    /// With the usual routes.
    pub(crate) async fn start(broker: &str, upstream: &str, more: &[&str]) -> Self {
        let routes = [
            ["--route", "POST /charges"],
            ["--route", "POST /gate"],
            ["--route", "POST /hang"],
            ["--route", "POST /cut"],
            ["--route", "POST /half"],
            ["--route", "POST /status/{status}"],
            ["--optional-route", "PUT /charges"],
        ];
        // A machine that stalls for seconds is not a broker that is away.
        let patience: &[&str] = match more.contains(&"--broker-timeout") {
            true => &[],
            false => &["--broker-timeout", "60s"],
        };
        let directory = tempfile::tempdir().unwrap();
        let mut child = hapax(directory.path())
            .args(["proxy", "--server", broker, "--upstream", upstream])
            .args(routes.concat())
            .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
            .args(["--port-file", "ports"])
            .args(patience)
            .args(more)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let ports = eventually("the proxy's ports", async || {
            assert!(child.try_wait().unwrap().is_none(), "the proxy ended");
            std::fs::read_to_string(directory.path().join("ports")).ok()
        });
        let ports = ports.await;
        let mut ports = ports.lines().map(str::to_owned);
        let (address, metrics) = (ports.next().unwrap(), ports.next().unwrap());
        Self { child, directory, address, metrics }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: Signal) {
        signal(self.child.id(), name);
    }

    /// The code it ends with.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        eventually("the proxy to end", async || self.child.try_wait().unwrap()).await.code()
    }

    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> Answered {
        ask(&self.address, request).await
    }

    pub(crate) fn asking(&self, request: Request<Full<Bytes>>) -> JoinHandle<Answered> {
        let address = self.address.clone();
        tokio::spawn(async move { ask(&address, request).await })
    }

    pub(crate) async fn beside(&self, path: &str) -> Answered {
        ask(&self.metrics, Request::get(path).body(Full::default()).unwrap()).await
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// One figure of its metrics.
    pub(crate) async fn metric(&self, series: &str) -> u64 {
        let page = self.beside("/metrics").await;
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response, with all of its body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answered {
    pub(crate) fn is_replayed(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The status and code of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// Asks on a connection of its own.
pub(crate) async fn ask(address: &str, mut request: Request<Full<Bytes>>) -> Answered {
    let path = request.uri().path_and_query().unwrap().clone();
    *request.uri_mut() = format!("http://{address}{path}").parse().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = in_time(client.request(request)).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = in_time(body.collect()).await.unwrap().to_bytes();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

pub(crate) fn request(path: &str, key: &str) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("idempotency-key", key);
    request.body(Full::from("17 euro")).unwrap()
}

/// One that waits for the one in progress, or for its lease to end.
pub(crate) fn patient(path: &str, key: &str) -> Request<Full<Bytes>> {
    let mut request = request(path, key);
    request.headers_mut().insert("prefer", "wait=30".parse().unwrap());
    request
}
