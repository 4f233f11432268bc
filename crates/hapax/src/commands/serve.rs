//! `hapax serve` and `hapax dev`: run the broker until it is stopped.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use hapax_server::lint::Severity;
use hapax_server::{Broker, Node, Options, log};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::parse;
use crate::screen::{Colour, Screen};
use crate::settings::{Flags, Mistakes, OrOff, Profile, Settings, Values};

/// Extra time for a stop, beyond the setting, before the process ends anyway.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    flags: Flags,
    /// Write the address to this file once the broker listens. Useful with port 0, which picks a
    /// free port.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
}

/// The settings from flags, variables and file.
pub(crate) fn load(flags: &Flags, profile: Profile) -> Result<Settings, Failure> {
    Settings::load(flags, profile, Path::new("")).map_err(|mistakes| mistaken(&mistakes))
}

pub(crate) fn mistaken(mistakes: &Mistakes) -> Failure {
    Failure::usage(mistakes.to_string())
}

pub(crate) fn run(serve: &Serve, profile: Profile) -> Result<Exit, Failure> {
    let next = "hapax lint FILE checks a file";
    let settings = &load(&serve.flags, profile).map_err(|failure| failure.next(next))?;
    let next = "hapax config show prints what is set where";
    settings.check().map_err(|mistakes| mistaken(&mistakes).next(next))?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let values = &settings.values;
        let endpoint = values.otlp_endpoint.0.as_ref().map(|endpoint| endpoint.0.as_str());
        let log =
            log::start(values.log_format, &values.log, endpoint).map_err(anyhow::Error::from)?;
        if let Some(OrOff(Some(file))) = &values.config {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let named_by = settings.origin("config");
            tracing::info!(file = %file.display(), %named_by, "the settings file was read");
        }
        warn(settings);
        let mut signals = Signals::listen().context("cannot listen for signals")?;
        let options = settings.options();
        let ended = tokio::select! {
            process = Process::start(&options, log.clone()) => {
                let process =
                    process.map_err(|error| Failure::new(Exit::Failure, error.to_string()))?;
                live(process, serve, values, profile, signals).await
            }
            // Nothing was served yet, and recovery starts over with every start.
            () = signals.heard() => std::process::exit(Exit::Ok as i32),
        };
        log.stop().await;
        ended
    })
}

/// A broker of its own, or one of the nodes of a broker.
enum Process {
    Broker(Box<Broker>),
    Node(Box<Node>),
}

impl Process {
    async fn start(options: &Options, log: log::Handle) -> Result<Self, hapax_server::Error> {
        Ok(match &options.store {
            None => Self::Broker(Box::new(Broker::start(options, Some(log)).await?)),
            Some(store) => Self::Node(Box::new(Node::start(options, store, Some(log)).await?)),
        })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Broker(broker) => broker.address(),
            Self::Node(node) => node.address(),
        }
    }

    fn is_encrypted(&self) -> bool {
        match self {
            Self::Broker(broker) => broker.is_encrypted(),
            Self::Node(node) => node.is_encrypted(),
        }
    }

    async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), hapax_server::Error> {
        match self {
            Self::Broker(broker) => broker.run(shutdown).await,
            Self::Node(node) => node.run(shutdown).await,
        }
    }
}

async fn live(
    broker: Process,
    serve: &Serve,
    values: &Values,
    profile: Profile,
    signals: Signals,
) -> Result<Exit, Failure> {
    let address = broker.address();
    tracing::info!(%address, tls = broker.is_encrypted(), "listening");
    let scheme = if broker.is_encrypted() { "https" } else { "http" };
    let url = format!("{scheme}://{address}");
    if let Some(file) = &serve.port_file {
        write_whole(file, &address.to_string())?;
    }
    if profile == Profile::Dev {
        welcome(&url, values)?;
    }
    let stop_timeout = values.stop_timeout.0;
    broker.run(stop_signal(signals, stop_timeout)).await.map_err(anyhow::Error::from)?;
    Ok(Exit::Ok)
}

fn warn(settings: &Settings) {
    for warning in parse::unknown_variables() {
        tracing::warn!("{warning}");
    }
    for found in settings.findings() {
        if found.finding.severity() == Severity::Warning {
            tracing::warn!("{found}");
        }
    }
}

/// Raises the limit of open files: every connection is one, and the limit is often 1024.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If that is not permitted the limit stays: the broker refuses connections that it has no file
    // for.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Writes the file with a rename, so that nobody reads half of it. What is no file, such as
/// `/dev/stdout`, is written as it is: a rename would replace it.
pub(super) fn write_whole(file: &Path, text: &str) -> Result<(), Failure> {
    let write = || {
        if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
            return fs::write(file, format!("{text}\n"));
        }
        let temporary = file.with_extension("tmp");
        fs::write(&temporary, format!("{text}\n"))?;
        fs::rename(&temporary, file)
    };
    write().with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(())
}

/// The signals that stop the process, received from the moment it is created.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP: a broker with certificates reloads them; any other ignores it.
    _hangup: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { terminate, interrupt, _hangup: signal(SignalKind::hangup())? })
    }

    async fn heard(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Stops the broker at the first signal. A second signal, or a stop that hangs, ends the process.
/// Nothing that was confirmed is lost by either.
pub(crate) async fn stop_signal(mut signals: Signals, stop_timeout: Duration) {
    signals.heard().await;
    tokio::spawn(async move {
        tokio::select! {
            () = signals.heard() => tracing::warn!("second signal: ending now"),
            () = tokio::time::sleep(stop_timeout + PATIENCE) => {
                tracing::error!("the stop took too long: ending now");
            }
        }
        std::process::exit(Exit::Failure as i32);
    });
}

fn welcome(url: &str, values: &Values) -> Result<(), Failure> {
    let screen = Screen::plain();
    let data = match &values.store.0 {
        Some(store) => store.0.to_string(),
        None => values.data.display().to_string(),
    };
    let program = program();
    // Whether a node serves is only known later, and may change.
    let is_node = values.store.0.is_some();
    let what = if is_node { "A node of Hapax listens" } else { "Hapax is ready" };
    let head = screen.paint(Colour::Bold, format_args!("{what} at {url}"));
    screen.line(format_args!("{head}, data in {data}"))?;
    if is_node {
        screen.line(format_args!(
            "It serves if no other node does, and is a spare otherwise: {url}/readyz tells"
        ))?;
    }
    screen.line("")?;
    screen.line(format_args!("  HTTP      {url}/v1         described by {url}/v1/openapi.json"))?;
    screen.line(format_args!("  gRPC      {url}            with reflection"))?;
    screen.line(format_args!("  metrics   {url}/metrics"))?;
    screen.line("")?;
    screen.line("Try next, in another terminal:")?;
    screen.line("")?;
    let default = url == "http://127.0.0.1:4747";
    let mut server = if default { String::new() } else { format!(" --server {url}") };
    if values.tls_cert.0.is_some() {
        server.push_str(" --ca CA.pem");
    }
    for command in [
        "queue create orders",
        "send orders 'three lemons' --key order-42",
        "work orders --exec 'tr a-z A-Z'",
    ] {
        screen.line(format_args!("  {program} {command}{server}"))?;
    }
    screen.line("")?;
    if let Some(certificate) = &values.tls_cert.0 {
        let path = certificate.display();
        screen.line(format_args!(
            "CA.pem is the certificate that signed {path}, or {path} itself \
                                  if it is self-signed."
        ))?;
    }
    screen.line("Sent again, order-42 gets its first answer. Ctrl-C stops the broker.")?;
    Ok(())
}

/// The name under which this program was called, so that suggested commands can be copied.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if called.contains('/') { called } else { "hapax".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_file_that_is_no_file_is_written_and_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("port");
        std::os::unix::fs::symlink("/dev/null", &file).expect("a link");
        write_whole(&file, "127.0.0.1:4747").expect("a device is written");
        assert!(file.is_symlink(), "it was replaced");
        fs::remove_file(&file).expect("removed");
        write_whole(&file, "127.0.0.1:4747").expect("a new file");
        write_whole(&file, "127.0.0.1:4748").expect("the same again");
        assert_eq!(fs::read_to_string(&file).expect("text"), "127.0.0.1:4748\n");
        assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 1, "nothing else");
    }
}
