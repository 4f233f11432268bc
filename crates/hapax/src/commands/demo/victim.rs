//! The process that is killed: sends, receives and settles, and reports every answer it gets.

use std::io::{Stdout, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use hapax_core::{
    Answer, Blob, Command, Config, Configure, Delivery, Outcome, Receive, Settle, Settled, Verb,
};

use super::{order, orders, receipt};
use crate::partition::Local;

#[derive(Debug, Args)]
pub(crate) struct Victim {
    data: PathBuf,
    /// The first order that is not known to be accepted.
    next: u64,
    /// Settle the remaining messages and exit, instead of working until killed.
    #[arg(long)]
    finish: bool,
}

const ORDERS: u64 = 40;

pub(crate) fn run(arguments: &Victim) -> Result<()> {
    let mut local = Local::open(&arguments.data)?;
    // Short leases, so that those of a killed worker end soon.
    let config = Config { lease_ms: 1_000, backoff_min_ms: 0, ..Config::default() };
    let configure = Configure { queue: orders()?, config, if_version: None };
    local.call(vec![Command::Configure(Box::new(configure))])?;
    let mut next = arguments.next;
    let mut held: Vec<Delivery> = Vec::new();
    let mut out = std::io::stdout();
    loop {
        let mut commands = Vec::new();
        let mut numbers = Vec::new();
        // Each order twice: its first send, and a retry as if the answer had been lost.
        let from = next.saturating_sub(ORDERS).max(arguments.next);
        // The last process, too, begins with what the previous one may have sent without an answer.
        let is_over = arguments.finish && next > arguments.next;
        let (from, to) = if is_over { (next, next) } else { (from, next + ORDERS) };
        for number in from..to {
            commands.push(order(number)?);
            numbers.push(number);
        }
        for delivery in held.drain(..) {
            commands.push(settle(&delivery)?);
        }
        commands.push(receive()?);
        let settled = settled_numbers(&commands);
        next = to;
        let outcomes = local.call(commands)?;
        let mut settled = settled.into_iter();
        let mut numbers = numbers.into_iter();
        for outcome in outcomes {
            match outcome {
                Outcome::Sent(answer) => {
                    let number = numbers.next().context("an answer without an order")?;
                    print_answer(&mut out, number, &answer)?;
                }
                Outcome::Settled(Settled::Ok { .. }) => {
                    let number = settled.next().context("a settle without a message")?;
                    writeln!(out, "done {number} .")?;
                }
                Outcome::Settled(_) => drop(settled.next()),
                Outcome::Received(deliveries) => held = deliveries,
                other => bail!("an unexpected answer: {other:?}"),
            }
        }
        out.flush()?;
        if is_over && held.is_empty() {
            if is_finished(&mut local)? {
                return local.close();
            }
            // Leases that died with their process end within a second.
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
    }
}

fn print_answer(out: &mut Stdout, number: u64, answer: &Answer) -> Result<()> {
    match answer {
        Answer::Accepted { id, .. } => writeln!(out, "accepted {number} {id} .")?,
        Answer::InFlight(flight) => writeln!(out, "duplicate {number} {} .", flight.id)?,
        Answer::Done(done) => writeln!(out, "duplicate {number} {} .", done.id)?,
        other => bail!("order {number}: {other:?}"),
    }
    Ok(())
}

fn receive() -> Result<Command> {
    Ok(Command::Receive(Receive {
        queue: orders()?,
        max: 100,
        lease_ms: None,
        worker: Arc::from(format!("process-{}", std::process::id())),
        receive_id: None,
        several_per_group: false,
    }))
}

fn settle(delivery: &Delivery) -> Result<Command> {
    let body = receipt(number_of(delivery.content.key())?).into();
    let result = Some(Blob { content_type: None, body });
    let verb = Verb::Done { result, emits: Vec::new() };
    Ok(Command::Settle(Settle { lease: delivery.lease, verb }))
}

fn number_of(key: &str) -> Result<u64> {
    Ok(key.trim_start_matches("order-").parse()?)
}

/// The orders of the settles among the commands, read from their receipts.
fn settled_numbers(commands: &[Command]) -> Vec<u64> {
    let results = commands.iter().filter_map(|command| match command {
        Command::Settle(Settle { verb: Verb::Done { result: Some(result), .. }, .. }) => {
            let text = std::str::from_utf8(&result.body).ok()?;
            number_of(text.trim_start_matches("receipt for ")).ok()
        }
        _ => None,
    });
    results.collect()
}

fn is_finished(local: &mut Local) -> Result<bool> {
    let outcomes = local.call(vec![Command::Show(orders()?)])?;
    Ok(matches!(outcomes.as_slice(), [Outcome::Queue(view)] if view.stats.messages() == 0))
}
