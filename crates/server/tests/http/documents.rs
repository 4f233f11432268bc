//! The OpenAPI document against the routes, the limits, and the front page.

use std::collections::BTreeSet;

use hapax_server::doors::http::ROUTES;
use serde_json::Value;

use super::broker::{Broker, ask, get};

async fn document(broker: &Broker) -> Value {
    broker.ask(get("/v1/openapi.json")).await.is(200)
}

#[tokio::test]
async fn every_route_is_documented_and_every_document_is_a_route() {
    let broker = Broker::open();
    let document = document(&broker).await;
    assert_eq!(document["openapi"], "3.1.0");
    let routes: BTreeSet<(String, String)> =
        ROUTES.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(routes.len(), ROUTES.len(), "no route is there twice");
    let mut documented = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            documented.insert((method.clone(), path.clone()));
        }
    }
    assert_eq!(routes, documented);
}

#[tokio::test]
async fn every_documented_operation_is_answered_by_a_handler() {
    let broker = Broker::with_queue("{}").await;
    broker.send("orders", "k", "x").await;
    let document = document(&broker).await;
    let mut asked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let concrete = path
            .replace("{queue}", "orders")
            .replace("{key}", "k")
            .replace("{id}", "r")
            .replace("{code}", "conflict");
        for method in item.as_object().unwrap().keys().filter(|method| *method != "delete") {
            let told = broker.ask(ask(&method.to_uppercase(), &concrete)).await;
            let text = told.text();
            assert_ne!(told.status, 405, "{method} {path}");
            assert!(told.status != 404 || text.contains("no_such_key"), "{method} {path}: {text}");
            asked += 1;
        }
    }
    assert_eq!(asked, ROUTES.len() - 2);
    let redrive = broker.ask(ask("DELETE", "/v1/queues/orders/redrive/r")).await;
    redrive.fails(404, "no_such_key");
    assert_eq!(broker.ask(ask("DELETE", "/v1/queues/orders")).await.status, 204);
}

#[tokio::test]
async fn every_reference_of_the_document_leads_somewhere() {
    let broker = Broker::open();
    let document = document(&broker).await;
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 30, "{}", references.len());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                references.push(reference.clone());
            }
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_says_what_answers_are_and_who_may_ask() {
    let broker = Broker::open();
    let document = document(&broker).await;
    let send = &document["paths"]["/v1/queues/{queue}/messages"]["post"];
    let created = &send["responses"]["201"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(created, "#/components/schemas/Answer");
    let refused = &send["responses"]["default"]["content"]["application/problem+json"];
    assert_eq!(refused["schema"]["$ref"], "#/components/schemas/Problem");
    assert_eq!(document["security"][0]["token"], Value::Array(Vec::new()));
    assert!(document["components"]["securitySchemes"]["token"].is_object());
    let config = &document["components"]["schemas"]["QueueConfig"];
    assert_eq!(config["properties"].as_object().unwrap().len(), 20);
    assert_eq!(config["additionalProperties"], false);
}

#[tokio::test]
async fn limits_and_the_front_page_are_open() {
    let broker = Broker::open();
    let limits = broker.ask(get("/v1/limits")).await.is(200);
    for (name, value) in [
        ("batch_messages_max", 1_000),
        ("batch_bytes_max", 8 * 1024 * 1024),
        ("key_bytes_max", 255),
        ("wait_ms_max", 60_000),
        ("grpc_frame_bytes_max", 32 * 1024 * 1024 + 64 * 1024),
    ] {
        assert_eq!(limits[name], value, "{name}");
    }
    let home = broker.ask(get("/")).await;
    assert_eq!(home.status, 200);
    assert!(home.text().contains("/v1/openapi.json"));
    let head = broker.ask(ask("HEAD", "/livez")).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
}
