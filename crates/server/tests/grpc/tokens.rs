//! Tokens: who is refused before anything is read, and what ends with a token.

use std::path::PathBuf;
use std::time::Duration;

use hapax_core::{QueueName, Receive};
use hapax_server::auth::{Action, NewToken, Patterns, TokenFile};
use hapax_server::options::Auth;
use hapax_wire::proto;
use hapax_wire::proto::hapax_client::HapaxClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::broker::{Broker, channel, code, message, opening};
use hapax_testing::in_time;

type Client = HapaxClient<InterceptedService<Channel, With>>;

/// Adds `authorization` to every call, once for each token.
#[derive(Clone)]
struct With(Vec<String>);

impl tonic::service::Interceptor for With {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        for token in &self.0 {
            let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().append("authorization", value);
        }
        Ok(request)
    }
}

/// A broker that wants tokens, its data, and a token of each name.
async fn guarded(names: &[&str]) -> (Broker, PathBuf, Vec<String>) {
    let mut data = PathBuf::new();
    let mut tokens = Vec::new();
    let broker = Broker::with(|settings| {
        settings.auth = Auth::Tokens;
        data.clone_from(&settings.data);
        std::fs::create_dir_all(&data).unwrap();
        for name in names {
            let new = NewToken {
                name: Some((*name).to_owned()),
                tenant: "shop".to_owned(),
                queues: Patterns::new(["*".parse().unwrap()]).unwrap(),
                can: "send,work,admin".parse().unwrap(),
                expires_at: None,
            };
            let created = TokenFile::in_directory(&data).create(new, jiff::Timestamp::now());
            tokens.push(created.unwrap().token);
        }
    });
    (broker.await, data, tokens)
}

fn client(broker: &Broker, tokens: &[&String]) -> Client {
    let tokens = tokens.iter().map(|token| (*token).clone()).collect();
    HapaxClient::with_interceptor(channel(&broker.url()), With(tokens))
}

async fn put(client: &mut Client) {
    let queue = proto::PutQueueRequest {
        queue: "orders".to_owned(),
        config_json: "{}".to_owned(),
        if_match: String::new(),
    };
    client.put_queue(queue).await.unwrap();
}

#[tokio::test]
async fn two_tokens_are_no_token() {
    let (broker, _, tokens) = guarded(&["one", "two"]).await;
    let queues = || proto::ListQueuesRequest::default();
    client(&broker, &[&tokens[0]]).list_queues(queues()).await.unwrap();
    for twice in [[&tokens[0], &tokens[1]], [&tokens[0], &tokens[0]]] {
        let refused = client(&broker, &twice).list_queues(queues()).await.unwrap_err();
        assert_eq!(code(&refused), "unauthorized");
    }
}

#[tokio::test]
async fn what_waits_under_a_token_ends_when_it_is_revoked() {
    let (broker, data, tokens) = guarded(&["worker", "keeper"]).await;
    let (mut worker, mut keeper) = (client(&broker, &[&tokens[0]]), client(&broker, &[&tokens[1]]));
    put(&mut keeper).await;
    let (work_up, frames) = tokio::sync::mpsc::channel(4);
    let mut work = worker.work(ReceiverStream::new(frames)).await.unwrap().into_inner();
    work_up.send(opening("orders", 1_000)).await.unwrap();
    let (idle_up, frames) = tokio::sync::mpsc::channel(4);
    let mut idle = worker.work(ReceiverStream::new(frames)).await.unwrap().into_inner();
    idle_up.send(opening("orders", 0)).await.unwrap();
    let (_send_up, frames) = tokio::sync::mpsc::channel::<proto::SendFrame>(4);
    let mut sends = worker.send(ReceiverStream::new(frames)).await.unwrap().into_inner();
    let (_claim_up, frames) = tokio::sync::mpsc::channel::<proto::ClaimsFrame>(4);
    let mut claims = worker.claims(ReceiverStream::new(frames)).await.unwrap().into_inner();
    let mut poller = worker.clone();
    let receive = proto::ReceiveRequest {
        queue: "orders".to_owned(),
        max: 1,
        wait_ms: 60_000,
        ..proto::ReceiveRequest::default()
    };
    let polling = tokio::spawn(async move { poller.receive(receive).await });
    // All streams and the poll wait by now, or will find the token gone.
    TokenFile::in_directory(&data).revoke("worker").unwrap();

    for stream in [&mut work, &mut idle] {
        let ended = in_time(stream.message()).await.unwrap_err();
        assert_eq!(code(&ended), "unauthorized");
    }
    assert_eq!(code(&in_time(sends.message()).await.unwrap_err()), "unauthorized");
    assert_eq!(code(&in_time(claims.message()).await.unwrap_err()), "unauthorized");
    let polled = in_time(polling).await.unwrap().unwrap_err();
    assert_eq!(code(&polled), "unauthorized");

    let frame =
        proto::SendFrame { queue: "orders".to_owned(), messages: vec![message(1, "k", "x")] };
    keeper.send_batch(frame).await.unwrap();
    let queue = proto::QueueRequest { queue: "orders".to_owned() };
    let stats = keeper.get_queue(queue).await.unwrap().into_inner().stats.unwrap();
    assert_eq!((stats.ready, stats.leased), (1, 0), "nobody who was revoked got it");
}

#[tokio::test]
async fn l10_what_is_held_under_an_id_stays_leased_when_a_revoked_caller_repeats_it() {
    for (id, held) in [(Some("r1"), 1), (None, 0)] {
        let (broker, data, tokens) = guarded(&["worker", "keeper"]).await;
        let mut keeper = client(&broker, &[&tokens[1]]);
        put(&mut keeper).await;
        let bearer = format!("Bearer {}", tokens[0]);
        let worker = broker.service().authenticate(Some(bearer.as_bytes())).unwrap();
        let permit = broker.service().authorise(&worker, Action::Work, "orders").unwrap();
        let receive = || Receive {
            queue: QueueName::new("shop", "orders").unwrap(),
            max: 1,
            lease_ms: None,
            worker: "".into(),
            receive_id: id.map(Into::into),
            several_per_group: false,
        };
        let ask = || broker.service().receive(&permit, receive(), Duration::ZERO);
        if id.is_none() {
            TokenFile::in_directory(&data).revoke("worker").unwrap();
            in_time(broker.service().revoked(&worker)).await;
        }
        let messages = vec![message(1, "k", "x")];
        keeper.send_batch(proto::SendFrame { queue: "orders".to_owned(), messages }).await.unwrap();
        if id.is_some() {
            assert_eq!(ask().await.unwrap().len(), 1);
            TokenFile::in_directory(&data).revoke("worker").unwrap();
            in_time(broker.service().revoked(&worker)).await;
        }
        assert_eq!(ask().await.unwrap_err().code, hapax_wire::Code::Unauthorized);
        let queue = proto::QueueRequest { queue: "orders".to_owned() };
        let stats = keeper.get_queue(queue).await.unwrap().into_inner().stats.unwrap();
        assert_eq!((stats.ready, stats.leased), (1 - held, held), "{id:?}");
    }
}
