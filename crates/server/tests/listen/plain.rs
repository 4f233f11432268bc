//! Without TLS: both protocols, idle connections, the bound of connections.

use axum::body::Bytes;
use hapax_server::listen::{Limits, Listener};
use http::StatusCode;
use tokio::io::AsyncWriteExt;

use crate::port::{Client, Port, SHORT, get_path, read_to_end};
use hapax_testing::{eventually, in_time};

#[tokio::test]
async fn http1_is_answered_and_the_connection_is_kept() {
    let port = Port::open(Limits::default(), None).await;
    let mut client = port.http1().await;
    for body in ["one", "two", ""] {
        client.echo(body).await;
    }
    client.echo(&"long ".repeat(200_000)).await;
    let (status, peer) = client.ask(get_path("/peer")).await;
    assert_eq!(status, StatusCode::OK);
    assert!(peer.starts_with(b"127.0.0.1:") && peer.ends_with(b" false"), "{peer:?}");
    assert_eq!((port.stats.accepted.get(), port.stats.open.get()), (1, 1));
    drop(client);
    eventually("the connection is gone", async || port.stats.open.get() == 0).await;
    port.close().await;
}

#[tokio::test]
async fn http2_is_answered_without_an_upgrade() {
    let port = Port::open(Limits::default(), None).await;
    let Client::Http2(sender) = port.http2().await else { unreachable!() };
    let mut held = Vec::new();
    for _ in 0..100 {
        let mut client = Client::Http2(sender.clone());
        held.push(tokio::spawn(async move { client.ask(get_path("/hold")).await }));
    }
    port.held.arrive(100).await;
    Client::Http2(sender).echo(&"long ".repeat(200_000)).await;
    port.held.release(100);
    for held in held {
        assert_eq!(in_time(held).await.unwrap(), (StatusCode::OK, Bytes::from("held")));
    }
    assert_eq!(port.stats.accepted.get(), 1);
    port.close().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let port = Port::open(Limits::default(), None).await;
    let error = Listener::bind(port.address, None).await.unwrap_err().to_string();
    assert!(error.contains(&port.address.to_string()) && error.contains("--listen"), "{error}");
    port.close().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let limits = Limits { idle: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut waiting = [port.http1().await, port.http2().await];
    let held = waiting.each_mut().map(|client| client.ask(get_path("/hold")));
    let release = async {
        port.held.arrive(2).await;
        let mut idle = port.http1().await;
        idle.echo("before").await;
        idle.closed().await;
        let mut idle = port.http2().await;
        idle.echo("before").await;
        idle.closed().await;
        // By now those that wait for an answer have waited longer than that.
        port.held.release(2);
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(held), release);
    assert_eq!(answers, vec![(StatusCode::OK, Bytes::from("held")); 2]);
    assert_eq!(port.stats.timed_out.get(), 0, "they were told, not cut");
    port.close().await;
}

#[tokio::test]
async fn connections_beyond_the_bound_are_refused_until_others_end() {
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let mut clients = [port.http1().await, port.http2().await];
    for client in &mut clients {
        client.echo("one of two").await;
    }
    let mut ids = std::collections::HashSet::new();
    for _ in 0..100 {
        let mut stream = port.connect().await;
        stream.write_all(b"GET /peer HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let answer = String::from_utf8(read_to_end(&mut stream).await).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("retry-after: 1"), "{head}");
        let problem: serde_json::Value = serde_json::from_str(body).unwrap();
        let id = problem["request_id"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()) && head.contains(&format!("request-id: {id}\r\n")));
        assert_eq!(
            (&problem["code"], &problem["retryable"]),
            (&"unavailable".into(), &true.into())
        );
    }
    assert_eq!((port.stats.refused.get(), port.stats.accepted.get()), (100, 2));
    let [first, mut second] = clients;
    second.echo("undisturbed").await;
    drop(first);
    eventually("there is room", async || port.stats.open.get() == 1).await;
    // The bound counts tasks; that of the closed connection may be about to be collected.
    let mut next = None;
    while next.is_none() {
        let mut client = port.http1().await;
        let response = client.send(get_path("/peer")).await;
        next = response.ok().filter(|response| response.status() == StatusCode::OK);
    }
    port.close().await;
}
