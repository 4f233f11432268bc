//! Whose key it is, and where it counts.

use axum::body::Body;
use http::Request;

use crate::shop::{Shop, builder, request};
use hapax_testing::TestQueue;

fn of(account: &str, key: &str) -> Request<Body> {
    let mut request = request("/charges", key);
    request.headers_mut().insert("x-account", account.parse().unwrap());
    request
}

on_each!(keys_of_different_tenants_do_not_meet);
async fn keys_of_different_tenants_do_not_meet(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let shop = Shop::open(builder(&broker.client).tenant(|request| {
        let account = request.headers.get("x-account")?;
        Some(account.to_str().ok()?.to_owned())
    }));
    let ada = shop.ask(of("ada", "k")).await;
    let eve = shop.ask(of("eve", "k")).await;
    assert_eq!((ada.is_replayed(), eve.is_replayed(), shop.calls()), (false, false, 2));
    assert_ne!(ada.body, eve.body);
    assert_eq!(shop.ask(of("ada", "k")).await.body, ada.body);
    assert_eq!(shop.ask(of("eve", "k")).await.body, eve.body);

    let nobody = shop.ask(request("/charges", "k")).await;
    assert_eq!((nobody.status, nobody.code().as_str(), shop.calls()), (401, "unauthorized", 2));
    let nameless = shop.ask(of("", "k")).await;
    assert_eq!((nameless.status, nameless.code().as_str(), shop.calls()), (401, "unauthorized", 2));

    // Whoever the account is, the token may change between two tries.
    let mut fresh_token = of("ada", "k");
    fresh_token.headers_mut().insert("authorization", "Bearer new".parse().unwrap());
    assert!(shop.ask(fresh_token).await.is_replayed());
}

on_each!(a_key_counts_for_its_route_and_its_method_alone);
async fn a_key_counts_for_its_route_and_its_method_alone(partitions: u16) {
    let broker = TestQueue::open(partitions, "http", "{}").await;
    let builder = || builder(&broker.client).required("PUT,PATCH /unlisted");
    let shop = Shop::open(builder());
    shop.ask(request("/charges", "k")).await;
    shop.ask(request("/gate/../orders/7/pay", "k")).await;
    for method in ["PUT", "PATCH"] {
        let request = Request::builder().method(method).uri("/unlisted");
        let request = request.header("idempotency-key", "k").body(Body::from("17 euro")).unwrap();
        assert!(!shop.ask(request).await.is_replayed());
    }
    assert_eq!(shop.calls(), 3, "the path with dots is none of axum's");

    let other = Shop::open(builder().namespace("another service"));
    assert!(!other.ask(request("/charges", "k")).await.is_replayed());
    assert!(Shop::open(builder()).ask(request("/charges", "k")).await.is_replayed());
}
