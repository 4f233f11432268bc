//! `hapax serve` and `hapax dev`: the broker, until it is told to stop.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgMatches, Args, FromArgMatches};
use hapax_server::settings::{self, Loaded, Mistakes, Profile, Settings, Severity, Sources};
use hapax_server::{Broker, log};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Colour, Screen};
use crate::session::VARIABLES;

/// What a stop may take longer than the settings say, before the process ends anyway.
const PATIENCE: Duration = Duration::from_secs(4);

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    flags: Flags,
    /// Write the address to this file once the broker listens: for port 0, which takes a free one.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
}

/// The flags of the settings. They are declared where the settings are.
#[derive(Clone, Debug)]
pub(crate) struct Flags(ArgMatches);

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = matches.clone();
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        settings::arguments(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        settings::arguments(command)
    }
}

impl Flags {
    /// Flags, variables and file together.
    pub(crate) fn load(&self, profile: Profile) -> Result<Loaded, Failure> {
        let sources =
            Sources { other_variables: VARIABLES, ..Sources::of_process(profile, &self.0) };
        Settings::load(&sources).map_err(|mistakes| {
            let next = "hapax config show prints what is set where; hapax lint FILE checks a file";
            Failure::usage(mistaken(&mistakes)).next(next)
        })
    }
}

/// What is wrong, for a line that begins with `error:` already.
pub(crate) fn mistaken(mistakes: &Mistakes) -> String {
    mistakes.to_string().replacen(": error: ", ": ", 1)
}

pub(crate) fn run(serve: &Serve, profile: Profile) -> Result<Exit, Failure> {
    let loaded = serve.flags.load(profile)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let settings = &loaded.settings;
        let endpoint = settings.otlp_endpoint.as_ref().map(|endpoint| endpoint.as_str());
        let log = log::start(settings.log_format, &settings.log, endpoint)
            .map_err(anyhow::Error::from)?;
        if let Some(file) = &settings.config {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            let named_by = settings.origin("config");
            tracing::info!(file = %file.display(), %named_by, "the settings file was read");
        }
        warn(&loaded);
        let mut signals = Signals::listen().context("signals cannot be heard")?;
        let ended = tokio::select! {
            broker = Broker::start(settings, Some(log.clone())) => {
                let broker = broker.map_err(unstartable)?;
                live(broker, serve, settings, profile, signals).await
            }
            // Nothing was served yet, and recovery begins anew with every start.
            () = signals.heard() => std::process::exit(Exit::Ok as i32),
        };
        log.stop().await;
        ended
    })
}

async fn live(
    broker: Broker,
    serve: &Serve,
    settings: &Settings,
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
        welcome(&url, settings)?;
    }
    let stop_timeout = settings.stop_timeout;
    broker.run(told_to_stop(signals, stop_timeout)).await.map_err(anyhow::Error::from)?;
    Ok(Exit::Ok)
}

fn unstartable(error: hapax_server::Error) -> Failure {
    let exit = match error {
        hapax_server::Error::Settings(_) => Exit::Usage,
        _ => Exit::Failure,
    };
    Failure::new(exit, error.to_string())
}

fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for finding in loaded.settings.findings() {
        if finding.severity() == Severity::Warning {
            tracing::warn!("{finding}");
        }
    }
}

/// Every connection is a file, and many systems allow a process 1024 until it asks for more.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What is not allowed stays as it is: the broker refuses connections that it has no file for.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Whoever waits for the file must never read half of it.
fn write_whole(file: &Path, text: &str) -> Result<(), Failure> {
    let write = || {
        let temporary = file.with_extension("tmp");
        fs::write(&temporary, format!("{text}\n"))?;
        fs::rename(&temporary, file)
    };
    write().with_context(|| format!("{} cannot be written", file.display()))?;
    Ok(())
}

/// What tells a process to stop. Heard from the moment it is made.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// A broker with certificates reads them again; for any other it is no reason to end.
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

/// The first signal begins a stop, the second ends the process, as does a stop that hangs.
/// Nothing that was confirmed is lost by either.
pub(crate) async fn told_to_stop(mut signals: Signals, stop_timeout: Duration) {
    signals.heard().await;
    tokio::spawn(async move {
        tokio::select! {
            () = signals.heard() => tracing::warn!("told to stop twice: ending now"),
            () = tokio::time::sleep(stop_timeout + PATIENCE) => {
                tracing::error!("the stop takes too long: ending now");
            }
        }
        std::process::exit(Exit::Failure as i32);
    });
}

fn welcome(url: &str, settings: &Settings) -> Result<(), Failure> {
    let screen = Screen::plain();
    let data = &settings.data;
    let program = program();
    let head = screen.paint(Colour::Bold, format_args!("Hapax is ready at {url}"));
    screen.line(format_args!("{head}, with its data in {}", data.display()))?;
    screen.line("")?;
    screen.line(format_args!("  HTTP      {url}/v1         described by {url}/v1/openapi.json"))?;
    screen.line(format_args!("  gRPC      {url}            with reflection"))?;
    screen.line(format_args!("  metrics   {url}/metrics"))?;
    screen.line("")?;
    screen.line("Try next, in another terminal:")?;
    screen.line("")?;
    let default = url == "http://127.0.0.1:4747";
    let mut server = if default { String::new() } else { format!(" --server {url}") };
    if settings.tls_cert.is_some() {
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
    if let Some(certificate) = &settings.tls_cert {
        let path = certificate.display();
        screen.line(format_args!("CA.pem is what signed {path}; {path} itself if nobody did."))?;
    }
    screen.line("Sent again, order-42 gets its first answer. Ctrl-C stops the broker.")?;
    Ok(())
}

/// This program as it was called, so that what is shown can be copied.
fn program() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if called.contains('/') { called } else { "hapax".to_owned() }
}
