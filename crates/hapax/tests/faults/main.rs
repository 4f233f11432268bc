//! The broker as a process, under the faults and the bad input that docs/faults.md lists. Rows
//! whose tools this machine lacks say so in a line that begins with SKIPPED.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

/// Makes two tests of a function of the number of partitions.
macro_rules! on_one_and_on_four {
    ($name:ident) => {
        mod $name {
            #[test]
            fn on_one_partition() {
                super::$name(1);
            }

            #[test]
            fn on_four_partitions() {
                super::$name(4);
            }
        }
    };
}

mod access;
mod backups;
mod broker;
mod clocks;
mod crashes;
mod damage;
mod exits;
mod flood;
mod full;
mod history;
mod hostile;
mod http;
mod keys;
mod load;
mod machine;
mod power;
mod syncs;
mod workers;
