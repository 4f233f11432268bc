//! The output of a run: a table that is redrawn, or occasional lines if there is no terminal; and
//! the report.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::database::Totals;
use crate::services::PLACES;

/// Pause between two lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The five sources of duplicates, and what absorbs them here.
const WORDS: [(&str, &str); PLACES] = [
    ("a customer sends again", "the key of the request, by the idempotency layer"),
    ("a reply is lost", "the same key; and the key of the message, by the broker"),
    ("the broker crashes", "key and message, which are one record of its journal"),
    ("a worker dies after the charge", "the key of its step, by the gateway"),
    ("a commit is not heard of", "the row of the inbox, or of the order, beside the effect"),
];

/// The progress of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) orders: u32,
    pub(crate) totals: Totals,
    pub(crate) charges: usize,
    pub(crate) calls: u64,
    pub(crate) cuts: u32,
    pub(crate) kills: BTreeMap<String, usize>,
    pub(crate) absorbed: [u64; PLACES],
}

impl State {
    /// The table, as lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Totals { placed, payments, .. } = self.totals;
        let kills = self.kills.iter().map(|(name, kills)| format!("{name} {kills}"));
        let kills: Vec<String> = kills.collect();
        let mut lines = vec![
            format!("orders    {placed:>6} placed of {}", self.orders),
            format!(
                "charges   {:>6} by the gateway, which was asked {} times",
                self.charges, self.calls
            ),
            format!("payments  {payments:>6} written down"),
            format!("killed    {}; wire cut {}", kills.join(", "), self.cuts),
            "duplicates absorbed, by where they were born".to_owned(),
        ];
        for (place, ((born, by), count)) in WORDS.iter().zip(self.absorbed).enumerate() {
            lines.push(format!("  {}  {born:<31} {count:>6}  by {by}", place + 1));
        }
        lines
    }

    fn line(&self) -> String {
        let kills: usize = self.kills.values().sum();
        format!(
            "{} placed, {} charged, {} paid; {kills} kills; absorbed {:?}",
            self.totals.placed, self.charges, self.totals.paid, self.absorbed
        )
    }
}

#[derive(Debug)]
pub(crate) struct Screen {
    is_watched: bool,
    drawn: usize,
    last: Option<Instant>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self { is_watched: std::io::stdout().is_terminal(), drawn: 0, last: None }
    }

    /// Shows the progress, replacing the previous output.
    pub(crate) fn show(&mut self, state: &State) {
        if !self.is_watched {
            if self.last.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
                self.last = Some(Instant::now());
                println!("{}", state.line());
            }
            return;
        }
        let lines = state.lines();
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in &lines {
            text.push_str(&format!("\x1b[2K{line}\n"));
        }
        self.drawn = lines.len();
        print!("{text}");
        let _ = std::io::stdout().flush();
    }

    /// Prints the final table.
    pub(crate) fn close(mut self, state: &State) {
        if self.is_watched {
            self.show(state);
        } else {
            state.lines().iter().for_each(|line| println!("{line}"));
        }
    }
}
