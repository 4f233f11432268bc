//! Commands that are printed for the user to copy. Every argument is quoted for the shell, and a
//! name that begins with a hyphen is not read as an option.

use std::fmt;

use crate::screen::word;

/// A command for the user to copy.
#[derive(Clone, Debug)]
pub(crate) struct Advice {
    command: &'static str,
    operands: Vec<String>,
    options: Vec<String>,
    /// Whether an operand would be read as an option.
    is_hyphened: bool,
}

impl Advice {
    /// A command such as `hapax get`, and its operands.
    pub(crate) fn new(command: &'static str, operands: &[&str]) -> Self {
        Self {
            command,
            operands: operands.iter().map(|operand| word(operand)).collect(),
            options: Vec::new(),
            is_hyphened: operands.iter().any(|operand| operand.starts_with('-')),
        }
    }

    /// Adds options as they are: `--yes`.
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.options.push(flag.to_owned());
        self
    }

    /// Adds an option with its value.
    pub(crate) fn option(mut self, name: &str, value: &str) -> Self {
        let between = if value.starts_with('-') { '=' } else { ' ' };
        self.options.push(format!("{name}{between}{}", word(value)));
        self
    }

    /// Adds the group that a key is named with.
    pub(crate) fn group(self, group: Option<&str>) -> Self {
        match group {
            Some(group) => self.option("--group", group),
            None => self,
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = |f: &mut fmt::Formatter<'_>, words: &[String]| {
            words.iter().try_for_each(|word| write!(f, " {word}"))
        };
        f.write_str(self.command)?;
        if self.is_hyphened {
            write(f, &self.options)?;
            f.write_str(" --")?;
            return write(f, &self.operands);
        }
        write(f, &self.operands)?;
        write(f, &self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    use crate::arguments::Arguments;

    #[test]
    fn a_command_is_written_as_one_types_it() {
        let advice = Advice::new("hapax get", &["orders", "three lemons"]).group(Some("eu west"));
        assert_eq!(advice.to_string(), "hapax get orders 'three lemons' --group 'eu west'");
    }

    #[test]
    fn names_that_begin_with_a_hyphen_are_read_as_names() {
        let (queue, key, group) = ("-q", "--yes", Some("-g"));
        let advice = [
            Advice::new("hapax get", &["orders", key]).group(group),
            Advice::new("hapax resolve", &[queue, key]).group(group).flag("--done RESULT"),
            Advice::new("hapax resolve", &[queue, key]).flag("--done"),
            Advice::new("hapax resolve", &["orders", "-"]).flag("--retry"),
            Advice::new("hapax dead redrive", &[queue]).option("--key", key).flag("--yes"),
            Advice::new("hapax dead redrive", &["orders"]).option("--cancel", "-id"),
            Advice::new("hapax queue create", &[queue]),
            Advice::new("hapax queue set", &[queue]).option("--on-lost", "park"),
            Advice::new("hapax queue resume", &[queue]),
            Advice::new("hapax peek", &[queue]).option("--state", "parked"),
        ];
        for advice in advice.iter().map(Advice::to_string) {
            let parsed = Arguments::try_parse_from(advice.split(' '));
            let parsed = parsed.unwrap_or_else(|error| panic!("{advice}: {error}"));
            let parsed = format!("{parsed:?}");
            for name in advice.split([' ', '=']).filter(|name| ["-q", "-g", "-id"].contains(name)) {
                assert!(parsed.contains(&format!("{name:?}")), "{advice}: {parsed}");
            }
        }
    }
}
