//! What `hapax config show` prints: every value and where it comes from.

use serde::Serialize;
use serde_json::Value;

use super::Settings;
use super::values::Values;

/// One line of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    pub name: String,
    pub value: Value,
    pub origin: String,
    #[serde(skip)]
    pub text: String,
}

impl Settings {
    /// Every setting, then what the file says of tenants and queues.
    pub fn show(&self) -> Vec<Shown> {
        let settings = Values::TABLE.iter().map(|entry| Shown {
            name: entry.name.to_owned(),
            value: (entry.json)(&self.values),
            text: (entry.text)(&self.values),
            origin: self.origin(entry.name).to_string(),
        });
        let tenants = self.tenants.values().map(|tenant| (&tenant.prefix, &tenant.said));
        let queues = self.queues.iter().map(|queue| {
            // A queue that says nothing is still declared.
            let shown = queue.said.is_empty().then(|| Shown {
                name: queue.prefix.clone(),
                value: Value::Object(serde_json::Map::new()),
                text: "defaults".to_owned(),
                origin: queue.origin.to_string(),
            });
            (shown, &queue.prefix, &queue.said)
        });
        let declared = tenants.map(|(prefix, said)| (None, prefix, said)).chain(queues);
        let declared = declared.flat_map(|(whole, prefix, said)| {
            let lines = said.iter().map(move |said| Shown {
                name: format!("{prefix}.{}", said.field),
                value: said.json.clone(),
                text: said.text.clone(),
                origin: said.origin.to_string(),
            });
            whole.into_iter().chain(lines)
        });
        settings.chain(declared).collect()
    }

    /// For people: three columns.
    pub fn to_table(&self) -> String {
        let shown = self.show();
        let width = |of: fn(&Shown) -> &str, head: &str| {
            let widest = shown.iter().map(|shown| of(shown).chars().count()).max();
            widest.unwrap_or(0).max(head.len())
        };
        let name = width(|shown| &shown.name, "NAME");
        let value = width(|shown| &shown.text, "VALUE");
        let mut table = format!("{:name$}  {:value$}  ORIGIN\n", "NAME", "VALUE");
        for line in &shown {
            table += &format!("{:name$}  {:value$}  {}\n", line.name, line.text, line.origin);
        }
        table
    }

    /// For programs: a list of objects with name, value and origin.
    pub fn to_json(&self) -> Value {
        serde_json::json!(self.show())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::file;

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
        let mut settings = Settings::default();
        assert_eq!(file::read(FILE, "hapax.toml", &mut settings), []);
        settings
    }

    #[test]
    fn every_value_is_shown_with_its_origin() {
        let table = settings().to_table();
        let mut lines = table.lines();
        assert!(lines.next().unwrap().starts_with("NAME"));
        let line = |name: &str| {
            let line = table.lines().find(|line| line.split(' ').next() == Some(name));
            line.unwrap_or_else(|| panic!("{name}: {table}")).split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(line("listen")[1..], ["127.0.0.1:5000", "file", "hapax.toml:1"]);
        assert_eq!(line("memory_bytes")[1..], ["1GiB", "file", "hapax.toml:2"]);
        assert_eq!(line("tls_cert")[1..], ["off", "default"]);
        assert_eq!(line("queues.orders.retention_ms")[1..], ["forever", "file", "hapax.toml:5"]);
        assert_eq!(line("queues.orders.lease_ms")[1..], ["5000", "file", "hapax.toml:6"]);
        assert_eq!(line("queues.plain")[1..], ["defaults", "file", "hapax.toml:8"]);
        assert_eq!(line("tenants.\"a.b\".max_bytes")[1..], ["1GiB", "file", "hapax.toml:11"]);
        let mail = line("tenants.\"a.b\".queues.mail.max_attempts");
        assert_eq!(mail[1..], ["3", "file", "hapax.toml:14"]);
        assert_eq!(table.lines().count(), 1 + Values::TABLE.len() + 5);
    }

    #[test]
    fn programs_get_types() {
        let json = settings().to_json();
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
