//! Workers whose handlers do what a case says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_client::{Context, Delivery, Done, Error, Failure, Worker};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::arguments::Arguments;
use crate::world::World;

const DRAIN: Duration = Duration::from_secs(10);

/// A worker that runs, or has run.
#[derive(Debug)]
pub(crate) struct Working {
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<Result<(), Error>>>,
    log: Log,
}

/// What was seen of each attempt, in the order of their starts.
type Log = Arc<Mutex<Vec<Value>>>;
type Calls = Arc<Mutex<HashMap<String, Vec<String>>>>;

/// The attempts of a handler, each with its actions.
type Script = Arc<Vec<Vec<Value>>>;

pub(crate) fn start(world: &World, fields: &mut Arguments) {
    let (queue, name) = (fields.text("queue"), fields.text("name"));
    let concurrency = fields.number("concurrency").unwrap_or(4);
    let drain = world.drains.get(&name).copied().unwrap_or(DRAIN);
    let mut worker = Worker::new(world.client.queue(queue))
        .name(&name)
        .concurrency(usize::try_from(concurrency).unwrap())
        .drain_timeout(drain);
    if let Some(lease) = fields.duration("lease_ms") {
        worker = worker.lease(lease);
    }
    let attempts = fields.list("handler").into_iter();
    let script: Script = Arc::new(attempts.map(|it| it.as_array().unwrap().clone()).collect());
    let (stop, stopped) = oneshot::channel();
    let (log, calls) = (Log::default(), Arc::clone(&world.calls));
    let kept = Arc::clone(&log);
    let handler = move |delivery, context| {
        handle(delivery, context, Arc::clone(&script), Arc::clone(&kept), Arc::clone(&calls))
    };
    let until = async move { drop(stopped.await) };
    let running = Some(tokio::spawn(worker.run_until(until, handler)));
    let working = Working { stop: Some(stop), running, log };
    assert!(world.workers.lock().unwrap().insert(name, working).is_none());
}

pub(crate) async fn stop(world: &World, name: &str) -> Result<(), Error> {
    let (stop, running) = {
        let mut workers = world.workers.lock().unwrap();
        let working = workers.get_mut(name).unwrap();
        (working.stop.take().unwrap(), working.running.take().unwrap())
    };
    let _ = stop.send(());
    running.await.unwrap()
}

pub(crate) fn log(world: &World, name: &str) -> Value {
    let workers = world.workers.lock().unwrap();
    json!(*workers[name].log.lock().unwrap())
}

async fn handle(
    delivery: Delivery,
    context: Context,
    script: Script,
    log: Log,
    calls: Calls,
) -> Result<Done, Failure> {
    let place = {
        let mut log = log.lock().unwrap();
        let (key, attempt) = (delivery.key(), delivery.attempt());
        log.push(json!({"key": key, "attempt": attempt, "steps": {}, "lost": false}));
        log.len() - 1
    };
    let attempt = usize::try_from(delivery.attempt()).unwrap();
    for action in &script[attempt.min(script.len()) - 1] {
        let mut fields = Arguments::new(action);
        let note = |path: &str, value: Value| log.lock().unwrap()[place][path] = value;
        let verb = action.as_object().unwrap().keys().find(|name| VERBS.contains(&name.as_str()));
        let verb = verb.unwrap_or_else(|| panic!("the runner does not know the action {action}"));
        match verb.as_str() {
            "step" => {
                let (name, noted, outcome) = step(&context, &calls, &mut fields).await;
                log.lock().unwrap()[place]["steps"][name] = noted;
                outcome?;
            }
            "save" => context.save(fields.text("save"), fields.body()).await?,
            "begin" => {
                assert!(fields.flag("begin"));
                context.begin().await?;
            }
            "extend_ms" => context.extend(fields.duration("extend_ms")).await?,
            "return" => {
                let mut outcome = Arguments::new(&fields.take("return"));
                let done = outcome.result().map_or_else(Done::new, |it| Done::new().result(it));
                let done = outcome.emits().into_iter().fold(done, Done::emit);
                outcome.finish()?;
                fields.finish()?;
                return Ok(done);
            }
            "fail" => return Err(failure(fields)),
            "panic" => panic!("{}", fields.text("panic")),
            "until" => match fields.text("until").as_str() {
                "lost" => {
                    context.lost().await;
                    note("lost", json!(true));
                }
                "stopping" => context.stopping().await,
                other => panic!("the runner does not know the signal {other}"),
            },
            _ => tokio::time::sleep(fields.duration("sleep_ms").unwrap()).await,
        }
        fields.finish()?;
    }
    Ok(Done::new())
}

const VERBS: [&str; 9] =
    ["step", "save", "begin", "extend_ms", "return", "fail", "panic", "until", "sleep_ms"];

/// A step: its name, what is noted of it, and its outcome.
async fn step(
    context: &Context,
    calls: &Calls,
    fields: &mut Arguments,
) -> (String, Value, Result<Value, Failure>) {
    let name = fields.text("step");
    let (outcome, error) = (fields.take("outcome"), fields.text_if_given("error"));
    let called = Mutex::new(None);
    let call = |key: String| {
        calls.lock().unwrap().entry(name.clone()).or_default().push(key.clone());
        *called.lock().unwrap() = Some(key);
        async move {
            match error {
                None => Ok(outcome),
                Some(error) => Err(Failure::new(error)),
            }
        }
    };
    let outcome = context.step(&name, call).await;
    let called = called.into_inner().unwrap();
    let noted = json!({"called": called.is_some(), "key": called});
    (name, noted, outcome)
}

fn failure(mut fields: Arguments) -> Failure {
    let text = fields.text("fail");
    let mut failure = if fields.flag("dead") { Failure::dead(text) } else { Failure::new(text) };
    if let Some(delay) = fields.duration("retry_in_ms") {
        failure = failure.retry_in(delay);
    }
    if fields.flag("in_doubt") {
        failure = Failure::in_doubt(failure);
    }
    match fields.finish() {
        Ok(()) => failure,
        Err(why) => panic!("{why}"),
    }
}
