//! Queue configurations in JSON, as a request has them.

use hapax_core::{Config, QueueName};
use serde_json::Value;

use super::super::DEFAULT_TENANT;
use super::super::declared::{Queue, Said};
use super::super::entry::Plain;
use super::super::fields::{self, Dialect, FIELDS};
use super::super::file::{Place, field_finding};
use super::super::finding::{Finding, Rule};
use super::super::origin::Origin;

pub(super) fn lint(text: &str, file_name: &str) -> Vec<Finding> {
    let place = Place::new(text, file_name);
    let whole = |rule, line: usize, why: String, fix: &str| {
        let (origin, field, fix) = (place.line(line), String::new(), fix.to_owned());
        vec![Finding { rule, origin, field, why, fix }]
    };
    let object = match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        Ok(_) => {
            let why = "a queue's configuration is an object".to_owned();
            return whole(Rule::Syntax, 1, why, "Write {\"lease_ms\": 30000} or the like");
        }
        Err(error) => {
            let why = error.to_string();
            return whole(Rule::Syntax, error.line().max(1), why, "Write it as JSON does");
        }
    };
    let keys = keys(text);
    let origin_of =
        |field: &str| keys.iter().find(|(name, _)| name == field).map(|(_, at)| place.at(*at));
    let mut findings = repeated(&keys, &place);
    let values = object.iter().map(|(name, value)| (name.as_str(), Plain::from(value)));
    let (config, errors) = fields::config_and_errors(Dialect::Json, values);
    let start = place.line(1);
    findings.extend(
        errors.into_iter().map(|error| field_finding(error, "", &start, origin_of, Dialect::Json)),
    );
    if let Ok(queue) = queue(&object, config, start.clone(), origin_of) {
        findings.extend(super::queue::lint(&queue));
    }
    findings.sort_by_key(Finding::line);
    findings
}

/// The configuration as if a file had declared it: the rules are the same.
fn queue(
    object: &serde_json::Map<String, Value>,
    config: Config,
    start: Origin,
    origin_of: impl Fn(&str) -> Option<Origin>,
) -> Result<Queue, hapax_core::Invalid> {
    let said = FIELDS.iter().filter(|entry| object.contains_key(entry.name)).map(|entry| Said {
        field: entry.name,
        text: (entry.text)(&config),
        json: (entry.json)(&config),
        origin: origin_of(entry.name).unwrap_or_else(|| start.clone()),
    });
    let said = said.collect();
    let name = QueueName::new(DEFAULT_TENANT, "any")?;
    Ok(Queue { name, config, prefix: String::new(), said, origin: start })
}

/// Of a field that is there twice, the broker refuses the request.
fn repeated(keys: &[(String, usize)], place: &Place) -> Vec<Finding> {
    let again = keys
        .iter()
        .enumerate()
        .filter(|(index, (name, _))| keys.iter().take(*index).any(|(before, _)| before == name));
    again
        .map(|(_, (name, at))| Finding {
            rule: Rule::Value,
            origin: place.at(*at),
            field: name.clone(),
            why: "it is there twice".to_owned(),
            fix: "Keep one of the two".to_owned(),
        })
        .collect()
}

/// The names of the outermost object with their places, in valid JSON. The parser keeps none.
fn keys(text: &str) -> Vec<(String, usize)> {
    let mut keys = Vec::new();
    let mut depth = 0_usize;
    let mut letters = text.char_indices();
    let mut last: Option<(String, usize)> = None;
    while let Some((at, letter)) = letters.next() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 1 => keys.extend(last.take()),
            '"' => {
                let mut end = at + 1;
                while let Some((at, letter)) = letters.next() {
                    end = at + 1;
                    match letter {
                        '\\' => drop(letters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                let quoted = text.get(at..end).unwrap_or_default();
                last = serde_json::from_str(quoted).ok().map(|name| (name, at));
            }
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_they_are() {
        let text = "{\"a\": \"b: \\\" {\",\n \"c\\u0064\": {\"no\": [1, {\"no\": 2}]}, \"é\":1}";
        let found: Vec<(String, usize)> = keys(text);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "cd", "é"]);
        for (_, at) in &found {
            assert_eq!(text.as_bytes()[*at], b'"');
        }
    }
}
