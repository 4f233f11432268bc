//! The broker's settings: flags before `HAPAX_…` variables before a TOML file before defaults,
//! every value with its origin.
//!
//! Flags and variables are clap's ([`Values`]), the file is read by serde; everything that is wrong
//! in the file is reported at once. The broker itself takes plain
//! [`Options`](hapax_server::Options).

mod file;
mod json;
mod lint;
mod origin;
#[cfg(test)]
mod reference;
mod show;
mod value;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use hapax_server::Options;
use hapax_server::lint::{Finding, Rule, Severity};
use hapax_server::options::{Auth, Limits, Queue, StoreUrl};
use serde::Serialize;

pub(crate) use lint::lint;
pub(crate) use origin::Origin;
pub(crate) use value::{OrOff, Store, is_database, text};
pub(crate) use values::{Flags, Values};

/// The settings that decide whether the broker may be reached from other machines.
const REACH: [&str; 7] =
    ["listen", "auth", "allow_no_auth", "allow_no_tls", "tls_cert", "tls_key", "tls_client_ca"];
/// The file that is read if none is named and this one exists.
const FILE: &str = "hapax.toml";
/// The largest settings file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The command that the settings are for; some defaults depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Serve,
    /// `hapax dev`: local development, without tokens.
    Dev,
}

/// All settings with their origins.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) values: Values,
    tenants: BTreeMap<String, Limits>,
    queues: Vec<Queue>,
    /// The origins of values that are not defaults, by the path of their field, and of the
    /// declarations of tenants and queues.
    origins: BTreeMap<String, Origin>,
}

impl Settings {
    fn new(flags: &Flags) -> Self {
        let (values, origins) = (flags.values.clone(), flags.origins.clone());
        Self { values, origins, tenants: BTreeMap::new(), queues: Vec::new() }
    }

    /// Adds the settings of the file, which is searched in the directory.
    pub(crate) fn load(
        flags: &Flags,
        profile: Profile,
        directory: &Path,
    ) -> Result<Self, Mistakes> {
        let mut settings = Self::new(flags);
        let mut wrong = Vec::new();
        let named = match &flags.values.config {
            Some(OrOff(named)) => named.clone(),
            None => directory.join(FILE).is_file().then(|| FILE.into()),
        };
        settings.values.config = Some(OrOff(named.clone()));
        if let Some(path) = named {
            match text_of(&directory.join(&path)) {
                Ok(text) => wrong = file::read(&text, &path.display().to_string(), &mut settings),
                Err(why) => {
                    let why = format!("{} cannot be read: {why}", path.display());
                    let fix = "Name a readable file, or none".to_owned();
                    wrong.push(settings.wrong(Rule::Value, "config", why, fix));
                }
            }
        }
        if profile == Profile::Dev && !settings.origins.contains_key("auth") {
            settings.values.auth = Auth::Off;
            settings.origins.insert("auth".to_owned(), Origin::DefaultOf("dev"));
        }
        for (name, why) in settings.values.refused() {
            let fix = format!("Allowed: {}", values::allowed(name));
            wrong.push(settings.wrong(Rule::Value, name, why, fix));
        }
        if wrong.is_empty() {
            return Ok(settings);
        }
        // A setting that could not be read has its default, which must not be compared with the
        // others.
        let is_read = |name: &str| wrong.iter().all(|wrong| wrong.finding.field != name);
        if REACH.into_iter().chain(["store"]).all(is_read)
            && let Err(Mistakes(more)) = settings.check()
        {
            wrong.extend(more);
        }
        Err(Mistakes(wrong))
    }

    /// The options to start a broker with.
    pub(crate) fn options(&self) -> Options {
        let (tenants, queues) = (self.tenants.clone(), self.queues.clone());
        Options { tenants, queues, ..self.values.options() }
    }

    /// The origin of a field's value; for one that is not written, that of its table.
    pub(crate) fn origin(&self, path: &str) -> Origin {
        let above = std::iter::successors(Some(path), |path| Some(path.rsplit_once('.')?.0));
        above.filter_map(|path| self.origins.get(path)).next().cloned().unwrap_or(Origin::Default)
    }

    /// Whether the broker may start: it refuses to listen beyond loopback without tokens or TLS,
    /// unless that is allowed, and to be a node without a store.
    pub(crate) fn check(&self) -> Result<(), Mistakes> {
        let found = hapax_server::lint::reach(&self.options());
        let mut found = self.located(found);
        found.retain(|found| found.finding.severity() == Severity::Error);
        found.extend(self.values.without_store().into_iter().map(|name| {
            let why = "it is for a node of a broker on a database, and --store is missing: this \
                       would be a broker of its own, with its data in a directory";
            let fix = "Give --store URL (HAPAX_STORE), or leave it out";
            self.wrong(Rule::Value, name, why.to_owned(), fix.to_owned())
        }));
        if found.is_empty() { Ok(()) } else { Err(Mistakes(found)) }
    }

    /// All findings about these settings on this machine.
    pub(crate) fn findings(&self) -> Vec<Located> {
        self.findings_on(&hapax_server::lint::mounts())
    }

    fn findings_on(&self, mounts: &str) -> Vec<Located> {
        let is_written = |path: &str| self.origins.contains_key(path);
        let mut found = hapax_server::lint::lint(&self.options(), mounts, &is_written);
        let endpoint = self.values.otlp_endpoint.0.as_ref();
        found.extend(endpoint.and_then(|endpoint| hapax_server::lint::spans(&endpoint.0)));
        self.located(found)
    }

    fn located(&self, findings: Vec<Finding>) -> Vec<Located> {
        let locate = |finding: Finding| Located { origin: self.place(&finding.field), finding };
        findings.into_iter().map(locate).collect()
    }

    fn wrong(&self, rule: Rule, field: &str, why: String, fix: String) -> Located {
        let finding = Finding { rule, field: field.to_owned(), why, fix };
        Located { origin: self.place(field), finding }
    }

    /// The origin of a finding about a field. Of two fields that are compared, the written one.
    fn place(&self, path: &str) -> Origin {
        if self.origins.contains_key(path) {
            return self.origin(path);
        }
        let other = path.rsplit_once('.').and_then(|(table, field)| {
            let other = format!("{table}.{}", compared_with(field)?);
            self.origins.get(&other).cloned()
        });
        other.unwrap_or_else(|| self.origin(path))
    }
}

/// The other field of a queue that a field is compared with.
fn compared_with(field: &str) -> Option<&'static str> {
    match field {
        "retention_ms" => Some("retry_horizon_ms"),
        "backoff_min_ms" => Some("backoff_max_ms"),
        _ => None,
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if about.is_dir() {
        return Err("it is a directory".to_owned());
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(format!(
            "it has {} bytes, which is too large for a settings file",
            about.len()
        ));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

/// Where the tokens of a broker are.
#[derive(Debug)]
pub(crate) enum Home {
    /// Its data directory, and whether it was given explicitly.
    Directory {
        path: PathBuf,
        is_named: bool,
    },
    Database(StoreUrl),
}

/// Where the tokens of the broker with these settings are: in its store, if it has one.
pub(crate) fn home(
    config: Option<&OrOff<PathBuf>>,
    data: Option<&Path>,
    store: Option<&OrOff<Store>>,
) -> Result<Home, Mistakes> {
    let mut flags = Flags::defaults();
    flags.values.config = match (data, store) {
        // The settings file has nothing to add.
        (Some(_), _) | (_, Some(OrOff(Some(_)))) => Some(OrOff(None)),
        _ => config.cloned(),
    };
    let named = config.map(|_| Origin::Flag("--config or HAPAX_CONFIG".to_owned()));
    flags.origins.extend(named.map(|origin| ("config".to_owned(), origin)));
    if let Some(data) = data {
        flags.values.data = data.to_owned();
        flags.origins.insert("data".to_owned(), Origin::Flag("--data or HAPAX_DATA".to_owned()));
    }
    if let Some(store) = store {
        flags.values.store = store.clone();
        flags.origins.insert("store".to_owned(), Origin::Flag("--store or HAPAX_STORE".to_owned()));
    }
    let settings = Settings::load(&flags, Profile::Serve, Path::new(""))?;
    let is_named = settings.origins.contains_key("data");
    Ok(match settings.values.store {
        OrOff(Some(store)) => Home::Database(store.0),
        OrOff(None) => Home::Directory { path: settings.values.data, is_named },
    })
}

/// A finding and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) origin: Origin,
    pub(crate) finding: Finding,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = self.finding.severity().as_str();
        write!(f, "{}: {severity}: {}", self.origin.place(), self.finding)
    }
}

impl Serialize for Located {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Finding { rule, field, why, fix } = &self.finding;
        let shape = serde_json::json!({
            "severity": rule.severity(), "rule": rule.name(), "origin": self.origin.to_string(),
            "line": self.origin.line(), "field": field, "why": why, "fix": fix,
        });
        shape.serialize(serializer)
    }
}

/// The error of invalid settings, with all findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistakes(pub(crate) Vec<Located>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        // The caller prints that it is an error.
        f.write_str(&lines.join("\n").replacen(": error: ", ": ", 1))
    }
}

/// The names of the settings.
#[cfg(test)]
pub(crate) fn names() -> Vec<String> {
    values::names()
}

/// The variables of the settings.
pub(crate) fn variables() -> impl Iterator<Item = String> {
    values::names().into_iter().map(|name| values::variable(&name))
}

#[cfg(test)]
mod tests;
