//! The metrics page in the text format 0.0.4 of Prometheus, for clients that do not accept
//! OpenMetrics.
//!
//! There a counter is described under the name of its sample, which ends in `_total`, and there are
//! no units, no end mark, and fewer types.

use std::collections::BTreeSet;

/// The content type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts the page to that format.
pub fn plain(openmetrics: &str) -> String {
    let types = openmetrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> = types.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut page = String::with_capacity(openmetrics.len() + 64 * counters.len());
    for line in openmetrics.lines() {
        match described(line) {
            Some(("UNIT", ..)) => continue,
            Some((what, name, rest)) => {
                let total = if counters.contains(name) { "_total" } else { "" };
                let rest = if (what, rest) == ("TYPE", "unknown") { "untyped" } else { rest };
                page.extend(["# ", what, " ", name, total, " ", rest]);
            }
            None if line == "# EOF" => continue,
            None => page.push_str(line),
        }
        page.push('\n');
    }
    page
}

/// `HELP`, `TYPE` or `UNIT`, of what, and what it is.
fn described(line: &str) -> Option<(&str, &str, &str)> {
    let (what, line) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = line.split_once(' ')?;
    matches!(what, "HELP" | "TYPE" | "UNIT").then_some((what, name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_described_under_the_names_of_their_samples() {
        let openmetrics = "# HELP hapax_wait_seconds How long, at most 1.5 # s.\n\
                           # TYPE hapax_wait_seconds gauge\n\
                           # UNIT hapax_wait_seconds seconds\n\
                           hapax_wait_seconds 1.5\n\
                           # HELP hapax_sends Sends.\n\
                           # TYPE hapax_sends counter\n\
                           hapax_sends_total{answer=\"# TYPE x counter\"} 3\n\
                           # TYPE hapax_x unknown\n\
                           # EOF\n";
        let expected = "# HELP hapax_wait_seconds How long, at most 1.5 # s.\n\
                        # TYPE hapax_wait_seconds gauge\n\
                        hapax_wait_seconds 1.5\n\
                        # HELP hapax_sends_total Sends.\n\
                        # TYPE hapax_sends_total counter\n\
                        hapax_sends_total{answer=\"# TYPE x counter\"} 3\n\
                        # TYPE hapax_x untyped\n";
        assert_eq!(plain(openmetrics), expected);
    }
}
