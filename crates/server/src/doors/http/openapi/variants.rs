//! The variants of requests and answers, each with a name, and a discriminator where one field
//! says which it is.

use hapax_wire::settle;
use serde_json::Value;
use utoipa::openapi::schema::{Discriminator, Object, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{Ref, RefOr};

use super::{Schemas, refuse_others, without_null};

/// What each verb of a settle means.
const VERBS: [(&str, &str); 7] = [
    ("done", "The message is done. The result and the emits are stored in one step."),
    ("fail", "The attempt failed: the message is tried again later, or is dead."),
    ("release", "Gives the message back; the attempt is not counted."),
    ("extend", "Lets the lease end later."),
    ("begin", "An effect that must not be repeated begins."),
    ("save", "Stores a recovery point, which the next attempt receives."),
    (
        "park",
        "The effect is in doubt: a begun message of a parking queue is parked, else it fails.",
    ),
];

/// Names the variants of all schemas that have some.
pub(super) fn name_all(schemas: &mut Schemas) {
    name(schemas, "Answer", "answer");
    name(schemas, "Settled", "answer");
    let verbs = VERBS.map(|(verb, description)| {
        let fields = settle::FIELDS.iter().filter(|(_, verbs)| verbs.contains(&verb));
        let mut fields: Vec<&str> = fields.map(|(field, _)| *field).collect();
        fields.push("lease");
        if verb == "save" {
            fields.push("body_base64");
        }
        let needed = if verb == "save" { &["lease", "name"][..] } else { &["lease"] };
        Variant { tag: Some(("do", verb)), suffix: verb, description, fields, needed }
    });
    split(schemas, "SettleItem", "Settle", verbs);
    let verbs = [
        ("done", "The effect has happened.", vec!["result"]),
        ("retry", "It has not: the message is tried again.", vec![]),
    ];
    let verbs = verbs.map(|(verb, description, fields)| {
        let tag = Some(("do", verb));
        Variant { tag, suffix: verb, description, fields, needed: &[] }
    });
    split(schemas, "Resolve", "Resolve", verbs);
    let common = ["id", "dry_run", "per_s"];
    let ways = [
        ("keys", "Redrives the messages with these keys.", &["keys", "group"][..], &["keys"][..]),
        ("matches", "Redrives the messages that match.", &["filter"], &["filter"]),
        ("all", "Redrives all dead messages.", &["all"], &["all"]),
    ];
    let ways = ways.map(|(suffix, description, fields, needed)| {
        let fields = common.iter().chain(fields).copied().collect();
        Variant { tag: None, suffix, description, fields, needed }
    });
    split(schemas, "Redrive", "Redrive", ways);
    if let Some(RefOr::T(Schema::Object(all))) = schemas.get_mut("RedriveAll")
        && let Some(RefOr::T(Schema::Object(all))) = all.properties.get_mut("all")
    {
        all.enum_values = Some(vec![Value::from(true)]);
    }
}

/// Adds the field that says what an object is.
pub(super) fn tag(object: &mut Object, field: &str, value: &str) {
    let values = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([value]));
    object.properties.insert(field.to_owned(), values.build().into());
    if !object.required.iter().any(|it| it == field) {
        object.required.insert(0, field.to_owned());
    }
}

/// Gives the variants of a tagged schema names.
fn name(schemas: &mut Schemas, parent: &str, field: &str) {
    let Some(RefOr::T(Schema::OneOf(one_of))) = schemas.get_mut(parent) else { return };
    let mut discriminator = Discriminator::new(field);
    let mut named = Vec::new();
    for item in &mut one_of.items {
        let Some(value) = tag_of(item, field) else { continue };
        let name = format!("{parent}{}", pascal(&value));
        let reference = Ref::from_schema_name(&name);
        discriminator.mapping.insert(value, reference.ref_location.clone());
        named.push((name, std::mem::replace(item, reference.into())));
    }
    one_of.discriminator = Some(discriminator);
    schemas.extend(named);
}

/// The value of the tag, where a schema allows one only.
fn tag_of(schema: &RefOr<Schema>, field: &str) -> Option<String> {
    let RefOr::T(Schema::Object(object)) = schema else { return None };
    let RefOr::T(Schema::Object(tag)) = object.properties.get(field)? else { return None };
    match tag.enum_values.as_deref() {
        Some([Value::String(value)]) => Some(value.clone()),
        _ => None,
    }
}

/// One of the forms that a request may have.
struct Variant {
    /// The field that names it, and its value.
    tag: Option<(&'static str, &'static str)>,
    suffix: &'static str,
    description: &'static str,
    fields: Vec<&'static str>,
    needed: &'static [&'static str],
}

/// Replaces a schema that has the fields of all variants by one schema for each.
fn split(
    schemas: &mut Schemas,
    parent: &str,
    prefix: &str,
    variants: impl IntoIterator<Item = Variant>,
) {
    let Some(RefOr::T(Schema::Object(whole))) = schemas.remove(parent) else { return };
    let mut one_of = OneOfBuilder::new().description(whole.description.clone());
    let mut discriminator = None;
    for variant in variants {
        let name = format!("{prefix}{}", pascal(variant.suffix));
        let mut object = whole.clone();
        object.properties.retain(|field, _| variant.fields.contains(&field.as_str()));
        for field in variant.needed {
            if let Some(property) = object.properties.get_mut(*field) {
                *property = without_null(std::mem::take(property));
            }
        }
        object.required = variant.needed.iter().map(|field| (*field).to_owned()).collect();
        object.description = Some(variant.description.to_owned());
        refuse_others(&mut object);
        let reference = Ref::from_schema_name(&name);
        if let Some((field, value)) = variant.tag {
            tag(&mut object, field, value);
            let discriminator = discriminator.get_or_insert_with(|| Discriminator::new(field));
            discriminator.mapping.insert(value.to_owned(), reference.ref_location.clone());
        }
        one_of = one_of.item(reference);
        schemas.insert(name, Schema::Object(object).into());
    }
    let one_of = one_of.discriminator(discriminator).build();
    schemas.insert(parent.to_owned(), Schema::OneOf(one_of).into());
}

/// `lease_lost` as `LeaseLost`.
fn pascal(text: &str) -> String {
    let words = text.split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    });
    words.collect()
}
