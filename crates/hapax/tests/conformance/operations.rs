//! The operations of steps, by the public calls of the client.

use std::sync::Arc;

use futures_util::StreamExt;
use hapax_client::{Answer, Claim, Done, Error, Failure, Outcome, Settle, Settled, State};
use hapax_wire::{self as wire, proto};
use serde::Serialize;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::worker;
use crate::world::World;

/// How many sends of `send_many` are under way at once.
const AT_ONCE: usize = 8;
/// A queue that was empty for so long is drained.
const EMPTY_MS: u64 = 300;

/// Executes a step. A refusal is a result too; an error is a step that the runner does not know.
pub(crate) async fn perform(world: Arc<World>, step: Value) -> Result<Value, String> {
    let mut fields = Arguments::new(&step);
    let result = match fields.text("op").as_str() {
        "join" => {
            let running = world.background.lock().unwrap().remove(&fields.text("name")).unwrap();
            fields.finish()?;
            return running.await.unwrap();
        }
        "send" | "send_all" | "send_many" => send(&world, &step, &mut fields).await,
        "receive" | "drain" => receive(&world, &step, &mut fields).await,
        "done" | "fail" | "park" | "release" | "begin" | "extend" | "save" => {
            settle(&world, &step, &mut fields).await
        }
        "claim" | "drop_claim" | "is_lost" => claim(&world, &step, &mut fields).await,
        "look" | "forget" | "redrive" | "discard" | "replay" | "resolve" => {
            key(&world, &step, &mut fields).await
        }
        "create_queue" | "queue" | "delete_queue" | "pause" | "resume" | "purge" => {
            queue(&world, &step, &mut fields).await
        }
        _ => other(&world, &step, &mut fields).await,
    };
    let result = result.unwrap_or_else(|error| refusal(&error));
    fields.finish().map(|()| result)
}

type Performed = Result<Value, Error>;

fn ok() -> Value {
    json!({"answer": "ok"})
}

fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

fn refusal(error: &Error) -> Value {
    let differs = match error {
        Error::Refused(refusal) => refusal.first.as_ref().map(|first| first.differs.clone()),
        _ => None,
    };
    json!({
        "answer": "error",
        "code": error.code().as_str(),
        "retryable": error.is_retryable(),
        "detail": error.to_string(),
        "differs": differs,
    })
}

fn answered(answer: &Answer) -> Value {
    let (kind, attempts, error) = match &answer.outcome {
        Outcome::Accepted => ("accepted", None, None),
        Outcome::InFlight { attempts, .. } => ("in_flight", Some(attempts), None),
        Outcome::Done { attempts, .. } => ("done", Some(attempts), None),
        Outcome::Dead { attempts, error } => ("dead", Some(attempts), Some(error)),
        Outcome::Parked { attempts } => ("parked", Some(attempts), None),
        other => panic!("the runner does not know the outcome {other:?}"),
    };
    json!({
        "answer": kind,
        "id": answer.id,
        "state": answer.state,
        "attempts": attempts,
        "result": answer.result(),
        "error": error,
    })
}

// ---- Sending

async fn send(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    let queue = world.client_for(fields.duration("timeout_ms")).queue(fields.text("queue"));
    match step["op"].as_str() {
        Some("send_all") => {
            let messages = fields.list("messages").into_iter().map(|message| {
                let mut fields = Arguments::new(&message);
                let message = fields.message();
                fields.finish().unwrap();
                message
            });
            let answers = queue.send_all(messages.collect::<Vec<_>>()).await?;
            let answers = answers.iter().map(|answer| match answer {
                Ok(answer) => answered(answer),
                Err(error) => refusal(error),
            });
            Ok(json!({"answers": answers.collect::<Vec<_>>()}))
        }
        Some("send_many") => {
            let (prefix, count) = (fields.text("prefix"), fields.number("count").unwrap());
            let sends = (0..count).map(|number| {
                let key = format!("{prefix}{number}");
                queue.send(hapax_client::Message::new(key.clone()).key(key))
            });
            let sent = futures_util::stream::iter(sends).buffer_unordered(AT_ONCE);
            let sent: Vec<Result<Answer, Error>> = sent.collect().await;
            let answered = sent.iter().filter(|it| it.is_ok()).count();
            Ok(json!({"answered": answered, "refused": sent.len() - answered}))
        }
        _ => {
            let wait = fields.duration("wait_ms");
            let message = fields.message();
            let answer = match wait {
                Some(wait) => queue.send_and_wait(message, wait).await?,
                None => queue.send(message).await?,
            };
            Ok(answered(&answer))
        }
    }
}

// ---- Working

async fn receive(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    let queue = fields.text("queue");
    if step["op"] == "drain" {
        return drain(world, &queue).await;
    }
    let request = proto::ReceiveRequest {
        queue,
        max: u32::try_from(fields.number("max").unwrap_or(10)).unwrap(),
        wait_ms: fields.number("wait_ms").unwrap_or_default(),
        lease_ms: fields.number("lease_ms"),
        worker: fields.text_if_given("worker").unwrap_or_default(),
        receive_id: fields.text_if_given("receive_id"),
        several_per_group: false,
    };
    let messages = world.retry().run(|| world.admin.receive(request.clone())).await?;
    Ok(shown(&proto::ReceiveReply { messages }))
}

async fn drain(world: &World, queue: &str) -> Performed {
    let mut keys = Vec::new();
    loop {
        let request = proto::ReceiveRequest {
            queue: queue.to_owned(),
            max: 100,
            wait_ms: EMPTY_MS,
            ..proto::ReceiveRequest::default()
        };
        let messages = world.retry().run(|| world.admin.receive(request.clone())).await?;
        if messages.is_empty() {
            break;
        }
        let items = messages.iter().map(|it| wire::Settle {
            r#ref: 0,
            lease: it.lease.clone(),
            verb: Some(wire::settle::Verb::Done(wire::settle::Done::default())),
        });
        let items: Vec<_> = items.collect();
        let settled = world.retry().run(|| world.admin.settle(queue, items.clone())).await?;
        for (message, answer) in messages.into_iter().zip(settled) {
            assert_eq!(answer.kind(), wire::SettleKind::Ok, "{}: {answer:?}", message.key);
            keys.push(message.key);
        }
    }
    let messages = keys.len();
    keys.sort_unstable();
    keys.dedup();
    Ok(json!({"messages": messages, "distinct": keys.len()}))
}

/// What a settle says.
fn verb(step: &Value, fields: &mut Arguments) -> Settle {
    match step["op"].as_str() {
        Some("done") => {
            let done = fields.result().map_or_else(Done::new, |it| Done::new().result(it));
            Settle::Done(fields.emits().into_iter().fold(done, Done::emit))
        }
        Some(op @ ("fail" | "park")) => {
            let error = fields.text_if_given("error").unwrap_or_default();
            let dead = fields.flag("dead");
            let mut failure = if dead { Failure::dead(error) } else { Failure::new(error) };
            if let Some(delay) = fields.duration("delay_ms") {
                failure = failure.retry_in(delay);
            }
            Settle::Fail(if op == "park" { Failure::in_doubt(failure) } else { failure })
        }
        Some("release") => Settle::Release,
        Some("begin") => Settle::Begin,
        Some("extend") => Settle::Extend(fields.duration("lease_ms")),
        _ => Settle::Save { name: fields.text("name"), data: fields.body().into() },
    }
}

async fn settle(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    let queue = fields.text("queue");
    if let Some(claim) = fields.text_if_given("claim") {
        let held = world.held(&claim);
        return Ok(settled(&held.settle(verb(step, fields)).await?));
    }
    // By its lease, of which the client knows nothing else: an operator's call.
    let mut item = step.clone();
    let item_fields = item.as_object_mut().unwrap();
    for name in ["op", "queue"] {
        item_fields.remove(name);
    }
    item_fields.insert("do".to_owned(), step["op"].clone());
    let item: wire::SettleItem = wire::json::read(item.to_string().as_bytes()).unwrap();
    fields.text("lease");
    verb(step, fields);
    let item = wire::Settle::try_from(item).unwrap();
    let items = || vec![item.clone()];
    let mut answers = world.retry().run(|| world.admin.settle(&queue, items())).await?;
    Ok(shown(&answers.remove(0)))
}

fn settled(settled: &Settled) -> Value {
    match settled {
        Settled::Ok { state, .. } => json!({"answer": "ok", "state": state}),
        Settled::LeaseLost { state, result } => {
            let state = Some(state).filter(|state| **state != State::Unspecified);
            json!({"answer": "lease_lost", "state": state, "result": result})
        }
        other => panic!("the runner does not know the answer {other:?}"),
    }
}

// ---- Claims

async fn claim(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    match step["op"].as_str() {
        Some("drop_claim") => {
            let held = world.claims.lock().unwrap().remove(&fields.text("claim")).unwrap();
            assert_eq!(Arc::strong_count(&held), 1, "nobody else has it");
            return Ok(ok());
        }
        Some("is_lost") => {
            return Ok(json!({"lost": world.held(&fields.text("claim")).is_lost()}));
        }
        _ => {}
    }
    let queue = world.client_for(fields.duration("timeout_ms")).queue(fields.text("queue"));
    let mut request = queue.claim(fields.text("key")).body(fields.body());
    if let Some(fingerprint) = fields.text_if_given("fingerprint") {
        request = request.fingerprint(fingerprint);
    }
    if let Some(lease) = fields.duration("lease_ms") {
        request = request.lease(lease);
    }
    if let Some(wait) = fields.duration("wait_ms") {
        request = request.wait(wait);
    }
    let name = fields.text_if_given("as");
    let held = match request.take().await? {
        Claim::Fresh(held) => held,
        Claim::Done(answer)
        | Claim::InFlight(answer)
        | Claim::Dead(answer)
        | Claim::Parked(answer) => return Ok(answered(&answer)),
    };
    let points = world.points.iter().filter_map(|name| {
        let data = held.recovery_point(name)?;
        Some((name.clone(), shown(&hapax_client::Blob::new(data.clone()))))
    });
    let points: serde_json::Map<String, Value> = points.collect();
    let fresh = json!({
        "answer": "fresh",
        "fence": held.fence().to_string(),
        "tenant": held.tenant(),
        "recovery_points": points,
    });
    if let Some(name) = name {
        world.claims.lock().unwrap().insert(name, Arc::new(held));
    }
    Ok(fresh)
}

// ---- Keys

async fn key(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    let key = proto::KeyRequest {
        queue: fields.text("queue"),
        key: step["key"].as_str().unwrap().to_owned(),
        group: step["group"].as_str().unwrap_or_default().to_owned(),
    };
    let admin = &world.admin;
    if step["op"] == "replay" {
        // The message once more, with its key and its group.
        fields.message();
        let mut message = step.clone();
        for name in ["op", "queue"] {
            message.as_object_mut().unwrap().remove(name);
        }
        let message = wire::json::read(message.to_string().as_bytes()).unwrap();
        admin.replay_key(key, Some(message)).await?;
        return Ok(ok());
    }
    fields.text("key");
    fields.text_if_given("group");
    match step["op"].as_str() {
        Some("look") => {
            let wait = fields.duration("wait_ms").unwrap_or_default();
            let key = world.retry().run(|| admin.key(key.clone(), wait)).await?;
            return Ok(shown(&key));
        }
        Some("forget") => admin.forget_key(key).await?,
        Some("discard") => admin.discard_key(key).await?,
        Some("redrive") => redrive(world, key).await?,
        _ => {
            use proto::resolve_request::Resolution;
            let result = fields.result();
            let resolution = match fields.text("do").as_str() {
                "done" => Resolution::Done(proto::ResolveDone { result }),
                "retry" => Resolution::Retry(proto::ResolveRetry {}),
                other => panic!("the runner does not know how to resolve by {other}"),
            };
            admin.resolve_key(key, resolution).await?;
        }
    }
    Ok(ok())
}

async fn redrive(world: &World, key: proto::KeyRequest) -> Result<(), Error> {
    let group = Some(key.group).filter(|group| !group.is_empty());
    let keys = proto::RedriveKeys { keys: vec![key.key], group };
    let request = proto::RedriveRequest {
        queue: key.queue.clone(),
        id: hapax_client::new_key(),
        select: Some(proto::redrive_request::Select::Keys(keys)),
        dry_run: false,
        per_s: None,
    };
    let mut progress = world.admin.redrive(request).await?;
    while !progress.done {
        tokio::task::yield_now().await;
        progress = world.admin.redrive_progress(&key.queue, &progress.id).await?;
    }
    assert_eq!(progress.moved, 1, "{progress:?}");
    Ok(())
}

// ---- Queues

async fn queue(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    let (queue, admin) = (fields.text("queue"), &world.admin);
    match step["op"].as_str() {
        Some("create_queue") => {
            let config = fields.take("config").to_string();
            return Ok(shown(&admin.put_queue(&queue, &config, None).await?));
        }
        Some("queue") => return Ok(shown(&world.retry().run(|| admin.queue(&queue)).await?)),
        Some("delete_queue") => admin.delete_queue(&queue).await?,
        Some("pause") => admin.pause_queue(&queue).await?,
        Some("resume") => admin.resume_queue(&queue).await?,
        _ => admin.purge_queue(&queue, false).await?,
    }
    Ok(ok())
}

// ---- The rest

async fn other(world: &World, step: &Value, fields: &mut Arguments) -> Performed {
    match step["op"].as_str().unwrap_or_default() {
        "derive" => {
            let (queue, group) = (fields.text("queue"), fields.text("group"));
            let generation = u32::try_from(fields.number("generation").unwrap()).unwrap();
            let (key, name) = (fields.text("key"), fields.text("name"));
            let key = hapax_client::derive(&queue, &group, &key, generation, &name);
            return Ok(json!({"key": key}));
        }
        "new_key" => return Ok(json!({"key": hapax_client::new_key()})),
        "kill_broker" => world.broker.kill().await,
        "start_broker" => world.broker.start_again().await,
        "wait" => tokio::time::sleep(fields.duration("ms").unwrap()).await,
        "start_worker" => worker::start(world, fields),
        "stop_worker" => {
            fields.number("drain_ms");
            worker::stop(world, &fields.text("name")).await?;
        }
        "worker_log" => return Ok(json!({"attempts": worker::log(world, &fields.text("name"))})),
        "calls" => {
            let calls = world.calls.lock().unwrap();
            return Ok(json!({"calls": calls.get(&fields.text("name")).cloned()}));
        }
        op => panic!("the runner does not know the operation {op}"),
    }
    Ok(ok())
}
