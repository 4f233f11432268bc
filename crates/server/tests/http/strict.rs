//! Requests that say something else than their endpoint knows: refused, with nothing done.

use hapax_server::doors::http::ROUTES;
use serde_json::{Value, json};

use super::broker::{Broker, ask, get, post, text};

/// Routes whose body is a message, as it is.
const RAW: [&str; 3] = [
    "/v1/queues/{queue}/messages",
    "/v1/queues/{queue}/claims",
    "/v1/queues/{queue}/keys/{key}/replay",
];

/// A good request to every route that takes JSON. One that is not here fails the test below.
fn example(path: &str, lease: &Value) -> Value {
    match path {
        "/v1/queues/{queue}" => json!({"lease_ms": 5_000}),
        "/v1/queues/{queue}/purge" => json!({"keys": true}),
        "/v1/queues/{queue}/batch" => {
            json!({"messages": [{"key": "new", "body": "b", "headers": {"a": "b"}}]})
        }
        "/v1/queues/{queue}/receive" => json!({"max": 1}),
        "/v1/queues/{queue}/settle" => {
            let emit = json!({"queue": "orders", "name": "n", "headers": {"a": "b"}});
            let result = json!({"body": "paid"});
            json!({"items": [{"lease": lease, "do": "done", "result": result, "emit": [emit]}]})
        }
        "/v1/queues/{queue}/redrive" => json!({"filter": {"error_contains": "bad"}}),
        "/v1/queues/{queue}/keys/{key}/resolve" => {
            json!({"do": "done", "result": {"body": "paid"}})
        }
        "/v1/queues/{queue}/pause"
        | "/v1/queues/{queue}/resume"
        | "/v1/queues/{queue}/keys/{key}/forget"
        | "/v1/queues/{queue}/keys/{key}/redrive"
        | "/v1/queues/{queue}/keys/{key}/discard" => json!({}),
        _ => panic!("{path} is new: what does it take?"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Unknown,
    Twice,
    Array,
}

impl Wrong {
    /// What a refusal says about it.
    fn is_told_by(self, detail: &str) -> bool {
        match self {
            Self::Unknown => detail.contains("unknown field") || detail.contains("no such field"),
            Self::Twice => detail.contains("duplicate field") || detail.contains("is given twice"),
            Self::Array => detail.contains("invalid type: sequence"),
        }
    }
}

/// The places of all objects in a value, as JSON pointers.
fn objects(value: &Value, place: &str, places: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            places.push(place.to_owned());
            fields.iter().for_each(|(name, it)| objects(it, &format!("{place}/{name}"), places));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(number, it)| objects(it, &format!("{place}/{number}"), places));
        }
        _ => {}
    }
}

/// The text of a value whose object at one place is wrong.
fn write(value: &Value, place: &str, wrong: Wrong, at: &str) -> String {
    let inner = |name: &str, it: &Value| write(it, &format!("{place}/{name}"), wrong, at);
    let list =
        |items: Vec<String>, [open, close]: [char; 2]| format!("{open}{}{close}", items.join(","));
    match value {
        Value::Object(fields) if place == at && wrong == Wrong::Array => {
            list(fields.values().map(Value::to_string).collect(), ['[', ']'])
        }
        Value::Object(fields) => {
            let mut written: Vec<String> =
                fields.iter().map(|(name, it)| format!("{name:?}:{}", inner(name, it))).collect();
            match wrong {
                Wrong::Unknown if place == at => written.push("\"frobnicate\":1".to_owned()),
                Wrong::Twice if place == at => written.extend(written.first().cloned()),
                _ => {}
            }
            list(written, ['{', '}'])
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            list(items.map(|(number, it)| inner(&number.to_string(), it)).collect(), ['[', ']'])
        }
        other => other.to_string(),
    }
}

/// A queue with a message in every place.
pub(crate) async fn busy_house() -> (Broker, Value) {
    let broker = Broker::with_queue("{}").await;
    for key in ["finished", "dead", "held", "waiting"] {
        broker.send("orders", key, "x").await;
    }
    let finished = broker.receive_one("orders").await;
    broker.settle("orders", json!({"lease": finished["lease"], "do": "done"})).await;
    let dead = broker.receive_one("orders").await;
    let fail = json!({"lease": dead["lease"], "do": "fail", "error": "bad", "dead": true});
    broker.settle("orders", fail).await;
    let held = broker.receive_one("orders").await;
    (broker, held["lease"].clone())
}

pub(crate) async fn state(broker: &Broker) -> Value {
    let mut queue = broker.ask(get("/v1/queues/orders")).await.is(200);
    queue["stats"]["oldest_ready_age_ms"].take();
    queue
}

#[tokio::test]
async fn every_endpoint_refuses_what_it_does_not_know_and_does_nothing() {
    let (broker, lease) = busy_house().await;
    let before = state(&broker).await;
    let mut asked = 0;
    let takes_body = |method: &str| matches!(method, "post" | "put");
    let routes = ROUTES.iter().filter(|(method, path)| takes_body(method) && !RAW.contains(path));
    for (method, path) in routes {
        let good = example(path, &lease);
        let key = if path.ends_with("forget") { "finished" } else { "dead" };
        let uri = path.replace("{queue}", "orders").replace("{key}", key);
        let mut places = Vec::new();
        objects(&good, "", &mut places);
        for (wrong, place) in [Wrong::Unknown, Wrong::Twice, Wrong::Array]
            .iter()
            .flat_map(|wrong| places.iter().map(move |place| (*wrong, place)))
        {
            let is_free = wrong == Wrong::Unknown && place.ends_with("headers");
            let is_empty = wrong == Wrong::Twice && good == json!({});
            if is_free || is_empty {
                continue;
            }
            let body = write(&good, "", wrong, place);
            let request = ask(&method.to_uppercase(), &uri);
            let request = request.header("content-type", "application/json").body(body.clone());
            let told = broker.ask(request).await;
            let told_of: Value = serde_json::from_slice(&told.body).unwrap();
            // What concerns one item of a list is told in its place.
            let in_place = place.starts_with("/messages/") || place.starts_with("/items/");
            let problem = if in_place { &told_of["answers"][0] } else { &told_of };
            let status = if in_place { 200 } else { told.status.as_u16() };
            let code = text(problem, "code");
            assert!(
                told.status == status && matches!(code, "invalid" | "invalid_config"),
                "{path} {body}: {told_of}"
            );
            assert!(wrong.is_told_by(text(problem, "detail")), "{path} {body}: {told_of}");
            assert!(in_place || told.status.is_client_error(), "{path} {body}: {told_of}");
            assert_eq!(state(&broker).await, before, "{path} {body}");
            asked += 1;
        }
    }
    assert!(asked > 40, "{asked}");
}

#[tokio::test]
async fn a_field_that_was_meant_is_named() {
    let (broker, lease) = busy_house().await;
    let said = async |path: &str, body: Value| {
        let told = broker.ask(post(&format!("/v1/queues/orders/{path}"), &body.to_string())).await;
        text(&told.fails(400, "invalid"), "detail").to_owned()
    };
    assert!(said("receive", json!({"wait": 5})).await.contains("did you mean wait_ms?"));
    assert!(said("purge", json!({"key": true})).await.contains("did you mean keys?"));
    assert!(said("redrive", json!({"dry-run": true})).await.contains("did you mean dry_run?"));
    let batch = json!({"messages": [{"key": "k", "dealy_ms": 60_000}]});
    let told = broker.ask(post("/v1/queues/orders/batch", &batch.to_string())).await.is(200);
    let detail = text(&told["answers"][0], "detail");
    assert!(detail.contains("did you mean delay_ms?"), "{detail}");
    let fail = json!({"lease": lease, "do": "fail", "delay": 60_000});
    let told = broker.settle("orders", fail).await;
    assert!(text(&told, "detail").contains("did you mean delay_ms?"), "{told}");
}

#[tokio::test]
async fn a_redrive_says_exactly_what_it_means() {
    let (broker, _) = busy_house().await;
    for (body, what) in [
        (json!({}), "exactly one of"),
        (json!({"all": false}), "exactly one of"),
        (json!({"all": true, "keys": ["dead"]}), "exactly one of"),
        (json!({"all": true, "filter": {"group": "g"}}), "exactly one of"),
        (json!({"keys": ["dead"], "filter": {"group": "g"}}), "exactly one of"),
        (json!({"filter": {}}), "filter: it is empty"),
        (json!({"filter": {"error_contains": ""}}), "filter.error_contains is empty"),
        (json!({"filter": {"error_contains": "bad", "group": ""}}), "filter.group is empty"),
        (json!({"keys": []}), "keys: give at least one key"),
        (json!({"keys": ["dead"], "group": ""}), "group is empty"),
        (json!({"all": true, "group": "g"}), "group: it belongs to `keys`"),
        (json!({"filter": {"error_contains": "bad"}, "group": "g"}), "group: it belongs to"),
    ] {
        let told = broker.ask(post("/v1/queues/orders/redrive", &body.to_string())).await;
        let problem = told.fails(400, "invalid");
        assert!(text(&problem, "detail").contains(what), "{body}: {problem}");
    }
    let told = broker.ask(post("/v1/queues/orders/redrive", r#"{"keys":["dead",""]}"#)).await;
    assert!(text(&told.fails(400, "malformed_key"), "detail").starts_with("keys[1]: a key has"));
    assert_eq!(broker.key("orders", "dead").await["state"], "dead");
}

#[tokio::test]
async fn an_empty_key_is_not_taken_for_none() {
    let broker = Broker::with_queue(r#"{"guarantee":"at-least-once"}"#).await;
    let batch = json!({"messages": [{"key": "", "body": "x"}, {"body": "y"}]}).to_string();
    let answers = broker.ask(post("/v1/queues/orders/batch", &batch)).await.is(200);
    let (empty, none) = (&answers["answers"][0], &answers["answers"][1]);
    assert_eq!((&empty["code"], &none["answer"]), (&json!("malformed_key"), &json!("accepted")));
    assert!(text(empty, "detail").starts_with("key: a key has 1 to 255 bytes"), "{empty}");
    let lease = broker.receive_one("orders").await["lease"].clone();
    let emit = json!([{"queue": "orders", "name": "n", "key": ""}]);
    let told = broker.settle("orders", json!({"lease": lease, "do": "done", "emit": emit})).await;
    assert!(text(&told, "detail").starts_with("emit[0]: key: a key has"), "{told}");
}

#[tokio::test]
async fn a_header_or_a_parameter_that_means_nothing_is_refused() {
    let (broker, _) = busy_house().await;
    let sent = super::broker::send("orders", "k", "x").header("hapax-dealy-ms", "60000");
    let problem = broker.ask(sent).await.fails(400, "invalid");
    assert!(text(&problem, "detail").contains("did you mean hapax-delay-ms?"), "{problem}");
    for (path, what) in [
        ("messages?stat=dead", "did you mean state?"),
        ("keys/dead?wait=5", "did you mean wait_ms?"),
        ("keys/dead?colour=red", "the known parameters are group, wait_ms"),
        ("?state=dead", "no parameters are allowed"),
    ] {
        let told = broker.ask(get(&format!("/v1/queues/orders/{path}").replace("/?", "?"))).await;
        let problem = told.fails(400, "invalid");
        assert!(text(&problem, "detail").contains(what), "{path}: {problem}");
    }
    let forget = ask("POST", "/v1/queues/orders/keys/finished/forget?groop=g");
    broker.ask(forget).await.fails(400, "invalid");
    broker.ask(get("/livez?verbose")).await;
    assert_eq!(broker.key("orders", "finished").await["state"], "done");
}

#[tokio::test]
async fn a_settle_with_a_field_of_another_verb_is_refused_and_does_nothing() {
    let (broker, lease) = busy_house().await;
    for settle in [
        json!({"do": "fail", "result": {"body": "x"}}),
        json!({"do": "fail", "emit": []}),
        json!({"do": "done", "error": "x"}),
        json!({"do": "done", "delay_ms": 1}),
        json!({"do": "release", "dead": true}),
        json!({"do": "extend", "delay_ms": 1}),
        json!({"do": "begin", "name": "x"}),
        json!({"do": "park", "body": "x"}),
        json!({"do": "park", "body_base64": "eA=="}),
        json!({"do": "save", "name": "x", "body": "y", "lease_ms": 1}),
    ] {
        let mut item = settle.clone();
        item["lease"] = lease.clone();
        let told = broker.settle("orders", item).await;
        assert_eq!(told["code"], "invalid", "{settle}: {told}");
    }
    let done = broker.settle("orders", json!({"lease": lease, "do": "done"})).await;
    assert_eq!(done["answer"], "ok", "{done}");
}

#[tokio::test]
async fn a_parked_message_is_not_resolved_by_fields_of_another_verb() {
    let broker = Broker::with_queue(r#"{"on_lost":"park"}"#).await;
    broker.send("orders", "k", "x").await;
    let lease = broker.receive_one("orders").await["lease"].clone();
    broker.settle("orders", json!({"lease": lease, "do": "begin"})).await;
    broker.settle("orders", json!({"lease": lease, "do": "park", "error": "in doubt"})).await;
    let resolve = async |body: Value| {
        broker.ask(post("/v1/queues/orders/keys/k/resolve", &body.to_string())).await
    };
    let told = resolve(json!({"do": "retry", "result": {"body": "paid"}})).await;
    let problem = told.fails(400, "invalid");
    assert_eq!(text(&problem, "detail"), r#"result belongs to do: "done", not to "retry""#);
    assert_eq!(broker.key("orders", "k").await["state"], "parked");
    resolve(json!({"do": "retry"})).await.is(200);
}

#[tokio::test]
async fn refusals_name_what_is_wrong() {
    let (broker, lease) = busy_house().await;
    let redrive = |body: &str| post("/v1/queues/orders/redrive", body);
    let told = broker.ask(redrive(r#"{"all":true,"per_s":0}"#)).await.fails(400, "invalid");
    assert_eq!(text(&told, "detail"), "per_s: it must be at least 1, or left out");
    let told = broker.ask(post("/v1/queues/orders/receive", r#"{"max":"x"}"#)).await;
    let told = told.fails(400, "invalid");
    assert!(text(&told, "detail").contains("expected a whole number at"));
    for (path, detail) in [
        ("messages?limit=x", r#"limit: "x" is not a whole number"#),
        ("keys/dead?wait_ms=-1", r#"wait_ms: "-1" is not a whole number"#),
    ] {
        let told = broker.ask(get(&format!("/v1/queues/orders/{path}"))).await;
        assert_eq!(text(&told.fails(400, "invalid"), "detail"), detail, "{path}");
    }
    let twice = broker.ask(get("/v1/queues/orders/messages?state=dead&state=dead")).await;
    let twice = twice.fails(400, "invalid");
    assert!(text(&twice, "detail").contains("duplicate field `state`"), "{twice}");
    assert!(!text(&twice, "detail").contains("deserialize"), "{twice}");
    let told = broker.settle("orders", json!({"lease": lease, "do": "fail", "result": {}})).await;
    assert_eq!(text(&told, "detail"), r#"result belongs to do: "done", not to "fail""#);
    let emit = json!([{"queue": "orders", "body": "x"}]);
    let told = broker.settle("orders", json!({"lease": lease, "do": "done", "emit": emit})).await;
    let detail = "emit[0]: name: an emit without a key needs a name, from which its key is derived";
    assert_eq!(text(&told, "detail"), detail);
    let put = ask("PUT", "/v1/queues/other").body(r#"{"lease_ms":99999999999999999999999}"#);
    let told = broker.ask(put).await.fails(422, "invalid_config");
    assert!(text(&told, "detail").contains("the number is too large"), "{told}");
    let batch = json!({"messages": [{"key": "k", "dealy_ms": 5}, {"key": 5}]}).to_string();
    let told = broker.ask(post("/v1/queues/orders/batch", &batch)).await.is(200);
    let keys = [&told["answers"][0]["key"], &told["answers"][1]["key"]];
    assert_eq!(keys, [&json!("k"), &Value::Null]);
    let put = ask("PUT", "/v1/queues/orders").header("if-match", r#""1", "2""#);
    let told = broker.ask(put).await.fails(400, "invalid");
    assert_eq!(text(&told, "detail"), "if-match must be one etag here, not a list");
}
