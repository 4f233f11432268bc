//! Processor time, of this process and of the broker's.

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

/// Microseconds so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) client_us: f64,
    /// Where the broker's process is known.
    pub(super) server_us: Option<f64>,
}

impl Times {
    pub(super) fn now(server: Option<u32>) -> Self {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let client_us = own.tv_sec as f64 * 1e6 + own.tv_nsec as f64 / 1e3;
        Self { client_us, server_us: server.and_then(of_process) }
    }

    pub(super) fn since(self, before: Self) -> Self {
        let server = self.server_us.zip(before.server_us);
        Self {
            client_us: self.client_us - before.client_us,
            server_us: server.map(|(after, before)| after - before),
        }
    }
}

/// User and system time of a process, as /proc tells them: fields 14 and 15, of which 12 follow
/// the name, which may itself hold anything.
fn of_process(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) * 1e6 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_of_this_process_agree() {
        let pid = Some(std::process::id());
        let before = Times::now(pid);
        let mut sum = 0u64;
        while Times::now(pid).since(before).client_us < 300_000.0 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let spent = Times::now(pid).since(before);
        let told = spent.server_us.unwrap();
        assert!((told - spent.client_us).abs() < 150_000.0, "{spent:?}");
        assert!(of_process(u32::MAX).is_none());
    }
}
