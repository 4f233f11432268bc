//! `hapax forget`, `replay` and `resolve`: what an operator does to one key.

use clap::Args;
use hapax_wire::proto::{self, resolve_request::Resolution};

use crate::content::{Body, Envelope};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Screen, clean};
use crate::session::{Connection, KeyArguments, Session};

#[derive(Debug, Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    name: KeyArguments,
    #[command(flatten)]
    connection: Connection,
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
}

#[derive(Debug, Args)]
pub(crate) struct Resolve {
    #[command(flatten)]
    name: KeyArguments,
    /// It did happen: the message is done, with this result.
    #[arg(long, value_name = "RESULT", num_args = 0..=1, default_missing_value = "")]
    #[arg(required_unless_present = "retry", conflicts_with = "retry")]
    done: Option<String>,
    /// It did not happen: deliver the message again.
    #[arg(long)]
    retry: bool,
    /// What the result is, such as application/json.
    #[arg(long, value_name = "TYPE", requires = "done")]
    content_type: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn forget(forget: &Forget) -> Result<Exit, Failure> {
    forget
        .connection
        .on(forget.name.queue(), async |session| {
            session.client.forget_key(forget.name.request()).await?;
            let key = clean(forget.name.key());
            Screen::plain()
                .line(format_args!("{key} is forgotten: sent again, it is done again"))?;
            Ok(Exit::Ok)
        })
        .await
}

pub(crate) async fn replay(replay: &Replay) -> Result<Exit, Failure> {
    replay.connection.on(&replay.queue, async |session| act(session, replay).await).await
}

/// A finished message's body is gone, so it comes along; the broker compares it with the first.
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
    let key = clean(&replay.key);
    Screen::plain().line(format_args!("{key} is ready again, as its next generation"))?;
    Ok(Exit::Ok)
}

pub(crate) async fn resolve(resolve: &Resolve) -> Result<Exit, Failure> {
    let (resolution, told) = match &resolve.done {
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
        .on(resolve.name.queue(), async |session| {
            session.client.resolve_key(resolve.name.request(), resolution).await?;
            Screen::plain().line(format_args!("{} {told}", clean(resolve.name.key())))?;
            Ok(Exit::Ok)
        })
        .await
}
