//! The options of a broker. `hapax` reads them from flags, variables and a file.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hapax_core::{Config, QueueName};
use hapax_wire::DEFAULT_TENANT;
use serde::{Deserialize, Serialize};

/// The options of a broker. The defaults are for one machine: loopback, with tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub listen: SocketAddr,
    pub data: PathBuf,
    /// The database with the partitions, for a broker of several nodes; none if they are in `data`.
    pub store: Option<StoreUrl>,
    /// The name of this node, which stays the same over restarts; by default that of the machine.
    pub node_name: Option<String>,
    /// Where clients and other nodes reach this node; by default `listen`.
    pub advertise: Option<String>,
    /// A cache of this node, in `data` by default.
    pub cache_dir: Option<PathBuf>,
    /// The number of partitions of new data; existing data keeps its number.
    pub partitions: u16,
    pub memory_bytes: u64,
    pub auth: Auth,
    /// Listen beyond loopback without tokens.
    pub allow_no_auth: bool,
    /// Listen beyond loopback without TLS.
    pub allow_no_tls: bool,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_client_ca: Option<PathBuf>,
    pub max_connections: u32,
    pub request_bytes: u64,
    pub stop_timeout: Duration,
    /// The limits of tenants, by name. A tenant that is not named has none.
    pub tenants: BTreeMap<String, Limits>,
    /// The queues to create or change at the start.
    pub queues: Vec<Queue>,
}

/// How callers are authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// Everybody, as the tenant `default` and with every permission.
    Off,
    /// Callers with a token.
    Tokens,
}

/// What one tenant may use. Limits of its queues apply besides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    pub sends_per_s: Option<u32>,
    pub max_messages: Option<u64>,
    pub max_bytes: Option<u64>,
    pub max_queues: Option<u32>,
}

/// A queue to create, or to change to this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub name: QueueName,
    pub config: Config,
}

/// The URL of a database. Nothing that prints it prints its password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    pub fn new(url: &str) -> Self {
        Self(url.to_owned())
    }

    /// Checks its form. The error never has the password.
    pub fn check(&self) -> Result<(), hapax_postgres::BadUrl> {
        self.settings().map(drop)
    }

    /// The settings of the connections.
    pub fn settings(&self) -> Result<hapax_postgres::Settings, hapax_postgres::BadUrl> {
        hapax_postgres::Settings::parse(&self.0)
    }
}

/// Hosts and database, without user and password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.settings() {
            Ok(settings) => f.write_str(settings.shown()),
            Err(_) => f.write_str("a database"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 4747)),
            data: PathBuf::from("./hapax-data"),
            store: None,
            node_name: None,
            advertise: None,
            cache_dir: None,
            partitions: 1,
            memory_bytes: 256 << 20,
            auth: Auth::Tokens,
            allow_no_auth: false,
            allow_no_tls: false,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            max_connections: 4_096,
            request_bytes: 64 << 20,
            stop_timeout: Duration::from_secs(25),
            tenants: BTreeMap::new(),
            queues: Vec::new(),
        }
    }
}

impl Queue {
    /// The header of its table in a settings file: `queues.orders`, `tenants.shop.queues."a.b"`.
    pub fn path(&self) -> String {
        let queue = quoted(&self.name.queue);
        match &*self.name.tenant {
            DEFAULT_TENANT => format!("queues.{queue}"),
            tenant => format!("{}.queues.{queue}", tenant_path(tenant)),
        }
    }
}

/// The header of a tenant's table in a settings file.
pub fn tenant_path(name: &str) -> String {
    format!("tenants.{}", quoted(name))
}

/// The name as a header of TOML spells it.
fn quoted(name: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.is_empty() && name.bytes().all(bare) { name.to_owned() } else { format!("{name:?}") }
}
