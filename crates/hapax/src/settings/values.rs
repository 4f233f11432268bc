//! Every setting of the broker: its flag, its variable, its field of the file and its meaning.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use hapax_core::limits;
use hapax_server::Options;
use hapax_server::doors::config::cause;
use hapax_server::log::{Filter, Format};
use hapax_server::options::{Auth, Limits};
use hapax_wire::nearest::closest;
use serde::{Deserialize, Serialize};
use toml::de::{DeValue, ValueDeserializer};

use super::origin::Origin;
use super::value::{
    Address, Endpoint, OrOff, Size, Span, Store, bad_address, bad_name, is_database, number, text,
    word,
};
use crate::size;

/// At least the largest body, so that every allowed request can be read.
const REQUEST_BYTES_MIN: u64 = 2 * limits::BODY_BYTES_MAX;
const TEBIBYTE: u64 = 1 << 40;
/// The words of the settings that have words.
const AUTH: &[&str] = &["off", "tokens"];
const FORMATS: &[&str] = &["text", "json"];
/// Why a directory is refused, without showing it.
const DATABASE: &str = "it is the address of a database, which goes to --store (HAPAX_STORE), and \
                        is not shown here, since it may have a password";

/// The settings. The first paragraph of each is its short help.
#[derive(Clone, Debug, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Settings (flag > variable > file > default)")]
pub(crate) struct Values {
    /// The settings file. By default `hapax.toml` in the working directory, if it exists. This
    /// setting cannot be in the file itself.
    #[arg(long, value_name = "PATH", value_parser = text::<OrOff<PathBuf>>)]
    pub(crate) config: Option<OrOff<PathBuf>>,
    /// The address to listen on.
    ///
    /// HTTP and gRPC share it. Beyond loopback the broker needs tokens and TLS, unless
    /// `allow_no_auth` and `allow_no_tls` are set.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4747")]
    #[arg(value_parser = text::<Address>)]
    pub(crate) listen: Address,
    /// The directory of messages and keys. It must be used by this broker only, and be on a disk
    /// that honours fsync. It is created if it does not exist.
    #[arg(long, value_name = "PATH", default_value = "./hapax-data")]
    #[arg(value_parser = text::<PathBuf>)]
    pub(crate) data: PathBuf,
    /// The PostgreSQL database with the messages and keys, for a broker of several nodes: every
    /// node gets the same URL, one of them serves, and another one takes over when it is gone.
    /// `data` is then only this node's own directory, for a cache. With `off`
    /// everything is in `data`.
    #[arg(long, value_name = "URL", default_value = "off", value_parser = text::<OrOff<Store>>)]
    pub(crate) store: OrOff<Store>,
    /// With `store`: the name of this node. It stays the same over restarts. By default it is the
    /// name of the machine.
    #[arg(long, value_name = "NAME", default_value = "off", value_parser = text::<OrOff<String>>)]
    pub(crate) node_name: OrOff<String>,
    /// With `store`: the address at which clients reach this node, which the other nodes give them.
    /// By default it is `listen`, or the name of the machine if that is every address.
    #[arg(long, value_name = "URL", default_value = "off", value_parser = text::<OrOff<String>>)]
    pub(crate) advertise: OrOff<String>,
    /// With `store`: the directory of this node's cache. By default it is `cache` in `data`.
    #[arg(long, value_name = "PATH", default_value = "off", value_parser = text::<OrOff<PathBuf>>)]
    pub(crate) cache_dir: OrOff<PathBuf>,
    /// The number of partitions of new data. Each has its own writer thread and journal. The number
    /// cannot change later: for existing data this setting has no effect.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = number::<u16>)]
    pub(crate) partitions: u16,
    /// Memory for caches, for the first messages of queues and for changes since the last
    /// checkpoint. It is shared by all partitions. The filters of remembered keys need about 2.3
    /// bytes per key in addition.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = text::<Size>)]
    pub(crate) memory_bytes: Size,
    /// How callers are authenticated. With `tokens`, every request needs a token created by `hapax
    /// token create`. With `off`, every caller is the tenant `default` and has all permissions. The
    /// default of `hapax serve` is `tokens`, that of `hapax dev` is `off`.
    #[arg(long, value_name = "off|tokens", default_value = "tokens", hide_default_value = true)]
    #[arg(value_parser = |given: &str| word::<Auth>(given, AUTH))]
    pub(crate) auth: Auth,
    /// Allow listening beyond loopback with `auth` = `off`. Everybody who can reach the port can
    /// then read and change everything.
    #[arg(long, value_name = "true|false", default_value = "false", action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub(crate) allow_no_auth: bool,
    /// Allow listening beyond loopback without TLS. Everybody who can see the traffic can then read
    /// bodies and tokens.
    #[arg(long, value_name = "true|false", default_value = "false", action = ArgAction::Set)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub(crate) allow_no_tls: bool,
    /// The certificate chain of the broker, in PEM. It turns TLS on and needs `tls_key`. Renewed
    /// files are loaded without a restart.
    #[arg(long, value_name = "PATH", default_value = "off", value_parser = text::<OrOff<PathBuf>>)]
    pub(crate) tls_cert: OrOff<PathBuf>,
    /// The private key of the certificate, in PEM.
    #[arg(long, value_name = "PATH", default_value = "off", value_parser = text::<OrOff<PathBuf>>)]
    pub(crate) tls_key: OrOff<PathBuf>,
    /// The CA certificates for client certificates, in PEM. It turns mutual TLS on: every client
    /// must have a certificate signed by one of them. Clients still need their tokens.
    #[arg(long, value_name = "PATH", default_value = "off", value_parser = text::<OrOff<PathBuf>>)]
    pub(crate) tls_client_ca: OrOff<PathBuf>,
    /// The log filter.
    ///
    /// A level for Hapax itself, and other levels for parts of it or for other libraries, such as
    /// `info,hapax_server::engine=debug,h2=info`. It can be changed while the broker runs.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = text::<Filter>)]
    pub(crate) log: Filter,
    /// The log format, on standard error: text for people or JSON for programs.
    #[arg(long, value_name = "text|json", default_value = "text")]
    #[arg(value_parser = |given: &str| word::<Format>(given, FORMATS))]
    pub(crate) log_format: Format,
    /// The collector for OpenTelemetry spans of requests, by OTLP over gRPC.
    ///
    /// The variables of OpenTelemetry's exporter, such as OTEL_EXPORTER_OTLP_HEADERS, are honoured.
    #[arg(long, value_name = "URL", default_value = "off", value_parser = text::<OrOff<Endpoint>>)]
    pub(crate) otlp_endpoint: OrOff<Endpoint>,
    /// The maximum number of connections, HTTP and gRPC together.
    #[arg(long, value_name = "NUMBER", default_value = "4096", value_parser = number::<u32>)]
    pub(crate) max_connections: u32,
    /// The maximum size of all requests that are processed at once, HTTP and gRPC together. Further
    /// requests wait, or get a retryable error.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = text::<Size>)]
    pub(crate) request_bytes: Size,
    /// How long a stopping broker waits for requests in progress. After that it stops anyway.
    /// Nothing that was confirmed is lost.
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = text::<Span>)]
    pub(crate) stop_timeout: Span,
}

/// A value of the file.
pub(super) type Written<'a> = toml::Spanned<DeValue<'a>>;

impl Values {
    /// Takes a value from the file. The name is that of a setting.
    pub(super) fn set(&mut self, name: &str, value: &Written<'_>) -> Result<(), String> {
        match name {
            "listen" => put(&mut self.listen, value),
            "data" => put(&mut self.data, value),
            "store" => put(&mut self.store, value),
            "node_name" => put(&mut self.node_name, value),
            "advertise" => put(&mut self.advertise, value),
            "cache_dir" => put(&mut self.cache_dir, value),
            "partitions" => put(&mut self.partitions, value),
            "memory_bytes" => put(&mut self.memory_bytes, value),
            "auth" => put(&mut self.auth, value),
            "allow_no_auth" => put(&mut self.allow_no_auth, value),
            "allow_no_tls" => put(&mut self.allow_no_tls, value),
            "tls_cert" => put(&mut self.tls_cert, value),
            "tls_key" => put(&mut self.tls_key, value),
            "tls_client_ca" => put(&mut self.tls_client_ca, value),
            "log" => put(&mut self.log, value),
            "log_format" => put(&mut self.log_format, value),
            "otlp_endpoint" => put(&mut self.otlp_endpoint, value),
            "max_connections" => put(&mut self.max_connections, value),
            "request_bytes" => put(&mut self.request_bytes, value),
            "stop_timeout" => put(&mut self.stop_timeout, value),
            _ => Err("there is no such setting".to_owned()),
        }
    }

    /// The settings whose value is not allowed, and why.
    pub(super) fn refused(&self) -> Vec<(&'static str, String)> {
        let numbers = [
            ("partitions", u64::from(self.partitions)),
            ("memory_bytes", self.memory_bytes.0),
            ("max_connections", u64::from(self.max_connections)),
            ("request_bytes", self.request_bytes.0),
            ("stop_timeout", crate::duration::milliseconds(self.stop_timeout.0)),
        ];
        let refused = numbers.into_iter();
        let refused =
            refused.filter_map(|(name, number)| Some((name, out_of_bounds(name, number)?)));
        let empty = self.data.as_os_str().is_empty().then(|| ("data", "it is empty".to_owned()));
        let store = self.store.0.as_ref().and_then(|store| store.0.check().err());
        let store = store.map(|error| ("store", error.to_string()));
        let directories = [("data", Some(&self.data)), ("cache_dir", self.cache_dir.0.as_ref())];
        let databases = directories
            .into_iter()
            .filter(|(_, path)| path.is_some_and(|path| is_database(path)))
            .map(|(name, _)| (name, DATABASE.to_owned()));
        let node_name =
            self.node_name.0.as_deref().and_then(bad_name).map(|why| ("node_name", why));
        let address = self.advertise.0.as_deref().and_then(bad_address);
        let address = address.map(|why| ("advertise", why));
        refused.chain(empty).chain(store).chain(databases).chain(node_name).chain(address).collect()
    }

    /// The settings that are given, and have a meaning with a store alone, if there is none.
    pub(super) fn without_store(&self) -> Vec<&'static str> {
        let given = [
            ("node_name", self.node_name.0.is_some()),
            ("advertise", self.advertise.0.is_some()),
            ("cache_dir", self.cache_dir.0.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given && self.store.0.is_none());
        given.map(|(name, _)| name).collect()
    }

    /// The options of the broker. Tenants and queues can only be declared in a file.
    pub(super) fn options(&self) -> Options {
        Options {
            listen: self.listen.0,
            data: self.data.clone(),
            store: self.store.0.clone().map(|store| store.0),
            node_name: self.node_name.0.clone(),
            advertise: self.advertise.0.clone(),
            cache_dir: self.cache_dir.0.clone(),
            partitions: self.partitions,
            memory_bytes: self.memory_bytes.0,
            auth: self.auth,
            allow_no_auth: self.allow_no_auth,
            allow_no_tls: self.allow_no_tls,
            tls_cert: self.tls_cert.0.clone(),
            tls_key: self.tls_key.0.clone(),
            tls_client_ca: self.tls_client_ca.0.clone(),
            max_connections: self.max_connections,
            request_bytes: self.request_bytes.0,
            stop_timeout: self.stop_timeout.0,
            tenants: BTreeMap::new(),
            queues: Vec::new(),
        }
    }
}

/// The limits of a tenant that a file may name.
pub(super) const LIMITS: [&str; 4] = ["sends_per_s", "max_messages", "max_bytes", "max_queues"];

/// Takes a limit of a tenant from the file. The name is one of [`LIMITS`].
pub(super) fn set_limit(of: &mut Limits, name: &str, value: &Written<'_>) -> Result<(), String> {
    let number = match name {
        "sends_per_s" => take(&mut of.sends_per_s, read(value)?),
        "max_messages" => take(&mut of.max_messages, read(value)?),
        "max_queues" => take(&mut of.max_queues, read(value)?),
        _ => take(&mut of.max_bytes, read::<OrOff<Size>>(value)?.0.map(|size| size.0)),
    };
    number.and_then(|number| out_of_bounds(name, number)).map_or(Ok(()), Err)
}

fn take<T: Copy + Into<u64>>(to: &mut Option<T>, number: Option<T>) -> Option<u64> {
    *to = number;
    number.map(Into::into)
}

fn put<'a, T: Deserialize<'a>>(to: &mut T, value: &Written<'a>) -> Result<(), String> {
    *to = read(value)?;
    Ok(())
}

fn read<'a, T: Deserialize<'a>>(value: &Written<'a>) -> Result<T, String> {
    let read = T::deserialize(ValueDeserializer::from(value.clone()));
    read.map_err(|error| cause(error.message()).to_owned())
}

/// The smallest and the largest number, and how numbers of its kind are shown.
type Bounds = (u64, u64, fn(u64) -> String);

fn bounds(name: &str) -> Option<Bounds> {
    let number = |number: u64| number.to_string();
    Some(match name {
        "partitions" => (1, limits::PARTITIONS_MAX.into(), number),
        "memory_bytes" => (16 << 20, TEBIBYTE, size::show),
        "max_connections" => (1, 1_000_000, number),
        "request_bytes" => (REQUEST_BYTES_MIN, TEBIBYTE, size::show),
        "stop_timeout" => (0, 3_600_000, hapax_server::time::show_ms),
        "sends_per_s" => (1, u32::MAX.into(), number),
        "max_messages" => (1, limits::COUNT_MAX, number),
        "max_bytes" => (1, limits::COUNT_MAX, size::show),
        "max_queues" => (1, limits::QUEUES_MAX as u64, number),
        _ => return None,
    })
}

fn out_of_bounds(name: &str, number: u64) -> Option<String> {
    let (min, max, show) = bounds(name)?;
    let is_within = (min..=max).contains(&number);
    let why = || format!("{} is not between {} and {}", show(number), show(min), show(max));
    (!is_within).then(why)
}

/// The word that was probably meant by a wrong value of a setting, to precede "Allowed:".
pub(super) fn meant(name: &str, value: &Written<'_>) -> String {
    let words = match name {
        "auth" => AUTH,
        "log_format" => FORMATS,
        _ => &[],
    };
    let DeValue::String(given) = value.get_ref() else { return String::new() };
    let meant = closest(given, words.iter().copied());
    meant.map_or_else(String::new, |word| format!("Did you mean \"{word}\"? "))
}

/// What a setting or a limit may be, to follow "Allowed:".
pub(super) fn allowed(name: &str) -> String {
    let kind = match name {
        "config" | "tls_cert" | "tls_key" | "tls_client_ca" | "cache_dir" => "a path, or \"off\"",
        "store" => "a URL such as postgres://user@host/database, or \"off\"",
        "node_name" => "a name, or \"off\"",
        "advertise" => "an address such as https://node-1.example:4747, or \"off\"",
        "listen" => "an address and a port, such as 127.0.0.1:4747, 0.0.0.0:4747 or [::]:4747",
        "data" => "a path",
        "partitions" | "max_connections" | "sends_per_s" | "max_messages" | "max_queues" => {
            "a whole number"
        }
        "memory_bytes" | "request_bytes" | "max_bytes" => "a size such as 256MiB or 1GB",
        "stop_timeout" => "a duration such as 500ms, 30s or 5m",
        "auth" => "\"off\" or \"tokens\"",
        "log" => {
            "off, error, warn, info, debug or trace, and TARGET=LEVEL for parts, with commas \
             between"
        }
        "log_format" => "\"text\" or \"json\"",
        "otlp_endpoint" => "a URL such as http://127.0.0.1:4317, or \"off\"",
        _ => "true or false",
    };
    let off = if name == "max_bytes" { ", or \"off\"" } else { "" };
    match bounds(name) {
        // Beyond it there is no limit at all, and nobody gets there.
        Some((min, limits::COUNT_MAX, show)) => format!("{kind}, at least {}{off}", show(min)),
        Some((min, max, show)) => format!("{kind}, from {} to {}", show(min), show(max)),
        None => kind.to_owned(),
    }
}

/// The arguments of the settings, in the order of the reference.
pub(super) fn arguments() -> Vec<Arg> {
    Values::augment_args(Command::new("settings")).get_arguments().cloned().collect()
}

/// The names of the settings, in the same order.
pub(super) fn names() -> Vec<String> {
    arguments().iter().map(|argument| argument.get_id().to_string()).collect()
}

/// The variable of a setting.
pub(super) fn variable(name: &str) -> String {
    format!("HAPAX_{}", name.to_ascii_uppercase())
}

/// The flag of a setting.
pub(super) fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// The settings as flags and variables have them, with the origins of those that are not defaults.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) values: Values,
    pub(crate) origins: BTreeMap<String, Origin>,
}

impl Flags {
    /// As if nothing were given.
    #[expect(clippy::expect_used, reason = "every default reads: there is a test")]
    pub(crate) fn defaults() -> Self {
        let command = Values::augment_args(Command::new("settings").no_binary_name(true));
        let matches = command.get_matches_from([""; 0]);
        let values = Values::from_arg_matches(&matches).expect("the defaults");
        Self { values, origins: BTreeMap::new() }
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let origins = names().into_iter().filter_map(|name| {
            let origin = match matches.value_source(&name)? {
                ValueSource::CommandLine => Origin::Flag(flag(&name)),
                ValueSource::EnvVariable => Origin::Environment(variable(&name)),
                _ => return None,
            };
            Some((name, origin))
        });
        Ok(Self { values: Values::from_arg_matches(matches)?, origins: origins.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        // Its heading is only for the settings.
        let command = Values::augment_args(command).next_help_heading(None::<&str>);
        names().iter().fold(command, |command, name| {
            command.mut_arg(name, |argument| argument.env(variable(name)).hide_env_values(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_broker_and_within_their_bounds() {
        let defaults = Flags::defaults().values;
        assert_eq!(defaults.refused(), []);
        assert_eq!(defaults.options(), Options::default());
        assert_eq!((defaults.log, defaults.log_format), (Filter::default(), Format::Text));
        assert_eq!((defaults.config, defaults.otlp_endpoint), (None, OrOff(None)));
    }

    #[test]
    fn every_setting_is_a_flag_a_variable_and_a_field_of_the_file() {
        let mut command = Flags::augment_args(Command::new("serve"));
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        let nothing = toml::de::DeTable::parse("a = [[]]").unwrap();
        let nothing = nothing.get_ref().get("a").unwrap();
        for name in names() {
            assert!(help.contains(&format!("{} ", flag(&name))) || help.contains(&flag(&name)));
            assert!(help.contains(&format!("[env: {}]", variable(&name))), "{name}: {help}");
            let why = Flags::defaults().values.set(&name, nothing).unwrap_err();
            assert_eq!(why.contains("no such setting"), name == "config", "{name}: {why}");
        }
        for name in LIMITS {
            assert!(set_limit(&mut Limits::default(), name, nothing).is_err(), "{name}");
        }
        assert_eq!(flag("tls_client_ca"), "--tls-client-ca");
    }

    #[test]
    fn a_switch_needs_no_value_and_may_have_one() {
        let given = |arguments: &[&str]| {
            let command = Flags::augment_args(Command::new("serve"));
            let all = ["serve"].iter().chain(arguments);
            let matches = command.try_get_matches_from(all).unwrap();
            let flags = Flags::from_arg_matches(&matches).unwrap();
            (flags.values.allow_no_tls, flags.origins.contains_key("allow_no_tls"))
        };
        assert_eq!(given(&[]), (false, false));
        assert_eq!(given(&["--allow-no-tls"]), (true, true));
        assert_eq!(given(&["--allow-no-tls=false"]), (false, true));
        assert_eq!(given(&["--listen", "1.2.3.4:5", "--allow-no-tls"]), (true, true));
    }
}
