//! Brokers and proxies as processes, which can be killed, stopped and started again.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Far longer than anything here takes, on a machine that is busy with something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes far too long")
}

/// Waits until there is something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The program, with nothing of the machine's settings around it.
pub(crate) fn hapax(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.current_dir(directory).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAPAX_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
    assert!(status.success());
}

/// Stops all threads of a process, until SIGCONT.
async fn pause(child: &Child) {
    signal(child, "STOP");
    let tasks = format!("/proc/{}/task", child.id());
    until("every thread to stop", async || {
        let mut tasks = std::fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path());
        let is_stopped = |path: std::path::PathBuf| {
            let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT"))
        };
        tasks.all(is_stopped).then_some(())
    })
    .await;
}

/// A broker in a directory of its own.
pub(crate) struct Broker {
    child: Child,
    directory: TempDir,
    partitions: u16,
    pub(crate) address: String,
}

impl Broker {
    pub(crate) async fn start(partitions: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (child, address) = serve(directory.path(), "127.0.0.1:0", partitions).await;
        Self { child, directory, partitions, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// As a power cut would: no word to anybody.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) async fn pause(&self) {
        pause(&self.child).await;
    }

    pub(crate) fn resume(&self) {
        signal(&self.child, "CONT");
    }

    /// On the same port and data.
    pub(crate) async fn start_again(&mut self) {
        (self.child, _) = serve(self.directory.path(), &self.address, self.partitions).await;
    }

    /// Runs a command against it.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = hapax(self.directory.path());
        command.args(arguments).env("HAPAX_SERVER", self.url());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn serve(directory: &Path, listen: &str, partitions: u16) -> (Child, String) {
    let port_file = directory.join("port");
    let _ = std::fs::remove_file(&port_file);
    let mut child = hapax(directory)
        .args(["serve", "--listen", listen, "--data", "data", "--port-file", "port"])
        .args(["--auth", "off", "--log", "error", "--partitions", &partitions.to_string()])
        .spawn()
        .unwrap();
    let address = until("the broker's port", async || {
        assert!(child.try_wait().unwrap().is_none(), "the broker ended");
        std::fs::read_to_string(&port_file).ok()
    });
    let address = address.await.trim().to_owned();
    (child, address)
}

/// A proxy before an upstream.
pub(crate) struct Proxy {
    pub(crate) child: Child,
    _directory: TempDir,
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
        let directory = tempfile::tempdir().unwrap();
        let mut child = hapax(directory.path())
            .args(["proxy", "--server", broker, "--upstream", upstream])
            .args(routes.concat())
            .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
            .args(["--port-file", "ports", "--log", "error"])
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ports = until("the proxy's ports", async || {
            assert!(child.try_wait().unwrap().is_none(), "the proxy ended");
            std::fs::read_to_string(directory.path().join("ports")).ok()
        });
        let ports = ports.await;
        let mut ports = ports.lines().map(str::to_owned);
        let (address, metrics) = (ports.next().unwrap(), ports.next().unwrap());
        Self { child, _directory: directory, address, metrics }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    pub(crate) async fn pause(&self) {
        pause(&self.child).await;
    }

    /// The code it ends with.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        until("the proxy to end", async || self.child.try_wait().unwrap()).await.code()
    }

    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> Told {
        ask(&self.address, request).await
    }

    pub(crate) fn asking(&self, request: Request<Full<Bytes>>) -> JoinHandle<Told> {
        let address = self.address.clone();
        tokio::spawn(async move { ask(&address, request).await })
    }

    pub(crate) async fn beside(&self, path: &str) -> Told {
        ask(&self.metrics, Request::get(path).body(Full::default()).unwrap()).await
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
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Told {
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
pub(crate) async fn ask(address: &str, mut request: Request<Full<Bytes>>) -> Told {
    let path = request.uri().path_and_query().unwrap().clone();
    *request.uri_mut() = format!("http://{address}{path}").parse().unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = in_time(client.request(request)).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = in_time(body.collect()).await.unwrap().to_bytes();
    Told { status: parts.status.as_u16(), headers: parts.headers, body }
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
