//! A worker that prints labels on a printer that takes no keys: never twice, and if it is unknown
//! whether it printed, an operator decides. The program of docs/guides/at-most-once.md; it needs a
//! broker: `hapax dev`.
#![expect(clippy::print_stdout, reason = "a program speaks by printing")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hapax_client::{Admin, Client, Context, Delivery, Failure, Message, Outcome, Worker, new_key};
use hapax_wire::proto::{self, resolve_request::Resolution};

async fn handle(printer: Printer, message: Delivery, context: Context) -> Result<String, Failure> {
    printer.warm_up()?; // What can fail without harm comes before.
    context.begin().await?;
    printer.print(message.body()).map_err(Failure::in_doubt)?;
    Ok("printed".to_owned())
}

/// A printer that is sometimes disconnected, before or after it printed.
#[derive(Clone, Debug, Default)]
struct Printer {
    asked: Arc<AtomicUsize>,
    printed: Arc<AtomicUsize>,
}

impl Printer {
    fn warm_up(&self) -> Result<(), std::io::Error> {
        Ok(())
    }

    fn print(&self, _label: &[u8]) -> Result<(), std::io::Error> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let no_answer = || std::io::Error::other("no answer from the printer");
        if asked == 1 {
            return Err(no_answer()); // It was cut off before.
        }
        self.printed.fetch_add(1, Ordering::SeqCst);
        if asked == 0 {
            return Err(no_answer()); // It was cut off after.
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = std::env::var("HAPAX_SERVER").unwrap_or("http://127.0.0.1:4747".to_owned());
    let client = Client::connect(&server)?;
    let admin = Admin::new(client.clone());
    let made = admin.put_queue("example-labels", r#"{"on_lost":"park"}"#, None).await;
    made.context("is there a broker? Start one with `hapax dev`")?;

    let (printer, labels) = (Printer::default(), client.queue("example-labels"));
    let at_work = printer.clone();
    let worker = Worker::new(labels.clone());
    tokio::spawn(worker.run(move |message, context| handle(at_work.clone(), message, context)));

    for happened in [true, false] {
        let key = new_key();
        let label = || Message::new("To: Ada Lovelace, London").key(&key);
        let wait = Duration::from_secs(60);
        let answer = labels.send_and_wait(label(), wait).await?;
        ensure!(matches!(answer.outcome, Outcome::Parked { .. }), "{answer:?}");
        let name = proto::KeyRequest {
            queue: "example-labels".to_owned(),
            key: key.clone(),
            group: String::new(),
        };
        println!("parked: {}", admin.key(name.clone(), Duration::ZERO).await?.error);

        // An operator looked: `hapax resolve example-labels KEY --done printed`, or --retry.
        let (resolution, word) = match happened {
            true => {
                let result = Some(proto::Blob { body: "printed".into(), ..Default::default() });
                (Resolution::Done(proto::ResolveDone { result }), "it had printed")
            }
            false => (Resolution::Retry(proto::ResolveRetry {}), "it had not"),
        };
        admin.resolve_key(name, resolution).await?;
        let answer = labels.send_and_wait(label(), wait).await?;
        let result = answer.result().and_then(|result| result.text()).unwrap_or_default();
        println!("resolved ({word}): {result}");
    }
    let printed = printer.printed.load(Ordering::SeqCst);
    println!("2 labels, {printed} printed");
    ensure!(printed == 2, "not one each");
    Ok(())
}
