//! The states of a message.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum State {
    /// Missing, or unknown to this release.
    Unspecified = 0,
    Ready = 1,
    Delayed = 2,
    Leased = 3,
    Parked = 4,
    Dead = 5,
    Done = 6,
    Discarded = 7,
}

impl State {
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::Delayed,
        Self::Leased,
        Self::Parked,
        Self::Dead,
        Self::Done,
        Self::Discarded,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unknown",
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Leased => "leased",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Done => "done",
            Self::Discarded => "discarded",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Reads the number of a protobuf field.
    pub fn of(number: i32) -> Self {
        Self::try_from(number).unwrap_or_default()
    }

    /// Whether a caller that waits for the end is answered: done, dead, discarded or parked.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Discarded | Self::Parked)
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl PartialSchema for State {
    fn schema() -> RefOr<Schema> {
        let names = Self::ALL.map(Self::as_str);
        let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names));
        schema.description(Some("Where a message is.")).build().into()
    }
}

impl ToSchema for State {
    fn name() -> Cow<'static, str> {
        "State".into()
    }
}
