//! Every answer of these tests is one that the document of the API describes: its status, its
//! content type, and for an answer of JSON the fields that it must have.

use axum::Router;
use axum::body::Body;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::OnceCell;
use tower::ServiceExt;

use super::broker::Answered;

static DOCUMENT: OnceCell<Value> = OnceCell::const_new();

async fn document(router: &Router) -> &'static Value {
    let read = async || {
        let request = Request::get("/v1/openapi.json").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    };
    DOCUMENT.get_or_init(read).await
}

/// Checks the answer to a request, where its path and method are in the document.
pub(crate) async fn check(router: &Router, method: &Method, path: &str, answered: &Answered) {
    let document = document(router).await;
    let method = if method == Method::HEAD { "get" } else { &method.as_str().to_lowercase() };
    let paths = document["paths"].as_object().unwrap();
    let Some((_, item)) = paths.iter().find(|(known, _)| is_at(known, path)) else { return };
    let Some(operation) = item.get(method) else { return };
    let (id, status) = (&operation["operationId"], answered.status.as_str());
    let response = resolve(document, &operation["responses"][status]);
    let text = answered.text();
    assert!(response.is_object(), "{id}: {status} is not documented: {text}");
    let kind = answered.header("content-type").split(';').next().unwrap();
    let content = response["content"].as_object();
    assert_eq!(content.is_some(), !kind.is_empty(), "{id}: {status}: {text}");
    let Some(content) = content else { return };
    assert!(content.contains_key(kind), "{id}: {status}: {kind} is not documented");
    for name in response["headers"].as_object().unwrap().keys() {
        let is_optional = ["Preference-Applied"].contains(&name.as_str());
        let is_there = answered.headers.contains_key(name.to_lowercase());
        assert!(is_there || is_optional, "{id}: {status}: {name} is missing");
    }
    if kind.ends_with("json") && !answered.body.is_empty() {
        let schema = resolve(document, &content[kind]["schema"]);
        let body: Value = serde_json::from_slice(&answered.body).unwrap();
        check_fields(document, schema, &body);
    }
}

fn is_at(known: &str, path: &str) -> bool {
    let (known, path): (Vec<_>, Vec<_>) = (known.split('/').collect(), path.split('/').collect());
    let mut parts = known.iter().zip(&path);
    let is_same = |(known, given): (&&str, &&str)| {
        known == given || known.starts_with('{') && !given.is_empty()
    };
    known.len() == path.len() && parts.all(is_same)
}

fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap(),
        None => value,
    }
}

/// An object has all fields that its schema requires, and none that the schema does not know.
fn check_fields(document: &Value, schema: &Value, value: &Value) {
    let schema = resolve(document, schema);
    if let Some(tag) = schema["discriminator"]["propertyName"].as_str() {
        let variant = &schema["discriminator"]["mapping"][value[tag].as_str().unwrap()];
        let variant = document.pointer(&variant.as_str().unwrap()[1..]).unwrap();
        return check_fields(document, variant, value);
    }
    match (value, &schema["properties"]) {
        (Value::Object(fields), Value::Object(properties)) => {
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(fields.contains_key(name.as_str().unwrap()), "{name} is missing: {value}");
            }
            for (name, value) in fields {
                let known = properties.get(name);
                let known = known.unwrap_or_else(|| panic!("{name} is unknown in {schema}"));
                check_fields(document, known, value);
            }
        }
        (Value::Array(items), _) => {
            items.iter().for_each(|item| check_fields(document, &schema["items"], item));
        }
        (Value::Object(fields), _) if schema["additionalProperties"].is_object() => {
            let of_each = &schema["additionalProperties"];
            fields.values().for_each(|value| check_fields(document, of_each, value));
        }
        (Value::Null, _) | (Value::Object(_), _) => {}
        (value, _) => check_value(schema, value),
    }
}

fn check_value(schema: &Value, value: &Value) {
    let kind = match value {
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        _ => "integer",
    };
    let types = &schema["type"];
    let is_known = types == kind || types.as_array().is_some_and(|all| all.contains(&kind.into()));
    assert!(is_known || !types.is_string(), "{value} is no {types}");
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{value} is not one of {words:?}");
    }
}
