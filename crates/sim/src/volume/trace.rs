//! A trace of the operations of a disk, so that two runs of one seed can be compared byte by byte.

use std::fmt::{Display, Write};
use std::io;

/// The first operations as lines, and a checksum over all of them.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// `number operation file offset length checksum result`, one operation each.
    pub lines: Vec<String>,
    /// Number of operations; lines beyond the bound are only added to the checksum.
    pub count: u64,
    /// The checksum of all lines, kept or not.
    pub checksum: u32,
    lines_max: usize,
}

/// An operation of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    pub(super) file: &'a str,
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// Whether it changes something, so that it may be interrupted.
    pub(super) changes: bool,
}

impl Trace {
    pub(super) fn new(lines_max: usize) -> Self {
        Self { lines_max, ..Self::default() }
    }

    pub(super) fn add(&mut self, call: &Call<'_>, result: &dyn Display) {
        self.count += 1;
        let mut line = format!("{} {} {}", self.count, call.operation, call.file);
        let written = if call.bytes.is_empty() {
            write!(line, " {} {result}", call.offset)
        } else {
            let checksum = crc32c::crc32c(call.bytes);
            write!(line, " {} {} {checksum:08x} {result}", call.offset, call.bytes.len())
        };
        debug_assert!(written.is_ok(), "a string takes everything");
        self.checksum = crc32c::crc32c_append(self.checksum, line.as_bytes());
        if self.lines.len() < self.lines_max {
            self.lines.push(line);
        }
    }
}

/// The result of a call as one word.
pub(super) fn word<T>(result: &io::Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}
