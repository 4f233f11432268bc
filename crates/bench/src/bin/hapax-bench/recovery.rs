//! Kill -9 with unfinished messages, and open again.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use hapax_bench::report::grouped;
use hapax_core::{Command, Delivery, Outcome, QueueName, Receive, Settle, Verb};
use serde::Serialize;

use crate::rig::{self, Rig};
use crate::{Report, line};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of unfinished messages.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Number of them that are received and done after the last checkpoint.
    #[arg(long, default_value_t = 0)]
    done: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Victim {
    path: PathBuf,
    messages: u64,
    done: u64,
}

#[derive(Serialize)]
struct Fields {
    messages: u64,
    done: u64,
    recovered_s: f64,
    first_delivery_s: f64,
}

pub(crate) fn run(arguments: &Arguments, directory: &Path, report: &Report) -> Result<()> {
    let Arguments { messages, done } = *arguments;
    let path = directory.join(format!("recovery-{done}"));
    let mut victim = Process::new(std::env::current_exe()?)
        .arg("victim")
        .arg(&path)
        .arg(messages.to_string())
        .arg(done.to_string())
        .stdin(Stdio::null())
        .spawn()?;
    let ready = path.with_extension("ready");
    while !ready.exists() {
        ensure!(victim.try_wait()?.is_none(), "the victim ended by itself");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    victim.kill()?; // SIGKILL
    victim.wait()?;
    let start = Instant::now();
    let mut rig = Rig::open(&path)?;
    let recovered_s = start.elapsed().as_secs_f64();
    let queue = QueueName::new("bench", "unfinished")?;
    let receive = Receive {
        queue: queue.clone(),
        max: 100,
        lease_ms: None,
        worker: "w".into(),
        receive_id: None,
        several_per_group: false,
    };
    let outcomes = rig.call(vec![Command::Receive(receive), Command::Show(queue)])?;
    let first_delivery_s = start.elapsed().as_secs_f64();
    let [Outcome::Received(deliveries), Outcome::Queue(view)] = outcomes.as_slice() else {
        anyhow::bail!("unexpected answers: {outcomes:?}");
    };
    ensure!(deliveries.len() == 100, "the oldest are delivered");
    ensure!(view.stats.ready + view.stats.leased == messages - done, "every message is back");
    ensure!(view.stats.keys == done, "and every key");
    rig.close()?;
    let fields = Fields { messages, done, recovered_s, first_delivery_s };
    let lines = [
        line("messages", grouped(messages as f64)),
        line("done behind the last checkpoint", grouped(done as f64)),
        line("back after kill -9", format!("{recovered_s:.2} s")),
        line("first delivery", format!("{first_delivery_s:.2} s")),
    ];
    report.print("recovery", &fields, &lines);
    Ok(())
}

/// Sends messages, signals it by a file, and waits to be killed.
pub(crate) fn victim(arguments: &Victim) -> Result<()> {
    let mut rig = Rig::open(&arguments.path)?;
    let queue = rig.queue("unfinished", true)?;
    send(&mut rig, &queue, arguments.messages)?;
    if arguments.done > 0 {
        rig.partition.checkpoint()?;
        while rig.partition.is_checkpointing() {
            std::thread::park_timeout(Duration::from_millis(1));
            while rig.partition.poll()?.is_some() {}
        }
        // A new owner has the messages only in rows, like one that drains a long backlog.
        rig.close()?;
        rig = Rig::open(&arguments.path)?;
        drain(&mut rig, &queue, arguments.done)?;
    }
    std::fs::write(arguments.path.with_extension("ready"), b"")
        .context("cannot tell that the messages are there")?;
    loop {
        std::thread::park();
    }
}

/// Receives and finishes messages.
fn drain(rig: &mut Rig, queue: &QueueName, count: u64) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let receive = Receive {
            queue: queue.clone(),
            max: left.min(1_000) as u32,
            lease_ms: None,
            worker: "w".into(),
            receive_id: None,
            several_per_group: false,
        };
        let outcomes = rig.call(vec![Command::Receive(receive)])?;
        let [Outcome::Received(deliveries)] = outcomes.as_slice() else {
            anyhow::bail!("unexpected answers: {outcomes:?}");
        };
        let verb = || Verb::Done { result: None, emits: Vec::new() };
        let settle = |delivery: &Delivery| Settle { lease: delivery.lease, verb: verb() };
        let settles = deliveries.iter().map(|delivery| Command::Settle(settle(delivery)));
        rig.call(settles.collect())?;
        left -= deliveries.len() as u64;
    }
    Ok(())
}

fn send(rig: &mut Rig, queue: &QueueName, count: u64) -> Result<()> {
    let messages = rig::messages(100);
    let mut next = 0;
    while next < count {
        let end = (next + 1_000).min(count);
        let mut commands = Vec::with_capacity(1_000);
        for number in next..end {
            commands.push(rig::send(queue, &messages, number, true)?);
        }
        while rig.partition.is_busy() {
            std::thread::park_timeout(Duration::from_millis(1));
            while rig.partition.poll()?.is_some() {}
        }
        let stamp = rig.stamp();
        rig.partition.submit(stamp, commands)?;
        next = end;
    }
    while rig.partition.is_waiting() {
        if rig.partition.poll()?.is_none() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    Ok(())
}
