//! The limits, all in one place.

/// Lines of a Rust file without its tests.
pub(crate) const FILE_LINES_MAX: usize = 600;

/// Lines of a file that holds only tests.
pub(crate) const TEST_FILE_LINES_MAX: usize = 1_200;

/// Columns of a line; a line with an address in it may be longer.
pub(crate) const LINE_COLUMNS_MAX: usize = 100;

/// Lines of a function, from its `fn` to its closing brace.
pub(crate) const FUNCTION_LINES_MAX: usize = 70;

/// Asserts per 100 lines of code in `core` and `store`. The aim is 3; raise this as they get there.
pub(crate) const ASSERTS_PER_100_LINES_MIN: f64 = 2.0;
