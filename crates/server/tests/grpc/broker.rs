//! A broker on a free port, and the two streams as a client sees them.

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use hapax_server::options::Options;
use hapax_testing::{TestBroker, in_time};
use hapax_wire::proto::hapax_client::HapaxClient;
use hapax_wire::proto::{self, settle::Verb};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// A broker, and a client on a connection of its own.
pub(crate) struct Broker {
    broker: TestBroker,
    pub(crate) client: HapaxClient<Channel>,
}

impl Broker {
    pub(crate) async fn open() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let broker = TestBroker::with(change).await;
        let client = HapaxClient::new(channel(&broker.url()));
        Self { broker, client }
    }

    /// With a queue of these rules.
    pub(crate) async fn with_queue(queue: &str, config_json: &str) -> Self {
        let broker = Self::open().await;
        broker.put(queue, config_json).await.unwrap();
        broker
    }

    pub(crate) async fn put(&self, queue: &str, json: &str) -> Result<proto::Queue, Status> {
        let request = proto::PutQueueRequest {
            queue: queue.to_owned(),
            config_json: json.to_owned(),
            if_match: String::new(),
        };
        Ok(self.client.clone().put_queue(request).await?.into_inner())
    }

    pub(crate) async fn stats(&self, queue: &str) -> proto::QueueStats {
        let request = proto::QueueRequest { queue: queue.to_owned() };
        let shown = self.client.clone().get_queue(request).await.unwrap();
        shown.into_inner().stats.unwrap()
    }

    /// Sends one batch, and gets what was answered.
    pub(crate) async fn send(
        &self,
        queue: &str,
        messages: Vec<proto::Message>,
    ) -> Vec<proto::Answer> {
        let frame = proto::SendFrame { queue: queue.to_owned(), messages };
        self.client.clone().send_batch(frame).await.unwrap().into_inner().answers
    }

    pub(crate) async fn key(&self, queue: &str, key: &str) -> proto::Key {
        let request = proto::GetKeyRequest { key: Some(named(queue, key)), wait_ms: 0 };
        self.client.clone().get_key(request).await.unwrap().into_inner()
    }

    pub(crate) async fn sends(&self) -> Sends {
        let (up, frames) = mpsc::channel(4);
        let down = self.client.clone().send(ReceiverStream::new(frames)).await.unwrap();
        Sends { up, down: down.into_inner(), answers: Vec::new() }
    }

    /// A Work stream that is open for a queue, with so much credit.
    pub(crate) async fn works(&self, queue: &str, credit: u32) -> Works {
        let works = self.unopened().await;
        works.say(opening(queue, credit)).await;
        works
    }

    /// The same, on a connection of its own that takes a frame or two and is not read from.
    pub(crate) async fn works_narrow(&self, queue: &str, credit: u32) -> Works {
        let narrow = Endpoint::from_shared(self.url()).unwrap();
        let narrow = narrow.initial_stream_window_size(65_535).connect_lazy();
        let works = Self::unopened_by(HapaxClient::new(narrow)).await;
        works.say(opening(queue, credit)).await;
        works
    }

    pub(crate) async fn unopened(&self) -> Works {
        Self::unopened_by(self.client.clone()).await
    }

    async fn unopened_by(mut client: HapaxClient<Channel>) -> Works {
        let (up, frames) = mpsc::channel(4);
        let down = client.work(ReceiverStream::new(frames)).await.unwrap();
        Works { up, down: down.into_inner(), deliveries: Vec::new(), settled: Vec::new() }
    }
}

impl Deref for Broker {
    type Target = TestBroker;

    fn deref(&self) -> &TestBroker {
        &self.broker
    }
}

pub(crate) fn channel(address: &str) -> Channel {
    Endpoint::from_shared(address.to_owned()).unwrap().connect_lazy()
}

/// A Send stream.
pub(crate) struct Sends {
    up: mpsc::Sender<proto::SendFrame>,
    down: Streaming<proto::SendReply>,
    answers: Vec<proto::Answer>,
}

impl Sends {
    pub(crate) async fn say(&self, queue: &str, messages: Vec<proto::Message>) {
        let frame = proto::SendFrame { queue: queue.to_owned(), messages };
        in_time(self.up.send(frame)).await.unwrap();
    }

    /// The next so many answers, by their references.
    pub(crate) async fn answers(&mut self, count: usize) -> Vec<proto::Answer> {
        while self.answers.len() < count {
            let reply = in_time(self.down.next()).await.unwrap().unwrap();
            assert!(!reply.answers.is_empty(), "a frame says something");
            self.answers.extend(reply.answers);
        }
        let mut answers: Vec<_> = self.answers.drain(..count).collect();
        answers.sort_by_key(|answer| answer.r#ref);
        answers
    }

    pub(crate) async fn one(&mut self, queue: &str, message: proto::Message) -> proto::Answer {
        self.say(queue, vec![message]).await;
        self.answers(1).await.remove(0)
    }

    /// Whether a frame is taken within so long.
    pub(crate) async fn is_taken(&self, frame: proto::SendFrame, within: Duration) -> bool {
        tokio::time::timeout(within, self.up.send(frame)).await.is_ok_and(|sent| sent.is_ok())
    }

    /// Says that nothing more comes, and waits for the end.
    pub(crate) async fn finish(self) -> Result<Vec<proto::Answer>, Status> {
        let Self { up, mut down, mut answers } = self;
        drop(up);
        while let Some(reply) = in_time(down.next()).await {
            answers.extend(reply?.answers);
        }
        Ok(answers)
    }

    /// Waits for the end, without having said anything.
    pub(crate) async fn end(&mut self) -> Result<(), Status> {
        match in_time(self.down.next()).await {
            None => Ok(()),
            Some(Err(status)) => Err(status),
            Some(Ok(reply)) => panic!("not the end: {reply:?}"),
        }
    }
}

/// A Work stream.
pub(crate) struct Works {
    pub(crate) up: mpsc::Sender<proto::WorkFrame>,
    pub(crate) down: Streaming<proto::WorkReply>,
    deliveries: Vec<proto::Delivery>,
    settled: Vec<proto::SettleAnswer>,
}

impl Works {
    pub(crate) async fn say(&self, frame: proto::WorkFrame) {
        in_time(self.up.send(frame)).await.unwrap();
    }

    pub(crate) async fn credit(&self, credit: u32) {
        self.say(proto::WorkFrame { credit, ..Default::default() }).await;
    }

    pub(crate) async fn settle(&self, settles: Vec<proto::Settle>) {
        self.say(proto::WorkFrame { settles, ..Default::default() }).await;
    }

    pub(crate) async fn next(&mut self) -> Result<proto::WorkReply, Status> {
        in_time(self.down.next()).await.unwrap_or_else(|| Err(Status::ok("the end")))
    }

    async fn take(&mut self) {
        let reply = self.next().await.unwrap();
        self.deliveries.extend(reply.deliveries);
        self.settled.extend(reply.settled);
    }

    /// The next so many deliveries.
    pub(crate) async fn deliveries(&mut self, count: usize) -> Vec<proto::Delivery> {
        while self.deliveries.len() < count {
            self.take().await;
        }
        self.deliveries.drain(..count).collect()
    }

    /// The next so many answers, by their references.
    pub(crate) async fn settled(&mut self, count: usize) -> Vec<proto::SettleAnswer> {
        while self.settled.len() < count {
            self.take().await;
        }
        let mut settled: Vec<_> = self.settled.drain(..count).collect();
        settled.sort_by_key(|answer| answer.r#ref);
        settled
    }
}

pub(crate) fn opening(queue: &str, credit: u32) -> proto::WorkFrame {
    let open =
        proto::WorkOpen { queue: queue.to_owned(), worker: "tester".to_owned(), lease_ms: None };
    proto::WorkFrame { open: Some(open), credit, ..Default::default() }
}

pub(crate) fn message(number: u64, key: &str, body: impl Into<Bytes>) -> proto::Message {
    proto::Message {
        r#ref: number,
        key: Some(key.to_owned()),
        body: body.into(),
        ..Default::default()
    }
}

/// So many messages, numbered from zero on, with keys `{prefix}{number}`.
pub(crate) fn messages(prefix: &str, count: u64) -> Vec<proto::Message> {
    (0..count).map(|number| message(number, &format!("{prefix}{number}"), "body")).collect()
}

pub(crate) fn settle(number: u64, lease: &Bytes, verb: Verb) -> proto::Settle {
    proto::Settle { r#ref: number, lease: lease.clone(), verb: Some(verb) }
}

pub(crate) fn done(number: u64, delivery: &proto::Delivery, result: &'static str) -> proto::Settle {
    let result = proto::Blob { body: result.into(), content_type: "text/plain".to_owned() };
    let done = proto::Done { result: Some(result), emits: Vec::new() };
    settle(number, &delivery.lease, Verb::Done(done))
}

pub(crate) fn named(queue: &str, key: &str) -> proto::KeyRequest {
    proto::KeyRequest { queue: queue.to_owned(), key: key.to_owned(), group: String::new() }
}

/// The code of ours that a status carries.
pub(crate) fn code(status: &Status) -> &str {
    status.metadata().get("hapax-code").map_or("none", |code| code.to_str().unwrap())
}

/// The code of a refusal in an answer's place.
pub(crate) fn refusal(answer: &proto::Answer) -> &str {
    answer.problem.as_ref().map_or("", |problem| &problem.code)
}
