//! A finding: the field, the problem, and what to do.

use std::fmt;

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know; nothing has to change.
    Note,
    /// A guarantee ends earlier than its reader may think.
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
        /// What is looked for. Each has a name, by which a line may allow it.
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
        "A name that means nothing: a typo must not weaken a guarantee.",
    Value Error "value":
        "A value that is not allowed, or a name that is none.",
    Retention Error "retention":
        "Retention below twice the retry horizon: a late retry would run again.",
    Combination Error "combination":
        "Fields that cannot stand together.",
    NeverDelivered Error "never-delivered":
        "Messages that die before they are delivered.",
    NoAuth Error "no-auth":
        "Listening beyond loopback without tokens.",
    NoTls Error "no-tls":
        "Listening beyond loopback without TLS.",
    TlsIncomplete Error "tls-incomplete":
        "A certificate without its key, or the other way round.",
    MemoryData Error "memory-data":
        "Data on a file system in memory, gone with the next restart.",
    TemporaryData Warning "temporary-data":
        "Data in a directory that is emptied now and then.",
    AllowNoAuth Warning "allow-no-auth":
        "Listening beyond loopback without tokens, as allowed.",
    AllowNoTls Warning "allow-no-tls":
        "Listening beyond loopback without TLS, as allowed.",
    UnreachableTenant Warning "unreachable-tenant":
        "A tenant that nobody can be, without tokens.",
    AtLeastOnce Warning "at-least-once":
        "Keys are optional: what is sent without one is not deduplicated.",
    AtMostOnce Warning "at-most-once":
        "What is lost on its way to the worker is lost.",
    GroupScopeUnordered Warning "group-scope-unordered":
        "Keys count per group, and groups mean nothing else.",
    ShortMemory Warning "short-memory":
        "Undated keys that are forgotten within a day.",
    ShortHorizon Warning "short-horizon":
        "A retry horizon that hardly any caller keeps.",
    DeadRelease Warning "dead-release":
        "A send under a dead key runs again.",
    TtlBeforeAttempts Warning "ttl-before-attempts":
        "Messages that die of age before their attempts are used up.",
    ShortLease Warning "short-lease":
        "Leases below a second, lost by every stall.",
    SingleAttempt Warning "single-attempt":
        "Messages that one lost lease sends to the dead.",
    RelativeData Note "relative-data":
        "Data that depends on the working directory.",
    PlainOtlp Note "plain-otlp":
        "Spans that leave the machine unencrypted.",
    GroupScope Note "group-scope":
        "Keys count per group.",
    DeadRerun Note "dead-rerun":
        "A send under a dead key tries the message anew.",
    Redeliver Note "redeliver":
        "Begun work is delivered again when its lease is lost.",
    FastAttempts Note "fast-attempts":
        "All attempts within less than a minute.",
    EndlessAttempts Note "endless-attempts":
        "Messages that are hardly ever given up.",
    Forever Note "forever":
        "Keys that are never forgotten.",
    GroupGap Note "group-gap":
        "Groups that go on past a dead message.",
    UpstreamRetries Note "upstream-retries":
        "A queue that is tried for longer than another's retry horizon.",
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
