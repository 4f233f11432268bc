//! The conformance suite of the clients, with the Rust client. `clients/conformance/README.md`
//! describes the cases; `HAPAX_CASES` names another file with cases.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

mod arguments;
mod matching;
mod operations;
mod worker;
mod world;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Map, Value, json};

use arguments::Arguments;
use world::{Broker, World};

const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// How many cases run at once.
const AT_ONCE: usize = 8;

/// Cases that leave the broker alone run several at a time: most of their time they wait for a
/// lease to end. Those that kill it follow, one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_rust_client_passes_every_case() {
    let broker = Arc::new(Broker::start());
    let cases = cases();
    assert!(!cases.is_empty());
    let count = cases.len();
    let (killing, peaceful): (Vec<_>, Vec<_>) = cases.into_iter().partition(kills);
    broker.start_again().await;
    let running = peaceful.into_iter().map(|case| failure(Arc::clone(&broker), case));
    let mut failed: Vec<String> = futures_util::stream::iter(running)
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    for case in killing {
        broker.start_again().await;
        failed.extend(failure(Arc::clone(&broker), case).await);
    }
    assert!(failed.is_empty(), "{} of {count} failed:\n{}\n", failed.len(), failed.join("\n"));
}

fn kills(case: &Value) -> bool {
    case["steps"].as_array().unwrap().iter().any(|step| step["op"] == "kill_broker")
}

/// Runs a case; returns its name and why it failed, if it did.
async fn failure(broker: Arc<Broker>, case: Value) -> Option<String> {
    let name = case["name"].clone();
    // In a task of its own: a case that panics does not end the others.
    let why = match tokio::spawn(run(broker, case)).await {
        Ok(Ok(())) => return None,
        Ok(Err(why)) => why,
        Err(error) => error.to_string(),
    };
    Some(format!("{name}: {why}"))
}

fn cases() -> Vec<Value> {
    let file = std::env::var_os("HAPAX_CASES").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../clients/conformance/cases.json")
    });
    let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let document: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(document["version"], 1);
    document["cases"].as_array().unwrap().clone()
}

async fn run(broker: Arc<Broker>, case: Value) -> Result<(), String> {
    let mut fields = Arguments::new(&case);
    fields.take("name");
    let world = Arc::new(World::new(broker, &case));
    for (queue, config) in fields.take("queues").as_object().unwrap() {
        world.admin.put_queue(queue, &config.to_string(), None).await.unwrap();
    }
    let steps = fields.take("steps");
    fields.finish()?;
    let mut variables = Map::new();
    for (place, step) in steps.as_array().unwrap().iter().enumerate() {
        let done = execute(&world, &mut variables, step).await;
        done.map_err(|why| format!("step {place} {step}: {why}"))?;
    }
    Ok(())
}

/// One step: its operation, repeated for as long as it may be, and what it says about the result.
async fn execute(
    world: &Arc<World>,
    variables: &mut Map<String, Value>,
    step: &Value,
) -> Result<(), String> {
    let mut step = matching::substitute(step, variables)?;
    let fields = step.as_object_mut().unwrap();
    let expected = fields.remove("expect");
    let keep = fields.remove("keep");
    let within = fields.remove("within_ms").map(|ms| Duration::from_millis(ms.as_u64().unwrap()));
    if let Some(name) = fields.remove("background") {
        let running = tokio::spawn(operations::perform(Arc::clone(world), step));
        world.background.lock().unwrap().insert(name.as_str().unwrap().to_owned(), running);
        return Ok(());
    }
    let end = Instant::now() + within.unwrap_or_default();
    let result = loop {
        let result = operations::perform(Arc::clone(world), step.clone()).await?;
        let matched = matching::check(expected.as_ref().unwrap_or(&json!({})), &result);
        match matched {
            Ok(()) => break result,
            Err(_) if Instant::now() < end => tokio::time::sleep(BETWEEN_TRIES).await,
            Err(why) => return Err(format!("{why}\nin {result}")),
        }
    };
    for (name, path) in keep.iter().filter_map(Value::as_object).flatten() {
        let pointer = format!("/{}", path.as_str().unwrap().replace('.', "/"));
        let value = result.pointer(&pointer).ok_or_else(|| format!("no {path} in {result}"))?;
        variables.insert(name.clone(), value.clone());
    }
    Ok(())
}
