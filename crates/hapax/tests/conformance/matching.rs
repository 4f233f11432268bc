//! Variables, and whether a result is as expected.

use serde_json::{Map, Value};

/// Replaces `$name` by the variable, wherever it is a whole text.
pub(crate) fn substitute(value: &Value, variables: &Map<String, Value>) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => match text.strip_prefix('$') {
            Some(name) => {
                variables.get(name).ok_or_else(|| format!("there is no variable {name}"))?.clone()
            }
            None => value.clone(),
        },
        Value::Array(items) => {
            items.iter().map(|item| substitute(item, variables)).collect::<Result<_, _>>()?
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                substitute(value, variables).map(|value| (name.clone(), value))
            });
            Value::Object(fields.collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

/// Whether a result matches; if not, where.
pub(crate) fn check(expected: &Value, actual: &Value) -> Result<(), String> {
    match expected {
        Value::Object(fields) => match test_of(fields) {
            Some((test, wanted)) => check_test(test, wanted, actual),
            None => fields.iter().try_for_each(|(name, expected)| {
                check(expected, actual.get(name).unwrap_or(&Value::Null))
                    .map_err(|why| format!("{name}: {why}"))
            }),
        },
        Value::Array(items) => {
            let found = actual.as_array().ok_or_else(|| format!("{actual} is no list"))?;
            if found.len() != items.len() {
                return Err(format!("{} items, expected {}", found.len(), items.len()));
            }
            let mut pairs = items.iter().zip(found).enumerate();
            pairs.try_for_each(|(place, (expected, actual))| {
                check(expected, actual).map_err(|why| format!("{place}: {why}"))
            })
        }
        expected if expected == actual => Ok(()),
        expected => Err(format!("{actual}, expected {expected}")),
    }
}

fn test_of(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (name, wanted) = fields.iter().next().filter(|_| fields.len() == 1)?;
    name.strip_prefix('$').map(|test| (test, wanted))
}

fn check_test(test: &str, wanted: &Value, actual: &Value) -> Result<(), String> {
    let holds = match test {
        "any" => !actual.is_null(),
        "in" => wanted.as_array().unwrap().iter().any(|one| check(one, actual).is_ok()),
        "contains" => actual.as_str().is_some_and(|text| text.contains(wanted.as_str().unwrap())),
        "newer" => number(actual) > number(wanted),
        "not" => check(wanted, actual).is_err(),
        _ => return Err(format!("the runner does not know the test ${test}")),
    };
    if holds { Ok(()) } else { Err(format!("{actual}, expected ${test} {wanted}")) }
}

/// A decimal number in a text, of which no digit is lost.
fn number(value: &Value) -> Option<u128> {
    value.as_str().and_then(|text| text.parse().ok())
}
