//! One file per command, one `match` above them.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod dead;
pub(crate) mod demo;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod keys;
pub(crate) mod log;
pub(crate) mod manual;
pub(crate) mod peek;
pub(crate) mod proxy;
pub(crate) mod queue;
pub(crate) mod receive;
pub(crate) mod relay;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod sql;
pub(crate) mod tail;
pub(crate) mod token;
pub(crate) mod version;
pub(crate) mod work;

use std::future::Future;

use clap::CommandFactory;

use crate::arguments::{Arguments, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::settings::Profile;

pub(crate) fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Dev(serve) => serve::run(serve, Profile::Dev),
        Command::Serve(serve) => serve::run(serve, Profile::Serve),
        Command::Queue(command) => wait(queue::run(command)),
        Command::Send(send) => wait(send::run(send)),
        Command::Receive(receive) => wait(receive::run(receive)),
        Command::Settle(settle) => wait(receive::settle(settle)),
        Command::Work(work) => wait(work::run(work)),
        Command::Get(get) => wait(get::run(get)),
        Command::Proxy(proxy) => proxy::run(proxy),
        Command::Relay(relay) => wait(relay::run(relay)),
        Command::Sql(sql) => sql::run(sql),
        Command::Peek(peek) => wait(peek::run(peek)),
        Command::Tail(tail) => wait(tail::run(tail)),
        Command::Dead(command) => wait(dead::run(command)),
        Command::Forget(forget) => wait(keys::forget(forget)),
        Command::Replay(replay) => wait(keys::replay(replay)),
        Command::Resolve(resolve) => wait(keys::resolve(resolve)),
        Command::Bench(bench) => bench::run(bench),
        Command::Lint(lint) => settings::lint(lint),
        Command::Check(check) => check::run(check),
        Command::Backup(backup) => wait(backup::backup(backup)),
        Command::Restore(restore) => backup::restore(restore),
        Command::Import(arguments) => import::run(arguments),
        Command::Cluster(command) => cluster::run(command),
        Command::Token(command) => token::run(command),
        Command::Config(command) => settings::config(command),
        Command::Log(log) => wait(log::run(log)),
        Command::Completions(shell) => manual::completions(shell, Arguments::command()),
        Command::Man(man) => manual::man(man, Arguments::command()),
        Command::Version(version) => version::run(version),
        Command::Demo(arguments) => demo::run(arguments).map(|()| Exit::Ok).map_err(Into::into),
        Command::Victim(victim) => demo::victim::run(victim).map(|()| Exit::Ok).map_err(Into::into),
    }
}

/// Runs a command on one thread: it spends most of its time waiting for the broker.
fn wait(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(command)
}
