//! Support for the tests of several crates: brokers, in this process and as processes; PostgreSQL;
//! connections that break; an HTTP client that hides nothing; waiting for conditions.
//!
//! A development dependency only. Support for the tests of a single program stays beside them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test stops at surprises"
)]

mod broker;
#[cfg(feature = "client")]
pub mod history;
mod link;
#[cfg(feature = "client")]
pub mod load;
mod ports;
mod postgres;
mod process;
mod proxy;
#[cfg(feature = "client")]
mod queue;
mod server;
mod standby;
mod wait;

pub mod http;

pub use broker::TestBroker;
pub use link::Link;
pub use ports::free_address;
pub use postgres::{Postgres, as_user, newest_programs, other_programs, skip, spawn};
pub use process::{BrokerProcess, Setup, Signal, printed, program, signal, suspend};
pub use proxy::Proxy;
#[cfg(feature = "client")]
pub use queue::TestQueue;
pub use server::{Beside, PostgresServer, children};
pub use standby::TestStandby;
pub use wait::{Condition, PATIENCE, eventually, in_time, pause, until, within};

/// Makes two tests of a function of the number of partitions: on one, and on four.
#[macro_export]
macro_rules! on_one_and_on_four {
    ($test:ident) => {
        mod $test {
            #[test]
            fn on_one_partition() {
                super::$test(1);
            }

            #[test]
            fn on_four_partitions() {
                super::$test(4);
            }
        }
    };
}

/// The same for an asynchronous function; what follows its name is for `tokio::test`.
#[macro_export]
macro_rules! on_each {
    ($test:ident $(, $($how:tt)+)?) => {
        mod $test {
            #[tokio::test$(($($how)+))?]
            async fn on_one_partition() {
                super::$test(1).await;
            }

            #[tokio::test$(($($how)+))?]
            async fn on_four_partitions() {
                super::$test(4).await;
            }
        }
    };
}

/// Declares the program that the tests of its package start: `HAPAX`, its path; `hapax`, a command
/// of it; and `broker_in`, a broker with its data, log and port file in a directory. Cargo gives
/// the path only to that package.
#[macro_export]
macro_rules! the_program {
    () => {
        const HAPAX: &str = env!("CARGO_BIN_EXE_hapax");

        fn hapax(arguments: &[&str]) -> std::process::Command {
            let mut command = $crate::program(HAPAX);
            command.args(arguments);
            command
        }

        fn broker_in(directory: &std::path::Path) -> $crate::Setup {
            $crate::Setup::new(HAPAX, directory)
        }
    };
}
