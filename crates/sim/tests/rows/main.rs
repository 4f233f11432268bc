//! The rows of docs/faults.md that need no server, one test each. The same faults under a random
//! load are in `sim.rs`.

#![expect(clippy::unwrap_used, reason = "all of this file is a test: what fails here fails it")]

mod disk;
mod rig;
mod rules;
