//! What the broker's own settings promise less of than they seem to.

use super::super::finding::{Finding, Rule};
use super::super::kind::Auth;
use super::super::{DEFAULT_TENANT, Settings};
use super::data;

pub(super) fn lint(settings: &Settings, mounts: &str) -> Vec<Finding> {
    let mut findings = reach(settings);
    findings.extend(data::lint(settings, mounts));
    findings.extend(tenants(settings));
    findings.extend(spans(settings));
    findings
}

/// Who can reach the broker, and whether they are known and unheard.
pub(in super::super) fn reach(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |rule, name: &str, why: String, fix: &str| {
        let (origin, field, fix) = (settings.origin(name), name.to_owned(), fix.to_owned());
        findings.push(Finding { rule, origin, field, why, fix });
    };
    let listen = settings.listen;
    if !listen.ip().is_loopback() {
        match (settings.auth, settings.allow_no_auth) {
            (Auth::Off, false) => find(
                Rule::NoAuth,
                "listen",
                format!("{listen} is reachable from other machines, and auth is \"off\""),
                "Set auth = \"tokens\" and make one with `hapax token create`, or listen on \
                 127.0.0.1, or set allow_no_auth if something in front of it asks who is there",
            ),
            (Auth::Off, true) => find(
                Rule::AllowNoAuth,
                "allow_no_auth",
                format!("whoever reaches {listen} may read and change everything"),
                "Set auth = \"tokens\", unless something in front of it asks who is there",
            ),
            (Auth::Tokens, _) => {}
        }
        match (settings.tls_cert.is_some(), settings.allow_no_tls) {
            (false, false) => find(
                Rule::NoTls,
                "listen",
                format!("{listen} is reachable from other machines, and there is no TLS"),
                "Set tls_cert and tls_key, or listen on 127.0.0.1, or set allow_no_tls if \
                 something in front of it encrypts",
            ),
            (false, true) => find(
                Rule::AllowNoTls,
                "allow_no_tls",
                format!("whoever sees the traffic of {listen} reads bodies and tokens"),
                "Set tls_cert and tls_key, unless something in front of it encrypts",
            ),
            (true, _) => {}
        }
    }
    let tls = [
        ("tls_cert", settings.tls_cert.is_some(), "tls_key", settings.tls_key.is_some()),
        ("tls_key", settings.tls_key.is_some(), "tls_cert", settings.tls_cert.is_some()),
        (
            "tls_client_ca",
            settings.tls_client_ca.is_some(),
            "tls_cert",
            settings.tls_cert.is_some(),
        ),
    ];
    for (name, is_set, needed, has_needed) in tls {
        if is_set && !has_needed {
            let fix = format!("Set {needed} too, or leave {name} out");
            find(Rule::TlsIncomplete, name, format!("it needs {needed}"), &fix);
        }
    }
    findings
}

/// Without tokens everybody is the default tenant.
fn tenants(settings: &Settings) -> Vec<Finding> {
    if settings.auth == Auth::Tokens {
        return Vec::new();
    }
    let others = settings.tenants.iter().filter(|(name, _)| *name != DEFAULT_TENANT);
    others
        .map(|(_, tenant)| Finding {
            rule: Rule::UnreachableTenant,
            origin: tenant.origin.clone(),
            field: tenant.prefix.clone(),
            why: format!("auth is \"off\", so that everybody is the tenant {DEFAULT_TENANT}"),
            fix: "Set auth = \"tokens\", or declare queues as [queues.NAME]".to_owned(),
        })
        .collect()
}

fn spans(settings: &Settings) -> Option<Finding> {
    let endpoint = settings.otlp_endpoint.as_ref()?.as_str();
    let url: http::Uri = endpoint.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    if host == "localhost" || address.is_ok_and(|address| address.is_loopback()) {
        return None;
    }
    Some(Finding {
        rule: Rule::PlainOtlp,
        origin: settings.origin("otlp_endpoint"),
        field: "otlp_endpoint".to_owned(),
        why: format!("spans travel to {host} unencrypted, with names of tenants and queues"),
        fix: "Run a collector on this machine that passes them on encrypted".to_owned(),
    })
}
