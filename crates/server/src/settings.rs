//! The broker's settings: flags before `HAPAX_…` variables before a TOML file before defaults,
//! every value with its origin.
//!
//! A setting is declared once ([`Values`]); its flag, variable, field, help, reference and line of
//! `hapax config show` follow from that. Unknown names are refused, and everything that is wrong is
//! told at once. What the settings mean is for those who read them: nothing here opens a socket or
//! the data. [`lint`] looks for what would weaken a guarantee.

mod arguments;
mod declared;
mod entry;
mod fields;
mod file;
mod finding;
mod kind;
mod lint;
mod load;
mod origin;
mod reference;
mod show;
mod values;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

pub use arguments::arguments;
pub use declared::{Queue, Tenant};
pub use entry::{Entry, Plain};
pub use fields::{Dialect, FIELDS, FOREVER, FieldError, config_from_fields};
pub use finding::{Finding, Mistakes, Rule, Severity, exit_code};
pub use kind::{Auth, Bytes, Endpoint};
pub use lint::lint;
pub use load::{Loaded, Profile, Sources, unknown_variables};
pub use origin::Origin;
pub use reference::reference;
pub use show::Shown;
pub use values::{Limits, Values};

/// The tenant of those who name none: of `[queues.NAME]`, and of everybody without tokens.
pub const DEFAULT_TENANT: &str = "default";

/// Everything that was set. It reads as its [`Values`].
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub values: Values,
    /// The limits of tenants, by name.
    pub tenants: BTreeMap<String, Tenant>,
    /// The queues to create or change at the start.
    pub queues: Vec<Queue>,
    /// Where values come from that are not defaults.
    origins: BTreeMap<&'static str, Origin>,
}

impl Deref for Settings {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

impl DerefMut for Settings {
    fn deref_mut(&mut self) -> &mut Values {
        &mut self.values
    }
}

impl Settings {
    /// Reads flags, environment and file.
    pub fn load(sources: &Sources<'_>) -> Result<Loaded, Mistakes> {
        load::load(sources)
    }

    /// Where the value of a setting comes from.
    pub fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or(Origin::Default)
    }

    /// Whether the broker may start: it refuses to listen beyond loopback without tokens or without
    /// TLS, unless it was told to.
    pub fn check(&self) -> Result<(), Mistakes> {
        Mistakes::among(lint::reach(self))
    }

    /// Everything about these settings that would weaken a guarantee, wherever it was set. A
    /// broker that starts tells the warnings in its log.
    pub fn findings(&self) -> Vec<Finding> {
        lint::settings(self, &lint::mounts())
    }

    /// The limits of a tenant; of one that the file does not name, none.
    pub fn limits(&self, tenant: &str) -> Limits {
        self.tenants.get(tenant).map(|tenant| tenant.limits.clone()).unwrap_or_default()
    }

    fn tell(&mut self, name: &'static str, origin: Origin) {
        self.origins.insert(name, origin);
    }
}
