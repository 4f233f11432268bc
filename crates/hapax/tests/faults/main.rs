//! The broker as a process, under the faults and the bad input that docs/faults.md lists. Rows
//! whose tools this machine lacks say so in a line that begins with SKIPPED.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that fails should say where"
)]

#[macro_use]
extern crate hapax_testing;

mod access;
mod backups;
mod clocks;
mod crashes;
mod damage;
mod exits;
mod flood;
mod full;
mod hostile;
mod keys;
mod machine;
mod power;
mod syncs;
mod workers;

the_program!();
