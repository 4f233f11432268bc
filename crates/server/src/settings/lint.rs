//! Looks for what would weaken a guarantee, in settings files and in queue configurations.
//!
//! A file is TOML as `serve` reads it or JSON as `PUT /v1/queues/{queue}` takes it. What the broker
//! would refuse is an error; what it would accept, but what promises less than it seems to, is a
//! warning; a note only explains. A line of TOML with the comment `# lint: allow RULE` keeps its
//! warnings and notes of that rule to itself; errors it does not.

mod broker;
mod data;
mod json;
mod queue;

use super::finding::{Finding, Severity};
use super::{Settings, file};

pub(super) use broker::reach;
pub(super) use data::mounts;

/// What a comment begins with that allows a rule on its line.
const ALLOW: &str = "# lint: allow ";

/// Everything that is wrong with the text of a file, by line.
pub fn lint(text: &str, file_name: &str) -> Vec<Finding> {
    lint_on(text, file_name, &mounts())
}

/// The same, on a machine with these file systems.
pub(super) fn lint_on(text: &str, file_name: &str, mounts: &str) -> Vec<Finding> {
    let is_json = file_name.ends_with(".json") || text.trim_start().starts_with('{');
    if is_json {
        return json::lint(text, file_name);
    }
    let mut read = Settings::default();
    let mut findings = file::read(text, file_name, &mut read);
    // Where there is no such data, the broker will run on another machine, with other disks.
    let mounts = if read.data.exists() { mounts } else { "" };
    findings.extend(settings(&read, mounts));
    let lines: Vec<&str> = text.lines().collect();
    findings.retain(|finding| !is_allowed(finding, &lines));
    findings.sort_by_key(|finding| finding.line().unwrap_or(0));
    findings
}

/// What the settings themselves say, wherever they come from.
pub(super) fn settings(settings: &Settings, mounts: &str) -> Vec<Finding> {
    let mut findings = broker::lint(settings, mounts);
    for queue in &settings.queues {
        findings.extend(queue::lint(queue));
    }
    findings.extend(queue::upstream(&settings.queues));
    findings
}

fn is_allowed(finding: &Finding, lines: &[&str]) -> bool {
    if finding.severity() == Severity::Error {
        return false;
    }
    let line = finding.line().and_then(|line| lines.get(line.checked_sub(1)?));
    let Some((_, allowed)) = line.and_then(|line| line.rsplit_once(ALLOW)) else { return false };
    let mut names = allowed.split([',', ' ']).filter(|name| !name.is_empty());
    names.any(|name| name == finding.rule.name())
}

#[cfg(test)]
mod tests;
