//! Where commands write: lines for people, with colours on a terminal only, or JSON for programs.
//!
//! What a broker keeps was written by others: every text of theirs goes through [`clean`] before
//! it meets a terminal.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use hapax_wire::proto::State;

/// What every command with something to list takes.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// A table for people, or JSON for programs.
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value = "table", help_heading = "Output")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

impl Output {
    pub(crate) fn screen(self) -> Screen {
        Screen { is_json: self.format == Format::Json, has_colour: has_colour(&io::stdout()) }
    }
}

/// The standard output. Errors of it end the command: nobody reads any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    is_json: bool,
    has_colour: bool,
}

impl Screen {
    /// Of commands that write for people alone.
    pub(crate) fn plain() -> Self {
        Self { is_json: false, has_colour: has_colour(&io::stdout()) }
    }

    pub(crate) fn is_json(self) -> bool {
        self.is_json
    }

    pub(crate) fn line(self, text: impl Display) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{text}")
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// One document over several lines.
    pub(crate) fn json(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// One document on one line, for many of them.
    pub(crate) fn json_line(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    pub(crate) fn paint(self, colour: Colour, text: impl Display) -> String {
        paint(self.has_colour, colour, text)
    }

    pub(crate) fn state(self, state: State) -> String {
        self.paint(Colour::of(state), state_name(state))
    }
}

/// Speaks to people while the standard output is for programs.
pub(crate) fn say(text: impl Display) {
    // Where nobody listens there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says what went wrong and what to do next.
pub(crate) fn complain(what: &str, next: Option<&str>) {
    let has_colour = has_colour(&io::stderr());
    say(format_args!("{} {what}", paint(has_colour, Colour::Red, "error:")));
    for line in next.iter().flat_map(|next| next.lines()) {
        say(format_args!("{} {line}", paint(has_colour, Colour::Cyan, " next:")));
    }
}

/// As `table`s and `why` call a state.
pub(crate) fn state_name(state: State) -> &'static str {
    match state {
        State::Unspecified => "unknown",
        State::Ready => "ready",
        State::Delayed => "delayed",
        State::Leased => "leased",
        State::Parked => "parked",
        State::Dead => "dead",
        State::Done => "done",
        State::Discarded => "discarded",
    }
}

/// Colours with a meaning; nothing is told by colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Green,
    Yellow,
    Cyan,
    Dim,
    Bold,
}

impl Colour {
    fn code(self) -> u8 {
        match self {
            Self::Bold => 1,
            Self::Dim => 2,
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Cyan => 36,
        }
    }

    pub(crate) fn of(state: State) -> Self {
        match state {
            State::Done => Self::Green,
            State::Dead | State::Discarded => Self::Red,
            State::Parked | State::Delayed => Self::Yellow,
            State::Ready | State::Leased | State::Unspecified => Self::Cyan,
        }
    }
}

fn paint(has_colour: bool, colour: Colour, text: impl Display) -> String {
    match has_colour {
        true => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
        false => text.to_string(),
    }
}

fn has_colour(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Text of others, made harmless: no control characters, nothing that turns the direction.
pub(crate) fn clean(text: &str) -> String {
    let is_harmful =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// The beginning, where it is longer than a line should be.
pub(crate) fn brief(text: &str, most: usize) -> String {
    let text = clean(text);
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Bytes for people: text as it is, anything else by its size.
pub(crate) fn body(bytes: &[u8], most: usize) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => brief(text, most),
        Err(_) => format!("<{} bytes>", bytes.len()),
    }
}

/// A bar on a terminal, and nothing elsewhere.
pub(crate) fn progress(total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let bar = ProgressBar::new(total);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Columns as wide as what they hold. Numbers stand right.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    is_right: bool,
}

#[derive(Debug)]
pub(crate) struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    pub(crate) fn coloured(colour: Colour, text: impl Display) -> Self {
        Self { text: text.to_string(), colour: Some(colour) }
    }

    pub(crate) fn state(state: State) -> Self {
        Self::coloured(Colour::of(state), state_name(state))
    }
}

impl<T: Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.to_string(), colour: None }
    }
}

impl Table {
    /// Names that begin with `>` are of columns that stand right.
    pub(crate) fn new(names: &[&'static str]) -> Self {
        let columns = names.iter().map(|name| match name.strip_prefix('>') {
            Some(name) => Column { name, is_right: true },
            None => Column { name, is_right: false },
        });
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn print(&self, screen: Screen) -> io::Result<()> {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, screen.has_colour);
        screen.bytes(text.as_bytes())
    }

    fn write(&self, out: &mut impl fmt::Write, has_colour: bool) -> fmt::Result {
        let heads: Vec<Cell> =
            self.columns.iter().map(|column| Cell::coloured(Colour::Bold, column.name)).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|place| {
                let cells = self.rows.iter().chain([&heads]).filter_map(|row| row.get(place));
                cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in [&heads].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), width) in row.iter().zip(&self.columns).zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let padding = " ".repeat(width - cell.text.chars().count());
                let text = match cell.colour {
                    Some(colour) => paint(has_colour, colour, &cell.text),
                    None => cell.text.clone(),
                };
                match column.is_right {
                    true => line.extend([padding, text]),
                    false => line.extend([text, padding]),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_they_hold() {
        let mut table = Table::new(&["QUEUE", ">READY"]);
        table.row(["orders".into(), 12.into()]);
        table.row(["e".into(), Cell::coloured(Colour::Red, 1_000_000)]);
        let mut text = String::new();
        table.write(&mut text, false).unwrap();
        assert_eq!(text, "QUEUE     READY\norders       12\ne       1000000\n");
        text.clear();
        table.write(&mut text, true).unwrap();
        assert!(text.contains("e       \x1b[31m1000000\x1b[0m"), "{text:?}");
    }

    #[test]
    fn texts_of_others_cannot_steer_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d ä"), "a\\u{1b}[2Jb\\nc\\u{202e}d ä");
        assert_eq!(brief("abcdef", 3), "abc…");
        assert_eq!(brief("abc", 3), "abc");
        assert_eq!(body(&[0xff, 0xfe], 10), "<2 bytes>");
    }
}
