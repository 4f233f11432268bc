//! The log filter: `info`, or `info,hapax_server::engine=debug,h2=warn`. A bare level is for Hapax
//! itself; other libraries log up to `warn` unless they are named. They cannot be set to `trace`:
//! some print headers or bodies there, which must not be in a log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The levels, from none to all.
const LEVELS: &[(&str, LevelFilter)] = &[
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Targets of Hapax itself begin with this.
const OURS: &str = "hapax";
/// The level of other libraries that are not named.
const OTHERS: LevelFilter = LevelFilter::WARN;
/// Their highest level.
const OTHERS_MAX: LevelFilter = LevelFilter::DEBUG;
const DIRECTIVES_MAX: usize = 64;

/// A checked filter. It is shown as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Filter {
    text: String,
    level: LevelFilter,
    targets: Vec<(String, LevelFilter)>,
}

/// Why a filter is refused, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadFilter(String);

impl Default for Filter {
    fn default() -> Self {
        Self { text: "info".to_owned(), level: LevelFilter::INFO, targets: Vec::new() }
    }
}

impl Filter {
    pub(super) fn targets(&self) -> Targets {
        Targets::new()
            .with_default(self.level.min(OTHERS))
            .with_target(OURS, self.level)
            .with_targets(self.targets.iter().map(|(target, level)| (target.clone(), *level)))
    }
}

impl FromStr for Filter {
    type Err = BadFilter;

    fn from_str(text: &str) -> Result<Self, BadFilter> {
        let mut filter = Self { text: text.trim().to_owned(), ..Self::default() };
        let mut levels = 0;
        for directive in text.split(',').map(str::trim) {
            match directive.split_once('=') {
                Some((target, level)) => {
                    let (target, level) = (target.trim(), level_of(level.trim())?);
                    check_target(target, level)?;
                    filter.targets.push((target.to_owned(), level));
                }
                None => {
                    filter.level = level_of(directive)?;
                    levels += 1;
                }
            }
        }
        if levels > 1 {
            return Err(BadFilter(format!(
                "{text:?} has {levels} levels without a target: give one"
            )));
        }
        if filter.targets.len() > DIRECTIVES_MAX {
            let why = format!("there are {} targets, at most {DIRECTIVES_MAX} are allowed", {
                filter.targets.len()
            });
            return Err(BadFilter(why));
        }
        Ok(filter)
    }
}

impl TryFrom<String> for Filter {
    type Error = BadFilter;

    fn try_from(text: String) -> Result<Self, BadFilter> {
        text.parse()
    }
}

impl From<Filter> for String {
    fn from(filter: Filter) -> Self {
        filter.text
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn level_of(text: &str) -> Result<LevelFilter, BadFilter> {
    let known = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    known.map(|(_, level)| *level).ok_or_else(|| {
        // A bare word would otherwise be taken for a target, and the log be silent.
        BadFilter(format!(
            "{text:?} is not a level: use off, error, warn, info, debug or trace, alone or after \
             a target (info,hapax_server::engine=debug)"
        ))
    })
}

fn check_target(target: &str, level: LevelFilter) -> Result<(), BadFilter> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:.".contains(&byte);
    if target.is_empty() || !target.bytes().all(known) {
        return Err(BadFilter(format!(
            "{target:?} is not a target: use a path such as hapax_server::auth"
        )));
    }
    if level > OTHERS_MAX && !target.starts_with(OURS) {
        return Err(BadFilter(format!(
            "{target}=trace could log bodies and tokens: use {target}=debug"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn filter(text: &str) -> Filter {
        text.parse().unwrap()
    }

    #[test]
    fn a_level_is_for_hapax_and_others_are_quiet() {
        let targets = filter("debug").targets();
        assert!(targets.would_enable("hapax_server::engine", &Level::DEBUG));
        assert!(!targets.would_enable("hapax_server::engine", &Level::TRACE));
        assert!(targets.would_enable("h2::proto", &Level::WARN));
        assert!(!targets.would_enable("h2::proto", &Level::INFO));
        let targets = filter("error").targets();
        assert!(!targets.would_enable("h2::proto", &Level::WARN));
        assert!(!filter("off").targets().would_enable("hapax_server", &Level::ERROR));
    }

    #[test]
    fn a_named_target_has_its_own_level() {
        let targets = filter("warn, hapax_server::engine=trace,h2=debug").targets();
        assert!(targets.would_enable("hapax_server::engine::writer", &Level::TRACE));
        assert!(!targets.would_enable("hapax_server::auth", &Level::INFO));
        assert!(targets.would_enable("h2::proto", &Level::DEBUG));
        let alone = filter("hapax_server::auth=debug").targets();
        assert!(alone.would_enable("hapax_server", &Level::INFO), "the rest stays as it is");
    }

    #[test]
    fn a_misspelt_level_is_refused_instead_of_silencing_the_log() {
        let why = |text: &str| text.parse::<Filter>().unwrap_err().to_string();
        assert!(why("ifno").contains("\"ifno\" is not a level: use off, error, warn, info"));
        assert!(why("").contains("is not a level"));
        assert!(why("info,,").contains("is not a level"));
        assert!(why("info,h2=loud").contains("\"loud\" is not a level"));
        assert!(why("info,debug").contains("2 levels"));
        assert!(why("=debug").contains("is not a target"));
        assert!(why("h2[{body}]=debug").contains("is not a target"));
        let many: Vec<String> = (0..65).map(|number| format!("t{number}=info")).collect();
        assert!(why(&many.join(",")).contains("at most"));
    }

    #[test]
    fn other_libraries_cannot_be_traced() {
        let why = "info,h2=trace".parse::<Filter>().unwrap_err().to_string();
        assert!(why.contains("bodies and tokens"), "{why}");
        assert!(!filter("trace").targets().would_enable("axum::rejection", &Level::TRACE));
    }

    #[test]
    fn a_filter_is_shown_as_it_was_written() {
        assert_eq!(filter(" warn,h2=debug ").to_string(), "warn,h2=debug");
        assert_eq!(filter(&Filter::default().to_string()), Filter::default());
    }
}
