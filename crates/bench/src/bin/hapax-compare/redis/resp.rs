//! A connection to Redis that costs as little as possible: commands are appended to one buffer
//! and sent together, replies are read in order, piece by piece, into buffers of the caller.
//!
//! It blocks, and knows RESP2 only. A library would build a value for every reply; the peer's
//! core should not wait for that.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The minimum read size.
const READ_BYTES: usize = 256 << 10;

/// Timeout of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Commands that have not been sent.
    outgoing: Vec<u8>,
    /// Bytes that were read; `unread` of them are not parsed yet.
    incoming: Vec<u8>,
    unread: std::ops::Range<usize>,
}

impl Connection {
    pub(crate) fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { stream, outgoing: Vec::new(), incoming: vec![0; READ_BYTES], unread: 0..0 })
    }

    /// Starts a command with this number of arguments, including its name. They must follow.
    pub(crate) fn command(&mut self, arguments: usize) -> &mut Self {
        self.number(b'*', arguments);
        self
    }

    pub(crate) fn argument(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let bytes = bytes.as_ref();
        self.number(b'$', bytes.len());
        self.outgoing.extend_from_slice(bytes);
        self.outgoing.extend_from_slice(b"\r\n");
        self
    }

    /// A whole command of words.
    pub(crate) fn words(&mut self, words: &[&str]) -> &mut Self {
        self.command(words.len());
        for word in words {
            self.argument(word);
        }
        self
    }

    pub(crate) fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.outgoing)?;
        self.outgoing.clear();
        Ok(())
    }

    /// The length of the array that follows; none for a null.
    pub(crate) fn array(&mut self) -> Result<Option<usize>> {
        let length = self.header(b'*')?;
        Ok(usize::try_from(length).ok())
    }

    pub(crate) fn integer(&mut self) -> Result<u64> {
        u64::try_from(self.header(b':')?).context("a negative number")
    }

    /// Appends a string to `bytes`; returns false for a null.
    pub(crate) fn string(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let Ok(length) = usize::try_from(self.header(b'$')?) else { return Ok(false) };
        while self.unread.len() < length + 2 {
            self.fill(length + 2)?;
        }
        let text = self.incoming.get(self.unread.start..self.unread.start + length);
        bytes.extend_from_slice(text.context("a buffer that is too short")?);
        self.unread.start += length + 2;
        Ok(true)
    }

    /// A string that is not null, for commands that are sent once.
    pub(crate) fn text(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        ensure!(self.string(&mut bytes)?, "a null instead of a text");
        Ok(String::from_utf8(bytes)?)
    }

    /// `+OK` or the like.
    pub(crate) fn status(&mut self) -> Result<()> {
        self.line(b'+').map(drop)
    }

    fn number(&mut self, kind: u8, value: usize) {
        self.outgoing.push(kind);
        // Writing to a vector cannot fail.
        let _ = write!(self.outgoing, "{value}\r\n");
    }

    fn header(&mut self, kind: u8) -> Result<i64> {
        let line = self.line(kind)?;
        let mut digits = self.incoming.get(line).context("a line outside its buffer")?;
        let is_negative = digits.first() == Some(&b'-');
        if is_negative {
            digits = digits.get(1..).unwrap_or_default();
        }
        let mut value = 0i64;
        for digit in digits {
            ensure!(digit.is_ascii_digit(), "a reply of Redis is not understood");
            value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        }
        Ok(if is_negative { -value } else { value })
    }

    /// The place of a line without its kind and its end.
    fn line(&mut self, kind: u8) -> Result<std::ops::Range<usize>> {
        let mut looked_at = 0;
        let end = loop {
            let unread = self.incoming.get(self.unread.clone()).unwrap_or_default();
            let rest = unread.get(looked_at..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                break self.unread.start + looked_at + at;
            }
            looked_at = unread.len();
            self.fill(READ_BYTES)?;
        };
        let line = self.unread.start + 1..end.saturating_sub(1);
        let found = self.incoming.get(self.unread.start).copied();
        self.unread.start = end + 1;
        if found == Some(kind) {
            return Ok(line);
        }
        let text = String::from_utf8_lossy(self.incoming.get(line).unwrap_or_default());
        match found {
            Some(b'-') => bail!("Redis refused: {text}"),
            _ => bail!("a reply of Redis is not of the kind {}: {text}", char::from(kind)),
        }
    }

    /// Reads more, and makes room for `wanted` bytes first.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
        if self.incoming.len() - self.unread.start < wanted.max(READ_BYTES / 2) {
            self.incoming.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            if self.incoming.len() < wanted {
                self.incoming.resize(wanted * 2, 0);
            }
        }
        if self.unread.end == self.incoming.len() {
            self.incoming.resize(self.incoming.len() * 2, 0);
        }
        let room = self.incoming.get_mut(self.unread.end..).unwrap_or_default();
        let read = match self.stream.read(room) {
            Ok(0) => bail!("Redis closed the connection"),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(error).context("no reply from Redis"),
        };
        self.unread.end += read;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A connection on which these pieces arrive, each in a packet of its own.
    fn hear(pieces: Vec<Vec<u8>>) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connection = Connection::open(port).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        thread::spawn(move || {
            for piece in pieces {
                stream.write_all(&piece).unwrap();
            }
        });
        connection
    }

    #[test]
    fn replies_are_understood_however_they_are_cut() {
        let text = b"+OK\r\n:42\r\n*2\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n";
        let mut connection = hear(text.iter().map(|byte| vec![*byte]).collect());
        connection.status().unwrap();
        assert_eq!(connection.integer().unwrap(), 42);
        assert_eq!(connection.array().unwrap(), Some(2));
        assert_eq!(connection.text().unwrap(), "a\r\nbc");
        assert!(!connection.string(&mut Vec::new()).unwrap());
        assert_eq!(connection.array().unwrap(), None);
    }

    #[test]
    fn a_string_may_be_longer_than_the_buffer() {
        let body = vec![b'x'; 5 * READ_BYTES + 1];
        let head = format!("+OK\r\n${}\r\n", body.len()).into_bytes();
        let mut connection = hear(vec![head, body.clone(), b"\r\n:1\r\n".to_vec()]);
        connection.status().unwrap();
        let mut read = Vec::new();
        assert!(connection.string(&mut read).unwrap());
        assert!(read == body);
        assert_eq!(connection.integer().unwrap(), 1);
    }

    #[test]
    fn a_refusal_and_a_surprise_are_errors() {
        let mut connection = hear(vec![b"-ERR no\r\n:1\r\n".to_vec()]);
        assert_eq!(connection.status().unwrap_err().to_string(), "Redis refused: ERR no");
        assert!(connection.status().is_err());
        assert!(connection.status().unwrap_err().to_string().contains("closed"));
    }
}
