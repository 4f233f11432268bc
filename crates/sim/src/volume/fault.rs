//! The faults of the disk, when they happen, and how often they did.

use crate::Random;

/// The faults of a disk. Each strikes by chance, or once at a given operation, on all files or on
/// some. The default is a disk without faults.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A read fails (EIO).
    pub read_error: Trigger,
    /// A write fails (EIO); some of its first sectors may be written.
    pub write_error: Trigger,
    /// A sync fails (EIO): some pending sectors are on the medium, some never will be, and no later
    /// sync reports it.
    pub sync_error: Trigger,
    /// A sync of the names fails (EIO); they stay pending.
    pub names_error: Trigger,
    /// A sync of a file or, without a pattern, of the names reports success and does nothing, like
    /// a drive that ignores flushes. No store survives this: it proves that a check can fail.
    pub lying_sync: Trigger,
    /// A write reports success and lands at another place of the same or another file.
    pub misdirected_write: Trigger,
    /// A sync takes long.
    pub slow_sync: Trigger,
    /// How long a slow sync takes, at most.
    pub slow_sync_ms_max: u64,
    /// The power fails at an operation that changes something: before it, or before its answer.
    pub power_cut: Trigger,
    /// The process is killed likewise.
    pub kill: Trigger,
}

/// When a fault strikes.
#[derive(Clone, Debug, Default)]
pub struct Trigger {
    when: When,
    files: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
enum When {
    #[default]
    Never,
    OneIn(u64),
    Nth(u64),
}

impl Trigger {
    pub fn never() -> Self {
        Self::default()
    }

    /// By chance, once in `count` operations.
    pub fn one_in(count: u64) -> Self {
        assert!(count > 0, "one in none is not a chance");
        Self { when: When::OneIn(count), files: None }
    }

    /// Once, at the `count`-th operation from now on; the next one is the first.
    pub fn nth(count: u64) -> Self {
        assert!(count > 0, "operations are counted from one");
        Self { when: When::Nth(count), files: None }
    }

    /// Counts only operations on files that match the pattern (see [`matches`]), so not
    /// `sync_names`.
    pub fn on(self, pattern: &str) -> Self {
        Self { files: Some(pattern.to_owned()), ..self }
    }

    pub(super) fn strikes(&mut self, file: Option<&str>, random: &mut Random) -> bool {
        if let Some(pattern) = &self.files
            && !file.is_some_and(|file| matches(pattern, file))
        {
            return false;
        }
        match &mut self.when {
            When::Never => false,
            When::OneIn(count) => random.one_in(*count),
            When::Nth(1) => {
                self.when = When::Never;
                true
            }
            When::Nth(left) => {
                *left -= 1;
                false
            }
        }
    }
}

/// Whether a file's name matches a pattern, in which `*` stands for any characters.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).any(|skip| name.get(skip..).is_some_and(|name| matches(rest, name)))
}

/// What happened so far, so that a run can prove that its faults took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub syncs: u64,
    pub name_syncs: u64,

    pub crashes: u64,
    pub kills: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub sync_errors: u64,
    pub names_errors: u64,
    pub syncs_ignored: u64,
    pub writes_without_room: u64,
    pub writes_misdirected: u64,
    pub bits_flipped: u64,
    pub slow_syncs: u64,

    /// Unsynced sectors that a crash or a failed sync left on the medium.
    pub sectors_kept: u64,
    pub sectors_lost: u64,
    /// Writes of which one part was kept and another lost.
    pub writes_torn: u64,
    /// Writes that were kept although an earlier one to the same file was lost.
    pub writes_reordered: u64,
    pub lengths_lost: u64,
    pub names_lost: u64,
}

impl Counters {
    /// The counters by name, for reports.
    pub fn named(&self) -> [(&'static str, u64); 22] {
        [
            ("reads", self.reads),
            ("writes", self.writes),
            ("bytes written", self.bytes_written),
            ("syncs", self.syncs),
            ("name syncs", self.name_syncs),
            ("crashes", self.crashes),
            ("kills", self.kills),
            ("read errors", self.read_errors),
            ("write errors", self.write_errors),
            ("sync errors", self.sync_errors),
            ("name sync errors", self.names_errors),
            ("syncs ignored", self.syncs_ignored),
            ("writes without room", self.writes_without_room),
            ("writes misdirected", self.writes_misdirected),
            ("bits flipped", self.bits_flipped),
            ("slow syncs", self.slow_syncs),
            ("sectors kept", self.sectors_kept),
            ("sectors lost", self.sectors_lost),
            ("writes torn", self.writes_torn),
            ("writes reordered", self.writes_reordered),
            ("lengths lost", self.lengths_lost),
            ("names lost", self.names_lost),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("journal-*", "journal-0001", true),
            ("journal-*", "archive-0001", false),
            ("*", "", true),
            ("*.run", "a.run", true),
            ("*.run", "a.run.tmp", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1c", false),
            ("lock", "lock", true),
            ("lock", "locks", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_nth_strikes_once_and_counts_its_files_only() {
        let mut random = Random::new(1);
        let mut trigger = Trigger::nth(2).on("a*");
        let files = [Some("a"), Some("b"), None, Some("aa"), Some("a"), Some("a")];
        let struck = files.map(|file| trigger.strikes(file, &mut random));
        assert_eq!(struck, [false, false, false, true, false, false]);
    }
}
