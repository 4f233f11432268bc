//! What a test needs of the machine beyond a temporary directory: tools, mounts, memory caps. A
//! test that cannot have it says so in a line of its own and is over; with `HAPAX_FAULTS=all` in
//! the environment that is a failure.
//!
//! Nothing stays behind: mounts and groups end with their values, also when a test fails.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hapax_testing::{BrokerProcess, pause, printed};

/// Says a line past the test harness, which would keep that of a passing test to itself.
pub(crate) fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// Says that a row was not tested here.
pub(crate) fn skip(row: &str, why: &str) {
    let is_fatal = std::env::var_os("HAPAX_FAULTS").is_some_and(|value| value == "all");
    assert!(!is_fatal, "{row} cannot be tested here: {why}");
    say(&format!("SKIPPED {row}: {why}"));
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The full path of a program; those of administrators are looked for too.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    folders.map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// Runs a program to its end; what it said where it failed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let path = tool(program).ok_or_else(|| format!("{program} is not installed"))?;
    let output = Command::new(path).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(printed(&output)),
        false => Err(format!("{program}: {}", printed(&output).trim())),
    }
}

/// A file system of its own, until it is dropped.
#[derive(Debug)]
pub(crate) struct Mount {
    at: PathBuf,
    image: Option<PathBuf>,
    is_mounted: bool,
}

impl Mount {
    /// Memory, of this size.
    pub(crate) fn memory(at: &Path, mebibytes: u32) -> Result<Self, String> {
        must_be_root()?;
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let size = format!("size={mebibytes}m");
        run("mount", &["-t", "tmpfs", "-o", &size, "hapax-test", &at.display().to_string()])?;
        Ok(Self { at: at.to_owned(), image: None, is_mounted: true })
    }

    /// A disk of this size, in a file beside the mount.
    pub(crate) fn disk(at: &Path, mebibytes: u64) -> Result<Self, String> {
        must_be_root()?;
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let image = at.with_extension("image");
        let made = fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20));
        made.map_err(|error| error.to_string())?;
        // Nothing is written behind our back: the inode tables are made now.
        let options = "lazy_itable_init=0,lazy_journal_init=0";
        run("mkfs.ext4", &["-q", "-F", "-E", options, &image.display().to_string()])?;
        let mut mount = Self { at: at.to_owned(), image: Some(image), is_mounted: false };
        mount.mount()?;
        Ok(mount)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Mounts the disk again: it is recovered from its own journal.
    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let image = self.image.as_ref().ok_or("memory that is unmounted is gone")?;
        let (image, at) = (image.display().to_string(), self.at.display().to_string());
        run("mount", &["-o", "loop", &image, &at])?;
        self.is_mounted = true;
        Ok(())
    }

    pub(crate) fn unmount(&mut self) {
        let at = self.at.display().to_string();
        for _ in 0..500 {
            if !self.is_mounted || run("umount", &[&at]).is_ok() {
                self.is_mounted = false;
                return;
            }
            // Whoever used it has ended, and the kernel is not done with it yet.
            pause(Duration::from_millis(20));
        }
        let _ = run("umount", &["-l", &at]);
        self.is_mounted = false;
    }

    /// Cuts the power: what was not synced is lost, and every later write fails.
    pub(crate) fn cut_power(&self) -> Result<(), String> {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH.
        let script = "open(my $at, '<', $ARGV[0]) or die \"open: $!\"; \
                      my $flags = pack('L', 2); \
                      defined(ioctl($at, 0x8004587d, $flags)) or die \"ioctl: $!\";";
        run("perl", &["-e", script, &self.at.display().to_string()]).map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn must_be_root() -> Result<(), String> {
    if is_root() { Ok(()) } else { Err("needs root, to mount a file system".to_owned()) }
}

/// A group of processes with a cap on their memory, the kernel's caches for them included.
#[derive(Debug)]
pub(crate) struct Cap {
    group: PathBuf,
    is_second: bool,
}

impl Cap {
    pub(crate) fn new(bytes: u64) -> Result<Self, String> {
        if !is_root() {
            return Err("needs root, to make a control group".to_owned());
        }
        let name = format!("hapax-test-{}-{:x}", std::process::id(), fastrand::u32(..));
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let first = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
            let is_memory = options.split(',').any(|option| option == "memory");
            (kind == "cgroup" && is_memory).then(|| PathBuf::from(at))
        });
        let (group, is_second, file) = match first {
            Some(at) => (at.join(name), false, "memory.limit_in_bytes"),
            None => (Path::new("/sys/fs/cgroup").join(name), true, "memory.max"),
        };
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        let cap = Self { group, is_second };
        let limit = cap.group.join(file);
        fs::write(&limit, bytes.to_string())
            .map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(cap)
    }

    /// What runs a program inside: a shell that joins and becomes the program.
    pub(crate) fn wrapper(&self) -> [String; 3] {
        let procs = self.group.join("cgroup.procs");
        let join = format!("echo $$ > '{}' && exec \"$0\" \"$@\"", procs.display());
        ["sh".to_owned(), "-c".to_owned(), join]
    }

    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let file = if self.is_second { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.group.join(file)).ok()?.trim().parse().ok()
    }

    /// How often the kernel ended a process for want of memory.
    pub(crate) fn killed(&self) -> u64 {
        let file = if self.is_second { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.group.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        for _ in 0..500 {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            pause(Duration::from_millis(20));
        }
    }
}

/// Returns a line of what the kernel says of a broker, in bytes: `VmRSS:`, or `VmHWM:` for its
/// peak.
pub(crate) fn memory_bytes(broker: &BrokerProcess, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
    kib * 1_024
}

/// Counts the peak anew from here on.
pub(crate) fn forget_peak(broker: &BrokerProcess) {
    fs::write(format!("/proc/{}/clear_refs", broker.pid()), "5").unwrap();
}
