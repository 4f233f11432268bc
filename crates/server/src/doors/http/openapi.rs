//! The OpenAPI document, generated from the handlers and their types.

use std::sync::OnceLock;

use hapax_wire as wire;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi};

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
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        let requirement = SecurityRequirement::new("token", Vec::<String>::new());
        document.security = Some(vec![requirement]);
        for (name, schema) in &mut components.schemas {
            add_parts(name, schema);
        }
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                let responses = &mut operation.responses.responses;
                responses.insert("default".to_owned(), RefOr::T(refused()));
            }
        }
    }
}

fn refused() -> Response {
    let problem = Ref::from_schema_name(<wire::Document<'_> as utoipa::ToSchema>::name());
    let content = ContentBuilder::new().schema(Some(problem)).build();
    ResponseBuilder::new()
        .description("Refused with an error `code`; `/errors/{code}` explains it")
        .content("application/problem+json", content)
        .build()
}

/// A body is one field of a shape and two of JSON: wherever there is `body`, `body_base64` may
/// stand in its place. And a key has the parts of its message without an object around them.
fn add_parts(name: &str, schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = schema else { return };
    let Some(body) = object.properties.get("body").cloned() else { return };
    if name == "Key" {
        let text = SchemaType::from_iter([Type::String, Type::Null]);
        let content_type = ObjectBuilder::new().schema_type(text).build();
        object.properties.insert("content_type".to_owned(), content_type.into());
    }
    if let RefOr::T(Schema::Object(mut base64)) = body {
        base64.content_encoding = "base64".to_owned();
        object.properties.insert("body_base64".to_owned(), Schema::Object(base64).into());
    }
}
