//! Queues: configured, shown, listed, guarded by their etag.

use serde_json::json;

use super::broker::{Broker, ask, get, post, put};

#[tokio::test]
async fn a_configuration_is_shown_whole_and_replaced_whole() {
    let broker = Broker::open();
    let config = r#"{"retention_ms":null,"max_attempts":3,"on_dead":"rerun"}"#;
    let created = broker.ask(put("/v1/queues/orders", config)).await.is(201);
    assert_eq!(created["config"]["retention_ms"], json!(null));
    assert_eq!(created["config"]["max_attempts"], 3);
    assert_eq!(created["config"]["lease_ms"], 30_000);
    assert_eq!(created["config"].as_object().unwrap().len(), 20);
    let changed = broker.ask(put("/v1/queues/orders", r#"{"max_attempts":4}"#)).await.is(200);
    assert_eq!(changed["config"]["max_attempts"], 4);
    assert_eq!(changed["config"]["on_dead"], "pin", "what is left out has its default");
    let shown = broker.ask(get("/v1/queues/orders")).await;
    assert_eq!(shown.is(200)["config"], changed["config"]);
    assert_eq!(shown.header("etag"), changed["etag"]);
    let empty = broker.ask(ask("PUT", "/v1/queues/plain")).await;
    assert_eq!(empty.is(201)["config"]["guarantee"], "exactly-once");
}

#[tokio::test]
async fn queues_are_listed_by_name() {
    let broker = Broker::open();
    assert_eq!(broker.ask(get("/v1/queues")).await.is(200), json!({"queues": []}));
    for name in ["b", "a", "c.d_e-F"] {
        broker.put(name, "{}").await;
    }
    let list = broker.ask(get("/v1/queues")).await.is(200);
    let names: Vec<&str> =
        list["queues"].as_array().unwrap().iter().map(|q| q["queue"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c.d_e-F"]);
}

#[tokio::test]
async fn a_typo_in_a_configuration_is_refused_with_what_is_meant() {
    let broker = Broker::open();
    let refused = broker.ask(put("/v1/queues/orders", r#"{"retention":5}"#)).await;
    let problem = refused.fails(422, "invalid_config");
    assert!(problem["detail"].as_str().unwrap().contains("retention_ms"), "{problem}");
    for config in [
        r#"{"retention_ms":1000}"#,
        r#"{"lease_ms":"30000"}"#,
        r#"{"lease_ms":1.5}"#,
        r#"{"lease_ms":-1}"#,
        r#"{"lease_ms":null}"#,
        r#"{"guarantee":"once"}"#,
        r#"{"max_attempts":99999999999999999999999}"#,
        r#"{"on_group_dead":"park"}"#,
        r#"{"config":{}}"#,
    ] {
        broker.ask(put("/v1/queues/orders", config)).await.fails(422, "invalid_config");
    }
    broker.ask(get("/v1/queues/orders")).await.fails(404, "no_such_queue");
    broker.put("orders", "{}").await;
    let change = broker.ask(put("/v1/queues/orders", r#"{"order":"group"}"#)).await;
    change.fails(422, "invalid_config");
}

#[tokio::test]
async fn a_change_made_for_another_version_is_refused() {
    let broker = Broker::open();
    let change = |config: &str| put("/v1/queues/orders", config);
    let absent = broker.ask(change("{}").header("if-match", "*")).await;
    absent.fails(412, "invalid_config");
    let created = broker.ask(change("{}").header("if-none-match", "*")).await;
    created.is(201);
    broker.ask(change("{}").header("if-none-match", "*")).await.fails(412, "invalid_config");
    let etag = created.header("etag");
    let second = broker.ask(change(r#"{"max_attempts":2}"#).header("if-match", etag)).await;
    second.is(200);
    assert_ne!(second.header("etag"), etag);
    let stale = broker.ask(change(r#"{"max_attempts":9}"#).header("if-match", etag)).await;
    let problem = stale.fails(412, "invalid_config");
    assert_eq!(problem["retryable"], false);
    broker.ask(change("{}").header("if-match", "\"nonsense\"")).await.fails(412, "invalid_config");
    let shown = broker.ask(get("/v1/queues/orders")).await.is(200);
    assert_eq!(shown["config"]["max_attempts"], 2);
    broker.ask(change("{}").header("if-match", "*")).await.is(200);
    let delete = || ask("DELETE", "/v1/queues/orders");
    broker.ask(delete().header("if-match", etag)).await.fails(412, "invalid_config");
    let now = broker.ask(get("/v1/queues/orders")).await;
    let gone = broker.ask(delete().header("if-match", now.header("etag"))).await;
    assert_eq!(gone.status, 204);
    for etag in ["*", now.header("etag")] {
        let absent = broker.ask(delete().header("if-match", etag)).await;
        absent.fails(412, "invalid_config");
    }
    broker.ask(delete()).await.fails(404, "no_such_queue");
}

#[tokio::test]
async fn a_wrong_configuration_beats_a_right_etag_and_is_no_412() {
    let broker = Broker::with_queue("{}").await;
    let etag = broker.ask(get("/v1/queues/orders")).await.header("etag").to_owned();
    let wrong = put("/v1/queues/orders", r#"{"lease_ms":1}"#).header("if-match", &etag);
    broker.ask(wrong).await.fails(422, "invalid_config");
}

#[tokio::test]
async fn queue_names_are_bounded() {
    let broker = Broker::open();
    for name in ["a%20b", "%00", "a%2Fb", "%C3%A9", &"x".repeat(81)] {
        broker.ask(put(&format!("/v1/queues/{name}"), "{}")).await.fails(400, "invalid");
        broker.ask(get(&format!("/v1/queues/{name}"))).await.fails(400, "invalid");
    }
    broker.ask(put("/v1/queues/%FF", "{}")).await.fails(400, "invalid");
    broker.ask(put(&format!("/v1/queues/{}", "x".repeat(80)), "{}")).await.is(201);
}

#[tokio::test]
async fn what_is_not_there_cannot_be_paused_or_purged() {
    let broker = Broker::open();
    for path in ["pause", "resume", "purge", "receive"] {
        let told = broker.ask(post(&format!("/v1/queues/none/{path}"), "{}")).await;
        told.fails(404, "no_such_queue");
    }
    broker.ask(ask("DELETE", "/v1/queues/none")).await.fails(404, "no_such_queue");
}

#[tokio::test]
async fn an_etag_is_never_that_of_a_queue_created_again_under_its_name() {
    let broker = Broker::open();
    let change = |config: &str| put("/v1/queues/orders", config);
    let first = broker.ask(change("{}")).await.header("etag").to_owned();
    assert_eq!(broker.ask(ask("DELETE", "/v1/queues/orders")).await.status, 204);
    let again = broker.ask(change(r#"{"max_attempts":2}"#)).await;
    assert_ne!(again.header("etag"), first);
    broker.ask(change("{}").header("if-match", &first)).await.fails(412, "invalid_config");
    let delete = ask("DELETE", "/v1/queues/orders").header("if-match", &first);
    broker.ask(delete).await.fails(412, "invalid_config");
    assert_eq!(again.is(201)["etag"], again.header("etag"));
    let right = change("{}").header("if-match", again.header("etag"));
    broker.ask(right).await.is(200);
}

#[tokio::test]
async fn a_weak_etag_never_matches() {
    let broker = Broker::with_queue("{}").await;
    let etag = broker.ask(get("/v1/queues/orders")).await.header("etag").to_owned();
    for wrong in [format!("W/{etag}"), etag.trim_matches('"').to_owned()] {
        let change = put("/v1/queues/orders", r#"{"max_attempts":2}"#).header("if-match", &wrong);
        broker.ask(change).await.fails(412, "invalid_config");
        let delete = ask("DELETE", "/v1/queues/orders").header("if-match", &wrong);
        broker.ask(delete).await.fails(412, "invalid_config");
    }
}

#[tokio::test]
async fn a_queue_that_exists_is_not_created_and_the_refusal_says_so() {
    let broker = Broker::with_queue("{}").await;
    let create = put("/v1/queues/orders", "{}").header("if-none-match", "*");
    let problem = broker.ask(create).await.fails(412, "invalid_config");
    assert_eq!(problem["detail"], "the queue exists already");
}

#[tokio::test]
async fn the_same_configuration_again_keeps_the_etag() {
    let broker = Broker::with_queue(r#"{"max_attempts":2}"#).await;
    let etag = broker.ask(get("/v1/queues/orders")).await.header("etag").to_owned();
    let again = broker.ask(put("/v1/queues/orders", r#"{"max_attempts":2}"#)).await;
    again.is(200);
    assert_eq!(again.header("etag"), etag);
}
