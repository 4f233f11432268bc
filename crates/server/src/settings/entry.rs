//! One declaration per setting: name, meaning, kind, default and bounds. Flag, variable, field of
//! the file, help, reference and `config show` all come from it.

use serde_json::Value;

use super::kind::{NONE, Takes};

/// One setting of an `S`.
pub struct Entry<S: 'static> {
    pub name: &'static str,
    /// Its meaning, as sentences.
    doc: &'static str,
    pub(super) takes: Takes,
    pub(super) nullable: bool,
    pub(super) placeholder: &'static str,
    pub(super) allowed: fn() -> String,
    pub(super) set: fn(&mut S, &str) -> Result<(), String>,
    pub(super) text: fn(&S) -> String,
    pub(super) json: fn(&S) -> Value,
}

/// A value as TOML or JSON has it, before anybody knows what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plain {
    Null,
    Boolean(bool),
    Integer(i128),
    Text(String),
    /// Anything else, by the name of its type.
    Other(&'static str),
}

impl<S> Entry<S> {
    pub(super) const fn new(name: &'static str, doc: &'static str, parts: Parts<S>) -> Self {
        let Parts { takes, nullable, placeholder, allowed, set, text, json } = parts;
        Self { name, doc, takes, nullable, placeholder, allowed, set, text, json }
    }

    /// Its meaning, as sentences.
    pub fn doc(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    pub fn variable(&self) -> String {
        format!("HAPAX_{}", self.name.to_ascii_uppercase())
    }

    /// Takes a value out of a file, where a number is not a text.
    pub(super) fn assign(&self, to: &mut S, value: &Plain) -> Result<(), String> {
        let text = match (self.takes, value) {
            (_, Plain::Null) if self.nullable => NONE.to_owned(),
            (Takes::Text | Takes::NumberOrText, Plain::Text(text)) => text.clone(),
            (Takes::Number | Takes::NumberOrText, Plain::Integer(number)) => number.to_string(),
            (Takes::Boolean, Plain::Boolean(truth)) => truth.to_string(),
            (Takes::Number, Plain::Text(text)) if text.parse::<u64>().is_ok() => {
                return Err(format!("\"{text}\" is a text: leave the quotes out"));
            }
            (Takes::Boolean, Plain::Text(text)) if text.parse::<bool>().is_ok() => {
                return Err(format!("\"{text}\" is a text: leave the quotes out"));
            }
            (_, value) => return Err(value.is_not_it()),
        };
        (self.set)(to, &text)
    }
}

/// What an [`Entry`] has of its kind.
pub(super) struct Parts<S> {
    pub(super) takes: Takes,
    pub(super) nullable: bool,
    pub(super) placeholder: &'static str,
    pub(super) allowed: fn() -> String,
    pub(super) set: fn(&mut S, &str) -> Result<(), String>,
    pub(super) text: fn(&S) -> String,
    pub(super) json: fn(&S) -> Value,
}

impl<S> std::fmt::Debug for Entry<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Plain {
    fn is_not_it(&self) -> String {
        match self {
            Self::Null => "null is none of its values".to_owned(),
            Self::Boolean(truth) => format!("{truth} is none of its values"),
            Self::Integer(number) => format!("the number {number} is none of its values"),
            Self::Text(text) => format!("the text {text:?} is none of its values"),
            Self::Other(kind) => format!("it is {kind}"),
        }
    }
}

impl From<&Value> for Plain {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(truth) => Self::Boolean(*truth),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::Integer(number.into()),
                (None, Some(number)) => Self::Integer(number.into()),
                (None, None) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {
                    Self::Other("a number beyond all bounds")
                }
                (None, None) => Self::Other("a number that is not whole"),
            },
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(_) => Self::Other("a list"),
            Value::Object(_) => Self::Other("an object"),
        }
    }
}

macro_rules! bounds {
    () => {
        None
    };
    ($bounds:expr) => {
        Some($bounds)
    };
}

/// Declares the entries of a struct that is there already.
macro_rules! entries {
    ($of:ty {
        $($(#[doc = $doc:literal])+ $name:ident: $kind:ty $(, within $bounds:expr)?;)+
    }) => {
        &[$({
            const BOUNDS: Option<$crate::settings::kind::Bounds> =
                $crate::settings::entry::bounds!($($bounds)?);
            $crate::settings::entry::Entry::new(
                stringify!($name),
                concat!($($doc),+),
                $crate::settings::entry::Parts {
                    takes: <$kind as $crate::settings::kind::Kind>::TAKES,
                    nullable: <$kind as $crate::settings::kind::Kind>::NULLABLE,
                    placeholder: <$kind as $crate::settings::kind::Kind>::PLACEHOLDER,
                    allowed: || <$kind as $crate::settings::kind::Kind>::allowed(BOUNDS),
                    set: |of: &mut $of, text| {
                        of.$name = $crate::settings::kind::Kind::parse(text, BOUNDS)?;
                        Ok(())
                    },
                    text: |of: &$of| $crate::settings::kind::Kind::text(&of.$name),
                    json: |of: &$of| $crate::settings::kind::Kind::json(&of.$name),
                },
            )
        }),+]
    };
}

/// Declares a struct, its defaults and its entries.
macro_rules! table {
    ($(#[$meta:meta])* $of:ident {
        $($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:expr
            $(, within $bounds:expr)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $of {
            $($(#[doc = $doc])+ pub $name: $kind,)+
        }

        impl Default for $of {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl $of {
            /// Its settings, in the order in which they are told.
            pub const TABLE: &[$crate::settings::entry::Entry<Self>] =
                $crate::settings::entry::entries!($of {
                    $($(#[doc = $doc])+ $name: $kind $(, within $bounds)?;)+
                });
        }
    };
}

pub(super) use {bounds, entries, table};
