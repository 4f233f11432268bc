//! Reads messages as slices of their bytes.

use prost::Message as _;

use crate::message::HEADERS_MAX;
use crate::proto;

/// The bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame is not a message of this protocol")]
pub struct Malformed;

/// The fields of a message, in the order they were written.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A wire type that this protocol does not use.
    Other,
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next field and its number. Not an iterator, because every step can fail. Every field of
    /// every message is read by it, and its result is too large to be returned in registers.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "a step can fail, and then there is no next")]
    pub fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut self.0)?),
            2 => {
                let length = varint(&mut self.0)?;
                Value::Bytes(self.take(length)?)
            }
            1 => self.take(8).map(|_| Value::Other)?,
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return Err(Malformed),
        };
        if key >> 3 == 0 {
            return Err(Malformed);
        }
        Ok(Some((key >> 3, value)))
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[inline(always)]
fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let (first, rest) = bytes.split_first().ok_or(Malformed)?;
    if *first < 0x80 {
        *bytes = rest;
        return Ok(u64::from(*first));
    }
    long_varint(bytes)
}

fn long_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if place == 9 && *byte > 1 {
            return Err(Malformed); // More than 64 bits.
        }
        if *byte < 0x80 {
            *bytes = bytes.get(place + 1..).unwrap_or_default();
            return Ok(value);
        }
    }
    Err(Malformed)
}

pub(super) fn text(value: Value<'_>) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes(value)?).map_err(|_| Malformed)
}

pub(super) fn bytes(value: Value<'_>) -> Result<&[u8], Malformed> {
    match value {
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err(Malformed),
    }
}

pub(super) fn number(value: Value<'_>) -> Result<u64, Malformed> {
    match value {
        Value::Number(number) => Ok(number),
        _ => Err(Malformed),
    }
}

/// Truncates to 32 bits, as the generated types do.
fn short(value: Value<'_>) -> Result<u32, Malformed> {
    number(value).map(|number| number as u32)
}

/// Adds an entry of a map. Of several entries with the same name the last one counts. A map that
/// is too large for any message stays so, and gets no larger: each entry is compared with all.
pub(super) fn entry<'a>(
    value: Value<'a>,
    map: &mut Vec<(&'a str, &'a [u8])>,
) -> Result<(), Malformed> {
    let mut fields = Fields(bytes(value)?);
    if map.len() > HEADERS_MAX {
        return Ok(());
    }
    let (mut name, mut data) = ("", &[][..]);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => name = text(value)?,
            2 => data = bytes(value)?,
            _ => {}
        }
    }
    map.retain(|(known, _)| *known != name);
    map.push((name, data));
    Ok(())
}

/// Checks that the values of a map are texts.
pub(super) fn texts<'a>(
    map: Vec<(&'a str, &'a [u8])>,
) -> Result<Vec<(&'a str, &'a str)>, Malformed> {
    let texts = map.into_iter();
    texts.map(|(name, value)| Ok((name, text(Value::Bytes(value))?))).collect()
}

/// Adds a member of a list of numbers, or a part of the list that is packed.
pub(super) fn numbers(value: Value<'_>, list: &mut Vec<u64>) -> Result<(), Malformed> {
    match value {
        Value::Number(number) => list.push(number),
        Value::Bytes(mut packed) => {
            while !packed.is_empty() {
                list.push(varint(&mut packed)?);
            }
        }
        Value::Other => return Err(Malformed),
    }
    Ok(())
}

/// A `SendFrame`.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub queue: &'a str,
    fields: Fields<'a>,
}

impl<'a> Frame<'a> {
    pub fn read(frame: &'a [u8]) -> Result<Self, Malformed> {
        let mut queue = "";
        // The queue may be the last field; messages are skipped here.
        let mut fields = Fields(frame);
        while let Some((field, value)) = fields.next()? {
            if field == 1 {
                queue = text(value)?;
            }
        }
        Ok(Self { queue, fields: Fields(frame) })
    }

    /// The next message.
    #[expect(clippy::should_implement_trait, reason = "a step can fail, and then there is no next")]
    pub fn next(&mut self) -> Result<Option<Message<'a>>, Malformed> {
        while let Some((field, value)) = self.fields.next()? {
            if field == 2 {
                return Message::read(bytes(value)?).map(Some);
            }
        }
        Ok(None)
    }
}

/// A `Message`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    pub reference: u64,
    pub key: Option<&'a str>,
    pub body: &'a [u8],
    pub content_type: &'a str,
    pub group: Option<&'a str>,
    /// Checked to be UTF-8.
    pub headers: Vec<(&'a str, &'a str)>,
    pub delay_ms: Option<u64>,
    pub ttl_ms: Option<u64>,
    pub fingerprint: Option<&'a str>,
    pub issued_at_ms: Option<u64>,
}

impl<'a> Message<'a> {
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        let mut headers = Vec::new();
        let mut fields = Fields(message);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.reference = number(value)?,
                2 => read.key = Some(text(value)?),
                3 => read.body = bytes(value)?,
                4 => read.content_type = text(value)?,
                5 => read.group = Some(text(value)?),
                6 => entry(value, &mut headers)?,
                7 => read.delay_ms = Some(number(value)?),
                8 => read.ttl_ms = Some(number(value)?),
                9 => read.fingerprint = Some(text(value)?),
                10 => read.issued_at_ms = Some(number(value)?),
                _ => {}
            }
        }
        read.headers = texts(headers)?;
        Ok(read)
    }
}

impl<'a> From<&'a crate::Message> for Message<'a> {
    fn from(message: &'a crate::Message) -> Self {
        let headers = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Self {
            reference: message.r#ref,
            key: message.key.as_deref(),
            body: &message.body,
            content_type: &message.content_type,
            group: message.group.as_deref(),
            headers: headers.collect(),
            delay_ms: message.delay_ms,
            ttl_ms: message.ttl_ms,
            fingerprint: message.fingerprint.as_deref(),
            issued_at_ms: message.issued_at_ms,
        }
    }
}

/// A `WorkFrame`.
#[derive(Clone, Debug)]
pub struct WorkFrame<'a> {
    pub open: Option<proto::WorkOpen>,
    pub credit: u32,
    pub drain: bool,
    fields: Fields<'a>,
}

impl<'a> WorkFrame<'a> {
    pub fn read(frame: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self { open: None, credit: 0, drain: false, fields: Fields(frame) };
        let mut fields = Fields(frame);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => {
                    let open = proto::WorkOpen::decode(bytes(value)?);
                    read.open = Some(open.map_err(|_| Malformed)?);
                }
                2 => read.credit = short(value)?,
                4 => read.drain = number(value)? != 0,
                _ => {}
            }
        }
        Ok(read)
    }

    /// The next settle.
    #[expect(clippy::should_implement_trait, reason = "a step can fail, and then there is no next")]
    pub fn next(&mut self) -> Result<Option<Settle<'a>>, Malformed> {
        while let Some((field, value)) = self.fields.next()? {
            if field == 3 {
                return Settle::read(bytes(value)?).map(Some);
            }
        }
        Ok(None)
    }
}

/// A `Settle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settle<'a> {
    pub reference: u64,
    pub lease: &'a [u8],
    /// The number and the bytes of the verb.
    verb: Option<(u64, &'a [u8])>,
}

impl<'a> Settle<'a> {
    pub(super) fn read(settle: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        let mut fields = Fields(settle);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.reference = number(value)?,
                2 => read.lease = bytes(value)?,
                3..=9 => read.verb = Some((field, bytes(value)?)),
                _ => {}
            }
        }
        Ok(read)
    }

    /// Body and content type of the result, if the verb is a `done` without emits.
    #[expect(clippy::type_complexity, reason = "an optional pair in two wrappers")]
    pub fn plain_done(&self) -> Result<Option<Option<(&'a [u8], &'a str)>>, Malformed> {
        let Some((3, done)) = self.verb else { return Ok(None) };
        let mut result = None;
        let mut fields = Fields(done);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => {
                    let (mut body, mut content_type) = (&[][..], "");
                    let mut fields = Fields(bytes(value)?);
                    while let Some((field, value)) = fields.next()? {
                        match field {
                            1 => body = bytes(value)?,
                            2 => content_type = text(value)?,
                            _ => {}
                        }
                    }
                    result = Some((body, content_type));
                }
                2 => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(result))
    }

    /// The verb, whatever it is.
    pub fn verb(&self) -> Result<Option<proto::settle::Verb>, Malformed> {
        use proto::settle::Verb;
        let Some((number, bytes)) = self.verb else { return Ok(None) };
        let verb = match number {
            3 => proto::Done::decode(bytes).map(Verb::Done),
            4 => proto::Fail::decode(bytes).map(Verb::Fail),
            5 => proto::Release::decode(bytes).map(Verb::Release),
            6 => proto::Extend::decode(bytes).map(Verb::Extend),
            7 => proto::Begin::decode(bytes).map(Verb::Begin),
            8 => proto::Save::decode(bytes).map(Verb::Save),
            _ => proto::Park::decode(bytes).map(Verb::Park),
        };
        verb.map(Some).map_err(|_| Malformed)
    }
}

/// The answers of a `SendReply`.
#[derive(Clone, Copy, Debug)]
pub struct Answers<'a>(Fields<'a>);

impl<'a> Answers<'a> {
    pub fn new(reply: &'a [u8]) -> Self {
        Self(Fields(reply))
    }

    /// The next answer.
    #[expect(clippy::should_implement_trait, reason = "a step can fail, and then there is no next")]
    pub fn next(&mut self) -> Result<Option<Answer<'a>>, Malformed> {
        while let Some((field, value)) = self.0.next()? {
            if field == 1 {
                return Answer::read(bytes(value)?).map(Some);
            }
        }
        Ok(None)
    }
}

/// An `Answer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer<'a> {
    pub reference: u64,
    pub kind: i32,
    pub id: &'a [u8],
    pub state: i32,
    pub accepted_at_ms: u64,
    /// All bytes, for answers with more fields than these.
    whole: &'a [u8],
}

impl<'a> Answer<'a> {
    fn read(answer: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self { whole: answer, ..Self::default() };
        let mut fields = Fields(answer);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.reference = number(value)?,
                2 => read.kind = short(value)? as i32,
                3 => read.id = bytes(value)?,
                4 => read.state = short(value)? as i32,
                5 => read.accepted_at_ms = number(value)?,
                _ => {}
            }
        }
        Ok(read)
    }

    /// All fields.
    pub fn whole(&self) -> Result<proto::Answer, Malformed> {
        proto::Answer::decode(self.whole).map_err(|_| Malformed)
    }
}

/// A `WorkReply`.
#[derive(Clone, Debug)]
pub struct WorkReply<'a> {
    pub lost: Vec<u64>,
    pub closing: bool,
    pub lease_ms: Option<u64>,
    /// Set with the first deliveries of a stream, otherwise empty.
    pub tenant: &'a str,
    /// Set with the first deliveries of a stream: whether the group is part of derived keys.
    pub keys_per_group: bool,
    /// The remaining deliveries, and their number.
    deliveries: (Fields<'a>, usize),
    settled: (Fields<'a>, usize),
}

impl<'a> WorkReply<'a> {
    pub fn read(reply: &'a [u8]) -> Result<Self, Malformed> {
        let fields = Fields(reply);
        let mut read = Self {
            lost: Vec::new(),
            closing: false,
            lease_ms: None,
            tenant: "",
            keys_per_group: false,
            deliveries: (fields, 0),
            settled: (fields, 0),
        };
        let mut fields = fields;
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.deliveries.1 += 1,
                2 => read.settled.1 += 1,
                3 => numbers(value, &mut read.lost)?,
                4 => read.closing = number(value)? != 0,
                5 => read.lease_ms = Some(number(value)?),
                6 => read.tenant = text(value)?,
                7 => read.keys_per_group = number(value)? != 0,
                _ => {}
            }
        }
        Ok(read)
    }

    /// Number of remaining deliveries.
    pub fn deliveries(&self) -> usize {
        self.deliveries.1
    }

    pub fn next_delivery(&mut self) -> Result<Option<Delivery<'a>>, Malformed> {
        next_of(&mut self.deliveries, 1)?.map(Delivery::read).transpose()
    }

    pub fn next_settled(&mut self) -> Result<Option<SettleAnswer<'a>>, Malformed> {
        next_of(&mut self.settled, 2)?.map(SettleAnswer::read).transpose()
    }
}

/// The next field with this number, of which `left` remain.
pub(super) fn next_of<'a>(
    (fields, left): &mut (Fields<'a>, usize),
    wanted: u64,
) -> Result<Option<&'a [u8]>, Malformed> {
    while *left > 0
        && let Some((field, value)) = fields.next()?
    {
        if field == wanted {
            *left -= 1;
            return bytes(value).map(Some);
        }
    }
    Ok(None)
}

/// A `Delivery`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery<'a> {
    pub lease: &'a [u8],
    pub fence: u64,
    pub key: &'a str,
    pub id: &'a [u8],
    pub attempt: u32,
    pub generation: u32,
    pub group: &'a str,
    pub body: &'a [u8],
    pub content_type: &'a str,
    /// The bytes, not checked to be UTF-8.
    pub headers: Vec<(&'a str, &'a [u8])>,
    pub accepted_at_ms: u64,
    pub deadline_ms: u64,
    pub recovery_points: Vec<(&'a str, &'a [u8])>,
}

impl<'a> Delivery<'a> {
    fn read(delivery: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        let mut fields = Fields(delivery);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.lease = bytes(value)?,
                2 => read.fence = number(value)?,
                3 => read.key = text(value)?,
                4 => read.id = bytes(value)?,
                5 => read.attempt = short(value)?,
                6 => read.generation = short(value)?,
                7 => read.group = text(value)?,
                8 => read.body = bytes(value)?,
                9 => read.content_type = text(value)?,
                10 => entry(value, &mut read.headers)?,
                11 => read.accepted_at_ms = number(value)?,
                12 => read.deadline_ms = number(value)?,
                13 => entry(value, &mut read.recovery_points)?,
                _ => {}
            }
        }
        Ok(read)
    }
}

/// A `SettleAnswer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettleAnswer<'a> {
    pub reference: u64,
    pub kind: i32,
    pub state: i32,
    pub deadline_ms: Option<u64>,
    /// All bytes, for answers with more fields than these.
    whole: &'a [u8],
}

impl<'a> SettleAnswer<'a> {
    fn read(answer: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self { whole: answer, ..Self::default() };
        let mut fields = Fields(answer);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => read.reference = number(value)?,
                2 => read.kind = short(value)? as i32,
                3 => read.state = short(value)? as i32,
                4 => read.deadline_ms = Some(number(value)?),
                _ => {}
            }
        }
        Ok(read)
    }

    /// All fields.
    pub fn whole(&self) -> Result<proto::SettleAnswer, Malformed> {
        proto::SettleAnswer::decode(self.whole).map_err(|_| Malformed)
    }
}
