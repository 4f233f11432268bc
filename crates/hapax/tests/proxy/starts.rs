//! Starting a proxy: what it refuses, what it makes, and what it says.

use std::process::{Output, Stdio};

use crate::process::{hapax, ok, start_broker};
use hapax_testing::{BrokerProcess, Signal, eventually, signal};

/// A proxy that is not going to listen for long: told of what it should not accept.
async fn refused(broker: &BrokerProcess, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = hapax(broker.setup.path());
    command.arg("proxy").args(arguments).env("HAPAX_SERVER", broker.url());
    let output: Output =
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const UPSTREAM: [&str; 2] = ["--upstream", "http://127.0.0.1:1"];
const ROUTE: [&str; 2] = ["--route", "POST /charges"];
const PORTS: [&str; 4] = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];

#[tokio::test]
async fn what_cannot_work_is_refused_at_start_with_the_next_step() {
    let broker = start_broker(1);
    for (arguments, why) in [
        (vec!["--route", "GET /charges"], "needs no key"),
        (vec!["--route", "POST charges"], "does not begin with a slash"),
        (vec!["--route", "/charges"], "write it as 'POST /charges'"),
        (vec!["--optional-route", "POST /a/{*b}/c"], "nothing can follow"),
        (vec!["--route", "POST /a", "--route", "POST /a"], "is given twice"),
        (vec![], "--route"),
        (vec!["--route", "POST /a", "--upstream", "https://shop"], "plain http"),
        (vec!["--route", "POST /a", "--release", "6xx"], "is not a status"),
        (vec!["--route", "POST /a", "--lease", "1ms"], "100 ms"),
    ] {
        let is_given = arguments.contains(&"--upstream");
        let upstream = if is_given { &[][..] } else { &UPSTREAM[..] };
        let arguments = [upstream, &arguments, &PORTS].concat();
        let (code, text) = refused(&broker, &arguments).await;
        assert!(code == Some(2) && text.contains(why), "{arguments:?}: {code:?} {text}");
    }
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_told_at_once() {
    let mut broker = start_broker(1);
    broker.kill();
    let (code, text) = refused(&broker, &[&UPSTREAM[..], &ROUTE, &PORTS].concat()).await;
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("hapax dev"), "{text}");
}

#[tokio::test]
async fn a_queue_that_would_weaken_the_promise_is_refused_and_a_missing_one_is_made() {
    let broker = start_broker(1);
    ok(&broker, &["queue", "create", "loose"]).await;
    ok(&broker, &["queue", "create", "lossy", "--guarantee", "at-most-once"]).await;
    ok(&broker, &["queue", "create", "small", "--on-lost", "park", "--max-body-bytes", "9"]).await;
    let all = [&UPSTREAM[..], &ROUTE, &PORTS].concat();
    for (queue, why) in [
        ("loose", "hapax queue set loose --on-lost park"),
        ("lossy", "does not support claims"),
        ("small", "max_body_bytes"),
    ] {
        let (code, text) = refused(&broker, &[&all[..], &["--queue", queue]].concat()).await;
        assert!(code == Some(2) && text.contains(why), "{queue}: {code:?} {text}");
    }

    for (in_doubt, on_lost) in [("park", "park"), ("retry", "redeliver")] {
        let more = ["--queue", in_doubt, "--in-doubt", in_doubt, "--response-max", "2000000"];
        let proxy = crate::process::Proxy::start(&broker.url(), "http://127.0.0.1:1", &more).await;
        let shown = ok(&broker, &["queue", "show", in_doubt, "-o", "json"]).await;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["config"]["on_lost"], on_lost, "{shown}");
        assert_eq!(shown["config"]["max_body_bytes"], 2_032_768);
        drop(proxy);
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let broker = start_broker(1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["--listen", &address, "--metrics-listen", "127.0.0.1:0"];
    let (code, text) = refused(&broker, &[&UPSTREAM[..], &ROUTE, &arguments].concat()).await;
    assert!(code == Some(1) && text.contains(&address), "{code:?} {text}");
}

#[tokio::test]
async fn it_says_what_it_protects_and_what_to_try_next() {
    let broker = start_broker(1);
    let mut command = hapax(broker.setup.path());
    command.arg("proxy").args(UPSTREAM).args(ROUTE).args(PORTS);
    command.args(["--optional-route", "PUT /orders/{order}", "--port-file", "ports"]);
    command.env("HAPAX_SERVER", broker.url());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let file = broker.setup.path().join("ports");
    eventually("its ports", async || file.exists().then_some(())).await;
    signal(child.id(), Signal::TERM);
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = output.await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ports = std::fs::read_to_string(file).unwrap();
    let ports: Vec<&str> = ports.lines().collect();
    for line in [
        format!("Hapax listens at http://{}, in front of http://127.0.0.1:1", ports[0]),
        "  POST /charges                  needs a key".to_owned(),
        "  PUT /orders/{order}            may have a key".to_owned(),
        "  everything else                streams through".to_owned(),
        "  keys      in the queue http, remembered for 7 d".to_owned(),
        format!("  metrics   http://{}/metrics", ports[1]),
        format!("  curl -i -X POST -H 'Idempotency-Key: try-1' --data '{{}}' 'http://{}", ports[0]),
    ] {
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("created the queue http"));
}
