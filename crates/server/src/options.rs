//! The options of a broker. `hapax` reads them from flags, variables and a file.

use std::collections::BTreeMap;
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

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 4747)),
            data: PathBuf::from("./hapax-data"),
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
