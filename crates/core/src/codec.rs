//! Encoding: varints, lengths, and a reader that refuses malformed input.
//!
//! Everything the core writes to a journal or a row goes through here. Numbers are LEB128 varints
//! unless noted; text and bytes are preceded by their length.

/// The bytes are not what this release writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBytes {
    #[error("the bytes end within {0}")]
    Short(&'static str),
    #[error("{0} has the unknown tag {1}")]
    Tag(&'static str, u8),
    #[error("{0} is out of range")]
    Bounds(&'static str),
    #[error("{0} bytes are left over")]
    LeftOver(usize),
}

/// Appends to a buffer. Implemented only for `Vec<u8>`; a trait for method syntax.
pub(crate) trait Write {
    fn u8(&mut self, value: u8);
    fn number(&mut self, value: u64);
    fn fixed(&mut self, bytes: &[u8]);
    fn bytes(&mut self, bytes: &[u8]);

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// The number plus one, or zero for none.
    fn optional(&mut self, value: Option<u64>) {
        self.number(value.map_or(0, |value| value.saturating_add(1)));
    }
}

impl Write for Vec<u8> {
    #[inline]
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    #[inline]
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    #[inline]
    fn fixed(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

/// Takes bytes from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, BadBytes> {
        let (first, rest) = self.rest.split_first().ok_or(BadBytes::Short(what))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self, what: &'static str) -> Result<u64, BadBytes> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            if shift == 63 && byte > 1 {
                return Err(BadBytes::Bounds(what));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(BadBytes::Bounds(what))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, BadBytes> {
        u32::try_from(self.number(what)?).map_err(|_| BadBytes::Bounds(what))
    }

    pub(crate) fn optional(&mut self, what: &'static str) -> Result<Option<u64>, BadBytes> {
        Ok(self.number(what)?.checked_sub(1))
    }

    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], BadBytes> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(BadBytes::Short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn fixed<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], BadBytes> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(BadBytes::Short(what))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], BadBytes> {
        let len = self.number(what)?;
        self.take(usize::try_from(len).map_err(|_| BadBytes::Bounds(what))?, what)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, BadBytes> {
        std::str::from_utf8(self.bytes(what)?).map_err(|_| BadBytes::Bounds(what))
    }

    /// A length that is about to be looped over; refused if the remaining bytes cannot hold it.
    pub(crate) fn count(&mut self, what: &'static str) -> Result<usize, BadBytes> {
        let count = self.number(what)?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.rest.len())
            .ok_or(BadBytes::Bounds(what))
    }

    pub(crate) fn end(self) -> Result<(), BadBytes> {
        if self.rest.is_empty() { Ok(()) } else { Err(BadBytes::LeftOver(self.rest.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_read_back_and_short_input_is_refused() {
        let mut buffer = Vec::new();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        for number in numbers {
            buffer.number(number);
        }
        buffer.text("größe");
        buffer.optional(None);
        buffer.optional(Some(7));
        for cut in 0..buffer.len() {
            let mut reader = Reader::new(&buffer[..cut]);
            let all = (|| {
                for _ in numbers {
                    reader.number("n")?;
                }
                reader.text("t")?;
                reader.optional("o")?;
                reader.optional("o")
            })();
            assert!(all.is_err(), "cut at {cut}");
        }
        let mut reader = Reader::new(&buffer);
        for number in numbers {
            assert_eq!(reader.number("n"), Ok(number));
        }
        assert_eq!(reader.text("t"), Ok("größe"));
        assert_eq!(reader.optional("o"), Ok(None));
        assert_eq!(reader.optional("o"), Ok(Some(7)));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_number_beyond_64_bits_is_refused() {
        let mut reader = Reader::new(&[0xff; 11]);
        assert_eq!(reader.number("n"), Err(BadBytes::Bounds("n")));
    }
}
