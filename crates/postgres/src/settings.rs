//! The URL of a store on PostgreSQL.
//!
//! `postgres://user:password@host:port,other:port/database?sslmode=require&pooled=true`: what
//! libpq takes, and `pooled=true` where a pooler (PgBouncer in transaction mode) is in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::error::BadUrl;
use crate::tls;

/// How long a connection may take where the URL does not say.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The names of our sessions in `pg_stat_activity`.
const SESSIONS: &str = "hapax";
const HEARTBEATS: &str = "hapax heartbeats";

/// Where the database is, and how to talk to it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// One for each host, in the order of the URL.
    pub(crate) hosts: Vec<Config>,
    /// The host that took writes last, which is tried first.
    pub(crate) preferred: Arc<AtomicUsize>,
    /// Statements are not prepared by name: the next one may go to another session.
    pub(crate) pooled: bool,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// How many connections with these settings, or clones of them, are open.
    pub(crate) connections: Arc<AtomicUsize>,
    /// How many connections failed: the others that are as old may lead to a server that was left.
    pub(crate) failed: Arc<AtomicUsize>,
    shown: String,
}

impl Settings {
    /// Reads a URL. The error says what is wrong with it, and never contains the password.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            // What is not a scheme may be a password.
            let start = match url.split_once("://") {
                Some((scheme, _)) => format!("it starts with {scheme:?}"),
                None => "it has no scheme".to_owned(),
            };
            return Err(bad(format!("{start}; write postgres://user@host/database")));
        }
        refuse_bare_at(url)?;
        let own = Own::take(url)?;
        let config = config(&own.rest)?;
        if config.get_hosts().is_empty() {
            return Err(bad("it names no host".to_owned()));
        }
        if config.get_dbname().is_none() {
            return Err(bad("it names no database: add /name after the host".to_owned()));
        }
        if config.get_user().is_none() {
            return Err(bad("it names no user: write postgres://user@host/database".to_owned()));
        }
        let tls = match own.mode {
            Mode::Disable => None,
            Mode::Prefer | Mode::Require => Some(tls::trusting(own.root_certificate.as_deref())?),
        };
        let shown = shown(&config);
        let (connections, failed) = (Arc::default(), Arc::default());
        let mut hosts: Vec<Config> =
            each_host(&own.rest).iter().map(|url| self::config(url)).collect::<Result<_, _>>()?;
        let is_list = |host: &Host| matches!(host, Host::Tcp(name) if name.contains(','));
        if hosts.len() != config.get_hosts().len() || config.get_hosts().iter().any(is_list) {
            let why = "several hosts are named before the database: postgres://user@one,two/name";
            return Err(bad(why.to_owned()));
        }
        hosts.iter_mut().for_each(|host| prepare(host, own.mode));
        let (pooled, preferred) = (own.pooled, Arc::default());
        Ok(Self { hosts, preferred, pooled, tls, connections, failed, shown })
    }

    /// The database in messages: hosts and name, without the password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The same with the one host that answered last.
    pub(crate) fn answered(&self) -> String {
        let host = self.hosts.get(self.preferred.load(Ordering::Relaxed));
        host.map_or_else(|| self.shown.clone(), shown)
    }

    /// The same for the sessions of heartbeats, which the server lists under a name of their own.
    pub(crate) fn of_heartbeats(mut self) -> Self {
        for host in &mut self.hosts {
            host.application_name(HEARTBEATS);
        }
        self
    }

    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Whether the connection is encrypted, and to whom is verified.
    pub fn is_encrypted(&self) -> bool {
        self.hosts.iter().all(|host| host.get_ssl_mode() == SslMode::Require)
    }
}

/// Refuses an `@` that is not the one before the hosts: what follows it is read as a host, a name
/// or a parameter, and shown, although it may be a part of the password.
fn refuse_bare_at(url: &str) -> Result<(), BadUrl> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let rest = base.split_once("://").map_or(base, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let in_name = |pair: &str| pair.split('=').next().is_some_and(|name| name.contains('@'));
    let is_bare = rest.matches('@').count() > 1
        || rest.matches('@').count() != authority.matches('@').count()
        || query.split('&').any(in_name);
    if !is_bare {
        return Ok(());
    }
    let why = "an @ is not where it belongs, and the URL is not shown, since it may be in the \
               password: in user and password write %40 for @, %2F for /, %3F for ?";
    Err(bad(why.to_owned()))
}

/// Where TLS is used. There is no encryption without verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
}

/// The parameters that are not tokio-postgres's, and the URL without them.
struct Own {
    rest: String,
    pooled: bool,
    mode: Mode,
    root_certificate: Option<String>,
}

impl Own {
    fn take(url: &str) -> Result<Self, BadUrl> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut own = Self {
            rest: base.to_owned(),
            pooled: false,
            mode: Mode::Disable,
            root_certificate: None,
        };
        let mut mode = None;
        let mut kept = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "pooled" => own.pooled = flag(name, value)?,
                "sslmode" => mode = Some(self::mode(value)?),
                "sslrootcert" => own.root_certificate = Some(decoded(value)?),
                "target_session_attrs" if value == "read-write" => {}
                "target_session_attrs" => {
                    let why = "target_session_attrs is always read-write; leave it out";
                    return Err(bad(why.to_owned()));
                }
                _ => kept.push(pair),
            }
        }
        // A root certificate says that encryption is wanted.
        own.mode = mode.unwrap_or(match own.root_certificate {
            Some(_) => Mode::Require,
            None => Mode::Disable,
        });
        if own.mode == Mode::Disable && own.root_certificate.is_some() {
            return Err(bad("sslrootcert needs sslmode=require".to_owned()));
        }
        if !kept.is_empty() {
            own.rest = format!("{base}?{}", kept.join("&"));
        }
        Ok(own)
    }
}

fn config(url: &str) -> Result<Config, BadUrl> {
    url.parse().map_err(|error: tokio_postgres::Error| {
        let why =
            std::error::Error::source(&error).map_or(error.to_string(), |why| why.to_string());
        bad(format!("{why}; write postgres://user:password@host:port/database"))
    })
}

/// The URL of each host of a URL. One that has hosts among its parameters stays as it is.
fn each_host(url: &str) -> Vec<String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let names_hosts = |pair: &str| {
        let name = pair.split('=').next();
        matches!(name, Some("host" | "hostaddr" | "port"))
    };
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if query.split('&').any(names_hosts) || !authority.contains(',') {
        return vec![url.to_owned()];
    }
    let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}")).collect()
}

/// What every connection has, whatever the URL says.
fn prepare(config: &mut Config, mode: Mode) {
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.application_name(SESSIONS);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    // A host that vanished is noticed although nothing is sent to it.
    config.keepalives_idle(Duration::from_secs(5));
    config.keepalives_interval(Duration::from_secs(2));
    config.keepalives_retries(3);
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(15));
    }
    config.ssl_mode(match mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require => SslMode::Require,
    });
}

fn flag(name: &str, value: &str) -> Result<bool, BadUrl> {
    match value {
        "true" | "1" | "on" | "yes" => Ok(true),
        "false" | "0" | "off" | "no" => Ok(false),
        _ => Err(bad(format!("{name} is true or false, not {value:?}"))),
    }
}

fn mode(value: &str) -> Result<Mode, BadUrl> {
    match value {
        "disable" => Ok(Mode::Disable),
        "prefer" | "allow" => Ok(Mode::Prefer),
        "require" | "verify-ca" | "verify-full" => Ok(Mode::Require),
        _ => Err(bad(format!(
            "sslmode is disable, prefer or require (which verifies the server), not {value:?}"
        ))),
    }
}

fn decoded(value: &str) -> Result<String, BadUrl> {
    let mut out = Vec::new();
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = [bytes.next().unwrap_or(b'?'), bytes.next().unwrap_or(b'?')];
        let text = std::str::from_utf8(&digits).unwrap_or("?");
        let Ok(byte) = u8::from_str_radix(text, 16) else {
            return Err(bad(format!("{value:?} has a % that two digits do not follow")));
        };
        out.push(byte);
    }
    String::from_utf8(out).map_err(|_| bad(format!("{value:?} is not text")))
}

fn shown(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<_> = hosts.collect();
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

fn bad(why: String) -> BadUrl {
    BadUrl(why)
}

#[cfg(test)]
mod tests {
    use super::{Settings, each_host};

    #[test]
    fn a_password_that_is_not_escaped_is_refused_and_not_shown() {
        for url in [
            "postgres://hapax:s3@cret@127.0.0.1:5432/it",
            "postgres://hapax:3/s@cret@127.0.0.1:5432/it",
            "postgres://hapax:3/scret@127.0.0.1:5432/it",
            "postgres://hapax:3?scret@127.0.0.1:5432/it",
        ] {
            let told = Settings::parse(url).unwrap_err().to_string();
            assert!(told.contains("%40") && !told.contains("cret"), "{told}");
        }
        for url in
            ["postgres://hapax:s3%40cret@127.0.0.1/it", "postgres://me@one/it?application_name=a@b"]
        {
            assert!(Settings::parse(url).is_ok(), "{url}");
        }
    }

    /// A list among the parameters would be one host after the other, and a silent one in the way.
    #[test]
    fn several_hosts_are_named_before_the_database() {
        for url in ["postgres://me@/it?host=one,two", "postgres://me@one/it?host=two"] {
            let told = Settings::parse(url).unwrap_err().to_string();
            assert!(told.contains("postgres://user@one,two/name"), "{url}: {told}");
        }
        for (url, shown) in [
            ("postgres://me@/it?host=one&port=7", "postgres://one:7/it"),
            ("postgres://me@one/it?hostaddr=127.0.0.1", "postgres://one:5432/it"),
            ("postgres://me@[::1]:7,two/it", "postgres://[::1]:7,two:5432/it"),
            ("postgres://me@%2Frun%2Fit/it", "postgres:///run/it/it"),
        ] {
            let settings = Settings::parse(url).unwrap();
            assert_eq!(settings.shown(), shown);
        }
    }

    #[test]
    fn every_host_has_a_url_of_its_own() {
        for (url, expected) in [
            ("postgres://me@one/it", &["postgres://me@one/it"][..]),
            (
                "postgres://me:p%2Cw@one:1,two:2/it?options=-c%20a=1,2",
                &[
                    "postgres://me:p%2Cw@one:1/it?options=-c%20a=1,2",
                    "postgres://me:p%2Cw@two:2/it?options=-c%20a=1,2",
                ],
            ),
            ("postgres://one,[::1]:2", &["postgres://one", "postgres://[::1]:2"]),
            ("postgres:///it?host=one,two", &["postgres:///it?host=one,two"]),
        ] {
            assert_eq!(each_host(url), expected);
        }
    }
}
