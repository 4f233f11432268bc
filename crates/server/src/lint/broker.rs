//! The rules for the broker's own settings.

use hapax_wire::DEFAULT_TENANT;

use super::{Finding, Rule};
use crate::options::{Auth, Options, tenant_path};

/// Checks whether callers are authenticated and the traffic is encrypted.
/// The broker does not start with an error of these.
pub fn reach(options: &Options) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |rule, name: &str, why: String, fix: &str| {
        findings.push(Finding { rule, field: name.to_owned(), why, fix: fix.to_owned() });
    };
    let listen = options.listen;
    if !listen.ip().is_loopback() {
        match (options.auth, options.allow_no_auth) {
            (Auth::Off, false) => find(
                Rule::NoAuth,
                "listen",
                format!("{listen} is reachable from other machines, and auth is \"off\""),
                "Set auth = \"tokens\" and make one with `hapax token create`, or listen on \
                 127.0.0.1, or set allow_no_auth if a proxy in front of it authenticates callers",
            ),
            (Auth::Off, true) => find(
                Rule::AllowNoAuth,
                "allow_no_auth",
                format!("everybody who can reach {listen} can read and change everything"),
                "Set auth = \"tokens\", unless a proxy in front of it authenticates callers",
            ),
            (Auth::Tokens, _) => {}
        }
        match (options.tls_cert.is_some(), options.allow_no_tls) {
            (false, false) => find(
                Rule::NoTls,
                "listen",
                format!("{listen} is reachable from other machines, and there is no TLS"),
                "Set tls_cert and tls_key, or listen on 127.0.0.1, or set allow_no_tls if a proxy \
                 in front of it terminates TLS",
            ),
            (false, true) => find(
                Rule::AllowNoTls,
                "allow_no_tls",
                format!("everybody who can see the traffic of {listen} can read bodies and tokens"),
                "Set tls_cert and tls_key, unless a proxy in front of it terminates TLS",
            ),
            (true, _) => {}
        }
    }
    let tls = [
        ("tls_cert", options.tls_cert.is_some(), "tls_key", options.tls_key.is_some()),
        ("tls_key", options.tls_key.is_some(), "tls_cert", options.tls_cert.is_some()),
        ("tls_client_ca", options.tls_client_ca.is_some(), "tls_cert", options.tls_cert.is_some()),
    ];
    for (name, is_set, needed, has_needed) in tls {
        if is_set && !has_needed {
            let fix = format!("Set {needed} too, or leave {name} out");
            find(Rule::TlsIncomplete, name, format!("it needs {needed}"), &fix);
        }
    }
    findings
}

/// Whether clients and other nodes can follow the address that a node gives them.
pub(super) fn followed(options: &Options) -> Option<Finding> {
    let ip = options.listen.ip();
    let is_local = ip.is_loopback() || ip.is_unspecified();
    if options.store.is_none() || options.advertise.is_some() || !is_local {
        return None;
    }
    let why = match ip.is_loopback() {
        true => format!("clients of other nodes are sent to {}, which is their own machine", ip),
        false => "clients of other nodes are sent to this machine's name, which they may not know"
            .to_owned(),
    };
    let fix = "Set advertise to the address at which clients reach this node, such as \
               https://node-1.example:4747";
    let (rule, field, fix) = (Rule::NoAdvertise, "listen".to_owned(), fix.to_owned());
    Some(Finding { rule, field, why, fix })
}

/// Without tokens everybody is the default tenant.
pub(super) fn tenants(options: &Options) -> Vec<Finding> {
    if options.auth == Auth::Tokens {
        return Vec::new();
    }
    let others = options.tenants.keys().filter(|name| *name != DEFAULT_TENANT);
    others
        .map(|name| Finding {
            rule: Rule::UnreachableTenant,
            field: tenant_path(name),
            why: format!("auth is \"off\", so every caller is the tenant {DEFAULT_TENANT}"),
            fix: "Set auth = \"tokens\", or declare queues as [queues.NAME]".to_owned(),
        })
        .collect()
}

/// Whether spans leave the machine unencrypted.
pub fn spans(endpoint: &str) -> Option<Finding> {
    let url: http::Uri = endpoint.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    if host == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
        return None;
    }
    Some(Finding {
        rule: Rule::PlainOtlp,
        field: "otlp_endpoint".to_owned(),
        why: format!("spans travel to {host} unencrypted, with names of tenants and queues"),
        fix: "Run a collector on this machine that forwards them encrypted".to_owned(),
    })
}
