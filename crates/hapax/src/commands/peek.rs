//! `hapax peek`: lists the messages of a queue without leasing them.

use clap::Args;
use hapax_wire::proto::{self, State};

use crate::counts;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::moment;
use crate::screen::{Cell, Output, Screen, Table, body, brief, clean, say};
use crate::session::{Connection, Session};

/// The states of unfinished messages.
pub(crate) const PLACES: [State; 5] =
    [State::Ready, State::Leased, State::Delayed, State::Parked, State::Dead];

/// The most messages that one page holds.
pub(crate) const PAGE: u32 = 500;

#[derive(Debug, Args)]
pub(crate) struct Peek {
    /// The queue.
    queue: String,
    /// Only messages in this state. By default all: ready, leased, delayed, parked and dead, in
    /// this order. Within a state the oldest come first.
    #[arg(long, value_parser = parse_state)]
    state: Option<State>,
    /// At most this many messages of each state.
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = counts::any::<usize>)]
    limit: usize,
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    output: Output,
}

fn parse_state(text: &str) -> Result<State, String> {
    let names = PLACES.map(State::as_str).join(", ");
    PLACES.into_iter().find(|state| state.as_str() == text).ok_or_else(|| format!("one of {names}"))
}

pub(crate) async fn run(peek: &Peek) -> Result<Exit, Failure> {
    peek.connection.on_existing(&peek.queue, async |session| act(session, peek).await).await
}

async fn act(session: &Session, peek: &Peek) -> Result<Exit, Failure> {
    let places = match peek.state {
        Some(state) => vec![state],
        None => PLACES.to_vec(),
    };
    let mut messages = Vec::new();
    let mut has_more = false;
    for place in places {
        let mut pages = Pages::new(session, &peek.queue, place);
        let enough = messages.len() + peek.limit;
        while messages.len() < enough {
            let most = u32::try_from(enough - messages.len()).unwrap_or(PAGE);
            let Some(page) = pages.next(most).await? else { break };
            messages.extend(page);
        }
        has_more |= !pages.is_over();
    }
    list(peek.output.screen(), &messages)?;
    if has_more {
        say("there is more: --limit COUNT");
    }
    Ok(Exit::Ok)
}

/// The messages in one state, a page at a time.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    session: &'a Session,
    queue: &'a str,
    state: State,
    /// Empty before the first page, `None` after the last.
    cursor: Option<String>,
}

impl<'a> Pages<'a> {
    pub(crate) fn new(session: &'a Session, queue: &'a str, state: State) -> Self {
        Self { session, queue, state, cursor: Some(String::new()) }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.cursor.is_none()
    }

    pub(crate) async fn next(&mut self, most: u32) -> Result<Option<Vec<proto::Key>>, Failure> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let most = most.clamp(1, PAGE);
        let page = self.session.client.browse(self.queue, self.state, most, &cursor).await?;
        self.cursor = (!page.next.is_empty()).then_some(page.next);
        Ok(Some(page.messages))
    }
}

pub(crate) fn list(screen: Screen, messages: &[proto::Key]) -> Result<(), Failure> {
    if screen.is_json() {
        screen.json(&messages)?;
        return Ok(());
    }
    if messages.is_empty() {
        say("no messages");
        return Ok(());
    }
    let now = moment::now_ms();
    let mut table =
        Table::new(&["KEY", "STATE", ">ATTEMPTS", "ACCEPTED", "SINCE", "GROUP", "~NOTE", "~BODY"]);
    for message in messages {
        table.row([
            clean(&message.key).into(),
            Cell::state(message.state()),
            message.attempts.into(),
            moment::relative(now, message.accepted_at_ms).into(),
            since(message, now).into(),
            clean(&message.group).into(),
            circumstance(message, now).into(),
            content(message).into(),
        ]);
    }
    table.print(screen)?;
    Ok(())
}

/// Prints dead messages, with the time at which they died and their error.
pub(crate) fn list_dead(screen: Screen, messages: &[proto::Key]) -> Result<(), Failure> {
    if screen.is_json() || messages.is_empty() {
        return list(screen, messages);
    }
    let now = moment::now_ms();
    let mut table =
        Table::new(&["KEY", ">ATTEMPTS", "ACCEPTED", "DIED", "GROUP", "~ERROR", "~BODY"]);
    for message in messages {
        table.row([
            clean(&message.key).into(),
            message.attempts.into(),
            moment::relative(now, message.accepted_at_ms).into(),
            moment::relative(now, died_at(message)).into(),
            clean(&message.group).into(),
            brief(&message.error, 60).into(),
            content(message).into(),
        ]);
    }
    table.print(screen)?;
    Ok(())
}

/// The time at which a dead message died last, from its history.
pub(crate) fn died_at(message: &proto::Key) -> u64 {
    let deaths = message.history.iter().filter(|event| event.event == "dead");
    let last = deaths.map(|event| event.at_ms).max();
    last.or(message.finished_at_ms).unwrap_or(message.accepted_at_ms)
}

/// Since when a message is in its state, if its history shows it.
fn since(message: &proto::Key, now: u64) -> String {
    let event = match message.state() {
        State::Dead => return moment::relative(now, died_at(message)),
        State::Parked => "parked",
        State::Leased => "leased",
        _ => return String::new(),
    };
    let times = message.history.iter().filter(|it| it.event == event).map(|it| it.at_ms);
    times.max().map(|at| moment::relative(now, at)).unwrap_or_default()
}

fn content(message: &proto::Key) -> String {
    message.message.as_ref().map(|blob| body(&blob.body, 40)).unwrap_or_default()
}

/// The reason why a message is parked. If its holder reported none, its lease was lost. A claim for
/// an HTTP request shows the request.
fn lost(message: &proto::Key) -> String {
    let lost = "its lease was lost";
    message.headers.get("request").map_or(lost.to_owned(), |request| format!("{request}: {lost}"))
}

/// The most important detail of a message in its state.
fn circumstance(message: &proto::Key, now: u64) -> String {
    let at = message.deadline_ms.map(|ms| moment::relative(now, ms)).unwrap_or_default();
    match message.state() {
        State::Parked if message.error.is_empty() => brief(&lost(message), 120),
        State::Dead | State::Parked => brief(&message.error, 120),
        State::Delayed if message.error.is_empty() => format!("due {at}"),
        State::Delayed => format!("due {at}: {}", brief(&message.error, 40)),
        State::Leased => format!("{} until {at}", clean(&message.worker)),
        _ => String::new(),
    }
}
