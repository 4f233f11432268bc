//! What is not protected: it streams, and headers end where they should.

use std::io::{Read, Write};
use std::net::TcpStream;

use axum::body::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::process::{Proxy, start_broker};
use crate::upstream::Upstream;
use hapax_testing::{eventually, in_time};

on_each!(the_upstream_is_told_who_asked_and_nothing_of_the_connection);
async fn the_upstream_is_told_who_asked_and_nothing_of_the_connection(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let request = Request::post("/echo?a=%20b&c")
        .header("host", "shop.example")
        .header("x-forwarded-for", "192.0.2.1")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("te", "trailers")
        .header("idempotency-key", "\"a key\"")
        .header("x-mine", "kept")
        .body(Full::from("body"))
        .unwrap();
    let told = proxy.ask(request).await;
    let lines: Vec<&str> = told.text().lines().collect();
    assert_eq!(lines[0], "/echo?a=%20b&c");
    assert_eq!(lines[lines.len() - 1], "body");
    for line in [
        "host: shop.example",
        "x-forwarded-host: shop.example",
        "x-forwarded-for: 192.0.2.1, 127.0.0.1",
        "x-forwarded-proto: http",
        "via: 1.1 hapax",
        "idempotency-key: \"a key\"",
        "x-mine: kept",
    ] {
        assert!(lines.contains(&line), "{line} is not in {lines:#?}");
    }
    for name in ["x-hop", "te:", "connection"] {
        assert!(!lines.iter().any(|line| line.starts_with(name)), "{name} in {lines:#?}");
    }
}

on_each!(clients_may_speak_http_2);
async fn clients_may_speak_http_2(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    for (path, is_replayed) in [("/echo", false), ("/charges", false), ("/charges", true)] {
        let request = Request::post(format!("http://{}{path}", proxy.address));
        let request = request.header("idempotency-key", "k").header("cookie", "a=1");
        let request = request.header("cookie", "b=2").body(Full::<Bytes>::from("17")).unwrap();
        let response = in_time(client.request(request)).await.unwrap();
        assert_eq!(response.version(), http::Version::HTTP_2);
        assert_eq!(response.headers().contains_key("idempotency-replayed"), is_replayed);
        let body = in_time(response.into_body().collect()).await.unwrap().to_bytes();
        if path == "/echo" {
            let text = String::from_utf8_lossy(&body).into_owned();
            assert!(text.contains(&format!("host: {}\n", proxy.address)), "{text}");
            assert!(text.contains("cookie: a=1; b=2\n"), "{text}");
        }
    }
    assert_eq!(upstream.calls(), 1);
}

on_each!(a_response_streams_through_as_it_comes);
async fn a_response_streams_through_as_it_comes(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let uri = format!("http://{}/stream", proxy.address);
    let request = Request::get(uri).body(Full::<Bytes>::default()).unwrap();
    let mut body = in_time(client.request(request)).await.unwrap().into_body();
    for part in 0..3 {
        // The next part is not even made before this one was seen here.
        let frame = in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, format!("part {part};"));
        upstream.open(1);
    }
    assert!(in_time(body.frame()).await.is_none());
}

on_each!(an_upload_streams_through_as_it_comes_and_has_no_bound);
async fn an_upload_streams_through_as_it_comes_and_has_no_bound(partitions: u16) {
    const PIECE: usize = 64 * 1_024;
    const PIECES: usize = 48;
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &["--request-max", "1000"]).await;
    let address = proxy.address.clone();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = PIECE * PIECES;
    write!(stream, "POST /upload HTTP/1.1\r\nhost: x\r\nconnection: close\r\n").unwrap();
    write!(stream, "content-length: {length}\r\n\r\n").unwrap();
    stream.write_all(&vec![b'x'; PIECE]).unwrap();
    let seen = eventually("the first piece", async || {
        upstream.seen.uploaded.lock().unwrap().last().copied()
    });
    assert!(seen.await <= PIECE, "no more was sent yet");
    let writing = tokio::task::spawn_blocking(move || {
        for _ in 1..PIECES {
            stream.write_all(&vec![b'x'; PIECE]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = in_time(writing).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(&length.to_string()), "{answer}");
}

on_each!(what_is_not_protected_does_not_need_the_broker);
async fn what_is_not_protected_does_not_need_the_broker(partitions: u16) {
    let (mut broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let more = ["--broker-timeout", "300ms"];
    let proxy = Proxy::start(&broker.url(), &upstream.url(), &more).await;
    broker.kill();
    let request = || Request::post("/unlisted").body(Full::from("x")).unwrap();
    assert_eq!(proxy.ask(request()).await.status, 201);
    let protected = proxy.ask(crate::process::request("/charges", "k")).await;
    assert_eq!(protected.problem(), (503, "unavailable".to_owned()));
    assert!(protected.headers.contains_key("retry-after"));
    assert_eq!((upstream.calls(), proxy.beside("/readyz").await.status), (1, 503));
    let series = "hapax_proxy_broker_errors_total{code=\"unavailable\"}";
    assert!(proxy.metric(series).await >= 1);
    let again = proxy.ask(crate::process::request("/charges", "k")).await;
    assert_eq!(again.status, 503);
    let lines = |what: &str| proxy.log().matches(what).count();
    assert_eq!(lines("the broker does not answer"), 1, "{}", proxy.log());
    assert_eq!(lines("the broker answers again"), 0, "{}", proxy.log());
    crate::process::start_again(&mut broker).await;
    eventually("the broker to be back", async || {
        proxy.ask(crate::process::request("/charges", "k")).await.status == 201
    })
    .await;
    assert_eq!(lines("the broker answers again"), 1, "{}", proxy.log());
}
