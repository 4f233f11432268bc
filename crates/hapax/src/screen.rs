//! The output of commands: text for people, with colours on a terminal only, or JSON for programs.
//! Keys, errors and bodies come from other people: [`clean`] escapes control characters in them
//! before they are printed.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use clap::{ArgMatches, Args, ValueEnum};
use hapax_wire::State;
use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

/// The output option, of every command that prints an answer.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// The output format: a table for people, or JSON for programs.
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value = "table", help_heading = "Output")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Whether the parsed command writes JSON.
pub(crate) fn asks_for_json(matches: &ArgMatches) -> bool {
    let format = matches.try_get_one::<Format>("format").ok().flatten();
    let below = matches.subcommand().is_some_and(|(_, below)| asks_for_json(below));
    below || format == Some(&Format::Json)
}

impl Output {
    pub(crate) fn screen(self) -> Screen {
        Screen { is_json: self.format == Format::Json, has_colour: has_colour(&io::stdout()) }
    }
}

/// The standard output. An error of it ends the command, because nobody reads the output any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    is_json: bool,
    has_colour: bool,
}

impl Screen {
    /// The screen of a command without JSON output.
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

    /// Prints a result with an end of line: byte for byte, but on a terminal with its control
    /// characters escaped.
    pub(crate) fn result(self, bytes: &[u8]) -> io::Result<()> {
        let printed = printed(bytes, io::stdout().is_terminal());
        self.bytes(&printed)?;
        if printed.ends_with(b"\n") { Ok(()) } else { self.line("") }
    }

    /// Prints one document over several lines.
    pub(crate) fn json(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// Prints one document on one line, for output of many documents.
    pub(crate) fn json_line(self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    pub(crate) fn paint(self, colour: Colour, text: impl Display) -> String {
        paint(self.has_colour, colour, text)
    }

    pub(crate) fn state(self, state: State) -> String {
        self.paint(Colour::of(state), state.as_str())
    }
}

/// Prints a line to the standard error, while the standard output is for programs.
pub(crate) fn say(text: impl Display) {
    // If the output is closed, there is nowhere to report it.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints an error and the next step.
pub(crate) fn complain(what: &str, next: Option<&str>) {
    let has_colour = has_colour(&io::stderr());
    say(format_args!("{} {what}", paint(has_colour, Colour::Red, "error:")));
    for line in next.iter().flat_map(|next| next.lines()) {
        say(format_args!("{} {line}", paint(has_colour, Colour::Cyan, " next:")));
    }
}

/// `1 message`, `2 messages`.
pub(crate) fn count(number: impl Into<u64>, thing: &str) -> String {
    match number.into() {
        1 => format!("1 {thing}"),
        many => format!("{many} {thing}s"),
    }
}

/// Colours. No information is conveyed by colour alone.
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
    let is_forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|v| !v.is_empty() && v != "0");
    !is_set("NO_COLOR") && (is_forced || (stream.is_terminal() && !is_dumb))
}

/// Whether a character is a control character or changes the text direction.
fn is_harmful(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes control characters in foreign text.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// Foreign bytes as they are printed, in their lines.
fn printed(bytes: &[u8], is_terminal: bool) -> Cow<'_, [u8]> {
    match std::str::from_utf8(bytes) {
        _ if !is_terminal => bytes.into(),
        Ok(text) => {
            let lines: Vec<String> = text.split('\n').map(clean).collect();
            lines.join("\n").into_bytes().into()
        }
        Err(_) => format!("<{} bytes>", bytes.len()).into_bytes().into(),
    }
}

/// Quotes foreign text as one word of a shell command.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if clean(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    // Control characters are escaped as bash, zsh and ksh read them.
    let mut out = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            _ if is_harmful(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push('\'');
    out
}

/// Shortens a text to one line. The rest is not read: it may have many megabytes.
pub(crate) fn brief(text: &str, most: usize) -> String {
    let end = text.char_indices().nth(most + 1).map_or(text.len(), |(end, _)| end);
    let text = clean(text.get(..end).unwrap_or(text));
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Shortens a text to a number of columns.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The width of the terminal; `None` if the standard output is not a terminal.
fn terminal_width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
    (width.0 > 0).then_some(width.0.into())
}

/// Formats bytes for people: text as it is, anything else as its size.
pub(crate) fn body(bytes: &[u8], most: usize) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => brief(text, most),
        Err(_) => format!("<{} bytes>", bytes.len()),
    }
}

/// A progress bar, hidden if the standard error is not a terminal.
pub(crate) fn progress(total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let bar = ProgressBar::new(total);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A bar that cannot be drawn is not an error.
        let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
    }));
    bar
}

/// A table whose columns are as wide as their cells. Numbers are right-aligned.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    is_right: bool,
    /// Whether the column shrinks if the terminal is too narrow.
    may_shrink: bool,
}

/// The smallest width of a column that shrinks.
const SHRUNK_MIN: usize = 8;

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
        Self::coloured(Colour::of(state), state.as_str())
    }
}

impl<T: Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.to_string(), colour: None }
    }
}

impl Table {
    /// Columns whose name begins with `>` are right-aligned; those whose name begins with `~`
    /// shrink if the terminal is too narrow.
    pub(crate) fn new(names: &[&'static str]) -> Self {
        let columns = names.iter().map(|name| Column {
            name: name.trim_start_matches(['>', '~']),
            is_right: name.starts_with('>'),
            may_shrink: name.starts_with('~'),
        });
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn print(&self, screen: Screen) -> io::Result<()> {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, screen.has_colour, terminal_width());
        screen.bytes(text.as_bytes())
    }

    /// The widths of the columns: those of their cells, but together at most `most` if columns can
    /// shrink.
    fn widths(&self, heads: &Vec<Cell>, most: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|place| {
                let cells = self.rows.iter().chain([heads]).filter_map(|row| row.get(place));
                cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let gaps = 2 * widths.len().saturating_sub(1);
        while most.is_some_and(|most| widths.iter().sum::<usize>() + gaps > most) {
            let shrinking = widths.iter_mut().zip(&self.columns);
            let shrinking = shrinking.filter(|(width, it)| it.may_shrink && **width > SHRUNK_MIN);
            let Some((widest, _)) = shrinking.max_by_key(|(width, _)| **width) else { break };
            *widest -= 1;
        }
        widths
    }

    fn write(
        &self,
        out: &mut impl fmt::Write,
        has_colour: bool,
        most: Option<usize>,
    ) -> fmt::Result {
        let heads: Vec<Cell> =
            self.columns.iter().map(|column| Cell::coloured(Colour::Bold, column.name)).collect();
        let widths = self.widths(&heads, most);
        for row in [&heads].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), width) in row.iter().zip(&self.columns).zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let shown = cut(&cell.text, *width);
                let padding = " ".repeat(width.saturating_sub(shown.chars().count()));
                let text = match cell.colour {
                    Some(colour) => paint(has_colour, colour, &shown),
                    None => shown,
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
    fn a_result_is_harmless_on_a_terminal_and_unchanged_elsewhere() {
        let text = b"a\x1b[31mred\x07\nb\tc\n";
        assert_eq!(&*printed(text, false), text);
        assert_eq!(&*printed(text, true), b"a\\u{1b}[31mred\\u{7}\nb\\tc\n");
        assert_eq!(&*printed(b"\xff", true), b"<1 bytes>");
        assert_eq!(&*printed(b"\xff", false), b"\xff");
    }

    #[test]
    fn columns_are_as_wide_as_what_they_hold() {
        let mut table = Table::new(&["QUEUE", ">READY"]);
        table.row(["orders".into(), 12.into()]);
        table.row(["e".into(), Cell::coloured(Colour::Red, 1_000_000)]);
        let mut text = String::new();
        table.write(&mut text, false, None).unwrap();
        assert_eq!(text, "QUEUE     READY\norders       12\ne       1000000\n");
        text.clear();
        table.write(&mut text, true, None).unwrap();
        assert!(text.contains("e       \x1b[31m1000000\x1b[0m"), "{text:?}");
    }

    #[test]
    fn columns_that_may_shrink_give_way_to_a_narrow_terminal_and_others_do_not() {
        let mut table = Table::new(&["KEY", "~ERROR"]);
        table.row(["order-42".into(), "connection refused by the bank".into()]);
        let width = |most| {
            let mut text = String::new();
            table.write(&mut text, false, Some(most)).unwrap();
            text.lines().map(|line| line.chars().count()).max().unwrap()
        };
        assert_eq!(width(200), 40, "as wide as what it holds");
        assert_eq!(width(25), 25);
        assert_eq!(width(5), 18, "the key stays whole");
        let mut text = String::new();
        table.write(&mut text, false, Some(25)).unwrap();
        assert!(text.contains("order-42  connection ref…"), "{text}");
    }

    #[test]
    fn texts_of_others_cannot_steer_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d ä"), "a\\u{1b}[2Jb\\nc\\u{202e}d ä");
        assert_eq!(brief("abcdef", 3), "abc…");
        assert_eq!(brief("abc", 3), "abc");
        assert_eq!(body(&[0xff, 0xfe], 10), "<2 bytes>");
    }

    #[test]
    fn a_word_of_a_command_is_one_word_to_the_shell() {
        for plain in ["order-42", "a.b:c/d@e%f+g=h,i", "größe"] {
            assert_eq!(word(plain), plain);
        }
        assert_eq!(word(""), "''");
        assert_eq!(word("three lemons"), "'three lemons'");
        assert_eq!(word("$(rm) `x` \\"), "'$(rm) `x` \\'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word("a'\\\u{202e}b"), r"$'a\'\\\u202eb'");
    }
}
