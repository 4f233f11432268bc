//! The allocator of the programs: mimalloc, which keeps freed memory for a while.
//!
//! By default mimalloc returns freed memory to the kernel after a second. A broker frees and takes
//! the same large lists, frames and arenas all the time, and the kernel clears every page that it
//! gives out: at 1 KiB a message that was a tenth of all CPU time. Memory is still returned when
//! the load is over.
//!
//! This crate exists for its one foreign declaration: every other crate forbids `unsafe`.

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay`: how long freed memory is kept, in milliseconds.
const PURGE_DELAY: c_int = 15;
/// Longer than it takes under load from one checkpoint to the next, which takes the same memory.
const KEPT_MS: c_long = 10_000;

/// Keeps freed memory for ten seconds, unless the variable `MIMALLOC_PURGE_DELAY` is set. Called
/// first in `main`, while there is one thread.
pub fn keep_freed_memory() {
    foreign::mi_option_set_default(PURGE_DELAY, KEPT_MS);
}

#[expect(unsafe_code, reason = "mimalloc's options have no safe interface; see decision 0022")]
mod foreign {
    use std::ffi::{c_int, c_long};

    unsafe extern "C" {
        /// Sets an option that was not set by a variable of the environment. An unknown number is
        /// ignored.
        pub(super) safe fn mi_option_set_default(option: c_int, value: c_long);
        #[cfg(test)]
        pub(super) safe fn mi_option_get(option: c_int) -> c_long;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If an update numbers its options in another way, this number has another default.
    #[test]
    fn the_option_is_the_one_that_delays_purging() {
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_some() {
            return;
        }
        assert_eq!(foreign::mi_option_get(PURGE_DELAY), 1_000);
        keep_freed_memory();
        assert_eq!(foreign::mi_option_get(PURGE_DELAY), KEPT_MS);
    }
}
