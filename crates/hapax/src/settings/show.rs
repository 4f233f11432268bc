//! What `hapax config show` prints: every value and where it comes from.

use hapax_server::doors::config;
use hapax_server::options::tenant_path;
use hapax_wire::QueueConfig;
use serde::Serialize;
use serde_json::Value;

use super::values::{self, LIMITS};
use super::{Origin, Settings};
use crate::size;

/// One line of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) value: Value,
    pub(crate) origin: String,
    /// The value for people.
    #[serde(skip)]
    pub(crate) text: String,
}

impl Settings {
    /// Every setting, then the tenants and queues of the file.
    pub(crate) fn show(&self) -> Vec<Shown> {
        let json = serde_json::json!(self.values);
        let mut lines: Vec<Shown> = values::names()
            .iter()
            .map(|name| Shown::new(name, json.get(name), self.origin(name), true))
            .collect();
        let written = |table: String, names: &[&str], json: Value, has_sizes| {
            let lines = names.iter().filter_map(|name| {
                let path = format!("{table}.{name}");
                let origin = self.origins.get(&path)?.clone();
                Some(Shown::new(&path, json.get(name), origin, has_sizes))
            });
            lines.collect::<Vec<_>>()
        };
        for (tenant, limits) in &self.tenants {
            let limits = serde_json::json!(limits);
            lines.extend(written(tenant_path(tenant), &LIMITS, limits, true));
        }
        let fields: Vec<&str> = QueueConfig::FIELDS.iter().map(|field| field.name).collect();
        for queue in &self.queues {
            let config = serde_json::json!(config::show(&queue.config));
            let mut shown = written(queue.path(), &fields, config, false);
            if shown.is_empty() {
                let (name, value) = (queue.path(), Value::Object(serde_json::Map::new()));
                let origin = self.origin(&name).to_string();
                shown.push(Shown { name, value, origin, text: "defaults".to_owned() });
            }
            lines.append(&mut shown);
        }
        lines
    }
}

impl Shown {
    /// The fields of a queue, unlike settings, are in plain bytes.
    fn new(name: &str, value: Option<&Value>, origin: Origin, has_sizes: bool) -> Self {
        let value = value.cloned().unwrap_or_default();
        let is_size = has_sizes && name.ends_with("_bytes");
        let text = match &value {
            Value::Null if name.ends_with(".retention_ms") => config::FOREVER.to_owned(),
            Value::Null => "off".to_owned(),
            Value::String(text) => text.clone(),
            Value::Number(number) if is_size => number.as_u64().map(size::show).unwrap_or_default(),
            other => other.to_string(),
        };
        Self { name: name.to_owned(), value, origin: origin.to_string(), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Flags, file};

    const FILE: &str = "\
listen = \"127.0.0.1:5000\"
memory_bytes = \"1GiB\"

[queues.orders]
retention_ms = \"forever\"
lease_ms = 5_000

[queues.plain]

[tenants.\"a.b\"]
max_bytes = \"1GiB\"

[tenants.\"a.b\".queues.mail]
max_attempts = 3
";

    fn settings() -> Settings {
        let mut settings = Settings::new(&Flags::defaults());
        assert_eq!(file::read(FILE, "hapax.toml", &mut settings), []);
        settings
    }

    #[test]
    fn every_value_is_shown_with_its_origin() {
        let shown = settings().show();
        let check = |name: &str, text: &str, origin: &str| {
            let line = shown.iter().find(|shown| shown.name == name);
            let line = line.unwrap_or_else(|| panic!("{name}: {shown:?}"));
            assert_eq!((line.text.as_str(), line.origin.as_str()), (text, origin), "{name}");
        };
        check("listen", "127.0.0.1:5000", "file hapax.toml:1");
        check("memory_bytes", "1GiB", "file hapax.toml:2");
        check("tls_cert", "off", "default");
        check("queues.orders.retention_ms", "forever", "file hapax.toml:5");
        check("queues.orders.lease_ms", "5000", "file hapax.toml:6");
        check("queues.plain", "defaults", "file hapax.toml:8");
        check("tenants.\"a.b\".max_bytes", "1GiB", "file hapax.toml:11");
        check("tenants.\"a.b\".queues.mail.max_attempts", "3", "file hapax.toml:14");
        assert_eq!(shown.len(), values::names().len() + 5);
    }

    #[test]
    fn programs_get_types() {
        let json = serde_json::json!(settings().show());
        let value = |name: &str| {
            let shown = json.as_array().unwrap().iter().find(|shown| shown["name"] == name);
            shown.unwrap_or_else(|| panic!("{name}: {json}"))["value"].clone()
        };
        assert_eq!(value("memory_bytes"), 1 << 30);
        assert_eq!(value("allow_no_tls"), false);
        assert_eq!(value("tls_cert"), Value::Null);
        assert_eq!(value("listen"), "127.0.0.1:5000");
        assert_eq!(value("queues.orders.retention_ms"), Value::Null);
        assert_eq!(json[1]["origin"], "file hapax.toml:1");
        assert!(json[0].get("text").is_none());
    }
}
