//! Reads untrusted JSON: strictly, with bounds, and with errors that name the field.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::strict::{Members, Strict};
use crate::message::{BATCH_MAX, Batch, Message};
use crate::settle::{SETTLE_MAX, SettleItem, Settles};

/// The most bytes of the input that an error quotes.
const DETAIL_BYTES_MAX: usize = 400;

/// Why JSON cannot be read: the field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct BadJson {
    detail: String,
    /// The key of the message, in a batch.
    key: Option<String>,
}

/// Reads a value that may borrow from the JSON. Refuses unknown fields, duplicate fields and arrays
/// in place of objects.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, BadJson> {
    read_within(json, &Members::new())
}

/// As [`read`], where other values count for the same members.
fn read_within<'a, T: Deserialize<'a>>(json: &'a [u8], members: &Members) -> Result<T, BadJson> {
    from_slice(json, members).map_err(|error| {
        if !error.is_data() {
            return BadJson::new(format!("not valid JSON: {error}"));
        }
        // Only after an error, because tracking the path costs time.
        let again = &mut serde_json::Deserializer::from_slice(json);
        let members = &Members::new();
        match serde_path_to_error::deserialize::<_, T>(Strict { inner: again, members }) {
            Err(error) => {
                // A field that is refused by its name has no place in the path.
                let path = error.path().to_string();
                match path.trim_end_matches(['.', '?']) {
                    "" => BadJson::new(error.inner().to_string()),
                    path => BadJson::new(format!("{path}: {}", error.inner())),
                }
            }
            Ok(_) => BadJson::new(error.to_string()),
        }
    })
}

fn from_slice<'a, T: Deserialize<'a>>(
    json: &'a [u8],
    members: &Members,
) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let value = T::deserialize(Strict { inner: &mut json, members })?;
    json.end()?;
    Ok(value)
}

impl BadJson {
    fn new(detail: String) -> Self {
        let mut detail = plain(&detail);
        if detail.len() > DETAIL_BYTES_MAX {
            detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
            detail.push('…');
        }
        Self { detail, key: None }
    }

    /// The key of the message that cannot be read, if the key itself can.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

/// Rewords serde's errors, which name Rust types. The bounds of the field are not known here, and
/// those of its type would mislead.
fn plain(detail: &str) -> String {
    let expected = match detail.split_once("integer `") {
        Some((_, number)) if number.starts_with('-') => {
            ", expected a whole number that is not negative"
        }
        Some(_) if detail.contains("invalid value: integer") => ", which is too large",
        _ => ", expected a whole number",
    };
    // `ident` is the rest of true, false or null.
    let detail = detail.replace("expected ident", "expected value");
    detail.replace(", expected u32", expected).replace(", expected u64", expected)
}

/// Reads an item of a list. Its error has no line and column, which would be relative to the item.
fn read_item<'a, T: Deserialize<'a>>(item: &'a RawValue, members: &Members) -> Result<T, BadJson> {
    read_within(item.get().as_bytes(), members).map_err(|error| {
        let place = error.detail.rfind(" at line ");
        let detail = error.detail.get(..place.unwrap_or(error.detail.len())).unwrap_or_default();
        BadJson { detail: detail.to_owned(), key: error.key }
    })
}

/// A list of at most this many items; further ones are counted and dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize> {
    pub items: Vec<T>,
    pub beyond: usize,
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self { items: Vec::new(), beyond: 0 }
    }
}

impl<T, const MAX: usize> From<Vec<T>> for List<T, MAX> {
    fn from(items: Vec<T>) -> Self {
        Self { items, beyond: 0 }
    }
}

impl<T, const MAX: usize> Deref for List<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T: Serialize, const MAX: usize> Serialize for List<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.items.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Read<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut list = List::default();
                while list.items.len() < MAX {
                    match seq.next_element()? {
                        Some(item) => list.items.push(item),
                        None => return Ok(list),
                    }
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    list.beyond += 1;
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(Read(PhantomData))
    }
}

/// A list in which an invalid item does not affect the others.
pub type Tolerant<T, const MAX: usize> = List<Result<T, BadJson>, MAX>;

impl Batch {
    /// Reads a batch. An invalid message is an error in its place.
    pub fn read(json: &[u8]) -> Result<Tolerant<Message, BATCH_MAX>, BadJson> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            #[serde(borrow)]
            messages: List<&'a RawValue, BATCH_MAX>,
        }
        match from_slice::<Self>(json, &Members::new()) {
            Ok(batch) => Ok(fine(batch.messages)),
            Err(_) => {
                let (raw, members) = (read::<Raw<'_>>(json)?.messages, Members::new());
                let items = raw.items.iter().map(|item| {
                    let of_key = |error| BadJson { key: key_of(item.get()), ..error };
                    read_item(item, &members).map_err(of_key)
                });
                Ok(List { items: items.collect(), beyond: raw.beyond })
            }
        }
    }
}

/// The key of a message that is otherwise invalid.
fn key_of(json: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Keyed {
        key: String,
    }
    serde_json::from_str(json).ok().map(|Keyed { key }| key)
}

impl Settles {
    /// Reads settles. An invalid settle is an error in its place.
    pub fn read(json: &[u8]) -> Result<Tolerant<SettleItem, SETTLE_MAX>, BadJson> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            #[serde(borrow)]
            items: List<&'a RawValue, SETTLE_MAX>,
        }
        match from_slice::<Self>(json, &Members::new()) {
            Ok(settle) => Ok(fine(settle.items)),
            Err(_) => {
                let (raw, members) = (read::<Raw<'_>>(json)?.items, Members::new());
                let items = raw.items.iter().map(|item| read_item(item, &members));
                Ok(List { items: items.collect(), beyond: raw.beyond })
            }
        }
    }
}

fn fine<T, const MAX: usize>(list: List<T, MAX>) -> Tolerant<T, MAX> {
    List { items: list.items.into_iter().map(Ok).collect(), beyond: list.beyond }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::ReceiveRequest;

    #[test]
    fn an_error_names_the_field() {
        let error = read::<ReceiveRequest>(br#"{"max":10,"wait_ms":"long"}"#).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("wait_ms: invalid type: string \"long\""), "{said}");
        let said = read::<ReceiveRequest>(b"{\"max\":").unwrap_err().to_string();
        assert!(said.starts_with("not valid JSON: EOF"), "{said}");
        let said = read::<ReceiveRequest>(b"5").unwrap_err().to_string();
        assert!(said.starts_with("invalid type: integer `5`, expected an object"), "{said}");
    }

    #[test]
    fn a_wrong_number_is_refused_without_the_bounds_of_its_type() {
        let said = |max: &str| {
            let json = format!(r#"{{"max":{max}}}"#);
            read::<ReceiveRequest>(json.as_bytes()).unwrap_err().to_string()
        };
        let whole = "max: invalid type: floating point `3.0`, expected a whole number at line";
        assert!(said("3.0").starts_with(whole), "{}", said("3.0"));
        assert!(said("\"3\"").contains("string \"3\", expected a whole number at"));
        assert!(said("-1").contains("integer `-1`, expected a whole number that is not negative"));
        let large = "max: invalid value: integer `5000000000`, which is too large";
        assert!(said("5000000000").starts_with(large), "{}", said("5000000000"));
    }

    #[test]
    fn what_is_not_asked_for_is_refused_and_the_field_that_was_meant_is_named() {
        let said = |json: &str| read::<ReceiveRequest>(json.as_bytes()).unwrap_err().to_string();
        let typo = said(r#"{"max":1,"wait":5}"#);
        assert!(typo.starts_with(r#"unknown field "wait": did you mean wait_ms?"#), "{typo}");
        let other = said(r#"{"colour":1}"#);
        assert!(
            other.starts_with(r#"unknown field "colour": the known fields are max, wait_ms"#),
            "{other}"
        );
        assert!(said(r#"{"max":1,"max":1}"#).contains("duplicate field `max`"));
        assert!(said(r#"[5, 10]"#).starts_with("invalid type: sequence, expected an object"));
        assert!(said(r#"{"max":1} 5"#).contains("trailing characters"));
    }

    #[test]
    fn what_is_deep_inside_is_read_as_strictly() {
        let said = |item: &str| {
            let json = format!(r#"{{"items":[{item}]}}"#);
            Settles::read(json.as_bytes()).unwrap().items.remove(0).unwrap_err().to_string()
        };
        let item = said(r#"{"lease":"l","do":"fail","dealy_ms":5}"#);
        assert!(item.starts_with(r#"unknown field "dealy_ms": did you mean delay_ms?"#), "{item}");
        let emit = said(r#"{"lease":"l","do":"done","emit":[{"queue":"q","keys":"k"}]}"#);
        assert!(emit.starts_with(r#"emit[0]: unknown field "keys": did you mean key?"#), "{emit}");
        let result = said(r#"{"lease":"l","do":"done","result":["paid"]}"#);
        assert!(result.starts_with("result: invalid type: sequence"), "{result}");
        let twice = said(r#"{"lease":"l","do":"done","result":{"body":"a","body":"b"}}"#);
        assert!(twice.starts_with("result: duplicate field `body`"), "{twice}");
        assert!(said(r#"["l","done"]"#).starts_with("invalid type: sequence"));
        assert!(Settles::read(br#"{"items":[],"item":[]}"#).is_err());
        assert!(Settles::read(b"[[]]").is_err());
    }

    #[test]
    fn an_error_does_not_repeat_everything() {
        let json = format!(r#"{{"max":"{}"}}"#, "é".repeat(100_000));
        let said = read::<ReceiveRequest>(json.as_bytes()).unwrap_err().to_string();
        assert!(said.len() < 500, "{}", said.len());
    }

    #[test]
    fn one_bad_item_harms_no_neighbour() {
        let json = br#"{"messages":[{"key":"a"},{"key":"b","delay_ms":-1},7,{"key":"c"}]}"#;
        let batch = Batch::read(json).unwrap();
        let told: Vec<String> = batch
            .iter()
            .map(|item| match item {
                Ok(message) => message.key.clone().unwrap(),
                Err(error) => error.to_string(),
            })
            .collect();
        assert_eq!(told[0], "a");
        let negative =
            "delay_ms: invalid value: integer `-1`, expected a whole number that is not negative";
        assert_eq!(told[1], negative, "without a line and a column of the item");
        assert!(told[2].starts_with("invalid type: integer `7`"), "{}", told[2]);
        assert_eq!(told[3], "c");
    }

    #[test]
    fn what_is_beyond_a_list_is_counted_and_not_kept() {
        let json = format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(1_500));
        let batch = Batch::read(json.as_bytes()).unwrap();
        assert_eq!((batch.items.len(), batch.beyond), (1_000, 501));
    }

    #[test]
    fn members_of_all_items_are_bounded_together() {
        let emit = |headers: usize| {
            let headers: Vec<String> = (0..headers).map(|n| format!(r#""h{n}":"""#)).collect();
            format!(r#"{{"queue":"q","headers":{{{}}}}}"#, headers.join(","))
        };
        let emits = vec![emit(60); 64].join(",");
        let item = format!(r#"{{"lease":"l","do":"done","emit":[{emits}]}}"#);
        let read = |items: usize| {
            let json = format!(r#"{{"items":[{}]}}"#, vec![item.clone(); items].join(","));
            Settles::read(json.as_bytes()).unwrap()
        };
        assert!(read(16).iter().all(Result::is_ok));
        let many = read(40);
        let kept = many.iter().filter(|item| item.is_ok()).count();
        assert!((10..20).contains(&kept) && many.len() == 40, "{kept}");
        let said = many.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(said.contains("more than 65536 members"), "{said}");
    }

    #[test]
    fn nesting_does_not_exhaust_the_stack() {
        let deep = "[".repeat(1_000_000);
        assert!(read::<ReceiveRequest>(deep.as_bytes()).is_err());
        let other = format!(r#"{{"other":{deep}{},"max":3}}"#, "]".repeat(1_000_000));
        assert!(read::<ReceiveRequest>(other.as_bytes()).is_err());
        let item = format!(r#"{{"messages":[{{"body":{deep}{}}}]}}"#, "]".repeat(1_000_000));
        assert!(Batch::read(item.as_bytes()).unwrap()[0].is_err());
    }
}
