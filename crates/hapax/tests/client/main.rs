//! The Rust client against a running broker, over connections that break.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at surprises")]

#[macro_use]
extern crate hapax_testing;

mod at_most_once;
mod broken;
mod claim_stream;
mod claims;
mod leases;
mod nodes;
mod old;
mod secure;
mod sends;
mod steps;
mod workers;

/// Tries something that ends with its time limit, and again with a longer one: however busy the
/// machine is, one of them is long enough for what has to happen before.
async fn within_some_limit(mut is_so: impl AsyncFnMut(std::time::Duration) -> bool) {
    for ms in [500, 2_000, 8_000, 32_000] {
        if is_so(std::time::Duration::from_millis(ms)).await {
            return;
        }
    }
    panic!("not with half a minute either");
}
