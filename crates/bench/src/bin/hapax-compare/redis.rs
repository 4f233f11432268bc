//! Redis Streams with `appendfsync always`: XADD, XREADGROUP of a consumer group, XACK and XDEL,
//! all pipelined; the keys, where they are remembered, by a script of SET NX and XADD.
//!
//! Redis syncs once for all commands that it found on its connections, and replies afterwards. So
//! several connections with full pipelines make its batches large. It works on one thread; more
//! streams or groups would not help.

mod resp;

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax_bench::cpu::Times;
use hapax_bench::interrupt;
use hapax_bench::ledger::{BACKLOG_PAUSE, Ledger, REPEATED};
use hapax_bench::messages::Messages;
use hapax_bench::server::{Directory, Server, free_port};
use rustix::process::Signal;
use uuid::Uuid;

use crate::install;
use crate::system::{Load, Measured, Options, Running, Tuning};
use resp::Connection;

const STREAM: &str = "queue";
const GROUP: &str = "workers";

/// The names of the two fields of an entry.
const KEY: &str = "k";
const BODY: &str = "b";

/// As long as Hapax remembers a finished key by default.
const RETENTION_S: &str = "604800";

/// How long a worker waits when it found nothing, in milliseconds.
const BLOCK_MS: &str = "50";

/// Adds the messages whose keys are new, and answers with their ids. One call takes many of them:
/// calling is what costs most.
const SEND_ONCE: &str = "
local answers = {}
for i, body in ipairs(ARGV) do
    local key = KEYS[i + 1]
    if redis.call('SET', key, '', 'NX', 'EX', RETENTION) then
        answers[i] = redis.call('XADD', KEYS[1], '*', 'k', key, 'b', body)
    else
        answers[i] = false
    end
end
return answers";

const TUNING: Tuning = Tuning { producers: 8, workers: 8, batch: 400, pipeline: 2 };

#[derive(Debug)]
pub(crate) struct Redis {
    remembers_keys: bool,
    tuning: Tuning,
    port: u16,
    server: Server,
}

impl Redis {
    pub(crate) fn start(remembers_keys: bool, options: &Options) -> Result<Self> {
        let directory = Directory::create(&options.dir, "compare")?;
        let port = free_port()?;
        let command = command(directory.path(), port)?;
        let mut server = Server::start("redis-server", command, Signal::KILL, directory)?;
        let mut connection = server.wait_for(|| {
            let mut connection = Connection::open(port)?;
            connection.words(&["PING"]).send()?;
            connection.status()?;
            Ok(connection)
        })?;
        demand_durability(&mut connection, &server)?;
        Ok(Self { remembers_keys, tuning: TUNING.or(options), port, server })
    }

    fn connections(&self, count: u16) -> Result<Vec<Connection>> {
        (0..count).map(|_| Connection::open(self.port)).collect()
    }
}

impl Running for Redis {
    fn server(&self) -> &Server {
        &self.server
    }

    fn run(&self, load: &Load) -> Result<Measured> {
        let mut connection = Connection::open(self.port)?;
        empty(&mut connection)?;
        let sender = Sender::prepare(&mut connection, self.remembers_keys)?;
        let producers = self.connections(self.tuning.producers)?;
        let workers = self.connections(self.tuning.workers)?;
        let before = Times::now(Some(self.server.process_id()));
        let ledger = load.ledger();
        thread::scope(|scope| {
            let (ledger, sender, tuning) = (&ledger, &sender, self.tuning);
            for mut connection in producers {
                scope.spawn(move || {
                    ledger.ended(produce(&mut connection, ledger, sender, tuning));
                });
            }
            for (number, mut connection) in workers.into_iter().enumerate() {
                scope.spawn(move || {
                    let consumer = number.to_string();
                    ledger.ended(work(&mut connection, ledger, tuning, &consumer));
                });
            }
        });
        let measured = Measured::since(before, &self.server, ledger)?;
        verify(&mut connection, &sender, &load.messages)?;
        Ok(measured)
    }
}

fn command(directory: &Path, port: u16) -> Result<Command> {
    let mut command = Command::new(install::redis_server()?);
    command
        .arg("--port")
        .arg(port.to_string())
        .arg("--dir")
        .arg(directory.canonicalize()?)
        .args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "always"])
        // A rewrite in the middle of a run would cost Redis more than it gains in that time.
        .args(["--auto-aof-rewrite-percentage", "0"]);
    Ok(command)
}

fn demand_durability(connection: &mut Connection, server: &Server) -> Result<()> {
    for (setting, wanted) in [("appendonly", "yes"), ("appendfsync", "always")] {
        connection.words(&["CONFIG", "GET", setting]).send()?;
        ensure!(connection.array()? == Some(2), "Redis does not know {setting}");
        let (_, found) = (connection.text()?, connection.text()?);
        ensure!(found == wanted, "Redis runs with {setting} {found}, not {wanted}");
    }
    connection.words(&["INFO", "server"]).send()?;
    let own = format!("process_id:{}\r", server.process_id());
    let is_own = connection.text()?.contains(&own);
    ensure!(is_own, "another server took the port of Redis: run it again");
    Ok(())
}

/// Creates an empty stream with its group, and resets the append-only file.
fn empty(connection: &mut Connection) -> Result<()> {
    connection.words(&["FLUSHALL", "SYNC"]);
    connection.words(&["XGROUP", "CREATE", STREAM, GROUP, "$", "MKSTREAM"]);
    connection.words(&["BGREWRITEAOF"]).send()?;
    connection.status()?;
    connection.status()?;
    connection.status()?;
    loop {
        interrupt::check()?;
        connection.words(&["INFO", "persistence"]).send()?;
        let state = connection.text()?;
        if state.contains("aof_rewrite_in_progress:0") {
            ensure!(state.contains("aof_last_bgrewrite_status:ok"), "Redis could not rewrite");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// How messages are sent: one by one in a pipeline, or through the script, many at once.
#[derive(Debug)]
struct Sender {
    script: Option<String>,
}

impl Sender {
    fn prepare(connection: &mut Connection, remembers_keys: bool) -> Result<Self> {
        let script = remembers_keys
            .then(|| {
                let text = SEND_ONCE.replace("RETENTION", RETENTION_S);
                connection.words(&["SCRIPT", "LOAD", &text]).send()?;
                connection.text()
            })
            .transpose()?;
        Ok(Self { script })
    }

    /// Sends the messages with these numbers; the replies are to be read later.
    fn send(
        &self,
        connection: &mut Connection,
        messages: &Messages,
        numbers: std::ops::Range<u64>,
        body: &mut Vec<u8>,
    ) -> Result<()> {
        if let Some(script) = &self.script {
            let count = usize::try_from(numbers.end - numbers.start)?;
            connection.command(4 + 2 * count).argument("EVALSHA").argument(script);
            connection.argument((count + 1).to_string()).argument(STREAM);
            for number in numbers.clone() {
                connection.argument(messages.key(number).as_bytes());
            }
            for number in numbers {
                messages.write_body(number, body);
                connection.argument(&body);
            }
        } else {
            for number in numbers {
                messages.write_body(number, body);
                connection.command(7).argument("XADD").argument(STREAM).argument("*");
                connection
                    .argument(KEY)
                    .argument(messages.key(number).as_bytes())
                    .argument(BODY)
                    .argument(&body);
            }
        }
        connection.send()
    }

    /// Reads the replies to `messages` messages; returns how many were accepted.
    fn confirm(&self, connection: &mut Connection, messages: u64, id: &mut Vec<u8>) -> Result<u64> {
        if self.script.is_some() {
            let answers = connection.array()?.context("a null from the script")?;
            ensure!(u64::try_from(answers)? == messages, "{answers} answers for {messages}");
        }
        let mut accepted = 0;
        for _ in 0..messages {
            id.clear();
            accepted += u64::from(connection.string(id)?);
        }
        Ok(accepted)
    }
}

fn produce(
    connection: &mut Connection,
    ledger: &Ledger,
    sender: &Sender,
    tuning: Tuning,
) -> Result<()> {
    let mut on_their_way = VecDeque::new();
    let mut scratch = Vec::new();
    let mut id = Vec::new();
    loop {
        ledger.check()?;
        let batch = u64::from(tuning.batch);
        let next = ledger.take(batch, batch);
        let rests = next.is_none();
        if let Some(numbers) = next {
            on_their_way.push_back(numbers.clone());
            sender.send(connection, ledger.messages(), numbers, &mut scratch)?;
        }
        while on_their_way.len() >= usize::from(tuning.pipeline) || rests {
            let Some(numbers) = on_their_way.pop_front() else { break };
            let messages = numbers.end - numbers.start;
            let accepted = sender.confirm(connection, messages, &mut id)?;
            ensure!(accepted == messages, "a new key was refused as known");
            numbers.for_each(|number| ledger.sent(number, None));
        }
        if rests && ledger.is_taken() {
            return Ok(());
        }
        if rests {
            std::thread::sleep(BACKLOG_PAUSE);
        }
    }
}

/// Settles what it got and asks for more in one exchange.
fn work(
    connection: &mut Connection,
    ledger: &Ledger,
    tuning: Tuning,
    consumer: &str,
) -> Result<()> {
    let count = tuning.batch.to_string();
    let mut delivery = Delivery::default();
    let mut waits = false;
    while !ledger.is_complete() {
        ledger.check()?;
        let messages = delivery.len();
        if messages > 0 {
            delivery.settle(connection);
        }
        let read = ["XREADGROUP", "GROUP", GROUP, consumer, "COUNT", &count];
        let source = ["STREAMS", STREAM, ">"];
        // A wait ends with the first message; so only a worker that found none waits.
        let wait: &[&str] = if waits { &["BLOCK", BLOCK_MS] } else { &[] };
        connection.words(&[&read, wait, &source].concat()).send()?;
        if messages > 0 {
            let (acknowledged, deleted) = (connection.integer()?, connection.integer()?);
            ensure!(
                acknowledged == messages && deleted == messages,
                "of {messages} messages {acknowledged} were acknowledged and {deleted} deleted"
            );
            ledger.settled(delivery.numbers.drain(..));
        }
        delivery.read(connection, ledger)?;
        waits = delivery.len() == 0;
    }
    Ok(())
}

/// The messages of one reply, by their ids in the stream.
#[derive(Debug, Default)]
struct Delivery {
    ids: Vec<Vec<u8>>,
    messages: usize,
    numbers: Vec<u64>,
    key: Vec<u8>,
    body: Vec<u8>,
}

impl Delivery {
    fn len(&self) -> u64 {
        self.messages as u64
    }

    fn read(&mut self, connection: &mut Connection, ledger: &Ledger) -> Result<()> {
        self.messages = 0;
        if connection.array()?.is_none() {
            return Ok(());
        }
        connection.array()?;
        connection.text()?;
        for _ in 0..connection.array()?.unwrap_or(0) {
            connection.array()?;
            if self.ids.len() == self.messages {
                self.ids.push(Vec::new());
            }
            let id = self.ids.get_mut(self.messages).context("a list that is too short")?;
            id.clear();
            connection.string(id)?;
            self.messages += 1;
            ensure!(connection.array()? == Some(4), "an entry of other fields");
            for field in [&mut self.key, &mut self.body] {
                field.clear();
                connection.string(field)?;
                field.clear();
                connection.string(field)?;
            }
            let key = Uuid::from_slice(&self.key)?;
            self.numbers.push(ledger.delivered(Some(key), &self.body, None)?);
        }
        Ok(())
    }

    fn settle(&self, connection: &mut Connection) {
        connection.command(3 + self.messages).argument("XACK").argument(STREAM).argument(GROUP);
        for id in self.ids.iter().take(self.messages) {
            connection.argument(id);
        }
        connection.command(2 + self.messages).argument("XDEL").argument(STREAM);
        for id in self.ids.iter().take(self.messages) {
            connection.argument(id);
        }
    }
}

/// Nothing is left, and keys that were sent are known.
fn verify(connection: &mut Connection, sender: &Sender, messages: &Messages) -> Result<()> {
    let mut scratch = Vec::new();
    let mut id = Vec::new();
    if sender.script.is_some() {
        let repeated = messages.count().min(REPEATED);
        sender.send(connection, messages, 0..repeated, &mut scratch)?;
        let accepted = sender.confirm(connection, repeated, &mut id)?;
        ensure!(accepted == 0, "{accepted} repeated keys were accepted again");
    }
    connection.words(&["XLEN", STREAM]).words(&["DBSIZE"]).send()?;
    let (left, keys) = (connection.integer()?, connection.integer()?);
    ensure!(left == 0, "{left} messages are left in the stream");
    let expected = if sender.script.is_some() { messages.count() + 1 } else { 1 };
    ensure!(keys == expected, "Redis has {keys} keys, not {expected}");
    Ok(())
}
