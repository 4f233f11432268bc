//! The fields of a step. One that nobody asks for is an error: the runner would not do what the
//! case says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hapax_client::{Blob, Emit, Message};
use hapax_wire::Timestamp;
use serde_json::{Map, Value};

/// The fields of an object that were not taken yet.
#[derive(Debug)]
pub(crate) struct Arguments(Map<String, Value>);

impl Arguments {
    pub(crate) fn new(object: &Value) -> Self {
        Self(object.as_object().unwrap_or_else(|| panic!("{object} is no object")).clone())
    }

    /// A field; `null` where it is missing.
    pub(crate) fn take(&mut self, name: &str) -> Value {
        self.0.remove(name).unwrap_or_default()
    }

    pub(crate) fn text(&mut self, name: &str) -> String {
        self.text_if_given(name).unwrap_or_else(|| panic!("{name} is missing in {self:?}"))
    }

    pub(crate) fn text_if_given(&mut self, name: &str) -> Option<String> {
        match self.take(name) {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => panic!("{name}: {other} is no text"),
        }
    }

    pub(crate) fn number(&mut self, name: &str) -> Option<u64> {
        match self.take(name) {
            Value::Null => None,
            other => Some(other.as_u64().unwrap_or_else(|| panic!("{name}: {other}"))),
        }
    }

    pub(crate) fn duration(&mut self, name: &str) -> Option<Duration> {
        self.number(name).map(Duration::from_millis)
    }

    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.take(name).as_bool().unwrap_or_default()
    }

    pub(crate) fn list(&mut self, name: &str) -> Vec<Value> {
        match self.take(name) {
            Value::Null => Vec::new(),
            Value::Array(items) => items,
            other => panic!("{name}: {other} is no list"),
        }
    }

    /// `body`, or `body_base64`.
    pub(crate) fn body(&mut self) -> Vec<u8> {
        match (self.text_if_given("body"), self.text_if_given("body_base64")) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => STANDARD.decode(base64).unwrap(),
            (None, None) => Vec::new(),
            (Some(_), Some(_)) => panic!("two bodies"),
        }
    }

    pub(crate) fn result(&mut self) -> Option<Blob> {
        match self.take("result") {
            Value::Null => None,
            result => {
                let mut fields = Self::new(&result);
                let blob = Blob::new(fields.body());
                let content_type = fields.text_if_given("content_type").unwrap_or_default();
                fields.finish().unwrap();
                Some(blob.content_type(content_type))
            }
        }
    }

    /// The fields of a message.
    pub(crate) fn message(&mut self) -> Message {
        let mut message = Message::new(self.body());
        if let Some(key) = self.text_if_given("key") {
            message = message.key(key);
        }
        if let Some(content_type) = self.text_if_given("content_type") {
            message = message.content_type(content_type);
        }
        if let Some(group) = self.text_if_given("group") {
            message = message.group(group);
        }
        if let Some(fingerprint) = self.text_if_given("fingerprint") {
            message = message.fingerprint(fingerprint);
        }
        if let Some(delay) = self.duration("delay_ms") {
            message = message.delay(delay);
        }
        if let Some(ttl) = self.duration("ttl_ms") {
            message = message.ttl(ttl);
        }
        if let Some(at) = self.text_if_given("issued_at") {
            message = message.issued_at(time(&at));
        }
        let headers = self.take("headers");
        for (name, value) in headers.as_object().into_iter().flatten() {
            message = message.header(name, value.as_str().unwrap());
        }
        message
    }

    pub(crate) fn emits(&mut self) -> Vec<Emit> {
        let emits = self.list("emit").into_iter().map(|emit| {
            let mut fields = Self::new(&emit);
            let (queue, name) = (fields.text("queue"), fields.text("name"));
            let emit = Emit::new(queue, name, fields.message());
            fields.finish().unwrap();
            emit
        });
        emits.collect()
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("the runner does not know the field {name}")),
        }
    }
}

fn time(text: &str) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(Timestamp::parse(text).unwrap().0)
}
