//! The bounds of parameters and fields, from the limits by which the broker refuses them. Lengths
//! of texts are limited in bytes, and described in characters: for ASCII that is the same. A limit
//! to which larger values are reduced instead of refused is not a bound here.

use hapax_core::{Config, What, limits};
use hapax_wire as wire;
use serde_json::Value;
use utoipa::Number;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Array, ArrayItems, KnownFormat, Object, Schema, SchemaFormat};

use super::{Schemas, without_null};

/// The allowed values.
enum Bound {
    /// A text with a length in characters.
    Text(usize, usize),
    /// The name of a queue.
    Name,
    /// A number within bounds.
    Number(u64, u64),
    /// A number that has no upper bound.
    Least(u64),
    /// A list with a number of items.
    Items(usize, usize),
    /// An object with a number of fields.
    Fields(usize, usize),
    /// One of these words.
    Words(Vec<&'static str>),
}

use Bound::{Fields, Items, Least, Name, Text, Words};

const KEY: Bound = Text(1, limits::KEY_BYTES_MAX);
const GROUP: Bound = Text(1, limits::GROUP_BYTES_MAX);
const CONTENT_TYPE: Bound = Text(0, limits::CONTENT_TYPE_BYTES_MAX);
const FINGERPRINT: Bound = Text(1, limits::FINGERPRINT_BYTES_MAX);
const DELAY: Bound = Bound::Number(0, limits::DELAY_MS_MAX);
const LEASE: Bound = Bound::Number(limits::LEASE_MS_MIN, limits::LEASE_MS_MAX);
const HEADERS: Bound = Fields(0, limits::HEADERS_MAX);
const STATUS: Bound = Bound::Number(400, 599);

fn of_parameter(name: &str) -> Option<Bound> {
    Some(match name {
        "queue" => Name,
        "key" => KEY,
        // Quoted, and with every character escaped.
        "Idempotency-Key" => Text(1, 2 * limits::KEY_BYTES_MAX + 2),
        "hapax-group" => GROUP,
        "hapax-fingerprint" => FINGERPRINT,
        "hapax-delay-ms" => DELAY,
        "hapax-ttl-ms" => Least(1),
        "hapax-lease-ms" => LEASE,
        "hapax-worker" => Text(0, limits::WORKER_BYTES_MAX),
        "hapax-claim-id" => Text(1, limits::CLAIM_ID_BYTES_MAX),
        "id" => Text(1, limits::REDRIVE_ID_BYTES_MAX),
        "limit" => Bound::Number(1, limits::BROWSE_MAX as u64),
        "state" => Words(vec!["ready", "delayed", "leased", "parked", "dead"]),
        "code" => Words(wire::Code::ALL.iter().map(|code| code.as_str()).collect()),
        _ => return None,
    })
}

fn of_field(schema: &str, field: &str) -> Option<Bound> {
    Some(match (schema, field) {
        ("Message" | "Emit", "key") => KEY,
        ("Message" | "Emit" | "Redrive" | "RedriveFilter", "group") => GROUP,
        ("Message" | "Emit" | "Blob", "content_type") => CONTENT_TYPE,
        ("Message" | "Emit", "fingerprint") => FINGERPRINT,
        ("Message" | "Emit" | "SettleItem", "delay_ms") => DELAY,
        ("Message" | "Emit", "ttl_ms") => Least(1),
        ("Message" | "Emit", "headers") => HEADERS,
        ("Emit", "queue") => Name,
        ("Emit", "name") => Text(0, limits::EMIT_NAME_BYTES_MAX),
        ("Batch", "messages") => Items(0, wire::BATCH_MAX),
        ("Receive", "max") => Bound::Number(1, limits::RECEIVE_MAX.into()),
        ("Receive" | "SettleItem", "lease_ms") => LEASE,
        ("Receive", "worker") => Text(0, limits::WORKER_BYTES_MAX),
        ("Receive", "receive_id") => Text(1, limits::RECEIVE_ID_BYTES_MAX),
        ("Settle", "items") => Items(0, wire::SETTLE_MAX),
        ("SettleItem", "emit") => Items(0, wire::EMIT_MAX),
        ("SettleItem", "name") => Text(1, limits::RECOVERY_POINT_NAME_BYTES_MAX),
        ("Redrive", "id") => Text(1, limits::REDRIVE_ID_BYTES_MAX),
        ("Redrive", "keys") => Items(1, limits::REDRIVE_KEYS_MAX),
        ("Redrive", "per_s") => Bound::Number(1, u32::MAX.into()),
        ("RedriveFilter", "error_contains") => Text(0, limits::ERROR_BYTES_MAX),
        ("HistoryEvent", "event") => Words(What::ALL.iter().map(|what| what.as_str()).collect()),
        ("Problem" | "ErrorPage", "status") => STATUS,
        ("QueueConfig", field) => {
            let bounds = Config::default().bounds();
            let (.., min, max) = bounds.into_iter().find(|(name, ..)| *name == field)?;
            Bound::Number(min, max)
        }
        _ => return None,
    })
}

/// Sets the bounds of every field.
pub(super) fn set_in_schemas(schemas: &mut Schemas) {
    for (name, schema) in schemas {
        let RefOr::T(schema) = schema else { continue };
        widen(schema);
        let Schema::Object(object) = schema else { continue };
        for (field, property) in &mut object.properties {
            if let (RefOr::T(property), Some(bound)) = (property, of_field(name, field)) {
                set(property, bound);
            }
        }
        if name == "RedriveFilter" {
            object.min_properties = Some(1);
        }
    }
}

/// Sets the bounds of the parameters of an operation.
pub(super) fn set_in_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let Some(schema) = &mut parameter.schema else { continue };
        // It is a text in a path, query or header.
        *schema = without_null(std::mem::take(schema));
        let RefOr::T(schema) = schema else { continue };
        widen(schema);
        if let Some(bound) = of_parameter(&parameter.name) {
            set(schema, bound);
        }
        let example = match parameter.name.as_str() {
            "queue" => "orders",
            "key" | "Idempotency-Key" => "order-42",
            _ => continue,
        };
        if let Schema::Object(object) = schema {
            object.examples = vec![Value::from(example)];
        }
    }
}

/// An unsigned number may be larger than the signed 32-bit one that it is described as.
fn widen(schema: &mut Schema) {
    match schema {
        Schema::Object(object) => {
            if object.format == Some(SchemaFormat::KnownFormat(KnownFormat::Int32)) {
                object.format = Some(SchemaFormat::KnownFormat(KnownFormat::Int64));
            }
            let properties = object.properties.values_mut();
            properties.filter_map(inline).for_each(widen);
        }
        Schema::Array(array) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                inline(items).into_iter().for_each(widen);
            }
        }
        Schema::OneOf(one_of) => one_of.items.iter_mut().filter_map(inline).for_each(widen),
        _ => {}
    }
}

fn inline(schema: &mut RefOr<Schema>) -> Option<&mut Schema> {
    match schema {
        RefOr::T(schema) => Some(schema),
        RefOr::Ref(_) => None,
    }
}

fn set(schema: &mut Schema, bound: Bound) {
    match (schema, bound) {
        (Schema::Object(object), bound) => set_in_object(object, bound),
        (Schema::Array(array), Items(min, max)) => set_in_array(array, min, max),
        _ => unreachable!("what has a bound is a value or a list"),
    }
}

fn set_in_array(array: &mut Array, min: usize, max: usize) {
    array.min_items = (min > 0).then_some(min);
    array.max_items = Some(max);
}

fn set_in_object(object: &mut Object, bound: Bound) {
    match bound {
        Text(min, max) => {
            object.min_length = (min > 0).then_some(min);
            object.max_length = Some(max);
        }
        Name => {
            let max = limits::QUEUE_NAME_BYTES_MAX;
            set_in_object(object, Text(1, max));
            object.pattern = Some("^[A-Za-z0-9._-]+$".to_owned());
        }
        Bound::Number(min, max) => {
            object.minimum = Some(Number::from(min as usize));
            object.maximum = Some(Number::from(max as usize));
        }
        Least(min) => object.minimum = Some(Number::from(min as usize)),
        Items(..) => unreachable!("a list is no object"),
        Fields(min, max) => {
            object.min_properties = (min > 0).then_some(min);
            object.max_properties = Some(max);
        }
        Words(words) => object.enum_values = Some(words.into_iter().map(Value::from).collect()),
    }
}
