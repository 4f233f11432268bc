//! The OpenAPI document against the routes, the limits, and the front page.

use std::collections::BTreeSet;

use hapax_server::doors::http::ROUTES;
use serde_json::{Value, json};

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
    let refused = &send["responses"]["422"]["content"]["application/problem+json"];
    assert_eq!(refused["schema"]["$ref"], "#/components/schemas/Problem");
    assert_eq!(send["responses"]["503"]["$ref"], "#/components/responses/ServiceUnavailable");
    assert_eq!(document["security"][0]["token"], Value::Array(Vec::new()));
    assert!(document["components"]["securitySchemes"]["token"].is_object());
    assert_eq!(document["servers"][0]["url"], "/");
    let config = &document["components"]["schemas"]["QueueConfig"];
    assert_eq!(config["properties"].as_object().unwrap().len(), 20);
    assert_eq!(config["additionalProperties"], false);
}

#[tokio::test]
async fn operation_ids_are_unique_and_are_verbs() {
    let broker = Broker::open();
    let document = document(&broker).await;
    let mut ids = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(id.starts_with(|first: char| first.is_ascii_lowercase()), "{id}");
            assert!(id.bytes().all(|byte| byte.is_ascii_alphabetic()), "{id}");
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
        }
    }
    assert_eq!(ids.len(), ROUTES.len());
    for id in ["sendMessage", "sendBatch", "receive", "settle", "getKey", "redrive", "putQueue"] {
        assert!(ids.contains(id), "{id}");
    }
}

#[tokio::test]
async fn bounds_are_those_of_the_broker() {
    let broker = Broker::open();
    let document = document(&broker).await;
    let limits = broker.ask(get("/v1/limits")).await.is(200);
    let schemas = &document["components"]["schemas"];
    let of = |schema: &str, field: &str| &schemas[schema]["properties"][field];
    assert_eq!(of("Message", "key")["maxLength"], limits["key_bytes_max"]);
    assert_eq!(of("Message", "key")["minLength"], 1);
    assert_eq!(of("Message", "headers")["maxProperties"], limits["headers_max"]);
    assert_eq!(of("Batch", "messages")["maxItems"], limits["batch_messages_max"]);
    assert_eq!(of("Settle", "items")["maxItems"], limits["settle_items_max"]);
    assert_eq!(of("SettleDone", "emit")["maxItems"], limits["emits_max"]);
    assert_eq!(of("SettleExtend", "lease_ms")["minimum"], limits["lease_ms_min"]);
    assert_eq!(of("QueueConfig", "lease_ms")["maximum"], limits["lease_ms_max"]);
    assert_eq!(of("QueueConfig", "max_attempts")["maximum"], limits["attempts_max"]);
    assert_eq!(of("RedriveKeys", "keys")["maxItems"], limits["redrive_keys_max"]);
    assert_eq!(of("HistoryEvent", "event")["enum"].as_array().unwrap().len(), 19);
    assert_eq!(schemas["Code"]["enum"].as_array().unwrap().len(), 19);
    assert!(!document.to_string().contains("int32"), "no number has a sign");
    let words = |name: &str| schemas[name]["enum"].clone();
    assert_eq!(words("OnLost"), json!(["redeliver", "park"]));
    assert_eq!(words("Guarantee"), json!(["exactly-once", "at-least-once", "at-most-once"]));
    assert_eq!(words("Differs"), json!(["body", "group", "fingerprint"]));
}

#[tokio::test]
async fn parameters_are_never_null_and_messages_are_bytes() {
    let broker = Broker::open();
    let document = document(&broker).await;
    let mut bodies = 0;
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let schema = &parameter["schema"];
                let is_one = schema["type"].is_string() || schema["$ref"].is_string();
                assert!(is_one, "{}: {parameter}", operation["operationId"]);
                if parameter["name"] == "queue" {
                    assert_eq!(schema["pattern"], "^[A-Za-z0-9._-]+$");
                }
            }
            let body = &operation["requestBody"]["content"]["application/octet-stream"];
            if body.is_object() {
                assert_eq!(body["schema"]["format"], "binary");
                bodies += 1;
            }
        }
    }
    assert_eq!(bodies, 3, "a message, a claim, a replay");
}

#[tokio::test]
async fn variants_have_names_and_discriminators() {
    let broker = Broker::open();
    let document = document(&broker).await;
    let schemas = &document["components"]["schemas"];
    for (parent, tag, names) in [
        (
            "Answer",
            "answer",
            "AnswerAccepted AnswerDead AnswerDone AnswerError \
             AnswerInFlight AnswerParked",
        ),
        ("Settled", "answer", "SettledError SettledLeaseLost SettledOk"),
        ("Resolve", "do", "ResolveDone ResolveRetry"),
        (
            "SettleItem",
            "do",
            "SettleBegin SettleDone SettleExtend SettleFail SettlePark SettleRelease SettleSave",
        ),
    ] {
        let discriminator = &schemas[parent]["discriminator"];
        assert_eq!(discriminator["propertyName"], tag, "{parent}");
        let mapping = discriminator["mapping"].as_object().unwrap();
        let mut found = Vec::new();
        for (value, reference) in mapping {
            let name = reference.as_str().unwrap().rsplit('/').next().unwrap();
            let variant = &schemas[name];
            assert_eq!(variant["properties"][tag]["enum"][0], value.as_str(), "{name}");
            let required = variant["required"].as_array().unwrap();
            assert!(required.contains(&tag.into()), "{name}: {tag}");
            found.push(name);
        }
        found.sort_unstable();
        assert_eq!(found.join(" "), names);
        assert_eq!(schemas[parent]["oneOf"].as_array().unwrap().len(), mapping.len());
    }
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
