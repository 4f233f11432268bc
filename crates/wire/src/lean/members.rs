//! Counts the members of a request before it is decoded.
//!
//! The bytes of a request are what the broker admits to memory. An empty member of a list takes two
//! bytes on the wire and a hundred times as much when it is decoded, so that members are bounded
//! too, at any depth: those of lists and maps, and messages inside of messages. Which fields those
//! are comes from the descriptors of the `.proto`, so that no list can be forgotten.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::read::{Fields, Malformed, Value};
use crate::proto::DESCRIPTORS;

/// The most members of one request. A batch of 1,000 messages with 64 headers each has fewer.
pub const MEMBERS_MAX: usize = 65_536;

/// Why a request is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecoded {
    #[error(
        "the request has more than {MEMBERS_MAX} members: those of all its lists and maps together"
    )]
    TooMany,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Checks the members of a request by its name, such as `hapax.v1.SendFrame`. Messages that are
/// not requests are not bounded.
pub fn check_members(name: &str, request: &[u8]) -> Result<(), Undecoded> {
    // Each takes two bytes at least, so that most requests need not be counted. The numbers of a
    // packed list take one, and eight in memory.
    if request.len() <= 2 * MEMBERS_MAX || !SHAPES.requests.contains(name) {
        return Ok(());
    }
    let mut left = MEMBERS_MAX;
    SHAPES.count(name, request, &mut left)
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
    let shapes = Shapes::read(DESCRIPTORS);
    #[expect(clippy::expect_used, reason = "a test reads the same bytes")]
    shapes.expect("the descriptors are those of the .proto")
});

/// Which fields of which messages are members.
#[derive(Debug, Default)]
struct Shapes {
    messages: HashMap<String, HashMap<u64, Field>>,
    /// The requests of all calls and streams.
    requests: HashSet<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Field {
    /// A message of this name, once or in a list.
    Message(String),
    /// A list of texts, bytes or numbers.
    List,
}

impl Shapes {
    /// Reads a `FileDescriptorSet`.
    fn read(descriptors: &[u8]) -> Result<Self, Malformed> {
        let mut shapes = Self::default();
        for file in nested(descriptors, 1)? {
            let package = text(file, 2)?;
            for message in nested(file, 4)? {
                shapes.add(&package, message)?;
            }
            for service in nested(file, 6)? {
                for method in nested(service, 2)? {
                    shapes.requests.insert(plain(&text(method, 2)?));
                }
            }
        }
        Ok(shapes)
    }

    /// Adds a `DescriptorProto`, and those inside of it: the entries of maps.
    fn add(&mut self, scope: &str, message: &[u8]) -> Result<(), Malformed> {
        const REPEATED: u64 = 3;
        const MESSAGE: u64 = 11;
        let name = format!("{scope}.{}", text(message, 1)?);
        let mut fields = HashMap::new();
        for field in nested(message, 2)? {
            let number = number(field, 3)?;
            if self::number(field, 5)? == MESSAGE {
                fields.insert(number, Field::Message(plain(&text(field, 6)?)));
            } else if self::number(field, 4)? == REPEATED {
                fields.insert(number, Field::List);
            }
        }
        for inner in nested(message, 3)? {
            self.add(&name, inner)?;
        }
        self.messages.insert(name, fields);
        Ok(())
    }

    fn count(&self, name: &str, message: &[u8], left: &mut usize) -> Result<(), Undecoded> {
        let Some(known) = self.messages.get(name) else { return Ok(()) };
        let mut fields = Fields::new(message);
        while let Some((number, value)) = fields.next()? {
            let Some(field) = known.get(&number) else { continue };
            *left = left.checked_sub(1).ok_or(Undecoded::TooMany)?;
            if let (Field::Message(inner), Value::Bytes(bytes)) = (field, value) {
                self.count(inner, bytes, left)?;
            }
        }
        Ok(())
    }
}

/// All values of a field that are bytes.
fn nested(message: &[u8], wanted: u64) -> Result<Vec<&[u8]>, Malformed> {
    let (mut fields, mut found) = (Fields::new(message), Vec::new());
    while let Some((number, value)) = fields.next()? {
        if let (true, Value::Bytes(bytes)) = (number == wanted, value) {
            found.push(bytes);
        }
    }
    Ok(found)
}

fn text(message: &[u8], wanted: u64) -> Result<String, Malformed> {
    let bytes = nested(message, wanted)?.pop().unwrap_or_default();
    String::from_utf8(bytes.to_vec()).map_err(|_| Malformed)
}

fn number(message: &[u8], wanted: u64) -> Result<u64, Malformed> {
    let (mut fields, mut found) = (Fields::new(message), 0);
    while let Some((number, value)) = fields.next()? {
        if let (true, Value::Number(it)) = (number == wanted, value) {
            found = it;
        }
    }
    Ok(found)
}

/// A descriptor names types with a dot in front.
fn plain(name: &str) -> String {
    name.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;

    fn check(name: &str, request: &impl prost::Message) -> Result<(), Undecoded> {
        check_members(&format!("hapax.v1.{name}"), &request.encode_to_vec())
    }

    #[test]
    fn every_list_of_every_request_is_known() {
        assert_eq!(SHAPES.requests.len(), 19, "{:?}", SHAPES.requests);
        for request in &SHAPES.requests {
            assert!(SHAPES.messages.contains_key(request), "{request}");
        }
        let lists = |name: &str| {
            let fields = &SHAPES.messages[&format!("hapax.v1.{name}")];
            let mut numbers: Vec<u64> = fields.keys().copied().collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(lists("SendFrame"), [2]);
        assert_eq!(lists("Message"), [6], "headers");
        assert_eq!(lists("Done"), [1, 2], "a result and emits");
        assert_eq!(lists("RedriveKeys"), [1]);
        assert_eq!(lists("Message.HeadersEntry"), [0; 0]);
    }

    #[test]
    fn members_are_counted_at_any_depth() {
        let done = |emits: usize| proto::Settle {
            verb: Some(proto::settle::Verb::Done(proto::Done {
                result: None,
                emits: vec![proto::Emit::default(); emits],
            })),
            ..Default::default()
        };
        let settles = |items| proto::SettleRequest { queue: "orders".to_owned(), items };
        // Each settle is one, and so is each `done` in it.
        assert_eq!(check("SettleRequest", &settles(vec![done(32_766); 2])), Ok(()));
        let many = settles(vec![done(32_766), done(32_767)]);
        assert_eq!(check("SettleRequest", &many), Err(Undecoded::TooMany));
        let header = |number: usize| (number.to_string(), String::new());
        let claim = |headers: usize| proto::ClaimRequest {
            headers: (0..headers).map(header).collect(),
            ..Default::default()
        };
        let claims = |claims| proto::ClaimsFrame { claims, ..Default::default() };
        assert_eq!(check("ClaimsFrame", &claims(vec![claim(32_767); 2])), Ok(()));
        let many = claims(vec![claim(32_767), claim(32_768)]);
        assert_eq!(check("ClaimsFrame", &many), Err(Undecoded::TooMany));
        let keys = proto::RedriveKeys { keys: vec![String::new(); 65_537], group: None };
        let select = Some(proto::redrive_request::Select::Keys(keys));
        let redrive = proto::RedriveRequest { select, ..Default::default() };
        assert_eq!(check("RedriveRequest", &redrive), Err(Undecoded::TooMany));
    }

    #[test]
    fn bytes_are_not_members_and_replies_are_not_bounded() {
        let body = proto::Message { body: vec![18; 1 << 20].into(), ..Default::default() };
        let frame = |messages| proto::SendFrame { queue: "orders".to_owned(), messages };
        assert_eq!(check("SendFrame", &frame(vec![body; 3])), Ok(()));
        let reply = proto::SendReply { answers: vec![proto::Answer::default(); 70_000] };
        assert_eq!(check("SendReply", &reply), Ok(()));
        let torn = [vec![0x12, 0x01], vec![0xff; 2 * MEMBERS_MAX]].concat();
        assert!(check_members("hapax.v1.SendFrame", &torn).is_err());
    }
}
