//! The connection of a command to the broker, and the error messages when it fails.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hapax_client::{Admin, Client, Error, Retry};
use hapax_wire::nearest::closest;
use hapax_wire::{Answer, AnswerKind, Code, Message, proto};
use tokio::time::Instant;

use crate::advice::Advice;
use crate::content::Envelope;
use crate::diagnosis;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::clean;

/// The longest wait of the broker in one call.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Pauses between two tries of a send.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The heading of the connection options in `--help`. A `next_help_heading` would also cover the
/// arguments that follow them.
const HEADING: &str = "Connection";

/// The options of the connection to the broker.
#[derive(Clone, Args)]
pub(crate) struct Connection {
    /// The broker's address. Several nodes of one broker are separated by commas: the one that
    /// serves is found.
    #[arg(help_heading = HEADING)]
    #[arg(long, env = "HAPAX_SERVER", value_name = "URL")]
    #[arg(default_value = "http://127.0.0.1:4747")]
    server: String,
    /// The API token, if the broker requires one. Prefer the variable: other users of this machine
    /// can read arguments.
    #[arg(help_heading = HEADING)]
    #[arg(long, env = "HAPAX_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// For https addresses: a PEM file with the CA certificate that signed the broker's.
    #[arg(help_heading = HEADING)]
    #[arg(long, env = "HAPAX_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The client certificate for a broker with mutual TLS, as a PEM file.
    #[arg(help_heading = HEADING)]
    #[arg(long, env = "HAPAX_CLIENT_CERT", value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// The private key of that certificate, as a PEM file.
    #[arg(help_heading = HEADING)]
    #[arg(long, env = "HAPAX_CLIENT_KEY", value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// The token is a secret: nothing that prints a command may print it.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// An open connection to the broker.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) client: Admin,
}

impl Connection {
    /// A connection to the given address instead of `--server`.
    pub(crate) fn to(server: String, token: Option<String>) -> Self {
        Self { server, token, ca: None, client_cert: None, client_key: None }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let mut builder = Client::builder(&self.server);
        if let Some(token) = &self.token {
            builder = builder.token(token);
        }
        if let Some(path) = &self.ca {
            let pem = read(path)?;
            if !String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----") {
                let what = format!("--ca: {} contains no certificate", path.display());
                return Err(Failure::usage(what));
            }
            builder = builder.ca_certificate(pem);
        }
        if let (Some(certificate), Some(key)) = (&self.client_cert, &self.client_key) {
            builder = builder.identity(read(certificate)?, read(key)?);
        }
        builder.connect().map_err(Failure::from)
    }

    /// Runs a command that talks to the broker.
    pub(crate) async fn open(
        &self,
        command: impl AsyncFnOnce(&Session) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let session = Session { client: Admin::new(self.client()?) };
        match command(&session).await {
            Err(failure) => Err(self.explain(failure).await),
            Ok(exit) => Ok(exit),
        }
    }

    /// Runs a command about one queue, and adds a hint to the error if the queue does not exist.
    pub(crate) async fn on(
        &self,
        queue: &str,
        command: impl AsyncFnOnce(&Session) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        self.on_queue(queue, true, command).await
    }

    /// The same for a command that removes something, for which creating the queue would not help.
    pub(crate) async fn on_existing(
        &self,
        queue: &str,
        command: impl AsyncFnOnce(&Session) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        self.on_queue(queue, false, command).await
    }

    async fn on_queue(
        &self,
        queue: &str,
        may_create: bool,
        command: impl AsyncFnOnce(&Session) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let session = Session { client: Admin::new(self.client()?) };
        match command(&session).await {
            Err(failure) if failure.code == Some(Code::NoSuchQueue) => {
                Err(missing(&session, queue, may_create, failure).await)
            }
            Err(failure) => Err(self.explain(failure).await),
            Ok(exit) => Ok(exit),
        }
    }

    /// The first address of `--server`.
    fn first(&self) -> &str {
        self.server.split(',').next().unwrap_or_default().trim()
    }

    async fn explain(&self, failure: Failure) -> Failure {
        // Not a broker: a web server answered.
        let foreign = ["the server is not a Hapax broker", "the server does not speak gRPC"];
        let is_foreign = foreign.iter().any(|words| failure.what.contains(words));
        if failure.exit == Exit::Refused && self.token.is_none() {
            return failure.next(
                "set HAPAX_TOKEN; create a token on the broker's machine with: hapax token create \
                 --can send,work",
            );
        }
        if failure.exit != Exit::Unavailable && !is_foreign {
            return failure;
        }
        if let Some(hint) = diagnosis::hint(&failure.what, self.ca.is_some()) {
            return failure.next(hint);
        }
        let is_refused = failure.what.contains("refused") && !is_foreign;
        // The broker's error has advice already.
        if failure.next.is_some() && !is_foreign {
            return failure;
        }
        // One of several was refused, and that is the one that was asked last.
        if is_refused && self.server.contains(',') {
            let what = format!("none of {} serves right now: {}", self.server, failure.what);
            let next = "while another node takes over, repeat it, or send with --retry 30s; hapax \
                        cluster status shows the nodes";
            return Failure { what, ..failure }.next(next);
        }
        if !is_refused && let Some(found) = diagnosis::look(self.first(), &failure).await {
            return Failure { code: Some(Code::Unavailable), ..found };
        }
        let here = ["127.0.0.1", "localhost", "[::1]"];
        failure.next(match here.iter().any(|host| self.server.contains(host)) {
            true => "start a broker with: hapax dev",
            false => "check --server (or HAPAX_SERVER), and that the broker is running there",
        })
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))
}

/// The hint for a queue that does not exist: a similar name, or the command that creates it.
async fn missing(session: &Session, queue: &str, may_create: bool, failure: Failure) -> Failure {
    let known = session.client.queues().await.unwrap_or_default();
    let known: Vec<&str> = known.queues.iter().map(|known| known.queue.as_str()).collect();
    let create = Advice::new("hapax queue create", &[queue]);
    let next = match (closest(queue, known.iter().copied()), may_create) {
        (Some(near), true) => {
            format!("did you mean {near}? Or create it: {create}")
        }
        (Some(near), false) => format!("did you mean {near}?"),
        (None, true) => format!("create it with: {create}"),
        (None, false) => "hapax queue ls lists the queues".to_owned(),
    };
    Failure { what: format!("there is no queue {}", clean(queue)), next: Some(next), ..failure }
}

impl Session {
    /// Sends messages and returns their answers in order. After a retryable error, or if the broker
    /// cannot be reached, they are sent again under the same keys until the time is over.
    pub(crate) async fn send(
        &self,
        queue: &str,
        messages: Vec<Message>,
        retry: Duration,
    ) -> Result<Vec<Answer>, Failure> {
        let mut retry = Retry::within(retry).pauses(PAUSE_MIN, PAUSE_MAX);
        loop {
            let send = || self.client.send_batch(queue, messages.clone());
            let answers = retry.run(send).await?;
            let Some(asked) = worth_a_retry(&answers) else { return Ok(answers) };
            if !retry.pause(Some(asked)).await {
                return Ok(answers);
            }
        }
    }

    /// Shows a key, waiting longer than one call can.
    pub(crate) async fn look(
        &self,
        key: proto::KeyRequest,
        wait: Duration,
    ) -> Result<proto::Key, Failure> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let found = self.client.key(key.clone(), left.min(WAIT_MAX)).await?;
            if left.is_zero() || found.state().has_ended() {
                return Ok(found);
            }
        }
    }

    /// Waits for the outcome of a send; at the end of the wait, the answer is the current state.
    pub(crate) async fn wait_for(
        &self,
        queue: &str,
        key: &str,
        envelope: &Envelope,
        answer: Answer,
        wait: Duration,
    ) -> Result<Answer, Failure> {
        if !matches!(answer.kind(), AnswerKind::Accepted | AnswerKind::InFlight) {
            return Ok(answer);
        }
        let name = proto::KeyRequest {
            queue: queue.to_owned(),
            key: key.to_owned(),
            group: envelope.group().unwrap_or_default().to_owned(),
        };
        Ok(answer.waited(self.look(name, wait).await?))
    }
}

/// How long to wait before a retry, if one of the answers is retryable. Messages that were accepted
/// get their answer as duplicates then, which is a success too.
fn worth_a_retry(answers: &[Answer]) -> Option<Duration> {
    let problems = answers.iter().filter_map(|answer| answer.problem.as_ref());
    let retryable = problems.filter(|problem| problem.retryable);
    retryable.map(|problem| Duration::from_millis(problem.retry_after_ms.unwrap_or(0))).max()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = error.code();
        let wait = error.retry_after().map(crate::duration::milliseconds);
        let next = match (&error, wait) {
            (Error::Refused(_), Some(ms)) => {
                Some(format!("try again in {}", crate::duration::short(ms)))
            }
            (Error::Refused(refusal), None) => crate::failure::what_to_do(refusal.code),
            _ => None,
        };
        let failure = Self::new(Exit::of(code), error.to_string());
        Self { next, code: Some(code), retry_after_ms: wait, ..failure }
    }
}

/// One key of one queue.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyArguments {
    /// The queue.
    queue: String,
    /// The key.
    key: String,
    /// The key's group, in queues that deduplicate per group.
    #[arg(long)]
    group: Option<String>,
}

impl KeyArguments {
    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    pub(crate) fn request(&self) -> proto::KeyRequest {
        proto::KeyRequest {
            queue: self.queue.clone(),
            key: self.key.clone(),
            group: self.group.clone().unwrap_or_default(),
        }
    }
}

/// The default worker name: this process.
pub(crate) fn worker_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    format!("{}-{}", host.chars().take(40).collect::<String>(), std::process::id())
}

/// The variables that are used by commands that talk to a broker.
pub(crate) const VARIABLES: &[&str] = &[
    "HAPAX_SERVER",
    "HAPAX_TOKEN",
    "HAPAX_CA",
    "HAPAX_CLIENT_CERT",
    "HAPAX_CLIENT_KEY",
    "HAPAX_DATABASE",
    "HAPAX_DATABASE_CA",
];
