//! CPU time of threads and processes.
//!
//! For another process the kernel counts in hundredths of a second, which is precise enough for a
//! run of seconds.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::interrupt;

/// An idle process uses at most this share of a core during this interval.
const IDLE_SHARE: f64 = 0.1;
const IDLE_INTERVAL: Duration = Duration::from_millis(300);

/// Longest wait for an idle process.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// CPU time of this thread.
pub fn of_this_thread() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of this process.
pub fn of_this_process() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// CPU time of a process and its children, including those that ended.
pub fn of_family(process: u32) -> Result<Duration> {
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
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// CPU time of both sides of a run.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// This process: producers and workers.
    pub client: Duration,
    /// The server with all its processes, if known.
    pub server: Option<Duration>,
}

impl Times {
    pub fn now(server: Option<u32>) -> Self {
        let server = server.and_then(|process| of_family(process).ok());
        Self { client: of_this_process(), server }
    }

    pub fn since(self, before: Self) -> Self {
        let server = self.server.zip(before.server);
        Self {
            client: self.client.saturating_sub(before.client),
            server: server.map(|(now, before)| now.saturating_sub(before)),
        }
    }

    /// Share of all cores that both sides together kept busy, from 0 to 1.
    pub fn cores_busy(self, wall: Duration) -> f64 {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let used = self.client + self.server.unwrap_or_default();
        used.as_secs_f64() / wall.as_secs_f64() / cores as f64
    }
}

/// Waits until a process with its children is idle, so that merges or a vacuum that one run left
/// behind do not take time from the next; at most [`IDLE_TIMEOUT`].
pub fn wait_until_idle(process: u32) -> Result<()> {
    let start = Instant::now();
    let mut before = of_family(process)?;
    loop {
        thread::sleep(IDLE_INTERVAL);
        interrupt::check()?;
        let now = of_family(process)?;
        let used = now.saturating_sub(before);
        if used <= IDLE_INTERVAL.mul_f64(IDLE_SHARE) || start.elapsed() > IDLE_TIMEOUT {
            return Ok(());
        }
        before = now;
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
        // The name comes second, in brackets, and may contain anything, also brackets and spaces.
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
    fn both_clocks_of_this_process_agree() {
        let own = Some(std::process::id());
        let before = Times::now(own);
        let mut sum = 0u64;
        while of_this_process() - before.client < Duration::from_millis(300) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let spent = Times::now(own).since(before);
        let by_kernel = spent.server.unwrap();
        assert!(by_kernel.abs_diff(spent.client) < Duration::from_millis(150), "{spent:?}");
        assert!(of_family(u32::MAX).is_err());
    }

    #[test]
    fn cores_are_busy_by_what_both_sides_used() {
        let second = Duration::from_secs(1);
        let cores = thread::available_parallelism().unwrap().get() as f64;
        let times = Times { client: second, server: Some(3 * second) };
        assert_eq!(times.cores_busy(2 * second) * cores, 2.0);
        assert_eq!(Times { server: None, ..times }.cores_busy(2 * second) * cores, 0.5);
    }
}
