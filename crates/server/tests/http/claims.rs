//! Claims: fresh, in flight, done, freed.

use serde_json::json;

use super::broker::{Ask, Broker, post, text};

fn claim(key: &str, body: &str) -> Ask {
    post("/v1/queues/orders/claims", body).header("idempotency-key", key)
}

#[tokio::test]
async fn a_claim_is_fresh_then_in_flight_then_done() {
    let broker = Broker::with_queue("{}").await;
    let fresh = broker.ask(claim("\"pay-1\"", "{\"amount\":5}")).await.is(201);
    assert_eq!(fresh["answer"], "fresh");
    assert_eq!((&fresh["queue"], &fresh["key"]), (&json!("orders"), &json!("pay-1")));
    assert!(text(&fresh, "fence").parse::<u64>().unwrap() > 0);
    assert_eq!((&fresh["tenant"], &fresh["lease_ms"]), (&json!("default"), &json!(30_000)));
    assert!(text(&fresh, "deadline").ends_with('Z'));
    assert_eq!(fresh["recovery_points"], json!({}));

    let busy = broker.ask(claim("pay-1", "{\"amount\":5}")).await;
    let problem = busy.fails(409, "in_flight");
    assert_eq!((&problem["id"], &problem["state"]), (&fresh["id"], &json!("leased")));
    assert_eq!(problem["deadline"], fresh["deadline"]);
    let seconds: u64 = busy.header("retry-after").parse().unwrap();
    assert!((1..=10).contains(&seconds), "{seconds}");

    let other = broker.ask(claim("pay-1", "{\"amount\":6}")).await.fails(422, "conflict");
    assert_eq!(other["differs"], json!(["body"]));

    let done = json!({"lease": fresh["lease"], "do": "done",
                      "result": {"body": "paid", "content_type": "text/plain"}});
    assert_eq!(broker.settle("orders", done).await, json!({"answer": "ok"}));
    let after = broker.ask(claim("pay-1", "{\"amount\":5}")).await;
    assert_eq!(after.is(200)["result"]["body"], "paid");
    assert_eq!(after.header("idempotency-replayed"), "true");
}

#[tokio::test]
async fn a_released_claim_frees_its_key_and_hands_on_what_it_saved() {
    let broker = Broker::with_queue("{}").await;
    let first = broker.ask(claim("k", "x").header("hapax-worker", "api-1")).await.is(201);
    let save = json!({"lease": first["lease"], "do": "save", "name": "step", "body": "1"});
    broker.settle("orders", save).await;
    broker.settle("orders", json!({"lease": first["lease"], "do": "release"})).await;
    let second = broker.ask(claim("k", "another body")).await.is(201);
    assert_eq!(second["answer"], "fresh");
    assert_eq!(second["recovery_points"], json!({"step": {"body": "1"}}));
}

#[tokio::test]
async fn a_lost_claim_frees_its_key() {
    let broker = Broker::with_queue("{}").await;
    broker.ask(claim("k", "x").header("hapax-lease-ms", "100")).await.is(201);
    let next = broker.ask(claim("k", "x").header("prefer", "wait=30")).await.is(201);
    assert_eq!(next["answer"], "fresh");
}

#[tokio::test]
async fn a_claim_needs_a_key_and_a_sane_lease() {
    let broker = Broker::with_queue("{}").await;
    broker.ask(post("/v1/queues/orders/claims", "x")).await.fails(400, "missing_key");
    broker.ask(claim("\"open", "x")).await.fails(400, "malformed_key");
    let short = claim("k", "x").header("hapax-lease-ms", "1");
    broker.ask(short).await.fails(400, "invalid");
    let nowhere = post("/v1/queues/none/claims", "x").header("idempotency-key", "k");
    broker.ask(nowhere).await.fails(404, "no_such_queue");
}

#[tokio::test]
async fn a_fingerprint_of_ones_own_counts_for_claims_too() {
    let broker = Broker::with_queue("{}").await;
    let own = |body: &str| claim("k", body).header("hapax-fingerprint", "f");
    broker.ask(own("a")).await.is(201);
    broker.ask(own("b")).await.fails(409, "in_flight");
    broker.ask(claim("k", "a")).await.fails(422, "conflict");
}

#[tokio::test]
async fn a_claim_repeated_under_its_id_gets_the_same_lease() {
    let broker = Broker::with_queue("{}").await;
    let with_id = |id: &str| claim("pay-1", "5").header("hapax-claim-id", id);
    let first = broker.ask(with_id("c-1")).await.is(201);
    let again = broker.ask(with_id("c-1")).await.is(201);
    assert_eq!((&again["lease"], &again["fence"]), (&first["lease"], &first["fence"]));
    assert!(again["lease_ms"].as_u64() <= first["lease_ms"].as_u64());
    broker.ask(with_id("c-2")).await.fails(409, "in_flight");
    broker.ask(claim("pay-1", "5")).await.fails(409, "in_flight");
    broker.ask(claim("pay-1", "6").header("hapax-claim-id", "c-1")).await.fails(422, "conflict");
    broker.ask(with_id("")).await.fails(400, "invalid");
}
