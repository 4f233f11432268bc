//! Where a value comes from.

use std::fmt;
use std::sync::Arc;

/// Where a value comes from, as `hapax config show` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    /// A default of one command only.
    DefaultOf(&'static str),
    File {
        file: Arc<str>,
        line: usize,
    },
    Environment(String),
    Flag(String),
}

impl Origin {
    /// The line, of what comes from a file.
    pub(crate) fn line(&self) -> Option<usize> {
        match self {
            Self::File { line, .. } => Some(*line),
            _ => None,
        }
    }

    /// The place as messages begin with it, so that editors find it.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::File { file, line } => format!("{file}:{line}"),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::DefaultOf(command) => write!(f, "default of {command}"),
            Self::File { file, line } => write!(f, "file {file}:{line}"),
            Self::Environment(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_says_what_to_look_at() {
        let file = Origin::File { file: "hapax.toml".into(), line: 12 };
        assert_eq!(file.to_string(), "file hapax.toml:12");
        assert_eq!(file.place(), "hapax.toml:12");
        assert_eq!(file.line(), Some(12));
        assert_eq!(Origin::Flag("--listen".into()).to_string(), "flag --listen");
        assert_eq!(Origin::Environment("HAPAX_LISTEN".into()).place(), "env HAPAX_LISTEN");
        assert_eq!(Origin::DefaultOf("dev").to_string(), "default of dev");
        assert_eq!(Origin::Default.line(), None);
    }
}
