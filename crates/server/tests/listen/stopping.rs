//! The end of a listener.

use std::time::Duration;

use axum::body::Bytes;
use hapax_server::listen::{Drained, Limits};
use http::StatusCode;
use tokio::net::TcpStream;

use crate::port::{Port, SHORT, get_path, post_echo};
use hapax_testing::{eventually, in_time};

#[tokio::test]
async fn a_stop_lets_running_requests_finish_and_accepts_nothing_new() {
    let port = Port::open(Limits::default(), None).await;
    let (mut one, mut two) = (port.http1().await, port.http2().await);
    let mut idle = [port.http1().await, port.http2().await];
    for client in &mut idle {
        client.echo("before").await;
    }
    // One that has not said a word must not hold anything up either.
    let _silent = port.connect().await;
    let held = port.held.clone();
    let (address, stats) = (port.address, port.stats.clone());
    let stopping = async {
        held.arrive(2).await;
        let stopping = port.stop();
        for client in &mut idle {
            client.closed().await;
            assert!(client.send(post_echo("after")).await.is_err());
        }
        eventually("only the busy ones are left", async || stats.open.get() == 2).await;
        assert!(TcpStream::connect(address).await.is_err());
        assert!(!stopping.is_finished());
        held.release(2);
        in_time(stopping).await.unwrap()
    };
    let (first, second, drained) =
        tokio::join!(one.ask(get_path("/hold")), two.ask(get_path("/hold")), stopping);
    assert_eq!(first, (StatusCode::OK, Bytes::from("held")));
    assert_eq!(second, first);
    assert_eq!(drained, Drained { cut: 0 });
    assert_eq!(stats.open.get(), 0);
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut() {
    let limits = Limits { drain: SHORT, ..Limits::default() };
    let port = Port::open(limits, None).await;
    let (mut one, mut two) = (port.http1().await, port.http2().await);
    let held = port.held.clone();
    let stopping = async {
        held.arrive(2).await;
        in_time(port.stop()).await.unwrap()
    };
    let (first, second, drained) =
        tokio::join!(one.send(get_path("/hold")), two.send(get_path("/hold")), stopping);
    assert!(first.is_err() && second.is_err());
    assert_eq!(drained, Drained { cut: 2 });
}

#[tokio::test]
async fn a_stop_without_connections_takes_no_time() {
    let limits = Limits { drain: Duration::from_secs(3_600), ..Limits::default() };
    Port::open(limits, None).await.close().await;
}
