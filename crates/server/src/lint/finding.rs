//! A finding: the field, the problem, and what to do.

use std::fmt;

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing has to change.
    Note,
    /// A guarantee is weaker than it may seem.
    Warning,
    /// The broker refuses it, or it cannot do what it says.
    Error,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! rules {
    ($($rule:ident $severity:ident $name:literal: $doc:literal,)+) => {
        /// The rules. Each has a name, by which a line of a settings file may allow it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule { $(#[doc = $doc] $rule,)+ }

        impl Rule {
            pub const ALL: &[Self] = &[$(Self::$rule,)+];

            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)+ }
            }

            pub fn doc(self) -> &'static str {
                match self { $(Self::$rule => $doc,)+ }
            }

            pub fn severity(self) -> Severity {
                match self { $(Self::$rule => Severity::$severity,)+ }
            }
        }
    };
}

rules! {
    Syntax Error "syntax":
        "The file is neither TOML nor JSON.",
    UnknownField Error "unknown-field":
        "An unknown name: a typo must not weaken a guarantee.",
    Value Error "value":
        "A value or a name that is not allowed.",
    Retention Error "retention":
        "Retention below twice the retry horizon: a late retry would run again.",
    Combination Error "combination":
        "Fields that contradict each other.",
    NeverDelivered Error "never-delivered":
        "Messages that are dead before they can be delivered.",
    NoAuth Error "no-auth":
        "Listening beyond loopback without tokens.",
    NoTls Error "no-tls":
        "Listening beyond loopback without TLS.",
    TlsIncomplete Error "tls-incomplete":
        "A certificate without its key, or the other way round.",
    MemoryData Error "memory-data":
        "Data on an in-memory file system, which is lost with the next restart.",
    TemporaryData Warning "temporary-data":
        "Data in a directory for temporary files.",
    AllowNoAuth Warning "allow-no-auth":
        "Listening beyond loopback without tokens, as allowed.",
    AllowNoTls Warning "allow-no-tls":
        "Listening beyond loopback without TLS, as allowed.",
    NoAdvertise Warning "no-advertise":
        "A node on a shared store that gives others an address at which it may not be reached.",
    UnknownRule Warning "unknown-rule":
        "A comment that allows a rule that does not exist.",
    UnreachableTenant Warning "unreachable-tenant":
        "A tenant that no caller can have, because `auth` is `off`.",
    AtLeastOnce Warning "at-least-once":
        "Keys are optional: messages without one are not deduplicated.",
    AtMostOnce Warning "at-most-once":
        "A message that is lost on the way to the worker is not delivered again.",
    GroupScopeUnordered Warning "group-scope-unordered":
        "Keys are unique per group, but groups have no other meaning without `order`.",
    ShortMemory Warning "short-memory":
        "Undated keys that are forgotten within a day.",
    ShortHorizon Warning "short-horizon":
        "A retry horizon that is shorter than the retries of most callers.",
    DeadRelease Warning "dead-release":
        "A send under the key of a dead message runs again.",
    TtlBeforeAttempts Warning "ttl-before-attempts":
        "Messages whose `ttl_ms` ends before their attempts are used up.",
    ShortLease Warning "short-lease":
        "Leases below a second, which are lost by any short pause.",
    SingleAttempt Warning "single-attempt":
        "Messages that are dead after one failure or lost lease.",
    RelativeData Note "relative-data":
        "A data directory that depends on the working directory.",
    PlainOtlp Note "plain-otlp":
        "Spans that are sent to another machine unencrypted.",
    GroupScope Note "group-scope":
        "Keys are unique per group only.",
    DeadRerun Note "dead-rerun":
        "A send under the key of a dead message tries it again.",
    Redeliver Note "redeliver":
        "A message is delivered again after `begin` if its lease is lost.",
    FastAttempts Note "fast-attempts":
        "All attempts within less than a minute.",
    EndlessAttempts Note "endless-attempts":
        "Messages that are tried very often before they are dead.",
    Forever Note "forever":
        "Keys that are never forgotten.",
    GroupGap Note "group-gap":
        "Groups that continue after a dead message.",
    UpstreamRetries Note "upstream-retries":
        "A queue whose messages are tried for longer than another queue's retry horizon.",
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    /// The setting or field, with its table: `queues.orders.lease_ms`. Empty for the whole file.
    pub field: String,
    pub why: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    pub fn severity(&self) -> Severity {
        self.rule.severity()
    }

    /// Why, and what to do about it.
    pub fn advice(&self) -> String {
        let stop = if self.why.ends_with('?') { "" } else { "." };
        format!("{}{stop} {}", self.why, self.fix)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{} [{}]", self.advice(), self.rule.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_names_of_their_own() {
        let mut names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Rule::ALL.len());
    }
}
