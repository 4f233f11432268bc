//! What idempotency costs: a bare axum service, the same behind the layer, and behind the proxy.
//!
//! ```sh
//! cargo build --release -p hapax
//! cargo run --release -p hapax-idempotency --example overhead -- --requests 20000
//! ```
//!
//! It starts its own broker and proxy (the program `hapax` beside it, or `--hapax PATH`), with
//! synced data in a temporary directory, and sends requests over keep-alive connections, in a
//! closed loop. A row is one way to the same handler, compared with the first row. Rows take turns,
//! so that a slow phase of the machine affects all of them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use clap::Parser;
use hapax_client::{Admin, Client};
use hapax_idempotency::Idempotency;
use hdrhistogram::Histogram;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Timeout for a process to listen.
const START: Duration = Duration::from_secs(30);
const KEY: &str = "idempotency-key";

#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Requests per row, in all rounds together.
    #[arg(long, default_value_t = 20_000)]
    requests: u64,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 16)]
    connections: u64,
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Bytes of a request body and of a response body.
    #[arg(long, default_value_t = 256)]
    body_bytes: usize,
    /// The program `hapax` [default: beside the folder of this one].
    #[arg(long)]
    hapax: Option<PathBuf>,
    /// Where the broker keeps its data [default: the temporary directory]. Choose the disk to be
    /// measured: a response is synced before it is returned.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Only the first row and those whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// One line of JSON per row, instead of the table.
    #[arg(long)]
    json: bool,
}

/// A way to the handler.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    port: SocketAddr,
    path: &'static str,
    keys: Keys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    None,
    /// A new key for every request: claim, handler, completion.
    Fresh,
    /// One key for all requests: the stored response every time.
    One,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(&arguments))
}

async fn measure(arguments: &Arguments) -> Result<()> {
    let directory = match &arguments.directory {
        Some(parent) => tempfile::tempdir_in(parent)?,
        None => tempfile::tempdir()?,
    };
    let hapax = arguments.hapax.clone().map_or_else(beside, Ok)?;
    let broker = ["serve", "--listen", "127.0.0.1:0", "--data", "data", "--auth", "off"];
    let broker = Process::start(&hapax, directory.path(), "broker", &broker)?;
    let broker_url = format!("http://{}", broker.address(0).await?);

    let client = Client::connect(&broker_url)?;
    Admin::new(client.clone()).put_queue("layer", "{}", None).await?;
    let calls = Arc::new(AtomicU64::new(0));
    let service = service(arguments.body_bytes, Arc::clone(&calls));
    let idempotency = Idempotency::builder(client.queue("layer")).required("POST /protected");
    let bare = serve(service.clone()).await?;
    let layered = serve(service.layer(idempotency.build()?)).await?;
    let upstream = format!("http://{bare}");
    let proxy = ["proxy", "--server", &broker_url, "--upstream", &upstream];
    let more = ["--route", "POST /protected", "--listen", "127.0.0.1:0"];
    let metrics = ["--metrics-listen", "127.0.0.1:0", "--in-doubt", "retry"];
    let proxy = [&proxy[..], &more, &metrics].concat();
    let proxy = Process::start(&hapax, directory.path(), "proxy", &proxy)?;
    let proxied = proxy.address(0).await?;

    let row = |name, port, path, keys| Row { name, port, path, keys };
    let rows = [
        row("bare axum", bare, "/plain", Keys::None),
        row("layer, route not listed", layered, "/plain", Keys::None),
        row("layer, fresh keys", layered, "/protected", Keys::Fresh),
        row("layer, replays", layered, "/protected", Keys::One),
        row("proxy, route not listed", proxied, "/plain", Keys::None),
        row("proxy, fresh keys", proxied, "/protected", Keys::Fresh),
        row("proxy, replays", proxied, "/protected", Keys::One),
    ];
    let is_wanted = |(place, row): &(usize, Row)| *place == 0 || row.name.contains(&arguments.only);
    let rows: Vec<Row> =
        rows.into_iter().enumerate().filter(is_wanted).map(|(_, row)| row).collect();
    let mut measured = Vec::new();
    for _ in &rows {
        measured.push((Histogram::<u64>::new(3)?, Duration::ZERO));
    }
    for round in 0..arguments.rounds {
        for (row, (latencies, took)) in rows.iter().zip(&mut measured) {
            let start = Instant::now();
            latencies.add(load(arguments, *row, round).await?)?;
            *took += start.elapsed();
        }
    }
    let each = arguments.requests / arguments.rounds / arguments.connections;
    let all = each * arguments.connections * arguments.rounds;
    let expected: u64 = rows.iter().map(|row| if row.keys == Keys::One { 1 } else { all }).sum();
    let called = calls.load(Ordering::Relaxed);
    ensure!(called == expected, "the handler was called {called} times instead of {expected}");
    report(arguments, &rows, &measured);
    Ok(())
}

/// The handler of every row.
fn service(bytes: usize, calls: Arc<AtomicU64>) -> Router {
    let body = Bytes::from(vec![b'x'; bytes]);
    let handler = move || {
        calls.fetch_add(1, Ordering::Relaxed);
        let body = body.clone();
        async move { body }
    };
    Router::new().route("/plain", post(handler.clone())).route("/protected", post(handler))
}

async fn serve(app: Router) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// One row of one round: latencies in nanoseconds.
async fn load(arguments: &Arguments, row: Row, round: u64) -> Result<Histogram<u64>> {
    let each = arguments.requests / arguments.rounds / arguments.connections;
    let mut tasks = Vec::new();
    for number in 0..arguments.connections {
        let body = Bytes::from(vec![b'y'; arguments.body_bytes]);
        tasks.push(tokio::spawn(async move {
            let mut connection = connect(row.port).await?;
            let mut latencies = Histogram::<u64>::new(3)?;
            for count in 0..each {
                let key = match row.keys {
                    Keys::None => None,
                    Keys::Fresh => Some(format!("{}-{round}-{number}-{count}", row.name.len())),
                    Keys::One => Some("the-one".to_owned()),
                };
                let start = Instant::now();
                ask(&mut connection, row.path, key, body.clone()).await?;
                latencies.record(start.elapsed().as_nanos() as u64)?;
            }
            anyhow::Ok(latencies)
        }));
    }
    let mut all = Histogram::<u64>::new(3)?;
    for task in tasks {
        all.add(task.await??)?;
    }
    Ok(all)
}

async fn connect(port: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(port).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(
    connection: &mut SendRequest<Full<Bytes>>,
    path: &str,
    key: Option<String>,
    body: Bytes,
) -> Result<()> {
    loop {
        let mut request = Request::builder().method(Method::POST).uri(path);
        request = request.header(header::HOST, "localhost").header("prefer", "wait=30");
        if let Some(key) = &key {
            request = request.header(KEY, key);
        }
        connection.ready().await?;
        let response: Response<_> =
            connection.send_request(request.body(Full::new(body.clone()))?).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        match status.as_u16() {
            200 => return Ok(()),
            // The very first of the one key is still in progress.
            409 => {}
            _ => bail!("{status}: {}", String::from_utf8_lossy(&answer)),
        }
    }
}

#[expect(clippy::print_stdout, reason = "the report is the point")]
fn report(arguments: &Arguments, rows: &[Row], measured: &[(Histogram<u64>, Duration)]) {
    let us = |ns: u64| ns as f64 / 1_000.0;
    let quantiles = |(latencies, took): &(Histogram<u64>, Duration)| {
        let rate = latencies.len() as f64 / took.as_secs_f64();
        (rate, us(latencies.value_at_quantile(0.5)), us(latencies.value_at_quantile(0.99)))
    };
    let Some((_, bare_p50, bare_p99)) = measured.first().map(quantiles) else { return };
    if !arguments.json {
        println!(
            "{} connections, bodies of {} bytes; latencies in microseconds\n",
            arguments.connections, arguments.body_bytes
        );
        println!("| way | requests/s | p50 | p99 | added p50 | added p99 |");
        println!("|---|---:|---:|---:|---:|---:|");
    }
    for (row, measured) in rows.iter().zip(measured) {
        let (rate, p50, p99) = quantiles(measured);
        let (name, more50, more99) = (row.name, p50 - bare_p50, p99 - bare_p99);
        match arguments.json {
            true => println!(
                "{{\"way\":{name:?},\"per_s\":{rate:.0},\"p50_us\":{p50:.1},\"p99_us\":{p99:.1},\
                 \"added_p50_us\":{more50:.1},\"added_p99_us\":{more99:.1}}}"
            ),
            false => {
                println!("| {name} | {rate:.0} | {p50:.0} | {p99:.0} | {more50:.0} | {more99:.0} |")
            }
        }
    }
}

/// Examples are built one folder below the programs.
fn beside() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let folder = this.parent().and_then(Path::parent).context("this program has no folder")?;
    let hapax = folder.join("hapax");
    ensure!(hapax.exists(), "{} is missing: cargo build -p hapax", hapax.display());
    Ok(hapax)
}

/// A process that ends with this one.
struct Process {
    child: Child,
    port_file: PathBuf,
}

impl Process {
    fn start(program: &Path, directory: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        let port_file = directory.join(name);
        let child = Command::new(program)
            .args(arguments)
            .arg("--port-file")
            .arg(&port_file)
            .args(["--log", "warn"])
            .current_dir(directory)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        Ok(Self { child, port_file })
    }

    /// Where it listens, once it does.
    async fn address(&self, line: usize) -> Result<SocketAddr> {
        let start = Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(&self.port_file)
                && let Some(address) = text.lines().nth(line)
            {
                return Ok(address.parse()?);
            }
            ensure!(start.elapsed() < START, "{} does not listen", self.port_file.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
