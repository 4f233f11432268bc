//! A19: every endpoint of every door, asked by everybody: only the allowed cells succeed, what is
//! absent looks like what is forbidden, and nobody finds a token in the data.
//!
//! A cell is an endpoint, a door and a caller. What it must get follows from what the endpoint
//! needs and from what the caller is, nothing else.

mod grpc;

use std::collections::BTreeSet;
use std::path::Path;

use hapax_server::doors::http::ROUTES;
use serde_json::{Value, json};

use crate::exits::contents;
use crate::machine::say;
use crate::{broker_in, hapax};
use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, Setup, printed, until};

const QUEUE: &str = "orders";

/// What an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Nothing: it is there for everybody.
    Nothing,
    /// To be known; it shows what the caller may see.
    Token,
    Send,
    Work,
    Claim,
    Look,
    Browse,
    Create,
    Admin,
    Operate,
}

/// What a cell must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gets {
    Allowed,
    /// 401.
    Unknown,
    /// 403.
    Forbidden,
    /// 404, as if it were not there.
    Absent,
}

/// Somebody who asks.
struct Caller {
    name: &'static str,
    token: Option<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// No token, or none that counts.
    Nobody,
    /// Of the tenant, on the queue, with these permissions.
    Of(&'static str),
    /// Of the tenant, for other queues, with every permission.
    Elsewhere,
    /// Of another tenant, with every permission.
    Stranger,
}

fn expected(needs: Needs, kind: Kind) -> Gets {
    let has = |permissions: &str, one: &str| permissions.split(',').any(|it| it == one);
    match (needs, kind) {
        (Needs::Nothing, _) => Gets::Allowed,
        (_, Kind::Nobody) => Gets::Unknown,
        (Needs::Token, _) => Gets::Allowed,
        (Needs::Operate, Kind::Of(permissions)) if !has(permissions, "operate") => Gets::Forbidden,
        (Needs::Operate, _) => Gets::Allowed,
        (Needs::Create, Kind::Elsewhere) => Gets::Forbidden,
        (Needs::Create, Kind::Stranger) => Gets::Allowed,
        (_, Kind::Elsewhere | Kind::Stranger) => Gets::Absent,
        (needs, Kind::Of(permissions)) => {
            let (send, work) = (has(permissions, "send"), has(permissions, "work"));
            let admin = has(permissions, "admin");
            let is_allowed = match needs {
                Needs::Send => send,
                Needs::Work => work,
                Needs::Claim => send && work,
                Needs::Look => send || work || admin,
                Needs::Browse => work || admin,
                _ => admin,
            };
            if is_allowed { Gets::Allowed } else { Gets::Forbidden }
        }
    }
}

/// The broker, its callers, and the one who may do everything.
struct Guarded {
    setup: Setup,
    broker: BrokerProcess,
    callers: Vec<Caller>,
    root: String,
}

const EVERYTHING: &str = "send,work,admin,operate";

impl Guarded {
    fn start(directory: &Path) -> Self {
        let setup = broker_in(directory).arguments(&["--auth", "tokens", "--log", "debug"]);
        let make = |arguments: &[&str]| token(&setup.data, arguments);
        let root = make(&["--tenant", "shop", "--can", EVERYTHING]);
        let revoked = make(&["--tenant", "shop", "--can", EVERYTHING, "--name", "revoked"]);
        let expired = make(&["--tenant", "shop", "--can", EVERYTHING, "--expires", "1ms"]);
        // The id of a token that counts, with a secret that somebody made up.
        let (id, secret) = root.rsplit_once('_').unwrap();
        let forged = format!("{id}_{}", secret.chars().rev().collect::<String>());
        let mut callers: Vec<Caller> = [
            ("without a token", None),
            ("with nonsense", Some("nonsense".to_owned())),
            ("with a forged token", Some(forged)),
            ("with a revoked token", Some(revoked)),
            ("with an expired token", Some(expired)),
        ]
        .map(|(name, token)| Caller { name, token, kind: Kind::Nobody })
        .into();
        for permissions in
            ["send", "work", "admin", "operate", "send,work", "send,admin", EVERYTHING]
        {
            let arguments = ["--tenant", "shop", "--queue", "orders", "--can", permissions];
            let token = Some(make(&arguments));
            callers.push(Caller { name: permissions, token, kind: Kind::Of(permissions) });
        }
        let elsewhere = ["--tenant", "shop", "--queue", "mail,orders.*", "--can", EVERYTHING];
        let token = Some(make(&elsewhere));
        callers.push(Caller { name: "for other queues", token, kind: Kind::Elsewhere });
        let token = Some(make(&["--tenant", "stranger", "--can", EVERYTHING]));
        callers.push(Caller { name: "of another tenant", token, kind: Kind::Stranger });
        let broker = setup.start();
        let told = hapax(&["token", "rm", "revoked", "--data"]).arg(&setup.data).output().unwrap();
        assert!(told.status.success(), "{}", printed(&told));
        let guarded = Self { setup, broker, callers, root };
        until("the broker to notice the revocation", || {
            let nobodies = guarded.callers.iter().filter(|it| matches!(it.kind, Kind::Nobody));
            let mut told =
                nobodies.map(|it| guarded.door(it).ask(&Request::get("/v1/queues")).status);
            told.all(|status| status == 401).then_some(())
        });
        guarded
    }

    fn door(&self, caller: &Caller) -> Connection {
        match &caller.token {
            Some(token) => self.setup.connection().token(token),
            None => self.setup.connection(),
        }
    }

    fn root(&self) -> Connection {
        self.setup.connection().token(&self.root)
    }

    /// A queue with a message in every place that an endpoint may want one in.
    fn prepare(&self) {
        let mut door = self.root();
        let _ = door.ask(&Request::new("DELETE", "/v1/queues/orders"));
        let made = door.ask(&Request::new("PUT", "/v1/queues/orders").json(&json!({})));
        assert!(matches!(made.status, 200 | 201), "{}", made.text());
        let ends = [json!({ "do": "done" }), json!({ "do": "fail", "error": "e", "dead": true })];
        for (key, mut item) in ["done", "dead"].into_iter().zip(ends) {
            door.ask(&Request::send(QUEUE, key, "x")).is(201);
            let told = door.ask(&Request::post("/v1/queues/orders/receive", &json!({}))).is(200);
            item["lease"] = told["messages"][0]["lease"].clone();
            let settle = Request::post("/v1/queues/orders/settle", &json!({ "items": [item] }));
            assert_eq!(door.ask(&settle).is(200)["answers"][0]["answer"], "ok");
        }
        let redrive = json!({ "id": "r", "keys": ["none"] });
        door.ask(&Request::post("/v1/queues/orders/redrive", &redrive)).is(200);
        door.ask(&Request::send(QUEUE, "ready", "x")).is(201);
    }

    /// Whatever a stranger made in its own tenant goes, so that its next cell finds nothing.
    fn tidy(&self, caller: &Caller) {
        if matches!(caller.kind, Kind::Stranger) {
            let _ = self.door(caller).ask(&Request::new("DELETE", "/v1/queues/orders"));
        }
    }
}

fn token(data: &Path, arguments: &[&str]) -> String {
    let output = hapax(&["token", "create", "--data"]).arg(data).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An endpoint of the HTTP door, and a request that succeeds where it is allowed.
struct Endpoint {
    method: &'static str,
    route: &'static str,
    needs: Needs,
    request: fn() -> Request,
}

macro_rules! endpoints {
    ($($method:literal $route:literal $needs:ident $request:expr;)+) => {
        const ENDPOINTS: &[Endpoint] = &[$(Endpoint {
            method: $method,
            route: $route,
            needs: Needs::$needs,
            request: || $request,
        },)+];
    };
}

fn post(path: &str, json: Value) -> Request {
    Request::post(&format!("/v1/queues/orders/{path}"), &json)
}

endpoints! {
    "get" "/" Nothing Request::get("/");
    "get" "/livez" Nothing Request::get("/livez");
    "get" "/readyz" Nothing Request::get("/readyz");
    // From the broker's own machine it is open; there is no other here.
    "get" "/metrics" Nothing Request::get("/metrics");
    "get" "/errors" Nothing Request::get("/errors");
    "get" "/errors/{code}" Nothing Request::get("/errors/conflict");
    "get" "/v1/openapi.json" Nothing Request::get("/v1/openapi.json");
    "get" "/v1/limits" Nothing Request::get("/v1/limits");
    "get" "/v1/queues" Token Request::get("/v1/queues");
    "put" "/v1/queues/{queue}" Create Request::new("PUT", "/v1/queues/orders").json(&json!({}));
    "get" "/v1/queues/{queue}" Look Request::get("/v1/queues/orders");
    "delete" "/v1/queues/{queue}" Admin Request::new("DELETE", "/v1/queues/orders");
    "post" "/v1/queues/{queue}/pause" Admin post("pause", json!({}));
    "post" "/v1/queues/{queue}/resume" Admin post("resume", json!({}));
    "post" "/v1/queues/{queue}/purge" Admin post("purge", json!({}));
    "post" "/v1/queues/{queue}/messages" Send Request::send(QUEUE, "new", "x");
    "get" "/v1/queues/{queue}/messages" Browse
        Request::get("/v1/queues/orders/messages?state=dead");
    "post" "/v1/queues/{queue}/batch" Send post("batch", json!({ "messages": [{ "key": "b" }] }));
    "post" "/v1/queues/{queue}/receive" Work post("receive", json!({}));
    "post" "/v1/queues/{queue}/settle" Work
        post("settle", json!({ "items": [{ "lease": "AAAA", "do": "release" }] }));
    "post" "/v1/queues/{queue}/claims" Claim Request::new("POST", "/v1/queues/orders/claims")
        .header("idempotency-key", "claimed").body("x");
    "post" "/v1/queues/{queue}/redrive" Admin post("redrive", json!({ "all": true }));
    "get" "/v1/queues/{queue}/redrive/{id}" Admin Request::get("/v1/queues/orders/redrive/r");
    "delete" "/v1/queues/{queue}/redrive/{id}" Admin
        Request::new("DELETE", "/v1/queues/orders/redrive/r");
    "get" "/v1/queues/{queue}/keys/{key}" Look Request::get("/v1/queues/orders/keys/done");
    "post" "/v1/queues/{queue}/keys/{key}/forget" Admin post("keys/done/forget", json!({}));
    "post" "/v1/queues/{queue}/keys/{key}/replay" Admin
        Request::new("POST", "/v1/queues/orders/keys/done/replay").body("x");
    "post" "/v1/queues/{queue}/keys/{key}/redrive" Admin post("keys/dead/redrive", json!({}));
    "post" "/v1/queues/{queue}/keys/{key}/discard" Admin post("keys/dead/discard", json!({}));
    "post" "/v1/queues/{queue}/keys/{key}/resolve" Admin
        post("keys/dead/resolve", json!({ "do": "retry" }));
}

#[test]
fn a19_only_the_allowed_cells_of_every_endpoint_succeed() {
    let listed: BTreeSet<(&str, &str)> = ENDPOINTS.iter().map(|it| (it.method, it.route)).collect();
    let routes: BTreeSet<(&str, &str)> = ROUTES.iter().copied().collect();
    assert_eq!(listed, routes, "every route is in the table");

    let directory = tempfile::tempdir().unwrap();
    let guarded = Guarded::start(directory.path());
    guarded.prepare();
    let mut wrong = Vec::new();
    let (mut cells, mut allowed) = (0, 0);
    for endpoint in ENDPOINTS {
        for caller in &guarded.callers {
            let expected = expected(endpoint.needs, caller.kind);
            if expected == Gets::Allowed && endpoint.needs != Needs::Nothing {
                guarded.prepare();
            }
            let response = guarded.door(caller).ask(&(endpoint.request)());
            let gets = match (response.status, response.code().as_str()) {
                (401, "unauthorized") => Some(Gets::Unknown),
                (403, "forbidden") => Some(Gets::Forbidden),
                (404, "no_such_queue") => Some(Gets::Absent),
                (200..300, _) => Some(Gets::Allowed),
                // Only a parked message can be resolved: to be told so is to be let in.
                (400, "invalid") if endpoint.route.ends_with("/resolve") => Some(Gets::Allowed),
                _ => None,
            };
            if gets != Some(expected) {
                let (method, route, name) = (endpoint.method, endpoint.route, caller.name);
                let (status, text) = (response.status, response.text());
                wrong.push(format!("{method} {route} {name}: {status} {text}, not {expected:?}"));
            }
            cells += 1;
            allowed += usize::from(expected == Gets::Allowed);
            guarded.tidy(caller);
        }
    }
    assert!(wrong.is_empty(), "{} of {cells} cells are wrong: {wrong:#?}", wrong.len());
    let (calls, wrong) = grpc::cells(&guarded);
    assert!(wrong.is_empty(), "{} of {calls} calls are wrong: {wrong:#?}", wrong.len());
    guarded.broker.has_not_panicked();
    say(&format!("A19: {cells} cells by HTTP, {allowed} of them allowed, and {calls} by gRPC"));
}

#[test]
fn a19_what_is_absent_looks_like_what_is_forbidden_and_tokens_are_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let guarded = Guarded::start(directory.path());
    guarded.prepare();
    let caller = |kind: &str| guarded.callers.iter().find(|it| it.name == kind).unwrap();
    for endpoint in ENDPOINTS {
        if matches!(endpoint.needs, Needs::Nothing | Needs::Token | Needs::Create) {
            continue;
        }
        // The queue is there, for others; and it is not there, for one who may see everything.
        let forbidden = guarded.door(caller("for other queues")).ask(&(endpoint.request)());
        let strange = guarded.door(caller("of another tenant")).ask(&(endpoint.request)());
        guarded.root().ask(&Request::new("DELETE", "/v1/queues/orders")).is(204);
        let absent = guarded.root().ask(&(endpoint.request)());
        guarded.prepare();
        let shape = |response: &hapax_testing::http::Response| {
            let mut problem = response.json();
            problem["instance"] = Value::Null;
            problem["request_id"] = Value::Null;
            (response.status, problem, response.header("content-type").map(str::to_owned))
        };
        assert_eq!(shape(&forbidden), shape(&absent), "{}", endpoint.route);
        assert_eq!(shape(&strange), shape(&absent), "{}", endpoint.route);
    }
    for name in ["for other queues", "of another tenant"] {
        let list = guarded.door(caller(name)).ask(&Request::get("/v1/queues")).is(200);
        assert_eq!(list["queues"], json!([]), "{name}");
    }

    let tokens: Vec<&String> =
        guarded.callers.iter().filter_map(|it| it.token.as_ref()).chain([&guarded.root]).collect();
    let secrets: Vec<&str> = tokens
        .iter()
        .filter_map(|token| token.rsplit_once('_'))
        .map(|(_, secret)| secret)
        .collect();
    assert!(secrets.len() > 8 && secrets.iter().all(|secret| secret.len() == 64));
    let log = guarded.setup.log();
    let files = contents(&guarded.setup.data);
    assert!(files.keys().any(|path| path.ends_with("tokens.json")));
    let texts = files.keys().map(|path| (path.clone(), std::fs::read(path).unwrap()));
    for (path, bytes) in texts.chain([("the log".into(), log.into_bytes())]) {
        let bytes = crate::exits::without_zeros(&bytes);
        for secret in &secrets {
            let is_there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!is_there, "a token is in {}", path.display());
        }
    }
    guarded.broker.has_not_panicked();
}
