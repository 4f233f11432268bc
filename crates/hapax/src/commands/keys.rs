//! `hapax forget`, `replay` and `resolve`: what an operator does to one key.

use clap::Args;
use hapax_wire::proto::{self, State, resolve_request::Resolution};
use serde_json::json;

use crate::content::{Body, Envelope};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, clean, state_name};
use crate::session::{Connection, KeyArguments, Session};

#[derive(Debug, Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    name: KeyArguments,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The queue.
    queue: String,
    /// The key.
    key: String,
    #[command(flatten)]
    body: Body,
    #[command(flatten)]
    envelope: Envelope,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("decision").required(true))]
pub(crate) struct Resolve {
    #[command(flatten)]
    name: KeyArguments,
    /// It did happen: the message is done, with this result.
    #[arg(long, value_name = "RESULT", num_args = 0..=1, default_missing_value = "")]
    #[arg(group = "decision")]
    done: Option<String>,
    /// It did not happen: deliver the message again.
    #[arg(long, group = "decision")]
    retry: bool,
    /// The content type of the result, such as application/json.
    #[arg(long, value_name = "TYPE", requires = "done")]
    content_type: Option<String>,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn forget(forget: &Forget) -> Result<Exit, Failure> {
    forget
        .connection
        .on(forget.name.queue(), async |session| {
            session.client.forget_key(forget.name.request()).await?;
            let told = "is forgotten: sent again, it is done again";
            tell(forget.output, forget.name.queue(), forget.name.key(), None, told)
        })
        .await
}

pub(crate) async fn replay(replay: &Replay) -> Result<Exit, Failure> {
    replay.connection.on(&replay.queue, async |session| act(session, replay).await).await
}

/// A finished message's body is gone unless its queue keeps bodies: the one given here is compared
/// with the first.
async fn act(session: &Session, replay: &Replay) -> Result<Exit, Failure> {
    let message = match replay.body.is_given() {
        true => Some(replay.envelope.message(&replay.key, replay.body.read()?)),
        false => None,
    };
    let name = proto::KeyRequest {
        queue: replay.queue.clone(),
        key: replay.key.clone(),
        group: replay.envelope.group().unwrap_or_default().to_owned(),
    };
    session.client.replay_key(name, message).await?;
    let told = "is ready again, as its next generation";
    tell(replay.output, &replay.queue, &replay.key, Some(State::Ready), told)
}

/// What became of a key.
fn tell(
    output: Output,
    queue: &str,
    key: &str,
    state: Option<State>,
    told: &str,
) -> Result<Exit, Failure> {
    let screen = output.screen();
    match screen.is_json() {
        true => {
            let state = state.map(state_name);
            let answer = json!({ "answer": "ok", "queue": queue, "key": key, "state": state });
            screen.json(&answer)?;
        }
        false => screen.line(format_args!("{} {told}", clean(key)))?,
    }
    Ok(Exit::Ok)
}

pub(crate) async fn resolve(resolve: &Resolve) -> Result<Exit, Failure> {
    let (resolution, state, told) = match &resolve.done {
        Some(result) => {
            let content_type = resolve.content_type.clone().unwrap_or_default();
            let body = bytes::Bytes::copy_from_slice(result.as_bytes());
            let result = (!result.is_empty()).then_some(proto::Blob { body, content_type });
            (Resolution::Done(proto::ResolveDone { result }), State::Done, "is done")
        }
        None => (Resolution::Retry(proto::ResolveRetry {}), State::Ready, "is ready again"),
    };
    resolve
        .connection
        .on(resolve.name.queue(), async |session| {
            session.client.resolve_key(resolve.name.request(), resolution).await?;
            tell(resolve.output, resolve.name.queue(), resolve.name.key(), Some(state), told)
        })
        .await
}
