//! The OpenAPI document, made from the handlers and the shapes they take and give.

use std::sync::OnceLock;

use hapax_wire::json;
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
    let problem = Ref::from_schema_name(<json::Problem<'_> as utoipa::ToSchema>::name());
    let content = ContentBuilder::new().schema(Some(problem)).build();
    ResponseBuilder::new()
        .description("Refused: `code` tells why, `/errors/{code}` explains it")
        .content("application/problem+json", content)
        .build()
}
