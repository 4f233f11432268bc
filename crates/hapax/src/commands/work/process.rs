//! One run of the command, in its own process group.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use hapax_client::Delivery;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

/// Time between SIGTERM and SIGKILL.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The longest variable, of headers and recovery points; Linux starts no command with one of 128
/// KiB.
const VARIABLE_BYTES_MAX: usize = 64 * 1_024;
/// The limit for all headers or all points together; Linux allows at least 128 KiB and usually 2
/// MiB for the whole environment.
const VARIABLES_BYTES_MAX: usize = 512 * 1_024;
/// Prefixes of variables that are named after a header or recovery point.
const OF_NAMES: [&str; 4] = ["HAPAX_HEADER_", "HAPAX_POINT_", "HAPAX_HEADERS", "HAPAX_POINTS"];
/// How much of the standard error is kept: the longest error of a message.
const WORDS_BYTES: usize = 4_000;
/// "Try again later", in sysexits.
const RETRY_LATER: i32 = 75;
/// It is unknown whether the effect happened: the next code of sysexits.
const IN_DOUBT: i32 = 76;
/// The exit codes of a shell whose last command was ended by a signal: 128 plus its number.
const BY_SIGNAL: std::ops::RangeInclusive<i32> = 129..=192;

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Done, with this standard output.
    Done(Bytes),
    RetryLater(String),
    Failed(String),
    /// Done, but its output is more than a result may be: running it again would not help.
    TooMuch(String),
    /// In doubt: ended by a signal, stopped by us, or exit code 76.
    InDoubt(String),
    /// Stopped by us because the lease was lost: another worker may have the message.
    Lost,
}

/// A command that is about to run.
#[derive(Debug)]
pub(super) struct Process(Command);

impl Process {
    pub(super) fn new(shell: &str, queue: &str, delivery: &Delivery) -> Self {
        let mut command = Command::new("sh");
        command.arg("-c").arg(shell);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its own process group: what the shell starts is stopped with it, and Ctrl-C only reaches
        // us.
        command.process_group(0);
        command
            .env("HAPAX_KEY", delivery.key())
            .env("HAPAX_QUEUE", queue)
            .env("HAPAX_ID", delivery.id().to_string())
            .env("HAPAX_ATTEMPT", delivery.attempt().to_string())
            .env("HAPAX_GENERATION", delivery.generation().to_string())
            .env("HAPAX_FENCE", delivery.fence().to_string())
            .env("HAPAX_TENANT", delivery.tenant())
            .env("HAPAX_LEASE_MS", delivery.lease_length().as_millis().to_string())
            .env("HAPAX_LEASE", hapax_wire::Lease(delivery.lease().as_ref()).to_string())
            .env("HAPAX_GROUP", delivery.group().unwrap_or_default())
            .env("HAPAX_CONTENT_TYPE", delivery.content_type().unwrap_or_default());
        // If this worker runs inside another worker's command, its variables belong to another
        // message.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| OF_NAMES.iter().any(|of| name.starts_with(of))) {
                command.env_remove(name);
            }
        }
        let points = delivery.recovery_points();
        let texts = points.filter_map(|(name, data)| Some((name, std::str::from_utf8(data).ok()?)));
        command.envs(variables("HAPAX_HEADER_", delivery.headers()));
        command.envs(variables("HAPAX_POINT_", texts));
        let headers: BTreeMap<_, _> = delivery.headers().collect();
        let points = delivery.recovery_points();
        let points: BTreeMap<_, _> =
            points.map(|(name, data)| (name, hapax_wire::Blob::new(data.clone()))).collect();
        command.envs(whole("HAPAX_HEADERS", &headers));
        command.envs(whole("HAPAX_POINTS", &points));
        Self(command)
    }

    /// Runs it to its end, or until `stop` resolves with a reason.
    pub(super) async fn run(
        mut self,
        body: Bytes,
        result_bytes_max: usize,
        stop: impl Future<Output = Ended>,
    ) -> Ended {
        let mut child = match self.0.spawn() {
            Ok(child) => child,
            Err(error) => return Ended::Failed(format!("sh cannot be started: {error}")),
        };
        let mut group = Group::of(&child);
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = feed(input, body);
        let read = first(output, result_bytes_max);
        let listen = last(errors, io::stderr);
        let all = async { tokio::join!(feed, read, listen, child.wait()) };
        let mut all = pin!(all);
        let why = tokio::select! {
            ((), output, words, status) = &mut all => {
                group.is_over = true;
                return ended(status, output, &words);
            }
            why = stop => why,
        };
        group.signal(Signal::TERM);
        if tokio::time::timeout(PATIENCE, &mut all).await.is_err() {
            group.signal(Signal::KILL);
            // Processes that left the group may hold the pipes open: they are not waited for.
            let _ = tokio::time::timeout(PATIENCE, &mut all).await;
        }
        why
    }
}

fn ended(status: io::Result<ExitStatus>, output: Output, words: &str) -> Ended {
    let status = match status {
        Ok(status) => status,
        Err(error) => return Ended::InDoubt(format!("cannot wait for the command: {error}")),
    };
    let with_words = |what: String| match words.trim() {
        "" => what,
        words => format!("{what}: {words}"),
    };
    match (status.code(), output) {
        (Some(0), Output::Whole(output)) => Ended::Done(output),
        (Some(0), Output::TooMuch(most)) => Ended::TooMuch(format!(
            "the command succeeded, but wrote more than {most} bytes to its standard output"
        )),
        (Some(RETRY_LATER), _) => Ended::RetryLater(with_words("not now".to_owned())),
        (Some(IN_DOUBT), _) => Ended::InDoubt(with_words("in doubt".to_owned())),
        (Some(code), _) if BY_SIGNAL.contains(&code) => {
            Ended::InDoubt(with_words(format!("exit code {code}, by signal {}", code - 128)))
        }
        (Some(code), _) => Ended::Failed(with_words(format!("exit code {code}"))),
        (None, _) => Ended::InDoubt(with_words(status.to_string())),
    }
}

/// The process group of a command. It is killed on drop, since the handler may be dropped.
struct Group {
    leader: Option<Pid>,
    /// Whether the shell was waited for; its process id may have been reused since.
    is_over: bool,
}

impl Group {
    fn of(child: &Child) -> Self {
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self { leader, is_over: false }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.leader {
            // It may be gone already.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
        }
    }
}

/// Writes the body; a command need not read it.
async fn feed(input: Option<ChildStdin>, body: Bytes) {
    if let Some(mut input) = input {
        let _ = input.write_all(&body).await;
        let _ = input.shutdown().await;
    }
}

/// The output of a command.
#[derive(Debug)]
enum Output {
    Whole(Bytes),
    TooMuch(usize),
}

/// Reads everything, and keeps as much as a result may hold.
async fn first(source: Option<impl AsyncRead + Unpin>, most: usize) -> Output {
    let mut kept = Vec::new();
    let mut is_whole = true;
    let mut buffer = vec![0; 16 * 1_024];
    let Some(mut source) = source else { return Output::Whole(Bytes::new()) };
    while let Ok(count @ 1..) = source.read(&mut buffer).await {
        let room = most.saturating_sub(kept.len());
        is_whole &= count <= room;
        kept.extend_from_slice(buffer.get(..count.min(room)).unwrap_or_default());
    }
    if is_whole { Output::Whole(kept.into()) } else { Output::TooMuch(most) }
}

/// Reads everything, prints it, and keeps the end.
async fn last<W: io::Write>(
    source: Option<impl AsyncRead + Unpin>,
    shown: impl Fn() -> W,
) -> String {
    let mut kept = Vec::new();
    let mut buffer = vec![0; 4 * 1_024];
    let Some(mut source) = source else { return String::new() };
    while let Ok(count @ 1..) = source.read(&mut buffer).await {
        let new = buffer.get(..count).unwrap_or_default();
        let _ = shown().write_all(new);
        kept.extend_from_slice(new);
        let surplus = kept.len().saturating_sub(WORDS_BYTES);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Variables that are named after headers or points. If two names give the same variable, neither
/// is set: the command must not get the wrong one. Values that an environment cannot hold are left
/// out: those with a zero byte, and those that are too long.
fn variables<'a>(
    prefix: &str,
    named: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, &'a str> {
    let mut variables: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in named {
        variables.entry(variable(prefix, name)).or_default().push(value);
    }
    let mut room = VARIABLES_BYTES_MAX;
    let alone = variables.into_iter().filter_map(|(name, values)| match values.as_slice() {
        [value] => Some((name, *value)),
        _ => None,
    });
    let fits = alone.filter(|(name, value)| {
        let bytes = name.len() + value.len();
        let fits = !value.contains('\0') && bytes <= VARIABLE_BYTES_MAX && bytes <= room;
        room -= if fits { bytes } else { 0 };
        fits
    });
    fits.collect()
}

/// All headers or points as JSON; nothing if that is too long for a variable.
fn whole(name: &'static str, named: &impl Serialize) -> Option<(&'static str, String)> {
    let text = serde_json::to_string(named).ok()?;
    (name.len() + text.len() <= VARIABLE_BYTES_MAX).then_some((name, text))
}

fn variable(prefix: &str, name: &str) -> String {
    let letters = name.chars().map(|letter| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_uppercase(),
        false => '_',
    });
    prefix.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn check(raw: i32, output: Output, words: &str, expected: Ended) {
        assert_eq!(ended(Ok(ExitStatus::from_raw(raw)), output, words), expected);
    }

    fn none() -> Output {
        Output::Whole(Bytes::new())
    }

    #[test]
    fn the_exit_code_tells_what_becomes_of_the_message() {
        check(0, Output::Whole("paid".into()), "noise", Ended::Done("paid".into()));
        check(75 << 8, none(), "busy\n", Ended::RetryLater("not now: busy".to_owned()));
        check(3 << 8, none(), "  no\n", Ended::Failed("exit code 3: no".to_owned()));
        check(1 << 8, none(), "", Ended::Failed("exit code 1".to_owned()));
        check(255 << 8, none(), "", Ended::Failed("exit code 255".to_owned()));
        check(9, none(), "", Ended::InDoubt("signal: 9 (SIGKILL)".to_owned()));
        check(137 << 8, none(), "", Ended::InDoubt("exit code 137, by signal 9".to_owned()));
        check(76 << 8, none(), "no answer\n", Ended::InDoubt("in doubt: no answer".to_owned()));
        let ended = ended(Ok(ExitStatus::from_raw(0)), Output::TooMuch(4), "");
        assert!(matches!(ended, Ended::TooMuch(why) if why.contains("more than 4 bytes")));
    }

    #[tokio::test]
    async fn output_is_bounded_and_the_last_words_are_kept() {
        let read = async |text: &'static [u8], most| first(Some(text), most).await;
        assert!(matches!(read(b"four", 4).await, Output::Whole(bytes) if bytes == "four"));
        assert!(matches!(read(b"fives", 4).await, Output::TooMuch(4)));
        let noise: &'static [u8] = vec![b'x'; 3 * WORDS_BYTES].leak();
        assert_eq!(last(Some(noise), io::sink).await.len(), WORDS_BYTES);
    }

    #[test]
    fn names_become_variables() {
        assert_eq!(variable("HAPAX_POINT_", "charged-at.1"), "HAPAX_POINT_CHARGED_AT_1");
        let long = "x".repeat(VARIABLE_BYTES_MAX);
        let named = [("trace-id", "7"), ("zero", "a\0b"), ("long", &long)];
        let variables = variables("HAPAX_HEADER_", named.into_iter());
        let one = [("HAPAX_HEADER_TRACE_ID".into(), "7")];
        assert_eq!(variables.into_iter().collect::<Vec<_>>(), one);
    }

    #[test]
    fn names_that_give_one_variable_give_none() {
        let named = [("x_y", "2"), ("a", "3"), ("x-y", "1"), ("X.y", "0")];
        let variables = variables("HAPAX_HEADER_", named.into_iter());
        assert_eq!(variables.into_iter().collect::<Vec<_>>(), [("HAPAX_HEADER_A".into(), "3")]);
        let (name, text) = whole("HAPAX_HEADERS", &BTreeMap::from(named)).unwrap();
        assert_eq!(
            (name, text.as_str()),
            ("HAPAX_HEADERS", r#"{"X.y":"0","a":"3","x-y":"1","x_y":"2"}"#)
        );
        assert_eq!(whole("HAPAX_HEADERS", &"x".repeat(VARIABLE_BYTES_MAX)), None);
    }
}
