//! The error responses of operations. What a handler refuses for reasons of its own is in its
//! annotation; what is refused before it, or for every operation of a kind, is added here.

use std::collections::BTreeMap;

use hapax_wire as wire;
use utoipa::ToSchema;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use super::super::Route;
use super::super::access::Access;

const PROBLEM: &str = "application/problem+json";

/// A response that several operations have: status, name, description.
type Shared = (u16, &'static str, &'static str);

const SHARED: [Shared; 9] = [
    (400, "BadRequest", "`invalid`, `missing_key` or `malformed_key`: nothing was done"),
    (401, "Unauthorized", "`unauthorized`: a valid token is required"),
    (403, "Forbidden", "`forbidden`: the token does not allow this"),
    (404, "NotFound", "`no_such_queue` or `no_such_key`: there is no such queue, key or redrive"),
    (408, "RequestTimeout", "`unavailable`: the body of the request did not arrive in time"),
    (413, "ContentTooLarge", "`too_large`: the body of the request is above a limit"),
    (415, "UnsupportedMediaType", "`invalid`: the content type or encoding is not supported"),
    (500, "InternalServerError", "`internal`: the outcome is unknown; a retry is safe"),
    (503, "ServiceUnavailable", "`unavailable`: not done, or the outcome is unknown; retry"),
];

/// Statuses whose codes are retryable. They come with `Retry-After`.
const RETRYABLE: [&str; 6] = ["408", "409", "429", "500", "503", "507"];

/// The responses that operations refer to.
pub(super) fn shared() -> BTreeMap<String, RefOr<Response>> {
    let all = SHARED.iter().map(|(status, name, description)| {
        let mut response = ResponseBuilder::new().description(*description).build();
        complete(&status.to_string(), &mut response);
        ((*name).to_owned(), response.into())
    });
    all.collect()
}

/// Adds what an operation can be refused with, and the headers of all its answers.
pub(super) fn describe(route: &Route, operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    for (status, response) in responses.iter_mut() {
        if let RefOr::T(response) = response {
            complete(status, response);
        }
    }
    for (status, name, _) in SHARED.iter().filter(|(status, ..)| can_have(route, *status)) {
        let response = || RefOr::Ref(Ref::from_response_name(*name));
        responses.entry(status.to_string()).or_insert_with(response);
    }
}

fn can_have(route: &Route, status: u16) -> bool {
    match status {
        401 => route.access != Access::Open,
        404 => route.path.contains("{queue}"),
        408 => route.method != "get",
        413 | 415 => route.takes.body,
        _ => true,
    }
}

/// Adds what every answer of a status has.
fn complete(status: &str, response: &mut Response) {
    let mut add = |name: &str, header: Header| {
        response.headers.insert(name.to_owned(), header.into());
    };
    add("Request-Id", text("The caller's own id of the request, or a generated one"));
    if RETRYABLE.contains(&status) {
        let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
        let header = HeaderBuilder::new().schema(Some(seconds.build()));
        add("Retry-After", header.description(Some("Seconds")).build());
    }
    if status == "401" {
        add("WWW-Authenticate", text("`Bearer`"));
    }
    if status.starts_with(['4', '5']) {
        let problem = Ref::from_schema_name(<wire::Document<'_> as ToSchema>::name());
        let content = ContentBuilder::new().schema(Some(problem)).build();
        response.content.insert(PROBLEM.to_owned(), content.into());
    }
}

fn text(description: &str) -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::String).build();
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}
