//! Tidy: what a reviewer would otherwise say by hand, as tests.
//!
//! Every check is a function from text to findings, so that it can be shown to fail on a bad
//! sample, and one test that runs it over the workspace. A finding names file and line and says
//! what to do. Nothing here knows what the program does, and nothing is written.
//!
//! Rust is read by [`source`], which parts code from comments and literals line by line. That is
//! less than a parser and enough for code that rustfmt has laid out.

mod asserts;
mod dead_files;
mod edges;
mod leftovers;
mod limits;
mod machine;
mod purity;
mod references;
mod shape;
mod source;
mod tree;
