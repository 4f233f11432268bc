//! `hapax forget`, `replay` and `resolve`: operator commands on one key.

use std::time::Duration;

use clap::Args;
use hapax_wire::Code;
use hapax_wire::proto::{self, resolve_request::Resolution};
use serde_json::json;

use crate::content::{Body, Envelope};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, clean};
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
    /// The effect happened: the message becomes done, with this result.
    #[arg(long, value_name = "RESULT", num_args = 0..=1, default_missing_value = "")]
    #[arg(group = "decision")]
    done: Option<String>,
    /// The effect did not happen: deliver the message again.
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
        .on_existing(forget.name.queue(), async |session| {
            session.client.forget_key(forget.name.request()).await?;
            let what = "is forgotten: a message sent under it now is a new one";
            print_change(session, forget.output, forget.name.request(), what).await
        })
        .await
}

pub(crate) async fn replay(replay: &Replay) -> Result<Exit, Failure> {
    replay.connection.on_existing(&replay.queue, async |session| act(session, replay).await).await
}

/// Replays a finished message. Unless its queue has keep_bodies its body is gone, and the one given
/// here is compared with the fingerprint of the first.
async fn act(session: &Session, replay: &Replay) -> Result<Exit, Failure> {
    let message = match replay.body.is_given() {
        true => Some(replay.envelope.message(&replay.key, replay.body.read()?)?),
        false => None,
    };
    let name = proto::KeyRequest {
        queue: replay.queue.clone(),
        key: replay.key.clone(),
        group: replay.envelope.group().unwrap_or_default().to_owned(),
    };
    let replayed = session.client.replay_key(name.clone(), message).await;
    replayed.map_err(|error| match error.code() {
        Code::Conflict => Failure::from(error).next(
            "give the same body, group and fingerprint as in the first send; if the queue has \
             keep_bodies, leave the body out",
        ),
        _ => error.into(),
    })?;
    print_change(session, replay.output, name, "is ready again, as its next generation").await
}

/// The state of a key after the change, with the JSON fields of the HTTP API. A key that is gone
/// has no state.
async fn print_change(
    session: &Session,
    output: Output,
    name: proto::KeyRequest,
    what: &str,
) -> Result<Exit, Failure> {
    let screen = output.screen();
    if !screen.is_json() {
        screen.line(format_args!("{} {what}", clean(&name.key)))?;
        return Ok(Exit::Ok);
    }
    let mut answer = json!({ "answer": "ok", "queue": name.queue, "key": name.key });
    match session.client.key(name, Duration::ZERO).await {
        Ok(key) => {
            if let Some(fields) = answer.as_object_mut() {
                fields.insert("state".to_owned(), key.state().as_str().into());
                fields.insert("generation".to_owned(), key.generation.into());
            }
        }
        Err(error) if error.code() == Code::NoSuchKey => {}
        Err(error) => return Err(error.into()),
    }
    screen.json(&answer)?;
    Ok(Exit::Ok)
}

pub(crate) async fn resolve(resolve: &Resolve) -> Result<Exit, Failure> {
    let (resolution, what) = match &resolve.done {
        Some(result) => {
            let content_type = resolve.content_type.clone().unwrap_or_default();
            let body = bytes::Bytes::copy_from_slice(result.as_bytes());
            let result = (!result.is_empty()).then_some(proto::Blob { body, content_type });
            (Resolution::Done(proto::ResolveDone { result }), "is done")
        }
        None => (Resolution::Retry(proto::ResolveRetry {}), "is ready again"),
    };
    resolve
        .connection
        .on_existing(resolve.name.queue(), async |session| {
            session.client.resolve_key(resolve.name.request(), resolution).await?;
            print_change(session, resolve.output, resolve.name.request(), what).await
        })
        .await
}
