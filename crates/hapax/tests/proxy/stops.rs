//! SIGTERM: what was begun is finished and remembered.

use std::io::Write;
use std::net::TcpStream;

use crate::process::{Proxy, request, start_broker};
use crate::upstream::Upstream;
use hapax_testing::{Signal, eventually};

on_each!(a_proxy_that_is_told_to_stop_finishes_what_it_began);
async fn a_proxy_that_is_told_to_stop_finishes_what_it_began(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let mut proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    let asking = proxy.asking(request("/gate", "waits"));
    let mut stream = TcpStream::connect(&proxy.address).unwrap();
    let head = "POST /gate HTTP/1.1\r\nhost: x\r\nidempotency-key: gone\r\ncontent-length: 7\r\n";
    write!(stream, "{head}\r\n17 euro").unwrap();
    upstream.called(2).await;
    drop(stream);
    proxy.signal(Signal::TERM);
    let address = proxy.address.clone();
    eventually("the port to close", async || TcpStream::connect(&address).err()).await;
    assert!(proxy.child.try_wait().unwrap().is_none(), "two requests are under way");
    upstream.open(2);
    let told = asking.await.unwrap();
    assert_eq!((told.status, told.is_replayed()), (200, false));
    assert_eq!(proxy.ended().await, Some(0));

    let proxy = Proxy::start(&broker.url(), &upstream.url(), &[]).await;
    for key in ["waits", "gone"] {
        assert!(proxy.ask(request("/gate", key)).await.is_replayed(), "{key}");
    }
    assert_eq!(upstream.calls(), 2);
}

on_each!(a_proxy_does_not_wait_for_ever_and_says_so);
async fn a_proxy_does_not_wait_for_ever_and_says_so(partitions: u16) {
    let (broker, upstream) = (start_broker(partitions), Upstream::start().await);
    let mut proxy = Proxy::start(&broker.url(), &upstream.url(), &["--drain", "200ms"]).await;
    let asking = proxy.asking(request("/hang", "k"));
    upstream.called(1).await;
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.ended().await, Some(1));
    assert!(asking.await.is_err(), "the connection was cut");
}
