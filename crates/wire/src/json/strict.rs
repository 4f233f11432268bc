//! A deserializer that reads structs from objects with known fields only.
//!
//! Serde's derived types ignore unknown fields and accept an array in place of an object, with its
//! items as the fields in order. A request read like that may do something else than its caller
//! wrote. Here every struct, at any depth, must be an object all of whose fields are known. The
//! types need no attribute for it, so none can be forgotten.
//!
//! It also counts the members of lists and maps, at any depth. What a request holds in memory is
//! bounded by its bytes, and a member takes far more when it is read than its few bytes.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::blob::BASE64;
use crate::lean::{MEMBERS_MAX, Undecoded};
use crate::nearest::closest;
use crate::text::Text;

/// How many more members may be kept.
#[derive(Debug)]
pub(super) struct Members(Cell<usize>);

impl Members {
    pub(super) fn new() -> Self {
        Self(Cell::new(MEMBERS_MAX))
    }

    /// Counts a member, if there is another.
    fn take<T, E: Error>(&self, next: Option<T>) -> Result<Option<T>, E> {
        if next.is_some() {
            let left = self.0.get().checked_sub(1);
            self.0.set(left.ok_or_else(|| E::custom(Undecoded::TooMany))?);
        }
        Ok(next)
    }

    /// The next member is not kept, and does not count.
    fn skip(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Reads strictly from another deserializer.
pub(super) struct Strict<'m, D> {
    pub(super) inner: D,
    pub(super) members: &'m Members,
}

macro_rules! as_it_is {
    ($($method:ident($($name:ident: $kind:ty),*);)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V)
            -> Result<V::Value, D::Error>
        {
            self.inner.$method($($name,)* visitor)
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<'_, D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(Inside { visitor, fields: Some(fields), members: self.members })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_map(Inside { visitor, fields: None, members: self.members })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Inside { visitor, fields: None, members: self.members })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_seq(Inside { visitor, fields: None, members: self.members })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.members.skip();
        self.inner.deserialize_ignored_any(visitor)
    }

    as_it_is! {
        deserialize_any(); deserialize_bool(); deserialize_i8(); deserialize_i16();
        deserialize_i32(); deserialize_i64(); deserialize_u8(); deserialize_u16();
        deserialize_u32(); deserialize_u64(); deserialize_f32(); deserialize_f64();
        deserialize_char(); deserialize_str(); deserialize_string(); deserialize_bytes();
        deserialize_byte_buf(); deserialize_unit(); deserialize_identifier();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }
}

/// Wraps a visitor so that the contents of the value are read strictly too.
struct Inside<'m, V> {
    visitor: V,
    /// The fields of a struct; `None` for a map.
    fields: Option<&'static [&'static str]>,
    members: &'m Members,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Inside<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fields {
            Some(_) => f.write_str("an object"),
            None => self.visitor.expecting(f),
        }
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict { inner, members: self.members })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(Items { seq, members: self.members })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let Self { visitor, fields, members } = self;
        visitor.visit_map(Entries { map, fields, members, body: None, has_body: None })
    }
}

struct Items<'m, A> {
    seq: A,
    members: &'m Members,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        let next = self.seq.next_element_seed(Seed { seed, members: self.members })?;
        self.members.take(next)
    }

    fn size_hint(&self) -> Option<usize> {
        self.seq.size_hint()
    }
}

struct Entries<'de, 'm, A> {
    map: A,
    fields: Option<&'static [&'static str]>,
    members: &'m Members,
    /// The value of the last field, if that is a body.
    body: Option<Body<'de>>,
    /// The name of the field in which a body was given.
    has_body: Option<&'static str>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<'de, '_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(fields) = self.fields else {
            return self.members.take(self.map.next_key_seed(seed)?);
        };
        while let Some(name) = self.map.next_key::<Text<'de>>()? {
            let Some(field) = fields.iter().find(|field| **field == &*name) else {
                return Err(unknown(&name, fields));
            };
            if BODIES.contains(field) && !self.take_body(field)? {
                continue;
            }
            return seed.deserialize(StrDeserializer::new(field)).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        match self.body.take() {
            Some(body) => seed.deserialize(BodyDeserializer { body, error: PhantomData }),
            None => self.map.next_value_seed(Seed { seed, members: self.members }),
        }
    }
}

impl<'de, A: MapAccess<'de>> Entries<'de, '_, A> {
    /// Reads the value of a body before its name is passed on: one of the two fields may be `null`,
    /// which counts as absent. Returns whether there is a body.
    fn take_body(&mut self, field: &'static str) -> Result<bool, A::Error> {
        let given: Given<'de> = self.map.next_value()?;
        match (given, self.has_body) {
            (Given::Null, _) => return Ok(false),
            (_, Some(before)) if before != field => {
                return Err(A::Error::custom("give body or body_base64, not both"));
            }
            (Given::Text(text), _) if field == "body_base64" => {
                self.body = Some(Body::Base64(text))
            }
            (Given::Text(text), _) => self.body = Some(Body::Text(text)),
            (Given::Wrong(it), _) => self.body = Some(Body::Wrong(it)),
        }
        self.has_body = Some(field);
        Ok(true)
    }
}

/// The two names of a body.
const BODIES: [&str; 2] = ["body", "body_base64"];

/// The value in place of a body.
enum Given<'de> {
    Null,
    Text(Text<'de>),
    Wrong(Unexpected<'static>),
}

impl<'de> Deserialize<'de> for Given<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Given<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_unit<E>(self) -> Result<Given<'de>, E> {
                Ok(Given::Null)
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Given<'de>, E> {
                Ok(Given::Text(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Given<'de>, E> {
                Ok(Given::Text(text.to_owned().into()))
            }

            fn visit_bool<E>(self, it: bool) -> Result<Given<'de>, E> {
                Ok(Given::Wrong(Unexpected::Bool(it)))
            }

            fn visit_u64<E>(self, it: u64) -> Result<Given<'de>, E> {
                Ok(Given::Wrong(Unexpected::Unsigned(it)))
            }

            fn visit_i64<E>(self, it: i64) -> Result<Given<'de>, E> {
                Ok(Given::Wrong(Unexpected::Signed(it)))
            }

            fn visit_f64<E>(self, it: f64) -> Result<Given<'de>, E> {
                Ok(Given::Wrong(Unexpected::Float(it)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Given<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Given::Wrong(Unexpected::Seq))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Given::Wrong(Unexpected::Map))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// A body that was given.
enum Body<'de> {
    Text(Text<'de>),
    Base64(Text<'de>),
    Wrong(Unexpected<'static>),
}

struct BodyDeserializer<'de, E> {
    body: Body<'de>,
    error: PhantomData<E>,
}

impl<'de, E: Error> Deserializer<'de> for BodyDeserializer<'de, E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        match self.body {
            Body::Text(text) => visitor.visit_str(&text),
            Body::Base64(text) => match BASE64.decode(text.as_bytes()) {
                Ok(bytes) => visitor.visit_byte_buf(bytes),
                Err(_) => Err(E::custom("not base64")),
            },
            Body::Wrong(it) => Err(E::invalid_type(it, &visitor)),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
        ignored_any
    }
}

struct Seed<'m, T> {
    seed: T,
    members: &'m Members,
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<T::Value, D::Error> {
        self.seed.deserialize(Strict { inner, members: self.members })
    }
}

fn unknown<E: Error>(name: &str, fields: &[&'static str]) -> E {
    let shown: String = name.chars().take(64).collect();
    match closest(name, fields.iter().copied()) {
        Some(known) => E::custom(format_args!("unknown field {shown:?}: did you mean {known}?")),
        None if fields.is_empty() => {
            E::custom(format_args!("unknown field {shown:?}: no fields are allowed here"))
        }
        None => E::custom(format_args!(
            "unknown field {shown:?}: the known fields are {}",
            fields.join(", ")
        )),
    }
}
