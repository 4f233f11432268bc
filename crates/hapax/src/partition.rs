//! A partition in a directory, used synchronously from one thread.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hapax_core::{Command, Outcome, Stamp};
use hapax_partition::{Answered, Clock, Options, Partition};
use hapax_server::time::now;
use hapax_store::disk::{self, DiskStore};

pub(crate) struct Local {
    partition: Partition<DiskStore>,
    clock: Clock,
    start: Instant,
}

impl Local {
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let owner = thread::current();
        let wake = Arc::new(move || owner.unpark());
        let store = DiskStore::open_threaded(directory, disk::Options::default(), wake)?;
        let partition = Partition::open(store, Options { seed: seed(), ..Options::default() })
            .with_context(|| format!("{} cannot be opened", directory.display()))?;
        // As a broker does. Otherwise time would get further ahead of the wall clock with every
        // crash.
        thread::sleep(Duration::from_millis(Clock::wait_ms(partition.now(), now())));
        let clock = Clock::start(partition.now(), now(), 0);
        Ok(Self { partition, clock, start: Instant::now() })
    }

    /// Submits a batch; `answers` returns its answers.
    pub(crate) fn submit(&mut self, commands: Vec<Command>) -> Result<()> {
        let monotonic = self.start.elapsed().as_micros() as u64;
        let stamp = Stamp { at: self.clock.now(now(), monotonic), random: seed() };
        self.partition.submit(stamp, commands)?;
        Ok(())
    }

    /// Waits for the next durable batch and returns its answers.
    pub(crate) fn answers(&mut self) -> Result<Answered> {
        loop {
            if let Some(answered) = self.partition.poll()? {
                return Ok(answered);
            }
            thread::park_timeout(Duration::from_millis(100));
        }
    }

    pub(crate) fn call(&mut self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.submit(commands)?;
        let mut answered = self.answers()?;
        while answered.more {
            let next = self.answers()?;
            answered.outcomes.extend(next.outcomes);
            answered.more = next.more;
        }
        Ok(answered.outcomes)
    }

    pub(crate) fn close(self) -> Result<()> {
        self.partition.close()?;
        Ok(())
    }
}

/// A random number.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use hapax_core::{Config, Configure, QueueName};

    use super::*;

    #[test]
    fn time_is_not_ahead_of_the_wall_clock_after_many_crashes() {
        let directory = tempfile::tempdir().unwrap();
        for crash in 0..4 {
            let mut local = Local::open(directory.path()).unwrap();
            let time = local.clock.now(now(), 0);
            assert!(time <= now(), "{} ms ahead", time.since(now()));
            let queue = QueueName::new("demo", &format!("queue-{crash}")).unwrap();
            let configure = Configure { queue, config: Config::default(), if_version: None };
            local.call(vec![Command::Configure(Box::new(configure))]).unwrap();
            drop(local); // It is not closed, as when it is killed.
        }
    }
}
