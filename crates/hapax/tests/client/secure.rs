//! Tokens and TLS.

use hapax_client::{Client, Code};
use hapax_server::options::Auth;
use hapax_testing::{PATIENCE, TestBroker, TestQueue, in_time};

#[tokio::test]
async fn a_token_is_needed_where_the_broker_asks_for_one_and_a_wrong_one_is_not_retried() {
    let broker = TestBroker::with(|options| options.auth = Auth::Tokens).await;
    for client in
        [Client::builder(&broker.url()), Client::builder(&broker.url()).token("hapax_wrong")]
    {
        // One that is retried is not answered in time.
        let client = client.timeout(2 * PATIENCE).connect().unwrap();
        let error = in_time(client.queue("orders").send("body")).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), (Code::Unauthorized, false));
        let mut sender = client.queue("orders").sender();
        sender.push("body", 1);
        let error = in_time(sender.answers(&mut Vec::new())).await.unwrap_err();
        assert_eq!(error.code(), Code::Unauthorized);
    }
}

#[tokio::test]
async fn a_broker_with_tls_is_reached_with_its_authority_and_not_without() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["broker.test".to_owned()]).unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let broker = TestBroker::with(|options| {
        (options.tls_cert, options.tls_key) = (Some(certificate), Some(key));
    });
    let broker = broker.await;
    let address = broker.address();
    let builder = |limit| {
        Client::builder(&format!("https://{address}")).server_name("broker.test").timeout(limit)
    };
    let trusting = builder(PATIENCE).ca_certificate(made.cert.pem()).connect().unwrap();
    hapax_client::Admin::new(trusting.clone()).put_queue("orders", "{}", None).await.unwrap();
    assert!(trusting.queue("orders").send("body").await.unwrap().is_new());
    let strange = builder(std::time::Duration::from_secs(2)).connect().unwrap();
    let error = strange.queue("orders").send("body").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}

#[tokio::test]
async fn a_client_says_so_where_the_other_side_is_no_broker() {
    let broker = TestQueue::open(1, "orders", "{}").await;
    let https = format!("https://{}", broker.address());
    crate::within_some_limit(async |limit| {
        let https = Client::builder(&https).timeout(limit).connect().unwrap();
        let error = https.queue("orders").send("body").await.unwrap_err();
        error.to_string().contains(&broker.address().to_string())
    })
    .await;
}
