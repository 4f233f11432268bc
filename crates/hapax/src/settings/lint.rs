//! `hapax lint`: checks a file without a broker.
//!
//! A file is TOML as `serve` reads it or JSON as `PUT /v1/queues/{queue}` takes it. In TOML the
//! comment `# lint: allow RULE` suppresses warnings and notes of that rule on its line; errors
//! cannot be suppressed. The rules are the broker's ([`hapax_server::lint`]).

use hapax_server::lint::{Finding, Rule, Severity, mounts};
use hapax_wire::nearest::closest;

use super::file::Place;
use super::{Flags, Located, Settings, file, json};

/// Begins a comment that allows a rule on its line.
const ALLOW: &str = "# lint: allow ";

/// All findings in the text of a file, by line.
pub(crate) fn lint(text: &str, file_name: &str) -> Vec<Located> {
    lint_on(text, file_name, &mounts())
}

/// The same, on a machine with these file systems.
pub(super) fn lint_on(text: &str, file_name: &str, mounts: &str) -> Vec<Located> {
    let is_json = file_name.ends_with(".json") || text.trim_start().starts_with('{');
    if is_json {
        return json::lint(text, file_name);
    }
    let mut settings = Settings::new(&Flags::defaults());
    let mut found = file::read(text, file_name, &mut settings);
    // If the data does not exist here, the broker will run on another machine, with other disks.
    let mounts = if settings.values.data.exists() { mounts } else { "" };
    found.extend(settings.findings_on(mounts));
    let lines: Vec<&str> = text.lines().collect();
    found.retain(|found| !is_allowed(found, &lines));
    found.extend(unknown_rules(&lines, &Place::new(text, file_name)));
    found.sort_by_key(|found| found.origin.line().unwrap_or(0));
    found
}

/// The names in comments that allow no rule. The words after the first rule may be a remark, unless
/// they are close to the name of a rule.
fn unknown_rules(lines: &[&str], place: &Place) -> Vec<Located> {
    let rules = Rule::ALL.iter().map(|rule| rule.name());
    let mut found = Vec::new();
    for (line, number) in lines.iter().zip(1..) {
        let Some((_, allowed)) = line.rsplit_once(ALLOW) else { continue };
        for (name, index) in names(allowed).zip(0..) {
            let meant = closest(name, rules.clone());
            if rules.clone().any(|rule| rule == name) || (index > 0 && meant.is_none()) {
                continue;
            }
            let fix = match meant {
                Some(meant) => format!("Did you mean {meant}?"),
                None => "Name a rule as `hapax lint` prints it in brackets".to_owned(),
            };
            let why = format!("there is no rule {name}, so that the comment allows nothing");
            let (rule, field) = (Rule::UnknownRule, String::new());
            let finding = Finding { rule, field, why, fix };
            found.push(Located { origin: place.line(number), finding });
        }
    }
    found
}

/// The words of a comment that allows rules.
fn names(allowed: &str) -> impl Iterator<Item = &str> {
    allowed.split([',', ' ']).filter(|name| !name.is_empty())
}

fn is_allowed(found: &Located, lines: &[&str]) -> bool {
    if found.finding.severity() == Severity::Error {
        return false;
    }
    let line = found.origin.line().and_then(|line| lines.get(line.checked_sub(1)?));
    let Some((_, allowed)) = line.and_then(|line| line.rsplit_once(ALLOW)) else { return false };
    names(allowed).any(|name| name == found.finding.rule.name())
}

#[cfg(test)]
mod tests;
