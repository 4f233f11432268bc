//! A node that does not serve refuses at every door, and names the one that does.

use hapax_testing::http::{Connection, Request};
use hapax_testing::{TestStandby, in_time};
use hapax_wire::proto::hapax_client::HapaxClient;
use hapax_wire::proto::{ListQueuesRequest, SendFrame};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::broker::channel;

const NAMED: &str = "http://10.0.0.7:4747";

#[tokio::test(flavor = "multi_thread")]
async fn over_http_with_a_problem_document() {
    let standby = TestStandby::start(Some(NAMED)).await;
    let address = standby.address();
    let asked = tokio::task::spawn_blocking(move || {
        let mut http = Connection::new(address);
        assert_eq!(http.ask(&Request::get("/livez")).status, 200);
        assert_eq!(http.ask(&Request::get("/errors/unavailable")).status, 200);
        let send = Request::send("orders", "order-42", "lemons").header("request-id", "mine");
        for request in [Request::get("/readyz"), Request::get("/v1/queues"), send] {
            let answer = http.ask(&request);
            let problem = answer.fails(503, "unavailable");
            assert_eq!(problem["serving"], NAMED, "{problem}");
            assert_eq!(problem["retryable"], true, "{problem}");
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(answer.header("hapax-serving"), Some(NAMED));
            assert_eq!(problem["request_id"], answer.header("request-id").unwrap());
        }
    });
    in_time(asked).await.unwrap();
    standby.name(None);
    let asked = tokio::task::spawn_blocking(move || {
        let answer = Connection::new(address).ask(&Request::get("/readyz"));
        let problem = answer.fails(503, "unavailable");
        assert_eq!(problem["detail"], "this node is a standby");
        assert!(problem.get("serving").is_none(), "{problem}");
        assert_eq!(answer.header("hapax-serving"), Some(""));
    });
    in_time(asked).await.unwrap();
}

#[tokio::test]
async fn over_grpc_with_metadata() {
    let standby = TestStandby::start(Some(NAMED)).await;
    let mut hapax = HapaxClient::new(channel(&standby.url()));
    let call = in_time(hapax.list_queues(ListQueuesRequest {})).await.unwrap_err();
    let frames = tokio_stream::iter([SendFrame::default()]);
    let stream = in_time(hapax.send(frames)).await.unwrap_err();
    for status in [call, stream] {
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
        let metadata = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap();
        assert_eq!(metadata("hapax-code"), "unavailable");
        assert_eq!(metadata("hapax-serving"), NAMED);
        assert_eq!(metadata("hapax-retry-after-ms"), "250");
    }
}

#[tokio::test]
async fn health_checks_are_answered() {
    let standby = TestStandby::start(None).await;
    let mut health = HealthClient::new(channel(&standby.url()));
    for service in ["", "hapax.v1.Hapax"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = in_time(health.check(request)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::NotServing);
    }
}
