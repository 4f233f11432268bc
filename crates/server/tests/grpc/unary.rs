//! The calls that are no streams.

use hapax_core::{Command, Outcome, QueueName};
use hapax_partition::route::Routes;
use hapax_wire::proto::redrive_request::Select;
use hapax_wire::proto::settle::Verb;
use hapax_wire::proto::{self, AnswerKind, SettleKind, State};
use tonic::{Code, Status};

use crate::broker::{Broker, code, done, message, messages, named, settle};
use hapax_testing::in_time;

fn queue(name: &str) -> proto::QueueRequest {
    proto::QueueRequest { queue: name.to_owned() }
}

async fn receive(broker: &Broker, name: &str, max: u32) -> Vec<proto::Delivery> {
    let request = proto::ReceiveRequest {
        queue: name.to_owned(),
        max,
        wait_ms: 50_000,
        ..Default::default()
    };
    in_time(broker.client.clone().receive(request)).await.unwrap().into_inner().messages
}

async fn settle_all(
    broker: &Broker,
    name: &str,
    items: Vec<proto::Settle>,
) -> Vec<proto::SettleAnswer> {
    let request = proto::SettleRequest { queue: name.to_owned(), items };
    broker.client.clone().settle(request).await.unwrap().into_inner().answers
}

/// One message that was given up.
async fn one_dead(broker: &Broker, key: &str, error: &str) {
    broker.send("orders", vec![message(0, key, "body")]).await;
    let delivery = receive(broker, "orders", 1).await.remove(0);
    let fail = proto::Fail { error: error.to_owned(), delay_ms: None, dead: true };
    let answers =
        settle_all(broker, "orders", vec![settle(0, &delivery.lease, Verb::Fail(fail))]).await;
    assert!(answers.iter().all(|answer| answer.state() == State::Dead));
}

#[tokio::test]
async fn a_queue_is_created_changed_shown_listed_and_deleted() {
    let broker = Broker::open().await;
    let created = broker.put("orders", r#"{"lease_ms":5000}"#).await.unwrap();
    assert!(created.created && created.created_at_ms > 0);
    let config: serde_json::Value = serde_json::from_str(&created.config_json).unwrap();
    assert_eq!((&config["lease_ms"], &config["max_attempts"]), (&5_000.into(), &10.into()));
    let changed = broker.put("orders", r#"{"lease_ms":6000}"#).await.unwrap();
    assert!(!changed.created && changed.etag != created.etag);

    let mut client = broker.client.clone();
    let outdated = proto::PutQueueRequest {
        queue: "orders".to_owned(),
        config_json: "{}".to_owned(),
        if_match: created.etag,
    };
    let status = client.put_queue(outdated).await.unwrap_err();
    assert_eq!((code(&status), status.code()), ("invalid_config", Code::InvalidArgument));

    broker.put("emails", "").await.unwrap();
    let listed = client.list_queues(proto::ListQueuesRequest {}).await.unwrap().into_inner();
    let names: Vec<_> = listed.queues.iter().map(|queue| queue.queue.as_str()).collect();
    assert_eq!(names, ["emails", "orders"]);
    client.delete_queue(queue("orders")).await.unwrap();
    let status = client.get_queue(queue("orders")).await.unwrap_err();
    assert_eq!((code(&status), status.code()), ("no_such_queue", Code::NotFound));
}

#[tokio::test]
async fn a_configuration_with_a_typo_is_refused_with_its_field() {
    let broker = Broker::open().await;
    for (json, needle) in [
        (r#"{"retention":5}"#, "retention_ms"),
        (r#"{"retention_ms":1000,"retry_horizon_ms":1000}"#, "retention"),
        (r#"{"order":"random"}"#, "order"),
        ("[]", ""),
        ("{", ""),
    ] {
        let status = broker.put("orders", json).await.unwrap_err();
        assert!(["invalid_config", "invalid"].contains(&code(&status)), "{json}: {status:?}");
        assert!(status.message().contains(needle), "{json}: {status:?}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_a_refusal_harms_no_neighbour() {
    let broker = Broker::with_queue("orders", "{}").await;
    let batch = vec![
        message(0, "a", "body"),
        message(0, "", "no key"),
        message(0, "a", "body"),
        message(9, "b", "body"),
    ];
    let answers = broker.send("orders", batch).await;
    use AnswerKind::{Accepted, Error, InFlight};
    let kinds: Vec<_> = answers.iter().map(|answer| answer.kind()).collect();
    assert_eq!(kinds, [Accepted, Error, InFlight, Accepted]);
    assert_eq!(answers[3].r#ref, 9);

    let too_many = proto::SendFrame { queue: "orders".into(), messages: messages("k", 1_001) };
    let status = broker.client.clone().send_batch(too_many).await.unwrap_err();
    assert_eq!((code(&status), status.code()), ("too_large", Code::OutOfRange));
}

#[tokio::test]
async fn a_receive_repeated_under_its_id_gets_the_same_leases() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 5)).await;
    let request = proto::ReceiveRequest {
        queue: "orders".to_owned(),
        max: 2,
        worker: "w".to_owned(),
        receive_id: Some("once".to_owned()),
        ..Default::default()
    };
    let mut client = broker.client.clone();
    let first = client.receive(request.clone()).await.unwrap().into_inner();
    let again = client.receive(request).await.unwrap().into_inner();
    assert_eq!(first.messages.len(), 2);
    let leases = |reply: &proto::ReceiveReply| -> Vec<_> {
        reply.messages.iter().map(|one| one.lease.clone()).collect()
    };
    assert_eq!(leases(&first), leases(&again));
    assert_eq!(broker.stats("orders").await.leased, 2);
    let answers = settle_all(&broker, "orders", vec![done(1, &first.messages[0], "ok")]).await;
    assert_eq!((answers[0].kind(), answers[0].r#ref), (SettleKind::Ok, 1));
}

#[tokio::test]
async fn a_receive_of_nothing_waits_no_longer_than_asked() {
    let broker = Broker::with_queue("orders", "{}").await;
    let request = proto::ReceiveRequest { queue: "orders".into(), max: 1, ..Default::default() };
    let reply = broker.client.clone().receive(request.clone()).await.unwrap().into_inner();
    assert_eq!(reply.messages, []);
    let request = proto::ReceiveRequest { max: 5_000, ..request };
    let status = broker.client.clone().receive(request).await.unwrap_err();
    assert_eq!(code(&status), "invalid");
}

/// What a partition has of the queue `orders`.
async fn stats_in(broker: &Broker, partition: usize) -> hapax_core::Stats {
    let show = Command::Show(QueueName::new("default", "orders").unwrap());
    match broker.service().engine().call(partition, show).await.unwrap() {
        Outcome::Queue(view) => view.stats,
        other => panic!("{other:?}"),
    }
}

/// An id under which a receive is asked of the second of two partitions.
fn id_in_the_second() -> String {
    let routes = Routes::new(2, hapax_core::Recipe::First);
    let ids = (0..).map(|number| format!("receive-{number}"));
    let receive = |id: &str| hapax_core::Receive {
        queue: QueueName::new("default", "orders").unwrap(),
        max: 1,
        lease_ms: None,
        worker: "".into(),
        receive_id: Some(id.into()),
        several_per_group: false,
    };
    let mut in_second = ids.filter(|id| routes.of_receive(&receive(id)) == Some(1));
    in_second.next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_whose_answer_is_not_made_go_to_others_at_once() {
    let broker = Broker::with(|settings| settings.partitions = 2).await;
    broker.put("orders", "{}").await.unwrap();
    let grouped = |message| proto::Message { group: Some("g".to_owned()), ..message };
    broker.send("orders", messages("k", 16).into_iter().map(grouped).collect()).await;
    let before = stats_in(&broker, 1).await.ready;
    assert!(before > 1, "both partitions have some");

    // What is to be known of the queue for the answer stands still, and the caller goes away.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (enter, entered) = tokio::sync::oneshot::channel();
    let engine = broker.service().engine().clone();
    let held = tokio::spawn(async move {
        let stand_still = move |_: &_| {
            enter.send(()).unwrap();
            released.recv().unwrap_err()
        };
        engine.inspect(0, stand_still).await
    });
    entered.await.unwrap();
    let receive = |receive_id: &str| proto::ReceiveRequest {
        queue: "orders".to_owned(),
        max: 1,
        receive_id: Some(receive_id.to_owned()),
        ..Default::default()
    };
    let id = id_in_the_second();
    // Of two without an id, one begins with the partition that answers.
    let receiving = [&*id, "", ""].map(|id| {
        let (mut client, request) = (broker.client.clone(), receive(id));
        tokio::spawn(async move { client.receive(request).await })
    });
    in_time(async { while stats_in(&broker, 1).await.leased < 2 {} }).await;
    for receiving in receiving {
        receiving.abort();
    }
    in_time(async { while stats_in(&broker, 1).await.leased > 1 {} }).await;
    assert_eq!(stats_in(&broker, 1).await.ready, before - 1);
    drop(release);
    held.await.unwrap().unwrap();
    // Under an id they are kept for whoever asks again.
    let again = in_time(broker.client.clone().receive(receive(&id))).await.unwrap().into_inner();
    let answers = settle_all(&broker, "orders", vec![done(1, &again.messages[0], "ok")]).await;
    assert_eq!(answers[0].kind(), SettleKind::Ok);
}

#[tokio::test]
async fn a_received_message_tells_whose_it_is_and_how_long_its_lease_lasts() {
    let broker = Broker::with_queue("orders", r#"{"lease_ms":7000,"dedup_scope":"group"}"#).await;
    let grouped = proto::Message { group: Some("g".to_owned()), ..message(0, "k", "body") };
    broker.send("orders", vec![grouped]).await;
    let delivery = receive(&broker, "orders", 1).await.remove(0);
    assert_eq!((&*delivery.tenant, &*delivery.queue), ("default", "orders"));
    assert_eq!((delivery.lease_ms, delivery.keys_per_group), (7_000, true));
}

#[tokio::test]
async fn a_claim_is_fresh_once_in_flight_then_and_done_at_last() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut client = broker.client.clone();
    let request = proto::ClaimRequest {
        queue: "charges".to_owned(),
        key: "charge-7".to_owned(),
        body: "17 euro".into(),
        headers: [("request".to_owned(), "POST /charges".to_owned())].into(),
        ..Default::default()
    };
    let fresh = client.claim(request.clone()).await.unwrap().into_inner();
    assert_eq!(fresh.answer.as_ref().unwrap().kind(), AnswerKind::Fresh);
    assert!(fresh.fence > 0 && fresh.deadline_ms > 0);
    assert_eq!(fresh.tenant, "default");
    let look = proto::GetKeyRequest { key: Some(named("charges", "charge-7")), wait_ms: 0 };
    let looked = client.get_key(look).await.unwrap().into_inner();
    assert_eq!(looked.headers["request"], "POST /charges", "kept for those who look");
    let second = client.claim(request.clone()).await.unwrap().into_inner().answer.unwrap();
    assert_eq!(second.kind(), AnswerKind::InFlight);
    let other = proto::ClaimRequest { body: "18 euro".into(), ..request.clone() };
    let conflict = client.claim(other).await.unwrap().into_inner().answer.unwrap();
    assert_eq!(conflict.problem.unwrap().code, "conflict");

    let waiting = proto::ClaimRequest { wait_ms: 50_000, ..request.clone() };
    let mut other = broker.client.clone();
    let waiting = tokio::spawn(async move { other.claim(waiting).await.unwrap().into_inner() });
    let result = Some(proto::Blob { body: "charged".into(), content_type: String::new() });
    let done = Verb::Done(proto::Done { result, emits: Vec::new() });
    let answers = settle_all(&broker, "charges", vec![settle(1, &fresh.lease, done)]).await;
    assert_eq!(answers[0].kind(), SettleKind::Ok);
    let answer = in_time(waiting).await.unwrap().answer.unwrap();
    assert_eq!(answer.kind(), AnswerKind::Done);
    assert_eq!(answer.outcome.unwrap().result.unwrap().body, "charged");
}

#[tokio::test]
async fn everything_about_a_key_is_told() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut sent = message(0, "k", "body");
    sent.content_type = "text/plain".to_owned();
    sent.headers.insert("a".to_owned(), "b".to_owned());
    broker.send("orders", vec![sent.clone(), sent.clone()]).await;
    let key = broker.key("orders", "k").await;
    assert_eq!((key.key.as_str(), key.state(), key.attempts), ("k", State::Ready, 0));
    assert_eq!(key.duplicates, 1);
    let body = key.message.unwrap();
    assert_eq!((&body.body[..], body.content_type.as_str()), (&b"body"[..], "text/plain"));
    assert_eq!(key.headers["a"], "b");
    assert!(key.history.iter().any(|event| event.event == "duplicate"), "{:?}", key.history);

    let request = proto::GetKeyRequest { key: Some(named("orders", "absent")), wait_ms: 0 };
    let status = broker.client.clone().get_key(request).await.unwrap_err();
    assert_eq!((code(&status), status.code()), ("no_such_key", Code::NotFound));
    let status = broker.client.clone().get_key(proto::GetKeyRequest::default()).await.unwrap_err();
    assert_eq!(code(&status), "invalid");
}

#[tokio::test]
async fn a_finished_key_is_replayed_with_its_body_and_forgotten() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut client = broker.client.clone();
    broker.send("orders", vec![message(0, "k", "body")]).await;
    let delivery = receive(&broker, "orders", 1).await.remove(0);
    settle_all(&broker, "orders", vec![done(0, &delivery, "ok")]).await;

    let replay = |message| proto::ReplayRequest { key: Some(named("orders", "k")), message };
    let status = client.replay_key(replay(None)).await.unwrap_err();
    assert_eq!(code(&status), "invalid", "the body is gone");
    let status = client.replay_key(replay(Some(message(0, "k", "other")))).await.unwrap_err();
    assert_eq!(code(&status), "conflict");
    client.replay_key(replay(Some(message(0, "k", "body")))).await.unwrap();
    let again = receive(&broker, "orders", 1).await.remove(0);
    assert_eq!((again.generation, again.key.as_str()), (1, "k"));
    settle_all(&broker, "orders", vec![done(0, &again, "ok")]).await;

    client.forget_key(named("orders", "k")).await.unwrap();
    let answer = broker.send("orders", vec![message(0, "k", "new body")]).await.remove(0);
    assert_eq!(answer.kind(), AnswerKind::Accepted);
}

#[tokio::test]
async fn a_page_is_bounded_in_bytes_and_the_next_one_has_the_rest() {
    const BYTES: usize = 1_000_000;
    let broker = Broker::with_queue("orders", "{}").await;
    for number in 0..12 {
        let body = "x".repeat(BYTES);
        broker.send("orders", vec![message(0, &format!("k{number}"), body)]).await;
    }
    let mut client = broker.client.clone().max_decoding_message_size(64 * 1_024 * 1_024);
    let (mut keys, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    while pages == 0 || !cursor.is_empty() {
        let request = proto::BrowseRequest {
            queue: "orders".to_owned(),
            state: State::Ready.into(),
            limit: 100,
            cursor,
        };
        let page = in_time(client.browse(request)).await.unwrap().into_inner();
        assert!(page.messages.len() * BYTES <= 8 * 1_024 * 1_024, "{}", page.messages.len());
        keys.extend(page.messages.into_iter().map(|message| message.key));
        (pages, cursor) = (pages + 1, page.next);
    }
    assert_eq!(keys, (0..12).map(|number| format!("k{number}")).collect::<Vec<_>>());
    assert!(pages > 1, "{pages}");
}

#[tokio::test]
async fn dead_messages_are_browsed_redriven_and_discarded() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut client = broker.client.clone();
    for (key, error) in [("a", "timeout"), ("b", "timeout"), ("c", "refused"), ("d", "refused")] {
        one_dead(&broker, key, error).await;
    }
    let browse = |cursor: &str| proto::BrowseRequest {
        queue: "orders".to_owned(),
        state: State::Dead.into(),
        limit: 3,
        cursor: cursor.to_owned(),
    };
    let first = client.browse(browse("")).await.unwrap().into_inner();
    let keys: Vec<_> = first.messages.iter().map(|message| message.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(first.messages[0].error, "timeout");
    let second = client.browse(browse(&first.next)).await.unwrap().into_inner();
    assert_eq!((second.messages.len(), second.next.as_str()), (1, ""));
    let too_many = proto::BrowseRequest { limit: 1_001, ..browse("") };
    for refused in [browse("nonsense"), too_many] {
        let status = client.browse(refused).await.unwrap_err();
        assert_eq!(code(&status), "invalid");
    }

    let redrive = |id: &str, select, dry_run| proto::RedriveRequest {
        queue: "orders".to_owned(),
        id: id.to_owned(),
        select: Some(select),
        dry_run,
        per_s: None,
    };
    let timeouts = || {
        let error_contains = Some("time".to_owned());
        Select::Filter(proto::RedriveFilter { error_contains, ..Default::default() })
    };
    // It goes on while the broker has other things to do; whoever wants the end asks for it.
    let finished = async |id: &str| {
        let request = proto::GetRedriveRequest { queue: "orders".into(), id: id.to_owned() };
        loop {
            let told = broker.client.clone().get_redrive(request.clone()).await.unwrap();
            let told = told.into_inner();
            if told.done {
                break told;
            }
        }
    };
    let dry = client.redrive(redrive("wet", timeouts(), true)).await.unwrap().into_inner();
    assert_ne!(dry.id, "wet", "a dry run leaves the id to the redrive");
    let dry = in_time(finished(&dry.id)).await;
    assert_eq!((dry.matched, dry.moved, dry.dry_run), (2, 0, true));
    client.redrive(redrive("wet", timeouts(), false)).await.unwrap();
    let moved = in_time(finished("wet")).await;
    assert_eq!((moved.matched, moved.moved), (2, 2));
    let again = client.redrive(redrive("wet", timeouts(), false)).await.unwrap().into_inner();
    assert_eq!(again.moved, 2, "repeated, it moves nothing twice");
    let all = Select::All(proto::RedriveAll {});
    let other = client.redrive(redrive("wet", all, false)).await.unwrap_err();
    assert_eq!(other.code(), tonic::Code::AlreadyExists);
    assert!(other.message().contains("another redrive"), "{other:?}");
    assert_eq!(broker.stats("orders").await.dead, 2);
    let keys = Select::Keys(proto::RedriveKeys { keys: vec!["c".to_owned()], group: None });
    client.redrive(redrive("key", keys, false)).await.unwrap();
    in_time(finished("key")).await;
    client.discard_key(named("orders", "d")).await.unwrap();
    let stats = broker.stats("orders").await;
    assert_eq!((stats.dead, stats.ready), (0, 3));
}

#[tokio::test]
async fn a_parked_message_is_resolved() {
    let broker = Broker::with_queue("orders", r#"{"on_lost":"park"}"#).await;
    let mut client = broker.client.clone();
    for key in ["a", "b"] {
        broker.send("orders", vec![message(0, key, "body")]).await;
        let delivery = receive(&broker, "orders", 1).await.remove(0);
        let begin = Verb::Begin(proto::Begin {});
        settle_all(&broker, "orders", vec![settle(0, &delivery.lease, begin)]).await;
        // Short only now: a machine that stalls would lose it before.
        let extend = Verb::Extend(proto::Extend { lease_ms: Some(100) });
        settle_all(&broker, "orders", vec![settle(0, &delivery.lease, extend)]).await;
        let look = proto::GetKeyRequest { key: Some(named("orders", key)), wait_ms: 50_000 };
        let parked = in_time(client.get_key(look)).await.unwrap().into_inner();
        assert_eq!(parked.state(), State::Parked);
    }
    use proto::resolve_request::Resolution;
    let resolve = |key: &str, resolution| proto::ResolveRequest {
        key: Some(named("orders", key)),
        resolution,
    };
    let status = client.resolve_key(resolve("a", None)).await.unwrap_err();
    assert_eq!(code(&status), "invalid");
    let result = Some(proto::Blob { body: "seen in the bank".into(), ..Default::default() });
    let done = Resolution::Done(proto::ResolveDone { result });
    client.resolve_key(resolve("a", Some(done))).await.unwrap();
    assert_eq!(broker.key("orders", "a").await.result.unwrap().body, "seen in the bank");
    let retry = Resolution::Retry(proto::ResolveRetry {});
    client.resolve_key(resolve("b", Some(retry))).await.unwrap();
    assert_eq!(receive(&broker, "orders", 1).await[0].key, "b");
}

#[tokio::test]
async fn a_queue_is_paused_resumed_and_purged() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut client = broker.client.clone();
    broker.send("orders", messages("k", 3)).await;
    client.pause_queue(queue("orders")).await.unwrap();
    assert!(client.get_queue(queue("orders")).await.unwrap().into_inner().paused);
    client.resume_queue(queue("orders")).await.unwrap();
    assert!(!client.get_queue(queue("orders")).await.unwrap().into_inner().paused);
    let purge = |keys| proto::PurgeRequest { queue: "orders".to_owned(), keys };
    client.purge_queue(purge(true)).await.unwrap();
    assert_eq!(broker.stats("orders").await.ready, 0);
    for call in [client.pause_queue(queue("absent")).await, client.resume_queue(queue("?")).await] {
        assert!(["no_such_queue", "invalid"].contains(&code(&call.unwrap_err())));
    }
}

#[tokio::test]
async fn a_backup_tells_its_progress_and_can_be_opened() {
    let broker = Broker::with_queue("orders", "{}").await;
    broker.send("orders", messages("k", 100)).await;
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("copy");
    let request = |target: &str| proto::BackupRequest { directory: target.to_owned() };
    let mut client = broker.client.clone();
    let path = target.to_str().unwrap();
    let mut told = client.backup(request(path)).await.unwrap().into_inner();
    let mut last = proto::BackupProgress::default();
    while let Some(progress) = in_time(told.message()).await.unwrap() {
        assert!(progress.bytes >= last.bytes);
        last = progress;
    }
    assert!(last.done && last.bytes > 0);
    let data = hapax_server::engine::Data::open(&target, 1).unwrap();
    assert_eq!(usize::from(data.partitions()), broker.service().engine().partitions());

    let refused = |told: Result<_, Status>| told.map(|_: tonic::Response<_>| ()).unwrap_err();
    let status = refused(client.backup(request("relative/path")).await);
    assert_eq!(code(&status), "invalid");
    let taken = refused(client.backup(request(path)).await);
    assert_eq!(code(&taken), "invalid");
    assert!(taken.message().contains("not empty"), "{taken}");
    let inside = broker.service().engine().data().path().join("copy");
    let inside = refused(client.backup(request(inside.to_str().unwrap())).await);
    assert_eq!(code(&inside), "invalid");
    assert!(inside.message().contains("is inside the data directory"), "{inside}");
}

#[tokio::test]
async fn the_services_describe_themselves() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let broker = Broker::open().await;
    let mut reflection = ServerReflectionClient::new(crate::broker::channel(&broker.url()));
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let asks = tokio_stream::once(ask);
    let mut told = reflection.server_reflection_info(asks).await.unwrap().into_inner();
    let reply = in_time(told.message()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = reply.message_response else {
        panic!("{reply:?}");
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"hapax.v1.Hapax") && names.contains(&"grpc.health.v1.Health"));
}

#[tokio::test]
async fn a_method_that_does_not_exist_is_unimplemented() {
    let broker = Broker::open().await;
    let mut grpc = tonic::client::Grpc::new(crate::broker::channel(&broker.url()));
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<proto::Empty, proto::Empty>::default();
    let path = http::uri::PathAndQuery::from_static("/hapax.v1.Hapax/Nothing");
    let called = grpc.unary(tonic::Request::new(proto::Empty {}), path, codec).await;
    assert_eq!(called.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_redrive_tells_what_it_misses_and_can_be_cancelled() {
    let broker = Broker::with_queue("orders", "{}").await;
    for number in 0..20 {
        one_dead(&broker, &format!("k{number}"), "bad").await;
    }
    let mut client = broker.client.clone();
    let keys = vec!["k0".to_owned(), "none".to_owned()];
    let by_keys = proto::RedriveRequest {
        queue: "orders".to_owned(),
        id: "keys".to_owned(),
        select: Some(Select::Keys(proto::RedriveKeys { keys, group: None })),
        ..Default::default()
    };
    let told = client.redrive(by_keys.clone()).await.unwrap().into_inner();
    assert_eq!((told.moved, told.total, &told.missing[..]), (1, Some(2), &["none".to_owned()][..]));
    let all = proto::RedriveRequest {
        id: "all".to_owned(),
        select: Some(Select::All(proto::RedriveAll {})),
        per_s: Some(1),
        ..by_keys.clone()
    };
    assert!(!client.redrive(all).await.unwrap().into_inner().done);
    let named = |id: &str| proto::GetRedriveRequest { queue: "orders".into(), id: id.into() };
    let told = client.cancel_redrive(named("all")).await.unwrap().into_inner();
    assert!(told.cancelled && told.done && told.moved < 19, "{told:?}");
    assert_eq!(code(&client.cancel_redrive(named("x")).await.unwrap_err()), "no_such_key");
    let nothing = proto::RedriveRequest {
        id: "filter".to_owned(),
        select: Some(Select::Filter(proto::RedriveFilter::default())),
        ..by_keys
    };
    assert_eq!(code(&client.redrive(nothing).await.unwrap_err()), "invalid");
}

#[tokio::test]
async fn a_redrive_by_names_too_long_for_keys_is_refused_and_harms_nobody() {
    let broker = Broker::with_queue("orders", "{}").await;
    let mut client = broker.client.clone();
    for bytes in [256, 1_000_000] {
        let keys = vec!["k".repeat(bytes)];
        let request = proto::RedriveRequest {
            queue: "orders".to_owned(),
            id: format!("long-{bytes}"),
            select: Some(Select::Keys(proto::RedriveKeys { keys, group: None })),
            ..Default::default()
        };
        let refused = in_time(client.redrive(request)).await.unwrap_err();
        assert_eq!(code(&refused), "malformed_key", "{bytes}");
    }
    broker.send("orders", messages("k", 1)).await;
    assert_eq!(broker.stats("orders").await.ready, 1);
}
