//! Queue configurations in JSON, as in a request.

use hapax_server::doors::config::{self, Dialect};
use hapax_server::lint::{self, Finding, Rule};
use serde_json::Value;

use super::file::Place;
use super::origin::Origin;
use super::{Located, compared_with};

pub(super) fn lint(text: &str, file_name: &str) -> Vec<Located> {
    let place = Place::new(text, file_name);
    let whole = |line: usize, why: &str, fix: &str| {
        let (field, why, fix) = (String::new(), why.to_owned(), fix.to_owned());
        let finding = Finding { rule: Rule::Syntax, field, why, fix };
        vec![Located { origin: place.line(line), finding }]
    };
    let object = match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        Ok(_) => {
            let why = "a queue's configuration is an object";
            return whole(1, why, "Write an object such as {\"lease_ms\": 30000}");
        }
        Err(error) => {
            return whole(error.line().max(1), &error.to_string(), "Use JSON syntax");
        }
    };
    let keys = keys(text);
    let origin_of = |field: &str| -> Option<Origin> {
        keys.iter().find(|(name, _)| name == field).map(|(_, at)| place.at(*at))
    };
    let (config, mut findings) = config::from_fields(Dialect::Json, object);
    let settings = super::values::names();
    for finding in findings.iter_mut().filter(|it| it.rule == Rule::UnknownField) {
        if settings.contains(&finding.field) {
            "a file in JSON is a queue's configuration, and this is a setting of the broker"
                .clone_into(&mut finding.why);
            "Write settings in TOML".clone_into(&mut finding.fix);
        }
    }
    findings.extend(lint::queue("", &config, &|field| origin_of(field).is_some()));
    let locate = |finding: Finding| {
        let field = finding.field.as_str();
        let origin = origin_of(field).or_else(|| origin_of(compared_with(field)?));
        Located { origin: origin.unwrap_or_else(|| place.line(1)), finding }
    };
    let mut found = repeated(&keys, &place);
    found.extend(findings.into_iter().map(locate));
    found.sort_by_key(|found| found.origin.line());
    found
}

/// Reports duplicate fields, which the broker refuses.
fn repeated(keys: &[(String, usize)], place: &Place) -> Vec<Located> {
    let again = keys
        .iter()
        .enumerate()
        .filter(|(index, (name, _))| keys.iter().take(*index).any(|(before, _)| before == name));
    again
        .map(|(_, (name, at))| {
            let (why, fix) =
                ("the field is given twice".to_owned(), "Keep one of the two".to_owned());
            let finding = Finding { rule: Rule::Value, field: name.clone(), why, fix };
            Located { origin: place.at(*at), finding }
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
    fn a_setting_of_the_broker_is_told_from_a_misspelt_field() {
        let found = lint("{\"listen\": \"127.0.0.1:1\",\n\"leasems\": 1}", "a.json");
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(told[0].contains("listen") && told[0].contains("settings in TOML"), "{told:?}");
        assert!(told[1].contains("Did you mean lease_ms"), "{told:?}");
    }

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
