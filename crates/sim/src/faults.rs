//! The kinds of faults of a run, and how often they happened.

use std::fmt;

use crate::Random;
use crate::volume::Counters;

/// Kinds of faults in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Power cuts and kills, at any operation of the disk or between two.
    Power,
    /// Errors of reads, writes and syncs, and syncs that take long.
    Io,
    /// A full disk, freed after a while.
    Full,
    /// Bits flipped at rest, and writes that land elsewhere.
    Rot,
    /// A wall clock that is set.
    Clock,
    /// Another owner takes over while the first continues.
    Takeover,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Power, Self::Io, Self::Full, Self::Rot, Self::Clock, Self::Takeover];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Io => "io",
            Self::Full => "full",
            Self::Rot => "rot",
            Self::Clock => "clock",
            Self::Takeover => "takeover",
        }
    }
}

/// The faults chosen for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Each run draws its own faults.
    Drawn,
    These(Vec<Kind>),
}

impl Choice {
    /// Reads `all`, `none`, or one of the kinds.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "all" => Some(Self::Drawn),
            "none" => Some(Self::These(Vec::new())),
            _ => {
                let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == text)?;
                Some(Self::These(vec![kind]))
            }
        }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> Vec<Kind> {
        match self {
            Self::These(kinds) => kinds.clone(),
            Self::Drawn => {
                let first = *random.pick(&Kind::ALL).unwrap_or(&Kind::Power);
                let mut kinds = vec![first];
                for kind in Kind::ALL {
                    // Owners race in memory, where no disk fails.
                    let fits = kind != Kind::Takeover && first != Kind::Takeover;
                    if (fits || kind == Kind::Clock) && kind != first && random.one_in(4) {
                        kinds.push(kind);
                    }
                }
                kinds
            }
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drawn => f.write_str("all"),
            Self::These(kinds) => match kinds.as_slice() {
                [] => f.write_str("none"),
                [kind, ..] => f.write_str(kind.as_str()),
            },
        }
    }
}

/// Counts of what happened in one or more runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    entries: Vec<(&'static str, u64)>,
}

impl Tally {
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, count: u64) {
        match self.entries.iter_mut().find(|(name, _)| *name == what) {
            Some((_, total)) => *total += count,
            None => self.entries.push((what, count)),
        }
    }

    pub fn get(&self, what: &str) -> u64 {
        self.entries.iter().find(|(name, _)| *name == what).map_or(0, |(_, count)| *count)
    }

    pub fn merge(&mut self, other: &Self) {
        for (what, count) in &other.entries {
            self.add(what, *count);
        }
    }

    pub(crate) fn add_disk(&mut self, counters: &Counters) {
        for (what, count) in counters.named() {
            self.add(what, count);
        }
    }

    /// The entries by name.
    pub fn entries(&self) -> Vec<(&'static str, u64)> {
        let mut entries = self.entries.clone();
        entries.sort_unstable();
        entries
    }
}
