//! The OpenAPI document. The annotations of handlers and types describe what is specific to each.
//! What follows from the table of routes, the limits and the error codes is added here for all of
//! them: error responses ([`errors`]), bounds ([`bounds`]), and names for the variants of requests
//! and answers ([`variants`]).

mod bounds;
mod errors;
mod variants;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{
    AdditionalProperties, KnownFormat, Object, ObjectBuilder, Schema, SchemaFormat, SchemaType,
    Type,
};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, RefOr, Required, ServerBuilder};
use utoipa::{Modify, OpenApi};

use super::{Route, TABLE};

/// For requests whose content type is the caller's choice.
const ANY: &str = "*/*";
const BINARY: &str = "application/octet-stream";

/// Schemas of requests, in which unknown fields are refused.
const STRICT: [&str; 8] =
    ["Batch", "Blob", "Emit", "Message", "Purge", "Receive", "RedriveFilter", "Settle"];

/// The schemas of the document, by their names.
type Schemas = BTreeMap<String, RefOr<Schema>>;

/// The document as JSON, written once.
pub(super) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let document = super::Document::openapi();
        // A document of texts and numbers can be written.
        serde_json::to_string_pretty(&document).unwrap_or_default()
    })
}

/// What all operations have in common.
pub(super) struct Every;

impl Modify for Every {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let here = ServerBuilder::new().url("/");
        let here = here.description(Some("The broker that serves this document"));
        let local = ServerBuilder::new().url("http://127.0.0.1:4747");
        let local = local.description(Some("The default address"));
        document.servers = Some(vec![here.build(), local.build()]);
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        let requirement = SecurityRequirement::new("token", Vec::<String>::new());
        document.security = Some(vec![requirement]);
        let schemas = &mut components.schemas;
        for (name, schema) in schemas.iter_mut() {
            if let RefOr::T(Schema::Object(object)) = schema {
                complete(name, object);
            }
        }
        bounds::set_in_schemas(schemas);
        variants::name_all(schemas);
        components.responses = errors::shared();
        for route in TABLE {
            let item = document.paths.paths.get_mut(route.path);
            let Some(operation) = item.and_then(|item| operation(item, route)) else { continue };
            errors::describe(route, operation);
            bounds::set_in_parameters(operation);
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                describe_body(body, schemas);
            }
        }
    }
}

fn operation<'a>(item: &'a mut PathItem, route: &Route) -> Option<&'a mut Operation> {
    match route.method {
        "get" => item.get.as_mut(),
        "put" => item.put.as_mut(),
        "post" => item.post.as_mut(),
        "delete" => item.delete.as_mut(),
        _ => None,
    }
}

/// Completes the schema of an object. A body is one field in Rust and two in JSON: `body_base64`
/// may replace `body`.
fn complete(name: &str, object: &mut Object) {
    if let Some(RefOr::T(Schema::Object(body))) = object.properties.get("body").cloned() {
        let mut base64 = body;
        base64.content_encoding = "base64".to_owned();
        object.properties.insert("body_base64".to_owned(), Schema::Object(base64).into());
    }
    match name {
        // A key has the parts of its message without an object around them.
        "Key" => {
            let text = SchemaType::from_iter([Type::String, Type::Null]);
            let content_type = ObjectBuilder::new().schema_type(text).build();
            object.properties.insert("content_type".to_owned(), content_type.into());
        }
        "Changed" => variants::tag(object, "answer", "ok"),
        "Claimed" => variants::tag(object, "answer", "fresh"),
        name if STRICT.contains(&name) => refuse_others(object),
        _ => {}
    }
}

fn refuse_others(object: &mut Object) {
    object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
}

/// The schema of a value that cannot be `null`.
fn without_null(schema: RefOr<Schema>) -> RefOr<Schema> {
    let is_null = |schema: &RefOr<Schema>| match schema {
        RefOr::T(Schema::Object(object)) => object.schema_type == Type::Null.into(),
        _ => false,
    };
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            if let SchemaType::Array(types) = &object.schema_type
                && let Some(kind) = types.iter().find(|kind| **kind != Type::Null)
            {
                object.schema_type = kind.clone().into();
            }
            Schema::Object(object).into()
        }
        RefOr::T(Schema::Array(mut array)) => {
            array.schema_type = Type::Array.into();
            Schema::Array(array).into()
        }
        RefOr::T(Schema::OneOf(one_of)) => {
            let mut items = one_of.items.into_iter().filter(|item| !is_null(item));
            items.next().unwrap_or_default()
        }
        other => other,
    }
}

/// A message is bytes of any content type. JSON is optional if an empty object is valid.
fn describe_body(body: &mut RequestBody, schemas: &Schemas) {
    if body.content.contains_key(ANY) {
        let bytes = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        let content = ContentBuilder::new().schema(Some(bytes)).build();
        for kind in [BINARY, ANY] {
            body.content.insert(kind.to_owned(), content.clone().into());
        }
        body.required = Some(Required::False);
        return;
    }
    let named = body.content.values().find_map(|content| match content {
        RefOr::T(content) => match content.schema.as_ref()? {
            RefOr::Ref(reference) => reference.ref_location.rsplit('/').next(),
            RefOr::T(_) => None,
        },
        RefOr::Ref(_) => None,
    });
    let is_optional = match named.and_then(|name| schemas.get(name)) {
        Some(RefOr::T(Schema::Object(object))) => object.required.is_empty(),
        _ => false,
    };
    body.required = Some(if is_optional { Required::False } else { Required::True });
}
