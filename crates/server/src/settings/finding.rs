//! What is wrong with settings, or would weaken a guarantee: where, why, and what to do.

use std::fmt;

use serde::Serialize;

use super::origin::Origin;

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
    ($($severity:ident $rule:ident $name:literal $doc:literal,)+) => {
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
    Error Syntax "syntax" "The file is neither TOML nor JSON.",
    Error UnknownField "unknown-field" "A name that means nothing: a typo must not weaken a guarantee.",
    Error Value "value" "A value that is not allowed, or a name that is none.",
    Error Retention "retention" "Retention below twice the retry horizon: a late retry would run again.",
    Error Combination "combination" "Fields that cannot stand together.",
    Error NeverDelivered "never-delivered" "Messages that die before they are delivered.",
    Error NoAuth "no-auth" "Listening beyond loopback without tokens.",
    Error NoTls "no-tls" "Listening beyond loopback without TLS.",
    Error TlsIncomplete "tls-incomplete" "A certificate without its key, or the other way round.",
    Error MemoryData "memory-data" "Data on a file system in memory, gone with the next restart.",
    Warning TemporaryData "temporary-data" "Data in a directory that is emptied now and then.",
    Warning AllowNoAuth "allow-no-auth" "Listening beyond loopback without tokens, as allowed.",
    Warning AllowNoTls "allow-no-tls" "Listening beyond loopback without TLS, as allowed.",
    Warning UnreachableTenant "unreachable-tenant" "A tenant that nobody can be, without tokens.",
    Warning AtLeastOnce "at-least-once" "Keys are optional: what is sent without one is not deduplicated.",
    Warning AtMostOnce "at-most-once" "What is lost on its way to the worker is lost.",
    Warning GroupScopeUnordered "group-scope-unordered" "Keys count per group, and groups mean nothing else.",
    Warning ShortMemory "short-memory" "Undated keys that are forgotten within a day.",
    Warning ShortHorizon "short-horizon" "A retry horizon that hardly any caller keeps.",
    Warning DeadRelease "dead-release" "A send under a dead key runs again.",
    Warning TtlBeforeAttempts "ttl-before-attempts" "Messages that die of age before their attempts are used up.",
    Warning ShortLease "short-lease" "Leases below a second, lost by every stall.",
    Warning SingleAttempt "single-attempt" "Messages that one lost lease sends to the dead.",
    Note RelativeData "relative-data" "Data that depends on the working directory.",
    Note PlainOtlp "plain-otlp" "Spans that leave the machine unencrypted.",
    Note GroupScope "group-scope" "Keys count per group.",
    Note DeadRerun "dead-rerun" "A send under a dead key tries the message anew.",
    Note Redeliver "redeliver" "Begun work is delivered again when its lease is lost.",
    Note FastAttempts "fast-attempts" "All attempts within less than a minute.",
    Note EndlessAttempts "endless-attempts" "Messages that are hardly ever given up.",
    Note Forever "forever" "Keys that are never forgotten.",
    Note GroupGap "group-gap" "Groups that go on past a dead message.",
    Note UpstreamRetries "upstream-retries" "A queue that is tried for longer than another's retry horizon.",
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: Rule,
    pub origin: Origin,
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

    pub fn line(&self) -> Option<usize> {
        self.origin.line()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.origin.place(), self.severity().as_str())?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}. {} [{}]", self.why, self.fix, self.rule.name())
    }
}

impl Serialize for Finding {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut shape = serializer.serialize_struct("Finding", 7)?;
        shape.serialize_field("severity", &self.severity())?;
        shape.serialize_field("rule", self.rule.name())?;
        shape.serialize_field("origin", &self.origin.to_string())?;
        shape.serialize_field("line", &self.line())?;
        shape.serialize_field("field", &self.field)?;
        shape.serialize_field("why", &self.why)?;
        shape.serialize_field("fix", &self.fix)?;
        shape.end()
    }
}

/// Settings that cannot be used: everything that is wrong with them, at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Finding>);

impl Mistakes {
    /// The mistakes among the findings, if there are any.
    pub(super) fn among(findings: Vec<Finding>) -> Result<(), Self> {
        let is_error = |finding: &Finding| finding.severity() == Severity::Error;
        let mistakes: Vec<Finding> = findings.into_iter().filter(is_error).collect();
        if mistakes.is_empty() { Ok(()) } else { Err(Self(mistakes)) }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.0.iter().enumerate() {
            let newline = if index > 0 { "\n" } else { "" };
            write!(f, "{newline}{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// What `hapax lint` ends with: 2 for errors, 1 for warnings where they count, else 0.
pub fn exit_code(findings: &[Finding], strict: bool) -> u8 {
    match findings.iter().map(Finding::severity).max() {
        Some(Severity::Error) => 2,
        Some(Severity::Warning) if strict => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(rule: Rule) -> Finding {
        let origin = Origin::File { file: "hapax.toml".into(), line: 3 };
        let (field, why, fix) = ("data".to_owned(), "it is odd".to_owned(), "Move it".to_owned());
        Finding { rule, origin, field, why, fix }
    }

    #[test]
    fn the_exit_code_is_for_errors_and_strictly_for_warnings() {
        let note = finding(Rule::RelativeData);
        let warning = finding(Rule::TemporaryData);
        let error = finding(Rule::Syntax);
        assert_eq!(exit_code(&[], true), 0);
        assert_eq!(exit_code(std::slice::from_ref(&note), true), 0);
        assert_eq!(exit_code(&[note.clone(), warning.clone()], false), 0);
        assert_eq!(exit_code(&[note, warning.clone()], true), 1);
        assert_eq!(exit_code(&[error, warning], false), 2);
    }

    #[test]
    fn a_finding_says_where_and_what_and_why_and_what_to_do() {
        let finding = finding(Rule::TemporaryData);
        let line = "hapax.toml:3: warning: data: it is odd. Move it [temporary-data]";
        assert_eq!(finding.to_string(), line);
        let json = serde_json::to_value(&finding).unwrap();
        assert_eq!(json["severity"], "warning");
        assert_eq!(json["rule"], "temporary-data");
        assert_eq!(json["line"], 3);
        assert_eq!(json["origin"], "file hapax.toml:3");
        assert_eq!(json["fix"], "Move it");
    }

    #[test]
    fn rules_have_names_of_their_own() {
        let mut names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Rule::ALL.len());
    }
}
