//! CPU time of processes, by the kernel's counters. They count in hundredths of a second, which is
//! fine enough for a run of seconds.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::load::fail_if_interrupted;

/// Idle is who uses at most this share of a core for so long.
const IDLE_SHARE: f64 = 0.1;
const IDLE_INTERVAL: Duration = Duration::from_millis(300);

/// How long that is waited for.
const IDLE_PATIENCE: Duration = Duration::from_secs(20);

/// What a process and its children have used, the children that ended included.
pub(crate) fn used_by_family(process: u32) -> Result<Duration> {
    let own = Counters::read(process)
        .with_context(|| format!("no counters of process {process}: is it gone?"))?;
    let mut ticks = own.ticks + own.ended_children_ticks;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while the list is read.
        let Some(counters) = Counters::read(child) else { continue };
        if counters.parent == process {
            ticks += counters.ticks;
        }
    }
    Ok(duration(ticks))
}

/// What a process alone has used, without its children.
pub(crate) fn used_by(process: u32) -> Result<Duration> {
    let own = Counters::read(process).context("no counters of a process: is it gone?")?;
    Ok(duration(own.ticks))
}

/// Waits until a process with its children is idle: what one run left it to do, such as merges or
/// a vacuum, is not to be done in the next one's time. Not for ever, though.
pub(crate) fn wait_until_idle(process: u32) -> Result<()> {
    let begun = Instant::now();
    let mut before = used_by_family(process)?;
    loop {
        thread::sleep(IDLE_INTERVAL);
        fail_if_interrupted()?;
        let now = used_by_family(process)?;
        let used = now.saturating_sub(before);
        if used <= IDLE_INTERVAL.mul_f64(IDLE_SHARE) || begun.elapsed() > IDLE_PATIENCE {
            return Ok(());
        }
        before = now;
    }
}

fn duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// A line of `/proc/…/stat`.
#[derive(Clone, Copy, Debug)]
struct Counters {
    parent: u32,
    ticks: u64,
    ended_children_ticks: u64,
}

impl Counters {
    fn read(process: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The name comes second, in brackets, and may hold anything, brackets and spaces too.
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            ended_children_ticks: number(13)? + number(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_move_the_fields() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0";
        let counters = Counters::parse(line).unwrap();
        assert_eq!(counters.parent, 3);
        assert_eq!(counters.ticks, 23);
        assert_eq!(counters.ended_children_ticks, 27);
    }

    #[test]
    fn this_process_has_counters() {
        used_by(std::process::id()).unwrap();
    }
}
