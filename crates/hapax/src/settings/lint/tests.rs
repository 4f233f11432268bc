//! Every rule, each by a file that breaks it and by what to do about it.

use super::*;

/// The rules that a text breaks, with the lines.
fn found(text: &str) -> Vec<(&'static str, usize)> {
    let findings = lint_on(text, "hapax.toml", "");
    for finding in findings.iter().map(|found| &found.finding) {
        let fix = &finding.fix;
        assert!(!finding.why.is_empty() && !finding.why.ends_with('.'), "{finding}");
        assert!(fix.starts_with(|c: char| c.is_uppercase()) && !fix.ends_with('.'), "{finding}");
    }
    let names = findings.iter().map(|found| (found.finding.rule.name(), found.origin.line()));
    names.map(|(name, line)| (name, line.unwrap_or(0))).collect()
}

#[track_caller]
fn check(text: &str, expected: &[(&str, usize)]) {
    assert_eq!(found(text), expected, "{text}");
}

/// A queue with these fields, the first of them in line 2.
#[track_caller]
fn queue(fields: &str, expected: &[(&str, usize)]) {
    check(&format!("[queues.orders]\n{fields}\n"), expected);
}

#[test]
fn nothing_is_found_in_the_defaults() {
    check("", &[]);
    queue("", &[]);
    check("listen = \"127.0.0.1:4747\"\ndata = \"/var/lib/hapax\"\n", &[]);
    assert_eq!(lint_on("{}", "queue.json", ""), []);
}

#[test]
fn k6_retention_below_twice_the_horizon_is_an_error() {
    queue("retention_ms = 100000000", &[("retention", 2)]);
    queue("retry_horizon_ms = 604800000", &[("retention", 2)]);
    queue("retention_ms = 172799999\nretry_horizon_ms = 86400000", &[("retention", 2)]);
    queue("retention_ms = 172800000\nretry_horizon_ms = 86400000", &[]);
    let findings = lint_on("[queues.a]\nretention_ms = 100000000\n", "a.toml", "");
    let line = findings[0].to_string();
    assert!(line.starts_with("a.toml:2: error: queues.a.retention_ms: 100000000 ms is"), "{line}");
    assert!(line.contains("Raise retention_ms to 172800000 or lower"), "{line}");
}

#[test]
fn a_guarantee_below_exactly_once_is_a_warning() {
    queue("guarantee = \"at-least-once\"", &[("at-least-once", 2)]);
    queue("guarantee = \"at-most-once\"", &[("at-most-once", 2)]);
    // There are no leases and no attempts to be warned about.
    queue("guarantee = \"at-most-once\"\nlease_ms = 500", &[("at-most-once", 2)]);
}

#[test]
fn keys_per_group_are_told_about() {
    queue("dedup_scope = \"group\"", &[("group-scope-unordered", 2)]);
    let ordered = "order = \"group\"\non_group_dead = \"park\"\ndedup_scope = \"group\"";
    queue(ordered, &[("group-scope", 4)]);
    queue("order = \"group\"", &[("group-gap", 1)]);
    queue("on_group_dead = \"park\"", &[("combination", 2)]);
}

#[test]
fn undated_keys_and_a_short_memory_are_a_warning() {
    let short = "retention_ms = 7200000\nretry_horizon_ms = 3600000";
    queue(short, &[("short-memory", 2)]);
    queue(&format!("{short}\nundated_keys = \"refuse\""), &[]);
    queue("retry_horizon_ms = 59999", &[("short-horizon", 2)]);
    queue("retry_horizon_ms = 60000", &[]);
    queue("retention_ms = \"forever\"", &[("forever", 2)]);
}

#[test]
fn what_a_dead_key_does_is_told() {
    queue("on_dead = \"release\"", &[("dead-release", 2)]);
    queue("on_dead = \"rerun\"", &[("dead-rerun", 2)]);
    queue("on_dead = \"pin\"", &[]);
}

#[test]
fn leases_and_losses_are_told_about() {
    queue("lease_ms = 999", &[("short-lease", 2)]);
    queue("lease_ms = 1000", &[]);
    queue("on_lost = \"redeliver\"", &[("redeliver", 2)]);
    queue("on_lost = \"park\"", &[]);
}

#[test]
fn attempts_are_counted_and_waits_are_summed() {
    queue("max_attempts = 1", &[("single-attempt", 2)]);
    queue("max_attempts = 5", &[("fast-attempts", 2)]);
    queue("max_attempts = 7", &[]); // 1 + 2 + 4 + 8 + 16 + 32 seconds.
    queue("backoff_max_ms = 1000", &[("fast-attempts", 1)]);
    queue("max_attempts = 1000", &[("endless-attempts", 2)]);
    queue("backoff_min_ms = 700000", &[("combination", 2)]);
    let both = "backoff_min_ms = 700\nbackoff_max_ms = 500";
    queue(both, &[("fast-attempts", 1), ("combination", 2)]);
    let finding = lint_on(&format!("[queues.orders]\n{both}"), "hapax.toml", "")[1].to_string();
    assert!(finding.contains("Lower it, or raise backoff_max_ms"), "{finding}");
    queue("backoff_max_ms = 500", &[("fast-attempts", 1), ("combination", 2)]);
}

#[test]
fn a_time_to_live_must_leave_time_for_the_attempts() {
    queue("ttl_ms = 510999", &[("ttl-before-attempts", 2)]);
    queue("ttl_ms = 511000", &[]);
    queue("ttl_ms = 515000\ndelay_ms = 5000", &[("ttl-before-attempts", 2)]);
    queue("ttl_ms = 5000\ndelay_ms = 5000", &[("never-delivered", 2)]);
}

#[test]
fn a_queue_that_retries_longer_than_another_remembers_is_told() {
    let text = "[queues.slow]\nmax_attempts = 300\n\n[queues.fast]\nretry_horizon_ms = 86400000\n";
    check(text, &[("upstream-retries", 5)]);
    // Of another tenant, no worker sends to it.
    let text = text.replace("[queues.slow]", "[tenants.shop.queues.slow]");
    check(&text, &[]);
}

#[test]
fn what_is_reachable_needs_tokens_and_tls() {
    let open = "listen = \"0.0.0.0:4747\"\n";
    let tls = "tls_cert = \"a\"\ntls_key = \"b\"\n";
    check(open, &[("no-tls", 1)]);
    check(&format!("{open}auth = \"off\""), &[("no-auth", 1), ("no-tls", 1)]);
    check(&format!("{open}{tls}"), &[]);
    check(&format!("{open}{tls}auth = \"off\""), &[("no-auth", 1)]);
    check(&format!("{open}allow_no_tls = true"), &[("allow-no-tls", 2)]);
    let both = "allow_no_tls = true\nallow_no_auth = true\nauth = \"off\"";
    check(&format!("{open}{both}"), &[("allow-no-tls", 2), ("allow-no-auth", 3)]);
    check("listen = \"[::1]:4747\"\nauth = \"off\"", &[]);
    check("tls_cert = \"a\"", &[("tls-incomplete", 1)]);
    check("tls_key = \"a\"", &[("tls-incomplete", 1)]);
    check("tls_client_ca = \"a\"", &[("tls-incomplete", 1)]);
}

#[test]
fn data_must_stay() {
    check("data = \"/tmp/hapax\"", &[("temporary-data", 1)]);
    check("data = \"/dev/shm/hapax\"", &[("temporary-data", 1)]);
    check("data = \"/tmpfiles/hapax\"", &[]);
    check("data = \"hapax-data\"", &[("relative-data", 1)]);
}

#[test]
fn data_in_memory_is_an_error_where_the_data_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let mounts = format!("tmpfs {} tmpfs rw 0 0\n", path.display());
    let text = |name: &str| format!("data = \"{}\"\n", path.join(name).display());
    std::fs::create_dir(path.join("there")).unwrap();
    let findings = lint_on(&text("there"), "hapax.toml", &mounts);
    assert_eq!(findings[0].finding.rule, Rule::MemoryData);
    assert_eq!(findings[0].finding.severity(), Severity::Error);
    let absent = lint_on(&text("absent"), "hapax.toml", &mounts);
    assert!(absent.iter().all(|found| found.finding.rule != Rule::MemoryData));
    // Whereas a broker is about to create it there.
    let mut starting = Settings::new(&Flags::defaults());
    starting.values.data = path.join("absent");
    assert_eq!(starting.findings_on(&mounts)[0].finding.rule, Rule::MemoryData);
}

#[test]
fn tenants_without_tokens_and_spans_without_encryption_are_told() {
    let text =
        "auth = \"off\"\n[tenants.shop]\nsends_per_s = 5\n[tenants.default]\nmax_queues = 5\n";
    check(text, &[("unreachable-tenant", 2)]);
    check("otlp_endpoint = \"http://10.0.0.7:4317\"", &[("plain-otlp", 1)]);
    check("otlp_endpoint = \"http://localhost:4317\"", &[]);
    check("otlp_endpoint = \"http://[::1]:4317\"", &[]);
}

#[test]
fn a_node_that_others_cannot_follow_is_told() {
    let store = "store = \"postgres://hapax@db/queues\"";
    let local = "listen = \"127.0.0.1:4747\"";
    check(&format!("{store}\n{local}"), &[("no-advertise", 2)]);
    let everywhere = "listen = \"0.0.0.0:4747\"\nallow_no_tls = true # lint: allow allow-no-tls";
    check(&format!("{store}\n{everywhere}"), &[("no-advertise", 2)]);
    check(&format!("{store}\n{local}\nadvertise = \"https://a.example:4747\""), &[]);
    check(local, &[]);
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_line() {
    check("listen = \n", &[("syntax", 1)]);
    check("a = 1\n\nlisten = 127.0.0.1\n", &[("syntax", 3)]);
    check("data = \"/a\"\ndata = \"/b\"\n", &[("syntax", 2)]);
    check("lissten = \"127.0.0.1:1\"", &[("unknown-field", 1)]);
    check("listen = 4747", &[("value", 1)]);
    queue("leese_ms = 5", &[("unknown-field", 2)]);
    queue("lease_ms = 5", &[("value", 2)]);
}

#[test]
fn a_line_may_allow_a_warning_but_no_error() {
    queue("guarantee = \"at-most-once\" # lint: allow at-most-once", &[]);
    queue("on_dead = \"release\" # lint: allow dead-rerun, dead-release, as agreed", &[]);
    queue("on_dead = \"release\" # lint: allow at-most-once", &[("dead-release", 2)]);
    let typo = "on_dead = \"release\" # lint: allow dead-relese";
    queue(typo, &[("dead-release", 2), ("unknown-rule", 2)]);
    let second = "on_dead = \"release\" # lint: allow dead-release, dead-reru";
    queue(second, &[("unknown-rule", 2)]);
    let finding = lint_on(&format!("[queues.orders]\n{typo}"), "hapax.toml", "")[1].to_string();
    assert!(finding.contains("there is no rule dead-relese"), "{finding}");
    assert!(finding.contains("Did you mean dead-release?"), "{finding}");
    queue("lease_ms = 5000 # lint: allow everything", &[("unknown-rule", 2)]);
    queue("on_dead = \"release\" # lint: allow", &[("dead-release", 2)]);
    queue("retention_ms = 100000000 # lint: allow retention", &[("retention", 2)]);
    check("[queues.orders] # lint: allow group-gap\norder = \"group\"\n", &[]);
}

#[test]
fn a_configuration_in_json_is_checked_the_same_way() {
    let check = |text: &str, expected: &[(&str, &str, usize)]| {
        let findings = lint_on(text, "queue.json", "");
        let found: Vec<(&str, &str, usize)> = findings
            .iter()
            .map(|Located { origin, finding }| {
                (finding.rule.name(), finding.field.as_str(), origin.line().unwrap())
            })
            .collect();
        assert_eq!(found, expected, "{text}");
    };
    check("{\n  \"retention_ms\": 100000000\n}", &[("retention", "retention_ms", 2)]);
    check("{\"retention_ms\": null}", &[("forever", "retention_ms", 1)]);
    check("{\"retention_ms\": \"forever\"}", &[("value", "retention_ms", 1)]);
    check(
        "{\n\"lease_ms\": \"5\",\n\"leese\": 1}",
        &[("value", "lease_ms", 2), ("unknown-field", "leese", 3)],
    );
    check("{\"ttl_ms\": 1.5}", &[("value", "ttl_ms", 1)]);
    check(
        "{\"lease_ms\": 5000,\n\"lease_ms\": 500}",
        &[("short-lease", "lease_ms", 1), ("value", "lease_ms", 2)],
    );
    check("{\n\"lease_ms\" 5}", &[("syntax", "", 2)]);
    check("[]", &[("syntax", "", 1)]);
    assert_eq!(lint_on("  {\"on_dead\": \"release\"}", "queue", "").len(), 1, "by its look");
}

#[test]
fn every_rule_is_found_by_a_test_here() {
    let tests = include_str!("tests.rs");
    for rule in Rule::ALL {
        let is_named = tests.contains(&format!("(\"{}\"", rule.name()));
        assert!(is_named || *rule == Rule::MemoryData, "{} has no test", rule.name());
    }
}
