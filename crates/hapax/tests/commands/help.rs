//! Help, completions, manuals, settings: what needs no broker and no data.

use crate::broker::{Printed, hapax};

fn run(arguments: &[&str]) -> Printed {
    let directory = tempfile::tempdir().unwrap();
    Printed::of(&hapax(directory.path()).args(arguments).output().unwrap())
}

/// The names in the list of commands that a help begins with.
fn subcommands(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let names = list.lines().take_while(|line| !line.trim().is_empty());
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_help_with_an_example() {
    let mut open = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["-h"]).collect();
        let told = run(&arguments);
        assert_eq!(told.code, Some(0), "{arguments:?}");
        for name in subcommands(&told.out) {
            open.push(path.iter().cloned().chain([name]).collect());
        }
        if !path.is_empty() {
            let example = format!("  hapax {}", path.join(" "));
            assert!(told.out.contains("Examples:"), "{path:?}: {}", told.out);
            assert!(told.out.contains(example.trim_end()), "{path:?}: {}", told.out);
            seen += 1;
        }
    }
    assert!(seen > 35, "{seen} commands");
}

#[test]
fn without_a_command_there_is_help_with_the_exit_codes() {
    let told = run(&[]);
    assert_eq!(told.code, Some(0));
    assert!(told.out.contains("Exit codes:") && told.out.contains("75"), "{}", told.out);
    assert!(told.out.contains("dev") && !told.out.contains("victim"), "{}", told.out);
    assert_eq!(run(&["nonsense"]).code, Some(2));
    assert_eq!(run(&["queue", "create"]).code, Some(2));
}

#[test]
fn completions_and_manuals_are_made_from_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let told = run(&["completions", shell]);
        assert!(told.code == Some(0) && told.out.contains("redrive"), "{shell}");
    }
    let man = run(&["man"]);
    assert!(man.out.contains(".TH") && man.out.contains("hapax"), "{}", man.out);
    assert!(run(&["man", "dead", "redrive"]).out.contains("rate"));
    assert!(run(&["man", "ded"]).err.contains("did you mean dead?"));
    let directory = tempfile::tempdir().unwrap();
    let told = hapax(directory.path()).args(["man", "--dir", "pages"]).output().unwrap();
    assert!(told.status.success());
    assert!(directory.path().join("pages/hapax-queue-create.1").exists());
    let pages = std::fs::read_dir(directory.path().join("pages")).unwrap();
    for page in pages {
        let name = page.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("help"), "a page about help: {name}");
    }
}

#[test]
fn the_version_is_told_by_a_flag_and_by_a_command() {
    assert_eq!(run(&["version"]).out, run(&["--version"]).out);
    assert!(run(&["version"]).out.starts_with("hapax "));
}

#[test]
fn what_was_misspelt_is_told_with_what_was_meant() {
    let told = run(&["send", "orders", "x", "--kye", "a"]);
    assert!(told.code == Some(2) && told.err.contains("'--key'"), "{told:?}");
    let directory = tempfile::tempdir().unwrap();
    let version = |name: &str| {
        let mut command = hapax(directory.path());
        Printed::of(&command.arg("version").env(name, "http://127.0.0.1:1").output().unwrap())
    };
    let told = version("HAPAX_SEVER");
    assert!(told.code == Some(0) && told.err.contains("HAPAX_SERVER"), "{told:?}");
    for known in ["HAPAX_SERVER", "HAPAX_DATA", "HAPAX_KEY", "HAPAX_HEADER_TRACE"] {
        assert_eq!(version(known).err, "", "{known}");
    }
}

#[test]
fn a_usage_error_shows_nothing_that_a_variable_set() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = hapax(directory.path());
    command.args(["queue", "show"]).env("HAPAX_SERVER", "http://127.0.0.1:1");
    let told = Printed::of(&command.output().unwrap());
    assert!(told.code == Some(2) && !told.err.contains("--server"), "{told:?}");
}

#[test]
fn colours_can_be_forced_and_forbidden() {
    let directory = tempfile::tempdir().unwrap();
    let lint = |variables: &[&str]| {
        std::fs::write(directory.path().join("a.toml"), "nonsense = 1\n").unwrap();
        let mut command = hapax(directory.path());
        command.args(["lint", "a.toml"]).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.envs(variables.iter().map(|name| (name, "1")));
        Printed::of(&command.output().unwrap()).out.contains('\x1b')
    };
    assert!(!lint(&[]), "it is no terminal");
    assert!(lint(&["CLICOLOR_FORCE"]));
    assert!(!lint(&["CLICOLOR_FORCE", "NO_COLOR"]), "whoever wants none gets none");
}

#[test]
fn settings_are_shown_with_their_origins_and_wrong_ones_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("hapax.toml"), "partitions = 3\n").unwrap();
    let show = |arguments: &[&str]| {
        let mut command = hapax(directory.path());
        command.args(["config", "show", "-o", "json"]).args(arguments);
        Printed::of(&command.env("HAPAX_LOG", "debug").output().unwrap())
    };
    let shown: serde_json::Value = serde_json::from_str(&show(&["--data", "x"]).out).unwrap();
    let find = |name: &str| {
        let lines = shown.as_array().unwrap();
        lines.iter().find(|line| line["name"] == name).unwrap().clone()
    };
    assert_eq!(find("partitions")["value"], 3);
    assert!(find("partitions")["origin"].as_str().unwrap().contains("hapax.toml"));
    assert!(find("log")["origin"].as_str().unwrap().contains("HAPAX_LOG"));
    assert!(find("data")["origin"].as_str().unwrap().contains("--data"));
    std::fs::write(directory.path().join("hapax.toml"), "partitons = 3\n").unwrap();
    let told = show(&[]);
    assert!(told.code == Some(2) && told.err.contains("partitons"), "{told:?}");
    let error: serde_json::Value = serde_json::from_str(told.err.trim()).unwrap();
    assert!(!error["detail"].as_str().unwrap().contains("error:"), "said once: {error}");
    assert!(!error["next"].as_str().unwrap().contains("config show"), "it is that: {error}");
    let refused = hapax(directory.path()).arg("serve").output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "a broker does not start on it either");
}

#[test]
fn settings_that_a_broker_refuses_are_shown_and_are_no_success() {
    let told = run(&["config", "show", "--listen", "0.0.0.0:4747"]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.out.contains("0.0.0.0:4747"), "it is shown all the same: {told:?}");
    assert!(told.err.contains("no-tls"), "{told:?}");
    let told = run(&["config", "show", "--listen", "0.0.0.0:4747", "--allow-no-tls"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    let told = run(&["config", "show", "--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.out.contains("nowhere.key") && told.err.contains("nowhere.pem"), "{told:?}");
}

#[test]
fn flags_go_before_variables_before_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = "listen = \"127.0.0.1:3\"\ndata = \"/file\"\nlog = \"warn\"\n";
    std::fs::write(directory.path().join("hapax.toml"), file).unwrap();
    let show = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = hapax(directory.path());
        command.args(["config", "show"]).args(arguments).envs(variables.iter().copied());
        Printed::of(&command.output().unwrap())
    };
    let variables = [
        ("HAPAX_LISTEN", "127.0.0.1:2"),
        ("HAPAX_DATA", "/variable"),
        ("HAPAX_LOG", ""),
        ("HAPAX_ALLOW_NO_TLS", "yes"),
    ];
    let told = show(&["--listen", "127.0.0.1:1"], &variables);
    let line = |name: &str| {
        let mut lines = told.out.lines();
        let line = lines.find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {told:?}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("listen")[1..], ["127.0.0.1:1", "flag", "--listen"]);
    assert_eq!(line("data")[1..], ["/variable", "env", "HAPAX_DATA"]);
    assert_eq!(line("log")[1..], ["warn", "file", "hapax.toml:3"], "an empty variable is absent");
    assert_eq!(line("allow_no_tls")[1..], ["true", "env", "HAPAX_ALLOW_NO_TLS"]);
    assert_eq!(line("auth")[1..], ["tokens", "default"]);
    let told = show(&[], &[("HAPAX_MEMORY_BYTES", "1G")]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.err.contains("'1G' for 'HAPAX_MEMORY_BYTES'"), "it was not typed: {told:?}");
    assert!(told.err.contains("did you mean 1GiB?"), "{told:?}");
    let told = show(&["--memory-bytes", "1G"], &[("HAPAX_MEMORY_BYTES", "1GiB")]);
    assert!(told.code == Some(2) && told.err.contains("--memory-bytes"), "{told:?}");
    let told = show(&[], &[("HAPAX_MAX_CONNECTIONS", "abc")]);
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.err.contains("it is not a whole number"), "{told:?}");
    assert!(told.err.contains("HAPAX_MAX_CONNECTIONS"), "{told:?}");
    let told = show(&["--auth", "token"], &[]);
    assert!(told.err.contains("not one of off, tokens: did you mean tokens?"), "{told:?}");
    let told = show(&["--partitions", "0"], &[]);
    assert!(told.code == Some(2) && told.err.contains("partitions: 0 is not between"), "{told:?}");
}

#[test]
fn lint_ends_with_an_exit_code_for_ci() {
    let directory = tempfile::tempdir().unwrap();
    let lint = |text: &str, arguments: &[&str]| {
        std::fs::write(directory.path().join("a.toml"), text).unwrap();
        let output =
            hapax(directory.path()).args(["lint", "a.toml"]).args(arguments).output().unwrap();
        Printed::of(&output)
    };
    let sound = "data = \"/var/lib/hapax\"\n[queues.orders]\n";
    assert_eq!(lint(sound, &["--strict"]).code, Some(0));
    let weak = format!("{sound}guarantee = \"at-most-once\"\n");
    let told = lint(&weak, &[]);
    assert!(told.code == Some(0) && told.out.contains("at-most-once"), "{told:?}");
    assert_eq!(lint(&weak, &["--strict"]).code, Some(1));
    let wrong = format!("{sound}retention_ms = 1000\n");
    let told = lint(&wrong, &["-o", "json"]);
    let shape: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(told.code, Some(2));
    assert_eq!(shape[0]["findings"][0]["severity"], "error");
    let error: serde_json::Value = serde_json::from_str(told.err.trim()).unwrap();
    assert_eq!((&error["exit"], &error["detail"]), (&2.into(), &"1 error, 1 warning".into()));
    assert_eq!(run(&["lint", "nowhere.toml"]).code, Some(2));
}
