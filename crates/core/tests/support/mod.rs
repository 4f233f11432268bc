//! A partition without files: a machine, its journal and its rows, all in memory.
//!
//! Every command goes the way it goes in earnest: time, needs, warm, decide, journal. `crash` drops
//! the machine and builds it again from rows and journal alone.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test: what fails here fails it"
)]
#![expect(dead_code, reason = "every test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use hapax_core::{
    Batch, Bounds, Command, Decision, Digest, Effect, Machine, Need, Outcome, RangeOf, Recipe,
    Records, RowKey, RowSink, Stamp, Time, read_batch,
};

/// 2023-11-14: a time that dated keys are believed at.
/// The machine is the first of so many: fences count up in steps of it.
pub(crate) const PARTITIONS: u16 = 3;

pub(crate) const START: u64 = 1_700_000_000_000;

/// What new data is hashed with.
pub(crate) fn recipe() -> Recipe {
    static NEW: LazyLock<Recipe> = LazyLock::new(|| Recipe::second(&[7; 32]));
    *NEW
}

/// With more messages in memory, looking at all of them after each command takes too long.
const CHECKED_MAX: usize = 200;

pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) at: Time,
    pub(crate) random: u64,
    epoch: u32,
    journal: Vec<Vec<u8>>,
    rows: Rows,
    /// The checkpoint that is not in the rows yet.
    under_way: Option<UnderWay>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) recipe: Recipe,
    bounds: Bounds,
}

/// A checkpoint from its cut on.
struct UnderWay {
    /// `None` until everything is copied.
    rows: Option<Rows>,
    batches: usize,
    at: Time,
}

/// The rows of a store, obviously right.
#[derive(Clone, Default)]
pub(crate) struct Rows {
    points: BTreeMap<(Digest, u64), Option<Vec<u8>>>,
    ordered: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    records: Option<Records>,
}

impl RowSink for Rows {
    fn borrow_from(&mut self, records: Records) {
        assert!(self.records.is_none(), "a checkpoint lends once");
        self.records = Some(records);
    }

    fn put_record(&mut self, digest: &Digest, drop_at: u64, place: u32) {
        let records = self.records.clone().expect("a record is lent before it is put");
        self.put_point(digest, drop_at, records.value(place));
    }

    fn put_point(&mut self, digest: &Digest, drop_at: u64, value: &[u8]) {
        let before = self.points.insert((*digest, drop_at), Some(value.to_vec()));
        assert!(before.is_none(), "a point appears once in a checkpoint");
    }

    fn delete_point(&mut self, digest: &Digest, drop_at: u64) {
        let before = self.points.insert((*digest, drop_at), None);
        assert!(before.is_none(), "a point appears once in a checkpoint");
    }

    fn put_row(&mut self, key: &RowKey, value: &[u8]) {
        let before = self.ordered.insert(key.as_slice().to_vec(), Some(value.to_vec()));
        assert!(before.is_none(), "a row appears once in a checkpoint");
    }

    fn delete_row(&mut self, key: &RowKey) {
        let before = self.ordered.insert(key.as_slice().to_vec(), None);
        assert!(before.is_none(), "a row appears once in a checkpoint");
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_bounds(Bounds::default())
    }

    /// A world that does so much at once, and no more.
    pub(crate) fn with_bounds(bounds: Bounds) -> Self {
        Self::with(recipe(), bounds)
    }

    /// A world of data that is hashed so.
    pub(crate) fn with(recipe: Recipe, bounds: Bounds) -> Self {
        Self {
            machine: Machine::with_bounds(0, PARTITIONS, 1, 7, recipe, bounds),
            at: Time(START),
            random: 1,
            epoch: 1,
            journal: Vec::new(),
            rows: Rows::default(),
            under_way: None,
            effects: Vec::new(),
            recipe,
            bounds,
        }
    }

    /// Runs one command in a batch of its own.
    pub(crate) fn run(&mut self, command: Command) -> Outcome {
        self.run_all(vec![command]).remove(0)
    }

    /// Runs several commands in one batch. As in earnest, what they need is asked for before the
    /// first is decided, where that can be known by then.
    pub(crate) fn run_all(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        self.machine.advance(self.at, &mut self.effects);
        self.fetch(|machine, needs| machine.needs_ahead(commands.iter(), needs));
        let mut batch = Batch::default();
        batch.begin(self.at);
        let stamp = Stamp { at: self.at, random: self.random };
        let mut outcomes = Vec::new();
        let mut is_late = false;
        for command in commands {
            is_late |= command.changes_needs();
            if is_late || command.is_asked_late() {
                self.fetch(|machine, needs| machine.needs(&command, needs));
            }
            outcomes.push(self.machine.execute(stamp, command, &mut batch));
        }
        self.unload();
        self.effects.append(&mut batch.effects);
        if !batch.is_empty() {
            self.journal.push(batch.bytes().to_vec());
        }
        self.copy_changed(1);
        outcomes
    }

    /// What was decided behind the first `batches` of the journal.
    pub(crate) fn decided_since(&self, batches: usize) -> Vec<Decision> {
        let decided = self.journal.iter().skip(batches);
        decided.flat_map(|bytes| read_batch(bytes).expect("batches read back").1).collect()
    }

    /// How many batches the journal holds.
    pub(crate) fn batches(&self) -> usize {
        self.journal.len()
    }

    /// Lets time pass, and everything happen that was due meanwhile.
    pub(crate) fn wait(&mut self, ms: u64) {
        let until = self.at.plus(ms);
        let mut idle = 0;
        while let Some(next) = self.machine.next_deadline().filter(|next| *next <= until) {
            let before = (self.at, self.journal.len());
            self.at = self.at.max(next);
            self.run(Command::Expire);
            // A step that only reads leaves no record.
            idle = if before == (self.at, self.journal.len()) { idle + 1 } else { 0 };
            assert!(idle < 10_000, "whatever is due comes to an end");
        }
        self.at = until;
        self.run(Command::Expire);
    }

    /// What is in the rows.
    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }

    /// A partition that finds these rows.
    pub(crate) fn reopened(recipe: Recipe, rows: Rows) -> Self {
        let mut world = Self::with(recipe, Bounds::default());
        world.rows = rows;
        world.crash();
        world
    }

    /// Cuts a checkpoint and makes its rows visible.
    pub(crate) fn checkpoint(&mut self) {
        self.begin_checkpoint();
        self.finish_checkpoint();
    }

    /// Cuts a checkpoint that is not in the rows yet. Every batch that follows copies one message
    /// or group of it, so that most of them change before they are copied.
    pub(crate) fn begin_checkpoint(&mut self) {
        if self.under_way.is_some() {
            return;
        }
        self.machine.begin_checkpoint();
        let (batches, at) = (self.journal.len(), self.machine.now());
        self.under_way = Some(UnderWay { rows: None, batches, at });
    }

    /// Copies some of the checkpoint under way.
    pub(crate) fn copy_changed(&mut self, most: usize) {
        let Some(under_way) = self.under_way.as_mut().filter(|it| it.rows.is_none()) else {
            return;
        };
        if let Some(snapshot) = self.machine.copy_changed(most) {
            let mut rows = Rows::default();
            snapshot.write(&mut rows);
            under_way.rows = Some(rows);
        }
    }

    /// The checkpoint under way is in the rows now, and the journal before it is gone.
    pub(crate) fn finish_checkpoint(&mut self) {
        self.copy_changed(usize::MAX);
        let Some(UnderWay { rows, batches, at }) = self.under_way.take() else { return };
        self.rows.take_in(rows.expect("everything is copied"));
        // Not by the time it is now: the journal behind the cut may need what is over since.
        self.rows.drop_buckets(at);
        self.journal.drain(..batches);
        self.machine.finish_checkpoint();
    }

    /// Gives up the checkpoint under way.
    pub(crate) fn cancel_checkpoint(&mut self) {
        self.copy_changed(usize::MAX);
        if self.under_way.take().is_some() {
            self.machine.cancel_checkpoint();
        }
    }

    /// Leaves as much as possible to the rows, but for `keep` messages at each head.
    pub(crate) fn evict_keeping(&mut self, keep: usize) -> usize {
        self.machine.evict_keeping(keep, 0, usize::MAX)
    }

    /// Leaves as much as possible to the rows.
    pub(crate) fn evict(&mut self) -> usize {
        self.machine.evict(0, usize::MAX)
    }

    /// The process dies. What comes back is built from the rows and the journal.
    pub(crate) fn crash(&mut self) {
        self.reopen(1);
    }

    /// The process dies, and what comes back sees every decision twice.
    pub(crate) fn crash_and_apply_twice(&mut self) {
        self.reopen(2);
    }

    /// The process dies before its last batch was durable.
    pub(crate) fn crash_and_lose_the_last_batch(&mut self) {
        self.journal.pop();
        self.reopen(1);
    }

    fn reopen(&mut self, times: usize) {
        self.under_way = None;
        self.epoch += 1;
        let seed = u64::from(self.epoch) * 77;
        let (recipe, bounds) = (self.recipe, self.bounds);
        self.machine = Machine::with_bounds(0, PARTITIONS, self.epoch, seed, recipe, bounds);
        self.boot(Machine::boot_ranges());
        self.boot(self.machine.leases());
        assert_eq!(self.machine.missing_leases(), None, "the end of every lease is known");
        for bytes in self.journal.clone() {
            let (at, decisions) = read_batch(&bytes).expect("batches read back");
            self.machine.advance(at, &mut Vec::new());
            for decision in decisions {
                self.fetch(|machine, needs| machine.needs_of(&decision, needs));
                for _ in 0..times {
                    self.machine.apply(at, decision.clone());
                }
            }
            self.machine.unload();
        }
        assert_eq!(self.machine.missing_leases(), None, "the end of every lease is known");
        self.machine.expect_records(4_096);
        self.at = self.at.max(self.machine.now());
    }

    fn boot(&mut self, ranges: Vec<(RowKey, RowKey)>) {
        for (from, to) in ranges {
            for (key, value) in self.rows.range(&from, &to, usize::MAX) {
                self.machine.boot(&key, &value).expect("rows read back");
            }
        }
    }

    /// The batch is decided: whatever it was, the state must hold together.
    fn unload(&mut self) {
        self.machine.unload();
        if self.machine.usage().messages <= CHECKED_MAX {
            self.machine.check_invariants();
        }
    }

    /// Fetches what is needed until nothing more is.
    fn fetch(&mut self, ask: impl Fn(&Machine, &mut Vec<Need>)) {
        let (mut needs, mut read) = (Vec::new(), Vec::new());
        ask(&self.machine, &mut needs);
        let mut rounds = 0;
        while !needs.is_empty() {
            rounds += 1;
            assert!(rounds < 10_000, "needs come to an end: {needs:?}");
            let mut more = Vec::new();
            for need in &needs {
                match need {
                    Need::Point(digest) | Need::Group(_, digest) => match self.rows.point(digest) {
                        Some(value) => {
                            let warmed = self.machine.load_point(digest, &value, &mut more);
                            warmed.expect("points read back");
                        }
                        None => self.machine.absent(need),
                    },
                    Need::Row(row) => {
                        for (key, value) in self.rows.range(row, &row.next(), 1) {
                            let warmed = self.machine.load_row(&key, &value, &mut more);
                            warmed.expect("rows read back");
                        }
                    }
                    Need::Range(range) => {
                        let rows = self.rows.range(&range.from, &range.to, range.limit);
                        for (key, value) in &rows {
                            let warmed = self.machine.load_row(key, value, &mut more);
                            warmed.expect("rows read back");
                        }
                        let last = rows.last().map(|(key, _)| key.as_slice());
                        self.machine.loaded(need, last, rows.len() >= range.limit);
                    }
                }
            }
            read.append(&mut needs);
            if more.is_empty() {
                ask(&self.machine, &mut more);
                more.retain(|need| match need {
                    // A job goes on with the next batch.
                    Need::Range(range)
                        if matches!(range.of, RangeOf::Purge(_) | RangeOf::Delayed(_)) =>
                    {
                        let of = |read: &Need| match read {
                            Need::Range(read) => read.of == range.of,
                            _ => false,
                        };
                        !read.iter().any(of)
                    }
                    Need::Range(_) => !read.contains(need),
                    Need::Group(..) => true,
                    Need::Point(_) | Need::Row(_) => false,
                });
            }
            needs = more;
        }
    }
}

impl Rows {
    fn take_in(&mut self, newer: Self) {
        for (key, value) in newer.points {
            match value {
                Some(value) => self.points.insert(key, Some(value)),
                None => self.points.remove(&key),
            };
        }
        for (key, value) in newer.ordered {
            match value {
                Some(value) => self.ordered.insert(key, Some(value)),
                None => self.ordered.remove(&key),
            };
        }
    }

    fn drop_buckets(&mut self, at: Time) {
        self.points.retain(|(_, drop_at), _| *drop_at > at.0);
    }

    fn point(&self, digest: &Digest) -> Option<Vec<u8>> {
        let mut found = self.points.range((*digest, 0)..=(*digest, u64::MAX));
        let value = found.next().and_then(|(_, value)| value.clone());
        assert!(found.next().is_none(), "a point has one row over all buckets");
        value
    }

    fn range(&self, from: &RowKey, to: &RowKey, limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let range = self.ordered.range(from.as_slice().to_vec()..to.as_slice().to_vec());
        let rows = range.filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
        rows.take(limit).collect()
    }

    /// The numbers of the queues whose rows there are: their own, redrives, leads, messages.
    pub(crate) fn queues(&self) -> BTreeSet<u32> {
        let ordered = self.ordered.iter().filter(|(_, value)| value.is_some());
        let named = ordered.filter(|(key, _)| [2, 5, 6, 16].contains(&key[0]));
        named.map(|(key, _)| u32::from_be_bytes([key[1], key[2], key[3], key[4]])).collect()
    }

    pub(crate) fn len(&self) -> (usize, usize) {
        (self.points.len(), self.ordered.len())
    }

    /// The rows as text: names, and what they say in lines of hexadecimal behind them.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for ((digest, drop_at), value) in &self.points {
            text += &format!("point {} {drop_at}\n", to_hex(&digest.0));
            text += &to_lines(value.as_deref().unwrap_or_default());
        }
        for (key, value) in &self.ordered {
            text += &format!("row {}\n", to_hex(key));
            text += &to_lines(value.as_deref().unwrap_or_default());
        }
        text
    }

    /// Reads what `to_text` wrote.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut rows = Self::default();
        for (title, value) in entries(text) {
            let words: Vec<&str> = title.split(' ').collect();
            match *words.as_slice() {
                ["point", digest, drop_at] => {
                    let digest = Digest(from_hex(digest).try_into().expect("16 bytes"));
                    let drop_at = drop_at.parse().expect("a number");
                    rows.points.insert((digest, drop_at), Some(value));
                }
                ["row", key] => {
                    rows.ordered.insert(from_hex(key), Some(value));
                }
                _ => {}
            }
        }
        rows
    }
}

/// The entries of a text: lines that begin at its edge, each with the bytes indented behind it.
pub(crate) fn entries(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("  "), entries.last_mut()) {
            (Some(hex), Some((_, bytes))) => bytes.extend(from_hex(hex)),
            _ => entries.push((line.to_owned(), Vec::new())),
        }
    }
    entries
}

/// Bytes as indented lines.
pub(crate) fn to_lines(bytes: &[u8]) -> String {
    bytes.chunks(48).map(|chunk| format!("  {}\n", to_hex(chunk))).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).expect("hexadecimal") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
