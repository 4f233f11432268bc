//! Support for the tests of several crates: brokers, in this process and as processes; PostgreSQL;
//! connections that break; an HTTP client that hides nothing; waiting for conditions.
//!
//! A development dependency only. What the tests of one program need alone stays beside them.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test stops at surprises"
)]

mod broker;
mod link;
mod ports;
mod postgres;
mod process;
#[cfg(feature = "client")]
mod queue;
mod wait;

pub mod http;

pub use broker::TestBroker;
pub use link::Link;
pub use postgres::{Postgres, skip, spawn};
pub use process::{BrokerProcess, Setup, Signal, printed, program, signal, suspend};
#[cfg(feature = "client")]
pub use queue::TestQueue;
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
