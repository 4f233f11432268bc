//! The fields of a queue's configuration, as files and requests spell them.

use hapax_core::{Config, InvalidConfig, limits};

use super::entry::{Entry, Plain, entries};
use hapax_wire::nearest::closest;

/// What `retention_ms` is in a settings file where it is `null` in JSON.
pub const FOREVER: &str = "forever";

/// Every field of a queue's configuration.
pub const FIELDS: &[Entry<Config>] = entries!(Config {
    /// What is promised: with `exactly-once` every message has a key and one effect; with
    /// `at-least-once` a key is optional; with `at-most-once` a message is done as it is handed
    /// out.
    guarantee: hapax_core::Guarantee;
    /// Whether messages of a group are delivered in order, one unfinished at a time. It cannot
    /// change once the queue exists.
    order: hapax_core::Order;
    /// Where a key is unique: in the whole queue or in its group. It cannot change either.
    dedup_scope: hapax_core::DedupScope;
    /// How long a finished key is remembered, counted from its end; `null`, or `"forever"` in a
    /// settings file, for ever. At least twice `retry_horizon_ms`.
    retention_ms: Option<u64>, within (limits::RETENTION_MS_MIN, limits::RETENTION_MS_MAX);
    /// The longest time after the end at which anything upstream may still retry.
    retry_horizon_ms: u64, within (0, limits::RETENTION_MS_MAX);
    /// Whether keys that tell no date are taken. A UUIDv7, a ULID or a send with `issued_at` tells
    /// one: should it come after its key was forgotten, it is refused instead of done again.
    undated_keys: hapax_core::UndatedKeys;
    /// How long a worker has a message before it is lost to it, unless it extends the lease.
    lease_ms: u64, within (limits::LEASE_MS_MIN, limits::LEASE_MS_MAX);
    /// How often a message is tried before it is dead.
    max_attempts: u32, within (1, limits::ATTEMPTS_MAX as u64);
    /// The shortest wait before the next attempt.
    backoff_min_ms: u64, within (0, limits::BACKOFF_MS_MAX);
    /// The longest wait before the next attempt. Waits double from attempt to attempt and are drawn
    /// at random between the bounds.
    backoff_max_ms: u64, within (0, limits::BACKOFF_MS_MAX);
    /// How long a message waits before its first delivery, unless the send says otherwise.
    delay_ms: u64, within (0, limits::DELAY_MS_MAX);
    /// How long after its acceptance a message is still tried, unless the send says otherwise;
    /// `null` for no end. Then it is dead.
    ttl_ms: Option<u64>, within (1, limits::RETENTION_MS_MAX);
    /// What a send under the key of a dead message gets: with `pin` the error; with `rerun` the
    /// message is tried anew; with `release` the key is forgotten and the send is a new one.
    on_dead: hapax_core::OnDead;
    /// What the death of a message means for its group: with `continue` the younger ones go on,
    /// with `park` they wait until it is redriven or discarded. `park` needs `order = "group"`.
    on_group_dead: hapax_core::OnGroupDead;
    /// What becomes of a message whose worker began an effect that cannot be repeated and then lost
    /// its lease: it is delivered again, or parked until somebody resolves it.
    on_lost: hapax_core::OnLost;
    /// The largest body.
    max_body_bytes: u64, within (1, limits::BODY_BYTES_MAX);
    /// Messages alive at once, the dead included; `null` for no limit.
    max_messages: Option<u64>, within (1, limits::COUNT_MAX);
    /// Bytes of bodies alive at once; `null` for no limit.
    max_bytes: Option<u64>, within (1, limits::COUNT_MAX);
    /// Messages sent per second; `null` for no limit.
    sends_per_s: Option<u32>, within (1, u32::MAX as u64);
    /// Whether a finished key keeps its message for as long as it is remembered, so that a replay
    /// needs no body.
    keep_bodies: bool;
});

/// What is wrong with one field of a queue's configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error("{field}: there is no such field{}", hint(*.meant))]
    Unknown { field: String, meant: Option<&'static str> },
    #[error("{field}: {why}. Allowed: {allowed}")]
    Value { field: &'static str, why: String, allowed: String },
    /// Each is allowed, but not together.
    #[error(transparent)]
    Refused(#[from] InvalidConfig),
}

impl FieldError {
    pub fn field(&self) -> &str {
        match self {
            Self::Unknown { field, .. } => field,
            Self::Value { field, .. } => field,
            Self::Refused(refused) => refused.field,
        }
    }
}

/// Who wrote the fields: `"forever"` is for people, who have no `null` in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Json,
    Toml,
}

/// A queue's configuration from its fields; what is not named has its default. Says only the first
/// thing that is wrong; [`config_and_errors`] says all.
pub fn config_from_fields<'a>(
    dialect: Dialect,
    fields: impl IntoIterator<Item = (&'a str, Plain)>,
) -> Result<Config, FieldError> {
    let (config, errors) = config_and_errors(dialect, fields);
    errors.into_iter().next().map_or(Ok(config), Err)
}

/// The same, with everything that is wrong. What is wrong counts as not said.
pub(super) fn config_and_errors<'a>(
    dialect: Dialect,
    fields: impl IntoIterator<Item = (&'a str, Plain)>,
) -> (Config, Vec<FieldError>) {
    let mut config = Config::default();
    let mut errors = Vec::new();
    for (name, value) in fields {
        errors.extend(assign(&mut config, dialect, name, value).err());
    }
    errors.extend(refusals(&config).into_iter().map(FieldError::from));
    (config, errors)
}

fn assign(
    config: &mut Config,
    dialect: Dialect,
    name: &str,
    value: Plain,
) -> Result<(), FieldError> {
    let Some(entry) = FIELDS.iter().find(|entry| entry.name == name) else {
        let meant = closest(name, FIELDS.iter().map(|entry| entry.name));
        return Err(FieldError::Unknown { field: name.to_owned(), meant });
    };
    let is_forever = entry.name == "retention_ms" && value == Plain::Text(FOREVER.to_owned());
    let value = if is_forever && dialect == Dialect::Toml { Plain::Null } else { value };
    entry.assign(config, &value).map_err(|why| {
        let why = match is_forever {
            true => "\"forever\" is spelled null in JSON".to_owned(),
            false => why,
        };
        FieldError::Value { field: entry.name, why, allowed: allowed(entry, dialect) }
    })
}

pub(super) fn allowed(entry: &Entry<Config>, dialect: Dialect) -> String {
    let allowed = (entry.allowed)();
    match (entry.nullable, dialect) {
        (true, Dialect::Json) => format!("{allowed}, or null"),
        (true, Dialect::Toml) if entry.name == "retention_ms" => {
            format!("{allowed}, or \"{FOREVER}\"")
        }
        _ => allowed,
    }
}

/// Everything that [`Config::check`] refuses, which says one thing at a time: what it names is put
/// back to its default until nothing new comes.
fn refusals(config: &Config) -> Vec<InvalidConfig> {
    let mut config = config.clone();
    let mut refusals: Vec<InvalidConfig> = Vec::new();
    while let Err(refused) = config.check() {
        let field = refused.field;
        if refusals.iter().any(|before| before.field == field) {
            break;
        }
        refusals.push(refused);
        if let Some(entry) = FIELDS.iter().find(|entry| entry.name == field) {
            let default = (entry.text)(&Config::default());
            // Every default reads back: there is a test.
            let _ = (entry.set)(&mut config, &default);
        }
    }
    refusals
}

fn hint(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |name| format!(": {name} is meant, perhaps"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{OnDead, OnGroupDead, Order};

    fn text(text: &str) -> Plain {
        Plain::Text(text.to_owned())
    }

    #[test]
    fn every_field_of_a_configuration_is_there_and_its_default_reads_back() {
        // Names every field, so that a new one does not compile until it is declared.
        let Config {
            guarantee: _,
            order: _,
            dedup_scope: _,
            retention_ms: _,
            retry_horizon_ms: _,
            undated_keys: _,
            lease_ms: _,
            max_attempts: _,
            backoff_min_ms: _,
            backoff_max_ms: _,
            delay_ms: _,
            ttl_ms: _,
            on_dead: _,
            on_group_dead: _,
            on_lost: _,
            max_body_bytes: _,
            max_messages: _,
            max_bytes: _,
            sends_per_s: _,
            keep_bodies: _,
        } = Config::default();
        assert_eq!(FIELDS.len(), 20);
        let fields = FIELDS.iter().map(|entry| {
            let value = (entry.json)(&Config::default());
            (entry.name, Plain::from(&value))
        });
        assert_eq!(config_from_fields(Dialect::Json, fields), Ok(Config::default()));
    }

    #[test]
    fn a_file_has_the_fields_of_a_request() {
        let request = serde_json::to_value(hapax_wire::QueueConfig::default()).unwrap();
        let request = request.as_object().unwrap();
        let mut names: Vec<&str> = FIELDS.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        let mut asked: Vec<&str> = request.keys().map(String::as_str).collect();
        asked.sort_unstable();
        assert_eq!(names, asked);
        let fields = request.iter().map(|(name, value)| (name.as_str(), Plain::from(value)));
        assert_eq!(config_from_fields(Dialect::Json, fields), Ok(Config::default()));
    }

    #[test]
    fn fields_make_a_configuration() {
        let fields = [
            ("order", text("group")),
            ("retention_ms", text(FOREVER)),
            ("max_attempts", Plain::Integer(3)),
            ("on_dead", text("rerun")),
        ];
        let config = config_from_fields(Dialect::Toml, fields).unwrap();
        let expected = Config {
            order: Order::Group,
            retention_ms: None,
            max_attempts: 3,
            on_dead: OnDead::Rerun,
            ..Config::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn forever_is_for_people_and_null_for_programs() {
        let forever = |dialect| config_from_fields(dialect, [("retention_ms", text(FOREVER))]);
        assert_eq!(forever(Dialect::Toml).map(|config| config.retention_ms), Ok(None));
        let why = forever(Dialect::Json).unwrap_err().to_string();
        assert!(why.contains("spelled null in JSON"), "{why}");
        let null = config_from_fields(Dialect::Json, [("retention_ms", Plain::Null)]);
        assert_eq!(null.map(|config| config.retention_ms), Ok(None));
    }

    #[test]
    fn a_typo_is_refused_and_what_is_meant_is_said() {
        let refused = |name| config_from_fields(Dialect::Toml, [(name, Plain::Integer(5))]);
        let error = refused("leese_ms").unwrap_err();
        assert_eq!(error.field(), "leese_ms");
        assert!(error.to_string().ends_with("lease_ms is meant, perhaps"), "{error}");
        let stranger = refused("colour").unwrap_err();
        assert_eq!(stranger.to_string(), "colour: there is no such field");
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_what_is_allowed() {
        let error = config_from_fields(Dialect::Toml, [("lease_ms", Plain::Integer(1))]);
        let why = error.unwrap_err().to_string();
        assert_eq!(
            why,
            "lease_ms: 1 is not within 100 to 43200000. \
             Allowed: a whole number, from 100 to 43200000"
        );
        let error = config_from_fields(Dialect::Toml, [("on_dead", text("relase"))]);
        let why = error.unwrap_err().to_string();
        assert!(why.contains("\"release\" is meant, perhaps"), "{why}");
        assert!(why.contains("Allowed: \"pin\" or \"rerun\" or \"release\""), "{why}");
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let fields = [
            ("lease", Plain::Integer(5)),
            ("max_attempts", Plain::Integer(0)),
            ("retention_ms", Plain::Integer(3_600_000)),
            ("on_group_dead", text("park")),
        ];
        let (config, errors) = config_and_errors(Dialect::Toml, fields);
        let fields: Vec<&str> = errors.iter().map(FieldError::field).collect();
        assert_eq!(fields, ["lease", "max_attempts", "retention_ms", "on_group_dead"]);
        assert_eq!(config.max_attempts, Config::default().max_attempts);
        assert_eq!(config.on_group_dead, OnGroupDead::Park);
    }

    #[test]
    fn a_horizon_beyond_the_default_retention_ends_too() {
        let month = Plain::Integer(30 * 86_400_000);
        let (_, errors) = config_and_errors(Dialect::Toml, [("retry_horizon_ms", month)]);
        let fields: Vec<&str> = errors.iter().map(FieldError::field).collect();
        assert_eq!(fields, ["retention_ms"]);
    }
}
